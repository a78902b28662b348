//! `get` of a live stream's link: what comes is recorded, from where the viewer joined.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_swarm::{ContentId, Event, Events, LiveRead, LiveReader, ReadError, Session, SessionConfig};
use serde_json::{Map, json};

use super::options;
use crate::cli::GetFlags;
use crate::commands::learn::{add, rules};
use crate::exit::{Code, Failure};
use crate::output::Chatter;
use crate::patience::Rules;
use crate::runtime::{self, unless_interrupted};
use crate::session;
use crate::source::Source;
use crate::units;
use crate::watch::{Content, Watch};

/// Bytes written at once.
const WRITE_LEN: usize = 1 << 20;
/// A wait in the middle counts as a stall from here on.
const STALL_MIN: Duration = Duration::from_millis(500);
/// After the end, others who lack some of it have so long to get it from here.
const LINGER_MAX: Duration = Duration::from_secs(3);
const LINGER_LOOK: Duration = Duration::from_millis(100);

/// What a live stream has no use for.
const OF_FILES: [&str; 15] = [
    "seed",
    "stop-ratio",
    "stop-after",
    "on-complete",
    "sequential",
    "files",
    "select-file",
    "choose",
    "list",
    "save-torrent",
    "state-dir",
    "recheck",
    "preallocate",
    "strategy",
    "memory",
];

/// Runs the command.
pub(crate) fn run(flags: &GetFlags, sources: Vec<Source>, chatter: Chatter) -> Result<Code, Failure> {
    let Ok([source]) = <[Source; 1]>::try_from(sources) else {
        return Err(Failure::usage("a live stream is recorded by itself: give its link alone"));
    };
    if let Some(flag) = flags.given.first_of(&OF_FILES) {
        return Err(Failure::usage(format!(
            "`--{flag}` is about complete content, and this is a live stream: leave it out"
        )));
    }
    let place = place(flags, &source)?;
    if place.is_none() && flags.session.json {
        return Err(Failure::usage(
            "`-o -` prints the stream, and `--json` events: give one of them, or a file to record to",
        ));
    }
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let sources = [source];
        let fetching = session::fetching(&flags.session, SessionConfig::default(), &sources, chatter);
        let Some((session, events, peers)) = unless_interrupted(&interrupted, fetching).await? else {
            return Ok(Code::Interrupted);
        };
        let [source] = sources;
        let mut watch = Watch::new(&flags.session, chatter)?;
        let content = Content::live(source.name(), source.id(), Map::new());
        let options = options(&flags.session, &flags.find, &peers)?;
        let ended = match add(&session, source.into(), options) {
            Ok(id) => {
                watch.contents.insert(id, content);
                let rules = rules(&flags.session, &flags.find, chatter);
                let reader = session.handle().live_reader(id);
                let recording = Recording::new(&session, watch, id, rules, place);
                recording.run(events, reader, &interrupted, flags.force).await
            }
            Err(failure) => Err(failure),
        };
        session.shutdown().await;
        ended
    })
}

/// The file to record to; `None`: standard output.
fn place(flags: &GetFlags, source: &Source) -> Result<Option<PathBuf>, Failure> {
    if flags.dir == Path::new("-") {
        return Ok(None);
    }
    let path = if flags.dir.is_dir() || flags.dir.as_os_str().as_encoded_bytes().ends_with(b"/") {
        let name: String =
            source.name().chars().map(|c| if c == '/' || c == '\\' || c.is_control() { '_' } else { c }).collect();
        let name = name.trim().trim_start_matches('.');
        let mut end = name.len().min(255);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        flags.dir.join(if name.is_empty() { "live.ts" } else { &name[..end] })
    } else {
        flags.dir.clone()
    };
    if path.exists() && !flags.force {
        let shown = path.display();
        let message = format!("{shown} is there already: give another file with -o, or --force to write over it");
        return Err(Failure::new(Code::Storage, message));
    }
    Ok(Some(path))
}

/// A recording.
struct Recording<'a> {
    session: &'a Session,
    watch: Watch,
    id: ContentId,
    rules: Rules,
    place: Option<PathBuf>,
    file: Option<File>,
    began: Instant,
    startup: Option<Duration>,
    waits_since: Instant,
    bytes: u64,
    stalls: u64,
    stalled: Duration,
    skipped_chunks: u64,
    age: Option<Duration>,
    told: Option<Instant>,
}

impl<'a> Recording<'a> {
    fn new(session: &'a Session, watch: Watch, id: ContentId, rules: Rules, place: Option<PathBuf>) -> Self {
        let now = Instant::now();
        Self {
            session,
            watch,
            id,
            rules,
            place,
            file: None,
            began: now,
            startup: None,
            waits_since: now,
            bytes: 0,
            stalls: 0,
            stalled: Duration::ZERO,
            skipped_chunks: 0,
            age: None,
            told: None,
        }
    }

    async fn run(
        mut self,
        events: Events,
        reader: LiveReader,
        interrupted: &tokio::sync::Notify,
        is_forced: bool,
    ) -> Result<Code, Failure> {
        let ended = tokio::select! {
            ended = self.follow(events, reader, is_forced) => Some(ended),
            () = interrupted.notified() => None,
        };
        let ended = match ended {
            Some(Ok(())) => {
                self.linger().await;
                Ok(Code::Success)
            }
            Some(Err(failure)) => Err(failure),
            // That is the way to end, once there is something.
            None if self.bytes > 0 => Ok(Code::Success),
            None => Ok(Code::Interrupted),
        };
        self.watch.clear();
        let mut fields = self.totals();
        fields["seconds"] = json!(self.began.elapsed().as_secs_f64());
        fields["path"] = json!(self.place.as_ref().map(|path| path.to_string_lossy().into_owned()));
        if self.bytes > 0 {
            let text = self.summary();
            self.watch.report(self.id, "recorded", fields, &text)?;
        } else {
            self.watch.tell(self.id, "recorded", fields)?;
        }
        self.watch.close();
        ended
    }

    /// Until the source ends, or nothing more can be had.
    async fn follow(&mut self, mut events: Events, mut reader: LiveReader, is_forced: bool) -> Result<(), Failure> {
        let mut ticks = self.watch.ticks();
        loop {
            tokio::select! {
                biased;
                Some(event) = events.recv() => self.on_event(&event)?,
                read = reader.read(WRITE_LEN) => match read {
                    Ok(LiveRead::End) => return Ok(()),
                    Ok(read) => self.on_read(read, is_forced).await?,
                    // The session says why.
                    Err(ReadError::Over | ReadError::Gone) => tokio::time::sleep(LINGER_LOOK).await,
                    Err(error) => return Err(Failure::new(Code::Failed, error)),
                },
                _ = ticks.tick() => self.tick()?,
            }
            if let Some((kind, reason)) = self.watch.contents.get(&self.id).and_then(|content| content.failed.clone()) {
                return Err(Failure::new(kind.into(), format!("{}: {reason}", self.name())));
            }
        }
    }

    fn on_event(&mut self, event: &Event) -> Result<(), Failure> {
        self.watch.on_event(self.session, event)
    }

    async fn on_read(&mut self, read: LiveRead, is_forced: bool) -> Result<(), Failure> {
        let now = Instant::now();
        match read {
            LiveRead::Bytes { bytes, age } => {
                let waited = now.saturating_duration_since(self.waits_since);
                if self.startup.is_none() {
                    self.startup = Some(now.saturating_duration_since(self.began));
                } else if waited >= STALL_MIN {
                    self.stalls += 1;
                    self.stalled += waited;
                }
                self.age = age;
                let count = bytes.len() as u64;
                self.write(bytes, is_forced).await?;
                self.bytes += count;
                self.waits_since = Instant::now();
            }
            LiveRead::Skipped(chunks) => {
                self.skipped_chunks += chunks;
                let text = format!(
                    "{} of the stream did not come in time, and are left out",
                    units::count(chunks as usize, "chunk")
                );
                self.watch.report(self.id, "skipped", json!({ "chunks": chunks }), &text)?;
            }
            // The session told of it.
            LiveRead::Restarted | LiveRead::End => {}
        }
        Ok(())
    }

    async fn write(&mut self, bytes: Vec<u8>, is_forced: bool) -> Result<(), Failure> {
        let Some(path) = self.place.clone() else {
            let written = tokio::task::spawn_blocking(move || crate::output::raw(&bytes)).await;
            return written.map_err(|error| Failure::new(Code::Failed, error))?;
        };
        let failed = |error: std::io::Error| {
            let shown = path.display();
            Failure::new(
                Code::Storage,
                format!("cannot write to {shown}: {error}; what was recorded until then is kept"),
            )
        };
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                if is_forced {
                    options.create(true).truncate(true)
                } else {
                    options.create_new(true)
                };
                options.write(true).open(&path).map_err(|error| {
                    let shown = path.display();
                    Failure::new(Code::Storage, format!("cannot record to {shown}: {error}; give another file with -o"))
                })?
            }
        };
        let written = tokio::task::spawn_blocking(move || file.write_all(&bytes).map(|()| file)).await;
        let written = written.map_err(|error| Failure::new(Code::Failed, error))?;
        self.file = Some(written.map_err(failed)?);
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Failure> {
        let remark = format!("  {}", self.summary());
        if let Some(content) = self.watch.contents.get_mut(&self.id) {
            content.remark = Some(remark);
        }
        self.watch.tick(self.session)?;
        self.watch.look_for_sources(self.session, &self.rules)?;
        if self.told.is_none_or(|told| told.elapsed() >= Duration::from_secs(1)) {
            self.told = Some(Instant::now());
            self.watch.tell(self.id, "recording", self.totals())?;
        }
        Ok(())
    }

    /// Others may have the rest from here alone.
    async fn linger(&self) {
        let until = Instant::now() + LINGER_MAX;
        while Instant::now() < until && self.session.live_state(self.id).is_some_and(|state| state.lacking_peers > 0) {
            tokio::time::sleep(LINGER_LOOK).await;
        }
    }

    fn name(&self) -> String {
        self.watch.contents.get(&self.id).map_or(String::new(), |content| content.name.clone())
    }

    fn totals(&self) -> serde_json::Value {
        let millis = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
        json!({
            "bytes": self.bytes,
            "startup_ms": self.startup.map(millis),
            "delay_ms": self.age.map(millis),
            "stalls": self.stalls,
            "stalled_ms": millis(self.stalled),
            "skipped_chunks": self.skipped_chunks,
        })
    }

    fn summary(&self) -> String {
        let Some(startup) = self.startup else { return "not one byte yet".to_owned() };
        let mut text = format!("{} recorded, start after {:.2} s", units::bytes(self.bytes), startup.as_secs_f64());
        if let Some(age) = self.age {
            text.push_str(&format!(", {:.1} s behind the source", age.as_secs_f64()));
        }
        match self.stalls {
            0 => text.push_str(", no stall"),
            stalls => {
                let stalls = units::count(stalls as usize, "stall");
                text.push_str(&format!(", {stalls} of {:.1} s in all", self.stalled.as_secs_f64()));
            }
        }
        if self.skipped_chunks > 0 {
            text.push_str(&format!(", {} left out", units::count(self.skipped_chunks as usize, "chunk")));
        }
        text
    }
}
