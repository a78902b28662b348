//! One path from its pieces.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use anabranch_paths::{Interface, IsdAs, ScionPath};

use super::graph::{Kind, Piece};
use super::metadata;
use crate::segment::AsEntry;
use crate::{DataplanePath, HopField, InfoField, PathSegment};

/// The path over `pieces`, or `None` if it passes an AS twice, is too long for a packet, or does not hang together.
pub(super) fn path(source: IsdAs, destination: IsdAs, pieces: &[Piece]) -> Option<ScionPath> {
    let mut made = Made::default();
    for piece in pieces {
        made.append(piece);
    }
    if !leads(source, destination, &made.interfaces) {
        return None;
    }
    let segments: Vec<_> = made.segments.iter().map(|(info, hops)| PathSegment { info: *info, hops }).collect();
    let dataplane = DataplanePath::build(&segments).ok()?.into_bytes();
    let claims = metadata::collect(&made.interfaces, &made.entries);
    Some(ScionPath {
        source,
        destination,
        dataplane,
        interfaces: made.interfaces,
        mtu: made.mtu?,
        expiry: made.expiry?,
        latency: claims.latency,
        bandwidth_kbps: claims.bandwidth_kbps,
        link_kinds: claims.link_kinds,
        remarks: Default::default(),
        next_hop: None,
    })
}

#[derive(Default)]
struct Made<'a> {
    /// As a packet carries them.
    segments: Vec<(InfoField, Vec<HopField>)>,
    interfaces: Vec<Interface>,
    entries: Vec<&'a AsEntry>,
    mtu: Option<u16>,
    expiry: Option<SystemTime>,
}

impl<'a> Made<'a> {
    fn append(&mut self, piece: &Piece<'a>) {
        let used = &piece.segment.entries()[piece.shortcut..];
        // From the segment's end towards the core, as an up or core piece is passed; a down piece is turned round below.
        let mut hops = Vec::with_capacity(used.len());
        let mut interfaces = Vec::with_capacity(2 * used.len());
        let mut lifetime = Duration::MAX;
        for (position, entry) in used.iter().enumerate().rev() {
            let peer = piece.peer.filter(|_| position == 0).and_then(|index| entry.peers.get(index));
            let is_shortcut = position == 0 && piece.shortcut != 0;
            let hop = peer.map_or(entry.hop, |peer| peer.hop);
            if hop.egress != 0 {
                interfaces.push(Interface { isd_as: entry.isd_as, id: hop.egress });
            }
            // At a shortcut the path turns inside the AS; only over a peering link does it leave on that side.
            let enters = hop.ingress != 0 && (!is_shortcut || peer.is_some());
            if enters {
                interfaces.push(Interface { isd_as: entry.isd_as, id: hop.ingress });
                self.limit_mtu(peer.map_or(entry.ingress_mtu, |peer| peer.peer_mtu));
            }
            self.limit_mtu(entry.mtu);
            lifetime = lifetime.min(hop.lifetime());
            hops.push(hop.into());
        }
        if piece.kind == Kind::Down {
            hops.reverse();
            interfaces.reverse();
        }
        let expiry = piece.segment.timestamp() + lifetime;
        self.expiry = Some(self.expiry.map_or(expiry, |earlier| earlier.min(expiry)));
        self.interfaces.extend(interfaces);
        self.entries.extend(used);
        let info = InfoField {
            peering: piece.peer.is_some(),
            cons_dir: piece.kind == Kind::Down,
            seg_id: seg_id(piece),
            timestamp_s: piece.segment.info().timestamp_s,
        };
        self.segments.push((info, hops));
    }

    /// 0 is a link that nobody knows the MTU of.
    fn limit_mtu(&mut self, mtu: u16) {
        if mtu != 0 {
            self.mtu = Some(self.mtu.map_or(mtu, |least| least.min(mtu)));
        }
    }
}

/// The SegID that a packet starts a segment with. // draft-dekater-scion-dataplane, "Initialization at Source Endpoint"
fn seg_id(piece: &Piece) -> u16 {
    let last = piece.segment.entries().len() - 1;
    let first_used = if piece.kind == Kind::Down { piece.shortcut } else { last };
    // A peering hop field is sealed with the beta of the hop behind it, and routers leave SegID alone as they pass it.
    let at_peering = piece.peer.is_some() && first_used == piece.shortcut;
    piece.segment.beta(first_used + usize::from(at_peering))
}

/// Whether the interfaces lead from `source` to `destination`, two by two over links, and pass no AS twice.
fn leads(source: IsdAs, destination: IsdAs, interfaces: &[Interface]) -> bool {
    let ends = interfaces.first().map(|first| first.isd_as) == Some(source)
        && interfaces.last().map(|last| last.isd_as) == Some(destination);
    let inside = interfaces.get(1..).unwrap_or_default().chunks_exact(2).all(|pair| pair[0].isd_as == pair[1].isd_as);
    let mut seen: HashMap<IsdAs, usize> = HashMap::new();
    let no_loop = interfaces.iter().all(|interface| {
        let count = seen.entry(interface.isd_as).or_default();
        *count += 1;
        *count <= 2
    });
    ends && inside && no_loop && interfaces.len().is_multiple_of(2)
}
