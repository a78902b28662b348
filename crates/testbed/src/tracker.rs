//! A tracker that answers what a test tells it to: HTTP, compact, in memory, no opinions.
//!
//! Not the product's tracker: with this one a test can hand out peers that never announced, and look at who did.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::acceptor::Acceptor;
use crate::{Error, Result};

/// Longest request line: 20 escaped bytes of info-hash and peer id, and whatever clients add.
const REQUEST_LEN_MAX: u64 = 4096;
/// A client that takes longer for its request is dropped.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Between announces, seconds: short, because tests wait for it.
const INTERVAL_SECONDS: u32 = 3;
/// Peers in one answer, and remembered in all: more than any test starts.
const PEERS_MAX: usize = 1000;
/// Connections in its life: more announces than any test lasts for.
const CONNECTIONS_MAX: usize = 100_000;

#[derive(Default)]
struct State {
    fixed: BTreeSet<SocketAddrV4>,
    /// Who announced, and whether they had all of it.
    announced: BTreeMap<SocketAddrV4, bool>,
}

/// A running tracker; it stops when dropped.
pub struct Tracker {
    acceptor: Acceptor,
    state: Arc<Mutex<State>>,
}

impl Tracker {
    /// Starts on a free port of the loopback.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start() -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        // One at a time is enough for tests, and bounds the threads.
        let acceptor = Acceptor::start(CONNECTIONS_MAX, {
            let state = state.clone();
            move |stream| drop(answer(stream, &state))
        })?;
        Ok(Self { acceptor, state })
    }

    /// The announce URL.
    pub fn url(&self) -> String {
        format!("http://{}/announce", self.acceptor.address)
    }

    /// Hands out `peer` from now on, for any torrent, to everybody.
    pub fn add_peer(&self, peer: SocketAddrV4) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).fixed.insert(peer);
    }

    /// Whether `peer` announced.
    pub fn knows(&self, peer: SocketAddrV4) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).announced.contains_key(&peer)
    }

    /// Waits until `peer` announced.
    ///
    /// # Errors
    /// When it does not within `limit`.
    pub fn wait_for(&self, peer: SocketAddrV4, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !self.knows(peer) {
            if Instant::now() > deadline {
                let known = self.state.lock().unwrap_or_else(PoisonError::into_inner).announced.clone();
                let (name, waited_for) = ("tracker".into(), format!("an announce of {peer}"));
                return Err(Error::Timeout { name, waited_for, limit, log: format!("known: {known:?}") });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn answer(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_LIMIT))?;
    stream.set_write_timeout(Some(REQUEST_LIMIT))?;
    let SocketAddr::V4(from) = stream.peer_addr()? else { return Ok(()) };
    let mut line = String::new();
    let mut reader = BufReader::new((&stream).take(REQUEST_LEN_MAX));
    reader.read_line(&mut line)?;
    // The rest of the request must be read, or closing resets the connection under the answer.
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let query = line.split(' ').nth(1).and_then(|path| path.split_once('?')).map_or("", |parts| parts.1);
    let field = |name: &str| {
        query.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name)).map(|(_, value)| value)
    };
    let port: Option<u16> = field("port").and_then(|port| port.parse().ok());
    let body = match port {
        Some(port) => {
            let peer = SocketAddrV4::new(*from.ip(), port);
            announce(&mut state.lock().unwrap_or_else(PoisonError::into_inner), peer, field("left"), field("event"))
        }
        None => b"d14:failure reason7:no porte".to_vec(),
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    (&stream).write_all(head.as_bytes())?;
    (&stream).write_all(&body)
}

fn announce(state: &mut State, peer: SocketAddrV4, left: Option<&str>, event: Option<&str>) -> Vec<u8> {
    if event == Some("stopped") {
        state.announced.remove(&peer);
    } else if state.announced.len() < PEERS_MAX {
        state.announced.insert(peer, left == Some("0"));
    }
    let others = state.fixed.iter().chain(state.announced.keys()).filter(|other| **other != peer).take(PEERS_MAX);
    let mut compact = Vec::new();
    for other in others {
        // BEP 23: four bytes of address, two of port.
        compact.extend_from_slice(&other.ip().octets());
        compact.extend_from_slice(&other.port().to_be_bytes());
    }
    let complete = state.announced.values().filter(|complete| **complete).count();
    let incomplete = state.announced.len() - complete;
    let interval = INTERVAL_SECONDS;
    let mut body = format!("d8:completei{complete}e10:incompletei{incomplete}e8:intervali{interval}e").into_bytes();
    body.extend_from_slice(format!("12:min intervali{interval}e5:peers{}:", compact.len()).as_bytes());
    body.extend_from_slice(&compact);
    body.push(b'e');
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(tracker: &Tracker, query: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(tracker.acceptor.address).unwrap();
        write!(stream, "GET /announce?{query} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        let at = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        all.split_off(at + 4)
    }

    #[test]
    fn announcing_peers_hear_of_each_other_and_of_fixed_ones() {
        let tracker = Tracker::start().unwrap();
        let first = get(&tracker, "info_hash=x&port=1000&left=0");
        assert_eq!(first, b"d8:completei1e10:incompletei0e8:intervali3e12:min intervali3e5:peers0:e");
        tracker.add_peer("127.0.0.1:9".parse().unwrap());
        let second = get(&tracker, "info_hash=x&port=1001&left=5");
        assert!(second.ends_with(b"5:peers12:\x7f\0\0\x01\0\x09\x7f\0\0\x01\x03\xe8e"), "{second:?}");
        tracker.wait_for("127.0.0.1:1001".parse().unwrap(), Duration::ZERO).unwrap();
        get(&tracker, "port=1001&event=stopped");
        assert!(!tracker.knows("127.0.0.1:1001".parse().unwrap()));
        assert!(get(&tracker, "left=1").starts_with(b"d14:failure"));
    }
}
