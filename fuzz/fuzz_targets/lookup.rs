//! Any bytes as what a daemon or a DNS server answers, and as the files that a host reads about its network.
//!
//! Input: a byte that chooses, then the message or file.
#![no_main]

use anabranch_scion::lookup::convert::paths_from;
use anabranch_scion::lookup::dns;
use anabranch_scion::lookup::names::{ADDRESSES_MAX, ScionHost, hosts_of_txt, parse_hosts};
use anabranch_scion::lookup::topology::Topology;
use anabranch_scion_wire::StandardPath;
use anabranch_scion_wire::combine::PATHS_MAX;
use anabranch_scion_wire::proto::daemon::PathsResponse;
use anabranch_scion_wire::proto::grpc::Status;
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, message)) = data.split_first() else { return };
    match choice % 5 {
        0 => paths(message),
        1 => {
            if let Ok(topology) = Topology::parse(message) {
                assert!(topology.local.mtu != 0 && !topology.control_services.is_empty());
            }
        }
        2 => {
            let query = dns::query(0x0102, "a.example");
            if let Some(dns::Answer::Texts(texts)) = dns::parse(message, &query) {
                hosts_of_txt(&texts).iter().for_each(check);
            }
        }
        3 => {
            let text = String::from_utf8_lossy(message);
            if let Ok(hosts) = parse_hosts(&text, "host") {
                assert!(hosts.len() <= ADDRESSES_MAX);
                hosts.iter().for_each(check);
            }
        }
        _ => {
            let status = Status::from_headers(b"5", Some(message));
            assert_eq!(Status::from_headers(b"5", Some(status.message_header().as_bytes())), status);
        }
    }
});

fn check(host: &ScionHost) {
    assert_eq!(host.to_string().parse().as_ref(), Ok(host));
}

fn paths(message: &[u8]) {
    let Ok(answer) = PathsResponse::decode(message) else { return };
    let source = "1-ff00:0:110".parse().expect("an ISD-AS");
    let destination = "1-ff00:0:112".parse().expect("an ISD-AS");
    let (paths, _) = paths_from(&answer, source, destination, |_| Ok(()));
    assert!(paths.len() <= PATHS_MAX);
    for path in paths {
        assert!(path.mtu != 0 && path.next_hop.is_some());
        assert!(StandardPath::parse(&path.dataplane).is_ok());
        assert!(path.remarks.geo.len() <= path.interfaces.len() && path.remarks.notes.len() <= path.hop_count());
        assert_eq!((path.latency.len() + 1, path.link_kinds.len() * 2), (path.interfaces.len(), path.interfaces.len()));
    }
}
