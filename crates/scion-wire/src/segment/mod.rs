//! Path segments, checked: what beaconing made of the network, one entry for each AS, in the direction of beaconing.
//!
//! A [`Segment`] can only be had complete and consistent: every entry names the next, the first has no ingress interface and
//! the last no egress interface, peering hop fields leave where the hop field leaves. Signatures are not looked at here: an
//! end host gets its segments from the control service of its own AS, which has verified them; whoever passes segments on
//! keeps the message as it came.
//!
//! ```
//! use anabranch_scion_wire::segment::{AsEntry, HopField, Segment, SegmentInfo};
//!
//! let hop = |ingress, egress| HopField { exp_time: 63, ingress, egress, mac: [0; 6] };
//! let core = AsEntry::new("1-ff00:0:110".parse()?, 1472, hop(0, 1), 0);
//! let leaf = AsEntry::new("1-ff00:0:111".parse()?, 1472, hop(41, 0), 1472);
//! let segment = Segment::new(SegmentInfo { timestamp_s: 1_750_000_000, id: 7 }, vec![core, leaf])?;
//! assert_eq!(Segment::from_proto(&segment.to_proto(Segment::unsigned))?, segment);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod convert;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anabranch_paths::{IsdAs, LinkKind};

use crate::{EXP_TIME_UNIT, HopMac};

const MAC_LEN: usize = size_of::<HopMac>();

/// Entries of one segment: a packet counts the hops of a segment in six bits.
pub const AS_ENTRIES_MAX: usize = 63;
/// Peering entries of one AS in one segment. The busiest Internet exchanges join about a thousand networks.
pub const PEER_ENTRIES_MAX: usize = 1024;
/// Interfaces that one AS makes claims about, each kind: as many as it can have ways into the segment.
pub const CLAIMS_MAX: usize = 2 * PEER_ENTRIES_MAX;

/// What a segment starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentInfo {
    /// Seconds since 1970, UTC; hop fields count their lifetime from here.
    pub timestamp_s: u32,
    /// Beta of the first hop field.
    pub id: u16,
}

/// The contents of a hop field, as the control plane speaks of it: without the alert bits that senders set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HopField {
    /// Lifetime in units of [`EXP_TIME_UNIT`], less one.
    pub exp_time: u8,
    /// In the direction of beaconing; 0 at the start.
    pub ingress: u16,
    /// In the direction of beaconing; 0 at the end.
    pub egress: u16,
    /// The AS's seal on this and on the hops before.
    pub mac: HopMac,
}

impl HopField {
    /// How long after its segment's timestamp it holds.
    pub fn lifetime(&self) -> Duration {
        EXP_TIME_UNIT * (u32::from(self.exp_time) + 1)
    }

    /// What the MAC adds to the beta of the next hop. // draft-dekater-scion-dataplane, "Hop Field MAC Computation"
    pub fn mac_chain(&self) -> u16 {
        u16::from_be_bytes([self.mac[0], self.mac[1]])
    }
}

impl From<HopField> for crate::HopField {
    fn from(hop: HopField) -> Self {
        Self { mac: hop.mac, ..Self::unsealed(hop.exp_time, hop.ingress, hop.egress) }
    }
}

/// The way into an AS over a peering link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerEntry {
    /// Who is at the other end of the link.
    pub peer: IsdAs,
    /// Their interface; never 0.
    pub peer_interface: u16,
    /// MTU of the link in bytes; 0 where unknown.
    pub peer_mtu: u16,
    /// From the peering interface to the egress interface of the AS's hop field.
    pub hop: HopField,
}

/// What an AS claims about its links and insides, by interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticInfo {
    /// From the interface to the entry's egress interface, inside the AS.
    pub latency_intra: BTreeMap<u16, Duration>,
    /// Over the interface's link to the next AS.
    pub latency_inter: BTreeMap<u16, Duration>,
    /// From the interface to the entry's egress interface, in kbit/s.
    pub bandwidth_intra_kbps: BTreeMap<u16, u64>,
    /// Over the interface's link to the next AS, in kbit/s.
    pub bandwidth_inter_kbps: BTreeMap<u16, u64>,
    /// What the interface's link is.
    pub link_kinds: BTreeMap<u16, LinkKind>,
}

/// What one AS added to a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsEntry {
    /// The AS.
    pub isd_as: IsdAs,
    /// Largest SCION packet inside it, in bytes; never 0.
    pub mtu: u16,
    /// The way through it along the segment.
    pub hop: HopField,
    /// MTU of the link that the segment came in by, in bytes; 0 where unknown.
    pub ingress_mtu: u16,
    /// Ways into it over peering links.
    pub peers: Vec<PeerEntry>,
    /// Its claims.
    pub static_info: StaticInfo,
}

impl AsEntry {
    /// An entry without peering links or claims.
    pub fn new(isd_as: IsdAs, mtu: u16, hop: HopField, ingress_mtu: u16) -> Self {
        Self { isd_as, mtu, hop, ingress_mtu, peers: Vec::new(), static_info: StaticInfo::default() }
    }
}

/// A complete, consistent segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    info: SegmentInfo,
    entries: Vec<AsEntry>,
}

/// Why a message is no segment. To blame is whoever made the segment, or passed it on damaged: leave it out and use the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// No protocol buffer of this kind.
    #[error("the segment's {part} cannot be decoded")]
    Undecodable {
        /// What part.
        part: &'static str,
    },
    /// A part without which a segment means nothing.
    #[error("{isd_as}'s entry lacks its {part}")]
    Missing {
        /// Whose entry (0-0 where that is what is missing).
        isd_as: IsdAs,
        /// What part.
        part: &'static str,
    },
    /// A number that its field in a packet cannot hold.
    #[error("{isd_as}'s entry has the {field} {value}, out of range")]
    OutOfRange {
        /// Whose entry.
        isd_as: IsdAs,
        /// Which number.
        field: &'static str,
        /// What it is.
        value: u64,
    },
    /// The segment's own numbers are out of range.
    #[error("the segment has the {field} {value}, out of range")]
    InfoOutOfRange {
        /// Which number.
        field: &'static str,
        /// What it is.
        value: i64,
    },
    /// A MAC that is not six bytes long.
    #[error("{isd_as}'s entry has a MAC of {len} bytes instead of {MAC_LEN}")]
    MacLength {
        /// Whose entry.
        isd_as: IsdAs,
        /// Its length.
        len: usize,
    },
    /// More of something than the limit.
    #[error("the segment has {count} {what}, above the limit of {max}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// No entry, or one only: it leads nowhere.
    #[error("the segment has {0} entries: it leads nowhere")]
    TooShort(usize),
    /// An entry that does not name the one behind it.
    #[error("{isd_as}'s entry names {named} as the next AS, but {next} is next")]
    Broken {
        /// Whose entry.
        isd_as: IsdAs,
        /// What it names.
        named: IsdAs,
        /// What follows; 0-0 at the end.
        next: IsdAs,
    },
    /// An interface of 0 inside the segment, or another at its ends.
    #[error("{isd_as}'s entry has the {direction} interface {interface} at position {position} of {len}")]
    Interface {
        /// Whose entry.
        isd_as: IsdAs,
        /// `ingress` or `egress`.
        direction: &'static str,
        /// Its number.
        interface: u16,
        /// Which entry.
        position: usize,
        /// Of how many.
        len: usize,
    },
    /// A peering hop field that does not leave where the hop field leaves.
    #[error("{isd_as}'s peering hop field leaves by {peer_egress}, its hop field by {egress}")]
    PeerEgress {
        /// Whose entry.
        isd_as: IsdAs,
        /// Of the peering hop field.
        peer_egress: u16,
        /// Of the hop field.
        egress: u16,
    },
    /// An AS that comes twice.
    #[error("{0} comes twice: the segment is a loop")]
    Loop(IsdAs),
}

impl Segment {
    /// From its parts, checked.
    pub fn new(info: SegmentInfo, entries: Vec<AsEntry>) -> Result<Self, SegmentError> {
        let len = entries.len();
        if len < 2 {
            return Err(SegmentError::TooShort(len));
        }
        limit("entries", len, AS_ENTRIES_MAX)?;
        for (position, entry) in entries.iter().enumerate() {
            check_entry(entry, position, len)?;
            if entries[..position].iter().any(|before| before.isd_as == entry.isd_as) {
                return Err(SegmentError::Loop(entry.isd_as));
            }
        }
        Ok(Self { info, entries })
    }

    /// What it starts with.
    pub fn info(&self) -> SegmentInfo {
        self.info
    }

    /// In the direction of beaconing, at least two.
    pub fn entries(&self) -> &[AsEntry] {
        &self.entries
    }

    /// The AS that started it: a core AS.
    pub fn first(&self) -> IsdAs {
        self.entries[0].isd_as
    }

    /// The AS that it leads to.
    pub fn last(&self) -> IsdAs {
        self.entries[self.entries.len() - 1].isd_as
    }

    /// When it was started.
    pub fn timestamp(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.info.timestamp_s.into())
    }

    /// When the first of its hop fields (peering ones left out) ends.
    pub fn expiry(&self) -> SystemTime {
        let lifetime = self.entries.iter().map(|entry| entry.hop.lifetime()).min();
        self.timestamp() + lifetime.unwrap_or_default()
    }

    /// Beta of the hop field at `position`: what the packet's SegID is when that hop is checked in the direction of beaconing.
    /// Position `entries().len()` is what lies behind the last. // draft-dekater-scion-dataplane, "Hop Field MAC Computation"
    pub fn beta(&self, position: usize) -> u16 {
        self.entries.iter().take(position).fold(self.info.id, |beta, entry| beta ^ entry.hop.mac_chain())
    }
}

fn limit(what: &'static str, count: usize, max: usize) -> Result<(), SegmentError> {
    if count > max { Err(SegmentError::TooMany { what, count, max }) } else { Ok(()) }
}

fn check_entry(entry: &AsEntry, position: usize, len: usize) -> Result<(), SegmentError> {
    let isd_as = entry.isd_as;
    if isd_as.isd() == 0 || isd_as.asn() == 0 {
        return Err(SegmentError::Missing { isd_as, part: "ISD-AS number" });
    }
    if entry.mtu == 0 {
        return Err(SegmentError::OutOfRange { isd_as, field: "MTU", value: 0 });
    }
    // Zero at the two ends of the segment and nowhere else.
    let HopField { ingress, egress, .. } = entry.hop;
    if (ingress == 0) != (position == 0) {
        return Err(SegmentError::Interface { isd_as, direction: "ingress", interface: ingress, position, len });
    }
    if (egress == 0) != (position == len - 1) {
        return Err(SegmentError::Interface { isd_as, direction: "egress", interface: egress, position, len });
    }
    limit("peering entries of one AS", entry.peers.len(), PEER_ENTRIES_MAX)?;
    for peer in &entry.peers {
        if peer.hop.egress != egress {
            return Err(SegmentError::PeerEgress { isd_as, peer_egress: peer.hop.egress, egress });
        }
        if peer.hop.ingress == 0 || peer.peer_interface == 0 {
            return Err(SegmentError::OutOfRange { isd_as, field: "peering interface", value: 0 });
        }
    }
    Ok(())
}
