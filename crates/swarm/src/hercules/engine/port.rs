//! One socket: what comes is told apart here.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use anabranch_hercules::CONTROL_PACKET_MAX;
use anabranch_hercules::wire::seal::{Head, Kind};
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_transport::control::Inlet;
use anabranch_transport::datagram::{Path, Receiver, Sender, Socket};

use super::Route;
use super::incoming::Incoming;
use super::outgoing::Outgoing;

/// Calls before the rest has its turn.
const CALLS_PER_TURN: usize = 8;

pub(super) struct Port {
    pub(super) socket: Socket,
    pub(super) receiver: Receiver,
    inlet: Inlet,
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
            None => Some(Path::back_ip(self.from, self.local, 0)),
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
        Self { socket, receiver, inlet }
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
    senders: &mut BTreeMap<u32, Outgoing>,
    receivers: &mut BTreeMap<u32, Incoming>,
) -> bool {
    for _ in 0..CALLS_PER_TURN {
        // What comes waits in the socket until the disk has taken some, for a moment. Each is asked: it may be the moment's end for it.
        let (mut is_any_full, is_alone) = (false, receivers.len() + senders.len() == 1);
        for receiver in receivers.values_mut() {
            is_any_full |= !receiver.may_receive(now, is_alone);
        }
        if is_any_full {
            return false;
        }
        let Some(Port { socket, receiver, inlet }) = ports.get_mut(at) else { return false };
        let scion = socket.local_scion();
        let more = receiver.recv_each(|received, headers, packet| {
            let from = From { port: at, from: received.from, local: received.local, scion, headers };
            match packet.first() {
                Some(8..=10) => {}
                Some(_) => return inlet.deliver(from.remote(), [packet, &[]], || from.back()),
                None => return,
            }
            let Ok(fields) = Head::peek(packet) else { return };
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
        });
        let more = match more {
            Ok(more) => more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // An error that an earlier packet's fate left on the socket.
            Err(_) => continue,
        };
        for receiver in receivers.values_mut() {
            receiver.settle_routes(ports);
        }
        for sender in senders.values_mut() {
            sender.settle_routes(ports);
        }
        if !more {
            return false;
        }
    }
    true
}
