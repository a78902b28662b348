//! Packets through two border routers: a host, its router, a link, the other router, the other host; all on this
//! machine's cores, in this process, over the machine's loopback.

use std::fmt::Display;
use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::router::{DataPlane, HOST_PORTS_DEFAULT, InterfaceConfig, LinkRole, RouterConfig};
use anabranch_paths::IsdAs;
use anabranch_scion_wire::mac::{HopKey, chained};
use anabranch_scion_wire::{
    Address, DataplanePath, HeaderFields, HeaderTemplate, HopField, InfoField, PathRef, PathSegment, Ports, checksum,
};
use anabranch_testbed::{Error, Result};
use anabranch_udp::{DATAGRAM_LEN_MAX, Message, Options, RecvBatch, SEGMENTS_MAX, Socket};

use crate::report::Sample;

/// Payload of each packet, in bytes.
const PAYLOAD_LEN: usize = 1200;
/// How long packets are sent and counted.
const COUNT_TIME: Duration = Duration::from_secs(3);
/// The start is left out: caches fill, threads find their cores.
const WARM_UP: Duration = Duration::from_millis(500);
/// What is still under way after the last packet was sent.
const DRAIN_TIME: Duration = Duration::from_millis(300);
/// Sleeps shorter than this take longer than they say.
const SLEEP_MIN: Duration = Duration::from_micros(60);
/// Ports of the hosts, of the routers inside, and on the link.
const HOST_PORT: u16 = 31_000;
const ROUTER_PORT: u16 = 30_042;
const LINK_PORT: u16 = 20_000;
/// The addresses of this process, from 127.128.0.0 on, so that two benches do not meet: host, router, router, host.
const NETWORK: u32 = 0x7f80_0000;
/// The key of both ASes' hop fields.
const KEY: [u8; 16] = [7; 16];
/// Names of the threads whose CPU time counts as the routers'.
const ROUTER_THREADS: &str = "router-";

/// What came of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    /// Packets that arrived in a second.
    rate: f64,
    /// Of all that were sent.
    lost_percent: f64,
    /// CPU time of the routers for one packet and one of the two hops.
    cpu_ns: f64,
}

impl Passed {
    /// For the row of rates, in thousands, with what was lost.
    pub(super) fn rate(self) -> Sample {
        Sample { figure: self.rate / 1e3, extra: Some(self.lost_percent), ..Sample::default() }
    }

    /// For the row of CPU times, with the rate in thousands.
    pub(super) fn cpu(self) -> Sample {
        Sample { figure: self.cpu_ns, extra: Some(self.rate / 1e3), ..Sample::default() }
    }
}

/// At most `rate` packets a second, through two routers.
pub(super) fn routed(rate: f64) -> Result<Passed> {
    let (one, other) = (isd_as("1-ff00:0:110")?, isd_as("1-ff00:0:111")?);
    let plane = DataPlane::start(None).map_err(nonsense)?;
    let router = |isd_as, neighbor, role, inside, far| RouterConfig {
        isd_as,
        forwarding_key: KEY,
        internal: vec![address(inside, ROUTER_PORT)],
        host_ports: HOST_PORTS_DEFAULT,
        services: Vec::new(),
        interfaces: vec![InterfaceConfig {
            id: 1,
            role,
            neighbor,
            local: address(inside, LINK_PORT),
            remote: address(far, LINK_PORT),
            shape: LinkShape::default(),
        }],
    };
    let routers = [
        plane.add_router(&router(one, other, LinkRole::Child, 2, 3)).map_err(nonsense)?,
        plane.add_router(&router(other, one, LinkRole::Parent, 3, 2)).map_err(nonsense)?,
    ];
    let sample = measure(rate, routers[0].internal_address());
    drop(plane);
    sample
}

/// What a program reaches that only passes on: two threads that receive, look at nothing, and send.
pub(super) fn relayed(rate: f64) -> Result<Passed> {
    let (one, other) = (bind(address(2, ROUTER_PORT))?, bind(address(3, ROUTER_PORT))?);
    let (second, last) = (other.local_addr(), address(4, HOST_PORT));
    let first = one.local_addr();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for (socket, next) in [(one, second), (other, last)] {
            let thread = thread::Builder::new().name(format!("{ROUTER_THREADS}relay"));
            let stop = &stop;
            thread.spawn_scoped(scope, move || pass_on(&socket, next, stop)).map_err(nonsense)?;
        }
        let sample = measure(rate, first);
        stop.store(true, Ordering::Relaxed);
        sample
    })
}

fn pass_on(socket: &Socket, next: SocketAddr, stop: &AtomicBool) {
    let mut batch = RecvBatch::new(16);
    while !stop.load(Ordering::Relaxed) {
        if socket.recv(&mut batch).is_err() {
            await_packets(socket);
            continue;
        }
        let parts: Vec<_> = batch.iter().map(|received| [IoSlice::new(received.bytes)]).collect();
        let lens = batch.iter().map(|received| received.segment_len);
        let messages: Vec<_> = parts.iter().zip(lens).map(|(parts, len)| Message::burst(next, parts, len)).collect();
        let _ = socket.send(&messages);
    }
}

/// Sends to `router` at `rate`, counts what arrives at the other host.
fn measure(rate: f64, router: SocketAddr) -> Result<Passed> {
    let (from, to) = (bind(address(1, HOST_PORT))?, bind(address(4, HOST_PORT))?);
    let template = template()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&to, &stop));
        let sender = scope.spawn(|| send(&from, router, &template, rate));
        thread::sleep(WARM_UP);
        let cpu_before = router_cpu();
        thread::sleep(COUNT_TIME);
        let cpu = router_cpu() - cpu_before;
        let sent = sender.join().map_err(|_| nonsense("the sender panicked"))??;
        thread::sleep(DRAIN_TIME);
        stop.store(true, Ordering::Relaxed);
        let received = receiver.join().map_err(|_| nonsense("the receiver panicked"))?;
        if received.packets == 0 {
            return Err(nonsense("nothing arrived"));
        }
        let rate = received.counted as f64 / COUNT_TIME.as_secs_f64();
        Ok(Passed {
            rate,
            lost_percent: 100.0 * (sent - received.packets.min(sent)) as f64 / sent as f64,
            cpu_ns: cpu.as_secs_f64() * 1e9 / received.counted as f64 / 2.0,
        })
    })
}

/// Sends for the whole time; returns how many packets.
fn send(socket: &Socket, router: SocketAddr, template: &HeaderTemplate, rate: f64) -> Result<u64> {
    let packet_len = template.header_len() + PAYLOAD_LEN;
    let burst_packets = SEGMENTS_MAX.min(DATAGRAM_LEN_MAX / packet_len);
    let mut burst = vec![7; burst_packets * packet_len];
    let start = Instant::now();
    let mut sent = 0_u64;
    while start.elapsed() < WARM_UP + COUNT_TIME {
        let due = start + Duration::from_secs_f64(sent as f64 / rate);
        let ahead = due.saturating_duration_since(Instant::now());
        if ahead >= SLEEP_MIN {
            thread::sleep(ahead);
        }
        for packet in burst.chunks_mut(packet_len) {
            let (header, payload) = packet.split_at_mut(template.header_len());
            payload[..8].copy_from_slice(&sent.to_be_bytes());
            template.write(PAYLOAD_LEN, checksum::sum(payload), header).map_err(nonsense)?;
            sent += 1;
        }
        let parts = [IoSlice::new(&burst)];
        // What the system does not take counts as lost.
        let _ = socket.send(&[Message::burst(router, &parts, packet_len)]);
    }
    Ok(sent)
}

/// What has arrived.
#[derive(Default)]
struct Arrived {
    packets: u64,
    /// Those after the warm-up, within the time that is counted.
    counted: u64,
}

fn receive(socket: &Socket, stop: &AtomicBool) -> Arrived {
    let mut batch = RecvBatch::new(16);
    let start = Instant::now();
    let mut arrived = Arrived::default();
    while !stop.load(Ordering::Relaxed) {
        if socket.recv(&mut batch).is_err() {
            await_packets(socket);
            continue;
        }
        let packets: u64 = batch.iter().map(|received| received.segments().len() as u64).sum();
        arrived.packets += packets;
        if (WARM_UP..WARM_UP + COUNT_TIME).contains(&start.elapsed()) {
            arrived.counted += packets;
        }
    }
    arrived
}

/// Waits until there is something to read, or a moment.
fn await_packets(socket: &Socket) {
    use std::os::fd::AsRawFd;
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives over the call.
    unsafe { libc::poll(&mut poll, 1, 10) };
}

/// CPU time so far of the threads that route.
fn router_cpu() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mut total_ns = 0;
    for thread in threads {
        let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        if read("comm").starts_with(ROUTER_THREADS) {
            // The first number is nanoseconds on a processor.
            total_ns += read("schedstat").split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Duration::from_nanos(total_ns)
}

fn template() -> Result<HeaderTemplate> {
    let path = path()?;
    let fields = HeaderFields {
        source: Address::new(isd_as("1-ff00:0:110")?, address(1, 0).ip()),
        destination: Address::new(isd_as("1-ff00:0:111")?, address(4, 0).ip()),
        path: PathRef::Standard(path.view()),
        flow_id: 1,
        traffic_class: 0,
    };
    HeaderTemplate::new(&fields, Ports { source: HOST_PORT, destination: HOST_PORT }).map_err(nonsense)
}

/// Down from the one AS to the other.
fn path() -> Result<DataplanePath> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(nonsense)?;
    let info = InfoField { peering: false, cons_dir: true, seg_id: 1, timestamp_s: now.as_secs() as u32 };
    let key = HopKey::new(&KEY);
    let hop = |cons_ingress, cons_egress| HopField::unsealed(255, cons_ingress, cons_egress);
    let first = key.sealed(info.seg_id, info.timestamp_s, hop(0, 1));
    let second = key.sealed(chained(info.seg_id, &first.mac), info.timestamp_s, hop(1, 0));
    DataplanePath::build(&[PathSegment { info, hops: &[first, second] }]).map_err(nonsense)
}

fn isd_as(text: &str) -> Result<IsdAs> {
    text.parse().map_err(nonsense)
}

fn address(host: u32, port: u16) -> SocketAddr {
    let network = NETWORK | (std::process::id() & 0x7fff) << 8;
    SocketAddr::new(Ipv4Addr::from_bits(network | host).into(), port)
}

fn bind(address: SocketAddr) -> Result<Socket> {
    Socket::bind(address, &Options::default()).map_err(nonsense)
}

fn nonsense(what: impl Display) -> Error {
    Error::Nonsense { name: "the router bench".into(), what: what.to_string() }
}
