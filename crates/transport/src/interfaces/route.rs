//! Whether an interface leads to an address, and from which of ours: asked of the system without sending a packet.

#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{LocalInterface, Via, is_link_local};

/// Any port: a UDP socket that is connected sends nothing. 9 is "discard" (RFC 863).
const PORT: u16 = 9;

// rtnetlink(7), linux/rtnetlink.h
const MESSAGE_LEN_MAX: usize = 4096;
const HEADER_LEN: usize = 16;
const ROUTE_LEN: usize = 12;
const ROUTE_TYPE_AT: usize = HEADER_LEN + 7;
const ATTRIBUTE_LEN: usize = 4;
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTN_UNICAST: u8 = 1;

/// An address of the world that is nobody's host (RFC 7526: no anycast relay is there any more).
const ABROAD: Ipv4Addr = Ipv4Addr::new(192, 88, 99, 1);

/// The address that packets to `remote` leave from by `interface`: `source`, or the one that the system would choose. `None`
/// where no route leads there.
pub(super) fn source_towards(interface: &LocalInterface, source: Option<IpAddr>, remote: SocketAddr) -> Option<IpAddr> {
    if let IpAddr::V4(to) = remote.ip() {
        let from = source.and_then(|source| if let IpAddr::V4(from) = source { Some(from) } else { None });
        // What cannot be asked is tried: the connection will tell.
        if !is_routed(interface.index, from, to).unwrap_or(true) {
            return None;
        }
    }
    probe(interface, source, remote).ok()
}

fn probe(interface: &LocalInterface, source: Option<IpAddr>, remote: SocketAddr) -> io::Result<IpAddr> {
    let any = if remote.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let mut from = SocketAddr::new(source.unwrap_or(any), 0);
    if let (SocketAddr::V6(from), Some(true)) = (&mut from, source.map(is_link_local)) {
        from.set_scope_id(interface.index);
    }
    let socket = UdpSocket::bind(from)?;
    match bind_to_device(&socket, &interface.name) {
        // Without the device, nothing is learned but whether there is any route for this source.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && source.is_some() => {}
        result => result?,
    }
    let mut to = remote;
    to.set_port(PORT);
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// The address that packets to `remote` leave from as the system's routes go, or `source`, and how long they may be on the first link, IP
/// header included, as far as the system tells.
///
/// # Errors
/// Where no route leads there, or `source` is none of ours.
pub(crate) fn towards(source: Option<IpAddr>, remote: SocketAddr) -> io::Result<(IpAddr, Option<usize>)> {
    let mut remote = remote;
    remote.set_ip(remote.ip().to_canonical());
    remote.set_port(PORT);
    let any = if remote.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let source = source.map(|source| source.to_canonical()).filter(|source| source.is_ipv4() == remote.is_ipv4());
    let mut from = SocketAddr::new(source.unwrap_or(any), 0);
    if let (SocketAddr::V6(from), SocketAddr::V6(to), Some(true)) = (&mut from, remote, source.map(is_link_local)) {
        from.set_scope_id(to.scope_id());
    }
    let socket = UdpSocket::bind(from)?;
    socket.connect(remote)?;
    let (level, option) =
        if remote.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let (mut mtu, mut len): (libc::c_int, _) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the pointers and the length describe `mtu` and `len`.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut mtu).cast(), &raw mut len) };
    let mtu = usize::try_from(mtu).ok().filter(|mtu| got == 0 && *mtu > 0);
    Ok((socket.local_addr()?.ip(), mtu))
}

fn bind_to_device(socket: &UdpSocket, name: &str) -> io::Result<()> {
    // SAFETY: the pointer and length describe `name`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the routing tables lead to `to` by interface number `index`.
///
/// A socket that is bound to a device does not tell for IPv4: where its tables have no route, Linux takes the destination to be
/// on the device's own link. So the tables themselves are asked (`RTM_F_FIB_MATCH`).
fn is_routed(index: u32, from: Option<Ipv4Addr>, to: Ipv4Addr) -> io::Result<bool> {
    verdict(&ask(&question(index, from, to, RTM_F_FIB_MATCH))?)
}

/// The router that leads abroad by the uplink `via`, as the system's routes go. `None` where there is none, and over IPv6.
pub fn gateway_of(via: &Via) -> Option<Ipv4Addr> {
    let IpAddr::V4(from) = via.source else { return None };
    gateway(&ask(&question(via.index, Some(from), ABROAD, 0)).ok()?)
}

/// What the system answers to a question about its routes.
fn ask(question: &[u8]) -> io::Result<Vec<u8>> {
    // SAFETY: no preconditions; the descriptor is fresh and owned from here on.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: the pointer and length describe `question`.
    let sent = unsafe { libc::send(socket.as_raw_fd(), question.as_ptr().cast(), question.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = vec![0u8; MESSAGE_LEN_MAX];
    // The system has answered before `send` returned: nothing is waited for.
    // SAFETY: the pointer and length describe `answer`.
    let len = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT) };
    answer.truncate(usize::try_from(len).map_err(|_| io::Error::last_os_error())?);
    Ok(answer)
}

fn question(index: u32, from: Option<Ipv4Addr>, to: Ipv4Addr, flags: u32) -> Vec<u8> {
    let mut body = vec![libc::AF_INET as u8, 32, if from.is_some() { 32 } else { 0 }];
    body.resize(8, 0);
    body.extend_from_slice(&flags.to_ne_bytes());
    let mut attribute = |kind: u16, value: [u8; 4]| {
        body.extend_from_slice(&8u16.to_ne_bytes());
        body.extend_from_slice(&kind.to_ne_bytes());
        body.extend_from_slice(&value);
    };
    attribute(libc::RTA_DST, to.octets());
    attribute(libc::RTA_OIF, index.to_ne_bytes());
    if let Some(from) = from {
        attribute(libc::RTA_SRC, from.octets());
    }
    let mut message = ((HEADER_LEN + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend_from_slice(&libc::RTM_GETROUTE.to_ne_bytes());
    message.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.resize(HEADER_LEN, 0);
    message.append(&mut body);
    message
}

/// The next hop of the route that the system answered.
fn gateway(answer: &[u8]) -> Option<Ipv4Addr> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let mut rest = answer.get(HEADER_LEN + ROUTE_LEN..).filter(|_| kind == libc::RTM_NEWROUTE)?;
    // rtnetlink(7): attributes of a length, a kind and a value, each from a multiple of four bytes on.
    while let Some((head, _)) = rest.split_first_chunk::<ATTRIBUTE_LEN>() {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(ATTRIBUTE_LEN..len)?;
        if u16::from_ne_bytes([head[2], head[3]]) == libc::RTA_GATEWAY {
            return Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?));
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
    None
}

/// What the system answered: a route, or an error that says that there is none.
fn verdict(answer: &[u8]) -> io::Result<bool> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes).ok_or_else(malformed)?;
    if kind == libc::RTM_NEWROUTE && answer.len() >= HEADER_LEN + ROUTE_LEN {
        return Ok(answer[ROUTE_TYPE_AT] == RTN_UNICAST);
    }
    let code = answer.get(HEADER_LEN..HEADER_LEN + 4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    match code.filter(|_| i32::from(kind) == libc::NLMSG_ERROR).map(i32::wrapping_neg) {
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL) => Ok(false),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN + ROUTE_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        for (kind, value) in attributes {
            bytes.extend(((ATTRIBUTE_LEN + value.len()) as u16).to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend_from_slice(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_next_hop_is_found_among_the_attributes() {
        let hop = (libc::RTA_GATEWAY, &[192, 168, 1, 1][..]);
        let with = answer(libc::RTM_NEWROUTE, &[(libc::RTA_DST, &[1, 2, 3]), hop]);
        assert_eq!(gateway(&with), Some(Ipv4Addr::new(192, 168, 1, 1)));
        assert_eq!(gateway(&answer(libc::RTM_NEWROUTE, &[(libc::RTA_DST, &[1, 2, 3, 4])])), None, "on the link");
        assert_eq!(gateway(&answer(libc::NLMSG_ERROR as u16, &[hop])), None);
        for len in 0..with.len() {
            assert_eq!(gateway(&with[..len]), None);
        }
        let mut endless = with;
        endless[HEADER_LEN + ROUTE_LEN..HEADER_LEN + ROUTE_LEN + 2].fill(0);
        assert_eq!(gateway(&endless), None);
    }
}
