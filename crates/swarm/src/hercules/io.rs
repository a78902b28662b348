//! How packets get to the wire and from it: by the system's sockets, or past them, by AF_XDP.

use std::net::{IpAddr, SocketAddr};

use anabranch_paths::Endpoint;
use anabranch_transport::datagram::{Socket, XdpPort};
use anabranch_transport::{Interfaces, LocalInterface};

use super::options::{Io, StartError};

/// What became of an interface whose packets were to go past the kernel.
#[derive(Clone, Debug)]
pub struct Bypass {
    /// Which.
    pub interface: String,
    /// How they go; or why they go by the system's sockets.
    pub outcome: Result<XdpPort, String>,
}

/// Has the packets of the interfaces go the way that is asked for. An interface does so for one socket: that of SCION where its
/// address is the interface's, else that of IPv4, else that of IPv6.
///
/// # Errors
/// No interface does, or one that is named does not, where that is insisted on.
pub(super) fn attach<'a>(
    io: Io,
    named: &[String],
    sockets: impl Iterator<Item = &'a Socket> + Clone,
) -> Result<Vec<Bypass>, StartError> {
    if io == Io::Udp {
        return Ok(Vec::new());
    }
    let interfaces = Interfaces::new(named)?;
    let mut bypasses = Vec::new();
    let is_meant = |interface: &&LocalInterface| match named {
        [] => interface.usable && !interface.loopback,
        _ => named.contains(&interface.name),
    };
    for interface in interfaces.list().iter().filter(is_meant) {
        let serving = sockets.clone().filter_map(|socket| Some((rank(socket.local(), interface)?, socket)));
        let Some((_, socket)) = serving.min_by_key(|(rank, _)| *rank) else { continue };
        let name = &interface.name;
        let outcome = match io {
            Io::Auto => socket.attach_xdp_if_faster(name).map_err(|declined| declined.to_string()),
            _ => socket.attach_xdp(name).map_err(|error| error.to_string()),
        };
        bypasses.push(Bypass { interface: name.clone(), outcome });
    }
    if io == Io::Xdp {
        let refused = || bypasses.iter().filter_map(|bypass| bypass.outcome.as_ref().err());
        let enough = if named.is_empty() { 1 } else { named.len() };
        if bypasses.len() - refused().count() < enough {
            let reasons: Vec<&str> = refused().map(String::as_str).collect();
            let reason = if reasons.is_empty() {
                "no interface has an address to listen at".to_owned()
            } else {
                reasons.join("; ")
            };
            return Err(StartError::Bypass(reason));
        }
    }
    Ok(bypasses)
}

/// Whether the socket listens at addresses of this interface; the least is the one to prefer.
fn rank(local: Endpoint, interface: &LocalInterface) -> Option<u8> {
    let fits = |local: SocketAddr| {
        interface.addresses.iter().any(|own| match local.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => own.ip.is_ipv4(),
            IpAddr::V6(ip) if ip.is_unspecified() => own.ip.is_ipv6(),
            ip => own.ip == ip,
        })
    };
    if !fits(local.socket_addr()) {
        return None;
    }
    Some(match local {
        Endpoint::Scion(_) => 0,
        Endpoint::Ip(local) if local.is_ipv4() => 1,
        Endpoint::Ip(_) => 2,
    })
}
