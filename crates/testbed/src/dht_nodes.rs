//! Many nodes of the distributed hash table in one process: our core, each on a socket of its own.

use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anabranch_dht::{Config, Dht, Event, Family, HomeConfig, Policy};
use anabranch_paths::Endpoint;
use tokio::net::UdpSocket;

use crate::{Error, Result};

/// Longest datagram that is read.
const DATAGRAM_MAX: usize = 2048;

/// Entries are asked so often until one has answered.
const ENTRIES_EVERY: Duration = Duration::from_secs(5);

/// Nothing is forbidden in a network that the bench made.
struct Anybody;

impl Policy for Anybody {
    fn fits(&self, _: &Endpoint, _: &Endpoint) -> bool {
        true
    }

    fn blocks(&self, _: &Endpoint) -> bool {
        false
    }
}

/// Runs a node at each of `addresses` until this process is ended; each asks `entries` first. `listening` is called once all have their
/// socket, `joined` with how many have found their nearest nodes, each time that another has.
///
/// # Errors
/// Where an address cannot be had.
pub fn run(
    addresses: &[SocketAddr],
    entries: &[SocketAddr],
    listening: impl FnOnce(),
    joined: impl Fn(usize) + 'static,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::system("a runtime for nodes"))?;
    let local = tokio::task::LocalSet::new();
    let joined = Rc::new(Joined { count: std::cell::Cell::new(0), tell: joined });
    local.block_on(&runtime, async {
        for (number, address) in (0..).zip(addresses) {
            let socket =
                UdpSocket::bind(address).await.map_err(Error::system(format!("a node's socket at {address}")))?;
            let entries = entries.iter().copied().filter(|entry| entry != address).collect();
            tokio::task::spawn_local(node(socket, *address, entries, number, Rc::clone(&joined)));
        }
        listening();
        pending().await
    })
}

struct Joined<F> {
    count: std::cell::Cell<usize>,
    tell: F,
}

async fn node(
    socket: UdpSocket,
    address: SocketAddr,
    entries: Vec<SocketAddr>,
    number: u64,
    joined: Rc<Joined<impl Fn(usize)>>,
) {
    let mut secret = [7; 16];
    secret[..8].copy_from_slice(&number.to_be_bytes());
    let config = Config { secret, seed: number, read_only: false, version: *b"AB01", policy: Box::new(Anybody) };
    let mut dht = Dht::new(config, Instant::now());
    let home = HomeConfig { family: Family::of(&address.into()), address: Some(address.into()), saved: None };
    let Some(home) = dht.add_home(home, Instant::now()) else { return };
    let mut entries_at = tokio::time::interval(ENTRIES_EVERY);
    let mut datagram = [0; DATAGRAM_MAX];
    loop {
        while let Some(transmit) = dht.poll_transmit() {
            if let Some(to) = transmit.to.as_ip() {
                // What the socket does not take is lost, as on any way.
                let _ = socket.try_send_to(&transmit.bytes, to);
            }
        }
        while let Some(event) = dht.poll_event() {
            if matches!(event, Event::Joined { .. }) {
                joined.count.set(joined.count.get() + 1);
                (joined.tell)(joined.count.get());
            }
        }
        let due = async {
            match dht.deadline() {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            received = socket.recv_from(&mut datagram) => {
                // An error is about an earlier datagram, which nobody took.
                if let Ok((len, from)) = received {
                    dht.receive(home, from.into(), &datagram[..len], Instant::now());
                }
            }
            _ = entries_at.tick(), if dht.nodes(Family::V4) == 0 => {
                entries.iter().for_each(|entry| dht.add_node((*entry).into(), Instant::now()));
            }
            () = due => dht.on_deadline(Instant::now()),
        }
    }
}
