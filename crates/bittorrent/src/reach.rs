//! How near an address is, and who may name it to us.
//!
//! Torrents, links, trackers and peers name addresses that we then connect to, from inside the user's machine and network. What a
//! stranger names must not be nearer to us than the stranger is: else we carry his requests to where he cannot go himself, to the
//! user's own services, his router, or the host that his cloud keeps its keys on. What the user names by hand is never judged here.
//!
//! | who names it | peers | trackers |
//! | --- | --- | --- |
//! | a torrent, magnet link or link of PPSPP | public, and private ones at ports from 1024 on | the same, and the loopback's; private ones and the loopback's by `/announce` alone |
//! | a tracker or peer at a public address, or of SCION | public | where it redirects to: public |
//! | ... at a private address | public and private | public and private |
//! | ... of the loopback | these, and of the loopback | the same |
//!
//! An address that stands for another one is as near as the nearer of both ([`Reach::of`]). Ports below 1024 are services' of the
//! system and no peer's: nobody but the user has them dialled.
//!
//! A peer is greeted with bytes of ours but for the info-hash, which the maker of a magnet link chooses freely: twenty bytes are
//! room for a command to a service that reads lines ([`holds_a_line`]). Private addresses are not greeted with such.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anabranch_paths::Endpoint;

use crate::tracker::{Scheme, TrackerUrl};

/// Ports below this one are for the system's services (RFC 6335 §6).
const PORT_UNPRIVILEGED_MIN: u16 = 1024;
/// No command that does anything is shorter.
const COMMAND_LEN_MIN: usize = 3;
/// Ports of HTTP, where trackers are too.
const PORTS_WEB: [u16; 2] = [80, 443];
/// The one path that a tracker in the user's own network may have if a torrent names it: it does nothing anywhere else.
const LOCAL_TRACKER_PATH: &str = "/announce";
/// Where clouds tell a machine its secrets, at addresses that look like any other: Alibaba, Azure, Oracle.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];
/// The same in IPv6: Amazon's (metadata, time, names), Google's.
const METADATA_V6: [Ipv6Addr; 4] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x123),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x253),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// Where an address means what it says, from near to far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Loopback.
    Host,
    /// Link-local, broadcast, multicast, and what clouds serve a machine its secrets at: nobody names these to others.
    Link,
    /// RFC 1918, RFC 6598, RFC 4193.
    Site,
    /// Everywhere.
    World,
}

impl Reach {
    /// Of an address, and of the IPv4 address that it stands for, the nearer.
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self::of_v4(ip),
            IpAddr::V6(ip) => embedded_v4(ip).map_or(Self::World, Self::of_v4).min(Self::of_v6(ip)),
        }
    }

    fn of_v4(ip: Ipv4Addr) -> Self {
        let octets = ip.octets();
        match octets {
            _ if METADATA_V4.contains(&ip) => Self::Link,
            [127, ..] => Self::Host,
            // RFC 1122 §3.2.1.3, "this network"; RFC 3927; multicast, reserved and broadcast (RFC 1112).
            [0, ..] | [169, 254, ..] | [224..=255, ..] => Self::Link,
            [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Self::Site,
            // RFC 6598 §7, between a provider and its customers; RFC 2544, for benches; RFC 6890, for protocols.
            [100, 64..=127, ..] | [198, 18..=19, ..] | [192, 0, 0, _] => Self::Site,
            _ => Self::World,
        }
    }

    fn of_v6(ip: Ipv6Addr) -> Self {
        match ip.segments() {
            _ if METADATA_V6.contains(&ip) => Self::Link,
            _ if ip.is_loopback() => Self::Host,
            _ if ip.is_unspecified() || ip.is_multicast() || ip.is_unicast_link_local() => Self::Link,
            // RFC 4193; RFC 3879 §4, which some routers still know; RFC 8215, a site's own translator.
            [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] | [0x64, 0xff9b, 1, ..] => Self::Site,
            _ => Self::World,
        }
    }
}

/// The IPv4 address that packets to `ip` reach by a translator or a tunnel, if there is one on the way.
pub(crate) fn embedded_v4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let of = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match ip.segments() {
        // RFC 4291 §2.5.5.1, deprecated; `::` and `::1` are no such.
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(of(high, low)),
        // RFC 2765: stateless translation.
        [0, 0, 0, 0, 0xffff, 0, high, low] => Some(of(high, low)),
        // RFC 6052 §2.1, RFC 8215: NAT64.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 1, _, _, _, high, low] => Some(of(high, low)),
        // RFC 3056: 6to4.
        [0x2002, high, low, ..] => Some(of(high, low)),
        // RFC 4380 §4: Teredo, whose client's address is inverted.
        [0x2001, 0, _, _, _, _, high, low] => Some(of(!high, !low)),
        // RFC 5214 §6.1: ISATAP.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some(of(high, low)),
        _ => None,
    }
}

/// How near somebody is whom we meet at `address`. Hosts of SCION have their numbers within their AS, whichever that is.
fn reach_of(address: &Endpoint) -> Reach {
    address.as_ip().map_or(Reach::World, |address| Reach::of(address.ip()))
}

/// Whether `address`, of one peer, is any business of another that it meets at `met_at`. Private addresses are for private ones:
/// told abroad they give a site's numbers away, and heeded from abroad they let strangers have its hosts dialled.
pub fn is_for(address: &Endpoint, met_at: &Endpoint) -> bool {
    match reach_of(address) {
        Reach::World => true,
        Reach::Link => false,
        near => reach_of(met_at) <= near,
    }
}

/// Whether the peer at `address` may be dialled because a tracker or another peer at `namer` names it.
pub fn may_name_peer(namer: &Endpoint, address: &Endpoint) -> bool {
    address.socket_addr().port() >= PORT_UNPRIVILEGED_MIN && is_for(address, namer)
}

/// Whether the peer at `address` may be dialled because a link names it, for a content of these hashes. The loopback only for a user who
/// listens there and nowhere else (`at_home`).
pub fn may_link_to_peer<H: AsRef<[u8]>>(
    address: &Endpoint,
    hashes: impl IntoIterator<Item = H>,
    at_home: bool,
) -> bool {
    let is_near = match reach_of(address) {
        Reach::World => false,
        Reach::Site => true,
        Reach::Link => return false,
        Reach::Host if at_home => true,
        Reach::Host => return false,
    };
    let is_harmless = !is_near || !hashes.into_iter().any(|hash| holds_a_line(hash.as_ref()));
    address.socket_addr().port() >= PORT_UNPRIVILEGED_MIN && is_harmless
}

/// Whether a hash has a line of text of its own in it, between two ends of lines: a command is nothing else. Of hashes that nobody
/// chose, one in ten thousand has.
pub fn holds_a_line(hash: &[u8]) -> bool {
    let mut lines = hash.split(|byte| matches!(byte, b'\n' | b'\r'));
    // What comes before the first end of a line belongs to the greeting, and what comes after the last one is no line yet.
    lines.next();
    lines.next_back();
    lines.any(|line| line.len() >= COMMAND_LEN_MIN && line.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~')))
}

/// Whether a tracker that a torrent or magnet link names may be asked at `address`, one of its host's: anywhere in the world, but in
/// the user's own network only where nothing but a tracker would do anything with it.
pub fn may_announce(url: &TrackerUrl, address: SocketAddr) -> bool {
    let is_plain = url.query().is_empty()
        && (url.path() == LOCAL_TRACKER_PATH || url.scheme() == Scheme::Udp && url.path() == "/");
    let is_web = url.scheme() != Scheme::Udp && PORTS_WEB.contains(&address.port());
    match Reach::of(address.ip()) {
        Reach::World => true,
        Reach::Link => false,
        Reach::Site => is_plain && (is_web || address.port() >= PORT_UNPRIVILEGED_MIN),
        Reach::Host => is_plain && address.port() >= PORT_UNPRIVILEGED_MIN,
    }
}

/// Whether what a torrent or magnet link names as a web seed may be fetched from, at `address`, one of its host's: anywhere in the world,
/// and nowhere nearer, since the torrent chooses all of what is asked for.
pub fn may_fetch(address: SocketAddr) -> bool {
    Reach::of(address.ip()) == Reach::World
}

/// Whether a tracker or web seed met at `from` may redirect us to `to`: no nearer than it is itself.
pub fn may_redirect(from: IpAddr, to: SocketAddr) -> bool {
    let is_free = to.port() >= PORT_UNPRIVILEGED_MIN || PORTS_WEB.contains(&to.port());
    match Reach::of(to.ip()) {
        Reach::World => true,
        Reach::Link => false,
        near => is_free && Reach::of(from) <= near,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reach(ip: &str) -> Reach {
        Reach::of(ip.parse().unwrap())
    }

    fn endpoints(texts: &[&str]) -> Vec<Endpoint> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn each_range_ends_where_its_specification_says() {
        for (reaches, ips) in [
            (Reach::Host, &["127.0.0.1", "127.255.255.255", "::1"][..]),
            (Reach::Link, &["0.0.0.0", "0.255.255.255", "169.254.0.1", "169.254.169.254", "224.0.0.1", "240.0.0.1"]),
            (Reach::Link, &["255.255.255.255", "::", "fe80::1", "febf::1", "ff02::1", "fd00:ec2::254", "fd20:ce::254"]),
            (Reach::Link, &["100.100.100.200", "168.63.129.16", "192.0.0.192"]),
            (
                Reach::Site,
                &["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1", "100.127.255.255"],
            ),
            (
                Reach::Site,
                &["198.18.0.1", "198.19.255.255", "192.0.0.8", "fc00::1", "fdff::1", "fec0::1", "64:ff9b:1::8.8.8.8"],
            ),
            (Reach::World, &["1.1.1.1", "126.255.255.255", "128.0.0.1", "172.15.0.1", "172.32.0.1", "100.63.0.1"]),
            (Reach::World, &["100.128.0.1", "198.20.0.1", "192.0.1.1", "223.255.255.255", "2606:4700::1", "fbff::1"]),
        ] {
            for ip in ips {
                assert_eq!(reach(ip), reaches, "{ip}");
            }
        }
    }

    #[test]
    fn an_address_within_an_address_is_found() {
        for (inner, reaches) in
            [("127.0.0.1", Reach::Host), ("169.254.169.254", Reach::Link), ("10.0.0.1", Reach::Site)]
        {
            let [a, b, c, d] = inner.parse::<Ipv4Addr>().unwrap().octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            for outer in [
                format!("::ffff:{inner}"),
                format!("::{inner}"),
                format!("::ffff:0:{inner}"),
                format!("64:ff9b::{inner}"),
                format!("64:ff9b:1:7::{inner}"),
                format!("2002:{high:x}:{low:x}::1"),
                format!("2001:0:4136:e378:8000:63bf:{:x}:{:x}", !high, !low),
                format!("2001:db8::5efe:{inner}"),
                format!("2001:db8::200:5efe:{inner}"),
            ] {
                assert_eq!(reach(&outer), reaches, "{outer}");
            }
        }
        assert_eq!(reach("2002:808:808::1"), Reach::World);
        assert_eq!(reach("64:ff9b::8.8.8.8"), Reach::World);
    }

    #[test]
    fn private_addresses_are_for_private_ones() {
        let world = ["192.0.2.1:1", "[2001:db8::1]:1"];
        let site = ["10.0.0.1:1", "172.16.0.1:1", "192.168.0.1:1", "100.64.0.1:1", "100.127.255.255:1", "[fd00::1]:1"];
        let host = ["127.0.0.1:1", "[::1]:1"];
        let link = ["169.254.0.1:1", "[fe80::1]:1", "[fd00:ec2::254]:1"];
        let scion = ["[1-ff00:0:110,10.0.0.1]:1"];
        let all = |addresses: &[&str], met: &[&str], expected: bool| {
            for (address, met) in endpoints(addresses)
                .iter()
                .flat_map(|address| endpoints(met).into_iter().map(move |met| (address, met)))
            {
                assert_eq!(is_for(address, &met), expected, "{address} for {met}");
            }
        };
        for met in [&world[..], &site, &host, &scion] {
            all(&world, met, true);
            all(&scion, met, true);
            all(&link, met, false);
        }
        all(&site, &site, true);
        all(&site, &host, true);
        all(&site, &world, false);
        all(&site, &scion, false);
        all(&site, &["100.128.0.1:1", "[::ffff:192.0.2.1]:1"], false);
        all(&host, &host, true);
        all(&host, &site, false);
        all(&host, &world, false);
    }

    #[test]
    fn nobody_names_a_privileged_port() {
        let at = |text: &str| text.parse::<Endpoint>().unwrap();
        for namer in ["192.0.2.1:6969", "10.0.0.1:6969", "127.0.0.1:6969"] {
            assert!(may_name_peer(&at(namer), &at("192.0.2.9:1024")));
            assert!(!may_name_peer(&at(namer), &at("192.0.2.9:1023")));
        }
    }

    #[test]
    fn links_lead_into_the_own_network_with_harmless_greetings_only() {
        let may = |address: &str, hash: &[u8; 20], home| may_link_to_peer(&address.parse().unwrap(), [*hash], home);
        let (plain, command) = ([b'x'; 20], *b"12\r\nFLUSHALL\r\n345678");
        assert!(may("192.0.2.1:6881", &command, false) && !may("192.0.2.1:80", &plain, false));
        assert!(may("192.168.1.2:6881", &plain, false) && !may("192.168.1.2:22", &plain, false));
        assert!(!may("192.168.1.2:6379", &command, false) && !may("169.254.169.254:8080", &plain, true));
        assert!(!may("127.0.0.1:6881", &plain, false) && !may("127.0.0.1:6881", &command, true));
        assert!(may("127.0.0.1:6881", &plain, true));
        // One end of a line makes no line; what is no text, or too short for a word, is no command.
        for hash in [b"1234567890\n123456789", b"1234\nFLUSH\x80LL\n345678", b"12345678\nGO\r456\x00\n89\n"] {
            assert!(may("192.168.1.2:6881", hash, false), "{}", hash.escape_ascii());
        }
    }

    #[test]
    fn local_trackers_of_torrents_have_one_path_and_no_query() {
        let may = |url: &str, address: &str| may_announce(&url.parse().unwrap(), address.parse().unwrap());
        assert!(may("http://t.example/any/path?query", "192.0.2.1:25"));
        for near in ["127.0.0.1:6969", "10.0.0.1:6969", "[::1]:6969", "[fd00::1]:6969", "10.0.0.1:80"] {
            assert!(may("http://t.example/announce", near), "{near}");
            for url in
                ["http://t/announce?a", "http://t/announce/x", "http://t/x/announce", "http://t/", "http://t/Announce"]
            {
                assert!(!may(url, near), "{url} {near}");
            }
        }
        for forbidden in ["127.0.0.1:80", "127.0.0.1:1023", "10.0.0.1:22", "169.254.169.254:80", "[fd00:ec2::254]:80"] {
            assert!(!may("http://t.example/announce", forbidden), "{forbidden}");
        }
        assert!(may("udp://t:1", "127.0.0.1:6969") && may("udp://t:1/announce", "10.0.0.1:1024"));
        assert!(!may("udp://t:1/announce?a", "127.0.0.1:6969") && !may("udp://t:1", "10.0.0.1:53"));
    }

    #[test]
    fn redirects_lead_no_nearer() {
        let may = |from: &str, to: &str| may_redirect(from.parse().unwrap(), to.parse().unwrap());
        assert!(may("192.0.2.1", "192.0.2.2:1") && may("127.0.0.1", "192.0.2.2:1") && may("10.0.0.1", "10.0.0.2:80"));
        assert!(may("127.0.0.1", "127.0.0.1:6969") && may("127.0.0.1", "10.0.0.2:6969"));
        assert!(
            !may("192.0.2.1", "10.0.0.1:80")
                && !may("192.0.2.1", "[2002:7f00:1::]:80")
                && !may("10.0.0.1", "127.0.0.1:80")
        );
        assert!(!may("127.0.0.1", "169.254.169.254:80") && !may("10.0.0.1", "10.0.0.1:22"));
    }

    proptest! {
        /// Whatever form an address is written in, it is no farther than the plain one.
        #[test]
        fn no_form_leads_nearer_than_it_looks(v4: [u8; 4], prefix: u64, form in 0usize..6) {
            let ip = Ipv4Addr::from(v4);
            let [a, b, c, d] = v4;
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            let [w, x, y, z] = [48, 32, 16, 0].map(|shift| (prefix >> shift) as u16);
            let outer: Ipv6Addr = match form {
                0 => ip.to_ipv6_mapped(),
                1 => [0x2002, high, low, w, x, y, z, 0].into(),
                2 => [0x64, 0xff9b, 0, 0, 0, 0, high, low].into(),
                3 => [0x64, 0xff9b, 1, w, x, y, high, low].into(),
                4 => [0x2001, 0, w, x, y, z, !high, !low].into(),
                _ => [0x2001, w, x, y, 0, 0x5efe, high, low].into(),
            };
            prop_assert!(Reach::of(outer.into()) <= Reach::of(ip.into()), "{outer} of {ip}");
        }

        /// Who is farther may name no more.
        #[test]
        fn who_is_nearer_may_name_all_that_who_is_farther_may(near: IpAddr, far: IpAddr, address: IpAddr, port: u16) {
            let [near, far, address] = [near, far, address].map(|ip| Endpoint::from(SocketAddr::new(ip, port)));
            if reach_of(&near) <= reach_of(&far) && may_name_peer(&far, &address) {
                prop_assert!(may_name_peer(&near, &address));
            }
            if may_name_peer(&far, &address) {
                prop_assert!(reach_of(&address) >= reach_of(&far) || reach_of(&address) == Reach::World);
            }
        }
    }
}
