//! Sends peers that call over uTP on to TCP: see [`anabranch_bittorrent::utp`].

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_bittorrent::utp::refusal;
use tokio::net::UdpSocket;

/// Answers a second at most: more callers than the listeners take strangers. Further ones find out by waiting.
const REFUSALS_PER_SECOND_MAX: u32 = 256;
/// Calls have a header and an extension or two; what is longer is none.
const DATAGRAM_LEN_MAX: usize = 64;
/// Pause after a socket error, so that one that persists does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// The socket beside a TCP listener at `address`.
///
/// # Errors
/// When another program has the port. That program is who callers over UDP mean to reach, then.
pub(crate) fn open(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Answers calls until the session ends.
pub(crate) async fn turn_away(socket: UdpSocket) {
    let mut datagram = [0; DATAGRAM_LEN_MAX];
    let (mut second, mut answered) = (Instant::now(), 0);
    loop {
        match socket.recv_from(&mut datagram).await {
            Ok((length, caller)) => {
                let Some(reset) = refusal(&datagram[..length]) else { continue };
                if second.elapsed() >= Duration::from_secs(1) {
                    (second, answered) = (Instant::now(), 0);
                }
                if answered >= REFUSALS_PER_SECOND_MAX {
                    // What comes until then beyond the socket's buffer is lost.
                    tokio::time::sleep(Duration::from_secs(1).saturating_sub(second.elapsed())).await;
                    continue;
                }
                answered += 1;
                // A full send buffer loses the answer, as the network might: the caller waits instead.
                let _ = socket.try_send_to(&reset, caller);
            }
            Err(_) => tokio::time::sleep(ERROR_PAUSE).await,
        }
    }
}
