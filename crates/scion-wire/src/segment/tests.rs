use anabranch_paths::{IsdAs, LinkKind};
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::proto::control_plane as proto;

fn isd_as(number: u64) -> IsdAs {
    IsdAs::new(1, number).unwrap()
}

fn hop(ingress: u16, egress: u16) -> HopField {
    HopField { exp_time: 63, ingress, egress, mac: [1, 2, 3, 4, 5, 6] }
}

fn chain(len: usize) -> Vec<AsEntry> {
    let interface = |inside: bool, id: usize| if inside { id as u16 } else { 0 };
    let entry = |at: usize| {
        AsEntry::new(isd_as(at as u64 + 1), 1472, hop(interface(at > 0, 1), interface(at + 1 < len, 2)), 1400)
    };
    (0..len).map(entry).collect()
}

const INFO: SegmentInfo = SegmentInfo { timestamp_s: 1_750_000_000, id: 0xbeef };

#[test]
fn a_full_segment_survives_the_message() {
    let mut entries = chain(4);
    entries[1].peers = vec![PeerEntry {
        peer: isd_as(99),
        peer_interface: 5,
        peer_mtu: 1300,
        hop: HopField { ingress: 9, ..hop(9, 2) },
    }];
    let info = &mut entries[1].static_info;
    info.latency_intra.insert(1, Duration::from_micros(70));
    info.latency_inter.insert(2, Duration::from_millis(8));
    info.bandwidth_intra_kbps.insert(1, 10_000_000);
    info.bandwidth_inter_kbps.insert(2, 1_000_000);
    info.link_kinds.insert(2, LinkKind::OpenNet);
    let segment = Segment::new(INFO, entries).unwrap();
    let bytes = segment.to_proto(Segment::unsigned).encode_to_vec();
    let back = Segment::from_proto(&proto::PathSegment::decode(&bytes[..]).unwrap()).unwrap();
    assert_eq!(back, segment);
    assert_eq!(back.expiry() - Duration::from_secs(64 * 675 / 2), back.timestamp());
}

#[test]
fn signatures_cover_the_information_and_all_entries_before() {
    let segment = Segment::new(INFO, chain(3)).unwrap();
    let mut covered = Vec::new();
    segment.to_proto(|entry, body, associated| {
        covered.push(associated.len());
        assert_eq!(associated[0], &INFO.to_proto()[..]);
        let mut signed = Segment::unsigned(entry, body, associated);
        signed.signature = vec![entry.isd_as.asn() as u8];
        if let [.., before] = associated[1..] {
            assert_eq!(before, [entry.isd_as.asn() as u8 - 1]);
        }
        signed
    });
    assert_eq!(covered, [1, 3, 5]);
}

#[test]
fn lengths_are_limited() {
    assert!(Segment::new(INFO, chain(AS_ENTRIES_MAX)).is_ok());
    let too_long = Segment::new(INFO, chain(AS_ENTRIES_MAX + 1)).unwrap_err();
    assert_eq!(too_long, SegmentError::TooMany { what: "entries", count: 64, max: 63 });
    assert_eq!(Segment::new(INFO, chain(1)), Err(SegmentError::TooShort(1)));

    let peer = PeerEntry { peer: isd_as(99), peer_interface: 5, peer_mtu: 0, hop: hop(9, 2) };
    let mut entries = chain(2);
    entries[0].peers = vec![peer.clone(); PEER_ENTRIES_MAX];
    assert!(Segment::new(INFO, entries.clone()).is_ok());
    entries[0].peers.push(peer);
    assert!(matches!(Segment::new(INFO, entries), Err(SegmentError::TooMany { .. })));

    let mut entries = chain(2);
    entries[0].static_info.latency_intra = (1..=CLAIMS_MAX as u16).map(|id| (id, Duration::ZERO)).collect();
    let message = |entries: &Vec<AsEntry>| {
        Segment::from_proto(&Segment::new(INFO, entries.clone()).unwrap().to_proto(Segment::unsigned))
    };
    assert!(message(&entries).is_ok());
    entries[0].static_info.latency_intra.insert(u16::MAX, Duration::ZERO);
    assert!(matches!(message(&entries), Err(SegmentError::TooMany { .. })));
}

#[test]
fn what_is_inconsistent_is_refused() {
    let broken = |change: fn(&mut Vec<AsEntry>)| {
        let mut entries = chain(3);
        change(&mut entries);
        Segment::new(INFO, entries).unwrap_err()
    };
    assert!(matches!(broken(|e| e[0].hop.ingress = 3), SegmentError::Interface { direction: "ingress", .. }));
    assert!(matches!(broken(|e| e[1].hop.ingress = 0), SegmentError::Interface { direction: "ingress", .. }));
    assert!(matches!(broken(|e| e[1].hop.egress = 0), SegmentError::Interface { direction: "egress", .. }));
    assert!(matches!(broken(|e| e[2].hop.egress = 3), SegmentError::Interface { direction: "egress", .. }));
    assert!(matches!(broken(|e| e[2].mtu = 0), SegmentError::OutOfRange { .. }));
    assert!(matches!(broken(|e| e[2].isd_as = e[0].isd_as), SegmentError::Loop(_)));
    assert!(matches!(broken(|e| e[1].isd_as = IsdAs::default()), SegmentError::Missing { .. }));
    let peer =
        |ingress, egress| PeerEntry { peer: isd_as(9), peer_interface: 5, peer_mtu: 0, hop: hop(ingress, egress) };
    let mut entries = chain(3);
    entries[1].peers = vec![peer(7, 3)];
    assert!(matches!(Segment::new(INFO, entries.clone()), Err(SegmentError::PeerEgress { .. })));
    entries[1].peers = vec![peer(0, 2)];
    assert!(matches!(Segment::new(INFO, entries), Err(SegmentError::OutOfRange { .. })));
}

#[test]
fn numbers_out_of_range_are_named() {
    let mut body = chain(2)[0].to_proto(Some(isd_as(2)));
    body.hop_entry.as_mut().unwrap().hop_field.as_mut().unwrap().egress = 65_536;
    let error = AsEntry::from_proto(&body).unwrap_err();
    assert_eq!(error.to_string(), "1-1's entry has the egress interface 65536, out of range");
    let segment = Segment::new(INFO, chain(2)).unwrap().to_proto(Segment::unsigned);
    let mut late = segment.clone();
    late.segment_info = proto::SegmentInformation { timestamp: 1 << 32, segment_id: 0 }.encode_to_vec();
    assert!(matches!(Segment::from_proto(&late), Err(SegmentError::InfoOutOfRange { .. })));
    let mut cut = segment;
    cut.as_entries.pop();
    assert!(matches!(Segment::from_proto(&cut), Err(SegmentError::Broken { .. })));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0usize..400, with: u8) {
        if let Ok(message) = proto::PathSegment::decode(&bytes[..]) {
            let _ = Segment::from_proto(&message);
        }
        // And one byte changed in a valid one: what is read can be written and read again.
        let mut bytes = Segment::new(INFO, chain(3)).unwrap().to_proto(Segment::unsigned).encode_to_vec();
        let at = at % bytes.len();
        bytes[at] = with;
        if let Some(segment) = proto::PathSegment::decode(&bytes[..]).ok().and_then(|m| Segment::from_proto(&m).ok()) {
            prop_assert_eq!(Segment::from_proto(&segment.to_proto(Segment::unsigned)).unwrap(), segment);
        }
    }
}
