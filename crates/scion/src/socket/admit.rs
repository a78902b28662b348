//! Which packets an end host takes at all, whatever it does with them.

use std::net::{IpAddr, SocketAddr};

use anabranch_paths::{IsdAs, ScionAddr};
use anabranch_scion_wire::udp::{Datagram, UdpError};
use anabranch_scion_wire::{Address, Packet, PathRef, Protocol};

use super::counters::Dropped;

/// A packet for a socket, from somebody who may hand it over.
#[derive(Clone, Copy, Debug)]
pub enum Admitted<'a> {
    /// SCMP, of which nothing is known yet but who says that it sent it.
    Scmp(Address),
    /// A datagram for the socket, its checksum verified, and the socket that it is from.
    Udp(ScionAddr, Datagram<'a>),
}

/// Checks what holds for every packet to the socket at `local`, handed over by `from`. Its path is looked at for one thing only:
/// all but the empty one lead over a router of the AS.
///
/// # Errors
/// It goes no further, because of this.
pub fn admit<'a>(
    packet: &Packet<'a>,
    local: ScionAddr,
    from: SocketAddr,
    is_router: impl FnOnce(SocketAddr) -> bool,
) -> Result<Admitted<'a>, Dropped> {
    let header = packet.header();
    if header.destination() != Some(Address::new(local.isd_as, local.host.ip())) {
        return Err(Dropped::WrongDestination);
    }
    let source = header.source().ok_or(Dropped::WrongSource)?;
    if !matches!(header.path(), PathRef::Empty) && !is_router(from) {
        return Err(Dropped::NotRouter);
    }
    let upper = packet.upper().map_err(|_| Dropped::Malformed)?;
    if upper.protocol == Protocol::SCMP {
        return Ok(Admitted::Scmp(source));
    }
    let datagram = Datagram::parse(packet).map_err(|error| match error {
        UdpError::Checksum => Dropped::BadChecksum,
        UdpError::NotUdp => Dropped::UnknownProtocol,
        UdpError::Extension | UdpError::Length => Dropped::Malformed,
    })?;
    if datagram.destination_port() != local.host.port() {
        return Err(Dropped::WrongDestination);
    }
    // Port zero asks not to be answered, and nothing here works one way.
    let port = Some(datagram.source_port()).filter(|port| *port != 0);
    let (ip, port) = source.host.ip().zip(port).ok_or(Dropped::WrongSource)?;
    Ok(Admitted::Udp(ScionAddr::new(source.isd_as, SocketAddr::new(ip, port)), datagram))
}

/// The empty path joins hosts of one AS, directly: it leads back to `source` only if that is in `local` and has handed the packet
/// over itself.
///
/// # Errors
/// It does not.
pub fn check_neighbour(source: IsdAs, ip: Option<IpAddr>, local: IsdAs, from: SocketAddr) -> Result<(), Dropped> {
    if source != local {
        return Err(Dropped::NoWayBack);
    }
    if ip != Some(from.ip().to_canonical()) {
        return Err(Dropped::WrongSource);
    }
    Ok(())
}
