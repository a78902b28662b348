//! `share`: shares files, folders and torrents until interrupted.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anabranch_content::create::create;
use anabranch_content::metainfo::Metainfo;
use anabranch_content::storage::naming;
use anabranch_paths::Endpoint;
use anabranch_ppspp::link::SecureLink;
use anabranch_ppspp::wire::Dialect;
use anabranch_swarm::ppspp::{CHUNK_LEN_DEFAULT, HashError, HashOptions, Hashed, hash_path};
use anabranch_swarm::{AddOptions, ContentId, Event, EventKind, Events, FailureKind, Session, SessionConfig, Source};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::create::{save, tell_left_out, tell_v1_link};
use super::{create_failure, create_options, filter, first_misfit, real_path, tiers};
use crate::bulk::options::identity;
use crate::cli::{DialectChoice, SessionFlags, ShareFlags};
use crate::exit::{Code, Failure};
use crate::guard;
use crate::output::{self, Chatter};
use crate::runtime::{self, unless_interrupted};
use crate::sandbox::{Plan, Sandbox};
use crate::seeding::{self, Seeding};
use crate::session;
use crate::settings;
use crate::source;
use crate::status::Meter;
use crate::units::{self, Size};
use crate::watch::{Content, Watch};

/// Something to share, ready to be added.
struct Shared {
    metainfo: Metainfo,
    /// The folder that its files are in.
    dir: PathBuf,
    /// Nothing has to be verified any more.
    trusted: bool,
    /// Where its torrent is, if it is in a file.
    torrent_file: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(flags: Box<ShareFlags>, chatter: Chatter) -> Result<Code, Failure> {
    guard::check_proxy(&flags.session)?;
    // Before anything is hashed or listened on.
    create_options(&flags.make)?;
    let made = flags.paths.iter().filter(|path| !is_torrent(path)).count();
    check_given(&flags, made)?;
    if flags.torrent_out.is_some() && made != 1 {
        return Err(Failure::usage("`--torrent-out` saves the torrent of one PATH: give exactly one file or folder"));
    }
    let sandbox = Plan::share(&flags).enter(chatter)?;
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let reached = session::reach(&flags.session, std::iter::empty(), chatter);
        let Some((scion, peers)) = unless_interrupted(&interrupted, reached).await? else { return Ok(Code::Success) };
        let config = SessionConfig { scion, keeps_ports_for_ppspp: flags.ppspp, ..SessionConfig::default() };
        let secure_identity = match flags.secure {
            true => Some(identity(flags.session.scion.key.as_deref(), chatter)?),
            false => None,
        };
        let config = SessionConfig { secure_identity, ..config };
        let mut config = session::session_config(&flags.session, config, chatter)?;
        if flags.ppspp && !flags.with_torrent {
            session::discover_nobody(&mut config);
        }
        let (session, events) = session::start(&flags.session, config, chatter)?;
        let mut watch = Watch::sharing(&flags.session, chatter)?;
        let ended = async {
            if !flags.session.json && !chatter.quiet {
                let addresses: Vec<String> = session.addresses().iter().map(ToString::to_string).collect();
                output::line(format_args!("listening on {}", addresses.join(" ")))?;
            }
            for path in flags.paths.iter().filter(|_| flags.ppspp) {
                let Some(hashed) = hash(path, &flags, chatter, &interrupted).await? else {
                    return Ok(Code::Success);
                };
                add_hashed(&session, &flags, hashed, &peers, &mut watch)?;
            }
            for path in flags.paths.iter().filter(|_| !flags.ppspp || flags.with_torrent) {
                let Some(shared) = prepare(path, &flags, (&sandbox, chatter), &interrupted).await? else {
                    return Ok(Code::Success);
                };
                add(&session, &flags, shared, &peers, &mut watch)?;
            }
            flags.make.selection.tell_idle(chatter);
            tokio::select! {
                ended = follow(&session, events, &flags, &mut watch) => ended,
                () = interrupted.notified() => Ok(Code::Success),
            }
        };
        let ended = ended.await;
        watch.close();
        session.shutdown().await;
        ended
    })
}

/// Flags of `share` about how a torrent is made that `edit` has too: they change one that is made.
const EDITED: [&str; 4] = ["web-seed", "private", "comment", "source"];
/// The others.
const MADE: [&str; 3] = ["version", "piece-length", "times"];
/// Flags about what of a folder is shared, by a torrent or by PPSPP.
const CHOSEN: [&str; 2] = ["exclude", "include"];
/// Flags about torrents that are made already.
const FOUND: [&str; 2] = ["data", "no-verify"];

/// A flag that has nothing to apply to was meant for something.
fn check_given(flags: &ShareFlags, made: usize) -> Result<(), Failure> {
    let given = &flags.given;
    if !flags.ppspp
        && let Some(flag) = given.first_of(&["chunk-length", "dialect", "secure", "with-torrent"])
    {
        return Err(Failure::usage(format!("`--{flag}` is about sharing by PPSPP: give --ppspp too, or leave it out")));
    }
    if flags.ppspp && !flags.with_torrent && given.first_of(&["super-seed"]).is_some() {
        return Err(Failure::usage(
            "`--super-seed` is about torrents, and --ppspp shares without one: give --with-torrent too, or leave it out",
        ));
    }
    if flags.ppspp {
        if let Some(torrent) = flags.paths.iter().find(|path| is_torrent(path)) {
            return Err(Failure::usage(format!(
                "`--ppspp` shares files and folders, and {} is a torrent: give the file or folder that it is of",
                torrent.display()
            )));
        }
        if !flags.secure {
            guard::check_plain_ppspp(&flags.session, "give --secure too")?;
        } else if flags.with_torrent {
            return Err(Failure::usage(
                "`--secure` is about PPSPP, and `--with-torrent` would share the same files in the clear: leave one of them out",
            ));
        } else if flags.dialect == DialectChoice::Libswift {
            return Err(Failure::usage(
                "`--secure` shares with Anabranch alone, and libswift proves no key: leave it out, or --dialect",
            ));
        }
        let is_about_torrents = || EDITED.iter().chain(&MADE).chain(&["torrent-out"]).copied();
        let flag = given.first_of(&is_about_torrents().collect::<Vec<_>>());
        if let Some(flag) = flag.filter(|_| !flags.with_torrent) {
            return Err(Failure::usage(format!(
                "`--{flag}` is about a torrent, and --ppspp makes none: give --with-torrent too, or leave it out"
            )));
        }
    }
    if made == 0 {
        let torrent = flags.paths.first().map_or(Path::new("TORRENT"), PathBuf::as_path).display();
        if let Some(flag) = given.first_of(&EDITED) {
            return Err(Failure::usage(format!(
                "`--{flag}` is about the torrent that is made of a PATH, and {torrent} is made already: `anabranch edit` changes it"
            )));
        }
        if let Some(flag) = given.first_of(&MADE).or_else(|| given.first_of(&CHOSEN)) {
            return Err(Failure::usage(format!(
                "`--{flag}` is about the torrent that is made of a PATH, and {torrent} is made already: give the file or folder \
                 instead"
            )));
        }
    }
    if made == flags.paths.len()
        && let Some(flag) = given.first_of(&FOUND)
    {
        return Err(Failure::usage(format!(
            "`--{flag}` is about the content of .torrent files, and none is given: leave it out"
        )));
    }
    Ok(())
}

/// Hashes a file or a folder for PPSPP, or finds its tree; `None` when interrupted meanwhile.
async fn hash(
    path: &Path,
    flags: &ShareFlags,
    chatter: Chatter,
    interrupted: &Notify,
) -> Result<Option<Hashed>, Failure> {
    let path = real_path(path, "a file or a folder")?;
    refuse_root(&path)?;
    let chunk_len = flags.chunk_length.map_or(CHUNK_LEN_DEFAULT, |Size(bytes)| bytes as u32);
    let dialect = match flags.dialect {
        DialectChoice::Rfc7574 => Dialect::Rfc7574,
        DialectChoice::Libswift => Dialect::Draft10,
    };
    let tree_dir = settings::cache_folder().map(|cache| cache.join("trees"));
    let options = HashOptions { chunk_len, dialect, tree_dir, filter: filter(&flags.make.selection) };
    let mut meter = Meter::new(chatter, "hashing");
    let cancel = Arc::new(AtomicBool::new(false));
    let canceled = Arc::clone(&cancel);
    let mut work = tokio::task::spawn_blocking(move || {
        let hashed = hash_path(&path, &options, &canceled, |done, total| meter.show(done, total));
        meter.clear();
        hashed
    });
    tokio::select! {
        hashed = &mut work => {
            let hashed = hashed.map_err(|error| Failure::new(Code::Failed, error))?;
            let hashed = hashed.map_err(|error| match error {
                HashError::Folder(error) => create_failure(&error),
                error => Failure::input(error),
            })?;
            hashed.folder.iter().for_each(|folder| tell_left_out(&folder.survey, chatter));
            Ok(Some(hashed))
        }
        () = interrupted.notified() => {
            cancel.store(true, Ordering::Relaxed);
            Ok(None)
        }
    }
}

fn refuse_root(path: &Path) -> Result<(), Failure> {
    match path.parent() {
        Some(_) => Ok(()),
        None => Err(Failure::input("the root folder has no name to be shared under: share folders in it")),
    }
}

/// Shares a file or a folder by PPSPP.
fn add_hashed(
    session: &Session,
    flags: &ShareFlags,
    mut hashed: Hashed,
    peers: &[Endpoint],
    watch: &mut Watch,
) -> Result<(), Failure> {
    let trackers: Vec<String> = tiers("tracker", &flags.make.tracker)?.into_iter().flatten().collect();
    hashed.link.secure = secure_link(session, &flags.session);
    let mut link = hashed.link.clone();
    let (name, dir) = (link.name.clone().unwrap_or_default(), hashed.dir.clone());
    let options = AddOptions {
        dir: dir.clone(),
        peers: peers.to_vec(),
        allowed: guard::allowed(&flags.session)?,
        trackers: trackers.clone(),
        limit_down: flags.session.torrent_limit_down.map(|rate| rate.0),
        limit_up: flags.session.torrent_limit_up.map(|rate| rate.0),
        read_only: true,
        trusted: true,
        ..AddOptions::default()
    };
    let source = Source::PpsppFile(Box::new(hashed));
    let id =
        session.add(source, options).map_err(|error| Failure::input(format!("{error}; name each content once")))?;
    // The port is known only now.
    link.trackers = trackers;
    link.peers = ppspp_addresses(session);
    let swarm_id = anabranch_content::hex::encode(link.params.swarm_id());
    let extra = Map::from_iter([
        ("link".to_owned(), Value::from(link.to_string())),
        ("swarm_id".to_owned(), swarm_id.as_str().into()),
        ("dir".to_owned(), dir.to_string_lossy().into()),
    ]);
    watch.contents.insert(id, Content::new(name, swarm_id, extra));
    Ok(())
}

/// What a link says of our key, where the session has one for that.
pub(super) fn secure_link(session: &Session, flags: &SessionFlags) -> Option<SecureLink> {
    let key = session.secure_node_id()?.to_string();
    Some(SecureLink { key, is_private: !flags.guard.allow.is_empty() })
}

/// Where others reach our PPSPP, as links have it.
pub(super) fn ppspp_addresses(session: &Session) -> Vec<String> {
    session.ppspp_addresses().iter().map(ToString::to_string).collect()
}

fn is_torrent(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("torrent")) && path.is_file()
}

/// Reads a torrent or makes one; `None` when interrupted meanwhile.
async fn prepare(
    path: &Path,
    flags: &ShareFlags,
    (sandbox, chatter): (&Sandbox, Chatter),
    interrupted: &Notify,
) -> Result<Option<Shared>, Failure> {
    if path.to_str().is_some_and(|text| text.starts_with("magnet:")) {
        return Err(Failure::input(
            "a magnet link cannot be shared without its torrent: use `get --seed`, or give the torrent",
        ));
    }
    if is_torrent(path) {
        return torrent(path, flags).map(Some);
    }
    let path = real_path(path, "a file, a folder or a .torrent file")?;
    refuse_root(&path)?;
    let options = create_options(&flags.make)?;
    let mut meter = Meter::new(chatter, "hashing");
    let cancel = Arc::new(AtomicBool::new(false));
    let (canceled, hashed) = (Arc::clone(&cancel), path.clone());
    let mut work = tokio::task::spawn_blocking(move || {
        let created = create(&hashed, &options, &canceled, |done, total| meter.show(done, total));
        meter.clear();
        created
    });
    let created = tokio::select! {
        created = &mut work => created.map_err(|error| Failure::new(Code::Failed, error))?.map_err(|error| create_failure(&error))?,
        () = interrupted.notified() => {
            cancel.store(true, Ordering::Relaxed);
            return Ok(None);
        }
    };
    if let Some(out) = &flags.torrent_out {
        sandbox.save(save, out, &created.metainfo)?;
    }
    tell_left_out(&created.survey, chatter);
    let (metainfo, dir) = (created.torrent, created.survey.dir);
    Ok(Some(Shared { metainfo, dir, trusted: true, torrent_file: flags.torrent_out.clone() }))
}

fn torrent(path: &Path, flags: &ShareFlags) -> Result<Shared, Failure> {
    let mut metainfo = source::torrent(path)?;
    let own = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let candidates = match &flags.data {
        Some(data) => vec![data.clone()],
        None => vec![own.to_path_buf(), env::current_dir().unwrap_or_else(|_| PathBuf::from("."))],
    };
    let found = candidates.iter().find_map(|dir| {
        // Whoever put the files there gave them their names.
        let info = naming::for_reading(&metainfo.info, dir);
        let has_any = info.regular_files().any(|(_, file)| dir.join(&file.path).is_file());
        has_any.then(|| (info, dir.clone()))
    });
    let Some((info, dir)) = found else {
        let tried: Vec<String> = candidates.iter().map(|dir| dir.display().to_string()).collect();
        let message = format!(
            "no file of {} is in {}; give the folder above it with --data",
            metainfo.info.name,
            tried.join(" or ")
        );
        return Err(Failure::new(Code::Incomplete, message));
    };
    metainfo.info = info;
    if let Some(file) = first_misfit(&metainfo.info, &dir).filter(|_| flags.no_verify) {
        let message = format!(
            "{file} is not in {} with its right size; leave --no-verify out to share what is good",
            dir.display()
        );
        return Err(Failure::new(Code::Incomplete, message));
    }
    Ok(Shared { metainfo, dir, trusted: flags.no_verify, torrent_file: Some(path.to_path_buf()) })
}

fn add(
    session: &Session,
    flags: &ShareFlags,
    shared: Shared,
    peers: &[Endpoint],
    watch: &mut Watch,
) -> Result<(), Failure> {
    let Shared { metainfo, dir, trusted, torrent_file } = shared;
    let (name, hashes) = (metainfo.info.name.clone(), metainfo.info.hashes);
    let mut magnet = metainfo.magnet();
    // What was made here has the trackers already.
    let trackers: Vec<String> = tiers("tracker", &flags.make.tracker)?.into_iter().flatten().collect();
    let extra_trackers: Vec<String> = trackers.iter().filter(|url| !magnet.trackers.contains(url)).cloned().collect();
    magnet.trackers.extend(extra_trackers);
    // A key that is kept is one that others may insist on.
    let key = session.node_id().filter(|_| flags.session.scion.key.is_some());
    let named = |address: Endpoint| match key.filter(|_| address.as_scion().is_some()) {
        Some(key) => format!("{key}@{address}"),
        None => address.to_string(),
    };
    magnet.peers = session.addresses().into_iter().map(named).collect();
    let mut extra = Map::new();
    let mut put = |key: &str, value: Value| extra.insert(key.to_owned(), value);
    put("magnet", magnet.to_string().into());
    put("magnet_v1", json!(magnet.v1_only().map(|magnet| magnet.to_string())));
    put("magnet_v2", json!(magnet.v2_only().map(|magnet| magnet.to_string())));
    put("info_hash", source::hash_name(&hashes).into());
    put("info_hash_v1", json!(hashes.v1.map(|hash| anabranch_content::hex::encode(&hash))));
    put("info_hash_v2", json!(hashes.v2.map(|hash| anabranch_content::hex::encode(&hash))));
    put("dir", dir.to_string_lossy().into());
    put("torrent_file", json!(torrent_file.map(|path| path.to_string_lossy().into_owned())));
    let options = AddOptions {
        dir,
        peers: peers.to_vec(),
        keys: session::keys(&flags.session),
        trackers,
        limit_down: flags.session.torrent_limit_down.map(|rate| rate.0),
        limit_up: flags.session.torrent_limit_up.map(|rate| rate.0),
        super_seed: flags.super_seed,
        read_only: true,
        trusted,
        ..AddOptions::default()
    };
    let source = Source::Metainfo(Box::new(metainfo));
    let id =
        session.add(source, options).map_err(|error| Failure::input(format!("{error}; name each content once")))?;
    let content = Content::new(name, source::hash_name(&hashes), extra);
    watch.contents.insert(id, content);
    Ok(())
}

/// Shares as long as there is anything to share.
async fn follow(session: &Session, mut events: Events, flags: &ShareFlags, watch: &mut Watch) -> Result<Code, Failure> {
    let mut ticks = watch.ticks();
    loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => on_event(session, &event, flags, watch)?,
            _ = ticks.tick() => {
                watch.tick(session)?;
                seeding::stop(watch, session, &flags.stop)?;
                if let Some(ended) = ended(watch) {
                    return ended;
                }
            }
        }
    }
}

/// How it ended, if every content was shared enough, or had nothing to share.
fn ended(watch: &Watch) -> Option<Result<Code, Failure>> {
    let idle = |content: &Content| content.failed.clone().filter(|_| content.seeding.is_none());
    if !watch.contents.values().all(|content| content.stopped || idle(content).is_some()) {
        return None;
    }
    let failed = watch.contents.values().find_map(idle);
    Some(failed.map_or(Ok(Code::Success), |(kind, reason)| Err(Failure::new(kind.into(), reason))))
}

fn on_event(session: &Session, event: &Event, flags: &ShareFlags, watch: &mut Watch) -> Result<(), Failure> {
    match event.kind {
        EventKind::Started { pieces_have: 0, .. } => return on_nothing_there(session, event.content, watch),
        // What is shared is complete from the start, mostly: nothing to tell.
        EventKind::Finished => {
            if let Some(content) = watch.contents.get_mut(&event.content) {
                content.finished = true;
            }
            return Ok(());
        }
        _ => {}
    }
    watch.on_event(session, event)?;
    if let EventKind::Failed { kind: kind @ FailureKind::Internal, reason } = &event.kind {
        let ended = |content: &Content| matches!(content.failed, Some((FailureKind::Internal, _)));
        return match watch.contents.values().all(ended) {
            true => Err(Failure::new((*kind).into(), reason)),
            false => Ok(()),
        };
    }
    let EventKind::Started { pieces_have, pieces_total, bytes_total, .. } = event.kind else { return Ok(()) };
    let Some(content) = watch.contents.get_mut(&event.content) else { return Ok(()) };
    content.seeding = Some(Seeding::new(Instant::now()));
    if flags.session.json {
        return Ok(());
    }
    let link = content.extra.get("link").or(content.extra.get("magnet"));
    let link = link.and_then(Value::as_str).unwrap_or_default().to_owned();
    let name = content.name.clone();
    if pieces_have < pieces_total {
        watch.note(format_args!(
            "{name}: only {pieces_have} of {pieces_total} pieces are good and shared; `verify` says which"
        ));
        if flags.super_seed {
            watch.note(format_args!("{name}: super-seeding is for who has all of it: shared as usual"));
        }
    } else {
        watch.note(format_args!("sharing {name}, {}", units::bytes(bytes_total)));
    }
    tell_v1_link(&link.parse().unwrap_or_default(), |note| watch.note(note));
    output::line(link)
}

/// None of a content's pieces is good. The others go on; without others there is nothing to do.
fn on_nothing_there(session: &Session, id: ContentId, watch: &mut Watch) -> Result<(), Failure> {
    let Some(content) = watch.contents.get(&id) else { return Ok(()) };
    let dir = content.extra.get("dir").and_then(Value::as_str).unwrap_or_default();
    let reason = format!("no piece of {} in {dir} is good; give the right folder with --data", content.name);
    if watch.contents.values().all(|other| other.failed.is_some() || other.hash == content.hash) {
        return Err(Failure::new(Code::Incomplete, reason));
    }
    watch.on_event(session, &Event { content: id, kind: EventKind::Failed { kind: FailureKind::Content, reason } })
}
