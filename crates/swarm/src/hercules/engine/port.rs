//! One socket: what comes is told apart here.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use anabranch_hercules::CONTROL_PACKET_MAX;
use anabranch_hercules::wire::seal::{DATA_HEAD_LEN, Head, Kind};
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_transport::control::Inlet;
use anabranch_transport::datagram::{Path, Place, Receiver, Sender, Socket};

use super::Route;
use super::incoming::Incoming;
use super::outgoing::Outgoing;

/// Packets received with one call, and their memory.
const PLACES: usize = 128;
const PLACES_BYTES: usize = 4 << 20;
/// What a place has room for at least: QUIC's packets and control.
const PACKET_LEN_MIN: usize = 1500;
/// Calls before the rest has its turn.
const CALLS_PER_TURN: usize = 8;

pub(super) struct Port {
    pub(super) socket: Socket,
    pub(super) receiver: Receiver,
    inlet: Inlet,
    packets: Vec<u8>,
    packet_len: usize,
}

/// Where a packet came from, as far as one has to know to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct From<'a> {
    pub port: usize,
    from: SocketAddr,
    local: Option<IpAddr>,
    scion: Option<ScionAddr>,
    headers: &'a [u8],
}

impl From<'_> {
    /// The remote's address.
    pub(super) fn remote(&self) -> Endpoint {
        match self.scion {
            None => self.from.into(),
            Some(_) => match self.back() {
                Some(path) => path.remote(),
                None => self.from.into(),
            },
        }
    }

    /// The way back.
    pub(super) fn back(&self) -> Option<Path> {
        match self.scion {
            None => Some(Path::back_ip(self.from, self.local)),
            Some(local) => Path::back(local, self.headers, self.from, 0).ok(),
        }
    }

    pub(super) fn route(&self) -> Option<Route> {
        Some(Route { port: self.port, path: self.back()? })
    }
}

impl Port {
    pub(super) fn new(socket: Socket, inlet: Inlet) -> Self {
        let receiver = socket.receiver();
        let mut port = Self { socket, receiver, inlet, packets: Vec::new(), packet_len: 0 };
        port.expect(0);
        port
    }

    /// Chunks of this length at most will come.
    pub(super) fn expect(&mut self, chunk_len: usize) {
        // Shorter ones than there is room for still come in bursts; each burst's packets lie at places of their own.
        let packet_len = (DATA_HEAD_LEN + chunk_len).max(PACKET_LEN_MIN);
        if packet_len == self.packet_len {
            return;
        }
        self.packet_len = packet_len;
        let places = (PLACES_BYTES / packet_len).clamp(16, PLACES);
        self.packets = vec![0; places * packet_len];
    }

    pub(super) fn sender(&self, path: &Path) -> Option<Sender> {
        self.socket.sender(path).ok()
    }
}

/// Receives from the port `at` and hands on what came. Whether there may be more.
pub(super) fn receive(
    ports: &mut [Port],
    at: usize,
    now: Instant,
    senders: &mut HashMap<u32, Outgoing>,
    receivers: &mut HashMap<u32, Incoming>,
) -> bool {
    for _ in 0..CALLS_PER_TURN {
        if !receivers.values_mut().all(Incoming::has_room) {
            // What comes waits in the socket until the disk has taken some.
            return false;
        }
        let Some(Port { socket, receiver, inlet, packets, packet_len }) = ports.get_mut(at) else { return false };
        let scion = socket.local_scion();
        // One part a packet: the system pays for each.
        let places = packets.chunks_exact_mut(*packet_len).map(|body| Place { head: &mut [], body });
        let mut places: Vec<Place<'_>> = places.collect();
        let places_len = places.len();
        let batch = match receiver.recv(&mut places) {
            Ok(batch) => batch,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // An error that an earlier packet's fate left on the socket.
            Err(_) => continue,
        };
        for received in batch {
            let packet = &mut packets[received.place * *packet_len..][..*packet_len];
            if received.is_truncated || received.len == 0 {
                continue;
            }
            let packet = &mut packet[..received.len];
            let headers = batch.headers(received);
            let from = From { port: at, from: received.from, local: received.local, scion, headers };
            if !(8..=10).contains(&packet[0]) {
                inlet.deliver(from.remote(), [packet, &[]], || from.back());
                continue;
            }
            let Ok(fields) = Head::peek(packet) else { continue };
            match fields.kind {
                Kind::Data => {
                    let receiver = receivers.get_mut(&fields.transfer);
                    if let (Some(receiver), Some((head, body))) = (receiver, packet.split_first_chunk_mut()) {
                        receiver.on_data(head, body, now);
                    }
                }
                _ if packet.len() > CONTROL_PACKET_MAX => {}
                Kind::FromSender => {
                    if let Some(receiver) = receivers.get_mut(&fields.transfer) {
                        receiver.on_control(packet, &from, now);
                    }
                }
                Kind::FromReceiver => {
                    if let Some(sender) = senders.get_mut(&fields.transfer) {
                        sender.on_control(packet, &from, now);
                    }
                }
            }
        }
        // Far from full, the call took all there was: another would find nothing, and to wait costs less.
        let drained = batch.len() < places_len / 2;
        for receiver in receivers.values_mut() {
            receiver.settle_routes(ports);
        }
        for sender in senders.values_mut() {
            sender.settle_routes(ports);
        }
        if drained {
            return false;
        }
    }
    true
}
