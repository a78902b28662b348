//! Between checked segments and the control plane's messages.

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_paths::{IsdAs, LinkKind};
use prost::Message;

use super::{AS_ENTRIES_MAX, PEER_ENTRIES_MAX};
use super::{AsEntry, CLAIMS_MAX, HopField, PeerEntry, Segment, SegmentError, SegmentInfo, StaticInfo, limit};
use crate::proto::{LinkType, control_plane as proto, crypto};

impl Segment {
    /// From a message, checked; its signatures are not.
    pub fn from_proto(message: &proto::PathSegment) -> Result<Self, SegmentError> {
        let info = info_from(&message.segment_info)?;
        limit("entries", message.as_entries.len(), AS_ENTRIES_MAX)?;
        let bodies = message.as_entries.iter().map(body_of).collect::<Result<Vec<_>, _>>()?;
        for (position, body) in bodies.iter().enumerate() {
            let next = bodies.get(position + 1).map_or(0, |next| next.isd_as);
            if body.next_isd_as != next {
                let [isd_as, named, next] = [body.isd_as, body.next_isd_as, next].map(IsdAs::from_u64);
                return Err(SegmentError::Broken { isd_as, named, next });
            }
        }
        let entries = bodies.iter().map(AsEntry::from_proto).collect::<Result<Vec<_>, _>>()?;
        Self::new(info, entries)
    }

    /// The message; `sign` is given the encoded body of each entry and the data that its signature covers besides.
    pub fn to_proto(
        &self,
        mut sign: impl FnMut(&AsEntry, Vec<u8>, &[&[u8]]) -> crypto::SignedMessage,
    ) -> proto::PathSegment {
        let info = self.info().to_proto();
        let mut signed: Vec<crypto::SignedMessage> = Vec::with_capacity(self.entries.len());
        for (position, entry) in self.entries.iter().enumerate() {
            let next = self.entries.get(position + 1).map(|next| next.isd_as);
            let mut associated: Vec<&[u8]> = vec![&info];
            for before in &signed {
                associated.extend([&before.header_and_body[..], &before.signature[..]]);
            }
            let message = sign(entry, entry.to_proto(next).encode_to_vec(), &associated);
            signed.push(message);
        }
        let as_entries = signed.into_iter().map(|signed| proto::AsEntry { signed: Some(signed) }).collect();
        proto::PathSegment { segment_info: info, as_entries }
    }

    /// For [`to_proto`](Self::to_proto), where nobody looks at signatures: an empty one.
    pub fn unsigned(_: &AsEntry, body: Vec<u8>, _: &[&[u8]]) -> crypto::SignedMessage {
        let header_and_body = crypto::HeaderAndBody { header: Vec::new(), body }.encode_to_vec();
        crypto::SignedMessage { header_and_body, signature: Vec::new() }
    }
}

impl SegmentInfo {
    /// The encoded message, as it stands in a segment and under its signatures.
    pub fn to_proto(self) -> Vec<u8> {
        proto::SegmentInformation { timestamp: self.timestamp_s.into(), segment_id: self.id.into() }.encode_to_vec()
    }
}

impl AsEntry {
    /// From a message; its place in the segment is checked by [`Segment::new`].
    pub(super) fn from_proto(body: &proto::AsEntrySignedBody) -> Result<Self, SegmentError> {
        let isd_as = IsdAs::from_u64(body.isd_as);
        let missing = |part| SegmentError::Missing { isd_as, part };
        let hop_entry = body.hop_entry.as_ref().ok_or_else(|| missing("hop entry"))?;
        let hop = hop_entry.hop_field.as_ref().ok_or_else(|| missing("hop field"))?;
        limit("peering entries of one AS", body.peer_entries.len(), PEER_ENTRIES_MAX)?;
        let static_info = body.extensions.as_ref().and_then(|extensions| extensions.static_info.as_ref());
        Ok(Self {
            isd_as,
            mtu: sixteen(isd_as, "MTU", body.mtu.into())?,
            hop: hop_from(isd_as, hop)?,
            ingress_mtu: sixteen(isd_as, "ingress MTU", hop_entry.ingress_mtu.into())?,
            peers: body.peer_entries.iter().map(|peer| peer_from(isd_as, peer)).collect::<Result<_, _>>()?,
            static_info: static_info.map(static_info_from).transpose()?.unwrap_or_default(),
        })
    }

    /// The signed body of an entry that is followed by one of `next`.
    pub fn to_proto(&self, next: Option<IsdAs>) -> proto::AsEntrySignedBody {
        let peer_entries = self.peers.iter().map(|peer| proto::PeerEntry {
            peer_isd_as: peer.peer.to_u64(),
            peer_interface: peer.peer_interface.into(),
            peer_mtu: peer.peer_mtu.into(),
            hop_field: Some(hop_to(&peer.hop)),
        });
        let static_info = (self.static_info != StaticInfo::default()).then(|| static_info_to(&self.static_info));
        proto::AsEntrySignedBody {
            isd_as: self.isd_as.to_u64(),
            next_isd_as: next.map_or(0, IsdAs::to_u64),
            hop_entry: Some(proto::HopEntry {
                hop_field: Some(hop_to(&self.hop)),
                ingress_mtu: self.ingress_mtu.into(),
            }),
            peer_entries: peer_entries.collect(),
            mtu: self.mtu.into(),
            extensions: static_info
                .map(|static_info| proto::PathSegmentExtensions { static_info: Some(static_info), hidden_path: None }),
        }
    }
}

fn info_from(encoded: &[u8]) -> Result<SegmentInfo, SegmentError> {
    let info =
        proto::SegmentInformation::decode(encoded).map_err(|_| SegmentError::Undecodable { part: "information" })?;
    let out = |field, value| SegmentError::InfoOutOfRange { field, value };
    Ok(SegmentInfo {
        timestamp_s: info.timestamp.try_into().map_err(|_| out("timestamp", info.timestamp))?,
        id: info.segment_id.try_into().map_err(|_| out("segment id", info.segment_id.into()))?,
    })
}

fn body_of(entry: &proto::AsEntry) -> Result<proto::AsEntrySignedBody, SegmentError> {
    let undecodable = |part| move |_| SegmentError::Undecodable { part };
    let missing = SegmentError::Missing { isd_as: IsdAs::default(), part: "signed part" };
    let signed = entry.signed.as_ref().ok_or(missing)?;
    let outer = crypto::HeaderAndBody::decode(&signed.header_and_body[..]).map_err(undecodable("signed part"))?;
    proto::AsEntrySignedBody::decode(&outer.body[..]).map_err(undecodable("AS entry"))
}

fn sixteen(isd_as: IsdAs, field: &'static str, value: u64) -> Result<u16, SegmentError> {
    value.try_into().map_err(|_| SegmentError::OutOfRange { isd_as, field, value })
}

fn hop_from(isd_as: IsdAs, hop: &proto::HopField) -> Result<HopField, SegmentError> {
    let exp_time = u8::try_from(hop.exp_time);
    Ok(HopField {
        exp_time: exp_time.map_err(|_| SegmentError::OutOfRange {
            isd_as,
            field: "expiry time",
            value: hop.exp_time.into(),
        })?,
        ingress: sixteen(isd_as, "ingress interface", hop.ingress)?,
        egress: sixteen(isd_as, "egress interface", hop.egress)?,
        mac: hop.mac[..].try_into().map_err(|_| SegmentError::MacLength { isd_as, len: hop.mac.len() })?,
    })
}

fn hop_to(hop: &HopField) -> proto::HopField {
    proto::HopField {
        ingress: hop.ingress.into(),
        egress: hop.egress.into(),
        exp_time: hop.exp_time.into(),
        mac: hop.mac.to_vec(),
    }
}

fn peer_from(isd_as: IsdAs, peer: &proto::PeerEntry) -> Result<PeerEntry, SegmentError> {
    let missing = SegmentError::Missing { isd_as, part: "peering hop field" };
    Ok(PeerEntry {
        peer: IsdAs::from_u64(peer.peer_isd_as),
        peer_interface: sixteen(isd_as, "peering interface", peer.peer_interface)?,
        peer_mtu: sixteen(isd_as, "peering MTU", peer.peer_mtu.into())?,
        hop: hop_from(isd_as, peer.hop_field.as_ref().ok_or(missing)?)?,
    })
}

/// Claims help to choose; one about an interface that cannot exist is left out rather than held against the segment.
fn claims<V: Copy, T>(
    from: &BTreeMap<u64, V>,
    claim: impl Fn(V) -> Option<T>,
) -> Result<BTreeMap<u16, T>, SegmentError> {
    limit("claims of one AS", from.len(), CLAIMS_MAX)?;
    let valid = |(&interface, &value): (&u64, &V)| Some((u16::try_from(interface).ok()?, claim(value)?));
    Ok(from.iter().filter_map(valid).filter(|(interface, _)| *interface != 0).collect())
}

fn static_info_from(info: &proto::StaticInfoExtension) -> Result<StaticInfo, SegmentError> {
    let latency = |us: u32| Some(Duration::from_micros(us.into()));
    let bandwidth = |kbps: u64| (kbps != 0).then_some(kbps);
    let latencies = info.latency.clone().unwrap_or_default();
    let bandwidths = info.bandwidth.clone().unwrap_or_default();
    Ok(StaticInfo {
        latency_intra: claims(&latencies.intra, latency)?,
        latency_inter: claims(&latencies.inter, latency)?,
        bandwidth_intra_kbps: claims(&bandwidths.intra, bandwidth)?,
        bandwidth_inter_kbps: claims(&bandwidths.inter, bandwidth)?,
        link_kinds: claims(&info.link_type, link_kind_from)?,
    })
}

fn static_info_to(info: &StaticInfo) -> proto::StaticInfoExtension {
    fn spread<V, T>(from: &BTreeMap<u16, V>, value: impl Fn(&V) -> T) -> BTreeMap<u64, T> {
        from.iter().map(|(&interface, claim)| (interface.into(), value(claim))).collect()
    }
    let us = |latency: &Duration| u32::try_from(latency.as_micros()).unwrap_or(u32::MAX);
    let kbps = |bandwidth: &u64| *bandwidth;
    proto::StaticInfoExtension {
        latency: Some(proto::LatencyInfo {
            intra: spread(&info.latency_intra, us),
            inter: spread(&info.latency_inter, us),
        }),
        bandwidth: Some(proto::BandwidthInfo {
            intra: spread(&info.bandwidth_intra_kbps, kbps),
            inter: spread(&info.bandwidth_inter_kbps, kbps),
        }),
        link_type: spread(&info.link_kinds, |kind| link_kind_to(*kind)),
        ..Default::default()
    }
}

/// What the number of a [`LinkType`] says; `None` for nothing.
pub(crate) fn link_kind_from(number: i32) -> Option<LinkKind> {
    match LinkType::try_from(number).ok()? {
        LinkType::Unspecified => None,
        LinkType::Direct => Some(LinkKind::Direct),
        LinkType::MultiHop => Some(LinkKind::MultiHop),
        LinkType::OpenNet => Some(LinkKind::OpenNet),
    }
}

fn link_kind_to(kind: LinkKind) -> i32 {
    let number = match kind {
        LinkKind::Unset => LinkType::Unspecified,
        LinkKind::Direct => LinkType::Direct,
        LinkKind::MultiHop => LinkType::MultiHop,
        LinkKind::OpenNet => LinkType::OpenNet,
    };
    number.into()
}
