use proptest::prelude::*;

use super::*;
use crate::arbitrary;

/// A hop field with these interfaces in construction direction.
fn hop(cons_ingress: u16, cons_egress: u16) -> HopField {
    HopField { mac: [1; 6], ..HopField::unsealed(63, cons_ingress, cons_egress) }
}

fn info(cons_dir: bool) -> InfoField {
    InfoField { peering: false, cons_dir, seg_id: 0x1234, timestamp_s: 1000 }
}

/// Up from a leaf over one AS to a core, across to another core, down to a leaf.
fn up_core_down() -> DataplanePath {
    DataplanePath::build(&[
        PathSegment { info: info(false), hops: &[hop(11, 0), hop(21, 22), hop(0, 31)] },
        PathSegment { info: info(false), hops: &[hop(32, 0), hop(0, 41)] },
        PathSegment { info: info(true), hops: &[hop(0, 42), hop(51, 0)] },
    ])
    .unwrap()
}

fn interfaces(path: &DataplanePath) -> Vec<u16> {
    path.view().interfaces().collect()
}

#[test]
fn bytes_are_those_of_the_specification() {
    let first = HopField { ingress_alert: true, egress_alert: false, exp_time: 0x3f, ..hop(0x0102, 0x0304) };
    let last = HopField { egress_alert: true, mac: [9, 8, 7, 6, 5, 4], ..hop(0x0506, 0) };
    let info = InfoField { peering: false, cons_dir: true, seg_id: 0xabcd, timestamp_s: 0x6000_0001 };
    let path = DataplanePath::build(&[PathSegment { info, hops: &[first, last] }]).unwrap();
    #[rustfmt::skip]
    let expected = [
        // CurrINF 0, CurrHF 0, Seg0Len 2.
        0x00, 0x00, 0x20, 0x00,
        // Flags, reserved, SegID, timestamp.
        0x01, 0x00, 0xab, 0xcd, 0x60, 0x00, 0x00, 0x01,
        // Flags, ExpTime, ConsIngress, ConsEgress, MAC.
        0x02, 0x3f, 0x01, 0x02, 0x03, 0x04, 1, 1, 1, 1, 1, 1,
        0x01, 0x3f, 0x05, 0x06, 0x00, 0x00, 9, 8, 7, 6, 5, 4,
    ];
    assert_eq!(path.as_bytes(), expected);
    let view = path.view();
    assert_eq!((view.info(0), view.info(1)), (Some(info), None));
    assert_eq!((view.hop(0), view.hop(1), view.hop(2)), (Some(first), Some(last), None));
}

#[test]
fn interfaces_come_in_travel_order() {
    assert_eq!(interfaces(&up_core_down()), [11, 22, 21, 31, 32, 41, 42, 51].map(|id| id).to_vec());
}

#[test]
fn a_shortcut_skips_the_way_to_the_core() {
    // Both segments are cut at the AS where they meet; its hop fields still name the way on to the core.
    let path = DataplanePath::build(&[
        PathSegment { info: info(false), hops: &[hop(11, 0), hop(99, 22)] },
        PathSegment { info: info(true), hops: &[hop(99, 23), hop(31, 0)] },
    ]);
    assert_eq!(interfaces(&path.unwrap()), [11, 22, 23, 31]);
}

#[test]
fn a_peering_link_is_passed_at_both_ends() {
    let peering = |cons_dir| InfoField { peering: true, ..info(cons_dir) };
    let path = DataplanePath::build(&[
        PathSegment { info: peering(false), hops: &[hop(11, 0), hop(77, 22)] },
        PathSegment { info: peering(true), hops: &[hop(88, 23), hop(31, 0)] },
    ])
    .unwrap();
    assert_eq!(interfaces(&path), [11, 22, 77, 88, 23, 31]);
    let peering_hops: Vec<_> = positions(&path).map(|path| path.view().is_peering_hop()).collect();
    assert_eq!(peering_hops, [false, true, true, false]);

    let shortest = [
        PathSegment { info: peering(false), hops: &[hop(77, 0)] },
        PathSegment { info: peering(true), hops: &[hop(88, 0)] },
    ];
    assert_eq!(interfaces(&DataplanePath::build(&shortest).unwrap()), [77, 88]);
}

/// The path at each of its hops.
fn positions(path: &DataplanePath) -> impl Iterator<Item = DataplanePath> {
    std::iter::successors(Some(path.clone()), |path| {
        let mut next = path.clone();
        next.view_mut().advance().ok().map(|()| next)
    })
}

#[test]
fn pointers_step_through_the_segments() {
    let steps: Vec<_> = positions(&up_core_down())
        .map(|path| {
            let view = path.view();
            (view.meta().info_current(), view.is_segment_change())
        })
        .collect();
    let expected = [(0, false), (0, false), (0, true), (1, false), (1, true), (2, false), (2, false)];
    assert_eq!(steps, expected);
    let mut end = positions(&up_core_down()).last().unwrap();
    let before = end.clone();
    assert!(end.view().is_last_hop());
    assert_eq!(end.view_mut().advance(), Err(PathError::AtEnd));
    assert_eq!(end, before);
}

#[test]
fn what_arrived_is_answered_from_the_start() {
    let arrived = positions(&up_core_down()).last().unwrap();
    let mut out = [0; PATH_LEN_MAX];
    let len = arrived.view().copy_reversed(&mut out).unwrap();
    let answer = StandardPath::parse(&out[..len]).unwrap();
    assert_eq!((answer.meta().info_current(), answer.meta().hop_current()), (0, 0));
    assert_eq!(answer.interfaces().collect::<Vec<_>>(), [51, 42, 41, 32, 31, 21, 22, 11]);
    assert_eq!(answer.meta().segment_len(), [2, 2, 3]);
    assert!(!answer.info(0).unwrap().cons_dir && answer.info(1).unwrap().cons_dir && answer.info(2).unwrap().cons_dir);
    assert_eq!(arrived.view().copy_reversed(&mut out[..len - 1]), Err(PathError::Truncated));
}

#[test]
fn seg_id_takes_the_current_mac() {
    let mut path = up_core_down();
    path.view_mut().advance().unwrap();
    path.view_mut().chain_seg_id();
    assert_eq!(path.view().current_info().seg_id, 0x1234 ^ 0x0101);
    assert_eq!(path.view().info(1).unwrap().seg_id, 0x1234);
}

#[test]
fn alerts_are_set_and_taken_back_in_travel_direction() {
    let mut path = up_core_down();
    // Against construction direction packets enter by ConsEgress.
    assert!(path.view_mut().set_alert(0, false));
    let hop = path.view().current_hop();
    assert!(hop.egress_alert && !hop.ingress_alert);
    assert!(hop.alert_at_ingress(false) && !hop.alert_at_egress(false));
    assert!(path.view_mut().clear_alert(0, true));
    assert!(path.view().current_hop().egress_alert);
    assert!(path.view_mut().clear_alert(0, false));
    assert_eq!(path, up_core_down());
    assert!(path.view_mut().set_alert(6, true));
    assert!(path.view().hop(6).unwrap().egress_alert);
    assert!(!path.view_mut().set_alert(7, true) && !path.view_mut().clear_alert(7, true));
}

#[test]
fn a_hop_ends_after_its_steps() {
    let hop_of = |exp_time| HopField { exp_time, ..hop(0, 0) };
    assert_eq!(hop_of(0).expiry_unix_ms(1000), 1_337_500);
    assert_eq!(hop_of(255).expiry_unix_ms(1000), (1000 + 24 * 3600) * 1000);
    assert_eq!(hop_of(255).expiry_unix_ms(u32::MAX), (u64::from(u32::MAX) + 24 * 3600) * 1000);
    let short = DataplanePath::build(&[PathSegment { info: info(true), hops: &[hop_of(9), hop_of(3)] }]).unwrap();
    assert_eq!(short.view().expiry_unix_ms(), hop_of(3).expiry_unix_ms(1000));
}

/// The meta header with these fields.
fn meta(info_current: u32, hop_current: u32, segment_len: [u32; 3]) -> [u8; 4] {
    let [first, second, third] = segment_len;
    (info_current << 30 | hop_current << 24 | first << 12 | second << 6 | third).to_be_bytes()
}

fn with_meta(meta: [u8; 4], len: usize) -> Result<(), PathError> {
    let mut bytes = vec![0; len];
    bytes[..4].copy_from_slice(&meta);
    StandardPath::parse(&bytes).map(drop)
}

#[test]
fn lengths_and_pointers_that_lie_are_refused() {
    let two = 4 + 8 + 24;
    assert_eq!(with_meta(meta(0, 0, [2, 0, 0]), two), Ok(()));
    assert_eq!(with_meta(meta(0, 0, [2, 0, 0]), two - 1), Err(PathError::Truncated));
    assert_eq!(with_meta(meta(0, 0, [2, 0, 0]), two + 1), Err(PathError::TrailingBytes));
    assert_eq!(with_meta(meta(0, 1, [2, 0, 0]), two), Ok(()));
    assert_eq!(with_meta(meta(0, 2, [2, 0, 0]), two), Err(PathError::PointerMismatch));
    assert_eq!(with_meta(meta(1, 1, [2, 0, 0]), two), Err(PathError::PointerMismatch));
    assert_eq!(with_meta(meta(3, 0, [2, 0, 0]), two), Err(PathError::PointerMismatch));
    assert_eq!(with_meta(meta(0, 0, [1, 0, 0]), 4 + 8 + 12), Err(PathError::SegmentTooShort));
    assert_eq!(with_meta(meta(0, 0, [0, 0, 0]), 4), Err(PathError::NoSegments));
    assert_eq!(with_meta(meta(0, 0, [0, 2, 0]), two), Err(PathError::SegmentGap));
    assert_eq!(with_meta(meta(0, 0, [2, 0, 2]), two + 32), Err(PathError::SegmentGap));
    let full = 4 + 24 + 64 * 12;
    assert_eq!(with_meta(meta(2, 63, [30, 30, 4]), full), Ok(()));
    assert_eq!(with_meta(meta(2, 63, [30, 30, 5]), full + 12), Err(PathError::TooManyHops));
    assert_eq!(StandardPath::parse(&[]).map(drop), Err(PathError::Truncated));
}

#[test]
fn peering_flags_must_fit_the_segments() {
    let flagged = |flags: [u8; 3], segments: [u32; 3]| {
        let infos = segments.iter().filter(|len| **len > 0).count();
        let mut bytes = vec![0; 4 + infos * 8 + segments.iter().sum::<u32>() as usize * 12];
        bytes[..4].copy_from_slice(&meta(0, 0, segments));
        (0..infos).for_each(|info| bytes[4 + 8 * info] = flags[info]);
        StandardPath::parse(&bytes).map(drop)
    };
    assert_eq!(flagged([2, 2, 0], [1, 1, 0]), Ok(()));
    assert_eq!(flagged([2, 0, 0], [2, 2, 0]), Err(PathError::PeeringMismatch));
    assert_eq!(flagged([2, 0, 0], [2, 0, 0]), Err(PathError::PeeringMismatch));
    assert_eq!(flagged([2, 2, 0], [2, 2, 2]), Err(PathError::PeeringMismatch));
    assert_eq!(flagged([2, 2, 2], [2, 2, 2]), Err(PathError::PeeringMismatch));
}

#[test]
fn only_paths_are_built() {
    let segment = |hops| PathSegment { info: info(true), hops };
    let many = vec![hop(1, 2); HOPS_MAX];
    assert_eq!(DataplanePath::build(&[]), Err(PathError::NoSegments));
    assert_eq!(DataplanePath::build(&[segment(&[])]), Err(PathError::SegmentGap));
    assert_eq!(DataplanePath::build(&[segment(&many)]), Err(PathError::TooManyHops));
    assert!(DataplanePath::build(&[segment(&many[..63])]).is_ok());
    assert!(DataplanePath::build(&[segment(&many[..62]), segment(&many[..2])]).is_ok());
    assert_eq!(DataplanePath::build(&[segment(&many[..62]), segment(&many[..3])]), Err(PathError::TooManyHops));
    assert_eq!(DataplanePath::build(&[segment(&many[..2]); 4]), Err(PathError::TooManyHops));
}

#[test]
fn a_one_hop_path_comes_back_as_a_standard_one() {
    let first = hop(0, 41);
    let mut bytes = OneHopPath::build(info(true), first);
    assert_eq!(OneHopPath::parse(&bytes).unwrap().reversed(), Err(PathError::Incomplete));
    let mut path = OneHopPathMut::parse(&mut bytes).unwrap();
    path.chain_seg_id();
    path.set_second_hop(hop(51, 0));
    assert_eq!(path.view().info().seg_id, 0x1234 ^ 0x0101);
    let mut out = [0; PATH_LEN_MAX];
    let len = PathRef::OneHop(path.view()).copy_reversed(&mut out).unwrap();
    let back = StandardPath::parse(&out[..len]).unwrap();
    assert_eq!(back.interfaces().collect::<Vec<_>>(), [51, 41]);
    assert_eq!((back.current_hop(), back.current_info().cons_dir), (hop(51, 0), false));
    assert_eq!(OneHopPath::parse(&bytes[1..]), Err(PathError::Truncated));
    assert_eq!(OneHopPath::parse(&[0; 33]), Err(PathError::TrailingBytes));
}

#[test]
fn each_error_has_its_own_counter() {
    assert_eq!(PathError::Truncated.index(), 0);
    assert_eq!(PathError::Incomplete.index(), PathError::COUNT - 1);
}

proptest! {
    #[test]
    fn reversing_twice_changes_nothing(path in arbitrary::path()) {
        prop_assert_eq!(&path.clone().reversed().reversed(), &path);
    }

    #[test]
    fn reversing_reverses_the_interfaces(path in arbitrary::path()) {
        let back = path.clone().reversed();
        let mut expected = interfaces(&path);
        expected.reverse();
        prop_assert_eq!(interfaces(&back), expected);
        prop_assert!(StandardPath::parse(back.as_bytes()).is_ok());
    }

    #[test]
    fn fingerprints_follow_the_interfaces_alone(path in arbitrary::path(), other in arbitrary::path()) {
        let mut refreshed = path.clone();
        refreshed.view_mut().chain_seg_id();
        prop_assert_eq!(refreshed.view().fingerprint(), path.view().fingerprint());
        prop_assert_eq!(interfaces(&path), interfaces(&refreshed));
        let same = interfaces(&path) == interfaces(&other);
        prop_assert_eq!(path.view().fingerprint() == other.view().fingerprint(), same);
    }

    #[test]
    fn interfaces_are_two_a_link(path in arbitrary::path()) {
        let view = path.view();
        let changes = if view.has_peering() { 0 } else { view.info_count() - 1 };
        prop_assert_eq!(view.interfaces().len(), 2 * (view.hop_count() - 1 - changes));
    }

    #[test]
    fn bytes_parse_back(path in arbitrary::path()) {
        prop_assert_eq!(DataplanePath::from_bytes(path.as_bytes().to_vec()), Ok(path));
    }

    #[test]
    fn anything_is_read_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..900), path_type in 0u8..4) {
        let parsed = PathRef::parse(path_type, &bytes).map(|path| {
            let mut out = [0; PATH_LEN_MAX];
            (path.fingerprint(), path.copy_reversed(&mut out))
        });
        if path_type == 1 && parsed.is_ok() {
            let mut path = StandardPathMut::parse(&mut bytes).unwrap();
            while path.advance().is_ok() {
                path.chain_seg_id();
            }
            path.reverse();
        }
    }
}
