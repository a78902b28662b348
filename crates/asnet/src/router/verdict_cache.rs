//! Runs: packets of one flow that follow each other, judged once.
//!
//! A verdict depends on the header, the ingress, the rules and the time, and on nothing else but the packet's size and,
//! for delivery, its port. So a packet whose header is, byte for byte, that of the packet before gets the same verdict
//! and the same update, as long as the hop fields that were checked have not expired. Sizes and ports are looked at for
//! each packet.

use std::net::SocketAddr;
use std::sync::Arc;

use anabranch_scion_wire::{HEADER_LEN_MAX, Protocol};

use super::forward::{CachedVerdict, Forwarder, Ingress, PATH_HEAD_LEN_MAX, Verdict};
use super::reply::Reply;

/// Offsets in the common header ("Common Header").
const NEXT_HEADER: usize = 4;
const HEADER_LEN: usize = 5;
const PAYLOAD_LEN: usize = 6;
/// The part of the header behind PayloadLen, which is each packet's own.
const AFTER_PAYLOAD_LEN: usize = 8;
/// A UDP header.
const UDP_HEADER_LEN: usize = 8;
/// The shortest header that there can be: common header and two ISD-AS numbers.
const HEADER_LEN_MIN: usize = 28;

/// The last packet's header and what came of it.
pub(super) struct VerdictCache {
    rules: Option<Arc<Forwarder>>,
    /// The header as it came, `header_len` bytes.
    header: [u8; HEADER_LEN_MAX],
    header_len: usize,
    /// What stands at the path's start after the update.
    path_head: [u8; PATH_HEAD_LEN_MAX],
    cached: CachedVerdict,
}

impl Default for VerdictCache {
    fn default() -> Self {
        Self {
            rules: None,
            header: [0; HEADER_LEN_MAX],
            header_len: 0,
            path_head: [0; PATH_HEAD_LEN_MAX],
            cached: CachedVerdict::default(),
        }
    }
}

impl VerdictCache {
    /// [`Forwarder::process`], quicker for a packet like the last one.
    pub(super) fn process(
        &mut self,
        rules: &Arc<Forwarder>,
        packet: &mut [u8],
        ingress: Ingress,
        now_unix_ms: u64,
        reply: &mut Reply,
    ) -> Verdict {
        if let Some(verdict) = self.repeat(rules, packet, now_unix_ms) {
            return verdict;
        }
        self.header_len = 0;
        let header_len = packet.get(HEADER_LEN).map_or(0, |lines| usize::from(*lines) * 4);
        let header = packet.get(..header_len).unwrap_or_default();
        self.header[..header.len()].copy_from_slice(header);
        let cached = rules.rule(packet, ingress, now_unix_ms, reply);
        // Where the update reaches beyond the kept bytes, or nothing vouches for the next packet, it is judged anew.
        let end = cached.path_at + cached.path_head_len;
        if cached.valid_until_unix_ms > 0 && end <= header_len && header_len >= HEADER_LEN_MIN {
            self.path_head[..cached.path_head_len].copy_from_slice(&packet[cached.path_at..end]);
            self.rules = Some(Arc::clone(rules));
            self.cached = cached;
            self.header_len = header_len;
        }
        cached.verdict
    }

    /// The verdict on a packet that differs from the last one in nothing that matters; and its header's update.
    fn repeat(&self, rules: &Arc<Forwarder>, packet: &mut [u8], now_unix_ms: u64) -> Option<Verdict> {
        let (len, cached) = (self.header_len, &self.cached);
        if len == 0
            || packet.len() < len
            || packet.len() > cached.packet_len_max
            || packet[AFTER_PAYLOAD_LEN..len] != self.header[AFTER_PAYLOAD_LEN..len]
            || packet[..PAYLOAD_LEN] != self.header[..PAYLOAD_LEN]
            || cached.valid_until_unix_ms < now_unix_ms
            || !self.rules.as_ref().is_some_and(|known| Arc::ptr_eq(known, rules))
        {
            return None;
        }
        let payload = &packet[len..];
        if payload.len() != usize::from(u16::from_be_bytes([packet[PAYLOAD_LEN], packet[PAYLOAD_LEN + 1]])) {
            return None;
        }
        let verdict = match cached.verdict {
            Verdict::Deliver(host) => Verdict::Deliver(SocketAddr::new(host.ip(), self.port(rules, payload)?)),
            verdict => verdict,
        };
        let end = cached.path_at + cached.path_head_len;
        packet[cached.path_at..end].copy_from_slice(&self.path_head[..cached.path_head_len]);
        Some(verdict)
    }

    /// The port of a plain datagram; everything else is judged anew.
    fn port(&self, rules: &Forwarder, payload: &[u8]) -> Option<u16> {
        if self.header[NEXT_HEADER] != Protocol::UDP.0 || self.cached.is_for_service {
            return None;
        }
        let [_, _, port0, port1, len0, len1, _, _] = *payload.first_chunk::<UDP_HEADER_LEN>()?;
        let is_whole = usize::from(u16::from_be_bytes([len0, len1])) == payload.len();
        is_whole.then(|| rules.host_port(u16::from_be_bytes([port0, port1])))
    }
}

#[cfg(test)]
#[path = "verdict_cache_tests.rs"]
mod tests;
