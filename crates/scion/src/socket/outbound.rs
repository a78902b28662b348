//! From payloads on routes to bursts of packets.
//!
//! A burst's packets lie one behind the other, header and payload, as the kernel cuts them with `UDP_SEGMENT`. The payload is
//! copied and summed in one pass: the kernel takes 50 whole packets in one piece faster than a hundred scattered parts by about
//! what the copy costs, and the checksum has to read every byte anyway.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;

use anabranch_scion_wire::checksum;
use anabranch_udp::{DATAGRAM_LEN_MAX, SEGMENTS_MAX};

use super::core::Core;
use super::routes::{Route, RouteId};

/// Bytes of packets that go to the kernel in one call: four full bursts, which stay in the second-level cache.
const OUTBOX_LEN: usize = 4 * DATAGRAM_LEN_MAX;
/// Bursts in one call.
pub(super) const BURSTS_MAX: usize = 32;

/// Data for one route: one packet's payload, or many of one size.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// By which way.
    pub route: RouteId,
    /// All payloads, one behind the other.
    pub payload: &'a [u8],
    /// Bytes of each payload but the last, which may be shorter. At least the payload's length: one packet.
    pub segment_len: usize,
    /// ECN bits for each packet.
    pub ecn: u8,
}

impl<'a> Transmit<'a> {
    /// One packet.
    pub fn new(route: RouteId, payload: &'a [u8]) -> Self {
        Self { route, payload, segment_len: payload.len().max(1), ecn: 0 }
    }
}

/// Packets on their way to the kernel.
#[derive(Debug)]
pub struct Outbox {
    bytes: Box<[u8]>,
    len: usize,
    pub(super) bursts: Vec<Burst>,
}

/// Packets of one size for one next hop.
#[derive(Clone, Debug)]
pub(super) struct Burst {
    pub(super) to: SocketAddr,
    pub(super) packet_len: usize,
    pub(super) packets: usize,
    pub(super) payload_bytes: usize,
    /// Its transmit's place among those given.
    pub(super) transmit: usize,
    /// The first of its transmit's.
    pub(super) is_first: bool,
    /// Where its payload starts in its transmit's.
    pub(super) payload_start: usize,
    range: Range<usize>,
}

/// How far transmits have become packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    pub(super) transmit: usize,
    offset: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { bytes: vec![0; OUTBOX_LEN].into(), len: 0, bursts: Vec::with_capacity(BURSTS_MAX) }
    }
}

impl Outbox {
    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
        self.bursts.clear();
    }

    /// The packets in it, as they go to each next hop.
    pub fn packets(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        self.bursts
            .iter()
            .flat_map(|burst| self.burst_bytes(burst).chunks(burst.packet_len).map(|packet| (burst.to, packet)))
    }

    pub(super) fn burst_bytes(&self, burst: &Burst) -> &[u8] {
        &self.bytes[burst.range.clone()]
    }
}

impl Core {
    /// Turns transmits into packets from `cursor` on, until all are done or the outbox is full. At most `segments_max` packets
    /// make one burst.
    ///
    /// # Errors
    /// The transmit at the cursor cannot be sent: its route is gone (`NotConnected`), or its packets are longer than the path's
    /// MTU or than any (`EMSGSIZE`). What came before it is in the outbox.
    pub fn outbound(
        &self,
        outbox: &mut Outbox,
        transmits: &[Transmit<'_>],
        cursor: &mut Cursor,
        segments_max: usize,
    ) -> io::Result<()> {
        while let Some(transmit) = transmits.get(cursor.transmit) {
            let route = self.routes().get(transmit.route).cloned();
            let gone = || io::Error::new(io::ErrorKind::NotConnected, "the route was removed or has expired");
            let route = route.ok_or_else(gone)?;
            let payload_len = transmit.segment_len.min(transmit.payload.len());
            let no_progress = transmit.segment_len == 0 && !transmit.payload.is_empty();
            if payload_len > route.payload_len_max || no_progress {
                return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
            }
            loop {
                if outbox.bursts.len() == BURSTS_MAX || !outbox.push(&route, transmit, cursor, segments_max) {
                    return Ok(());
                }
                if cursor.offset >= transmit.payload.len() {
                    break;
                }
            }
            route.use_.sent();
            *cursor = Cursor { transmit: cursor.transmit + 1, offset: 0 };
        }
        Ok(())
    }
}

impl Outbox {
    /// Adds one burst of what is left of `transmit`; false if there is no room for it.
    fn push(&mut self, route: &Route, transmit: &Transmit<'_>, cursor: &mut Cursor, segments_max: usize) -> bool {
        let left = &transmit.payload[cursor.offset..];
        let payload_len = transmit.segment_len.min(left.len());
        let packet_len = route.template.header_len() + payload_len;
        let packets_max = (DATAGRAM_LEN_MAX / packet_len).clamp(1, segments_max.clamp(1, SEGMENTS_MAX));
        let burst_payload = &left[..left.len().min(packets_max * payload_len)];
        let packets = burst_payload.len().div_ceil(payload_len.max(1)).max(1);
        let burst_len = burst_payload.len() + packets * route.template.header_len();
        let start = self.len;
        let Some(mut out) = self.bytes.get_mut(start..start + burst_len) else { return false };
        // An empty payload is a packet too.
        let mut payloads = burst_payload.chunks(payload_len.max(1));
        let mut payload = payloads.next().unwrap_or_default();
        loop {
            let Some(written) = write_packet(route, payload, transmit.ecn, out) else { return false };
            out = &mut out[written..];
            match payloads.next() {
                Some(next) => payload = next,
                None => break,
            }
        }
        self.len += burst_len;
        self.bursts.push(Burst {
            to: route.next_hop,
            packet_len,
            packets,
            payload_bytes: burst_payload.len(),
            transmit: cursor.transmit,
            is_first: cursor.offset == 0,
            payload_start: cursor.offset,
            range: start..self.len,
        });
        cursor.offset += burst_payload.len();
        true
    }
}

/// Header and payload, at the start of `out`; returns their length.
fn write_packet(route: &Route, payload: &[u8], ecn: u8, out: &mut [u8]) -> Option<usize> {
    let header_len = route.template.header_len();
    let (header, rest) = out.split_at_mut_checked(header_len)?;
    let sum = checksum::copy_sum(rest.get_mut(..payload.len())?, payload);
    // Payload lengths were checked against the route's limit, which is below the template's.
    route.template.write(payload.len(), sum, header).ok()?;
    // The low two bits of the traffic class; the template leaves it zero.
    header[1] |= (ecn & 0b11) << 4;
    Some(header_len + payload.len())
}
