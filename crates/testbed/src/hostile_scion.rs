//! SCION hosts that mean harm: packets, written by hand, at a host that is busy with a transfer.
//!
//! Some come the way that packets come, over routers, which have seen to it that their path leads there. Others are written
//! inside the victim's AS and handed over without a router; and some as if they came from one, which takes an attacker on the
//! router's machine, or a network that lets its hosts send from others' addresses.
//!
//! Nothing here comes at the rate of a flood: what fills a line is no matter of programs.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anabranch_asnet::network::Network;
use anabranch_paths::{IsdAs, ScionAddr, ScionPath};
use anabranch_scion_wire::scmp::{EchoId, Message, ProblemCode, UnreachableCode};
use anabranch_scion_wire::{Address, HeaderFields, HeaderTemplate, PathRef, Ports, checksum};

use crate::{Error, Result};

/// Packets leave in one go so often.
const BATCH_EVERY: Duration = Duration::from_millis(10);
/// Ports of one host that packets come from, by turns.
const PORTS: u16 = 4096;
/// The shortest datagram that may open a QUIC connection (RFC 9000 §14.1).
const INITIAL_LEN: usize = 1200;
/// A path's meta header and info fields, in bytes (SCION header, "Path Type: SCION").
const META_LEN: usize = 4;
const INFO_LEN: usize = 8;
const HOP_LEN: usize = 12;
/// Where a hop field's time and MAC lie in it.
const HOP_EXPIRY: usize = 1;
const HOP_MAC: std::ops::Range<usize> = 6..12;
// Where the common header has its lengths.
const HEADER_LEN_AT: usize = 5;
const PAYLOAD_LEN_AT: usize = 6;

/// What a host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScionTrick {
    /// Speaks from each of its ports.
    Ports,
    /// Opens QUIC connections from each of its ports, and never goes on.
    Initials,
    /// Versions of QUIC that do not exist.
    Versions,
    /// Asks for echoes.
    Echoes,
    /// Packets of the peer's, from an address that is no router, that lead answers elsewhere for a year.
    Astray,
    /// The same as if from a router.
    AstrayByRouter,
    /// Says that links of the path are down.
    Down,
    /// The same, quoting garbage.
    DownGarbage,
    /// Says that ASes cannot forward, that the peer is unreachable, and that its packets are too large or malformed.
    Troubles,
    /// Answers of echoes that nobody asked for.
    EchoReplies,
    /// Headers as long as they can be, with 64 hops.
    LongHeaders,
    /// Lengths that are not so.
    WrongLengths,
    /// Paths that nobody has sealed, over a router.
    MadeUpPaths,
    /// QUIC packets of the peer's that nobody can decrypt.
    Undecryptable,
    /// Noise.
    Noise,
}

impl ScionTrick {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Ports,
        Self::Initials,
        Self::Versions,
        Self::Echoes,
        Self::Astray,
        Self::AstrayByRouter,
        Self::Down,
        Self::DownGarbage,
        Self::Troubles,
        Self::EchoReplies,
        Self::LongHeaders,
        Self::WrongLengths,
        Self::MadeUpPaths,
        Self::Undecryptable,
        Self::Noise,
    ];

    fn stand(self) -> Stand {
        match self {
            Self::Ports | Self::Initials | Self::Versions | Self::Echoes | Self::MadeUpPaths => Stand::Afar,
            Self::Astray | Self::Noise => Stand::Beside,
            _ => Stand::AtRouter,
        }
    }
}

/// Where a packet is handed to the network.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stand {
    /// In the peer's AS, to the router there.
    Afar,
    /// In the victim's AS, to the victim.
    Beside,
    /// The same, from the router's address.
    AtRouter,
}

/// A running host.
pub struct HostileHost {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
}

impl HostileHost {
    /// Does `trick` to `victim`, who is connected with `peer`, so often in a second, until dropped.
    ///
    /// # Errors
    /// When no socket can be had, or there is no path between the two.
    pub fn start(
        trick: ScionTrick,
        packets_per_sec: u32,
        network: &Network,
        victim: ScionAddr,
        peer: ScionAddr,
    ) -> Result<Self> {
        let batch = (packets_per_sec * BATCH_EVERY.as_millis() as u32 / 1000).max(1);
        let mut host = Host::new(trick.stand(), network, victim, peer)?;
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        std::thread::spawn({
            let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
            move || {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..batch {
                        let packet = host.packet(trick, number);
                        // A full buffer loses packets, and so does a line.
                        let _ = host.socket.send_to(&packet, host.next_hop);
                        number += 1;
                    }
                    sent.fetch_add(batch.into(), Ordering::Relaxed);
                    std::thread::sleep(BATCH_EVERY);
                }
            }
        });
        Ok(Self { stop, sent })
    }

    /// Packets sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for HostileHost {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Host {
    socket: UdpSocket,
    next_hop: SocketAddr,
    victim: ScionAddr,
    peer: ScionAddr,
    /// From the peer's AS to the victim's.
    path: ScionPath,
    /// From the victim's AS to the peer's.
    back: ScionPath,
    random: fastrand::Rng,
}

impl Host {
    fn new(stand: Stand, network: &Network, victim: ScionAddr, peer: ScionAddr) -> Result<Self> {
        let path = path(network, peer.isd_as, victim.isd_as)?;
        let back = self::path(network, victim.isd_as, peer.isd_as)?;
        let routers = path.next_hop.zip(back.next_hop).ok_or_else(|| nonsense("no router".to_owned()))?;
        let next_hop = if stand == Stand::Afar { routers.0 } else { victim.host };
        let local = match stand {
            Stand::Afar => peer.host.ip(),
            Stand::AtRouter => routers.1.ip(),
            Stand::Beside => Ipv4Addr::LOCALHOST.into(),
        };
        let socket = UdpSocket::bind((local, 0)).map_err(Error::system(format!("a socket at {local}")))?;
        Ok(Self { socket, next_hop, victim, peer, path, back, random: fastrand::Rng::new() })
    }

    fn packet(&mut self, trick: ScionTrick, number: u32) -> Vec<u8> {
        let port = 1024 + (number % u32::from(PORTS)) as u16;
        let stranger = ScionAddr::new(self.peer.isd_as, SocketAddr::new(self.peer.host.ip(), port));
        let as_sent = self.path.dataplane.clone();
        let noise = |random: &mut fastrand::Rng, len| (0..len).map(|_| random.u8(..)).collect::<Vec<u8>>();
        match trick {
            ScionTrick::Ports => self.datagram(stranger, &as_sent, b"hello"),
            ScionTrick::Initials => {
                let initial = quic_long(&mut self.random, 0xc0, 1);
                self.datagram(stranger, &as_sent, &initial)
            }
            ScionTrick::Versions => {
                let version = self.random.u32(..);
                let initial = quic_long(&mut self.random, 0x80, version);
                self.datagram(stranger, &as_sent, &initial)
            }
            ScionTrick::Echoes => {
                let id = EchoId { identifier: port, sequence: number as u16 };
                self.scmp(stranger, &as_sent, &Message::EchoRequest { id, data: &[7; 1000] })
            }
            ScionTrick::Astray | ScionTrick::AstrayByRouter => {
                let hours = [7, 23, 24 * 365][number as usize % 3];
                let path = self.astray(hours);
                self.datagram(self.peer, &path, &[0x40; 1000])
            }
            ScionTrick::Down | ScionTrick::DownGarbage => {
                let quote = self.quote(trick == ScionTrick::DownGarbage);
                let at = self.back.interfaces[number as usize % self.back.interfaces.len()];
                let complaint = Message::ExternalInterfaceDown { isd_as: at.isd_as, interface: at.id, quote: &quote };
                self.scmp(ScionAddr::new(at.isd_as, self.peer.host), &as_sent, &complaint)
            }
            ScionTrick::Troubles => {
                let quote = self.quote(number % 16 > 3);
                let at = self.back.interfaces[1];
                let trouble = match number % 4 {
                    0 => Message::InternalConnectivityDown {
                        isd_as: at.isd_as,
                        ingress: at.id,
                        egress: 0,
                        quote: &quote,
                    },
                    1 => Message::DestinationUnreachable { code: UnreachableCode(4), quote: &quote },
                    2 => Message::PacketTooBig { mtu: 1, quote: &quote },
                    _ => Message::ParameterProblem { code: ProblemCode(65), pointer: u16::MAX, quote: &quote },
                };
                self.scmp(ScionAddr::new(at.isd_as, self.peer.host), &as_sent, &trouble)
            }
            ScionTrick::EchoReplies => {
                let id = EchoId { identifier: self.victim.host.port(), sequence: number as u16 };
                self.scmp(self.peer, &as_sent, &Message::EchoReply { id, data: &[7; 24] })
            }
            ScionTrick::LongHeaders => {
                let path = self.long_path();
                self.datagram(stranger, &path, &[7; 400])
            }
            ScionTrick::WrongLengths => {
                let mut packet = self.datagram(self.peer, &as_sent, &[7; 400]);
                match number % 4 {
                    0 => packet[HEADER_LEN_AT] = self.random.u8(..),
                    1 => packet[PAYLOAD_LEN_AT..][..2].copy_from_slice(&self.random.u16(..).to_be_bytes()),
                    2 => packet.truncate(self.random.usize(..packet.len())),
                    _ => packet.extend(noise(&mut self.random, 500)),
                }
                packet
            }
            ScionTrick::MadeUpPaths => {
                let mut path = as_sent;
                let first_hop = path.len() - self.hops() * HOP_LEN;
                for byte in &mut path[first_hop..] {
                    *byte = self.random.u8(..);
                }
                self.datagram(stranger, &path, &[7; 400])
            }
            ScionTrick::Undecryptable => {
                let mut payload = noise(&mut self.random, INITIAL_LEN);
                // A short header (RFC 9000 §17.3).
                payload[0] = 0x40 | payload[0] & 0x3f;
                self.datagram(self.peer, &as_sent, &payload)
            }
            ScionTrick::Noise => noise(&mut self.random, 1 + number as usize % 1400),
        }
    }

    fn hops(&self) -> usize {
        (self.path.dataplane.len() - META_LEN) / HOP_LEN
    }

    /// The path with seals of nobody's, that ends in so many hours.
    fn astray(&mut self, hours: u32) -> Vec<u8> {
        let mut path = self.path.dataplane.clone();
        let infos = infos(&path);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() as u32;
        for info in 0..infos {
            let time = META_LEN + info * INFO_LEN + 4;
            path[time..time + 4].copy_from_slice(&now.wrapping_add(hours * 3600).to_be_bytes());
        }
        for hop in path[META_LEN + infos * INFO_LEN..].chunks_mut(HOP_LEN) {
            hop[HOP_EXPIRY] = 0;
            hop[HOP_MAC].iter_mut().for_each(|byte| *byte = self.random.u8(..));
        }
        path
    }

    /// Three segments of 21 hops: as many as a path may have, and invented.
    fn long_path(&mut self) -> Vec<u8> {
        let lens = 21u32 << 12 | 21 << 6 | 21;
        let mut path = lens.to_be_bytes().to_vec();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() as u32;
        for _ in 0..3 {
            path.extend([1, 0, 0, 0]);
            path.extend(now.to_be_bytes());
        }
        for _ in 0..63 {
            path.extend([0, 63]);
            path.extend((0..HOP_LEN - 2).map(|_| self.random.u8(1..)));
        }
        path
    }

    /// A packet of the victim's, or what is none.
    fn quote(&mut self, garbage: bool) -> Vec<u8> {
        if garbage {
            return (0..self.random.usize(1..500)).map(|_| self.random.u8(..)).collect();
        }
        write(self.victim, self.peer, &self.back.dataplane, &[7; 100])
    }

    fn datagram(&self, from: ScionAddr, path: &[u8], payload: &[u8]) -> Vec<u8> {
        write(from, self.victim, path, payload)
    }

    fn scmp(&self, from: ScionAddr, path: &[u8], message: &Message<'_>) -> Vec<u8> {
        let mut packet = vec![0; 4096];
        let len = fields(from, self.victim, path).and_then(|fields| message.write(&fields, &mut packet).ok());
        packet.truncate(len.unwrap_or(0));
        packet
    }
}

/// A datagram between two hosts; empty where the path is none.
fn write(from: ScionAddr, to: ScionAddr, path: &[u8], payload: &[u8]) -> Vec<u8> {
    let ports = Ports { source: from.host.port(), destination: to.host.port() };
    let template = fields(from, to, path).and_then(|fields| HeaderTemplate::new(&fields, ports).ok());
    let Some(template) = template else { return Vec::new() };
    let mut packet = vec![0; template.header_len()];
    if template.write(payload.len(), checksum::sum(payload), &mut packet).is_err() {
        return Vec::new();
    }
    packet.extend_from_slice(payload);
    packet
}

fn fields(from: ScionAddr, to: ScionAddr, path: &[u8]) -> Option<HeaderFields<'_>> {
    let address = |of: ScionAddr| Address::new(of.isd_as, of.host.ip());
    let path = PathRef::from_dataplane(path).ok()?;
    Some(HeaderFields { source: address(from), destination: address(to), path, flow_id: 1, traffic_class: 0 })
}

/// The start of a handshake, as far as one can tell without keys (RFC 9000 §17.2.2).
fn quic_long(random: &mut fastrand::Rng, first: u8, version: u32) -> Vec<u8> {
    let mut packet = vec![first | 0x03];
    packet.extend(version.to_be_bytes());
    for _ in 0..2 {
        packet.push(8);
        packet.extend(random.u64(..).to_be_bytes());
    }
    packet.push(0);
    // The rest of the datagram, as a variable-length integer of two bytes.
    let rest = INITIAL_LEN - packet.len() - 2;
    packet.extend((0x4000 | rest as u16).to_be_bytes());
    packet.extend((0..rest).map(|_| random.u8(..)));
    packet
}

/// Info fields of a path: one for each segment that has a length.
fn infos(path: &[u8]) -> usize {
    let meta = path.first_chunk().map_or(0, |meta| u32::from_be_bytes(*meta));
    [12, 6, 0].into_iter().filter(|shift| meta >> shift & 0x3f != 0).count()
}

fn path(network: &Network, from: IsdAs, to: IsdAs) -> Result<ScionPath> {
    let found = network.control().paths(from, to, SystemTime::now()).map_err(|error| nonsense(error.to_string()))?;
    found.into_iter().next().ok_or_else(|| nonsense(format!("no path from {from} to {to}")))
}

fn nonsense(what: String) -> Error {
    Error::Nonsense { name: "a hostile host".into(), what }
}
