//! All datagrams of a socket through one relay of a SOCKS5 proxy (RFC 1928 §7): what uTP and the distributed hash table need, which speak with
//! everybody from one port.
//!
//! The relay is asked for again where the proxy takes it away. Meanwhile what is sent is lost. What comes from elsewhere than the relay is
//! nobody's, and so is what has no address in front, or is a fragment.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::{MTU_UNKNOWN, headers_len};
use crate::interfaces::towards;
use crate::proxy::Association;
use crate::{Proxy, UdpSource, UdpTarget, parse_relayed};

/// Before a proxy is asked again that gave no relay, or took it away at once; doubles each time ...
const AGAIN_FIRST: Duration = Duration::from_secs(1);
/// ... up to this, which is also how soon one is asked again that relays no datagrams.
const AGAIN_MAX: Duration = Duration::from_secs(5 * 60);
/// A relay that was there for so long counts as one that works.
const WORKED_FOR: Duration = Duration::from_secs(60);
/// Bytes in front of a datagram to or from an address.
const HEADER_LEN_MAX: usize = 3 + 1 + 16 + 2;

/// What stands in front of a datagram for an address.
pub(super) struct Header {
    bytes: [u8; HEADER_LEN_MAX],
    len: usize,
}

impl Header {
    pub(super) fn new(remote: SocketAddr) -> Self {
        let mut header = Self { bytes: [0; HEADER_LEN_MAX], len: 0 };
        // As long as one with an address is: it fits.
        let packed = UdpTarget::Address(SocketAddr::new(remote.ip().to_canonical(), remote.port())).header();
        for (place, byte) in header.bytes.iter_mut().zip(packed.into_iter().flatten()) {
            *place = byte;
            header.len += 1;
        }
        header
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What is known of a relay.
#[derive(Clone, Copy)]
enum State {
    /// It is being asked for.
    Asking,
    /// It is here.
    Open(SocketAddr),
    /// There is none.
    Refused,
}

/// The way through a proxy.
pub(super) struct Relay {
    proxy: Arc<Proxy>,
    state: Cell<State>,
    changed: Notify,
}

impl Relay {
    pub(super) fn new(proxy: Arc<Proxy>) -> Self {
        Self { proxy, state: Cell::new(State::Asking), changed: Notify::new() }
    }

    /// Where it is, if there is one.
    pub(super) fn at(&self) -> Option<SocketAddr> {
        match self.state.get() {
            State::Open(at) => Some(at),
            State::Asking | State::Refused => None,
        }
    }

    /// Waits until that is known.
    pub(super) async fn is_open(&self) -> bool {
        loop {
            let changed = self.changed.notified();
            match self.state.get() {
                State::Open(_) => return true,
                State::Refused => return false,
                State::Asking => changed.await,
            }
        }
    }

    fn set(&self, state: State) {
        self.state.set(state);
        self.changed.notify_waiters();
    }

    /// See [`UtpEndpoint::keep_relay`](super::UtpEndpoint::keep_relay).
    pub(super) async fn keep(&self, failed: impl Fn(&io::Error)) {
        let mut wait = AGAIN_FIRST;
        loop {
            match self.proxy.relay().await {
                Ok(association) => {
                    let begun = Instant::now();
                    self.set(State::Open(place(&association)));
                    association.ended().await;
                    self.set(State::Asking);
                    if begun.elapsed() >= WORKED_FOR {
                        wait = AGAIN_FIRST;
                    }
                }
                Err(error) => {
                    self.set(State::Refused);
                    failed(&error);
                    if error.kind() == io::ErrorKind::Unsupported {
                        wait = AGAIN_MAX;
                    }
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(AGAIN_MAX);
        }
    }

    /// Our address on the way to the relay, and how much of a datagram for `remote` fits. Beyond the relay no link is assumed to take more than
    /// Ethernet: proxies cut apart what is longer, and each part may be lost.
    pub(super) fn first_link(&self, remote: SocketAddr) -> io::Result<(IpAddr, usize)> {
        let at = self.at().ok_or_else(none)?;
        let (local, mtu) = towards(None, at)?;
        let near = mtu.unwrap_or(MTU_UNKNOWN).min(MTU_UNKNOWN);
        Ok((local, near.saturating_sub(headers_len(at.is_ipv4()) + Header::new(remote).len)))
    }

    /// Who a datagram that came from `from` is from, and what it holds.
    pub(super) fn unpack<'a>(&self, from: SocketAddr, datagram: &'a [u8]) -> Option<(SocketAddr, &'a [u8])> {
        let at = self.at()?;
        if (from.ip().to_canonical(), from.port()) != (at.ip(), at.port()) {
            return None;
        }
        match parse_relayed(datagram)? {
            (UdpSource::Address(source), payload) if source.port() != 0 => {
                Some((SocketAddr::new(source.ip().to_canonical(), source.port()), payload))
            }
            _ => None,
        }
    }
}

fn place(association: &Association) -> SocketAddr {
    let relay = association.relay();
    SocketAddr::new(relay.ip().to_canonical(), relay.port())
}

/// There is no relay.
pub(super) fn none() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the proxy relays no datagrams")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_relay_says_comes_from_an_address_counts() {
        let relay = Relay::new(Arc::new("socks5://127.0.0.1:1080".parse().unwrap()));
        let (at, remote) = ("127.0.0.1:5000".parse().unwrap(), "192.0.2.7:6881".parse().unwrap());
        let packed = [Header::new(remote).bytes(), b"payload"].concat();
        assert_eq!(relay.unpack(at, &packed), None, "there is no relay yet");
        relay.set(State::Open(at));
        assert_eq!(relay.unpack(at, &packed), Some((remote, &b"payload"[..])));
        assert_eq!(relay.unpack("[::ffff:127.0.0.1]:5000".parse().unwrap(), &packed), Some((remote, &b"payload"[..])));
        for other in ["127.0.0.1:5001", "127.0.0.2:5000"] {
            assert_eq!(relay.unpack(other.parse().unwrap(), &packed), None, "{other}");
        }
        let mut fragment = packed.clone();
        fragment[2] = 1;
        let nowhere = [Header::new("192.0.2.7:0".parse().unwrap()).bytes(), b"payload"].concat();
        let named = UdpTarget::new("peer.example", 6881).header().unwrap();
        for bad in [&fragment[..], &nowhere, &named, &packed[..9], b""] {
            assert_eq!(relay.unpack(at, bad), None, "{bad:?}");
        }
        let v6 = "[2001:db8::7]:6881".parse().unwrap();
        let packed = [Header::new(v6).bytes(), b"6"].concat();
        assert_eq!(relay.unpack(at, &packed), Some((v6, &b"6"[..])));
    }
}
