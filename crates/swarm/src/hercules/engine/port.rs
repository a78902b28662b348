//! One socket: what comes is told apart here.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_hercules::CONTROL_PACKET_MAX;
use anabranch_hercules::wire::seal::{Head, Kind};
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_transport::Interfaces;
use anabranch_transport::control::Inlet;
use anabranch_transport::datagram::{Path, Receiver, Sender, Socket};

use super::Route;
use super::incoming::Incoming;
use super::outgoing::Outgoing;

/// Calls before the rest has its turn.
const CALLS_PER_TURN: usize = 8;
/// How often it is looked which addresses the interfaces have that the user named.
const INTERFACES_LOOKED_AT_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Port {
    pub(super) socket: Socket,
    pub(super) receiver: Receiver,
    inlet: Inlet,
    named: Option<NamedInterfaces>,
}

/// The interfaces that the user named: who comes in by another one is not heard.
struct NamedInterfaces {
    interfaces: Interfaces,
    looked_at: Instant,
}

impl NamedInterfaces {
    fn look(&mut self, now: Instant) {
        if now.saturating_duration_since(self.looked_at) >= INTERFACES_LOOKED_AT_EVERY {
            self.looked_at = now;
            // What the system does not tell stays as it was.
            let _ = self.interfaces.refresh();
        }
    }

    /// The number of the interface by which what came to `local` is answered, 0 for any; `None` where it is none of those.
    fn index_of(&self, local: Option<IpAddr>) -> Option<u32> {
        let Some(local) = local.map(|ip| ip.to_canonical()).filter(|ip| !ip.is_loopback()) else { return Some(0) };
        let mut usable = self.interfaces.list().iter().filter(|interface| interface.usable);
        usable.find(|interface| interface.addresses.iter().any(|own| own.ip == local)).map(|own| own.index)
    }
}

/// Where a packet came from, as far as one has to know to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct From<'a> {
    pub port: usize,
    from: SocketAddr,
    local: Option<IpAddr>,
    interface: u32,
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
            None => Some(Path::back_ip(self.from, self.local, self.interface)),
            Some(local) => Path::back(local, self.headers, self.from, 0).ok(),
        }
    }

    pub(super) fn route(&self) -> Option<Route> {
        Some(Route { port: self.port, path: self.back()? })
    }
}

impl Port {
    /// Where the user named `interfaces`, what comes in by others is not heard; SCION has ways of its own.
    pub(super) fn new(socket: Socket, inlet: Inlet, interfaces: &[String]) -> Self {
        let receiver = socket.receiver();
        let is_named = !interfaces.is_empty() && socket.local_scion().is_none();
        let interfaces = if is_named { Interfaces::new(interfaces).ok() } else { None };
        let named = interfaces.map(|interfaces| NamedInterfaces { interfaces, looked_at: Instant::now() });
        Self { socket, receiver, inlet, named }
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
        let Some(Port { socket, receiver, inlet, named }) = ports.get_mut(at) else { return false };
        let scion = socket.local_scion();
        if let Some(named) = named {
            named.look(now);
        }
        let more = receiver.recv_each(|received, headers, packet| {
            let interface = named.as_ref().map_or(Some(0), |named| named.index_of(received.local));
            let Some(interface) = interface else { return };
            let from = From { port: at, from: received.from, local: received.local, interface, scion, headers };
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
