//! Whom to ask first, where nobody is known.
//!
//! The user names nodes, and so do torrents (BEP 5, "nodes"). Nodes that anybody may ask are the last resort: only where a content finds
//! nobody in any other way, or is shared and to be found, and where this machine has an address on the Internet, or one that is
//! translated on the way there. So in a laboratory or a closed network nothing is looked up or sent abroad. A proxy is the user's word
//! that it leads there.
//!
//! Behind a proxy, names are looked up by it: a node is asked for its name by its host's name, and where the answer is from, it is.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anabranch_bittorrent::reach::Reach;
use anabranch_dht::NodeId;
use anabranch_dht::wire::{self, Ask, Body, Message, Parsed, Query};
use anabranch_paths::Endpoint;
use anabranch_transport::{Interfaces, UdpTarget, UtpEndpoint};

use crate::net::leave::Leave;
use crate::net::ports::is_translated;

/// Before nodes are asked again that led nowhere; doubles each time.
const AGAIN_FIRST: Duration = Duration::from_secs(15);
/// The longest such wait.
const AGAIN_MAX: Duration = Duration::from_secs(15 * 60);
/// How often it is looked whether the Internet is there.
const ABROAD_EVERY: Duration = Duration::from_secs(2);
/// So long it may take until somebody who is asked answers, and is joined.
const ASKING_FOR: Duration = Duration::from_secs(15);
/// One name's look-up.
const LOOKUP_MAX: Duration = Duration::from_secs(10);
/// Addresses of one name that are asked.
const ADDRESSES_MAX: usize = 8;
/// Addresses that a name behind a proxy may have: later ones may be anybody's.
const ANSWERS_BY_NAME_MAX: usize = 64;
/// Bytes of the number of such a query: nobody guesses it.
const NUMBER_LEN: usize = 8;
/// Nodes that torrents name, of all contents at once.
const NAMED_MAX: usize = 64;

/// The ways in.
pub(super) struct Entry {
    of_user: Vec<(String, u16)>,
    public: Vec<(String, u16)>,
    again: RefCell<Again>,
    public_again: RefCell<Again>,
    /// When the Internet was last looked for, for public nodes.
    looked_abroad_at: Cell<Option<Instant>>,
    /// Torrents' nodes that were asked, and are not asked twice in a row.
    named: RefCell<HashSet<(String, u16)>>,
    asking_until: Cell<Option<Instant>>,
    /// The number of the queries to names that are out, and how many may answer yet.
    by_name: Cell<Option<([u8; NUMBER_LEN], usize)>>,
}

/// Hosts that are asked now.
pub(super) struct Asked {
    pub names: Vec<(String, u16)>,
    /// Their addresses may be any; those of others must be such as a stranger may name to us.
    pub is_trusted: bool,
}

/// When to ask again.
#[derive(Default)]
struct Again {
    at: Option<Instant>,
    times: u32,
}

impl Again {
    fn is_due(&mut self, now: Instant) -> bool {
        if self.at.is_some_and(|at| now < at) {
            return false;
        }
        let wait = AGAIN_FIRST.saturating_mul(1 << self.times.min(16)).min(AGAIN_MAX);
        self.times += 1;
        self.at = Some(now + wait);
        true
    }
}

impl Entry {
    /// `of_user` are the nodes that the user named, `public` those that anybody may ask.
    pub(super) fn new(of_user: Vec<(String, u16)>, public: Vec<(String, u16)>) -> Self {
        Self {
            of_user,
            public,
            again: RefCell::default(),
            public_again: RefCell::default(),
            looked_abroad_at: Cell::new(None),
            named: RefCell::default(),
            asking_until: Cell::new(None),
            by_name: Cell::new(None),
        }
    }

    /// Whether a datagram is the answer of a node that was asked by its host's name.
    pub(super) fn is_answer_by_name(&self, datagram: &[u8]) -> bool {
        let Some((number, left @ 1..)) = self.by_name.get() else { return false };
        let is_answer = |parsed: Parsed<'_>| match parsed {
            Parsed::Message(message) => message.transaction == number && matches!(message.body, Body::Answer(_)),
            Parsed::Refused { .. } => false,
        };
        let is_ours = wire::parse(datagram, is_answer).unwrap_or(false);
        if is_ours {
            self.by_name.set(Some((number, left - 1)));
        }
        is_ours
    }

    pub(super) fn is_asking(&self, now: Instant) -> bool {
        self.asking_until.get().is_some_and(|until| now < until)
    }

    /// Whom to ask now: whom the user, a torrent (`named`) or everybody knows, as far as that is allowed and due.
    pub(super) fn whom(
        &self,
        named: &[(String, u16)],
        is_alone: bool,
        is_abroad: impl FnOnce() -> bool,
        now: Instant,
    ) -> Vec<Asked> {
        let mut asked = Vec::new();
        if !self.of_user.is_empty() && self.again.borrow_mut().is_due(now) {
            asked.push(Asked { names: self.of_user.clone(), is_trusted: true });
            self.named.borrow_mut().clear();
        }
        let fresh = |name: &&(String, u16)| {
            let mut known = self.named.borrow_mut();
            known.len() < NAMED_MAX && known.insert((*name).clone())
        };
        let names: Vec<(String, u16)> = named.iter().filter(fresh).cloned().collect();
        if !names.is_empty() {
            asked.push(Asked { names, is_trusted: false });
        }
        let looked = self.looked_abroad_at.get().is_some_and(|at| now < at + ABROAD_EVERY);
        if is_alone && !self.public.is_empty() && !looked {
            self.looked_abroad_at.set(Some(now));
            if is_abroad() && self.public_again.borrow_mut().is_due(now) {
                asked.push(Asked { names: self.public.clone(), is_trusted: true });
            }
        }
        if !asked.is_empty() {
            self.asking_until.set(Some(now + ASKING_FOR));
        }
        asked
    }

    /// The number of queries to hosts that are asked by their names: one for all of them, so that the answers of those who were asked
    /// before still count. Where the node `is_relayed`, as many may answer as ever.
    pub(super) fn number(&self, is_relayed: bool) -> [u8; NUMBER_LEN] {
        let number = self.by_name.get().map_or_else(fresh_number, |(number, _)| number);
        self.by_name.set(is_relayed.then_some((number, ANSWERS_BY_NAME_MAX)));
        number
    }
}

/// Asks a node by its host's name, which the proxy looks up. What the node is called there is not ours to tell.
pub(super) fn ask_by_name(relayed: &UtpEndpoint, host: &str, port: u16, number: [u8; NUMBER_LEN]) {
    let mut nobody = [0; 20];
    fastrand::Rng::new().fill(&mut nobody);
    let query = Query { id: NodeId(nobody), want: None, ask: Ask::Ping };
    let query = Message { read_only: true, ..Message::query(&number, query) };
    relayed.send_to_target(&UdpTarget::Name(host.to_owned(), port), &query.encode());
}

fn fresh_number() -> [u8; NUMBER_LEN] {
    let mut number = [0; NUMBER_LEN];
    fastrand::Rng::new().fill(&mut number);
    number
}

/// Where a host is. A name takes a look-up, an address none.
pub(super) async fn addresses(leave: &Leave, host: &str, port: u16) -> Vec<Endpoint> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return vec![SocketAddr::new(ip, port).into()];
    }
    if let Ok(scion) = format!("[{host}]:{port}").parse::<anabranch_paths::ScionAddr>() {
        return vec![scion.into()];
    }
    let found = tokio::time::timeout(LOOKUP_MAX, leave.look_up(host, port)).await;
    let Ok(Ok(found)) = found else { return Vec::new() };
    found.into_iter().take(ADDRESSES_MAX).map(Endpoint::from).collect()
}

/// Whether the Internet is there: by an address of its own, or behind a translator of addresses, where most people are.
pub(super) fn is_abroad(interfaces: &Interfaces) -> bool {
    let usable = interfaces.list().iter().filter(|interface| interface.usable && !interface.loopback);
    let addresses: Vec<IpAddr> = usable.flat_map(|interface| &interface.addresses).map(|address| address.ip).collect();
    addresses.iter().any(|ip| is_global(*ip)) || addresses.iter().any(|ip| is_translated(*ip)) && has_default_route()
}

/// Whether the system knows where to send what is for no network of its own. A UDP socket that is connected sends nothing.
fn has_default_route() -> bool {
    // The first address of the world that is nobody's host (RFC 7526: no anycast relay is there any more).
    let nowhere = (Ipv4Addr::new(192, 88, 99, 1), 9);
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| socket.connect(nowhere)).is_ok()
}

/// Whether packets from elsewhere reach it: not the networks of examples either, which laboratories use.
fn is_global(ip: IpAddr) -> bool {
    let is_example = match ip {
        IpAddr::V4(ip) => {
            // RFC 5737.
            let networks = [Ipv4Addr::new(192, 0, 2, 0), Ipv4Addr::new(198, 51, 100, 0), Ipv4Addr::new(203, 0, 113, 0)];
            networks.iter().any(|network| ip.to_bits() >> 8 == network.to_bits() >> 8)
        }
        // RFC 3849, RFC 9637.
        IpAddr::V6(ip) => {
            let documentation = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0).to_bits();
            ip.to_bits() >> 96 == documentation >> 96 || ip.segments()[0] == 0x3fff
        }
    };
    Reach::of(ip) == Reach::World && !is_example
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laboratories_and_closed_networks_are_not_abroad() {
        for near in [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.1.1",
            "192.0.2.2",
            "198.51.100.3",
            "203.0.113.4",
            "::1",
            "fd00::2",
            "fe80::1",
            "2001:db8::1",
            "3fff::1",
        ] {
            assert!(!is_global(near.parse().unwrap()), "{near}");
        }
        for abroad in ["8.8.8.8", "2a00:1450::1"] {
            assert!(is_global(abroad.parse().unwrap()), "{abroad}");
        }
    }

    #[test]
    fn who_leads_nowhere_is_asked_less_and_less_often() {
        let (mut again, now, second) = (Again::default(), Instant::now(), Duration::from_secs(1));
        assert!(again.is_due(now) && !again.is_due(now + AGAIN_FIRST - second));
        assert!(again.is_due(now + AGAIN_FIRST));
        assert!(!again.is_due(now + 2 * AGAIN_FIRST) && again.is_due(now + 3 * AGAIN_FIRST));
        again.times = 60;
        let late = now + AGAIN_MAX;
        assert!(again.is_due(late) && !again.is_due(late + AGAIN_MAX - second) && again.is_due(late + AGAIN_MAX));
    }
}
