//! What the kernel knows of the network: interfaces, routes, neighbours; and that something of it has changed.
//!
//! Frames that go past the kernel have to be addressed as it would address them. So it is asked, and asked again when it
//! tells of changes. Neighbours are resolved by it alone: nothing here sends ARP or neighbour solicitations.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr};

use crate::error::Error;
use crate::frame::Mac;
use crate::netlink::{Message, Question, attributes, ip, messages, u16_at, u32_at};
use crate::sys;

/// Bytes of one answer: the kernel sends no more at once (`NLMSG_GOODSIZE` is less), but for interfaces with many functions.
const ANSWER_LEN_MAX: usize = 32 << 10;
/// Answers that are read to one question: a dump of the addresses of a thousand interfaces.
const ANSWERS_MAX: usize = 64;
/// News that are read at once; more of them is one change all the same.
const NEWS_MAX: usize = 64;

// linux/rtnetlink.h, linux/if_link.h, linux/neighbour.h: lengths of the kinds' own structures.
const LINK_LEN: usize = 16;
const ROUTE_LEN: usize = 12;
const NEIGHBOUR_LEN: usize = 12;
const ADDRESS_LEN: usize = 8;
const ROUTE_TYPE_AT: usize = 7;
const RTN_UNICAST: u8 = 1;
const RTAX_MTU: u16 = 2;
const RTA_ENCAP: u16 = 22;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const ARPHRD_ETHER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// States in which the kernel sends to a neighbour (`NUD_VALID`, but for those without an address).
const USABLE: u16 = libc::NUD_PERMANENT | libc::NUD_REACHABLE | libc::NUD_STALE | libc::NUD_DELAY | libc::NUD_PROBE;
/// States that need no confirmation soon.
const CONFIRMED: u16 = libc::NUD_PERMANENT | libc::NUD_REACHABLE;

/// An interface of Ethernet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// As the system calls it.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its own hardware address.
    pub mac: Mac,
    /// Bytes of the longest IP packet that it takes.
    pub mtu: u32,
}

/// How the kernel would send to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) interface: u32,
    pub(crate) source: Option<IpAddr>,
    /// A router, or the destination itself.
    pub(crate) next_hop: IpAddr,
    pub(crate) mtu: Option<u32>,
}

/// A neighbour on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) mac: Mac,
    /// Whether it answered lately.
    pub(crate) is_confirmed: bool,
}

/// Two sockets of rtnetlink in the network namespace of the thread that made them.
#[derive(Debug)]
pub(crate) struct Kernel {
    questions: File,
    news: File,
}

impl Kernel {
    pub(crate) fn new() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_NEIGH
            | libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE;
        Ok(Self { questions: sys::netlink(0)?, news: sys::netlink(groups.cast_unsigned())? })
    }

    /// Whether anything has changed since the last call. What it was is not told: who needs to know asks.
    pub(crate) fn has_changed(&self) -> bool {
        let mut bytes = [0; 1024];
        let mut changed = false;
        for _ in 0..NEWS_MAX {
            match (&self.news).read(&mut bytes) {
                Ok(_) => changed = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Some were lost (`ENOBUFS`).
                Err(_) => changed = true,
            }
        }
        changed
    }

    /// The interface of this name, if frames of Ethernet leave by it as they are.
    pub(crate) fn interface(&self, name: &str) -> Result<Interface, Error> {
        let unknown = |source| Error::Unknown { interface: name.to_owned(), source };
        // The kernel's own limit, with the zero at the end.
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(unknown(io::Error::from_raw_os_error(libc::ENODEV)));
        }
        let question = Question::new(libc::RTM_GETLINK, 0, &[0; LINK_LEN]);
        let question = question.with(IFLA_IFNAME, format!("{name}\0").as_bytes());
        let mut found = None;
        self.ask(question, |message| {
            found = found.take().or_else(|| link(message));
        })
        .map_err(unknown)?;
        let (index, hardware, kind, mac, mtu) =
            found.ok_or_else(|| unknown(io::Error::from_raw_os_error(libc::ENODEV)))?;
        let refuse = |kind: String| Error::Kind { interface: name.to_owned(), kind };
        match (hardware, kind.as_deref(), mac, mtu) {
            // Hardware has no kind.
            (ARPHRD_ETHER, None | Some("veth"), Some(mac), Some(mtu)) => {
                Ok(Interface { name: name.to_owned(), index, mac, mtu })
            }
            (_, Some(kind), ..) => Err(refuse(format!("of the kind `{kind}`"))),
            _ => Err(refuse("no Ethernet".to_owned())),
        }
    }

    /// How packets to `to` leave, from `from` and by interface number `interface` as far as these are told. `None`: they
    /// do not, or not as plain packets to one neighbour.
    pub(crate) fn route(&self, to: IpAddr, from: Option<IpAddr>, interface: Option<u32>) -> Option<Route> {
        let (family, bits) = if to.is_ipv4() { (libc::AF_INET, 32) } else { (libc::AF_INET6, 128) };
        let mut body = [0; ROUTE_LEN];
        (body[0], body[1]) = (family as u8, bits);
        body[2] = if from.is_some() { bits } else { 0 };
        let mut question = Question::new(libc::RTM_GETROUTE, 0, &body).with_ip(libc::RTA_DST, to);
        if let Some(from) = from {
            question = question.with_ip(libc::RTA_SRC, from);
        }
        if let Some(interface) = interface {
            question = question.with(libc::RTA_OIF, &interface.to_ne_bytes());
        }
        let mut found = None;
        self.ask(question, |message| found = found.or_else(|| route(message, to, from))).ok()?;
        found
    }

    /// The neighbour with the address `ip` at interface number `interface`, as far as the kernel knows it.
    pub(crate) fn neighbour(&self, ip: IpAddr, interface: u32) -> Option<Neighbour> {
        let question = Question::new(libc::RTM_GETNEIGH, 0, &neighbour_body(ip, interface, 0));
        let mut found = None;
        self.ask(question.with_ip(libc::NDA_DST, ip), |message| found = found.or_else(|| neighbour(message))).ok()?;
        found
    }

    /// Tells the kernel that this neighbour is in use: it confirms it, or resolves it, as if it had sent a packet there.
    pub(crate) fn use_neighbour(&self, ip: IpAddr, interface: u32) -> io::Result<()> {
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_ACK) as u16;
        let question = Question::new(libc::RTM_NEWNEIGH, flags, &neighbour_body(ip, interface, libc::NTF_USE));
        self.ask(question.with_ip(libc::NDA_DST, ip), |_| {})
    }

    /// The addresses of interface number `interface`.
    pub(crate) fn addresses(&self, interface: u32) -> io::Result<Vec<IpAddr>> {
        let question = Question::new(libc::RTM_GETADDR, libc::NLM_F_DUMP as u16, &[0; ADDRESS_LEN]);
        let mut all = Vec::new();
        self.ask(question, |message| {
            all.extend(address(message).filter(|(of, _)| *of == interface).map(|(_, ip)| ip))
        })?;
        Ok(all)
    }

    /// Asks, and hands on what is answered.
    fn ask(&self, question: Question, mut take: impl FnMut(Message<'_>)) -> io::Result<()> {
        let (mut questions, mut bytes) = (&self.questions, vec![0; ANSWER_LEN_MAX]);
        // What is left of an answer that was given up.
        while questions.read(&mut bytes).is_ok() {}
        let question = question.into_bytes();
        let flags = u16_at(&question, 6).unwrap_or_default();
        let is_dump = flags & libc::NLM_F_DUMP as u16 == libc::NLM_F_DUMP as u16;
        questions.write_all(&question)?;
        for _ in 0..ANSWERS_MAX {
            // The kernel has answered before `write` returned, and goes on with a dump while it is read.
            let len = questions.read(&mut bytes)?;
            for message in messages(&bytes[..len]) {
                match message.error() {
                    Some(0) => return Ok(()),
                    Some(number) => return Err(io::Error::from_raw_os_error(number)),
                    None if message.kind == libc::NLMSG_DONE as u16 => return Ok(()),
                    None => take(message),
                }
            }
            if !is_dump {
                return Ok(());
            }
        }
        Err(io::Error::other("the kernel's answer does not end"))
    }
}

fn neighbour_body(ip: IpAddr, interface: u32, flags: u8) -> [u8; NEIGHBOUR_LEN] {
    let mut body = [0; NEIGHBOUR_LEN];
    body[0] = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    body[10] = flags;
    body
}

/// Number, hardware type, kind, hardware address and MTU.
type Link = (u32, u16, Option<String>, Option<Mac>, Option<u32>);

fn link(message: Message<'_>) -> Option<Link> {
    if message.kind != libc::RTM_NEWLINK {
        return None;
    }
    let info = message.attribute(LINK_LEN, IFLA_LINKINFO).unwrap_or_default();
    let kind = attributes(info).find_map(|(kind, value)| (kind == IFLA_INFO_KIND).then_some(value));
    let kind = kind.map(|kind| String::from_utf8_lossy(kind).trim_end_matches('\0').to_owned());
    let mac = message.attribute(LINK_LEN, IFLA_ADDRESS).and_then(|mac| mac.try_into().ok());
    let mtu = message.attribute(LINK_LEN, IFLA_MTU).and_then(|mtu| u32_at(mtu, 0));
    Some((u32_at(message.body, 4)?, u16_at(message.body, 2)?, kind, mac, mtu))
}

fn route(message: Message<'_>, to: IpAddr, from: Option<IpAddr>) -> Option<Route> {
    let attribute = |kind| message.attribute(ROUTE_LEN, kind);
    let is_plain = message.kind == libc::RTM_NEWROUTE
        && message.body.get(ROUTE_TYPE_AT) == Some(&RTN_UNICAST)
        && attribute(RTA_ENCAP).is_none();
    if !is_plain {
        return None;
    }
    let metrics = attribute(libc::RTA_METRICS).unwrap_or_default();
    let mtu = attributes(metrics).find_map(|(kind, value)| if kind == RTAX_MTU { u32_at(value, 0) } else { None });
    // A router of the other family comes with its family in front.
    let via = attribute(libc::RTA_VIA).and_then(|via| ip(via.get(2..)?));
    let gateway = attribute(libc::RTA_GATEWAY).and_then(ip).or(via);
    Some(Route {
        interface: attribute(libc::RTA_OIF).and_then(|number| u32_at(number, 0))?,
        source: from.or_else(|| attribute(libc::RTA_PREFSRC).and_then(ip)),
        next_hop: gateway.filter(|gateway| *gateway != IpAddr::V6(Ipv6Addr::UNSPECIFIED)).unwrap_or(to),
        mtu,
    })
}

fn neighbour(message: Message<'_>) -> Option<Neighbour> {
    let state = u16_at(message.body, 8)?;
    if message.kind != libc::RTM_NEWNEIGH || state & USABLE == 0 {
        return None;
    }
    let mac = message.attribute(NEIGHBOUR_LEN, libc::NDA_LLADDR)?.try_into().ok()?;
    Some(Neighbour { mac, is_confirmed: state & CONFIRMED != 0 })
}

fn address(message: Message<'_>) -> Option<(u32, IpAddr)> {
    if message.kind != libc::RTM_NEWADDR {
        return None;
    }
    // Where the other end of a link is named, the own address is another attribute.
    let own = message.attribute(ADDRESS_LEN, IFA_LOCAL).or_else(|| message.attribute(ADDRESS_LEN, IFA_ADDRESS))?;
    Some((u32_at(message.body, 4)?, ip(own)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_no_ethernet_and_nothing_is_unknown() {
        let kernel = Kernel::new().unwrap();
        let error = kernel.interface("lo").unwrap_err();
        assert!(matches!(&error, Error::Kind { kind, .. } if kind == "no Ethernet"), "{error}");
        for name in ["no-such-device", "", "a name that is longer than any", "l\0o"] {
            assert!(matches!(kernel.interface(name), Err(Error::Unknown { .. })), "{name}");
        }
    }

    #[test]
    fn what_stays_on_this_machine_has_no_route_out() {
        let kernel = Kernel::new().unwrap();
        assert_eq!(kernel.route([127, 0, 0, 1].into(), None, None), None);
        assert!(kernel.addresses(1).unwrap().contains(&IpAddr::from([127, 0, 0, 1])));
        assert_eq!(kernel.neighbour([192, 0, 2, 1].into(), 1), None);
    }

    #[test]
    fn routes_that_are_not_plain_count_for_nothing() {
        let to: IpAddr = [198, 51, 100, 1].into();
        let answer = |kind: u8, encap: bool| {
            let mut body = [0; ROUTE_LEN];
            body[ROUTE_TYPE_AT] = kind;
            let question = Question::new(libc::RTM_NEWROUTE, 0, &body)
                .with(libc::RTA_OIF, &3u32.to_ne_bytes())
                .with_ip(libc::RTA_GATEWAY, [192, 0, 2, 1].into())
                .with_ip(libc::RTA_PREFSRC, [192, 0, 2, 7].into());
            let question = if encap { question.with(RTA_ENCAP, &[]) } else { question };
            messages(&question.into_bytes()).find_map(|message| route(message, to, None))
        };
        let plain =
            Route { interface: 3, source: Some([192, 0, 2, 7].into()), next_hop: [192, 0, 2, 1].into(), mtu: None };
        assert_eq!(answer(RTN_UNICAST, false), Some(plain));
        assert_eq!(answer(RTN_UNICAST, true), None);
        // "Local", "blackhole".
        assert_eq!((answer(2, false), answer(6, false)), (None, None));
    }
}
