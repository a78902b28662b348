//! What is known of one peer over one channel.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::PeerAddress;
use super::beside::Beside;
use super::live::LiveChannel;
use super::outbox::Outbox;
use super::runs::{Along, RunMap};
use crate::binmap::Binmap;
use crate::ledbat::Mode;
use crate::merkle::{Offers, SiblingPath};
use crate::pull::InterArrival;
use crate::state::{SendControl, State};
use crate::wire::{ChannelId, Codec, Dialect, Message};

/// Ranges that a peer may have asked for and not been served: a second of 10 Gbit/s in the smallest requests that anybody
/// sends, and 16 KiB of memory.
pub(super) const WANTS_MAX: usize = 1024;
/// How often a peer is asked for others.
const PEX_EVERY: Duration = Duration::from_secs(30);
/// The same in a live stream with few neighbours, where the next seconds depend on them.
const PEX_EVERY_LIVE: Duration = Duration::from_millis(250);
/// A request that was not served for so long is somebody else's: twice what a request is to last.
const ASKED_MAX: Duration = Duration::from_secs(2);
/// The same in a live stream, where somebody else's turn is soon or never.
pub(super) const ASKED_MAX_LIVE: Duration = Duration::from_millis(350);
/// The same where there is nobody else.
pub(super) const ASKED_MAX_ALONE: Duration = Duration::from_millis(600);
/// How long nothing is asked of a peer that let a request lie: long enough for everybody else's turn. It may be gone, so each time is
/// twice as long as the one before, up to `1 << STALLS_MAX` times, until something comes.
const STALL: Duration = Duration::from_secs(1);
const STALLS_MAX: u32 = 6;
/// The same in a live stream, where what is late was late by much less.
const STALL_LIVE: Duration = Duration::from_millis(300);
const STALLS_MAX_LIVE: u32 = 2;
/// Nothing comes for so long, or so many round trips, or as long as so many chunks took before: the request was lost, as it seems,
/// and is said again; after as many silences, each of them twice as long, the peer has let it lie.
const SILENCE_MIN: Duration = Duration::from_millis(500);
const SILENCE_RTTS: u32 = 4;
const SILENCE_PERIODS: u32 = 8;
const SILENCES_MAX: u32 = 1;
/// How long a peer may take to send again what was lost: its timeout is a round trip and a little, and may be needed twice.
const REPAIR_MIN: Duration = Duration::from_millis(400);
const REPAIR_RTTS: u32 = 3;
/// The longest round trip that counts for it: it bounds how many looks are remembered.
const REPAIR_RTT_MAX: Duration = Duration::from_secs(2);
/// How soon a peer is told again that it is choked, if it asks, or that it is not, if it does not: nobody acknowledges that. The latter each
/// time after twice as long, so often.
const CHOKE_AGAIN: Duration = Duration::from_millis(500);
const UNCHOKE_TIMES: u32 = 6;
/// Chunks of which an ACK is still heeded where each word of the peer has one leave: as many as leave in a round trip.
const ANSWERED_MAX: usize = 64;
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
    /// When the peer, silent though something was asked of it, was last greeted anew, and how long that is waited for.
    pub greeted: Option<(Instant, Duration)>,
    /// Bytes that datagrams to it may have, without a chunk that is longer by itself.
    pub datagram_len: usize,
    pub beside: Beside,
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
    /// How far the way of the chunk that left last is known.
    pub way: SiblingPath,
    /// Chunks on their way to it; the order in which they left is beside, with entries of some that arrived since.
    pub inflight: RunMap<Sent>,
    pub sent_order: VecDeque<(u64, Range<u64>)>,
    pub sent_count: u64,
    /// Chunks on their way that are taken to arrive, as to what proves others; the latest that left, which are not yet; how many
    /// arrived since losses came in a run; and the number of the datagram that was lost last.
    pub assumed: Binmap,
    pub latest: VecDeque<u64>,
    pub clean_count: u64,
    pub lost_number: Option<u64>,
    /// The window is what limits, until so many datagrams with chunks left: two windows after it was last seen to be.
    pub limited_until: u64,
    /// Chunks that were lost and did not arrive since.
    pub lost: BTreeSet<u64>,
    /// In ping-pong: the peer said something since the last chunk; and chunks before it, the latest, which are not waited for.
    pub replied: bool,
    pub answered: VecDeque<(u64, Sent)>,
    /// We do not answer its requests; when it was told last that we do not, or do again, and how often, until a request shows that it
    /// knows.
    pub choked: bool,
    pub choke_said: Option<(Instant, u32)>,
    /// When it asked for something last.
    pub asked_us_at: Option<Instant>,
    /// It does not answer ours.
    pub chokes_us: bool,
    /// Chunks asked of it, since when; and when the latest of those that came was asked for, now and at looks before.
    pub asked: RunMap<Instant>,
    pub came_asked_at: Option<Instant>,
    pub came_before: VecDeque<(Instant, Instant)>,
    /// Chunks that were asked of it, and then no more: if they come all the same, it is not known for which request.
    pub asked_before: Binmap,
    /// When a chunk that it was asked for came last, or it was asked while it owed nothing; and silences since.
    pub heard_at: Instant,
    pub silences: u32,
    /// When a chunk came or left over it.
    pub moved_at: Instant,
    /// Chunks that came and hold, and were not acknowledged yet, each run with the delay of its last one.
    pub unacked: Vec<(Range<u64>, u64)>,
    /// What was acknowledged last: it is said again with the next, for a datagram that is lost.
    pub acked_before: Vec<(Range<u64>, u64)>,
    /// Chunks that came since the last look, good or not.
    pub arrived: u64,
    /// Bytes of chunks that may still be sent to it and asked of it, where a limit holds.
    pub allowance: Allowance,
    /// Something may be asked for over it: of several channels to a peer, some stand by.
    pub is_used: bool,
    /// Bytes of its datagrams.
    pub received_bytes: u64,
    /// Payload that came from it and went to it, and chunks that were lost on the way to it.
    pub downloaded_bytes: u64,
    pub uploaded_bytes: u64,
    pub asked_bytes: u64,
    pub lost_chunks: u64,
    /// It let requests lie: until then others are asked.
    pub stalled_until: Option<Instant>,
    pub stalls: u32,
    pub arrivals: InterArrival,
    /// Of a live stream, and whether chunks that left are of one.
    pub live: LiveChannel,
    pub serves_live: bool,
    pex_asked_at: Option<Instant>,
    /// Addresses that may still be taken from it.
    pub pex_left: u32,
    pub pex_answered_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// The how manieth chunk it was that left.
    pub number: u64,
    pub at: Instant,
    /// It left before.
    pub is_again: bool,
    /// The peer took back its request meanwhile: if it is lost, it does not leave again.
    pub is_cancelled: bool,
}

impl Along for Sent {
    fn along(self, chunks: u64) -> Self {
        Self { number: self.number + chunks, ..self }
    }
}

/// When chunks were asked for.
impl Along for Instant {
    fn along(self, _chunks: u64) -> Self {
        self
    }
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
            datagram_len: peer.datagram_len(),
            beside: Beside::default(),
            peer,
            dialect,
            remote: 0,
            codec: None,
            proven: false,
            greeted: None,
            tries: 0,
            opened_at: now,
            rtt: Duration::ZERO,
            control: SendControl::new(mode, now),
            has: Binmap::new(),
            knows_peaks: false,
            unsaid: Binmap::new(),
            offers: Offers::new(),
            wants: VecDeque::new(),
            way: SiblingPath::default(),
            inflight: RunMap::new(),
            sent_order: VecDeque::new(),
            sent_count: 0,
            assumed: Binmap::new(),
            latest: VecDeque::new(),
            clean_count: 0,
            lost_number: None,
            limited_until: 0,
            serves_live: false,
            lost: BTreeSet::new(),
            replied: false,
            answered: VecDeque::new(),
            choked: false,
            choke_said: None,
            asked_us_at: None,
            chokes_us: false,
            asked: RunMap::new(),
            came_asked_at: None,
            asked_before: Binmap::new(),
            heard_at: now,
            silences: 0,
            moved_at: now,
            came_before: VecDeque::new(),
            unacked: Vec::new(),
            acked_before: Vec::new(),
            arrived: 0,
            allowance: Allowance::ALL,
            is_used: true,
            received_bytes: 0,
            downloaded_bytes: 0,
            uploaded_bytes: 0,
            asked_bytes: 0,
            lost_chunks: 0,
            stalled_until: None,
            stalls: 0,
            arrivals: InterArrival::default(),
            live: LiveChannel::default(),
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

    /// Tells a peer whose channel is known. Whether it is.
    pub(super) fn say_all(&self, messages: &[Message<'_>], out: &mut Outbox<P>) -> bool {
        let Some(datagram) = self.datagram(messages) else { return false };
        out.say(&self.peer, datagram, self.datagram_len);
        true
    }

    pub(super) fn say(&mut self, message: &Message<'_>, out: &mut Outbox<P>) {
        self.say_all(std::slice::from_ref(message), out);
    }

    /// We answer its requests no more, or again.
    pub(super) fn choke(&mut self, now: Instant, choked: bool, out: &mut Outbox<P>) {
        self.choked = choked;
        self.wants.clear();
        self.choke_said = None;
        self.say_choked(now, out);
    }

    /// Tells it whether we answer its requests.
    fn say_choked(&mut self, now: Instant, out: &mut Outbox<P>) {
        let times = self.choke_said.map_or(0, |(_, times)| times);
        self.choke_said = Some((now, times.saturating_add(1)));
        self.say(if self.choked { &Message::Choke } else { &Message::Unchoke }, out);
        self.control.sent(now, false);
    }

    /// It asked for something. Whether that is heeded: who asks though it is choked was not told, as it seems.
    pub(super) fn asks_us(&mut self, now: Instant, out: &mut Outbox<P>) -> bool {
        if !self.choked {
            (self.asked_us_at, self.choke_said) = (Some(now), None);
        } else if self.choke_said.is_none_or(|(at, _)| now.saturating_duration_since(at) >= CHOKE_AGAIN) {
            self.say_choked(now, out);
        }
        !self.choked
    }

    /// Who does not ask though it is choked no more was not told, as it seems; or wants nothing, so with every sign of life at last.
    pub(super) fn unchoke_again(&mut self, now: Instant, is_sign_of_life: bool, out: &mut Outbox<P>) {
        let Some((at, times)) = self.choke_said.filter(|_| !self.choked) else { return };
        let is_due = times < UNCHOKE_TIMES && now.saturating_duration_since(at) >= CHOKE_AGAIN * (1 << (times - 1));
        if is_due || is_sign_of_life {
            self.say_choked(now, out);
        }
    }

    pub(super) fn ask_pex(&mut self, now: Instant, needs_more: bool, out: &mut Outbox<P>) {
        let every = if needs_more { PEX_EVERY_LIVE } else { PEX_EVERY };
        if self.pex_asked_at.is_none_or(|at| now.saturating_duration_since(at) >= every) {
            self.pex_asked_at = Some(now);
            self.pex_left = PEX_TAKEN_MAX;
            self.say(&Message::PexRequest, out);
            self.control.sent(now, false);
        }
    }

    /// What is on its way is not waited for any more. An ACK finds it all the same, however much left since for what was said before the ACK.
    pub(super) fn answered(&mut self) {
        let newest = self.sent_count.saturating_sub(1);
        let mut kept = None;
        for (run, sent) in self.inflight.iter() {
            for (chunk, sent) in run.clone().map(|chunk| (chunk, sent.along(chunk - run.start))) {
                match sent.number == newest {
                    true => kept = Some((chunk, sent)),
                    false => self.answered.push_back((chunk, sent)),
                }
            }
        }
        while self.answered.len() > ANSWERED_MAX {
            self.answered.pop_front();
        }
        self.inflight.clear();
        self.sent_order.clear();
        if let Some((chunk, sent)) = kept {
            self.inflight.insert(chunk..chunk + 1, sent);
            self.sent_order.push_back((sent.number, chunk..chunk + 1));
        }
        self.replied = true;
    }

    /// It let a request lie: nothing is asked of it for a while.
    pub(super) fn stall(&mut self, now: Instant, is_live: bool) {
        self.silences = 0;
        let (stall, stalls_max) = if is_live { (STALL_LIVE, STALLS_MAX_LIVE) } else { (STALL, STALLS_MAX) };
        self.stalled_until = Some(now + stall * (1 << self.stalls.min(stalls_max)));
        self.stalls = STALLS_MAX.min(self.stalls + 1);
    }

    pub(super) fn is_stalled(&self, now: Instant) -> bool {
        self.stalled_until.is_some_and(|until| now < until)
    }

    /// Chunks that follow each other came, good or not; `each` hears of every run of those that were asked for.
    pub(super) fn came(&mut self, chunks: &Range<u64>, payload_bytes: u64, mut each: impl FnMut(Range<u64>)) {
        self.asked.remove(chunks, |run, at| {
            // Karn's rule: what was asked for twice may have come for the first time, and says nothing of when the second was heard.
            if self.asked_before.next_clear(run.start) < run.end {
                self.came_asked_at = self.came_asked_at.max(Some(at));
            }
            each(run);
        });
        self.asked_before.remove_range(chunks.clone());
        self.arrived += chunks.end - chunks.start;
        self.downloaded_bytes += payload_bytes;
    }

    /// Chunks that follow each other are to be acknowledged; the last of them was so long on its way, by both clocks.
    pub(super) fn owe_acknowledgement(&mut self, chunks: Range<u64>, delay_us: u64) {
        match self.unacked.last_mut() {
            Some((run, delay)) if run.end == chunks.start => (run.end, *delay) = (chunks.end, delay_us),
            _ => self.unacked.push((chunks, delay_us)),
        }
    }

    /// A chunk came.
    pub(super) fn heard(&mut self, now: Instant) {
        (self.heard_at, self.silences, self.stalls) = (now, 0, 0);
        self.moved_at = now;
    }

    /// How long any one request is waited for.
    fn patience(&self) -> Duration {
        ASKED_MAX.max(self.rtt * 8)
    }

    /// Nothing of what it was asked for comes for longer than this: the request was lost, or the path was.
    pub(super) fn silence(&self) -> Duration {
        let period = self.arrivals.period().unwrap_or_default();
        let silence = SILENCE_MIN.max(self.rtt * SILENCE_RTTS).max(period.saturating_mul(SILENCE_PERIODS));
        silence.min(self.patience())
    }

    /// Chunks that it was asked for and that are not waited for any more, each run of them.
    ///
    /// Peers serve in the order in which they were asked, and send again what is lost. What is not here some round trips after
    /// what was asked for later, they were never asked for: the request was lost.
    pub(super) fn overdue(&mut self, now: Instant, asked_max_live: Option<Duration>) -> Binmap {
        let since = |at: Instant| now.saturating_duration_since(at);
        if let Some(asked_at) = self.came_asked_at {
            self.came_before.push_back((now, asked_at));
        }
        let repair = REPAIR_MIN + self.rtt.min(REPAIR_RTT_MAX) * REPAIR_RTTS;
        let mut passed = None;
        while let Some((at, asked_at)) = self.came_before.front().copied()
            && since(at) >= repair
        {
            passed = Some(asked_at);
            self.came_before.pop_front();
        }
        // Longer than the silence that is counted next: whoever answers nothing is found out by that.
        let patience = match asked_max_live {
            Some(asked_max) => asked_max.max(self.rtt * 4),
            None => self.patience() * (1 << self.silences),
        };
        let is_silent = !self.asked.is_empty() && since(self.heard_at) > self.silence() * (1 << self.silences);
        if is_silent {
            self.silences += 1;
        }
        let is_overdue = |at: Instant| is_silent || since(at) > patience || passed.is_some_and(|passed| at < passed);
        let mut overdue = Binmap::new();
        for (run, _) in self.asked.iter().filter(|(_, at)| is_overdue(*at)) {
            overdue.insert_range(run);
        }
        // In a live stream somebody else's turn is at once.
        let is_live = asked_max_live.is_some();
        if self.silences > SILENCES_MAX || (is_live && !overdue.is_empty()) {
            self.stall(now, is_live);
        }
        overdue
    }

    /// How soon what is asked for now comes: after all that was asked for before.
    pub(super) fn delay(&self) -> Duration {
        let before = u32::try_from(self.asked.len()).unwrap_or(u32::MAX);
        self.rtt.saturating_add(self.arrivals.period().unwrap_or_default().saturating_mul(before))
    }

    fn waiting_for(&self) -> u64 {
        if self.replied && self.control.state() == State::PingPong { 0 } else { self.inflight.len() }
    }

    /// When a chunk may leave for it, after `before` that leave now.
    pub(super) fn send_at(&self, before: u64) -> Option<Instant> {
        let may = self.proven && !self.wants.is_empty() && self.allowance.up_bytes > 0;
        if may { self.control.send_at((self.waiting_for() + before) as usize) } else { None }
    }
}
