//! What both ends of a transfer do alike: tell of paths and progress, and end.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anabranch_hercules::wire::message::Message;

use super::connection::End;
use super::context::Context;
use super::engine::{Measured, News};
use super::events::{Event, PeerId, Progress, TransferError, Waiting};
use super::messages::code;
use super::paths::Paths;

/// So long the first path may take to come up before somebody is told that none does.
const FIRST_PATH_MAX: Duration = Duration::from_secs(5);

pub(super) struct Flow {
    context: Rc<Context>,
    peer: PeerId,
    pub(super) paths: Paths,
    content_len: u64,
    waiting: bool,
    /// When it is told that no path came up; none once one did, or that was told.
    first_path_by: Option<tokio::time::Instant>,
    told_at: Instant,
    told_bytes: u64,
    /// What the engine measured last.
    pub(super) measured: Measured,
}

impl Flow {
    pub(super) fn new(context: &Rc<Context>, peer: PeerId, paths: Paths, content_len: u64) -> Self {
        Self {
            context: Rc::clone(context),
            peer,
            paths,
            content_len,
            waiting: false,
            first_path_by: Some(tokio::time::Instant::now() + FIRST_PATH_MAX),
            told_at: Instant::now(),
            told_bytes: 0,
            measured: Measured::default(),
        }
    }

    /// News that both ends treat alike; others come back.
    pub(super) async fn on_news(&mut self, news: News) -> Result<Option<News>, End> {
        let peer = self.peer;
        match news {
            News::PathUp { path, rtt, route } => {
                self.first_path_by = None;
                self.paths.set_up(path, true);
                if let Some(way) = self.paths.way(path, route.as_ref()) {
                    self.context.tell(Event::PathUp { peer, path, way, rtt }).await;
                }
                self.goes_on().await;
            }
            News::PathDown { path, reason } => {
                self.paths.set_up(path, false);
                self.context.tell(Event::PathDown { peer, path, reason }).await;
            }
            News::AllPathsDown => self.waits(Waiting::Paths).await,
            News::Room(Some(what)) => self.waits(Waiting::Room(what)).await,
            News::Room(None) => self.goes_on().await,
            News::Progress(measured) => {
                let elapsed = self.told_at.elapsed();
                let paths = self.paths.measured(&measured, elapsed);
                let rate = measured.done_bytes.saturating_sub(self.told_bytes) as f64 / elapsed.as_secs_f64().max(1e-3);
                (self.told_at, self.told_bytes) = (Instant::now(), measured.done_bytes);
                self.context.tell_if_room(Event::Progress(Progress {
                    peer,
                    done_bytes: measured.done_bytes,
                    content_len: self.content_len,
                    verified_bytes: measured.verified_bytes,
                    round: measured.round,
                    rate_bytes: rate as u64,
                    paths,
                }));
                self.measured = measured;
            }
            News::Failed(error) => return Err(error.into()),
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    /// Whether no path has come up yet, and nobody was told so.
    pub(super) fn awaits_first_path(&self) -> bool {
        self.first_path_by.is_some()
    }

    /// When that is to be told.
    pub(super) fn first_path_by(&self) -> tokio::time::Instant {
        self.first_path_by.unwrap_or_else(tokio::time::Instant::now)
    }

    /// Tells that.
    pub(super) async fn tell_no_path(&mut self) {
        self.first_path_by = None;
        self.waits(Waiting::NoPath).await;
    }

    /// The first rate is not from before.
    pub(super) fn starts_at(&mut self, bytes: u64) {
        (self.told_at, self.told_bytes) = (Instant::now(), bytes);
    }

    async fn waits(&mut self, what: Waiting) {
        if !std::mem::replace(&mut self.waiting, true) {
            self.context.tell(Event::Waiting { peer: self.peer, what }).await;
        }
    }

    /// It moves again, if it did not.
    pub(super) async fn goes_on(&mut self) {
        if std::mem::take(&mut self.waiting) {
            self.context.tell(Event::GoesOn { peer: self.peer }).await;
        }
    }
}

/// The last words to the other end, if there is something to say.
pub(super) fn last_words(end: &End) -> Option<Message> {
    let End::Failed(error) = end else { return None };
    let (code, reason) = match error {
        TransferError::Ended { .. } | TransferError::Rejected(_) => return None,
        // Names and errors of this machine's files are nobody else's.
        TransferError::Source(_) => {
            (code::SOURCE, "the sender cannot read what it sends, or it changed meanwhile".to_owned())
        }
        TransferError::Destination(_) => (code::DESTINATION, "the receiver cannot write what it receives".to_owned()),
        TransferError::Misbehaviour(error) => (code::MISBEHAVED, error.to_string()),
        TransferError::Refused(reason) => (code::REFUSED, reason.clone()),
        TransferError::Cancelled => (code::INTERRUPTED, "it was interrupted".to_owned()),
        other => (code::INTERRUPTED, other.to_string()),
    };
    Some(Message::End { code, reason })
}

/// What the other end's last words mean here.
pub(super) fn ended(code: u16, reason: String) -> End {
    End::Failed(match code {
        code::REJECTED => TransferError::Rejected(reason),
        code::BUSY => return End::Busy(reason),
        _ => TransferError::Ended { code, reason },
    })
}
