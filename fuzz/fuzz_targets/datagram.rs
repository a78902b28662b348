//! Any packets at a socket of datagrams, one after the other: the quick look at one says what the full one does, wherever its
//! payload is cut in two, and the way back from whoever it is from is a path or an error.
#![no_main]

use std::net::SocketAddr;
use std::time::SystemTime;

use anabranch_paths::{ScionAddr, ScionPath};
use anabranch_scion::socket::Dropped;
use anabranch_transport::datagram::{Inbound, Meaning, Path, Table};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let isd_as = "1-ff00:0:110".parse().expect("an ISD-AS");
    let address = |host: &str| ScionAddr::new(isd_as, host.parse().expect("an address"));
    let (local, remote) = (address("10.0.0.1:443"), address("10.0.0.2:31000"));
    // The path that the samples come by.
    let path = Path::scion(local, remote, &ScionPath::inside(isd_as, 1400, SystemTime::UNIX_EPOCH)).expect("a path");
    let mut table = Table::default();
    table.add(&path).expect("there is room");
    let (mut inbound, from) = (Inbound::new(local), SocketAddr::from(([10, 0, 0, 2], 31000)));
    let mut rest = data;
    while let Some((len, tail)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes(*len)).min(tail.len());
        let (packet, tail) = tail.split_at(len);
        rest = tail;
        // Where the headers end if nothing stands between SCION's and UDP's, and where the payload is cut.
        let headers_len = packet.get(5).map_or(0, |lines| usize::from(*lines) * 4 + 8).min(packet.len());
        let (headers, payload) = packet.split_at(headers_len);
        let (head, body) = payload.split_at(payload.len() * usize::from(packet.first().copied().unwrap_or(0)) / 256);
        let quick = inbound.recall(headers, head, body, from);
        let full = inbound.take(&table, packet, from);
        assert!(quick.is_none_or(|quick| quick == full));
        match full {
            Ok(Meaning::Data { headers_len, path, .. }) => {
                assert!(headers_len <= packet.len());
                let again = inbound.recall(headers, head, body, from);
                // One with extensions between its headers is never remembered.
                assert!(path.is_none() || headers_len != headers.len() || again == Some(full));
            }
            Ok(Meaning::Event(event)) => assert!(table.get(event.path).is_some()),
            Err(reason) => assert!(Dropped::ALL.contains(&reason)),
        }
        let _ = Path::back(local, packet, from, 1400);
        // What is told of packets that mean something is enough to answer them.
        if let Ok(Meaning::Data { headers_len, .. }) = full {
            assert!(Path::back(local, &packet[..headers_len], from, 0).is_ok());
        }
    }
});
