//! A torrent is read while it arrives.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_content::info::Info;
use tokio::sync::Notify;

use super::TorrentDriver;
use crate::store::readers::{Deadline, Look, Readable, Readers, follow, look};

impl TorrentDriver {
    /// What is there changed altogether: those who wait look again, and what they need is said again.
    pub(crate) fn read_on(&mut self, now: Instant) {
        self.readers.repeat();
        follow(self, now);
        self.arrived.notify_waiters();
    }
}

impl Readable for TorrentDriver {
    fn readers(&mut self) -> &mut Readers {
        &mut self.readers
    }

    fn arrived(&self) -> Rc<Notify> {
        Rc::clone(&self.arrived)
    }

    fn known(&self) -> Option<Arc<Info>> {
        self.core.known_info().cloned()
    }

    fn look(&self, range: Range<u64>) -> Look {
        if self.stopping {
            return Look::Over;
        }
        match (&self.storage, self.core.have()) {
            (Some(storage), Some(have)) => look(storage, have, range),
            _ => Look::Missing,
        }
    }

    fn need(&mut self, deadlines: &[Deadline], front: Option<u32>, now: Instant) {
        if let Some(front) = front {
            self.core.set_front(front);
        }
        self.core.set_deadlines(deadlines, now);
        self.pump(now);
    }

    fn unreadable(&mut self, piece: u32, reason: &str) {
        self.content_unreadable(piece, reason);
    }
}
