//! A core AS 1-1 with the leaves 1-2 and 1-3, two parallel links to each.

use std::time::{Duration, SystemTime};

use anabranch_paths::{IsdAs, ScionPath};
use anabranch_scion_wire::combine::combine;
use anabranch_scion_wire::proto;
use anabranch_scion_wire::proto::daemon;
use anabranch_scion_wire::segment::{AsEntry, HopField, Segment, SegmentInfo};

pub(crate) fn isd_as(number: u64) -> IsdAs {
    IsdAs::new(1, number).unwrap()
}

/// Both segments from the core to the leaf, made at `made`; interfaces of the core are 10 and 11 times the leaf's number.
pub(crate) fn segments(leaf: u64, made: SystemTime) -> Vec<Segment> {
    let timestamp_s = made.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as u32;
    let hop = |ingress, egress| HopField { exp_time: 0, ingress, egress, mac: [7; 6] };
    let segment = |link: u16| {
        let core = AsEntry::new(isd_as(1), 1472, hop(0, (10 + link) * leaf as u16), 0);
        let end = AsEntry::new(isd_as(leaf), 1472, hop(1 + link, 0), 1400 + link);
        Segment::new(SegmentInfo { timestamp_s, id: link }, vec![core, end]).unwrap()
    };
    vec![segment(0), segment(1)]
}

/// The four paths from 1-2 to 1-3, made now.
pub(crate) fn paths() -> Vec<ScionPath> {
    let now = SystemTime::now();
    combine(isd_as(2), isd_as(3), &segments(2, now), &[], &segments(3, now))
}

/// As a daemon tells of it, to expire after `life`.
pub(crate) fn told(path: &ScionPath, life: Duration) -> daemon::Path {
    let expiry = (SystemTime::now() + life).duration_since(SystemTime::UNIX_EPOCH).unwrap();
    daemon::Path {
        raw: path.dataplane.clone(),
        interface: Some(daemon::Interface {
            address: Some(daemon::Underlay { address: "127.0.0.2:30042".to_owned() }),
        }),
        interfaces: path
            .interfaces
            .iter()
            .map(|interface| daemon::PathInterface { isd_as: interface.isd_as.to_u64(), id: interface.id.into() })
            .collect(),
        mtu: path.mtu.into(),
        expiration: Some(proto::Timestamp { seconds: expiry.as_secs() as i64, nanos: expiry.subsec_nanos() as i32 }),
        latency: vec![
            proto::Duration { seconds: 0, nanos: 5_000_000 },
            proto::Duration { seconds: -1, nanos: -1 },
            proto::Duration { seconds: 1, nanos: 0 },
        ],
        bandwidth: vec![1000, 0],
        link_type: vec![proto::LinkType::Direct.into(), 99],
        ..daemon::Path::default()
    }
}
