//! Views of a path of type SCION.

use super::fields::{HOP_LEN, HopField, INFO_LEN, InfoField, META_LEN, PathMeta};
use super::{HOPS_MAX, PathError, SEGMENTS_MAX};

/// A path of type SCION, read where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandardPath<'a> {
    /// Exactly the path.
    bytes: &'a [u8],
    /// What its first four bytes say; checked.
    meta: PathMeta,
}

impl<'a> StandardPath<'a> {
    /// Checks that `bytes` are exactly one path whose pointers and flags make sense.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PathError> {
        let meta = PathMeta::read(*bytes.first_chunk().ok_or(PathError::Truncated)?);
        meta.check()?;
        let len = meta.path_len();
        if bytes.len() != len {
            return Err(if bytes.len() < len { PathError::Truncated } else { PathError::TrailingBytes });
        }
        let path = Self { bytes, meta };
        path.check_segments()?;
        Ok(path)
    }

    /// For bytes that [`StandardPath::parse`] took before and that were changed by our own hands only.
    #[inline]
    pub(crate) fn checked_before(bytes: &'a [u8]) -> Self {
        debug_assert!(Self::parse(bytes).is_ok());
        let meta = bytes.first_chunk().map_or(PathMeta::read([0; META_LEN]), |meta| PathMeta::read(*meta));
        Self { bytes, meta }
    }

    /// "A path containing a peering link contains exactly two path segments" (SCION header, "Peering Links"), and
    /// segments without one have at least two hop fields, as the reference router demands.
    #[inline]
    fn check_segments(&self) -> Result<(), PathError> {
        let infos = self.meta.info_count();
        let flagged = (0..infos).filter(|info| self.bytes[info_at(*info)] & InfoField::PEERING != 0).count();
        match flagged {
            0 if self.meta.segment_len().contains(&1) => Err(PathError::SegmentTooShort),
            0 => Ok(()),
            2 if infos == 2 => Ok(()),
            _ => Err(PathError::PeeringMismatch),
        }
    }

    /// The bytes on the wire.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The pointers and segment lengths.
    pub fn meta(&self) -> PathMeta {
        self.meta
    }

    /// Segments, 1 to 3.
    pub fn info_count(&self) -> usize {
        self.meta.info_count()
    }

    /// Hop fields, 1 to 64.
    pub fn hop_count(&self) -> usize {
        self.meta.hop_count()
    }

    /// The info field of a segment.
    pub fn info(&self, index: usize) -> Option<InfoField> {
        (index < self.info_count()).then(|| self.info_at(index))
    }

    /// A hop field, counted over all segments.
    pub fn hop(&self, index: usize) -> Option<HopField> {
        (index < self.hop_count()).then(|| self.hop_at(index))
    }

    /// The info field that CurrINF points to.
    #[inline]
    pub fn current_info(&self) -> InfoField {
        self.info_at(self.meta.info_current())
    }

    /// The hop field that CurrHF points to.
    #[inline]
    pub fn current_hop(&self) -> HopField {
        self.hop_at(self.meta.hop_current())
    }

    /// Where the current info field starts within the path: what SCMP's pointer wants.
    pub fn current_info_offset(&self) -> usize {
        info_at(self.meta.info_current())
    }

    /// Where the current hop field starts within the path.
    pub fn current_hop_offset(&self) -> usize {
        hop_at(self.info_count(), self.meta.hop_current())
    }

    /// The packet is at the path's first hop.
    pub fn is_first_hop(&self) -> bool {
        self.meta.hop_current() == 0
    }

    /// The packet is at the path's last hop.
    pub fn is_last_hop(&self) -> bool {
        self.meta.hop_current() + 1 == self.hop_count()
    }

    /// The next hop field belongs to the next segment, over a peering link or not.
    pub fn is_segment_change(&self) -> bool {
        !self.is_last_hop() && self.meta.segment_of_hop(self.meta.hop_current() + 1) != self.meta.info_current()
    }

    /// The path goes over a peering link.
    pub fn has_peering(&self) -> bool {
        self.bytes[info_at(0)] & InfoField::PEERING != 0
    }

    /// The current hop is one of the two at the ends of the peering link: its MAC chains to its parent's, and SegID
    /// stays as it is (SCION header, "Peering Links").
    pub fn is_peering_hop(&self) -> bool {
        let (first, current) = (self.meta.segment_len_of(0), self.meta.hop_current());
        self.has_peering() && (current + 1 == first || current == first)
    }

    /// The interfaces that a packet passes from the path's start to its end, two for every link, whatever segments
    /// they come from. What routes and fingerprints go by.
    pub fn interfaces(&self) -> Interfaces {
        let mut interfaces = Interfaces { ids: [0; 2 * HOPS_MAX], next: 0, end: 0 };
        self.for_each_link(|egress, ingress| {
            interfaces.ids[interfaces.end..interfaces.end + 2].copy_from_slice(&[egress, ingress]);
            interfaces.end += 2;
        });
        interfaces
    }

    /// A hash of [`StandardPath::interfaces`]: the same for every refresh of a path, whatever its MACs. Cheap, not
    /// cryptographic: whoever acts on it compares the interfaces, or trusts no more than the packet's source address.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        let mut fingerprint = Fingerprint::START;
        self.for_each_link(|egress, ingress| fingerprint.add(egress, ingress));
        fingerprint.finish()
    }

    /// When the first of its hops ends, in milliseconds of Unix time.
    pub fn expiry_unix_ms(&self) -> u64 {
        let mut expiry = u64::MAX;
        let mut hop = 0;
        for segment in 0..self.info_count() {
            let timestamp_s = self.info_at(segment).timestamp_s;
            for _ in 0..self.meta.segment_len_of(segment) {
                expiry = expiry.min(self.hop_at(hop).expiry_unix_ms(timestamp_s));
                hop += 1;
            }
        }
        expiry
    }

    /// Writes the path in the other direction, at the same place on it, and returns its length. A packet that has
    /// arrived is at its last hop, so its path reversed is at its start, ready to answer with.
    pub fn copy_reversed(&self, out: &mut [u8]) -> Result<usize, PathError> {
        let out = out.get_mut(..self.bytes.len()).ok_or(PathError::Truncated)?;
        out.copy_from_slice(self.bytes);
        StandardPathMut { meta: self.meta, bytes: out }.reverse();
        Ok(self.bytes.len())
    }

    /// Every link in travel order, as the interfaces where packets leave one AS and enter the next. Where segments
    /// meet in one AS no link is passed, except over a peering link.
    #[inline(always)]
    fn for_each_link(&self, mut link: impl FnMut(u16, u16)) {
        let id = |at: usize| u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
        let infos = self.info_count();
        let mut at = hop_at(infos, 0);
        let mut peer_egress = None;
        for segment in 0..infos {
            let cons_dir = self.bytes[info_at(segment)] & InfoField::CONS_DIR != 0;
            let (ingress_at, egress_at) = if cons_dir { (2, 4) } else { (4, 2) };
            if let Some(egress) = peer_egress {
                link(egress, id(at + ingress_at));
            }
            // Every segment has a hop: the constructor has seen to it.
            for _ in 1..self.meta.segment_len_of(segment) {
                link(id(at + egress_at), id(at + HOP_LEN + ingress_at));
                at += HOP_LEN;
            }
            peer_egress = self.has_peering().then(|| id(at + egress_at));
            at += HOP_LEN;
        }
    }

    #[inline]
    fn info_at(&self, index: usize) -> InfoField {
        InfoField::read(chunk(self.bytes, info_at(index)))
    }

    #[inline]
    fn hop_at(&self, index: usize) -> HopField {
        HopField::read(chunk(self.bytes, hop_at(self.info_count(), index)))
    }
}

/// The interfaces of a path in travel order; see [`StandardPath::interfaces`].
#[derive(Clone, Debug)]
pub struct Interfaces {
    ids: [u16; 2 * HOPS_MAX],
    next: usize,
    end: usize,
}

impl Iterator for Interfaces {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        let id = *self.ids[..self.end].get(self.next)?;
        self.next += 1;
        Some(id)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl DoubleEndedIterator for Interfaces {
    fn next_back(&mut self) -> Option<u16> {
        let id = *self.ids[self.next..self.end].last()?;
        self.end -= 1;
        Some(id)
    }
}

impl ExactSizeIterator for Interfaces {}

/// A polynomial over the links, modulo 2^64.
struct Fingerprint(u64);

impl Fingerprint {
    /// Odd, with bits all over: the golden ratio's.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    /// And those of the square root of three.
    const START: Self = Self(0xbb67_ae85_84ca_a73b);

    fn add(&mut self, egress: u16, ingress: u16) {
        let link = u64::from(egress) << 16 | u64::from(ingress);
        self.0 = self.0.wrapping_mul(Self::FACTOR).wrapping_add(link);
    }

    /// Spreads what the last links put into the low bits.
    fn finish(self) -> u64 {
        let product = u128::from(self.0) * u128::from(Self::FACTOR);
        (product as u64) ^ (product >> 64) as u64
    }
}

/// A path of type SCION, changed where it lies.
#[derive(Debug)]
pub struct StandardPathMut<'a> {
    bytes: &'a mut [u8],
    meta: PathMeta,
}

impl<'a> StandardPathMut<'a> {
    /// As [`StandardPath::parse`].
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, PathError> {
        let meta = StandardPath::parse(bytes)?.meta;
        Ok(Self { bytes, meta })
    }

    /// As [`StandardPath::checked_before`].
    #[inline]
    pub(crate) fn checked_before(bytes: &'a mut [u8]) -> Self {
        let meta = StandardPath::checked_before(bytes).meta;
        Self { bytes, meta }
    }

    /// To read.
    #[inline]
    pub fn view(&self) -> StandardPath<'_> {
        StandardPath { bytes: self.bytes, meta: self.meta }
    }

    /// Steps to the next hop, and the next segment where this one ends. At the last hop the path stays as it is.
    #[inline]
    pub fn advance(&mut self) -> Result<(), PathError> {
        self.meta = self.meta.advanced()?;
        self.write_meta();
        Ok(())
    }

    /// β of the next hop, or of this one against construction direction: the current SegID xor the first two bytes of
    /// the current hop field's MAC (SCION header, "AS Traversal Operations").
    #[inline]
    pub fn chain_seg_id(&mut self) {
        let mac_at = hop_at(self.meta.info_count(), self.meta.hop_current()) + 6;
        let seg_id_at = info_at(self.meta.info_current()) + 2;
        let mac: [u8; 2] = chunk(self.bytes, mac_at);
        self.bytes[seg_id_at] ^= mac[0];
        self.bytes[seg_id_at + 1] ^= mac[1];
    }

    /// Asks the routers of a hop, counted over all segments, to look at the payload (SCMP, "Traceroute Request"):
    /// where packets enter its AS, or where they leave. False if there is no such hop.
    pub fn set_alert(&mut self, hop_index: usize, at_egress: bool) -> bool {
        self.write_alert(hop_index, at_egress, true)
    }

    /// Takes such a request back. False if there is no such hop.
    pub fn clear_alert(&mut self, hop_index: usize, at_egress: bool) -> bool {
        self.write_alert(hop_index, at_egress, false)
    }

    fn write_alert(&mut self, hop_index: usize, at_egress: bool, alert: bool) -> bool {
        let Some(mut hop) = self.view().hop(hop_index) else { return false };
        let cons_dir = self.view().info_at(self.meta.segment_of_hop(hop_index)).cons_dir;
        *(if at_egress == cons_dir { &mut hop.egress_alert } else { &mut hop.ingress_alert }) = alert;
        self.set_hop(hop_index, hop);
        true
    }

    /// Turns the path round, at the same place on it.
    pub fn reverse(&mut self) {
        let infos = self.meta.info_count();
        let (_, fields) = self.bytes.split_at_mut(META_LEN);
        let (info_fields, hop_fields) = fields.split_at_mut(infos * INFO_LEN);
        let (info_fields, _) = info_fields.as_chunks_mut::<INFO_LEN>();
        info_fields.reverse();
        info_fields.iter_mut().for_each(InfoField::reverse_bytes);
        hop_fields.as_chunks_mut::<HOP_LEN>().0.reverse();
        self.meta = self.meta.reversed();
        self.write_meta();
    }

    fn set_hop(&mut self, index: usize, hop: HopField) {
        let at = hop_at(self.meta.info_count(), index);
        self.bytes[at..at + HOP_LEN].copy_from_slice(&hop.to_bytes());
    }

    fn write_meta(&mut self) {
        self.bytes[..META_LEN].copy_from_slice(&self.meta.to_bytes());
    }
}

/// Where an info field starts.
fn info_at(index: usize) -> usize {
    debug_assert!(index < SEGMENTS_MAX);
    META_LEN + index * INFO_LEN
}

/// Where a hop field starts.
fn hop_at(info_count: usize, index: usize) -> usize {
    META_LEN + info_count * INFO_LEN + index * HOP_LEN
}

/// `N` bytes from `at`; the views' constructors have checked that they are there.
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut chunk = [0; N];
    chunk.copy_from_slice(&bytes[at..at + N]);
    chunk
}
