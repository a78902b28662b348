//! Any packets at a SCION socket, one after the other: each either brings data or moves exactly one counter or event, and one
//! that comes again means what it meant before.
#![no_main]

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{ScionAddr, ScionPath};
use anabranch_scion::socket::{Core, Inbox};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let isd_as = "1-ff00:0:110".parse().expect("an ISD-AS");
    let address = |host: &str| ScionAddr::new(isd_as, host.parse().expect("an address"));
    let mut now = Instant::now();
    let core = Core::new(address("10.0.0.1:443"), now);
    // The route that the samples' errors are about.
    let path = ScionPath::inside(isd_as, 1400, SystemTime::UNIX_EPOCH);
    core.register(address("10.0.0.2:31000"), &path, now).expect("a route");
    let (mut inbox, from) = (Inbox::default(), SocketAddr::from(([10, 0, 0, 2], 31000)));
    let mut rest = data;
    while let Some((len, tail)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes(*len)).min(tail.len());
        let (packet, tail) = tail.split_at(len);
        rest = tail;
        let mut payload = vec![0; packet.len()];
        let mut take = |now| {
            let before = core.counters();
            let data = core.inbound(&mut inbox, packet, from, now);
            let meaning = data.map(|data| (data.route, data.ecn, data.copy_to(&mut payload), data.len()));
            let after = core.counters();
            let counted =
                after.dropped.total() + after.echoes_answered - before.dropped.total() - before.echoes_answered
                    + u64::from(core.take_event().is_some());
            assert_eq!(counted, u64::from(meaning.is_none()));
            meaning
        };
        let first = take(now);
        now += Duration::from_millis(1);
        assert_eq!(take(now), first);
    }
});
