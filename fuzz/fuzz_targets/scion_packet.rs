//! Any bytes as a SCION packet: what is read can be written and is the same packet again, whatever routers and answering
//! hosts change in place leaves it one, and a path turned round twice is itself.
#![no_main]

use anabranch_scion_wire::{
    HeaderFields, PATH_LEN_MAX, Packet, PacketMut, PathMut, PathRef, StandardPath, mac::HopKey, scmp, udp,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(packet) = Packet::parse(data) else { return };
    let header = packet.header();
    let _ = (udp::Datagram::parse(&packet), scmp::receiver_port(&packet));
    if let (Some(source), Some(destination)) = (header.source(), header.destination()) {
        rewrite(
            &packet,
            HeaderFields {
                source,
                destination,
                path: header.path(),
                flow_id: header.flow_id(),
                traffic_class: header.traffic_class(),
            },
        );
    }
    if let PathRef::Standard(path) = header.path() {
        turn_round(path);
    }
    walk(data);
});

fn rewrite(packet: &Packet<'_>, fields: HeaderFields<'_>) {
    let header = packet.header();
    let mut out = [0; 1020];
    let Ok(len) = fields.write(header.next_header(), header.payload_len(), &mut out) else {
        // A path of unknown type may have any length that ends on a line; the header it came in had room for it.
        unreachable!("a header that was read can be written");
    };
    let whole = [&out[..len], packet.payload()].concat();
    let again = Packet::parse(&whole).expect("what was written is a packet");
    assert_eq!((again.header().source(), again.header().destination()), (header.source(), header.destination()));
    assert_eq!((again.header().path(), again.payload()), (header.path(), packet.payload()));
}

fn turn_round(path: StandardPath<'_>) {
    let (mut there, mut back) = ([0; PATH_LEN_MAX], [0; PATH_LEN_MAX]);
    let len = path.copy_reversed(&mut there).expect("there is room for every path");
    let reversed = StandardPath::parse(&there[..len]).expect("a path turned round is a path");
    assert!(reversed.interfaces().rev().eq(path.interfaces()));
    reversed.copy_reversed(&mut back).expect("there is room for every path");
    let again = StandardPath::parse(&back[..len]).expect("a path turned round is a path");
    assert_eq!(again.meta(), path.meta());
    assert!(again.interfaces().eq(path.interfaces()) && again.fingerprint() == path.fingerprint());
}

/// All that the routers of the path would do to it.
fn walk(data: &[u8]) {
    let mut bytes = data.to_vec();
    let mut packet = PacketMut::parse(&mut bytes).expect("it was one before");
    let key = HopKey::new(&[0; 16]);
    match packet.path_mut() {
        PathMut::Standard(mut path) => loop {
            let (info, hop) = (path.view().current_info(), path.view().current_hop());
            key.verify(info.seg_id, info.timestamp_s, &hop);
            path.chain_seg_id();
            let current = path.view().meta().hop_current();
            path.clear_alert(current, false);
            path.clear_alert(current, true);
            if path.advance().is_err() {
                break;
            }
        },
        PathMut::OneHop(mut path) => {
            path.chain_seg_id();
            let second = path.view().first_hop();
            path.set_second_hop(second);
            let _ = path.view().reversed();
        }
        PathMut::Empty | PathMut::Other => {}
    }
    assert_eq!(Packet::parse(packet.as_bytes()), Ok(packet.view()));
}
