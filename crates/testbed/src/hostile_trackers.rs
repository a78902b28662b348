//! Trackers that mean harm or are broken, over HTTP and UDP.
//!
//! Each waits on the loopback for clients, and names peers of the loopback only: those of 127.66.0.0/16, where nobody listens,
//! and what a client must not dial at all. It stops when dropped.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::acceptor::Acceptor;
use crate::{Error, Result};

/// Connections in its life.
const CONNECTIONS_MAX: usize = 4096;
/// A socket call that takes longer looks whether to stop.
const TICK: Duration = Duration::from_millis(100);
/// Longest request that is read.
const REQUEST_LEN_MAX: usize = 16 << 10;
/// What is sent without end, at most, on one connection.
const ENDLESS_BYTES: usize = 256 << 20;
/// Just below what a client reads of an answer ...
const LARGE_LEN: usize = 500 << 10;
/// ... and far above.
const PEERS_FAR_TOO_MANY: usize = 1_000_000;
/// Where nobody listens: 127.66.0.0/16, this port.
const NOBODY_PORT: u16 = 4662;
/// Says what no terminal should be told: to clear itself, to change its title, to go back and write over what stands there.
const ESCAPES: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\r\u{9b}1A\u{202e}ok \u{8}\u{8}";
/// Datagrams that a request brings: so many at once, so often, for so long. More would be a matter of lines, and of this machine.
const UDP_FLOOD_BATCH: usize = 50;
const UDP_FLOOD_EVERY: Duration = Duration::from_millis(10);
const UDP_FLOOD_FOR: Duration = Duration::from_secs(2);

/// What an HTTP tracker does to those who ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpTrick {
    /// An answer without an end.
    Endless,
    /// An answer a byte at a time.
    Drips,
    /// A head a byte at a time.
    DripsHead,
    /// A head without an end.
    HeadFlood,
    /// "100 Continue", and again, and again.
    Continues,
    /// Chunks of one byte, without an end.
    Chunks,
    /// Closes before it has read anything.
    Closes,
    /// Never answers.
    Mute,
    /// Half an answer.
    Half,
    /// Redirects to itself.
    RedirectsRound,
    /// Redirects to other schemes, hosts of this machine, privileged ports.
    RedirectsAway,
    /// An answer in gzip, though nobody asked for that, which grows and grows.
    Gzip,
    /// A million peers.
    PeersFarTooMany,
    /// As many peers as fit.
    Peers,
    /// Peers as dictionaries, with names, negative and absurd ports.
    PeersByName,
    /// Peers that must not be dialled: the client itself, privileged ports, nobody's addresses.
    PeersOdd,
    /// To be asked again at once, ...
    IntervalZero,
    /// ... before it was asked, ...
    IntervalNegative,
    /// ... after the end of time.
    IntervalHuge,
    /// Lists in lists.
    Nested,
    /// A string of more bytes than there are in the world.
    StringLies,
    /// A failure of half a megabyte that speaks to terminals.
    Fails,
    /// The same of one megabyte, more than is read.
    FailsLong,
    /// A warning likewise.
    Warns,
    /// Another protocol.
    Garbage,
    /// Numbers of other contents: a scrape's answer.
    Others,
}

impl HttpTrick {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::Endless,
        Self::Drips,
        Self::DripsHead,
        Self::HeadFlood,
        Self::Continues,
        Self::Chunks,
        Self::Closes,
        Self::Mute,
        Self::Half,
        Self::RedirectsRound,
        Self::RedirectsAway,
        Self::Gzip,
        Self::PeersFarTooMany,
        Self::Peers,
        Self::PeersByName,
        Self::PeersOdd,
        Self::IntervalZero,
        Self::IntervalNegative,
        Self::IntervalHuge,
        Self::Nested,
        Self::StringLies,
        Self::Fails,
        Self::FailsLong,
        Self::Warns,
        Self::Garbage,
        Self::Others,
    ];

    /// The body of its answer, where that has a body and an end; `asker` is the client's own peer address.
    fn body(self, asker: SocketAddr) -> Option<Vec<u8>> {
        let peers = |count| answer("i1800e", &nobodies(count));
        let fails = |len: usize| {
            let reason = ESCAPES.repeat(len / ESCAPES.len());
            format!("d14:failure reason{}:{reason}e", reason.len()).into_bytes()
        };
        Some(match self {
            Self::PeersFarTooMany => peers(PEERS_FAR_TOO_MANY),
            Self::Peers => peers(LARGE_LEN / 6),
            Self::PeersByName => {
                let peer = "d2:ip9:localhost7:peer id20:aaaaaaaaaaaaaaaaaaaa4:porti22ee\
                    d2:ip9:127.0.0.14:porti-1eed2:ip3:::14:porti99999999999999999999ee";
                format!("d8:intervali1800e5:peersl{}ee", peer.repeat(LARGE_LEN / peer.len())).into_bytes()
            }
            Self::PeersOdd => answer("i5e", &odd_peers(asker)),
            Self::IntervalZero => answer("i0e", &nobodies(1)),
            Self::IntervalNegative => answer("i-1e", &nobodies(1)),
            Self::IntervalHuge => answer("i9223372036854775807e", &nobodies(1)),
            Self::Nested => [b"d8:intervali5e1:x".as_slice(), &vec![b'l'; LARGE_LEN]].concat(),
            Self::StringLies => b"d8:intervali5e5:peers99999999999999999999:abcdef".to_vec(),
            Self::Fails => fails(LARGE_LEN),
            Self::FailsLong => fails(1 << 20),
            Self::Warns => {
                let text = ESCAPES.repeat(LARGE_LEN / 2 / ESCAPES.len());
                format!("d8:intervali5e5:peers0:15:warning message{}:{text}e", text.len()).into_bytes()
            }
            Self::Others => b"d5:filesd20:aaaaaaaaaaaaaaaaaaaad8:completei9eeee".to_vec(),
            _ => return None,
        })
    }
}

/// What a UDP tracker does to those who ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpTrick {
    /// Never answers.
    Mute,
    /// Answers for somebody else's transaction.
    OtherTransaction,
    /// Answers with another action.
    OtherAction,
    /// Answers that end too soon.
    Short,
    /// Answers as long as a datagram can be, with peers.
    Peers,
    /// Peers that must not be dialled.
    PeersOdd,
    /// To be asked again at once.
    IntervalZero,
    /// To be asked again before it was asked.
    IntervalNegative,
    /// Errors that speak to terminals.
    Fails,
    /// No connection id is ever right.
    Forgets,
    /// Any number of answers to one question.
    Floods,
}

impl UdpTrick {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Mute,
        Self::OtherTransaction,
        Self::OtherAction,
        Self::Short,
        Self::Peers,
        Self::PeersOdd,
        Self::IntervalZero,
        Self::IntervalNegative,
        Self::Fails,
        Self::Forgets,
        Self::Floods,
    ];
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    requests: AtomicU64,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A running tracker.
pub struct HostileTracker {
    /// Where to announce.
    pub url: String,
    shared: Arc<Shared>,
    _acceptor: Option<Acceptor>,
}

impl HostileTracker {
    /// One over HTTP.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn http(trick: HttpTrick) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let acceptor = Acceptor::start(CONNECTIONS_MAX, {
            let shared = Arc::clone(&shared);
            move |stream| {
                let number = shared.requests.fetch_add(1, Ordering::Relaxed);
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || drop(serve(&stream, trick, number, &shared)));
            }
        })?;
        let url = format!("http://{}/announce", acceptor.address);
        Ok(Self { url, shared, _acceptor: Some(acceptor) })
    }

    /// One over UDP.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn udp(trick: UdpTrick) -> Result<Self> {
        let bound = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.set_read_timeout(Some(TICK))?;
            let address = socket.local_addr()?;
            Ok((socket, address))
        };
        let (socket, address) = bound().map_err(Error::system("a UDP tracker"))?;
        let url = format!("udp://{address}");
        let shared = Arc::new(Shared::default());
        std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || serve_udp(&socket, trick, &shared)
        });
        Ok(Self { url, shared, _acceptor: None })
    }

    /// How often it was asked.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }
}

impl Drop for HostileTracker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

fn answer(interval: &str, peers: &[u8]) -> Vec<u8> {
    [format!("d8:interval{interval}5:peers{}:", peers.len()).as_bytes(), peers, b"e"].concat()
}

/// Compact addresses where nobody listens.
fn nobodies(count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::new();
    let [high, low] = NOBODY_PORT.to_be_bytes();
    (0..count).flat_map(|_| [127, 66, random.u8(..), random.u8(1..), high, low]).collect()
}

/// Compact addresses that are nobody's to dial.
fn odd_peers(asker: SocketAddr) -> Vec<u8> {
    let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let odd = [asker, local(0), local(1), local(22), local(80), local(443), local(1023)];
    let nobodies = ["0.0.0.0:6881", "255.255.255.255:6881", "224.0.0.1:6881"].map(|text| text.parse().ok());
    let compact = |peer: SocketAddr| match peer {
        SocketAddr::V4(peer) => [&peer.ip().octets()[..], &peer.port().to_be_bytes()].concat(),
        SocketAddr::V6(_) => Vec::new(),
    };
    odd.into_iter().chain(nobodies.into_iter().flatten()).flat_map(compact).collect()
}

/// One connection to its end.
fn serve(stream: &TcpStream, trick: HttpTrick, number: u64, shared: &Shared) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TICK))?;
    stream.set_write_timeout(Some(TICK))?;
    if trick == HttpTrick::Closes {
        return Ok(());
    }
    let request = read_head(stream, shared);
    let port = request.split("port=").nth(1).and_then(|rest| rest.split('&').next()?.parse().ok());
    let asker = SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or(1)));
    if let Some(body) = trick.body(asker) {
        return send(stream, &with_head("", &body), shared);
    }
    let unending = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
    let redirect = |to: &str| {
        format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
    };
    let own = stream.local_addr()?;
    match trick {
        HttpTrick::Endless => {
            send(stream, format!("{unending}\r\nd").as_bytes(), shared)?;
            endlessly(stream, &[b'1'; 16 << 10], shared)
        }
        HttpTrick::Drips => drip(stream, &with_head("", &answer("i5e", &nobodies(1000))), shared),
        HttpTrick::DripsHead => drip(stream, unending.repeat(1000).as_bytes(), shared),
        HttpTrick::HeadFlood => {
            send(stream, unending.as_bytes(), shared)?;
            endlessly(
                stream,
                b"X-Filler: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
                shared,
            )
        }
        HttpTrick::Continues => endlessly(stream, &b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000), shared),
        HttpTrick::Chunks => {
            send(stream, format!("{unending}Transfer-Encoding: chunked\r\n\r\n").as_bytes(), shared)?;
            endlessly(stream, &b"1\r\nd\r\n".repeat(1000), shared)
        }
        HttpTrick::Half => send(stream, &with_head("", &answer("i5e", &nobodies(100)))[..200], shared),
        HttpTrick::RedirectsRound => send(stream, &redirect(&format!("http://{own}/announce")), shared),
        HttpTrick::RedirectsAway => {
            let away = [
                "http://127.0.0.1:22/announce".to_owned(),
                "http://[::1]:631/announce".to_owned(),
                "file:///etc/passwd".to_owned(),
                format!("udp://{own}"),
                format!("https://{own}/announce"),
                format!("http://{own}/{}", "a".repeat(12_000)),
            ];
            send(stream, &redirect(&away[number as usize % away.len()]), shared)
        }
        HttpTrick::Gzip => {
            let body = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &vec![0; LARGE_LEN]].concat();
            send(stream, &with_head("Content-Encoding: gzip\r\n", &body), shared)
        }
        HttpTrick::Garbage => send(stream, &b"SSH-2.0-OpenSSH_9.6\r\n\0\x1b[2J".repeat(1000), shared),
        _ => {
            while !shared.is_over() {
                std::thread::sleep(TICK);
            }
            Ok(())
        }
    }
}

fn with_head(fields: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n{fields}Connection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// What was asked, as far as it came in a while.
fn read_head(mut stream: &TcpStream, shared: &Shared) -> String {
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    while head.len() < REQUEST_LEN_MAX && !head.ends_with(b"\r\n\r\n") && !shared.is_over() {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => head.extend_from_slice(&buffer[..len]),
            Err(error) if is_tick(&error) => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

fn send(mut stream: &TcpStream, mut bytes: &[u8], shared: &Shared) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if is_tick(&error) && !shared.is_over() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn endlessly(stream: &TcpStream, bytes: &[u8], shared: &Shared) -> std::io::Result<()> {
    (0..ENDLESS_BYTES / bytes.len()).try_for_each(|_| send(stream, bytes, shared))
}

fn drip(stream: &TcpStream, bytes: &[u8], shared: &Shared) -> std::io::Result<()> {
    for byte in bytes {
        send(stream, &[*byte], shared)?;
        std::thread::sleep(TICK);
    }
    Ok(())
}

fn is_tick(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

// BEP 15, actions.
const CONNECT: u32 = 0;
const ANNOUNCE: u32 = 1;
const SCRAPE: u32 = 2;
const ERROR: u32 = 3;

fn serve_udp(socket: &UdpSocket, trick: UdpTrick, shared: &Shared) {
    let mut buffer = [0; 2048];
    while !shared.is_over() {
        let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
        let Some((action, transaction)) = asked(&buffer[..len]) else { continue };
        shared.requests.fetch_add(1, Ordering::Relaxed);
        let port = buffer.get(96..98).map_or(1, |port| u16::from_be_bytes([port[0], port[1]]));
        let asker = SocketAddr::new(from.ip(), port);
        let Some(reply) = udp_reply(trick, action, transaction, asker) else { continue };
        // What nobody takes any more is lost.
        let _ = socket.send_to(&reply, from);
        if trick == UdpTrick::Floods {
            let other = udp_reply(UdpTrick::Peers, action, !transaction, asker).unwrap_or_default();
            let other = &other[..other.len().min(1400)];
            let until = Instant::now() + UDP_FLOOD_FOR;
            while !shared.is_over() && Instant::now() < until {
                for _ in 0..UDP_FLOOD_BATCH {
                    let _ = socket.send_to(other, from);
                }
                std::thread::sleep(UDP_FLOOD_EVERY);
            }
        }
    }
}

/// Action and transaction of a request, which connects where it has no connection id yet.
fn asked(request: &[u8]) -> Option<(u32, u32)> {
    let number = |at: usize| Some(u32::from_be_bytes(request.get(at..at + 4)?.try_into().ok()?));
    Some((number(8)?, number(12)?))
}

fn udp_reply(trick: UdpTrick, action: u32, transaction: u32, asker: SocketAddr) -> Option<Vec<u8>> {
    let numbers = |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<u8>>();
    let connected = || numbers(&[CONNECT, transaction, 7, 7]);
    let announced =
        |interval: u32, peers: &[u8]| [numbers(&[ANNOUNCE, transaction, interval, 1, 1]), peers.to_vec()].concat();
    let refused = |reason: &str| [numbers(&[ERROR, transaction]), reason.into()].concat();
    Some(match trick {
        UdpTrick::Mute => return None,
        UdpTrick::OtherTransaction => numbers(&[action, !transaction, 7, 7, 7]),
        UdpTrick::OtherAction => numbers(&[SCRAPE, transaction, 7, 7, 7]),
        UdpTrick::Short => numbers(&[action, transaction])[..7].to_vec(),
        _ if action == CONNECT => connected(),
        // A datagram over IPv4 has 65,507 bytes at most.
        UdpTrick::Peers | UdpTrick::Floods => announced(1800, &nobodies((65_507 - 20) / 6)),
        UdpTrick::PeersOdd => announced(5, &odd_peers(asker)),
        UdpTrick::IntervalZero => announced(0, &nobodies(1)),
        UdpTrick::IntervalNegative => announced(u32::MAX, &nobodies(1)),
        UdpTrick::Fails => refused(&ESCAPES.repeat(1400 / ESCAPES.len())),
        UdpTrick::Forgets => refused("connection id is not known here"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_tricks_answer_and_stop() {
        for trick in HttpTrick::ALL {
            let tracker = HostileTracker::http(trick).unwrap();
            let address = tracker.url.trim_start_matches("http://").trim_end_matches("/announce");
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // Who closes at once may have done so before all is sent.
            let _ = write!(stream, "GET /announce?port=7&left=1 HTTP/1.1\r\nHost: x\r\n\r\n");
            if trick != HttpTrick::Mute {
                let heard = stream.read(&mut [0; 16]).unwrap_or(0);
                assert_eq!(heard == 0, trick == HttpTrick::Closes, "{trick:?}");
            }
            drop(tracker);
        }
    }

    #[test]
    fn udp_tricks_answer_as_they_should_not() {
        for trick in UdpTrick::ALL {
            let reply = udp_reply(trick, ANNOUNCE, 5, "127.0.0.1:9".parse().unwrap());
            assert_eq!(reply.is_none(), trick == UdpTrick::Mute, "{trick:?}");
            assert!(reply.is_none_or(|reply| reply.len() <= 65_507), "{trick:?}");
        }
    }
}
