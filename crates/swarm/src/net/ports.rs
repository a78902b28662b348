//! The ports that routers opened for us. `session/port_mapping.rs` asks them.

use std::cell::{Cell, Ref, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anabranch_bittorrent::reach::Reach;
use anabranch_portmap::{Method, Protocol};
use tokio::sync::{Notify, watch};

/// Routers that are to take back what they opened have this long; what they keep ends by itself.
const CLOSED_WITHIN: Duration = Duration::from_secs(3);

/// A port that a router opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPort {
    /// Where we listen, in the router's network.
    pub local: SocketAddr,
    /// For connections, or for datagrams.
    pub protocol: Protocol,
    /// Where the router says that it is reached.
    pub external: SocketAddr,
    /// How the router was asked.
    pub method: Method,
}

impl OpenPort {
    /// Whether all the world reaches it: else there is another router behind the router.
    pub fn is_public(&self) -> bool {
        Reach::of(self.external.ip()) == Reach::World
    }
}

/// All of them.
pub(crate) struct Ports {
    open: RefCell<Vec<OpenPort>>,
    /// Counts the changes.
    version: Cell<u64>,
    leaving: watch::Sender<bool>,
    /// Routers that are dealt with.
    routers: Cell<usize>,
    idle: Notify,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            open: RefCell::default(),
            version: Cell::new(0),
            leaving: watch::Sender::new(false),
            routers: Cell::new(0),
            idle: Notify::new(),
        }
    }
}

impl Ports {
    /// They are.
    pub(crate) fn list(&self) -> Ref<'_, [OpenPort]> {
        Ref::map(self.open.borrow(), Vec::as_slice)
    }

    /// The number of changes so far.
    pub(crate) fn version(&self) -> u64 {
        self.version.get()
    }

    /// This one is open now, or is open otherwise than before.
    pub(crate) fn opened(&self, port: OpenPort) {
        let mut open = self.open.borrow_mut();
        open.retain(|other| (other.local, other.protocol) != (port.local, port.protocol));
        open.push(port);
        self.version.set(self.version.get() + 1);
    }

    /// It is open no more. Answers whether it was.
    pub(crate) fn closed(&self, local: SocketAddr, protocol: Protocol) -> bool {
        let mut open = self.open.borrow_mut();
        let before = open.len();
        open.retain(|other| (other.local, other.protocol) != (local, protocol));
        let was_open = open.len() < before;
        self.version.set(self.version.get() + u64::from(was_open));
        was_open
    }

    /// The number that others outside reach our port `number` by, for `protocol` as far as that is known.
    pub(crate) fn outside(&self, protocol: Protocol, number: u16) -> u16 {
        let open = self.open.borrow();
        let of = |protocol| {
            let is_it = |port: &&OpenPort| port.protocol == protocol && port.local.port() == number && port.is_public();
            open.iter().find(is_it).map(|port| port.external.port())
        };
        let other = if protocol == Protocol::Tcp { Protocol::Udp } else { Protocol::Tcp };
        of(protocol).or_else(|| of(other)).unwrap_or(number)
    }

    /// Where all the world reaches us.
    pub(crate) fn reachable_at(&self) -> Vec<SocketAddr> {
        let mut at: Vec<SocketAddr> = Vec::new();
        for port in self.open.borrow().iter().filter(|port| port.is_public()) {
            if !at.contains(&port.external) {
                at.push(port.external);
            }
        }
        at
    }

    /// Tells when the session leaves.
    pub(crate) fn leaving(&self) -> watch::Receiver<bool> {
        self.leaving.subscribe()
    }

    /// A router is dealt with from now on.
    pub(crate) fn begin(&self) {
        self.routers.set(self.routers.get() + 1);
    }

    /// No more.
    pub(crate) fn end(&self) {
        self.routers.set(self.routers.get().saturating_sub(1));
        self.idle.notify_waiters();
    }

    /// The session leaves: routers take back what they opened, if that does not take long.
    pub(crate) async fn close(&self) {
        self.leaving.send_replace(true);
        let idle = async {
            loop {
                let idle = self.idle.notified();
                if self.routers.get() == 0 {
                    return;
                }
                idle.await;
            }
        };
        let _ = tokio::time::timeout(CLOSED_WITHIN, idle).await;
    }
}

/// Whether it is of those that a home's or a provider's router translates (RFC 1918, RFC 6598).
pub(crate) fn is_translated(ip: IpAddr) -> bool {
    let IpAddr::V4(ip) = ip.to_canonical() else { return false };
    let shared = Ipv4Addr::new(100, 64, 0, 0);
    ip.is_private() || ip.to_bits() >> 22 == shared.to_bits() >> 22
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(local: &str, protocol: Protocol, external: &str) -> OpenPort {
        let (local, external) = (local.parse().unwrap(), external.parse().unwrap());
        OpenPort { local, protocol, external, method: Method::Pcp }
    }

    #[test]
    fn what_the_world_reaches_is_told_and_what_another_router_has_is_not() {
        let ports = Ports::default();
        let outside = |number| (ports.outside(Protocol::Tcp, number), ports.outside(Protocol::Udp, number));
        assert_eq!(outside(6881), (6881, 6881));
        ports.opened(port("192.168.1.2:6881", Protocol::Udp, "9.9.9.1:7001"));
        ports.opened(port("192.168.1.2:6881", Protocol::Tcp, "9.9.9.1:7000"));
        ports.opened(port("10.0.0.2:6882", Protocol::Tcp, "100.64.0.9:7777"));
        assert_eq!((outside(6881), outside(6882)), ((7000, 7001), (6882, 6882)));
        assert_eq!(ports.reachable_at(), ["9.9.9.1:7001".parse().unwrap(), "9.9.9.1:7000".parse().unwrap()]);
        let before = ports.version();
        assert!(ports.closed("192.168.1.2:6881".parse().unwrap(), Protocol::Tcp));
        assert!(!ports.closed("192.168.1.2:6881".parse().unwrap(), Protocol::Tcp));
        assert_eq!((outside(6881), ports.version()), ((7001, 7001), before + 1));
    }

    #[test]
    fn homes_are_behind_translators() {
        for (home, is) in [
            ("192.168.1.2", true),
            ("10.1.2.3", true),
            ("172.31.0.1", true),
            ("100.127.255.255", true),
            ("::ffff:10.0.0.1", true),
            ("100.128.0.1", false),
            ("192.0.2.2", false),
            ("169.254.1.1", false),
            ("fd00::2", false),
        ] {
            assert_eq!(is_translated(home.parse().unwrap()), is, "{home}");
        }
    }
}
