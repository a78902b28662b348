//! Paths for tests, written as they are printed.

use std::time::SystemTime;

use crate::{Interface, IsdAs, ScionPath};

/// The path that prints as `text`, with nothing claimed of it.
pub fn path(text: &str) -> ScionPath {
    let mut words = text.split(' ');
    let source: IsdAs = words.next().unwrap().parse().unwrap();
    let (mut destination, mut interfaces) = (source, Vec::new());
    while let Some(link) = words.next() {
        let (out, into) = link.split_once('>').unwrap();
        interfaces.push(Interface { isd_as: destination, id: out.parse().unwrap() });
        destination = words.next().unwrap().parse().unwrap();
        interfaces.push(Interface { isd_as: destination, id: into.parse().unwrap() });
    }
    let links = interfaces.len() / 2;
    ScionPath {
        source,
        destination,
        latency: vec![None; interfaces.len().saturating_sub(1)],
        bandwidth_kbps: vec![None; interfaces.len().saturating_sub(1)],
        link_kinds: vec![Default::default(); links],
        remarks: Default::default(),
        interfaces,
        mtu: 1472,
        expiry: SystemTime::UNIX_EPOCH,
        next_hop: None,
        dataplane: Vec::new(),
    }
}
