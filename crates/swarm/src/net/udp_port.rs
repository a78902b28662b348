//! The UDP port beside a listener, and whose a datagram is that comes there: what begins as a dictionary does is the distributed hash
//! table's (KRPC), and everything else is uTP's. No packet of uTP begins with a `d`: its first byte has the version 1 in its low half.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anabranch_dht::wire::{DATAGRAM_LEN_MAX, is_krpc};
use anabranch_transport::Via;
use anabranch_transport::datagram::{Packet, Path, Place, Socket};
use tokio::io::unix::AsyncFd;

use super::utp::Refusals;

/// Datagrams received with one call.
const BATCH_MAX: usize = 32;
/// Batches taken in before other tasks have their turn.
const BATCHES_A_TURN: usize = 4;
/// Pause after a socket error, so that one that persists does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// A UDP socket that leaves by the uplink that it is told.
pub(crate) struct UdpPort {
    socket: Socket,
}

impl UdpPort {
    /// At `address`.
    ///
    /// # Errors
    /// When another program has the port, or the address is not of this machine.
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        Socket::bind(address).map(|socket| Self { socket }).map_err(io::Error::other)
    }

    /// Where it is.
    pub(crate) fn local(&self) -> SocketAddr {
        self.socket.local().socket_addr()
    }

    /// Sends a datagram, by the uplink that `via` names. What the system does not take now is lost, as the network might lose it.
    pub(crate) fn send(&self, via: Option<&Via>, to: SocketAddr, datagram: &[u8]) {
        // What stays on this machine leaves by no uplink.
        let path = Path::ip(to, via.filter(|_| !to.ip().is_loopback()));
        if let Ok(mut sender) = self.socket.sender(&path) {
            let _ = sender.try_send(&[Packet { head: datagram, body: &[] }]);
        }
    }
}

/// Hands what comes to whose it is, until the session ends: KRPC to `krpc`, with where it came from and the address of ours that it came
/// to; callers over uTP are sent on to TCP.
pub(crate) async fn serve(port: Rc<UdpPort>, krpc: impl Fn(SocketAddr, Option<IpAddr>, &[u8])) {
    // SAFETY: the socket owns its descriptor, gives the same one each time, and keeps it open as long as it is.
    let Ok(io) = (unsafe { AsyncFd::register(port.socket.clone()) }) else { return };
    let mut receiver = port.socket.receiver();
    let mut memory = vec![0; BATCH_MAX * DATAGRAM_LEN_MAX];
    let mut refusals = Refusals::new(Instant::now());
    loop {
        let Ok(mut ready) = io.readable().await else { return };
        for _ in 0..BATCHES_A_TURN {
            let places = memory.chunks_exact_mut(DATAGRAM_LEN_MAX);
            let mut places: Vec<Place<'_>> = places.map(|body| Place { head: &mut [], body }).collect();
            let received = receiver.recv(&mut places).map(|batch| batch.iter().copied().collect::<Vec<_>>());
            drop(places);
            match received {
                Ok(received) => {
                    for received in received.iter().filter(|received| !received.is_truncated) {
                        let datagram = &memory[received.place * DATAGRAM_LEN_MAX..][..received.len];
                        if is_krpc(datagram) {
                            krpc(received.from, received.local, datagram);
                        } else if let Some(reset) = refusals.answer(datagram, Instant::now()) {
                            port.send(None, received.from, &reset);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    break;
                }
                Err(_) => {
                    tokio::time::sleep(ERROR_PAUSE).await;
                    break;
                }
            }
        }
        drop(ready);
        tokio::task::yield_now().await;
    }
}
