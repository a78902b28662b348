//! Two ASes on the loopback, with their border routers between them: for the sockets of several crates.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use anabranch_asnet::control::limits::RENEWAL_MAX;
use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_paths::{IsdAs, ScionPath};

/// Of the first AS and the second.
pub(crate) const INTERFACES: [u16; 2] = [5, 6];

pub(crate) struct Pair(pub Network);

pub(crate) fn ia(index: usize) -> IsdAs {
    ["1-ff00:0:110", "1-ff00:0:111"][index].parse().unwrap()
}

impl Pair {
    pub(crate) fn new(mtu: u16) -> Self {
        static TESTS: AtomicU32 = AtomicU32::new(0);
        // Two /24 of loopback for each test of each process.
        let (process, test) = (std::process::id() & 0x7ff, TESTS.fetch_add(1, Ordering::Relaxed));
        assert!(test < 4, "two bits of the address");
        let first = Ipv4Addr::from_bits(0x7f80_0000 | process << 11 | test << 9);
        let [parent, child] = [0, 1].map(|index| format!("{}#{}", ia(index), INTERFACES[index]));
        let text = format!(
            "network = '{first}'\n[as.'{}']\ncore = true\nmtu = {mtu}\n[as.'{}']\nmtu = {mtu}\n[[link]]\nparent = '{parent}'\n\
             child = '{child}'\nmtu = {mtu}\n",
            ia(0),
            ia(1)
        );
        Self(Network::start(Topology::from_toml("pair", &text).unwrap(), Options::default()).unwrap())
    }

    /// The address of the host in an AS.
    pub(crate) fn host(&self, index: usize) -> IpAddr {
        self.0.topology().get(ia(index)).unwrap().hosts[0].address
    }

    /// From the first AS to the second; each `version` has hop fields of its own.
    pub(crate) fn path(&self, version: u32) -> ScionPath {
        let renewed = SystemTime::now() - RENEWAL_MAX * version;
        self.0.control().paths(ia(0), ia(1), renewed).unwrap().swap_remove(0)
    }
}
