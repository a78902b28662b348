//! What is told of peers, for progress.

use std::time::{Duration, Instant};

use super::{PeerAddress, Swarm};
use crate::binmap::Binmap;
use crate::merkle::NodeStore;

/// What is known of a peer, for progress.
#[derive(Clone, Debug)]
pub struct PeerStats<'a, P> {
    /// Which.
    pub peer: &'a P,
    /// Bytes of its datagrams, whatever was in them.
    pub received_bytes: u64,
    /// Payload from it.
    pub downloaded_bytes: u64,
    /// Payload to it.
    pub uploaded_bytes: u64,
    /// Payload that was ever asked of it.
    pub asked_bytes: u64,
    /// The round trip, once it is known.
    pub rtt: Duration,
    /// Chunks that it has.
    pub chunks: u64,
    /// Chunks that were lost on their way to it.
    pub lost_chunks: u64,
    /// Chunks asked of it that did not come yet.
    pub asked: u64,
    /// It wants something of us.
    pub wants: bool,
    /// It has something that is missing here.
    pub is_wanted: bool,
    /// We do not serve it.
    pub is_choked: bool,
    /// When it asked for something last.
    pub asked_us_at: Option<Instant>,
    /// When a chunk came from it last, of those that it was asked for.
    pub heard_at: Instant,
    /// It lacks something that is here.
    pub lacks: bool,
    /// It does not serve us.
    pub chokes_us: bool,
}

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// What is known of each peer.
    pub fn peer_stats(&self) -> impl Iterator<Item = PeerStats<'_, P>> {
        self.channels.values().filter(|channel| channel.proven).map(|channel| PeerStats {
            peer: &channel.peer,
            received_bytes: channel.received_bytes,
            downloaded_bytes: channel.downloaded_bytes,
            uploaded_bytes: channel.uploaded_bytes,
            asked_bytes: channel.asked_bytes,
            rtt: if channel.uploaded_bytes > 0 { channel.control.ledbat().rtt() } else { channel.rtt },
            chunks: channel.has.count(),
            lost_chunks: channel.lost_chunks,
            asked: channel.asked.len(),
            wants: !channel.wants.is_empty(),
            is_wanted: match self.tree.chunk_count() {
                Some(_) => Binmap::next_match(0, 1, &[&channel.has], &[&self.held]).is_some(),
                None => !channel.has.is_empty(),
            },
            is_choked: channel.choked,
            asked_us_at: channel.asked_us_at,
            heard_at: channel.heard_at,
            lacks: Binmap::next_match(0, 1, &[&self.have], &[&channel.has]).is_some(),
            chokes_us: channel.chokes_us,
        })
    }
}
