//! `get`: fetches content.

use std::ops::RangeInclusive;

use anabranch_content::info::FileEntry;
use anabranch_paths::Endpoint;
use anabranch_swarm::{
    AddOptions, Event, EventKind, FileFilter, Session, SessionConfig, Source as SwarmSource, TorrentId, parse_peer,
};
use serde_json::{Map, json};
use tokio::sync::mpsc::UnboundedReceiver;

use super::check_trackers;
use super::create::save;
use crate::cli::GetFlags;
use crate::exit::{Code, Failure};
use crate::guard;
use crate::output::Chatter;
use crate::patience::Rules;
use crate::patterns::{self, FilePattern};
use crate::run::{self, Content, Watch};
use crate::scion;
use crate::settings;
use crate::source::{self, Source};

/// Runs the command.
pub fn run(flags: Box<GetFlags>, chatter: Chatter) -> Result<Code, Failure> {
    check_trackers(&flags.tracker)?;
    guard::check_proxy(&flags.session)?;
    if flags.save_torrent.is_some() && flags.sources.len() != 1 {
        return Err(Failure::usage("`--save-torrent` saves the torrent of one SOURCE: give exactly one"));
    }
    let sources = flags.sources.iter().map(|source| source::load(source)).collect::<Result<Vec<_>, _>>()?;
    for source in &sources {
        if let Source::Torrent(metainfo) = source {
            patterns::check(&flags.files, &metainfo.info).map_err(Failure::input)?;
        }
    }
    run::block_on(async {
        let interrupted = run::interrupts()?;
        let links = sources.iter().flat_map(|source| match source {
            Source::Magnet(magnet) => magnet.peers.as_slice(),
            Source::Torrent(_) => &[],
        });
        let named = links.filter_map(|peer| parse_peer(peer)).map(|(address, _)| address);
        let mut scion = scion::config(&flags.session, named, chatter).await?;
        let peers = run::peers(&flags.session, scion.is_some()).await?;
        scion::remember(scion.as_mut(), &flags.session, &peers, chatter)?;
        let config = SessionConfig {
            strategy: flags.strategy.0,
            preallocate: flags.preallocate.0,
            state_dir: flags.state_dir.clone(),
            metadata_dir: flags.state_dir.clone().or_else(settings::cache_folder),
            scion,
            ..SessionConfig::default()
        };
        let config = run::session_config(&flags.session, config, chatter)?;
        let (session, events) = run::start(&flags.session, config, chatter)?;
        let mut watch = Watch::new(&flags.session, chatter)?;
        let rules = rules(&flags, chatter);
        let ended = match add_all(&session, &flags, sources, &peers, &mut watch) {
            Ok(()) => tokio::select! {
                ended = follow(&session, events, &flags, &rules, &mut watch) => ended,
                () = interrupted.notified() => Ok(interruption(&mut watch)),
            },
            Err(failure) => Err(failure),
        };
        watch.close();
        session.shutdown().await;
        ended
    })
}

/// What being interrupted means: with `--seed`, that is the way to end.
fn interruption(watch: &mut Watch) -> Code {
    if watch.contents.values().all(|content| content.finished) {
        return Code::Success;
    }
    watch.note("interrupted; the same command goes on where this one ended");
    Code::Interrupted
}

fn add_all(
    session: &Session,
    flags: &GetFlags,
    sources: Vec<Source>,
    peers: &[Endpoint],
    watch: &mut Watch,
) -> Result<(), Failure> {
    for source in sources {
        let (source, name, select) = match source {
            Source::Torrent(metainfo) => {
                let name = metainfo.info.name.clone();
                (SwarmSource::Metainfo(metainfo), name, Vec::new())
            }
            Source::Magnet(magnet) => {
                let name = magnet.name.clone().unwrap_or_else(|| source::hash_name(&magnet.hashes));
                let select = magnet.select_only.clone();
                (SwarmSource::Magnet(magnet), name, select)
            }
        };
        let content = Content::new(name, source::hash_name(&source.hashes()), folder(flags));
        let options = AddOptions {
            dir: flags.dir.clone(),
            peers: peers.to_vec(),
            keys: run::keys(&flags.session),
            trackers: flags.tracker.clone(),
            files: file_filter(flags.files.clone(), select),
            sequential: flags.sequential,
            limit_down: flags.session.torrent_limit_down.map(|rate| rate.0),
            limit_up: flags.session.torrent_limit_up.map(|rate| rate.0),
            recheck: flags.recheck,
            overwrite: flags.force,
            tidy: !flags.seed,
            ..AddOptions::default()
        };
        let id =
            session.add(source, options).map_err(|error| Failure::input(format!("{error}; name each content once")))?;
        watch.contents.insert(id, content);
    }
    Ok(())
}

/// What the flags say about waiting for sources.
fn rules(flags: &GetFlags, chatter: Chatter) -> Rules {
    let listen = &flags.session.listen;
    Rules {
        give_up: flags.give_up,
        // Where we listen is printed, or was given.
        is_known: !listen.is_empty() || flags.session.json || chatter.verbose,
        awaits_callers: listen.iter().any(|address| address.socket_addr().port() != 0),
    }
}

fn folder(flags: &GetFlags) -> Map<String, serde_json::Value> {
    Map::from_iter([("dir".to_owned(), json!(flags.dir.to_string_lossy()))])
}

/// What `--files` says, or else the link (BEP 53).
fn file_filter(patterns: Vec<FilePattern>, select: Vec<RangeInclusive<u32>>) -> Option<FileFilter> {
    if !patterns.is_empty() {
        return Some(Box::new(move |_, file: &FileEntry| patterns::wanted(&patterns, file)));
    }
    if select.is_empty() {
        return None;
    }
    Some(Box::new(move |index, _: &FileEntry| {
        u32::try_from(index).is_ok_and(|index| select.iter().any(|range| range.contains(&index)))
    }))
}

/// Until everything is there (with `--seed`: forever) or nothing more can be had.
async fn follow(
    session: &Session,
    mut events: UnboundedReceiver<Event>,
    flags: &GetFlags,
    rules: &Rules,
    watch: &mut Watch,
) -> Result<Code, Failure> {
    let mut ticks = watch.ticks();
    let mut saved = false;
    loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => {
                // The names in a magnet link's content are only known now.
                if let (EventKind::Started { .. }, Some(info)) = (&event.kind, session.info(event.torrent)) {
                    patterns::check(&flags.files, &info).map_err(Failure::input)?;
                }
                if matches!(event.kind, EventKind::Started { .. } | EventKind::Finished) {
                    save_torrent(session, event.torrent, flags, &mut saved)?;
                }
                watch.on_event(session, &event)?;
                if let Some(ended) = ended(watch, flags.seed) {
                    return ended;
                }
            }
            _ = ticks.tick() => {
                watch.tick(session)?;
                watch.look_for_sources(session, rules)?;
                if let Some(ended) = ended(watch, flags.seed) {
                    return ended;
                }
            }
        }
    }
}

/// Saves a content's torrent where the user wants it, as soon as all of it is known.
fn save_torrent(session: &Session, id: TorrentId, flags: &GetFlags, saved: &mut bool) -> Result<(), Failure> {
    let Some(path) = flags.save_torrent.as_deref().filter(|_| !*saved) else { return Ok(()) };
    let Some(metainfo) = session.metainfo(id) else { return Ok(()) };
    *saved = true;
    save(path, &metainfo.encode())
}

/// How it ended, if it did.
fn ended(watch: &Watch, seed: bool) -> Option<Result<Code, Failure>> {
    let contents = || watch.contents.values();
    if contents().any(|content| !content.is_over()) {
        return None;
    }
    let failed = contents().find_map(|content| content.failed.as_ref().map(|failed| (&content.name, failed)));
    match failed {
        Some((name, (kind, reason))) => Some(Err(Failure::new((*kind).into(), format!("{name}: {reason}")))),
        None if seed => None,
        None => Some(Ok(Code::Success)),
    }
}
