//! Leaving by the interfaces that the user names and by no other (`--interface`), for what is reached by name: trackers, web seeds, nodes
//! of the DHT. Peers are reached by [`Uplinks`](super::uplinks::Uplinks).
//!
//! The system's resolver leaves as it likes. So where interfaces are named, names are looked up here: in `/etc/hosts`, and at the servers of
//! `/etc/resolv.conf`, by those interfaces. Of systemd-resolved, which such a file names at an address of its own, the servers are asked that
//! it would ask. Another resolver on this machine is asked on this machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use anabranch_scion::lookup::dns;
use anabranch_transport::{ConnectError, Interfaces, TcpStream, Via};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

/// For one question to one server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Rounds over all servers.
const ROUNDS: usize = 2;
/// Datagrams looked at for one question: others may send to the port.
const DATAGRAMS_MAX: usize = 16;
/// RFC 1035 §4.2.1, with some room for servers that send more.
const UDP_BYTES_MAX: usize = 4096;
/// Bytes of /etc/hosts that are read: the longest lists of blocked names have some.
const HOSTS_BYTES_MAX: usize = 16 << 20;
/// Where systemd-resolved listens, and where it says whom it asks (systemd-resolved.service(8)).
const STUBS: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 53), Ipv4Addr::new(127, 0, 0, 54)];
const BEHIND_STUB: &str = "/run/systemd/resolve/resolv.conf";
/// Addresses of one name.
const ADDRESSES_MAX: usize = 16;

/// By which interfaces to leave.
#[derive(Clone, Debug, Default)]
pub struct Leave {
    names: Arc<Vec<String>>,
}

impl Leave {
    /// By those of these names; by all where there are none.
    pub fn by(names: &[String]) -> Self {
        Self { names: Arc::new(names.to_vec()) }
    }

    /// The ways to `remote`. `None`: as the system's routes go.
    fn ways(&self, remote: SocketAddr) -> io::Result<Option<Vec<Via>>> {
        if self.names.is_empty() {
            return Ok(None);
        }
        let interfaces = Interfaces::new(&self.names).map_err(io::Error::other)?;
        let ways: Vec<Via> = interfaces.candidates(&[remote]).into_iter().map(|candidate| candidate.via).collect();
        match ways.is_empty() {
            true => Err(io::Error::new(
                io::ErrorKind::NetworkUnreachable,
                "none of the interfaces that may be used leads there: see --interface",
            )),
            false => Ok(Some(ways)),
        }
    }

    /// A connection. The caller bounds the time.
    pub(crate) async fn connect(&self, remote: SocketAddr) -> io::Result<tokio::net::TcpStream> {
        let Some(ways) = self.ways(remote)? else { return tokio::net::TcpStream::connect(remote).await };
        let mut last = io::ErrorKind::NetworkUnreachable.into();
        for via in &ways {
            match TcpStream::connect(remote.into(), Some(via)).await {
                Ok(stream) => return Ok(stream.into_inner()),
                Err(error) => last = cause(error),
            }
        }
        Err(last)
    }

    /// A socket that is connected to `remote`.
    pub(crate) async fn datagrams(&self, remote: SocketAddr) -> io::Result<UdpSocket> {
        let any: IpAddr = if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let ways = self.ways(remote)?;
        let socket = match ways.as_deref().and_then(<[Via]>::first) {
            None => UdpSocket::bind((any, 0)).await?,
            Some(via) => UdpSocket::from_std(bound(via)?.into())?,
        };
        socket.connect(remote).await?;
        Ok(socket)
    }

    /// The addresses of a host.
    ///
    /// # Errors
    /// Where it is not known, or nobody says so.
    pub async fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if self.names.is_empty() {
            return Ok(tokio::net::lookup_host((host, port)).await?.take(ADDRESSES_MAX).collect());
        }
        let at = |ip: IpAddr| SocketAddr::new(ip, port);
        if let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(vec![at(ip)]);
        }
        let known = named_in_hosts(&read_start("/etc/hosts"), host);
        if !known.is_empty() {
            return Ok(known.into_iter().map(at).collect());
        }
        let servers = servers_to_ask(&read_start("/etc/resolv.conf"), || read_start(BEHIND_STUB));
        let (v4, v6) = tokio::join!(self.ask_all(host, false, &servers), self.ask_all(host, true, &servers));
        let found: Vec<IpAddr> = match (v4, v6) {
            (Err(error), Err(_)) => return Err(error),
            (v4, v6) => v4.into_iter().chain(v6).flatten().take(ADDRESSES_MAX).collect(),
        };
        match found.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "no server knows the name")),
            false => Ok(found.into_iter().map(at).collect()),
        }
    }

    async fn ask_all(&self, host: &str, is_ipv6: bool, servers: &[SocketAddr]) -> io::Result<Vec<IpAddr>> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "/etc/resolv.conf names no server");
        for server in (0..ROUNDS).flat_map(|_| servers) {
            let asked = tokio::time::timeout(ANSWER_TIMEOUT, self.ask(host, is_ipv6, *server)).await;
            match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(found) => return Ok(found),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn ask(&self, host: &str, is_ipv6: bool, server: SocketAddr) -> io::Result<Vec<IpAddr>> {
        // Unguessable together with the source port, which the system draws (RFC 5452 §4).
        let query = dns::query_for(fastrand::u16(..), host, is_ipv6).ok_or(io::ErrorKind::InvalidInput)?;
        let socket = self.datagrams(server).await?;
        socket.send(&query).await?;
        let mut buffer = [0; UDP_BYTES_MAX];
        for _ in 0..DATAGRAMS_MAX {
            let len = socket.recv(&mut buffer).await?;
            match dns::parse_addresses(&buffer[..len], &query) {
                Some(Ok(found)) => return Ok(found),
                Some(Err(dns::TooLong)) => {
                    // RFC 1035 §4.2.2: two bytes of length before each message.
                    let mut stream = self.connect(server).await?;
                    stream.write_all(&[&(query.len() as u16).to_be_bytes(), &query[..]].concat()).await?;
                    let mut message = vec![0; stream.read_u16().await?.into()];
                    stream.read_exact(&mut message).await?;
                    let found = dns::parse_addresses(&message, &query).and_then(Result::ok);
                    return found.ok_or_else(|| io::ErrorKind::InvalidData.into());
                }
                None => {}
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// What the system says.
fn cause(error: ConnectError) -> io::Error {
    match error {
        ConnectError::Over { source, .. } => cause(*source),
        ConnectError::Io { source, .. } => source,
        ConnectError::TimedOut(_) => io::ErrorKind::TimedOut.into(),
        other => io::Error::other(other),
    }
}

/// A UDP socket that leaves by one interface.
pub(crate) fn bound(via: &Via) -> io::Result<Socket> {
    let domain = if via.source.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), None)?;
    if !via.is_local {
        match socket.bind_device(Some(via.interface.as_bytes())) {
            // Before Linux 5.7, and in some sandboxes, that takes a privilege. The address alone does where routes heed it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            result => result?,
        }
    }
    let local: SocketAddr = match via.source {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, 0, 0, via.index).into(),
        ip => SocketAddr::new(ip, 0),
    };
    socket.bind(&local.into())?;
    Ok(socket)
}

/// A file of the system's; empty where there is none.
fn read_start(path: &str) -> String {
    let mut bytes = std::fs::read(path).unwrap_or_default();
    bytes.truncate(HOSTS_BYTES_MAX);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The servers of a file like `/etc/resolv.conf`; those of `behind` where systemd-resolved is the only one.
fn servers_to_ask(text: &str, behind: impl FnOnce() -> String) -> Vec<SocketAddr> {
    let named = dns::servers(text);
    let is_stub = |server: &SocketAddr| STUBS.iter().any(|stub| server.ip() == *stub);
    if !named.iter().all(is_stub) {
        return named;
    }
    let behind = dns::servers(&behind());
    if behind.is_empty() { named } else { behind }
}

/// The addresses that a file like /etc/hosts has for a name, which compares without case.
fn named_in_hosts(text: &str, host: &str) -> Vec<IpAddr> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let of_line = |line: &str| {
        let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
        let ip = words.next()?.parse().ok()?;
        words.any(|name| name.eq_ignore_ascii_case(host)).then_some(ip)
    };
    text.lines().filter_map(of_line).take(ADDRESSES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_known_by_any_of_their_names() {
        let text = "127.0.0.1 localhost\n# 192.0.2.9 b\n192.0.2.7\ta.example A # b\n2001:db8::7 a.example\nnonsense a.example\n";
        let known = |host| named_in_hosts(text, host).iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(known("A.Example."), ["192.0.2.7", "2001:db8::7"]);
        assert_eq!((known("a"), known("b")), (vec!["192.0.2.7".to_owned()], vec![]));
    }

    #[test]
    fn whom_systemd_resolved_would_ask_is_asked() {
        let asked = |text: &str, behind: &str| {
            servers_to_ask(text, || behind.to_owned()).iter().map(|server| server.ip().to_string()).collect::<Vec<_>>()
        };
        let (stub, behind) = ("nameserver 127.0.0.53\noptions edns0\n", "nameserver 10.1.0.1\nnameserver fd00::1\n");
        assert_eq!(asked(stub, behind), ["10.1.0.1", "fd00::1"]);
        assert_eq!(asked(stub, ""), ["127.0.0.53"]);
        assert_eq!(asked("nameserver 127.0.0.1\n", behind), ["127.0.0.1"]);
        assert_eq!(asked("nameserver 127.0.0.53\nnameserver 192.0.2.1\n", behind), ["127.0.0.53", "192.0.2.1"]);
    }

    #[tokio::test]
    async fn what_an_interface_does_not_reach_is_not_reached() {
        let only = Leave::by(&["lo".to_owned()]);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        assert!(only.connect(listener.local_addr().unwrap()).await.is_ok());
        let abroad = "192.0.2.1:80".parse().unwrap();
        for error in [only.connect(abroad).await.unwrap_err(), only.datagrams(abroad).await.unwrap_err()] {
            assert!(error.to_string().contains("--interface"), "{error}");
        }
        assert_eq!(only.look_up("192.0.2.1", 80).await.unwrap(), [abroad]);
        assert_eq!(only.look_up("localhost", 80).await.unwrap()[0].ip().to_string(), "127.0.0.1");
    }
}
