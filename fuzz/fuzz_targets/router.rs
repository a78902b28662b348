//! Any bytes at a border router: it never panics, answers with packets alone, and leaves what it answers as it came.
//! The hop fields are sealed anew before, so that the search gets behind the MAC check.
#![no_main]

use std::sync::LazyLock;

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::router::{
    Forwarder, HOST_PORTS_DEFAULT, Ingress, InterfaceConfig, LinkRole, Reply, RouterConfig, Verdict,
};
use anabranch_scion_wire::{Packet, PathRef, mac::HopKey};
use libfuzzer_sys::fuzz_target;

const KEY: [u8; 16] = [7; 16];
/// Where the MAC lies in a hop field, and where SegID does in an info field.
const MAC_AT: usize = 6;
const INFO_LEN: usize = 8;
const HOP_LEN: usize = 12;

static ROUTER: LazyLock<Forwarder> = LazyLock::new(|| {
    let address = "127.0.0.1:30042".parse().expect("an address");
    let roles = [LinkRole::Core, LinkRole::Child, LinkRole::Child, LinkRole::Peer, LinkRole::Parent];
    let interface = |(id, role)| InterfaceConfig {
        id,
        role,
        neighbor: "1-ff00:0:111".parse().expect("a number"),
        local: address,
        remote: address,
        shape: LinkShape::default(),
    };
    Forwarder::new(&RouterConfig {
        isd_as: "1-ff00:0:110".parse().expect("a number"),
        forwarding_key: KEY,
        internal: vec![address],
        host_ports: HOST_PORTS_DEFAULT,
        services: Vec::new(),
        interfaces: (1..).zip(roles).map(interface).collect(),
    })
});

fuzz_target!(|data: &[u8]| {
    let Some((&from, data)) = data.split_first() else { return };
    let ingress = if from == 0 { Ingress::Internal } else { Ingress::Interface(from.into()) };
    let mut packet = data.to_vec();
    if from & 0x80 == 0 {
        seal(&mut packet);
    }
    let before = packet.clone();
    let mut reply = Reply::default();
    let verdict = ROUTER.process(&mut packet, ingress, 1_700_000_000_000, &mut reply);
    match verdict {
        Verdict::Reply(_) => {
            assert!(Packet::parse(reply.packet()).is_ok());
            assert_eq!(packet, before);
        }
        Verdict::Forward(egress) => {
            assert!((1..=5).contains(&egress) && reply.packet().is_empty());
            assert!(Packet::parse(&packet).is_ok());
        }
        _ => assert!(reply.packet().is_empty()),
    }
});

/// Gives every hop of a standard path the MAC that its segment's SegID asks for, as it stands.
fn seal(bytes: &mut [u8]) {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let PathRef::Standard(path) = packet.header().path() else { return };
    let key = HopKey::new(&KEY);
    let hops_at = packet.header().path_offset() + 4 + INFO_LEN * path.info_count();
    let mut macs = Vec::new();
    let mut segment_end = 0;
    for (segment, len) in path.meta().segment_len().into_iter().enumerate() {
        let first = segment_end;
        segment_end += usize::from(len);
        for hop in first..segment_end {
            if let (Some(info), Some(hop)) = (path.info(segment), path.hop(hop)) {
                macs.push(key.mac(info.seg_id, info.timestamp_s, &hop));
            }
        }
    }
    for (index, mac) in macs.iter().enumerate() {
        let at = hops_at + HOP_LEN * index + MAC_AT;
        bytes[at..at + mac.len()].copy_from_slice(mac);
    }
}
