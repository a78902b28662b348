//! Packets on their way into the socket, in bursts.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use anabranch_udp::{Message, Socket};
use anabranch_utp::Transmit;

use super::relay::Header;

/// Bytes of all bursts of one call.
const SEND_BYTES_MAX: usize = 64 * 1024;
/// Bursts of one call.
const BURSTS_MAX: usize = 32;

/// What leaves with the next call.
#[derive(Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    bursts: Vec<(Transmit, Range<usize>)>,
    /// So many of them have left.
    sent: usize,
}

impl Outgoing {
    /// Whether nothing was gathered.
    pub(super) fn is_empty(&self) -> bool {
        self.bursts.is_empty()
    }

    /// Takes bursts from the core for one call.
    pub(super) fn gather(&mut self, segments_max: usize, core: &mut anabranch_utp::Endpoint, now: Instant) {
        self.bytes.clear();
        self.bursts.clear();
        self.sent = 0;
        while self.bursts.len() < BURSTS_MAX && self.bytes.len() < SEND_BYTES_MAX {
            let begin = self.bytes.len();
            let Some(transmit) = core.transmit(now, segments_max, &mut self.bytes) else { return };
            self.bursts.push((transmit, begin..self.bytes.len()));
        }
    }

    /// Sends them; answers whether the system has no room for those that are left.
    pub(super) fn send(&mut self, socket: &Socket, core: &mut anabranch_utp::Endpoint, now: Instant) -> bool {
        while self.sent < self.bursts.len() {
            let left = &self.bursts[self.sent..];
            let may_fragment = left[0].0.may_fragment;
            let alike = left.iter().take_while(|(transmit, _)| transmit.may_fragment == may_fragment).count();
            let parts: Vec<[IoSlice<'_>; 1]> =
                left[..alike].iter().map(|(_, range)| [IoSlice::new(&self.bytes[range.clone()])]).collect();
            let messages: Vec<Message<'_>> = left[..alike]
                .iter()
                .zip(&parts)
                .map(|((transmit, _), parts)| Message {
                    from: transmit.route.local,
                    interface: transmit.route.interface,
                    ..Message::burst(transmit.route.remote, parts, transmit.segment_len)
                })
                .collect();
            let sent = if may_fragment {
                socket.set_may_fragment(true);
                let sent = socket.send(&messages);
                socket.set_may_fragment(false);
                sent
            } else {
                socket.send(&messages)
            };
            match sent {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) => {
                    // It is lost, as the network might lose it.
                    let (transmit, range) = &left[0];
                    let len = transmit.segment_len.min(range.len());
                    if let (Some(conn), Some(libc::EMSGSIZE)) = (transmit.conn, error.raw_os_error()) {
                        core.too_long(now, conn, len);
                    }
                    self.sent += 1;
                }
            }
        }
        false
    }

    /// The same through a proxy's relay, one datagram a burst. Where there is no relay, they are lost, as the network might lose them.
    pub(super) fn send_through(&mut self, relay: Option<SocketAddr>, socket: &Socket) -> bool {
        let Some(relay) = relay else {
            self.sent = self.bursts.len();
            return false;
        };
        while self.sent < self.bursts.len() {
            let left = &self.bursts[self.sent..];
            let headers: Vec<Header> = left.iter().map(|(transmit, _)| Header::new(transmit.route.remote)).collect();
            let parts: Vec<[IoSlice<'_>; 2]> = left
                .iter()
                .zip(&headers)
                .map(|((_, range), header)| [IoSlice::new(header.bytes()), IoSlice::new(&self.bytes[range.clone()])])
                .collect();
            let messages: Vec<Message<'_>> = parts.iter().map(|parts| Message::new(relay, parts)).collect();
            match socket.send(&messages) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => self.sent += 1,
            }
        }
        false
    }
}
