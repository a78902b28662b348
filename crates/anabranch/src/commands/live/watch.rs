//! `play` of a live stream's link: players are served by HTTP from the live edge on.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anabranch_swarm::http::{Server, Show, ShownFile, Views};
use anabranch_swarm::{ContentId, Events, Session, SessionConfig};
use serde_json::{Map, Value, json};

use super::options;
use crate::cli::PlayFlags;
use crate::commands::learn::{add, rules};
use crate::commands::play::{PLAYING_EVERY, end, listen_failure, millis, player_end, reachable, summary, totals};
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::patience::Rules;
use crate::player::{self, Player};
use crate::runtime::{self, unless_interrupted};
use crate::sandbox::Sandbox;
use crate::session;
use crate::source::Source;
use crate::units;
use crate::watch::{Content, Watch};

/// What a live stream has no use for.
const OF_FILES: [&str; 8] =
    ["dir", "temporary", "files", "select-file", "save-torrent", "state-dir", "recheck", "force"];
/// After the source's end, and after the last reader, so long somebody else may come who reads the rest.
const IDLE_MAX: Duration = Duration::from_secs(2);

/// Runs the command.
pub(crate) fn run(flags: &PlayFlags, source: Source, sandbox: &Sandbox, chatter: Chatter) -> Result<Code, Failure> {
    if let Some(flag) = flags.given.first_of(&OF_FILES) {
        return Err(Failure::usage(format!(
            "`--{flag}` is about complete content, and this is a live stream: leave it out"
        )));
    }
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let sources = [source];
        let fetching = session::fetching(&flags.session, SessionConfig::default(), &sources, chatter);
        let Some((session, events, peers)) = unless_interrupted(&interrupted, fetching).await? else {
            return Ok(Code::Interrupted);
        };
        let [source] = sources;
        let ended = match Watching::new(&session, flags, source, &peers, (sandbox, chatter)) {
            Ok(mut watching) => {
                let ended = tokio::select! {
                    ended = watching.follow(events) => ended,
                    () = interrupted.notified() => {
                        // Without a player, that is the way to end.
                        Ok(if watching.player.is_some() { Code::Interrupted } else { Code::Success })
                    }
                };
                watching.close(ended)
            }
            Err(failure) => Err(failure),
        };
        session.shutdown().await;
        ended
    })
}

/// What is watched.
struct Watching<'a> {
    session: &'a Session,
    flags: &'a PlayFlags,
    rules: Rules,
    watch: Watch,
    id: ContentId,
    server: Server,
    player: Option<Player>,
    told: Option<Instant>,
    idle_since: Option<Instant>,
    skipped: u64,
}

impl<'a> Watching<'a> {
    fn new(
        session: &'a Session,
        flags: &'a PlayFlags,
        source: Source,
        peers: &[anabranch_paths::Endpoint],
        (sandbox, chatter): (&Sandbox, Chatter),
    ) -> Result<Self, Failure> {
        let address = flags.http.socket_addr();
        let server = Server::start(session.handle(), address).map_err(|error| listen_failure(address, &error))?;
        let mut watch = Watch::new(&flags.session, chatter)?;
        let (name, hash) = (source.name(), source.id());
        let id = add(session, source.into(), options(&flags.session, &flags.find, peers)?)?;
        watch.contents.insert(id, Content::live(name.clone(), hash.clone(), Map::new()));
        let file = ShownFile { index: 0, number: 1, path: name.clone(), name: name.clone(), length: 0 };
        let url = format!("http://{}{}", reachable(server.address()), file.target());
        server.show(Show { id, name, hash, files: vec![file], wanted: BTreeSet::from([0]), is_live: true });
        if flags.session.json {
            watch.tell(id, "serving", json!({ "url": url }))?;
        } else {
            output::line(&url)?;
        }
        let mut player = None;
        if flags.open {
            player::open(&url, sandbox)?;
        } else if !flags.player.is_empty() {
            player = Some(Player::start(&flags.player, &url, sandbox)?);
        }
        let rules = rules(&flags.session, &flags.find, chatter);
        Ok(Self { session, flags, rules, watch, id, server, player, told: None, idle_since: None, skipped: 0 })
    }

    /// Until the player ends, the source does, or nothing more can be had.
    async fn follow(&mut self, mut events: Events) -> Result<Code, Failure> {
        let mut ticks = self.watch.ticks();
        let mut looks = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                biased;
                Some(event) = events.recv() => self.watch.on_event(self.session, &event)?,
                ended = end(&mut self.player) => {
                    let (ended, views) = (ended?, self.server.views());
                    return player_end(&mut self.watch, self.id, self.player.take(), ended, views.requests);
                }
                _ = ticks.tick() => {
                    self.remark();
                    self.watch.tick(self.session)?;
                    self.watch.look_for_sources(self.session, &self.rules)?;
                    self.tell()?;
                }
                _ = looks.tick() => if self.is_over() {
                    return Ok(Code::Success);
                },
            }
            if let Some((kind, reason)) = self.watch.contents.get(&self.id).and_then(|content| content.failed.clone()) {
                let name = self.watch.contents.get(&self.id).map_or(String::new(), |content| content.name.clone());
                return Err(Failure::new(kind.into(), format!("{name}: {reason}")));
            }
        }
    }

    /// Whether the source ended, and everybody who reads had the rest.
    fn is_over(&mut self) -> bool {
        let is_ended = self.session.live_state(self.id).is_some_and(|state| state.is_ended);
        if !is_ended || self.player.is_some() || !self.server.views().now.is_empty() {
            self.idle_since = None;
            return false;
        }
        self.idle_since.get_or_insert_with(Instant::now).elapsed() >= IDLE_MAX
    }

    fn remark(&mut self) {
        let views = self.server.views();
        if views.skipped_chunks > self.skipped {
            let chunks = units::count((views.skipped_chunks - self.skipped) as usize, "chunk");
            self.skipped = views.skipped_chunks;
            self.watch.note(format_args!("a reader was too slow, or chunks did not come in time: {chunks} left out"));
        }
        let remark = match views.requests {
            0 => "nobody watches yet".to_owned(),
            _ => format!("{}{}; {}", units::count(views.now.len(), "reader"), self.behind(), summary(&views)),
        };
        if let Some(content) = self.watch.contents.get_mut(&self.id) {
            content.remark = Some(format!("  {remark}"));
        }
    }

    /// How far behind the source the stream is, where that is known.
    fn behind(&self) -> String {
        let age = self.server.views().age;
        age.map_or(String::new(), |age| format!(", {:.1} s behind the source", age.as_secs_f64()))
    }

    /// Tells programs how watching goes.
    fn tell(&mut self) -> Result<(), Failure> {
        if !self.flags.session.json || self.told.is_some_and(|told| told.elapsed() < PLAYING_EVERY) {
            return Ok(());
        }
        self.told = Some(Instant::now());
        let views = self.server.views();
        let mut fields = fields(&views);
        fields["readers"] = views.now.iter().map(|view| json!({ "position": view.position, "waiting_ms": view.waits_since.map(|since| millis(since.elapsed())) })).collect();
        self.watch.tell(self.id, "playing", fields)
    }

    fn close(mut self, ended: Result<Code, Failure>) -> Result<Code, Failure> {
        self.player = None;
        self.watch.clear();
        let views = self.server.views();
        self.watch.tell(self.id, "played", fields(&views))?;
        if !self.flags.session.json {
            let sent = units::bytes(views.sent_bytes);
            let behind = self.behind();
            self.watch.note(format_args!("{sent} played; {}{behind}", summary(&views)));
        }
        self.watch.close();
        ended
    }
}

fn fields(views: &Views) -> Value {
    let mut fields = totals(views);
    fields["skipped_chunks"] = views.skipped_chunks.into();
    fields["delay_ms"] = json!(views.age.map(millis));
    fields
}
