//! What is known of one peer over one channel.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{PeerAddress, Transmit};
use crate::binmap::Binmap;
use crate::ledbat::Mode;
use crate::merkle::Offers;
use crate::pull::InterArrival;
use crate::state::{SendControl, State};
use crate::wire::{ChannelId, Codec, Dialect, Message};

/// Ranges that a peer may have asked for and not been served: a second of 10 Gbit/s in the smallest requests that anybody
/// sends, and 16 KiB of memory.
pub(super) const WANTS_MAX: usize = 1024;
/// How often a peer is asked for others.
const PEX_EVERY: Duration = Duration::from_secs(30);
/// Addresses that are believed of one answer.
pub(super) const PEX_TAKEN_MAX: u32 = 16;

#[derive(Debug)]
pub(super) struct Channel<P> {
    pub peer: P,
    pub dialect: Dialect,
    /// The peer's number for it; 0 before it is known.
    pub remote: ChannelId,
    /// What was agreed on; `None` before the peer's handshake.
    pub codec: Option<Codec>,
    pub proven: bool,
    pub tries: u32,
    /// When our last handshake left, and how long until the peer named our channel: the round trip, as far as a receiver
    /// knows it (the libswift paper, §4.1).
    pub opened_at: Instant,
    pub rtt: Duration,
    pub control: SendControl,
    /// What the peer has: announced or acknowledged, within the content.
    pub has: Binmap,
    /// The peer acknowledged a chunk: it knows the peaks.
    pub knows_peaks: bool,
    /// What is to be announced to it.
    pub unsaid: Binmap,
    /// Digests from it that wait for a proof.
    pub offers: Offers,
    /// What it asked for.
    pub wants: VecDeque<Range<u64>>,
    /// Chunks on their way to it; the order in which they left is beside, with entries of some that arrived since.
    pub inflight: BTreeMap<u64, Sent>,
    pub sent_order: VecDeque<(u64, u64)>,
    pub sent_count: u64,
    /// In ping-pong: the peer said something since the last chunk.
    pub replied: bool,
    /// We do not answer its requests.
    pub choked: bool,
    /// It does not answer ours.
    pub chokes_us: bool,
    /// Chunks asked of it, since when.
    pub asked: BTreeMap<u64, Instant>,
    /// Chunks that came and hold, and were not acknowledged yet, each run with the delay of its last one.
    pub unacked: Vec<(Range<u64>, u64)>,
    /// Chunks that came since the last look, good or not.
    pub arrived: u64,
    /// Bytes of chunks that may still be sent to it and asked of it, where a limit holds.
    pub allowance: Allowance,
    /// Payload that came from it and went to it, and chunks that were lost on the way to it.
    pub downloaded_bytes: u64,
    pub uploaded_bytes: u64,
    pub asked_bytes: u64,
    pub lost_chunks: u64,
    /// It let requests lie: until then others are asked.
    pub stalled_until: Option<Instant>,
    pub arrivals: InterArrival,
    pex_asked_at: Option<Instant>,
    /// Addresses that may still be taken from it.
    pub pex_left: u32,
    pub pex_answered_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// The how manieth chunk it was that left.
    pub number: u64,
    pub at: Instant,
}

/// Bytes of chunks that may move over a channel, each way, until the driver says again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// To the peer.
    pub up_bytes: u64,
    /// To be asked of the peer.
    pub down_bytes: u64,
}

impl Allowance {
    /// Nothing limits.
    pub const ALL: Self = Self { up_bytes: u64::MAX, down_bytes: u64::MAX };
}

impl<P: PeerAddress> Channel<P> {
    pub(super) fn new(peer: P, dialect: Dialect, mode: Mode, now: Instant) -> Self {
        Self {
            peer,
            dialect,
            remote: 0,
            codec: None,
            proven: false,
            tries: 0,
            opened_at: now,
            rtt: Duration::ZERO,
            control: SendControl::new(mode, now),
            has: Binmap::new(),
            knows_peaks: false,
            unsaid: Binmap::new(),
            offers: Offers::new(),
            wants: VecDeque::new(),
            inflight: BTreeMap::new(),
            sent_order: VecDeque::new(),
            sent_count: 0,
            replied: false,
            choked: false,
            chokes_us: false,
            asked: BTreeMap::new(),
            unacked: Vec::new(),
            arrived: 0,
            allowance: Allowance::ALL,
            downloaded_bytes: 0,
            uploaded_bytes: 0,
            asked_bytes: 0,
            lost_chunks: 0,
            stalled_until: None,
            arrivals: InterArrival::default(),
            pex_asked_at: None,
            pex_left: 0,
            pex_answered_at: None,
        }
    }

    /// A datagram of messages, to a peer whose channel is known.
    pub(super) fn datagram(&self, messages: &[Message<'_>]) -> Option<Vec<u8>> {
        let codec = self.codec.as_ref().filter(|_| self.remote != 0)?;
        let mut datagram = self.remote.to_be_bytes().to_vec();
        messages.iter().try_for_each(|message| message.encode(codec, &mut datagram)).ok()?;
        Some(datagram)
    }

    pub(super) fn say(&mut self, message: &Message<'_>, out: &mut VecDeque<Transmit<P>>) {
        if let Some(datagram) = self.datagram(std::slice::from_ref(message)) {
            out.push_back(Transmit { peer: self.peer.clone(), datagram, chunk: None });
        }
    }

    pub(super) fn ask_pex(&mut self, now: Instant, out: &mut VecDeque<Transmit<P>>) {
        if self.pex_asked_at.is_none_or(|at| now.saturating_duration_since(at) >= PEX_EVERY) {
            self.pex_asked_at = Some(now);
            self.pex_left = PEX_TAKEN_MAX;
            self.say(&Message::PexRequest, out);
            self.control.sent(now, false);
        }
    }

    /// What is on its way is not waited for any more.
    pub(super) fn answered(&mut self) {
        // An ACK among the messages still finds the newest.
        let newest = self.sent_count.saturating_sub(1);
        self.inflight.retain(|_, sent| sent.number == newest);
        self.replied = true;
    }

    fn waiting_for(&self) -> usize {
        if self.replied && self.control.state() == State::PingPong { 0 } else { self.inflight.len() }
    }

    /// When a chunk may leave for it.
    pub(super) fn send_at(&self) -> Option<Instant> {
        let may = self.proven && !self.wants.is_empty() && self.allowance.up_bytes > 0;
        if may { self.control.send_at(self.waiting_for()) } else { None }
    }
}
