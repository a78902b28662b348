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
/// What a body has at least: QUIC's packets and control.
const BODY_LEN_MIN: usize = 1500;
/// Calls before the rest has its turn.
const CALLS_PER_TURN: usize = 8;

pub(super) struct Port {
    pub(super) socket: Socket,
    pub(super) receiver: Receiver,
    inlet: Inlet,
    heads: Vec<[u8; DATA_HEAD_LEN]>,
    bodies: Vec<u8>,
    body_len: usize,
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
        let mut port = Self { socket, receiver, inlet, heads: Vec::new(), bodies: Vec::new(), body_len: 0 };
        port.expect(BODY_LEN_MIN);
        port
    }

    /// Chunks of this length at most will come.
    pub(super) fn expect(&mut self, chunk_len: usize) {
        // Shorter ones than there is room for still come in bursts; each burst's packets lie at places of their own.
        let body_len = chunk_len.max(BODY_LEN_MIN - DATA_HEAD_LEN);
        if body_len == self.body_len {
            return;
        }
        self.body_len = body_len;
        let places = (PLACES_BYTES / self.body_len).clamp(16, PLACES);
        self.heads = vec![[0; DATA_HEAD_LEN]; places];
        self.bodies = vec![0; places * self.body_len];
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
        let Some(port) = ports.get_mut(at) else { return false };
        let scion = port.socket.local_scion();
        let (received, headers): (Vec<_>, Vec<u8>) = {
            let places = port.heads.iter_mut().zip(port.bodies.chunks_mut(port.body_len));
            let mut places: Vec<Place<'_>> = places.map(|(head, body)| Place { head, body }).collect();
            match port.receiver.recv(&mut places) {
                Ok(batch) => {
                    // The headers of those that may need an answer by a new way; over IP there are none.
                    let mut headers = Vec::new();
                    let keep = |received: &anabranch_transport::datagram::Received| {
                        let start = headers.len();
                        headers.extend_from_slice(batch.headers(received));
                        (*received, start..headers.len())
                    };
                    (batch.iter().map(keep).collect(), headers)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // An error that an earlier packet's fate left on the socket.
                Err(_) => continue,
            }
        };
        for (packet, header) in received {
            let head = &mut port.heads[packet.place];
            let body = &mut port.bodies[packet.place * port.body_len..][..port.body_len];
            if packet.is_truncated || packet.len == 0 {
                continue;
            }
            let head_len = packet.len.min(DATA_HEAD_LEN);
            let body = &mut body[..packet.len - head_len];
            let from = From { port: at, from: packet.from, local: packet.local, scion, headers: &headers[header] };
            if !(8..=10).contains(&head[0]) {
                port.inlet.deliver(from.remote(), [&head[..head_len], body], || from.back());
                continue;
            }
            let Ok(fields) =
                Head::peek(&head[..head_len]).or_else(|_| Head::peek(&[&head[..head_len], &body[..]].concat()))
            else {
                continue;
            };
            match fields.kind {
                Kind::Data => {
                    if let Some(receiver) = receivers.get_mut(&fields.transfer) {
                        receiver.on_data(head, body, now);
                    }
                }
                Kind::FromSender | Kind::FromReceiver => {
                    let mut control = [0; CONTROL_PACKET_MAX];
                    let Some(control) = control.get_mut(..packet.len) else { continue };
                    control[..head_len].copy_from_slice(&head[..head_len]);
                    control[head_len..].copy_from_slice(body);
                    if fields.kind == Kind::FromSender {
                        if let Some(receiver) = receivers.get_mut(&fields.transfer) {
                            receiver.on_control(control, &from, now);
                        }
                    } else if let Some(sender) = senders.get_mut(&fields.transfer) {
                        sender.on_control(control, &from, now);
                    }
                }
            }
        }
        for receiver in receivers.values_mut() {
            receiver.settle_routes(ports);
        }
        for sender in senders.values_mut() {
            sender.settle_routes(ports);
        }
    }
    true
}
