//! Sends peers that call over uTP on to TCP: see [`anabranch_bittorrent::utp`].

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_bittorrent::utp::{HEADER_LEN, refusal};
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

/// What callers are answered, as often as that is allowed.
pub(crate) struct Refusals {
    second: Instant,
    answered: u32,
}

impl Refusals {
    /// Nobody was answered yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self { second: now, answered: 0 }
    }

    /// The answer to a datagram, if it is a call and one is left this second.
    pub(crate) fn answer(&mut self, datagram: &[u8], now: Instant) -> Option<[u8; HEADER_LEN]> {
        let reset = refusal(datagram).filter(|_| datagram.len() <= DATAGRAM_LEN_MAX)?;
        if now >= self.second + Duration::from_secs(1) {
            (self.second, self.answered) = (now, 0);
        }
        self.answered += 1;
        (self.answered <= REFUSALS_PER_SECOND_MAX).then_some(reset)
    }
}

/// Answers calls until the session ends.
pub(crate) async fn turn_away(socket: UdpSocket) {
    let mut datagram = [0; DATAGRAM_LEN_MAX];
    let mut refusals = Refusals::new(Instant::now());
    loop {
        match socket.recv_from(&mut datagram).await {
            Ok((length, caller)) => {
                if let Some(reset) = refusals.answer(&datagram[..length], Instant::now()) {
                    // A full send buffer loses the answer, as the network might: the caller waits instead.
                    let _ = socket.try_send_to(&reset, caller);
                }
            }
            Err(_) => tokio::time::sleep(ERROR_PAUSE).await,
        }
    }
}
