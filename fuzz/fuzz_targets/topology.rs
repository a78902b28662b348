//! Any text as a topology, in both formats: what is accepted hangs together, and an error names a line of the file.
#![no_main]

use std::collections::HashSet;

use anabranch_asnet::topology::{Topology, TopologyError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    for read in [Topology::from_toml, Topology::from_topo] {
        match read("file", &text) {
            Ok(topology) => check(&topology),
            Err(TopologyError { line, .. }) => assert!(line >= 1 && line <= text.split('\n').count() + 1, "{line}"),
        }
    }
});

fn check(topology: &Topology) {
    assert!(topology.ases().iter().any(|each| each.core));
    let mut addresses = HashSet::new();
    for each in topology.ases() {
        assert!(addresses.insert(each.control) && addresses.insert(each.daemon));
        assert!(each.routers.iter().all(|router| addresses.insert(router.internal)));
        assert!(each.interfaces.iter().all(|interface| addresses.insert(interface.local_address)));
        assert!(each.interfaces.windows(2).all(|pair| pair[0].id < pair[1].id));
        for interface in &each.interfaces {
            assert!(interface.id != 0 && interface.router < each.routers.len());
            let far = topology.interface(interface.remote).expect("the other end");
            assert_eq!((far.remote.isd_as, far.remote.id), (each.isd_as, interface.id));
            assert_eq!((far.local_address, far.link), (interface.remote_address, interface.link));
            let link = &topology.links()[interface.link];
            assert_eq!(link.ends[interface.end].id, interface.id);
            assert!(link.shapes.iter().all(|shape| shape.checked().is_ok()));
        }
    }
}
