//! Several paths: over a SCION network of this process, and over several of the loopback's addresses.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anabranch_asnet::network::{Network, Options as NetworkOptions};
use anabranch_asnet::topology::Topology;
use anabranch_paths::{Endpoint, IsdAs, Path, PathFilter, ScionAddr};
use anabranch_scion::lookup::{Daemon, PathLookup, Source};
use anabranch_swarm::ScionConfig;
use anabranch_swarm::bulk::{self, Dial, Event, Options, PeerKey, Peers};
use anabranch_transport::{Congestion, Identity, QuicBudget};

use crate::support::*;

const SECRET: [u8; 12] = [3; 12];
const WAYS: u16 = 3;

/// Two ASes with several links between them.
struct Net(Network);

fn ia(index: usize) -> IsdAs {
    ["1-ff00:0:110", "1-ff00:0:111"][index].parse().unwrap()
}

impl Net {
    fn new() -> Self {
        static TESTS: AtomicU32 = AtomicU32::new(0);
        // Two /24 of loopback for each test of each process.
        let (process, test) = (std::process::id() & 0x3ff, TESTS.fetch_add(1, Ordering::Relaxed));
        assert!(test < 8, "three bits of the address");
        let first = Ipv4Addr::from_bits(0x7f80_0000 | process << 12 | test << 9);
        let mut text = format!("network = '{first}'\n[as.'{}']\ncore = true\n[as.'{}']\n", ia(0), ia(1));
        for way in 1..=WAYS {
            text += &format!("[[link]]\nparent = '{}#{way}'\nchild = '{}#{}'\n", ia(0), ia(1), way + 10);
        }
        Self(Network::start(Topology::from_toml("net", &text).unwrap(), NetworkOptions::default()).unwrap())
    }

    async fn end(&self, index: usize) -> Options {
        let own = self.0.topology().get(ia(index)).unwrap();
        let (host, daemon) = (own.hosts[0].address, own.daemon);
        let lookup = PathLookup::start(Source::Daemon(Daemon::new(daemon.to_string()))).await.unwrap();
        let identity = Identity::ephemeral().unwrap();
        let scion = ScionConfig {
            local: ScionAddr::new(ia(index), SocketAddr::new(host, 0)),
            lookup,
            filter: PathFilter::default(),
            policy: None,
            only: Vec::new(),
            identity: identity.clone(),
            known: None,
            allowed: None,
            congestion: Congestion::default(),
            paths_per_connection: 1,
            budget: QuicBudget::default(),
        };
        let mut options = Options::new(identity);
        (options.scion, options.paths.wished) = (Some(scion), WAYS.into());
        options
    }
}

async fn scion_address(ear: &mut Ear) -> Endpoint {
    ear.until(|event| match event {
        Event::Listening { addresses } => addresses.iter().find(|address| address.as_scion().is_some()).copied(),
        _ => None,
    })
    .await
}

/// Waits until so many paths were up.
async fn ways_up(ear: &mut Ear, count: usize) {
    let mut up = std::collections::BTreeSet::new();
    while up.len() < count {
        up.insert(
            ear.until(|event| match event {
                Event::PathUp { path, .. } => Some(*path),
                Event::Failed { error, .. } => panic!("{error}"),
                _ => None,
            })
            .await,
        );
    }
}

/// A transfer between the network's ends over so many paths, which takes three seconds. Whoever holds its handles keeps it going.
struct Transfer {
    _handles: [bulk::Handle; 2],
    sender: Ear,
    receiver: Ear,
    memory: Arc<Memory>,
    pattern: Arc<Pattern>,
}

impl Transfer {
    async fn begin(net: &Net, wished: usize, receiver_calls: bool) -> Self {
        let (memory, pattern) = (Memory::new(), Pattern::new(16 << 20, 11));
        let mut sending = Options { limit_up: Some(6_000_000), ..net.end(0).await };
        let mut receiving = net.end(1).await;
        (sending.paths.wished, receiving.paths.wished) = (wished, wished);
        let listen = Peers::Listen(by_ticket(SECRET, 1));
        let to = |address| Peers::Dial(vec![Dial { addresses: vec![address], key: None, secret: Some(SECRET) }]);
        let (handles, sender, receiver) = if receiver_calls {
            let (one, events) = bulk::send(sending, listen, pattern.clone()).unwrap();
            let mut sender = Ear::new(events);
            let address = scion_address(&mut sender).await;
            let (other, events) = bulk::receive(receiving, to(address), memory.clone()).unwrap();
            ([one, other], sender, Ear::new(events))
        } else {
            let (one, events) = bulk::receive(receiving, listen, memory.clone()).unwrap();
            let mut receiver = Ear::new(events);
            let address = scion_address(&mut receiver).await;
            let (other, events) = bulk::send(sending, to(address), pattern.clone()).unwrap();
            ([one, other], Ear::new(events), receiver)
        };
        Self { _handles: handles, sender, receiver, memory, pattern }
    }
}

#[tokio::test]
async fn every_path_of_scion_carries_and_links_may_go_down() {
    for receiver_calls in [true, false] {
        let net = Net::new();
        let transfer = Transfer::begin(&net, WAYS.into(), receiver_calls).await;
        let Transfer { mut sender, mut receiver, memory, pattern, .. } = transfer;
        ways_up(&mut sender, WAYS.into()).await;
        let link = |way: u16| net.0.find_link(&format!("{}#{way}", ia(0)), None).unwrap();
        // One after the other goes down; never all at once.
        for way in 1..=WAYS {
            net.0.set_link_up(link(way), false).unwrap();
            sender.until(|event| matches!(event, Event::PathDown { .. } | Event::Finished { .. }).then_some(())).await;
            net.0.set_link_up(link(way), true).unwrap();
            if sender.heard.last().is_some_and(|event| event.starts_with("Finished")) {
                break;
            }
        }
        if !sender.heard.last().is_some_and(|event| event.starts_with("Finished")) {
            sender.finished().await;
        }
        receiver.finished().await;
        memory.only().assert_is(&pattern);
    }
}

#[tokio::test]
async fn another_way_takes_the_only_ones_place_and_what_is_said_between_goes_with_it() {
    for receiver_calls in [true, false] {
        let net = Net::new();
        let mut transfer = Transfer::begin(&net, 1, receiver_calls).await;
        let (caller, called) = if receiver_calls {
            (&mut transfer.receiver, &mut transfer.sender)
        } else {
            (&mut transfer.sender, &mut transfer.receiver)
        };
        let way = |event: &Event| match event {
            Event::PathUp { way, .. } => way.path.as_ref().and_then(Path::as_scion).cloned(),
            _ => None,
        };
        let first = caller.until(way).await;
        // What is said before the first byte is said once the path is up; it waits for the connection's end where that is lost.
        caller
            .until(|event| match event {
                Event::Progress(progress) => (progress.done_bytes > 1 << 20).then_some(()),
                _ => None,
            })
            .await;
        let link = net.0.find_link(&first.interfaces[0].to_string(), None).unwrap();
        net.0.set_link_up(link, false).unwrap();
        let second = caller.until(way).await;
        assert_ne!(first.interfaces, second.interfaces);
        caller.finished().await;
        called.finished().await;
        transfer.memory.only().assert_is(&transfer.pattern);
        for ear in [&transfer.sender, &transfer.receiver] {
            let connections = ear.heard.iter().filter(|event| event.starts_with("PeerConnected")).count();
            assert_eq!(connections, 1, "receiver calls: {receiver_calls}; {:#?}", ear.heard);
        }
    }
}

#[tokio::test]
async fn several_addresses_are_several_paths() {
    let memory = Memory::new();
    let mut two = options();
    two.listen = Some(vec!["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()]);
    let (_r, events) = bulk::receive(two.clone(), Peers::Listen(by_ticket(SECRET, 1)), memory.clone()).unwrap();
    let mut receiver = Ear::new(events);
    let addresses = receiver
        .until(|event| match event {
            Event::Listening { addresses } => Some(addresses.clone()),
            _ => None,
        })
        .await;
    assert_eq!(addresses.len(), 2);
    let pattern = Pattern::new(6 << 20, 12);
    let to = Peers::Dial(vec![Dial { addresses, key: None, secret: Some(SECRET) }]);
    let (_s, events) =
        bulk::send(Options { identity: Identity::ephemeral().unwrap(), ..two }, to, pattern.clone()).unwrap();
    Ear::new(events).finished().await;
    receiver.finished().await;
    memory.only().assert_is(&pattern);
}

#[tokio::test]
async fn an_address_that_leads_nowhere_or_to_a_stranger_is_passed_by() {
    let net = Net::new();
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let stranger = options();
    let admission = Peers::Listen(by_ticket(SECRET, 1));
    let (_s, events) = bulk::receive(stranger, admission.clone(), Memory::new()).unwrap();
    let stranger = Ear::new(events).listening().await;
    for first in [nobody.local_addr().unwrap(), stranger] {
        let (memory, pattern) = (Memory::new(), Pattern::new(1 << 20, 13));
        let receiving = net.end(1).await;
        let key = Some(PeerKey::Whole(receiving.identity.node_id()));
        let (_r, events) = bulk::receive(receiving, admission.clone(), memory.clone()).unwrap();
        let mut receiver = Ear::new(events);
        let addresses = vec![first.into(), scion_address(&mut receiver).await];
        let to = Peers::Dial(vec![Dial { addresses, key, secret: Some(SECRET) }]);
        let (_s, events) = bulk::send(net.end(0).await, to, pattern.clone()).unwrap();
        Ear::new(events).finished().await;
        receiver.finished().await;
        memory.only().assert_is(&pattern);
    }
}
