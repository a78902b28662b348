//! Sockets: asking over a path, and answering.

use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use sciparse::address::host_addr::ScionHostAddr;
use sciparse::address::socket_addr::ScionSocketAddr;
use sciparse::dataplane_path::view::ScionDpPathViewExt;
use sciparse::identifier::isd_asn::IsdAsn;
use sciparse::packet::classify::ClassifiedPacket;
use sciparse::packet::model::{ScionScmpPacket, ScionUdpPacket};
use sciparse::path::ScionPath;
use sciparse::payload::scmp::model::{ScmpEchoReply, ScmpEchoRequest, ScmpMessage};

use crate::lookup::Daemon;
use crate::packet::{decode, encode};

const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// Where hosts take SCMP requests (SCION, "End host port").
const SCMP_PORT: u16 = 30041;
const PACKET_LEN_MAX: usize = 9000;
/// Echo sequence of the one request that a socket sends.
const SEQUENCE: u16 = 7;

/// How it went.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The same bytes came back.
    Ok,
    /// Others did.
    Wrong,
    /// Nothing did.
    Timeout,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Wrong => "wrong",
            Self::Timeout => "timeout",
        })
    }
}

/// A host with one socket, for one path.
pub struct Host {
    local: ScionSocketAddr,
    socket: UdpSocket,
    next_hop: SocketAddr,
}

impl Host {
    /// A socket on a port that the routers deliver to, at the address that the path's first router reaches this host by.
    pub fn towards(daemon: &Daemon, path: &ScionPath, ip: IpAddr) -> Result<Self> {
        // Inside one AS there is no router on the way.
        let next_hop = path.next_hop().unwrap_or(SocketAddr::new(ip, SCMP_PORT));
        let unspecified = SocketAddr::new(if ip.is_ipv4() { [0; 4].into() } else { [0; 16].into() }, 0);
        let probe = UdpSocket::bind(unspecified)?;
        probe.connect(next_hop).with_context(|| format!("no way to {next_hop}"))?;
        let own = probe.local_addr()?.ip();
        let mut ports = daemon.ports();
        let socket = ports.find_map(|port| UdpSocket::bind((own, port)).ok()).context("no free port")?;
        let local = ScionSocketAddr::new(daemon.home(), ScionHostAddr::from_ip(own), socket.local_addr()?.port());
        Ok(Self { local, socket, next_hop })
    }

    /// An SCMP echo.
    pub fn ping(&self, path: &ScionPath, ip: IpAddr, payload: &[u8]) -> Result<Outcome> {
        // Answers come to the port that the identifier names.
        let identifier = self.local.port();
        let remote = ScionSocketAddr::new(path.dst_ia(), ScionHostAddr::from_ip(ip), SCMP_PORT);
        let request = ScmpEchoRequest::new(identifier, SEQUENCE, payload.to_vec());
        let (from, to) = (self.local.scion_addr(), remote.scion_addr());
        let packet = encode(ScionScmpPacket::new(from, to, path.dp_path().to_model(), request.into()))?;
        self.ask(&packet, SCMP_PORT, |answer| match answer {
            ClassifiedPacket::Scmp(answer) => match answer.payload {
                ScmpMessage::EchoReply(reply)
                    if (reply.identifier, reply.sequence_number) == (identifier, SEQUENCE) =>
                {
                    Some(reply.data == payload)
                }
                _ => None,
            },
            _ => None,
        })
    }

    /// A datagram, which should come back.
    pub fn send(&self, path: &ScionPath, ip: IpAddr, port: u16, payload: &[u8]) -> Result<Outcome> {
        let remote = ScionSocketAddr::new(path.dst_ia(), ScionHostAddr::from_ip(ip), port);
        let packet = encode(ScionUdpPacket::new(self.local, remote, path.dp_path().to_model(), payload.to_vec()))?;
        self.ask(&packet, port, |answer| match answer {
            ClassifiedPacket::Udp(answer) if answer.src_socket_addr().ok() == Some(remote) => {
                Some(answer.payload.payload == payload && answer.dst_socket_addr().ok() == Some(self.local))
            }
            _ => None,
        })
    }

    /// Sends, and waits for what `judge` has an opinion on.
    fn ask(&self, packet: &[u8], port: u16, judge: impl Fn(ClassifiedPacket) -> Option<bool>) -> Result<Outcome> {
        let mut to = self.next_hop;
        if to.port() == SCMP_PORT {
            to.set_port(port);
        }
        self.socket.send_to(packet, to)?;
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut buffer = [0; PACKET_LEN_MAX];
        while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.socket.set_read_timeout(Some(left))?;
            let (len, _) = match self.socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                // Nobody listens at `to`.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => break,
                Err(error) => return Err(error.into()),
            };
            let answer = decode(&buffer[..len]).context("an answer")?;
            let answer = answer.try_classify().map_err(|error| anyhow!("an answer: {error:?}"))?;
            match judge(answer) {
                Some(true) => return Ok(Outcome::Ok),
                Some(false) => return Ok(Outcome::Wrong),
                None => {}
            }
        }
        Ok(Outcome::Timeout)
    }
}

/// Answers datagrams and echo requests for good.
pub fn serve(home: IsdAsn, ip: IpAddr, port: u16) -> Result<bool> {
    let bind = |port| UdpSocket::bind((ip, port)).with_context(|| format!("cannot bind {ip}:{port}"));
    let sockets = [bind(port)?, bind(SCMP_PORT)?];
    println!("ready");
    std::thread::scope(|scope| {
        let threads = sockets.map(|socket| scope.spawn(move || answer_all(home, &socket)));
        for thread in threads {
            if let Ok(Err(error)) = thread.join() {
                return Err(error);
            }
        }
        bail!("both sockets ended")
    })
}

fn answer_all(home: IsdAsn, socket: &UdpSocket) -> Result<()> {
    let mut buffer = [0; PACKET_LEN_MAX];
    loop {
        let (len, router) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            // About an answer that found nobody.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error.into()),
        };
        match answer(home, &buffer[..len]) {
            Ok(answer) => _ = socket.send_to(&answer, router)?,
            Err(error) => eprintln!("not answered: {error:#}"),
        }
    }
}

/// The answer to one packet.
fn answer(home: IsdAsn, packet: &[u8]) -> Result<Vec<u8>> {
    let packet = decode(packet)?;
    let (from, to) = (packet.src_scion_addr()?, packet.dst_scion_addr()?);
    if to.isd_asn() != home {
        bail!("a packet for {to}");
    }
    let back = packet.header.path.clone().try_into_reversed().map_err(|(_, error)| anyhow!("{error:?}"))?;
    match packet.try_classify().map_err(|error| anyhow!("{error:?}"))? {
        ClassifiedPacket::Udp(asked) => {
            let (from, to) = (asked.src_socket_addr()?, asked.dst_socket_addr()?);
            encode(ScionUdpPacket::new(to, from, back, asked.payload.payload))
        }
        ClassifiedPacket::Scmp(asked) => match asked.payload {
            ScmpMessage::EchoRequest(ScmpEchoRequest { identifier, sequence_number, data }) => {
                let reply = ScmpEchoReply::new(identifier, sequence_number, data);
                encode(ScionScmpPacket::new(to, from, back, reply.into()))
            }
            other => bail!("SCMP that asks nothing: {other:?}"),
        },
        other => bail!("neither UDP nor SCMP: {other:?}"),
    }
}
