//! What is here: chunks that the driver wrote, or lost.

use std::ops::Range;

use super::{CHANNELS_MAX, Event, PeerAddress, Swarm};
use crate::avail::Availability;
use crate::binmap::Binmap;
use crate::merkle::NodeStore;

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// A chunk that was handed out is written: it is announced and served from now on.
    pub fn stored(&mut self, chunk: u64) {
        self.stored_range(chunk..chunk.saturating_add(1));
    }

    /// The same for a run of chunks. Those of it that were not handed out are not there.
    pub fn stored_range(&mut self, chunks: Range<u64>) {
        let mut new = Binmap::new();
        new.insert_range(chunks);
        new.intersect_with(&self.held);
        new.subtract(&self.have);
        if new.is_empty() {
            return;
        }
        self.have.union_with(&new);
        for channel in self.channels.values_mut().filter(|channel| channel.proven) {
            let mut unsaid = new.clone();
            unsaid.subtract(&channel.has);
            channel.unsaid.union_with(&unsaid);
        }
        self.is_news |= self.live.is_some();
        if self.is_complete() && !self.is_complete {
            self.is_complete = true;
            self.events.push_back(Event::Complete);
        }
    }

    /// Chunks that lay on the disk and were found to be good, or are lost: what is here is this, and nothing else.
    pub fn set_have(&mut self, have: Binmap) {
        self.held = have.clone();
        for channel in self.channels.values_mut().filter(|channel| channel.proven) {
            channel.unsaid = have.clone();
            channel.unsaid.subtract(&channel.has);
        }
        self.have = have;
        self.is_complete = self.is_complete();
        self.availability = Availability::new(CHANNELS_MAX.min(32), self.tree.chunk_count());
        if self.counts_rarity() {
            for channel in self.channels.values() {
                self.availability.add(&channel.has);
            }
        }
    }

    /// A chunk that was handed out before [`Swarm::set_have`] is still on its way to the disk.
    pub fn hold(&mut self, chunk: u64) {
        self.held.insert_range(chunk..chunk.saturating_add(1));
    }

    /// A chunk that was handed out could not be written: it is fetched again.
    pub fn store_failed(&mut self, chunk: u64) {
        if !self.have.contains(chunk) {
            self.held.remove_range(chunk..chunk.saturating_add(1));
        }
    }
}
