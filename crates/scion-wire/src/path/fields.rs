//! The parts of a path: the meta header, info fields, hop fields.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::{HOPS_MAX, PathError, SEGMENTS_MAX};

/// Bytes of the path meta header.
pub(crate) const META_LEN: usize = 4;
/// Bytes of an info field.
pub(crate) const INFO_LEN: usize = 8;
/// Bytes of a hop field.
pub(crate) const HOP_LEN: usize = 12;

/// The authenticator in a hop field: a CMAC, cut to six bytes.
pub type HopMac = [u8; 6];

/// What one step of ExpTime is worth: 24 hours / 256 (SCION header, "ExpTime").
pub const EXP_TIME_UNIT: Duration = Duration::from_millis(337_500);

/// Where on the path a packet is, and how long its segments are (SCION header, "PathMeta Header"). Kept as it stands on
/// the wire: one register, copied whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathMeta(u32);

impl PathMeta {
    const INFO_SHIFT: u32 = 30;
    const HOP_SHIFT: u32 = 24;
    /// CurrHF and each segment's length have six bits.
    const SIX_BITS: u32 = 0x3f;

    /// Reads the fields without judging them. Reserved bits are ignored.
    #[inline]
    pub(super) fn read(bytes: [u8; META_LEN]) -> Self {
        Self(u32::from_be_bytes(bytes) & !(Self::SIX_BITS << 18))
    }

    fn new(info_current: usize, hop_current: usize, segment_len: [u8; SEGMENTS_MAX]) -> Self {
        let [first, second, third] = segment_len.map(u32::from);
        Self(
            (info_current as u32) << Self::INFO_SHIFT
                | (hop_current as u32) << Self::HOP_SHIFT
                | first << 12
                | second << 6
                | third,
        )
    }

    /// For a path whose segments have these lengths, below 64 each, at its start.
    pub(super) fn at_start(segment_len: [u8; SEGMENTS_MAX]) -> Result<Self, PathError> {
        let meta = Self::new(0, 0, segment_len);
        meta.check().map(|()| meta)
    }

    /// "Path Offset Calculations": segments without gaps, hops that CurrHF reaches, pointers that agree.
    #[inline]
    pub(super) fn check(&self) -> Result<(), PathError> {
        let [first, second, third] = self.segment_len();
        if first == 0 {
            return Err(if second | third == 0 { PathError::NoSegments } else { PathError::SegmentGap });
        }
        if second == 0 && third != 0 {
            return Err(PathError::SegmentGap);
        }
        if self.hop_count() > HOPS_MAX {
            return Err(PathError::TooManyHops);
        }
        let agrees =
            self.hop_current() < self.hop_count() && self.info_current() == self.segment_of_hop(self.hop_current());
        if agrees { Ok(()) } else { Err(PathError::PointerMismatch) }
    }

    pub(super) fn to_bytes(self) -> [u8; META_LEN] {
        self.0.to_be_bytes()
    }

    /// CurrINF: the segment that the packet is on.
    #[inline]
    pub fn info_current(&self) -> usize {
        (self.0 >> Self::INFO_SHIFT) as usize
    }

    /// CurrHF: the hop field that the next router looks at.
    #[inline]
    pub fn hop_current(&self) -> usize {
        (self.0 >> Self::HOP_SHIFT & Self::SIX_BITS) as usize
    }

    /// Hop fields of each segment; zero for one that is not there.
    #[inline]
    pub fn segment_len(&self) -> [u8; SEGMENTS_MAX] {
        [12, 6, 0].map(|shift| (self.0 >> shift & Self::SIX_BITS) as u8)
    }

    /// Hop fields of one segment.
    #[inline]
    pub(super) fn segment_len_of(&self, segment: usize) -> usize {
        usize::from(self.segment_len()[segment])
    }

    /// Segments, 1 to 3.
    #[inline]
    pub fn info_count(&self) -> usize {
        let [_, second, third] = self.segment_len();
        1 + usize::from(second > 0) + usize::from(third > 0)
    }

    /// Hop fields of all segments, 1 to 64.
    #[inline]
    pub fn hop_count(&self) -> usize {
        let [first, second, third] = self.segment_len().map(usize::from);
        first + second + third
    }

    /// Bytes of the whole path.
    #[inline]
    pub fn path_len(&self) -> usize {
        META_LEN + self.info_count() * INFO_LEN + self.hop_count() * HOP_LEN
    }

    /// The segment that a hop field belongs to.
    #[inline]
    pub(super) fn segment_of_hop(&self, hop: usize) -> usize {
        let [first, second, _] = self.segment_len().map(usize::from);
        usize::from(hop >= first) + usize::from(hop >= first + second)
    }

    /// One hop on, into the next segment where this one ends.
    pub(super) fn advanced(self) -> Result<Self, PathError> {
        let hop = self.hop_current() + 1;
        if hop >= self.hop_count() {
            return Err(PathError::AtEnd);
        }
        Ok(Self::new(self.segment_of_hop(hop), hop, self.segment_len()))
    }

    /// The same place on the path in the other direction.
    pub(super) fn reversed(self) -> Self {
        let (infos, hops) = (self.info_count(), self.hop_count());
        let mut segment_len = self.segment_len();
        segment_len[..infos].reverse();
        Self::new(infos - 1 - self.info_current(), hops - 1 - self.hop_current(), segment_len)
    }
}

impl fmt::Debug for PathMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathMeta")
            .field("info_current", &self.info_current())
            .field("hop_current", &self.hop_current())
            .field("segment_len", &self.segment_len())
            .finish()
    }
}

/// What the hops of a segment have in common (SCION header, "Info Field").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InfoField {
    /// The path changes segments over a peering link.
    pub peering: bool,
    /// The hop fields are in the order in which the beacon collected them.
    pub cons_dir: bool,
    /// SegID: the accumulator β that chains the MACs; routers update it.
    pub seg_id: u16,
    /// When the beacon was started, in seconds of Unix time.
    pub timestamp_s: u32,
}

impl InfoField {
    pub(super) const CONS_DIR: u8 = 1;
    pub(super) const PEERING: u8 = 2;

    #[inline]
    pub(super) fn read(bytes: [u8; INFO_LEN]) -> Self {
        let [flags, _, s0, s1, timestamp_s @ ..] = bytes;
        Self {
            peering: flags & Self::PEERING != 0,
            cons_dir: flags & Self::CONS_DIR != 0,
            seg_id: u16::from_be_bytes([s0, s1]),
            timestamp_s: u32::from_be_bytes(timestamp_s),
        }
    }

    pub(super) fn to_bytes(self) -> [u8; INFO_LEN] {
        let flags = flag(self.peering, Self::PEERING) | flag(self.cons_dir, Self::CONS_DIR);
        let [s0, s1] = self.seg_id.to_be_bytes();
        let [t0, t1, t2, t3] = self.timestamp_s.to_be_bytes();
        [flags, 0, s0, s1, t0, t1, t2, t3]
    }

    /// The other direction's bytes.
    pub(super) fn reverse_bytes(bytes: &mut [u8; INFO_LEN]) {
        bytes[0] ^= Self::CONS_DIR;
    }
}

/// One AS on a segment (SCION header, "Hop Field").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopField {
    /// The router at ConsIngress shall look at the payload.
    pub ingress_alert: bool,
    /// The router at ConsEgress shall look at the payload.
    pub egress_alert: bool,
    /// Lifetime in steps of [`EXP_TIME_UNIT`], less one.
    pub exp_time: u8,
    /// The interface where a beacon came in; zero where it started.
    pub cons_ingress: u16,
    /// The interface where it went out; zero where it ended.
    pub cons_egress: u16,
    /// The AS's own seal on the above.
    pub mac: HopMac,
}

impl HopField {
    const EGRESS_ALERT: u8 = 1;
    const INGRESS_ALERT: u8 = 2;

    /// A hop without alerts, and without a MAC yet: [`HopKey::sealed`](crate::mac::HopKey::sealed) adds it.
    pub fn unsealed(exp_time: u8, cons_ingress: u16, cons_egress: u16) -> Self {
        Self { ingress_alert: false, egress_alert: false, exp_time, cons_ingress, cons_egress, mac: [0; 6] }
    }

    #[inline]
    pub(super) fn read(bytes: [u8; HOP_LEN]) -> Self {
        let [flags, exp_time, i0, i1, e0, e1, mac @ ..] = bytes;
        Self {
            ingress_alert: flags & Self::INGRESS_ALERT != 0,
            egress_alert: flags & Self::EGRESS_ALERT != 0,
            exp_time,
            cons_ingress: u16::from_be_bytes([i0, i1]),
            cons_egress: u16::from_be_bytes([e0, e1]),
            mac,
        }
    }

    pub(super) fn to_bytes(self) -> [u8; HOP_LEN] {
        let flags = flag(self.ingress_alert, Self::INGRESS_ALERT) | flag(self.egress_alert, Self::EGRESS_ALERT);
        let [i0, i1] = self.cons_ingress.to_be_bytes();
        let [e0, e1] = self.cons_egress.to_be_bytes();
        let [m0, m1, m2, m3, m4, m5] = self.mac;
        [flags, self.exp_time, i0, i1, e0, e1, m0, m1, m2, m3, m4, m5]
    }

    /// The interface where a packet enters the AS, on a segment travelled in or against construction direction.
    pub fn ingress(&self, cons_dir: bool) -> u16 {
        if cons_dir { self.cons_ingress } else { self.cons_egress }
    }

    /// The interface where it leaves.
    pub fn egress(&self, cons_dir: bool) -> u16 {
        self.ingress(!cons_dir)
    }

    /// The alert for the router where a packet enters.
    pub fn alert_at_ingress(&self, cons_dir: bool) -> bool {
        if cons_dir { self.ingress_alert } else { self.egress_alert }
    }

    /// The alert for the router where it leaves.
    pub fn alert_at_egress(&self, cons_dir: bool) -> bool {
        self.alert_at_ingress(!cons_dir)
    }

    /// When the hop ends, in milliseconds of Unix time: Timestamp + (1 + ExpTime) x 24 h / 256.
    pub fn expiry_unix_ms(&self, timestamp_s: u32) -> u64 {
        u64::from(timestamp_s) * 1000 + (1 + u64::from(self.exp_time)) * EXP_TIME_UNIT.as_millis() as u64
    }

    /// The same as a time.
    pub fn expiry(&self, timestamp_s: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.expiry_unix_ms(timestamp_s))
    }
}

fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}
