//! What a router's full look at one packet costs, without system calls: `cargo bench -p anabranch-asnet --bench forward`.
//! In a burst only the first packet gets it.

use std::hint::black_box;
use std::time::Instant;

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::router::{Forwarder, HOST_PORTS_DEFAULT, Ingress, InterfaceConfig, LinkRole, Reply, RouterConfig};
use anabranch_scion_wire::mac::{HopKey, chained};
use anabranch_scion_wire::{
    Address, DataplanePath, HeaderFields, HeaderTemplate, HopField, InfoField, PathRef, PathSegment, Ports, checksum,
};

const PACKETS: u32 = 2_000_000;
const KEY: [u8; 16] = [7; 16];
const MADE_S: u32 = 1_700_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let interface = |id, role| InterfaceConfig {
        id,
        role,
        neighbor: Default::default(),
        local: ([127, 0, 0, 1], id).into(),
        remote: ([127, 0, 0, 2], id).into(),
        shape: LinkShape::default(),
    };
    let router = Forwarder::new(&RouterConfig {
        isd_as: "1-ff00:0:110".parse()?,
        forwarding_key: KEY,
        internal: vec![([127, 0, 0, 1], 30_042).into()],
        host_ports: HOST_PORTS_DEFAULT,
        services: Vec::new(),
        interfaces: vec![interface(1, LinkRole::Parent), interface(2, LinkRole::Child)],
    });
    // Down through this AS: in at 1, out at 2, with a hop before and one behind.
    let hop = |cons_ingress, cons_egress| HopField::unsealed(255, cons_ingress, cons_egress);
    let info = InfoField { peering: false, cons_dir: true, seg_id: 1, timestamp_s: MADE_S };
    let key = HopKey::new(&KEY);
    let first = key.sealed(info.seg_id, MADE_S, hop(0, 1));
    let seg_id = chained(info.seg_id, &first.mac);
    let second = key.sealed(seg_id, MADE_S, hop(1, 2));
    let hops = [first, second, hop(1, 0)];
    let mut path = DataplanePath::build(&[PathSegment { info: InfoField { seg_id, ..info }, hops: &hops }])?;
    path.view_mut().advance()?;
    let fields = HeaderFields {
        source: Address::new("1-ff00:0:1".parse()?, std::net::IpAddr::from([127, 0, 1, 1])),
        destination: Address::new("1-ff00:0:111".parse()?, std::net::IpAddr::from([127, 0, 2, 1])),
        path: PathRef::Standard(path.view()),
        flow_id: 1,
        traffic_class: 0,
    };
    let template = HeaderTemplate::new(&fields, Ports { source: 31_000, destination: 31_000 })?;
    let payload = [0; 1200];
    let mut packet = vec![0; template.header_len() + payload.len()];
    template.write(payload.len(), checksum::sum(&payload), &mut packet)?;
    let header = packet[..template.header_len()].to_vec();

    let (mut reply, now_ms) = (Reply::default(), u64::from(MADE_S) * 1000);
    let start = Instant::now();
    for _ in 0..PACKETS {
        packet[..header.len()].copy_from_slice(&header);
        black_box(router.process(black_box(&mut packet), Ingress::Interface(1), now_ms, &mut reply));
    }
    println!("a packet forwarded, in full: {:.0} ns", start.elapsed().as_secs_f64() * 1e9 / f64::from(PACKETS));
    println!("{:?}", router.process(&mut [&header[..], &payload].concat(), Ingress::Interface(1), now_ms, &mut reply));
    Ok(())
}
