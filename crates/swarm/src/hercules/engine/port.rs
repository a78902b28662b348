//! One socket: what is QUIC's and what is a transfer's is told apart here.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_hercules::wire::seal::Head;
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_transport::Interfaces;
use anabranch_transport::control::Inlet;
use anabranch_transport::datagram::{Path, Receiver, Sender, Socket};

use super::interface::Route;

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

    /// Receives once, as the port `at`: QUIC gets what is its own, and `take` each packet that begins as a transfer's does, with its head
    /// and where it came from. Whether there may be more.
    pub(super) fn receive(
        &mut self,
        at: usize,
        now: Instant,
        mut take: impl FnMut(&Head, &mut [u8], &From<'_>),
    ) -> io::Result<bool> {
        let Self { socket, receiver, inlet, named } = self;
        let scion = socket.local_scion();
        if let Some(named) = named {
            named.look(now);
        }
        receiver.recv_each(|received, headers, packet| {
            let interface = named.as_ref().map_or(Some(0), |named| named.index_of(received.local));
            let Some(interface) = interface else { return };
            let from = From { port: at, from: received.from, local: received.local, interface, scion, headers };
            match packet.first() {
                Some(8..=10) => {}
                Some(_) => return inlet.deliver(from.remote(), [packet, &[]], || from.back()),
                None => return,
            }
            if let Ok(head) = Head::peek(packet) {
                take(&head, packet, &from);
            }
        })
    }
}
