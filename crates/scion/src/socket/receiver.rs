//! Received messages, handed out to readers' buffers.

use std::io::IoSliceMut;
use std::time::{Instant, SystemTime};

use anabranch_udp::RecvBatch;

use super::core::Core;
use super::counters::{Dropped, add};
use super::inbound::{Data, Inbox};
use super::routes::RouteId;

/// Messages received with one system call. Each may be 64 KiB of coalesced packets.
const MESSAGES: usize = 16;

/// What was written to one buffer: payloads of packets that came by one route, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvMeta {
    /// By which way.
    pub route: RouteId,
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes of each payload but the last, which may be shorter.
    pub segment_len: usize,
    /// ECN bits, the same for all.
    pub ecn: u8,
}

impl Default for RecvMeta {
    /// Of no route.
    fn default() -> Self {
        Self { route: RouteId::NONE, len: 0, segment_len: 0, ecn: 0 }
    }
}

/// Packets between the kernel and the reader.
pub(super) struct Receiver {
    pub(super) batch: RecvBatch,
    pub(super) inbox: Inbox,
    /// When the batch was received.
    now: Instant,
    /// The message that comes next.
    message: usize,
    /// Bytes of it that are done.
    offset: usize,
}

/// Counts of one delivery: counters that threads share are touched once.
#[derive(Default)]
struct Tally {
    packets: u64,
    bytes: u64,
    unchecked: u64,
}

impl Receiver {
    pub(super) fn new(now: Instant) -> Self {
        Self { batch: RecvBatch::new(MESSAGES), inbox: Inbox::default(), now, message: 0, offset: 0 }
    }

    /// A new batch was received.
    pub(super) fn rewind(&mut self, now: Instant) {
        (self.now, self.message, self.offset) = (now, 0, 0);
        self.inbox.set_clock(SystemTime::now());
    }

    /// Fills buffers, one for each run of equal packets of at most `packets_max`, and says how many. Zero: the batch is done.
    pub(super) fn deliver(
        &mut self,
        core: &Core,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
        packets_max: usize,
    ) -> usize {
        let mut tally = Tally::default();
        let mut places = bufs.iter_mut().zip(metas);
        // The buffer being filled.
        let mut run: Option<Run<'_>> = None;
        let mut filled = 0;
        while let Some(received) = self.batch.get(self.message) {
            while let Some(packet) = received.bytes.get(self.offset..).filter(|rest| !rest.is_empty()) {
                let packet = &packet[..packet.len().min(received.segment_len)];
                let Some(mut data) = core.inbound(&mut self.inbox, packet, received.from, self.now) else {
                    self.offset += packet.len();
                    continue;
                };
                // Marked on the underlay is marked on the way.
                if received.ecn == 0b11 && data.ecn != 0 {
                    data.ecn = 0b11;
                }
                if run.as_ref().is_some_and(|run| run.packets == packets_max || !run.takes(&data)) {
                    filled += usize::from(run.take().is_some_and(Run::finish));
                }
                let run = match &mut run {
                    Some(run) => run,
                    none => {
                        // The packet waits for the next call if there is no buffer for it.
                        let Some((buf, meta)) = places.next() else {
                            core.tally(&tally);
                            return filled;
                        };
                        none.insert(Run::new(buf, meta))
                    }
                };
                if run.packets == 0 {
                    (run.route, run.ecn, run.segment_len) = (data.route, data.ecn, data.len());
                }
                self.offset += packet.len();
                if data.len() > run.buf.len() - run.len {
                    core.counting.drop(Dropped::BufferTooShort);
                } else if data.copy_to(&mut run.buf[run.len..]) {
                    run.took(data.len());
                    tally.packets += 1;
                    tally.bytes += data.len() as u64;
                    tally.unchecked += u64::from(data.is_unchecked());
                } else {
                    core.counting.drop(Dropped::BadChecksum);
                }
            }
            self.message += 1;
            self.offset = 0;
        }
        filled += usize::from(run.is_some_and(Run::finish));
        core.tally(&tally);
        filled
    }

    /// Does what has to be done for each packet of the batch but keeps no data.
    pub(super) fn discard(&mut self, core: &Core) {
        while let Some(received) = self.batch.get(self.message) {
            for packet in received.bytes[self.offset..].chunks(received.segment_len) {
                if core.inbound(&mut self.inbox, packet, received.from, self.now).is_some() {
                    core.counting.drop(Dropped::NobodyReads);
                }
            }
            self.message += 1;
            self.offset = 0;
        }
    }
}

impl Core {
    fn tally(&self, tally: &Tally) {
        add(&self.counting.packets_received, tally.packets);
        add(&self.counting.bytes_received, tally.bytes);
        add(&self.counting.packets_unchecked, tally.unchecked);
    }
}

/// A buffer being filled with packets of one route and size.
struct Run<'a> {
    buf: &'a mut [u8],
    meta: &'a mut RecvMeta,
    route: RouteId,
    ecn: u8,
    segment_len: usize,
    len: usize,
    packets: usize,
    /// A shorter packet came: it has to be the last.
    is_closed: bool,
}

impl<'a> Run<'a> {
    fn new(buf: &'a mut [u8], meta: &'a mut RecvMeta) -> Self {
        Self { buf, meta, route: RouteId::NONE, ecn: 0, segment_len: 0, len: 0, packets: 0, is_closed: false }
    }

    /// An empty payload can only stand alone: nobody could tell it from none.
    fn takes(&self, data: &Data<'_>) -> bool {
        let fits = !data.is_empty() && data.len() <= self.segment_len && data.len() <= self.buf.len() - self.len;
        self.packets == 0 || fits && !self.is_closed && data.route == self.route && data.ecn == self.ecn
    }

    fn took(&mut self, payload_len: usize) {
        self.is_closed = payload_len < self.segment_len || payload_len == 0;
        self.len += payload_len;
        self.packets += 1;
    }

    /// Tells what is in the buffer; false if nothing is.
    fn finish(self) -> bool {
        if self.packets == 0 {
            return false;
        }
        *self.meta = RecvMeta { route: self.route, len: self.len, segment_len: self.segment_len, ecn: self.ecn };
        true
    }
}
