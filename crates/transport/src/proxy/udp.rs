//! Datagrams through a SOCKS5 proxy (RFC 1928 §7, UDP ASSOCIATE).
//!
//! A connection to the proxy asks it for a relay, and holds the relay for as long as it is open. Datagrams go to the relay with the
//! target in front, as a name where it is one: the proxy looks it up. Nothing goes anywhere but to the host that the connection
//! leads to. A proxy may say that its relay is at another address: it often is wrong, behind a router, and a hostile one would lead
//! us elsewhere; its port alone is believed.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::{Kind, Proxy};

/// SOCKS, version 5 (RFC 1928 §3), and of the sub-negotiation (RFC 1929 §2).
const VERSION: u8 = 5;
const LOGIN_VERSION: u8 = 1;
/// Ways to be admitted (RFC 1928 §3).
const NO_LOGIN: u8 = 0;
const LOGIN: u8 = 2;
/// UDP ASSOCIATE (RFC 1928 §4).
const ASSOCIATE: u8 = 3;
/// Forms of addresses (RFC 1928 §5).
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
/// A command that the proxy does not have, or does not let us use (RFC 1928 §6).
const NOT_ALLOWED: u8 = 2;
const NOT_SUPPORTED: u8 = 7;
/// The longest header of a datagram: with a name of 255 bytes.
pub const HEADER_LEN_MAX: usize = 3 + 1 + 1 + 255 + 2;
/// How long a proxy has to give us a relay.
const ASSOCIATE_TIMEOUT: Duration = Duration::from_secs(10);

/// Where datagrams go behind the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UdpTarget {
    /// An address.
    Address(SocketAddr),
    /// A host's name, of 255 bytes at most, and port: the proxy looks it up.
    Name(String, u16),
}

impl UdpTarget {
    /// `host` may be an address.
    pub fn new(host: &str, port: u16) -> Self {
        match host.parse::<IpAddr>() {
            Ok(ip) => Self::Address((ip, port).into()),
            Err(_) => Self::Name(host.to_owned(), port),
        }
    }

    /// What stands in front of a datagram (RFC 1928 §7): no fragment.
    ///
    /// # Errors
    /// `InvalidInput` where the name is too long to be one.
    pub(crate) fn header(&self) -> io::Result<Vec<u8>> {
        let mut header = vec![0, 0, 0];
        match self {
            Self::Address(address) => put_address(&mut header, *address),
            Self::Name(name, port) => {
                let length = u8::try_from(name.len()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
                header.extend([NAME, length]);
                header.extend(name.as_bytes());
                header.extend(port.to_be_bytes());
            }
        }
        Ok(header)
    }

    /// Whether a datagram that says it is from `source` may be the target's. Whom the proxy found by a name, it alone knows.
    fn may_be(&self, source: &Source) -> bool {
        match (self, source) {
            (Self::Address(address), Source::Address(source)) => address == source,
            (Self::Address(address), Source::Name(port)) => address.port() == *port,
            (Self::Name(_, port), source) => source.port() == *port,
        }
    }
}

/// Where a datagram is from, as the proxy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An address.
    Address(SocketAddr),
    /// Some name, and its port.
    Name(u16),
}

impl Source {
    fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Name(port) => *port,
        }
    }
}

/// The parts of a relayed datagram: where it is from, and what it holds. `None` where it is none, and for fragments, which
/// nobody has to put together (RFC 1928 §7).
pub fn parse(datagram: &[u8]) -> Option<(Source, &[u8])> {
    let (&[0, 0, 0, form], rest) = datagram.split_first_chunk()? else { return None };
    let (host_len, rest) = match form {
        IPV4 => (4, rest),
        IPV6 => (16, rest),
        NAME => rest.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        _ => return None,
    };
    let (host, rest) = rest.split_at_checked(host_len)?;
    let (port, payload) = rest.split_first_chunk()?;
    let port = u16::from_be_bytes(*port);
    let source = match address(host) {
        Some(ip) if form != NAME => Source::Address((ip, port).into()),
        _ => Source::Name(port),
    };
    Some((source, payload))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| Ipv4Addr::from(bytes).into());
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|bytes| Ipv6Addr::from(bytes).into())).ok()
}

fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(IPV4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(IPV6);
            out.extend(ip.octets());
        }
    }
    out.extend(address.port().to_be_bytes());
}

/// A relay at the proxy: it is there for as long as the connection is open that asked for it.
#[derive(Debug)]
pub(crate) struct Association {
    control: TcpStream,
    relay: SocketAddr,
}

impl Association {
    /// Where the relay is.
    pub(crate) fn relay(&self) -> SocketAddr {
        self.relay
    }

    /// Waits until the proxy closes the connection that holds the relay, or says on it what nobody asked for.
    pub(crate) async fn ended(&self) {
        loop {
            let ready = self.control.readable().await;
            match self.control.try_read(&mut [0; 1]) {
                Err(error) if ready.is_ok() && error.kind() == ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }
}

/// A relay at the proxy, for one target.
#[derive(Debug)]
pub struct UdpRelay {
    /// Connected to the relay: the kernel lets nobody else in.
    socket: UdpSocket,
    association: Association,
    target: UdpTarget,
    header: Vec<u8>,
}

impl Proxy {
    /// Whether datagrams may have a way through it.
    pub fn may_relay_udp(&self) -> bool {
        self.kind == Kind::Socks5
    }

    /// Asks the proxy for a relay to `target`.
    ///
    /// # Errors
    /// `Unsupported` where the proxy relays no datagrams; the error names the proxy.
    pub async fn associate(&self, target: UdpTarget) -> io::Result<UdpRelay> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("the proxy {self}: {error}"));
        let header = target.header().map_err(failed)?;
        let association = self.relay().await?;
        let local = association.control.local_addr().map_err(failed)?;
        let socket = UdpSocket::bind(SocketAddr::new(local.ip(), 0)).await.map_err(failed)?;
        socket.connect(association.relay).await.map_err(failed)?;
        Ok(UdpRelay { socket, association, target, header })
    }

    /// Asks the proxy for a relay to whomever datagrams are for.
    ///
    /// # Errors
    /// As [`Proxy::associate`].
    pub(crate) async fn relay(&self) -> io::Result<Association> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("the proxy {self}: {error}"));
        let relay = tokio::time::timeout(ASSOCIATE_TIMEOUT, self.open_relay()).await;
        relay.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())).map_err(failed)
    }

    async fn open_relay(&self) -> io::Result<Association> {
        if !self.may_relay_udp() {
            return Err(no_relay("HTTP has no way for it"));
        }
        let mut control = TcpStream::connect((self.host.as_str(), self.port)).await?;
        self.log_in(&mut control).await?;
        // We cannot know the address that the proxy will see (RFC 1928 §6, "all zeros").
        let mut request = vec![VERSION, ASSOCIATE, 0];
        put_address(&mut request, (Ipv4Addr::UNSPECIFIED, 0).into());
        control.write_all(&request).await?;
        let mut head = [0; 4];
        control.read_exact(&mut head).await?;
        match head {
            [VERSION, 0, ..] => {}
            [VERSION, NOT_ALLOWED | NOT_SUPPORTED, ..] => return Err(no_relay("it refuses UDP ASSOCIATE")),
            [VERSION, reply, ..] => return Err(nonsense(&format_args!("it refuses UDP ASSOCIATE with {reply}"))),
            _ => return Err(nonsense(&"its answer is no SOCKS5")),
        }
        let host_len = match head[3] {
            IPV4 => 4,
            IPV6 => 16,
            NAME => usize::from(control.read_u8().await?),
            _ => return Err(nonsense(&"its relay has no address")),
        };
        let mut unread = vec![0; host_len];
        control.read_exact(&mut unread).await?;
        let port = control.read_u16().await?;
        if port == 0 {
            return Err(nonsense(&"its relay has no port"));
        }
        let relay = SocketAddr::new(control.peer_addr()?.ip(), port);
        Ok(Association { control, relay })
    }

    async fn log_in(&self, control: &mut TcpStream) -> io::Result<()> {
        match &self.credentials {
            Some(_) => control.write_all(&[VERSION, 2, NO_LOGIN, LOGIN]).await?,
            None => control.write_all(&[VERSION, 1, NO_LOGIN]).await?,
        }
        let mut chosen = [0; 2];
        control.read_exact(&mut chosen).await?;
        match (chosen, &self.credentials) {
            ([VERSION, NO_LOGIN], _) => Ok(()),
            ([VERSION, LOGIN], Some((user, password))) => {
                let mut login = vec![LOGIN_VERSION];
                for text in [user, password] {
                    // Both were checked to fit when the proxy's URL was read.
                    login.push(text.len() as u8);
                    login.extend(text.as_bytes());
                }
                control.write_all(&login).await?;
                let mut answer = [0; 2];
                control.read_exact(&mut answer).await?;
                if answer[1] == 0 { Ok(()) } else { Err(nonsense(&"it does not take the user and password")) }
            }
            ([VERSION, _], _) => {
                Err(nonsense(&"it wants a user and a password: write socks5://USER:PASSWORD@HOST:PORT"))
            }
            _ => Err(nonsense(&"its answer is no SOCKS5")),
        }
    }
}

fn no_relay(why: &str) -> io::Error {
    io::Error::new(ErrorKind::Unsupported, why)
}

fn nonsense(what: &dyn fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_string())
}

impl UdpRelay {
    /// Sends `payload` to the target.
    pub async fn send(&self, payload: &[u8]) -> io::Result<()> {
        let datagram = [&self.header, payload].concat();
        self.socket.send(&datagram).await.map(|_| ())
    }

    /// The next datagram from the target: what it holds, and whether it came by IPv6, as far as the proxy says. `buffer` has to
    /// have room for [`HEADER_LEN_MAX`] bytes more than are expected. What is none, or somebody else's, is passed over.
    ///
    /// # Errors
    /// `ConnectionAborted` where the proxy took the relay away; nothing comes after it.
    pub async fn recv<'a>(&self, buffer: &'a mut [u8]) -> io::Result<(&'a [u8], bool)> {
        let (length, is_ipv6) = loop {
            let length = tokio::select! {
                received = self.socket.recv(buffer) => received?,
                () = self.association.ended() => return Err(ErrorKind::ConnectionAborted.into()),
            };
            if let Some((source, payload)) = parse(&buffer[..length])
                && self.target.may_be(&source)
            {
                let is_ipv6 = matches!(source, Source::Address(address) if address.is_ipv6());
                break ((length - payload.len(), length), is_ipv6);
            }
        };
        Ok((&buffer[length.0..length.1], is_ipv6))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::net::TcpListener;

    use super::*;

    /// What the proxy of a test answers to the request.
    enum Answer {
        Relay(SocketAddr),
        Reply(u8),
        Bytes(&'static [u8]),
    }

    /// Accepts one caller, who has to give `login` if there is one; answers and returns the connection.
    async fn serve(listener: &TcpListener, login: Option<&[u8]>, answer: Answer) -> TcpStream {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut greeting = [0; 2];
        stream.read_exact(&mut greeting).await.unwrap();
        stream.read_exact(&mut vec![0; greeting[1].into()]).await.unwrap();
        stream.write_all(&[5, if login.is_some() { 2 } else { 0 }]).await.unwrap();
        if let Some(login) = login {
            let mut given = vec![0; login.len()];
            stream.read_exact(&mut given).await.unwrap();
            stream.write_all(&[1, u8::from(given != login)]).await.unwrap();
        }
        let mut request = [0; 10];
        if stream.read_exact(&mut request).await.is_err() {
            return stream;
        }
        assert_eq!(request, [5, 3, 0, 1, 0, 0, 0, 0, 0, 0]);
        let mut bytes = vec![5, 0, 0];
        match answer {
            Answer::Relay(address) => put_address(&mut bytes, address),
            Answer::Reply(reply) => bytes = vec![5, reply, 0, 1, 0, 0, 0, 0, 0, 0],
            Answer::Bytes(answer) => bytes = answer.to_vec(),
        }
        stream.write_all(&bytes).await.unwrap();
        if let Answer::Bytes(_) = answer {
            stream.shutdown().await.unwrap();
        }
        stream
    }

    async fn listener() -> (TcpListener, Proxy) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("socks5://u:p@{}", listener.local_addr().unwrap()).parse().unwrap();
        (listener, proxy)
    }

    fn tracker() -> UdpTarget {
        UdpTarget::new("tracker.example", 6969)
    }

    #[tokio::test]
    async fn datagrams_go_to_the_proxy_and_nowhere_else_whatever_it_says() {
        let (listener, proxy) = listener().await;
        let relay = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        // It lies about the relay's address: this one is another host's.
        let elsewhere = UdpSocket::bind(("127.0.0.2", relay.local_addr().unwrap().port())).await.unwrap();
        let answer = Answer::Relay(elsewhere.local_addr().unwrap());
        let (opened, control) =
            tokio::join!(proxy.associate(tracker()), serve(&listener, Some(b"\x01\x01u\x01p"), answer));
        let opened = opened.unwrap();
        opened.send(b"connect").await.unwrap();
        let mut buffer = [0; 512];
        let (length, from) = relay.recv_from(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..length], b"\0\0\0\x03\x0ftracker.example\x1b\x39connect");
        // Garbage, fragments, and what others sent are passed over.
        let v4 = |fragment: u8, port: u16, text: &[u8]| {
            let head = [&[0, 0, fragment, 1, 192, 0, 2, 7][..], &port.to_be_bytes()].concat();
            [&head[..], text].concat()
        };
        let hostile: [&[u8]; 7] = [
            b"",
            b"garbage",
            &[0, 0, 0],
            &[0, 0, 0, 3, 255, 1],
            &v4(1, 6969, b"a fragment"),
            &v4(0x80, 6969, b"the last fragment"),
            &v4(0, 6970, b"another port"),
        ];
        for datagram in hostile {
            relay.send_to(datagram, from).await.unwrap();
        }
        elsewhere.send_to(&v4(0, 6969, b"another relay"), from).await.unwrap();
        relay.send_to(&v4(0, 6969, b"answer"), from).await.unwrap();
        let mut buffer = [0; 512];
        assert_eq!(opened.recv(&mut buffer).await.unwrap(), (&b"answer"[..], false));
        let mut v6 = vec![0, 0, 0];
        put_address(&mut v6, "[2001:db8::1]:6969".parse().unwrap());
        relay.send_to(&[&v6[..], b"six"].concat(), from).await.unwrap();
        assert_eq!(opened.recv(&mut buffer).await.unwrap(), (&b"six"[..], true));
        assert!(elsewhere.try_recv(&mut [0; 512]).is_err(), "a datagram went past the proxy");
        // The relay lasts as long as the connection.
        drop(control);
        assert_eq!(opened.recv(&mut buffer).await.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    }

    #[tokio::test]
    async fn a_proxy_without_a_relay_is_told_from_one_that_fails() {
        let (listener, proxy) = listener().await;
        let refused = async |answer| {
            let (opened, _) = tokio::join!(proxy.associate(tracker()), serve(&listener, None, answer));
            opened.unwrap_err()
        };
        for reply in [2, 7] {
            let error = refused(Answer::Reply(reply)).await;
            assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("socks5://127"), "{error}");
        }
        for answer in [
            Answer::Reply(1),
            Answer::Bytes(b"HTTP/1.1 400"),
            Answer::Bytes(&[5, 0, 0, 9, 0, 0]),
            Answer::Relay("0.0.0.0:0".parse().unwrap()),
            Answer::Bytes(&[5, 0, 0, 3, 200, b'x']),
        ] {
            let error = refused(answer).await;
            assert_ne!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        let (opened, _) =
            tokio::join!(proxy.associate(tracker()), serve(&listener, Some(b"\x01\x01u\x01q"), Answer::Reply(0)));
        assert!(opened.unwrap_err().to_string().contains("user and password"));
        let http: Proxy = "http://127.0.0.1:1".parse().unwrap();
        assert_eq!(http.associate(tracker()).await.unwrap_err().kind(), ErrorKind::Unsupported);
    }

    proptest! {
        #[test]
        fn any_datagram_is_read_or_refused(datagram: Vec<u8>, payload: Vec<u8>, port: u16, ip: [u8; 16], is_v4: bool) {
            if let Some((_, payload)) = parse(&datagram) {
                prop_assert!(datagram.ends_with(payload));
            }
            let ip: IpAddr = if is_v4 { Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3]).into() } else { Ipv6Addr::from(ip).into() };
            let target = UdpTarget::Address((ip, port).into());
            let made = [target.header().unwrap(), payload.clone()].concat();
            let (source, read) = parse(&made).unwrap();
            prop_assert!(read == payload && target.may_be(&source));
            prop_assert!(made.len() - payload.len() <= HEADER_LEN_MAX);
        }
    }
}
