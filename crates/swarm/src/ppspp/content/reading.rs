//! A content of PPSPP is read while it arrives.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_content::info::Info;
use tokio::sync::Notify;

use super::Content;
use crate::store::readers::{Deadline, Look, Readable, Readers, follow, look};

impl Content {
    /// What is there changed altogether: those who wait look again, and what they need is said again.
    pub(crate) fn read_on(&mut self, now: Instant) {
        self.readers.repeat();
        follow(self, now);
        self.arrived.notify_waiters();
    }
}

impl Readable for Content {
    fn readers(&mut self) -> &mut Readers {
        &mut self.readers
    }

    fn arrived(&self) -> Rc<Notify> {
        Rc::clone(&self.arrived)
    }

    fn known(&self) -> Option<Arc<Info>> {
        self.info.clone()
    }

    fn look(&self, range: Range<u64>) -> Look {
        match &self.storage {
            _ if self.stopping => Look::Over,
            Some(storage) => look(storage, &self.have, range),
            None => Look::Missing,
        }
    }

    fn need(&mut self, deadlines: &[Deadline], front: Option<u32>, now: Instant) {
        self.set_deadlines(deadlines, front);
        self.pump(now);
    }

    fn unreadable(&mut self, piece: u32, _reason: &str) {
        let Some(storage) = &self.storage else { return };
        let info = storage.info();
        let is_changed = |file: &usize| info.pieces_of_file(*file).contains(&piece) && storage.is_seal_broken(*file);
        let changed: Vec<usize> = (0..info.files.len()).filter(is_changed).collect();
        match changed.is_empty() {
            true => self.lose(&[piece]),
            false => self.files_changed(&changed),
        }
    }
}
