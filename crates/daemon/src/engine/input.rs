//! What live streams are made of comes in: in the body of a request, or out of a file or a pipe of this machine.
//!
//! It goes out at its own pace, and no more of it is held than one read: whoever sends faster waits. One request, or none, sends to a
//! stream at a time. When it ends, the stream does not: it waits for the next, whose bytes follow those before.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anabranch_ppspp::pace::{PROBE_LEN, Pace};
use anabranch_swarm::{ContentId, ControlError};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::live::Job;
use super::{Engine, Refusal};

/// Bytes read at once.
const READ_LEN: usize = 64 << 10;
/// Reads of a file that wait to be sent.
const READS_WAITING: usize = 2;
/// How often it is looked whether a stream still wants what one waits for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Input that brings nothing for so long is said to be waited for.
const QUIET_AFTER: Duration = Duration::from_secs(5);
/// A request that brings nothing for so long is given up: whoever sent it may be gone without a word.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(60);
/// How long one who sends waits for a stream that is on its way into the session, and how often it is looked.
const BEGIN_MAX: Duration = Duration::from_secs(10);
const BEGIN_LOOK: Duration = Duration::from_millis(20);
/// What cannot be read is tried again after so long.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Why a stream waits to which nobody sends, and one whose input brings nothing.
pub(super) const NOBODY: &str = "waits for its input: have an encoder send it (PUT contents/ID/live)";
pub(super) const QUIET: &str = "waits for its input, which brings nothing";

/// Where the bytes of a stream come from.
enum Input {
    Body(Box<Incoming>),
    /// Read on a thread of its own.
    File(mpsc::Receiver<io::Result<Vec<u8>>>),
    Pipe(pipe::Receiver),
}

/// Whether a stream takes input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Air {
    On,
    /// It was told to wait.
    Held,
    /// It ended, or began anew.
    Gone,
}

/// Why what was sent did not come to its end.
enum Cut {
    Held,
    Gone,
    Stalled,
    Broken(io::Error),
}

impl From<ControlError> for Cut {
    fn from(_: ControlError) -> Self {
        Self::Gone
    }
}

impl Input {
    /// Opens a file or a pipe. Blocks.
    fn open(path: &Path) -> io::Result<Self> {
        if path.metadata()?.file_type().is_fifo() {
            // Held open for writing, too, it has no end when a writer leaves.
            return pipe::OpenOptions::new().read_write(true).open_receiver(path).map(Self::Pipe);
        }
        let mut file = File::open(path)?;
        let (bytes, reading) = mpsc::channel(READS_WAITING);
        let read = move || {
            let mut buffer = vec![0; READ_LEN];
            loop {
                let part = match file.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(count) => Ok(buffer[..count].to_vec()),
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => Err(error),
                };
                let is_end = part.is_err();
                // Who took no more has gone.
                if bytes.blocking_send(part).is_err() || is_end {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("broadcast".to_owned()).spawn(read)?;
        Ok(Self::File(reading))
    }

    /// What comes next; `None` at the end. Nothing is lost where this is dropped.
    async fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        match self {
            Self::Body(body) => loop {
                match body.frame().await? {
                    Ok(frame) => match frame.into_data() {
                        Ok(bytes) if !bytes.is_empty() => return Some(Ok(bytes.into())),
                        _ => {}
                    },
                    Err(error) => return Some(Err(io::Error::other(error))),
                }
            },
            Self::File(reading) => reading.recv().await,
            Self::Pipe(pipe) => {
                let mut buffer = vec![0; READ_LEN];
                let read = pipe.read(&mut buffer).await;
                buffer.truncate(*read.as_ref().unwrap_or(&0));
                Some(read.map(|_| buffer))
            }
        }
    }
}

/// A request's place as the one that sends to a stream.
struct Place<'a> {
    engine: &'a Engine,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.engine.with(self.id, |content| content.live.is_fed = false);
        self.engine.waits_for_input(self.id, Some(NOBODY));
    }
}

impl Engine {
    /// Broadcasts the body of a request, to its end: how many bytes it had.
    pub(crate) async fn send_live(&self, id: u64, body: Incoming) -> Result<u64, Refusal> {
        let entry = self.entry(id)?;
        let Some(broadcast) = entry.broadcast() else {
            return Err(Refusal::Conflict(format!(
                "content {id} is no live stream of this daemon: nothing is sent to it"
            )));
        };
        if let Some(input) = &broadcast.input {
            let message = format!("content {id} is read from {}: nothing else is sent to it", input.display());
            return Err(Refusal::Conflict(message));
        }
        let held = || Refusal::Conflict(format!("content {id} is paused: have it go on first"));
        if entry.paused {
            return Err(held());
        }
        let session = self.begun(id).await?;
        let is_alone = self.with(id, |content| !std::mem::replace(&mut content.live.is_fed, true)) == Some(true);
        if !is_alone {
            return Err(Refusal::Busy(id, "being sent to by somebody else"));
        }
        let _place = Place { engine: self, id };
        self.broadcast(id, session, &mut Input::Body(Box::new(body)), broadcast.rate).await.map_err(|cut| match cut {
            Cut::Held => held(),
            Cut::Gone => Refusal::Conflict(format!("content {id} ended, or was begun anew: connect again")),
            Cut::Stalled => Refusal::Stalled,
            Cut::Broken(error) => Refusal::Source(format!("the body ends early: {error}")),
        })
    }

    /// The stream in the session. After a start of the daemon, encoders are there sooner than that.
    async fn begun(&self, id: u64) -> Result<ContentId, Refusal> {
        let began = Instant::now();
        let is_on_its_way = |content: &super::Content| content.live.session.is_none() && content.live.failed.is_none();
        while began.elapsed() < BEGIN_MAX && self.state().contents.get(&id).is_some_and(is_on_its_way) {
            tokio::time::sleep(BEGIN_LOOK).await;
        }
        self.at_work(id)
    }

    /// Broadcasts what a stream is read from, where it is read here. Ends with the stream.
    pub(super) async fn read_input(self: Rc<Self>, id: u64, session: ContentId) {
        let Ok(entry) = self.entry(id) else { return };
        let Some((path, rate)) =
            entry.broadcast().and_then(|broadcast| Some((broadcast.input.clone()?, broadcast.rate)))
        else {
            return;
        };
        while self.air(id, session) != Air::Gone {
            let of = path.clone();
            let opened = tokio::task::spawn_blocking(move || Input::open(&of)).await;
            let error = match opened.unwrap_or_else(|error| Err(io::Error::other(error))) {
                Ok(mut input) => match self.broadcast(id, session, &mut input, rate).await {
                    Ok(_) => return self.broadcast_is_over(id, session).await,
                    Err(Cut::Broken(error)) => error,
                    Err(Cut::Held | Cut::Gone | Cut::Stalled) => return,
                },
                Err(error) => error,
            };
            self.waits_for_input(id, Some(&format!("cannot read {}: {error}; it is tried again", path.display())));
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    /// Broadcasts what comes, to its end: how many bytes that were.
    async fn broadcast(&self, id: u64, session: ContentId, input: &mut Input, rate: Option<u64>) -> Result<u64, Cut> {
        let is_request = matches!(input, Input::Body(_));
        let mut pace = rate.map(|rate| Pace::of(Some(rate), &[]));
        let (mut head, mut total, mut quiet) = (Vec::new(), 0, Duration::ZERO);
        loop {
            match self.air(id, session) {
                Air::On => {}
                Air::Held if is_request => return Err(Cut::Held),
                Air::Held => {
                    pace.iter_mut().for_each(Pace::go_on_from_now);
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
                Air::Gone => return Err(Cut::Gone),
            }
            let came = match tokio::time::timeout(LOOK_EVERY, input.next()).await {
                Ok(came) => came.transpose().map_err(Cut::Broken)?,
                Err(_) => {
                    quiet += LOOK_EVERY;
                    if quiet >= STALL_MAX && is_request {
                        return Err(Cut::Stalled);
                    }
                    if quiet >= QUIET_AFTER {
                        pace.iter_mut().for_each(Pace::go_on_from_now);
                        self.waits_for_input(id, Some(QUIET));
                    }
                    continue;
                }
            };
            quiet = Duration::ZERO;
            let is_end = came.is_none();
            head.extend(came.unwrap_or_default());
            // The first bytes tell at which pace they go out.
            if pace.is_none() && head.len() < PROBE_LEN && !is_end {
                continue;
            }
            let pace = pace.get_or_insert_with(|| Pace::of(None, &head));
            let mut parts = pace.cut(&std::mem::take(&mut head), Instant::now());
            if is_end {
                parts.push((None, pace.rest()));
            }
            if parts.iter().any(|(_, part)| !part.is_empty()) {
                self.waits_for_input(id, None);
            }
            for (due, part) in parts {
                let wait = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()));
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                if self.air(id, session) != Air::On {
                    break;
                }
                total += part.len() as u64;
                self.handle.push_live(session, part).await?;
            }
            if is_end {
                return Ok(total);
            }
        }
    }

    /// Whether a stream takes input.
    fn air(&self, id: u64, session: ContentId) -> Air {
        let state = self.state();
        let Some(content) = state.contents.get(&id).filter(|content| content.live.session == Some(session)) else {
            return Air::Gone;
        };
        let is_leaving = content.entry.going.is_some() || matches!(content.live.job, Some(Job::Reopen | Job::Remove));
        if is_leaving || content.live.failed.is_some() {
            return Air::Gone;
        }
        if content.entry.paused || content.live.is_held { Air::Held } else { Air::On }
    }

    /// Says why a stream waits for input, or that it does not.
    fn waits_for_input(&self, id: u64, why: Option<&str>) {
        let is_news = self.state().contents.get(&id).is_some_and(|content| content.live.waits.as_deref() != why);
        if is_news {
            self.with(id, |content| content.live.waits = why.map(str::to_owned));
            self.announce(id);
        }
    }
}
