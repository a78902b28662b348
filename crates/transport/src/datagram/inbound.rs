//! From the bytes of a SCION packet to what they mean for a socket. Pure.
//!
//! What packets of a path share, addresses, path and ports, is remembered once it was parsed; the next packet of the path
//! costs a comparison and its checksum ([`Inbound::recall`]). Nothing here allocates for a packet, nothing is answered, and
//! nothing is learned from those that are not of a path which somebody has added.

use std::net::SocketAddr;

use anabranch_paths::ScionAddr;
use anabranch_scion::socket::{Admitted, Dropped, ScmpKind, admit, check_neighbour};
use anabranch_scion_wire::checksum::{self, Sum};
use anabranch_scion_wire::scmp::{Message, Quote, ScmpError};
use anabranch_scion_wire::udp::Shape;
use anabranch_scion_wire::{Address, Packet, PathRef, Protocol};

use super::table::{PathKey, Table};

/// Headers remembered: more than the paths that are busy at once.
const FLOWS: usize = 64;
/// Longest remembered header: addresses, a path of 20 hops, ports. Longer ones are parsed each time.
const SHARED_LEN_MAX: usize = 320;

/// Trouble on the way of a path, as somebody on it tells. Nothing proves it: it quotes a packet that could have been ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathEvent {
    /// The path whose packet met it.
    pub path: PathKey,
    /// Who tells.
    pub from: Address,
    /// What.
    pub kind: ScmpKind,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Data for the socket.
    Data {
        /// The path it came by, if that was added.
        path: Option<PathKey>,
        /// Bytes in front of the payload.
        headers_len: usize,
        /// ECN bits.
        ecn: u8,
    },
    /// SCMP about a packet of ours.
    Event(PathEvent),
}

/// What is remembered from packet to packet.
#[derive(Debug)]
pub struct Inbound {
    local: ScionAddr,
    flows: Box<[Flow]>,
    /// Changes of the table when the flows were remembered.
    changes: u64,
}

#[derive(Clone, Debug)]
struct Flow {
    /// Of `shared`, what is used; zero: nothing is remembered.
    len: usize,
    shared: [u8; SHARED_LEN_MAX],
    path: PathKey,
    /// Who hands the packets over.
    from: SocketAddr,
    /// The pseudo header and ports, without the lengths.
    sum: Sum,
}

impl Inbound {
    /// For the socket at `local`.
    pub fn new(local: ScionAddr) -> Self {
        let none =
            Flow { len: 0, shared: [0; SHARED_LEN_MAX], path: PathKey::NONE, from: local.host, sum: Sum::default() };
        Self { local, flows: vec![none; FLOWS].into(), changes: 0 }
    }

    /// The socket's paths have changed so often. What was remembered may not hold any more.
    pub fn keep_up(&mut self, changes: u64) {
        if self.changes != changes {
            self.changes = changes;
            self.flows.iter_mut().for_each(|flow| flow.len = 0);
        }
    }

    /// A quick look at a packet that starts with `headers` (SCION and UDP, and nothing behind them) and goes on with the payload
    /// `head` and `body`, handed over by `from`. `None`: it has to be parsed.
    #[inline]
    pub fn recall(
        &self,
        headers: &[u8],
        head: &[u8],
        body: &[u8],
        from: SocketAddr,
    ) -> Option<Result<Meaning, Dropped>> {
        let shape = Shape::of(headers).filter(|shape| shape.headers_len() == headers.len())?;
        let flow = &self.flows[shape.hash(headers) as usize % FLOWS];
        if flow.len == 0 || flow.from != from || flow.shared[..flow.len] != *shape.shared(headers) {
            return None;
        }
        if let Some(sum) = shape.sum_of_lengths(headers, headers.len() + head.len() + body.len())? {
            let tail = checksum::sum(body);
            let tail = if head.len().is_multiple_of(2) { tail } else { tail.after_odd() };
            if !(flow.sum + sum + checksum::sum(head) + tail).is_intact() {
                return Some(Err(Dropped::BadChecksum));
            }
        }
        Some(Ok(Meaning::Data { path: Some(flow.path), headers_len: headers.len(), ecn: shape.ecn(headers) }))
    }

    /// What a whole packet means, handed over by `from`: by the quick look if that is enough.
    ///
    /// # Errors
    /// It goes no further, because of this.
    pub fn read(&mut self, table: &Table, bytes: &[u8], from: SocketAddr) -> Result<Meaning, Dropped> {
        let known = Shape::of(bytes).and_then(|shape| {
            let (headers, payload) = bytes.split_at(shape.headers_len());
            self.recall(headers, payload, &[], from)
        });
        known.unwrap_or_else(|| self.take(table, bytes, from))
    }

    /// The same by a full look, which is remembered if the packet is of a path.
    ///
    /// # Errors
    /// It goes no further, because of this.
    pub fn take(&mut self, table: &Table, bytes: &[u8], from: SocketAddr) -> Result<Meaning, Dropped> {
        let packet = Packet::parse(bytes).map_err(|_| Dropped::Malformed)?;
        let (remote, datagram) = match admit(&packet, self.local, from, |from| table.is_router(self.local, from))? {
            Admitted::Scmp(source) => return self.scmp(table, &packet, source).map(Meaning::Event),
            Admitted::Udp(remote, datagram) => (remote, datagram),
        };
        let header = packet.header();
        let path = match header.path() {
            PathRef::Standard(path) => table.find_scion(remote, path.interfaces().rev()),
            PathRef::Empty => {
                check_neighbour(remote.isd_as, Some(remote.host.ip()), self.local.isd_as, from)?;
                table.find_scion(remote, std::iter::empty())
            }
            _ => return Err(Dropped::NoWayBack),
        };
        if let Some(path) = path {
            self.remember(bytes, &packet, from, path);
        }
        let headers_len = bytes.len() - datagram.payload().len();
        Ok(Meaning::Data { path, headers_len, ecn: header.traffic_class() & 0b11 })
    }

    fn local_address(&self) -> Address {
        Address::new(self.local.isd_as, self.local.host.ip())
    }

    fn remember(&mut self, bytes: &[u8], packet: &Packet<'_>, from: SocketAddr, path: PathKey) {
        let Some(shape) = Shape::of(bytes) else { return };
        let shared = shape.shared(bytes);
        let flow = &mut self.flows[shape.hash(bytes) as usize % FLOWS];
        if let Some(place) = flow.shared.get_mut(..shared.len()) {
            place.copy_from_slice(shared);
            let sum = packet.header().pseudo_sum(Protocol::UDP, 0) + checksum::sum(shape.ports(bytes));
            (flow.len, flow.path, flow.from, flow.sum) = (shared.len(), path, from, sum);
        }
    }

    /// An error counts if it quotes a packet over a path of ours, and if the AS that complains speaks of itself and of an
    /// interface on the way.
    fn scmp(&self, table: &Table, packet: &Packet<'_>, source: Address) -> Result<PathEvent, Dropped> {
        let message = Message::parse_tolerant(packet).map_err(|error| match error {
            ScmpError::Checksum => Dropped::BadChecksum,
            _ => Dropped::Malformed,
        })?;
        let kind = ScmpKind::of(&message).ok_or(Dropped::UnknownProtocol)?;
        let quote = Quote::parse(message.quote().unwrap_or_default()).map_err(|_| Dropped::Malformed)?;
        let passed = |id: u16| match quote.header().path() {
            PathRef::Standard(path) => path.interfaces().any(|passed| passed == id),
            _ => false,
        };
        if let Some((isd_as, interfaces)) = kind.subject()
            && (isd_as != source.isd_as || interfaces.into_iter().any(|id| id != 0 && !passed(id)))
        {
            return Err(Dropped::ForeignQuote);
        }
        let path = self.quoted_path(table, &quote).ok_or(Dropped::ForeignQuote)?;
        Ok(PathEvent { path, from: source, kind })
    }

    /// The path that a quoted packet was sent over.
    fn quoted_path(&self, table: &Table, quote: &Quote<'_>) -> Option<PathKey> {
        let (header, upper) = (quote.header(), quote.upper()?);
        let is_ours = header.source() == Some(self.local_address())
            && upper.protocol == Protocol::UDP
            && quote.source_port() == Some(self.local.host.port());
        if !is_ours {
            return None;
        }
        let [_, _, port_high, port_low] = *upper.bytes.first_chunk()?;
        let host = SocketAddr::new(header.destination_host()?.ip()?, u16::from_be_bytes([port_high, port_low]));
        let remote = ScionAddr::new(header.destination_as(), host);
        match header.path() {
            PathRef::Standard(path) => table.find_scion(remote, path.interfaces()),
            _ => table.find_scion(remote, std::iter::empty()),
        }
    }
}

#[cfg(test)]
#[path = "inbound_tests.rs"]
mod tests;
