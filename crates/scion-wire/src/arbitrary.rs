//! Whatever may stand in a packet, for property tests.

use std::net::IpAddr;

use anabranch_paths::IsdAs;
use proptest::prelude::*;

use crate::{Address, DataplanePath, HopField, InfoField, PathSegment, Service};

pub(crate) fn hop() -> impl Strategy<Value = HopField> {
    (any::<(bool, bool, u8, u16, u16)>(), any::<[u8; 6]>()).prop_map(|(fields, mac)| {
        let (ingress_alert, egress_alert, exp_time, cons_ingress, cons_egress) = fields;
        HopField { ingress_alert, egress_alert, exp_time, cons_ingress, cons_egress, mac }
    })
}

fn info(peering: bool) -> impl Strategy<Value = InfoField> {
    any::<(bool, u16, u32)>().prop_map(move |(cons_dir, seg_id, timestamp_s)| InfoField {
        peering,
        cons_dir,
        seg_id,
        timestamp_s,
    })
}

fn segments(
    peering: bool,
    count: std::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = Vec<(InfoField, Vec<HopField>)>> {
    let hops = proptest::collection::vec(hop(), if peering { 1..=12 } else { 2..=12 });
    proptest::collection::vec((info(peering), hops), count)
}

/// A path, and how many hops of it the packet has made.
pub(crate) fn path() -> impl Strategy<Value = DataplanePath> {
    (prop_oneof![segments(false, 1..=3), segments(true, 2..=2)], any::<prop::sample::Index>()).prop_map(
        |(segments, hops_made)| {
            let segments: Vec<_> = segments.iter().map(|(info, hops)| PathSegment { info: *info, hops }).collect();
            let mut path = DataplanePath::build(&segments).unwrap();
            for _ in 0..hops_made.index(path.view().hop_count()) {
                path.view_mut().advance().unwrap();
            }
            path
        },
    )
}

pub(crate) fn address() -> impl Strategy<Value = Address> {
    let ip = any::<(u64, IpAddr)>().prop_map(|(isd_as, ip)| Address::new(IsdAs::from_u64(isd_as), ip));
    let service = any::<(u64, u16)>().prop_map(|(isd_as, id)| Address::new(IsdAs::from_u64(isd_as), Service(id)));
    prop_oneof![3 => ip, 1 => service]
}
