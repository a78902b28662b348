//! `play`: content is watched while it arrives.
//!
//! A server on loopback gives players what they ask for, as it comes ([`anabranch_swarm::http`]); what they ask for comes first. The
//! rest is `get`: the same sources, waiting, errors and places on disk.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_content::info::Info;
use anabranch_paths::Endpoint;
use anabranch_swarm::http::{Server, Show, ShownFile, View, Views, names};
use anabranch_swarm::{AddOptions, Aim, ContentId, Data, Event, EventKind, Events, Session, SessionConfig};
use serde_json::{Map, Value, json};

use super::create::save;
use super::learn::{add, rules};
use super::{check_trackers, check_web_seeds, live};
use crate::choice::{self, Choice};
use crate::cli::PlayFlags;
use crate::exit::{Code, Failure};
use crate::guard;
use crate::output::{self, Chatter};
use crate::patience::Rules;
use crate::player::{self, Player};
use crate::runtime::{self, unless_interrupted};
use crate::sandbox::{Plan, Sandbox};
use crate::session;
use crate::settings;
use crate::source::{self, Source};
use crate::system;
use crate::units;
use crate::watch::{Content, Watch};

/// How often it is told how watching goes.
pub(super) const PLAYING_EVERY: Duration = Duration::from_secs(1);
/// Files that an error names.
const NAMED_MAX: usize = 3;

/// Runs the command.
pub(crate) fn run(flags: Box<PlayFlags>, chatter: Chatter) -> Result<Code, Failure> {
    check_trackers(&flags.find.tracker)?;
    check_web_seeds(&flags.web_seed)?;
    guard::check_proxy(&flags.session)?;
    if flags.open && !flags.player.is_empty() {
        return Err(Failure::usage("`--open` opens what the desktop has: leave it out, or the player behind `--`"));
    }
    player::check(&flags.player, flags.open)?;
    let is_live = source::link(&flags.source).ok().flatten().is_some_and(|link| source::is_live(&link));
    let place = if is_live { None } else { Some(Place::new(&flags)?) };
    let player = player::errand(&flags.player, flags.open);
    let written = place.as_ref().map(|place| (place.dir.as_path(), place.is_temporary));
    let sandbox = Plan::play(&flags, written).starting(player).enter(chatter)?;
    let source = source::load(&flags.source)?;
    let Some(dir) = place else { return live::watch(&flags, source, &sandbox, chatter) };
    if matches!(source, Source::Ppspp(_)) && flags.find.save_torrent.is_some() {
        return Err(Failure::usage("`--save-torrent` saves a torrent, and a link of PPSPP has none: leave it out"));
    }
    if let Source::Torrent(metainfo) = &source {
        chosen(&flags, &source, &metainfo.info)?;
    }
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let config = SessionConfig {
            state_dir: flags.find.state_dir.clone().filter(|_| !flags.temporary),
            metadata_dir: flags.find.state_dir.clone().or_else(settings::cache_folder),
            ..SessionConfig::default()
        };
        let sources = [source];
        let fetching = session::fetching(&flags.session, config, &sources, chatter);
        let Some((session, events, peers)) = unless_interrupted(&interrupted, fetching).await? else {
            return Ok(Code::Interrupted);
        };
        let [source] = sources;
        let ended = match Playing::new(&session, &flags, source, &peers, (&dir, &sandbox), chatter) {
            Ok(mut playing) => {
                let ended = tokio::select! {
                    ended = playing.follow(events) => ended,
                    () = interrupted.notified() => playing.interruption(),
                };
                playing.close(ended).await
            }
            Err(failure) => Err(failure),
        };
        session.shutdown().await;
        ended
    })
}

/// Where content goes.
struct Place {
    dir: PathBuf,
    is_temporary: bool,
}

impl Place {
    fn new(flags: &PlayFlags) -> Result<Self, Failure> {
        if !flags.temporary {
            return Ok(Self { dir: flags.dir.clone(), is_temporary: false });
        }
        let parent = if flags.given.first_of(&["dir"]).is_some() { flags.dir.clone() } else { std::env::temp_dir() };
        let dir = system::make_private_folder(&parent, "anabranch-play").map_err(|error| {
            let parent = parent.display();
            let message = format!("cannot make a folder in {parent}: {error}; name one that can be written with --dir");
            Failure::new(Code::Storage, message)
        })?;
        Ok(Self { dir, is_temporary: true })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_temporary {
            // What cannot be deleted is in the system's folder for what may go.
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Which files are to be played, each as it stands in the file list: as the user says, or the link; else the largest that players know.
fn chosen(flags: &PlayFlags, source: &Source, info: &Info) -> Result<Vec<bool>, Failure> {
    let by_link = match source {
        Source::Magnet(magnet) => magnet.select_only.as_slice(),
        Source::Torrent(_) | Source::Ppspp(_) => &[],
    };
    if !flags.files.is_empty() || !flags.select_file.is_empty() || !by_link.is_empty() {
        return Choice::new(&flags.files, &flags.select_file, by_link).wanted(info).map_err(Failure::input);
    }
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut files = info.regular_files();
    let only = files.next().filter(|_| files.next().is_none());
    let media = info.regular_files().filter(|(_, file)| names::is_media(&name(&file.path)));
    // Of equals the first.
    let largest = media.max_by_key(|(index, file)| (file.length, Reverse(*index)));
    let Some((index, _)) = only.or(largest) else {
        let named: Vec<String> =
            info.regular_files().take(NAMED_MAX).map(|(_, file)| file.path.display().to_string()).collect();
        let has = if named.is_empty() { "no file at all".to_owned() } else { named.join(", ") };
        let message =
            format!("{} has nothing that players are known to play, but {has}: name a file with --files", info.name);
        return Err(Failure::input(message));
    };
    Ok((0..info.files.len()).map(|at| at == index).collect())
}

/// What is played.
struct Playing<'a> {
    session: &'a Session,
    flags: &'a PlayFlags,
    sandbox: &'a Sandbox,
    rules: Rules,
    watch: Watch,
    source: Source,
    id: ContentId,
    server: Server,
    player: Option<Player>,
    told: Option<Instant>,
    is_temporary: bool,
    is_saved: bool,
}

impl<'a> Playing<'a> {
    fn new(
        session: &'a Session,
        flags: &'a PlayFlags,
        source: Source,
        peers: &[Endpoint],
        (place, sandbox): (&Place, &'a Sandbox),
        chatter: Chatter,
    ) -> Result<Self, Failure> {
        let address = flags.http.socket_addr();
        let server = Server::start(session.handle(), address).map_err(|error| listen_failure(address, &error))?;
        let mut watch = Watch::new(&flags.session, chatter)?;
        let options = AddOptions {
            aim: Aim::ChosenFiles,
            dir: place.dir.clone(),
            peers: peers.to_vec(),
            keys: session::keys(&flags.session),
            allowed: guard::allowed(&flags.session)?,
            trackers: flags.find.tracker.clone(),
            web_seeds: flags.web_seed.clone(),
            sequential: true,
            limit_down: flags.session.torrent_limit_down.map(|rate| rate.0),
            limit_up: flags.session.torrent_limit_up.map(|rate| rate.0),
            recheck: flags.recheck,
            overwrite: flags.force,
            remove_resume_when_complete: true,
            ..AddOptions::default()
        };
        let folder = Map::from_iter([("dir".to_owned(), json!(place.dir.to_string_lossy()))]);
        let content = Content::new(source.name(), source.id(), folder);
        let id = add(session, source.clone().into(), options)?;
        watch.contents.insert(id, content);
        Ok(Self {
            session,
            flags,
            sandbox,
            rules: rules(&flags.session, &flags.find, chatter),
            watch,
            source,
            id,
            server,
            player: None,
            told: None,
            is_temporary: place.is_temporary,
            is_saved: false,
        })
    }

    /// Until the player ends, or nothing more can be had.
    async fn follow(&mut self, mut events: Events) -> Result<Code, Failure> {
        let mut ticks = self.watch.ticks();
        loop {
            tokio::select! {
                biased;
                Some(event) = events.recv() => self.on_event(&event)?,
                ended = end(&mut self.player) => return self.on_end(ended?),
                _ = ticks.tick() => {
                    self.remark();
                    self.watch.tick(self.session)?;
                    self.watch.look_for_sources(self.session, &self.rules)?;
                    self.tell()?;
                }
            }
            let failed = self.watch.contents.get(&self.id).and_then(|content| content.failed.as_ref());
            if let Some((kind, reason)) = failed {
                let name = self.name();
                return Err(Failure::new((*kind).into(), format!("{name}: {reason}")));
            }
        }
    }

    fn on_event(&mut self, event: &Event) -> Result<(), Failure> {
        self.watch.on_event(self.session, event)?;
        match event.kind {
            EventKind::Metadata { .. } => self.begin()?,
            EventKind::Started { .. } | EventKind::Finished => self.save_torrent()?,
            _ => {}
        }
        Ok(())
    }

    /// The names and sizes of the files are known: what is played can be told.
    fn begin(&mut self) -> Result<(), Failure> {
        let Some(info) = self.session.info(self.id) else { return Ok(()) };
        let wanted = chosen(self.flags, &self.source, &info)?;
        let show = show(self.id, &info, &wanted);
        if !matches!(self.source, Source::Ppspp(_)) {
            self.session.choose(self.id, Some(choice::filter(wanted)));
        }
        let base = format!("http://{}", reachable(self.server.address()));
        let played: Vec<&ShownFile> = show.files.iter().filter(|file| show.wanted.contains(&file.index)).collect();
        let playlist = format!("{base}/playlist.m3u");
        let address = match played.as_slice() {
            [file] => format!("{base}{}", file.target()),
            _ => playlist.clone(),
        };
        let files = played
            .iter()
            .map(|file| json!({ "path": file.path, "bytes": file.length, "url": format!("{base}{}", file.target()) }));
        let fields = json!({ "url": address, "index": format!("{base}/"), "playlist": playlist, "files": files.collect::<Vec<_>>() });
        self.server.show(show);
        if self.flags.session.json {
            self.watch.tell(self.id, "serving", fields)?;
        } else {
            self.watch.clear();
            output::line(&address)?;
        }
        if self.flags.open {
            player::open(&address, self.sandbox)?;
        } else if !self.flags.player.is_empty() {
            self.player = Some(Player::start(&self.flags.player, &address, self.sandbox)?);
        }
        Ok(())
    }

    /// Saves the torrent where the user wants it, as soon as all of it is known.
    fn save_torrent(&mut self) -> Result<(), Failure> {
        let path = self.flags.find.save_torrent.as_deref().filter(|_| !self.is_saved);
        if let (Some(path), Some(found)) = (path, self.session.metainfo(self.id)) {
            self.sandbox.save(save, path, &self.source.complete(found).encode())?;
            self.is_saved = true;
        }
        Ok(())
    }

    fn on_end(&mut self, exit_code: Option<i32>) -> Result<Code, Failure> {
        let requests = self.server.views().requests;
        player_end(&mut self.watch, self.id, self.player.take(), exit_code, requests)
    }

    fn interruption(&mut self) -> Result<Code, Failure> {
        // Without a player, that is the way to end.
        Ok(if self.player.is_some() { Code::Interrupted } else { Code::Success })
    }

    fn name(&self) -> String {
        self.watch.contents.get(&self.id).map_or(String::new(), |content| content.name.clone())
    }

    /// Bytes that are there ahead of the reader that has least.
    fn buffer_bytes(&self, views: &Views) -> Option<u64> {
        let ahead = |view: &View| self.session.ahead(self.id, view.file, view.position).ok();
        views.now.iter().filter_map(ahead).min()
    }

    /// Says below the progress line how watching goes.
    fn remark(&mut self) {
        let views = self.server.views();
        let remark = match (views.requests, self.buffer_bytes(&views)) {
            (0, _) => "nobody watches yet".to_owned(),
            (_, ahead) => {
                let ahead = ahead.map_or("nobody reads".to_owned(), |ahead| format!("{} ahead", units::bytes(ahead)));
                let waits = views.now.iter().filter(|view| view.waits_since.is_some()).count();
                let waits = if waits > 0 { ", waiting" } else { "" };
                format!("{}: {ahead}{waits}; {}", units::count(views.now.len(), "reader"), summary(&views))
            }
        };
        if let Some(content) = self.watch.contents.get_mut(&self.id) {
            content.remark = Some(format!("  {remark}"));
        }
    }

    /// Tells programs how watching goes.
    fn tell(&mut self) -> Result<(), Failure> {
        if !self.flags.session.json || self.told.is_some_and(|told| told.elapsed() < PLAYING_EVERY) {
            return Ok(());
        }
        self.told = Some(Instant::now());
        let views = self.server.views();
        let reader = |view: &View| {
            json!({
                "file": view.file,
                "position": view.position,
                "buffer_bytes": self.session.ahead(self.id, view.file, view.position).ok(),
                "waiting_ms": view.waits_since.map(|since| millis(since.elapsed())),
            })
        };
        let mut fields = totals(&views);
        fields["readers"] = views.now.iter().map(reader).collect();
        self.watch.tell(self.id, "playing", fields)
    }

    /// Says how it was, and leaves.
    async fn close(mut self, ended: Result<Code, Failure>) -> Result<Code, Failure> {
        // The player goes first, so that it is not told of an end that it need not know.
        self.player = None;
        self.watch.clear();
        let views = self.server.views();
        self.watch.tell(self.id, "played", totals(&views))?;
        if !self.flags.session.json {
            let name = self.name();
            let sent = units::bytes(views.sent_bytes);
            self.watch.note(format_args!("{name}: {sent} played; {}", summary(&views)));
        }
        self.watch.close();
        if self.is_temporary {
            // Where it cannot be deleted now, its folder goes later.
            let _ = self.session.remove(self.id, Data::Delete).await;
        }
        ended
    }
}

pub(super) async fn end(player: &mut Option<Player>) -> Result<Option<i32>, Failure> {
    match player {
        Some(player) => player.end().await,
        None => std::future::pending().await,
    }
}

/// The player ended, after it asked so many times for something.
pub(super) fn player_end(
    watch: &mut Watch,
    id: ContentId,
    player: Option<Player>,
    exit_code: Option<i32>,
    requests: u64,
) -> Result<Code, Failure> {
    let name = player.map(|player| player.name().to_owned()).unwrap_or_default();
    watch.tell(id, "player", json!({ "exit_code": exit_code }))?;
    match exit_code {
        Some(0) => {
            if requests == 0 {
                watch.note(format_args!("the player `{name}` ended without asking for anything"));
            }
            Ok(Code::Success)
        }
        Some(code) => Err(Failure::new(Code::Failed, format!("the player `{name}` ended with exit code {code}"))),
        None => Err(Failure::new(Code::Failed, format!("the player `{name}` was ended by a signal"))),
    }
}

/// What is served of a content.
fn show(id: ContentId, info: &Info, wanted: &[bool]) -> Show {
    let regular = choice::numbered(info).filter(|(_, _, file)| file.is_regular());
    let files = regular.map(|(number, index, file)| ShownFile {
        index,
        number,
        path: file.path.to_string_lossy().into_owned(),
        name: file.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        length: file.length,
    });
    let wanted: BTreeSet<usize> = (0..).zip(wanted).filter(|(_, wanted)| **wanted).map(|(index, _)| index).collect();
    Show {
        id,
        name: info.name.clone(),
        hash: source::hash_name(&info.hashes),
        files: files.collect(),
        wanted,
        is_live: false,
    }
}

/// Who listens everywhere is reached at loopback, too.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    anabranch_swarm::reachable(address).first().copied().unwrap_or(address)
}

pub(super) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

pub(super) fn totals(views: &Views) -> Value {
    json!({
        "requests": views.requests,
        "sent": views.sent_bytes,
        "startup_ms": views.startup.map(millis),
        "seeks": views.seeks,
        "seek_ms_max": millis(views.seek_longest),
        "stalls": views.stalls,
        "stalled_ms": millis(views.stalled),
    })
}

pub(super) fn summary(views: &Views) -> String {
    let Some(startup) = views.startup else { return "not one byte yet".to_owned() };
    let mut text = format!("start after {:.2} s", startup.as_secs_f64());
    if views.seeks > 0 {
        let (seeks, longest) = (units::count(views.seeks as usize, "seek"), views.seek_longest.as_secs_f64());
        text.push_str(&format!(", {seeks}, the slowest {longest:.2} s"));
    }
    match views.stalls {
        0 => text.push_str(", no stall"),
        stalls => {
            let (stalls, seconds) = (units::count(stalls as usize, "stall"), views.stalled.as_secs_f64());
            text.push_str(&format!(", {stalls} of {seconds:.1} s in all"));
        }
    }
    text
}

pub(super) fn listen_failure(address: SocketAddr, error: &std::io::Error) -> Failure {
    let remedy = match error.kind() {
        std::io::ErrorKind::AddrInUse => "another program has it: give another port with --http, or 0 for any",
        std::io::ErrorKind::AddrNotAvailable => "give an address of this machine with --http",
        std::io::ErrorKind::PermissionDenied => "give a port above 1023 with --http",
        _ => "give another address with --http",
    };
    Failure::new(Code::Network, format!("cannot serve players at {address}: {error}; {remedy}"))
}
