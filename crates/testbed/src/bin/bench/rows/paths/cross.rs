//! Traffic of others: datagrams at a fixed rate over one path, whatever becomes of them.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{IsdAs, ScionAddr, ScionPath};
use anabranch_scion::socket::Socket;
use anabranch_testbed::Result;

use super::network::{PathsNetwork, RECEIVER, SENDER};
use super::nonsense;

/// Payload of each datagram, and about what the headers up to SCION's add on a path of two ASes. Links count SCION packets.
const PAYLOAD_LEN: usize = 1300;
const HEADERS_LEN: usize = 8 + 12 + 24 + 4 + 8 + 2 * 12;
/// Sleeps are this long; what became due meanwhile is sent at once.
const TICK: Duration = Duration::from_millis(2);

/// Runs until it is dropped.
pub(super) struct CrossTraffic {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Takes what arrives, as far as the kernel keeps it; nobody reads.
    _sink: UdpSocket,
}

impl CrossTraffic {
    /// `rate_mbps` over the link of this index, from the sender's AS to the receiver's.
    pub(super) fn start(network: &PathsNetwork, link: usize, rate_mbps: u32) -> Result<Self> {
        Self::between(network, [SENDER, RECEIVER], link, rate_mbps)
    }

    /// The same between two other ASes.
    pub(super) fn between(network: &PathsNetwork, ends: [&str; 2], link: usize, rate_mbps: u32) -> Result<Self> {
        let topology = network.network.topology();
        let home = |text: &str| -> Result<_> {
            let number: IsdAs = text.parse().map_err(nonsense)?;
            topology.get(number).ok_or_else(|| nonsense("no such AS"))
        };
        let (from, to) = (home(ends[0])?, home(ends[1])?);
        let paths = network.network.control().paths(from.isd_as, to.isd_as, SystemTime::now()).map_err(nonsense)?;
        let over = |path: &ScionPath| path.interfaces.iter().any(|i| topology.links()[link].ends.contains(i));
        let path = paths.into_iter().find(over).ok_or_else(|| nonsense("no path over the link"))?;
        // Below the range in which programs take any port.
        let sink =
            (*to.host_ports.start()..).take(200).find_map(|port| UdpSocket::bind((to.hosts[0].address, port)).ok());
        let sink = sink.ok_or_else(|| nonsense("no free port"))?;
        let remote = ScionAddr::new(to.isd_as, sink.local_addr().map_err(nonsense)?);
        let local = ScionAddr::new(from.isd_as, (from.hosts[0].address, 0).into());
        let (ports, stop) = (from.host_ports.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async {
                let Ok(socket) = Socket::bind(local, ports) else { return };
                let Ok(route) = socket.register(remote, &path) else { return };
                let (payload, began, mut sent) = ([7; PAYLOAD_LEN], Instant::now(), 0u64);
                let packets_per_second = f64::from(rate_mbps) * 125_000.0 / (PAYLOAD_LEN + HEADERS_LEN) as f64;
                while !stopped.load(Ordering::Relaxed) {
                    let due = (began.elapsed().as_secs_f64() * packets_per_second) as u64;
                    for _ in sent..due {
                        // What the system does not take is lost, as on any line.
                        let _ = socket.send_to(route, &payload).await;
                    }
                    sent = due;
                    tokio::time::sleep(TICK).await;
                }
            });
        };
        Ok(Self { stop, thread: Some(std::thread::spawn(run)), _sink: sink })
    }
}

impl Drop for CrossTraffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
