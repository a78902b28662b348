//! Packets from one thread to another over loopback: one call a packet, in batches, and as datagrams of a path over IP, inside a
//! SCION AS and over two routers of this process; and between two namespaces, by the system and past the kernel.

use std::fmt::Display;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{IsdAs, ScionAddr, ScionPath};
use anabranch_scion::socket::DEFAULT_PORTS;
use anabranch_testbed::net::Namespace;
use anabranch_testbed::{Error, Result};
use anabranch_transport::datagram::{Packet, Path, Place, Sender, Socket};
use anabranch_udp::{Message, Options, RecvBatch};

use super::quic;
use crate::report::Sample;

/// Of each packet, in bytes: a protocol's header and a chunk.
const HEAD_LEN: usize = 16;
const BODY_LEN: usize = 1184;
const PAYLOAD_LEN: usize = HEAD_LEN + BODY_LEN;
/// Packets given to the system at once, and places to receive to.
const GROUP: usize = 128;
/// Packets under way: less than a large receive buffer takes.
const WINDOW: u64 = 2048;
/// A full window that nothing comes of in this time was lost.
const STALL: Duration = Duration::from_millis(20);
/// What a sender with a full window sleeps: a small part of what the window lasts.
const NAP: Duration = Duration::from_micros(50);
/// How long packets are counted, after the start, when caches fill and threads find their cores.
const COUNT_TIME: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(500);
/// Largest SCION packet of the router pair, in bytes.
const MTU: u16 = 1472;

/// What the packets pass.
#[derive(Clone, Copy)]
pub(super) enum Route {
    Ip,
    InsideAs,
    RouterPair,
}

/// As a program without any of this does it.
pub(super) fn one_at_a_time() -> Result<Sample> {
    let address: SocketAddr = "127.0.0.1:0".parse().map_err(nonsense)?;
    // With the same large buffers as the others.
    let bind = || -> io::Result<UdpSocket> {
        let socket = anabranch_udp::Socket::bind(address, &Options { gro: false, ..Options::default() })?;
        Ok(socket.as_fd().try_clone_to_owned()?.into())
    };
    let (from, to) = (bind().map_err(nonsense)?, bind().map_err(nonsense)?);
    let address = to.local_addr().map_err(nonsense)?;
    let (payload, mut buffer) = (vec![7; PAYLOAD_LEN], vec![0; PAYLOAD_LEN]);
    let send = |_| from.send_to(&payload, address).map(|_| 1);
    measure(to.as_raw_fd(), send, || to.recv_from(&mut buffer).map(|_| 1))
}

/// What the batches reach that the datagrams are made of: bursts without head and body, to and from one buffer.
pub(super) fn batches() -> Result<Sample> {
    let address: SocketAddr = "127.0.0.1:0".parse().map_err(nonsense)?;
    let bind = || anabranch_udp::Socket::bind(address, &Options::default()).map_err(nonsense);
    let (from, to) = (bind()?, bind()?);
    let payload = vec![7; GROUP * PAYLOAD_LEN];
    let burst_packets = (anabranch_udp::DATAGRAM_LEN_MAX / PAYLOAD_LEN).min(from.segments_max());
    let parts: Vec<_> = payload.chunks(burst_packets * PAYLOAD_LEN).map(|burst| [IoSlice::new(burst)]).collect();
    let messages: Vec<_> = parts.iter().map(|parts| Message::burst(to.local_addr(), parts, PAYLOAD_LEN)).collect();
    let send = |_| {
        let sent = from.send(&messages)?;
        Ok(parts[..sent].iter().map(|parts| parts[0].len()).sum::<usize>() / PAYLOAD_LEN)
    };
    let mut batch = RecvBatch::new(16);
    let recv = || {
        to.recv(&mut batch)?;
        Ok(batch.iter().map(|received| received.segments().len()).sum())
    };
    measure(to.as_raw_fd(), send, recv)
}

/// As datagrams of a path, from chunks where they lie to where they belong.
pub(super) fn over(way: Route) -> Result<Sample> {
    match way {
        Route::Ip => {
            let bind = || Socket::bind(SocketAddr::from(([127, 0, 0, 1], 0))).map_err(nonsense);
            let (from, to) = (bind()?, bind()?);
            let remote = to.local().as_ip().ok_or_else(|| nonsense("an address of IP"))?;
            datagrams(&from, &to, &Path::ip(remote, None))
        }
        Route::InsideAs => {
            let isd_as: IsdAs = quic::ONE.parse().map_err(nonsense)?;
            let address = ScionAddr::new(isd_as, SocketAddr::from(([127, 0, 0, 1], 0)));
            scion([address; 2], &ScionPath::inside(isd_as, MTU, SystemTime::now()))
        }
        Route::RouterPair => {
            let network = quic::pair(MTU)?;
            let ases: [IsdAs; 2] = [quic::ONE.parse().map_err(nonsense)?, quic::OTHER.parse().map_err(nonsense)?];
            let host = |isd_as: IsdAs| {
                let host = network.topology().get(isd_as).and_then(|home| home.hosts.first());
                let host = host.ok_or_else(|| nonsense("the topology has no hosts"))?;
                Ok::<_, Error>(ScionAddr::new(isd_as, SocketAddr::new(host.address, 0)))
            };
            let addresses = [host(ases[0])?, host(ases[1])?];
            let paths = network.control().paths(ases[0], ases[1], SystemTime::now()).map_err(nonsense)?;
            scion(addresses, paths.first().ok_or_else(|| nonsense("no path"))?)
        }
    }
}

/// Between two namespaces, over a link without limits that joins them; past the kernel at both ends, at one, or at none.
pub(super) fn over_link(past_kernel: [bool; 2]) -> Result<Sample> {
    let hosts = [Namespace::new()?, Namespace::new()?];
    hosts[0].link("link0", &hosts[1])?;
    let ips = [[10, 7, 0, 1], [10, 7, 0, 2]];
    let bind = |at: usize| {
        let [a, b, c, d] = ips[at];
        hosts[at].device_up("link0", &format!("{a}.{b}.{c}.{d}/24"), "10.7.0.0/24", 1500)?;
        hosts[at].enter(|| {
            let socket = Socket::bind(SocketAddr::from((ips[at], 7000))).map_err(nonsense)?;
            if past_kernel[at] {
                socket.attach_xdp("link0").map_err(nonsense)?;
            }
            Ok(socket)
        })
    };
    let (from, to) = (bind(0)?, bind(1)?);
    datagrams(&from, &to, &Path::ip(SocketAddr::from((ips[1], 7000)), None))
}

fn scion([from, to]: [ScionAddr; 2], path: &ScionPath) -> Result<Sample> {
    let bind = |address| Socket::bind_scion(address, DEFAULT_PORTS).map_err(nonsense);
    let (from, to) = (bind(from)?, bind(to)?);
    let ends = from.local_scion().zip(to.local_scion()).ok_or_else(|| nonsense("addresses of SCION"))?;
    let path = Path::scion(ends.0, ends.1, path).map_err(nonsense)?;
    datagrams(&from, &to, &path)
}

fn datagrams(from: &Socket, to: &Socket, path: &Path) -> Result<Sample> {
    let (heads, piece) = (vec![1; GROUP * HEAD_LEN], vec![7; GROUP * BODY_LEN]);
    let packets = heads.chunks(HEAD_LEN).zip(piece.chunks(BODY_LEN)).map(|(head, body)| Packet { head, body });
    let packets: Vec<_> = packets.collect();
    let mut sender: Sender = from.sender(path).map_err(nonsense)?;
    let mut receiver = to.receiver();
    let readable = receiver.as_raw_fd();
    // The receiver knows who sends, as a transfer that is under way does.
    let back = match (to.local_scion(), from.local_scion()) {
        (Some(_), Some(_)) => None,
        _ => Some(Path::ip(from.local().as_ip().ok_or_else(|| nonsense("an address of IP"))?, None)),
    };
    let mut is_known = back.map(|back| to.add(&back)).transpose().map_err(nonsense)?.is_some();
    let (mut heads_to, mut piece_to) = (vec![0; GROUP * HEAD_LEN], vec![0; GROUP * BODY_LEN]);
    let places = heads_to.chunks_mut(HEAD_LEN).zip(piece_to.chunks_mut(BODY_LEN));
    let mut places: Vec<_> = places.map(|(head, body)| Place { head, body }).collect();
    let send = |room: u64| {
        let room = usize::try_from(room).unwrap_or(GROUP).min(GROUP);
        sender.try_send(&packets[..room]).map_err(io::Error::from)
    };
    let recv = || {
        let batch = receiver.recv(&mut places)?;
        if let (false, Some(first), Some(local)) = (is_known, batch.iter().next(), to.local_scion()) {
            let back = Path::back(local, batch.headers(first), first.from, MTU).map_err(io::Error::other)?;
            to.add(&back).map_err(io::Error::other)?;
            is_known = true;
        }
        Ok(batch.len())
    };
    measure(readable, send, recv)
}

/// Sends and receives at once, at most [`WINDOW`] packets under way, and counts. `send` is told how many may leave, and both say how
/// many packets have passed.
fn measure(
    readable: RawFd,
    mut send: impl FnMut(u64) -> io::Result<usize> + Send,
    mut recv: impl FnMut() -> io::Result<usize> + Send,
) -> Result<Sample> {
    let (arrived, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| -> io::Result<()> {
            while !stop.load(Ordering::Relaxed) {
                match recv() {
                    Ok(packets) => _ = arrived.fetch_add(packets as u64, Ordering::Relaxed),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => await_packets(readable),
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        let sender = scope.spawn(|| -> io::Result<()> {
            let (mut sent, mut moved) = (0, Instant::now());
            let mut seen = 0;
            while !stop.load(Ordering::Relaxed) {
                let now_arrived = arrived.load(Ordering::Relaxed);
                if now_arrived != seen {
                    (seen, moved) = (now_arrived, Instant::now());
                }
                if moved.elapsed() > STALL {
                    (sent, moved) = (seen, Instant::now());
                }
                let room = (seen + WINDOW).saturating_sub(sent);
                if room == 0 {
                    thread::sleep(NAP);
                    continue;
                }
                match send(room) {
                    Ok(packets) => sent += packets as u64,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(NAP),
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        thread::sleep(WARM_UP);
        let (packets_before, cpu_before, start) = (arrived.load(Ordering::Relaxed), cpu(), Instant::now());
        thread::sleep(COUNT_TIME);
        let packets = arrived.load(Ordering::Relaxed) - packets_before;
        let (cpu, seconds) = (cpu() - cpu_before, start.elapsed().as_secs_f64());
        stop.store(true, Ordering::Relaxed);
        for thread in [sender, receiver] {
            thread.join().map_err(|_| nonsense("a thread panicked"))?.map_err(nonsense)?;
        }
        if packets == 0 {
            return Err(nonsense("nothing arrived"));
        }
        let gibibytes = packets as f64 * PAYLOAD_LEN as f64 / (1 << 30) as f64;
        let extra = Some(cpu.as_secs_f64() / gibibytes);
        Ok(Sample { figure: packets as f64 / seconds / 1e3, extra, ..Sample::default() })
    })
}

/// CPU time of this process so far, user and kernel.
fn cpu() -> Duration {
    // SAFETY: plain C data, for which zero is "nothing".
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` lives over the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

fn await_packets(socket: RawFd) {
    let mut poll = libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives over the call.
    unsafe { libc::poll(&mut poll, 1, 10) };
}

fn nonsense(what: impl Display) -> Error {
    Error::Nonsense { name: "the datagram bench".into(), what: what.to_string() }
}
