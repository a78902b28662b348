//! Which pairs there are, for made-up interfaces and routes.

use std::net::{IpAddr, SocketAddr};

use anabranch_paths::manager::REMOTES_MAX;
use proptest::prelude::*;

use super::candidates::pair;
use super::{
    CANDIDATES_MAX, INTERFACES_MAX, InterfaceError, Interfaces, IpCandidate, LocalAddress, LocalInterface, restrict,
};

fn interface(name: &str, index: u32, addresses: &[&str]) -> LocalInterface {
    let address = |text: &&str| {
        let (ip, prefix_len) = text.split_once('/').unwrap();
        LocalAddress { ip: ip.parse().unwrap(), prefix_len: prefix_len.parse().unwrap() }
    };
    let addresses = addresses.iter().map(address).collect();
    LocalInterface { name: name.to_owned(), index, loopback: name == "lo", running: true, usable: true, addresses }
}

fn lo() -> LocalInterface {
    interface("lo", 1, &["127.0.0.1/8", "::1/128"])
}

fn remotes(texts: &[&str]) -> Vec<SocketAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Every interface leads everywhere, from the first address of the family.
fn everywhere(interface: &LocalInterface, source: Option<IpAddr>, remote: SocketAddr) -> Option<IpAddr> {
    let first = interface.addresses.iter().map(|address| address.ip).find(|ip| ip.is_ipv4() == remote.is_ipv4());
    source.or(first)
}

/// Nothing is reached but the networks around.
fn on_link(interface: &LocalInterface, source: Option<IpAddr>, remote: SocketAddr) -> Option<IpAddr> {
    let mut around = interface.addresses.iter().filter(|address| address.has_in_network(remote.ip()));
    around.find(|address| source.is_none_or(|source| source == address.ip)).map(|address| address.ip)
}

fn shown(candidates: &[IpCandidate]) -> Vec<String> {
    candidates.iter().map(|candidate| format!("{} to {}", candidate.via, candidate.remote)).collect()
}

#[test]
fn two_links_of_their_own_make_two_paths() {
    let ours = [lo(), interface("a", 2, &["10.1.0.1/24"]), interface("b", 3, &["10.2.0.1/24"])];
    let found = pair(&remotes(&["10.1.0.2:7000", "10.2.0.2:7000"]), &ours, on_link);
    assert_eq!(shown(&found), ["a (10.1.0.1) to 10.1.0.2:7000", "b (10.2.0.1) to 10.2.0.2:7000"]);
    assert_eq!(found[1].path, anabranch_paths::Path::ip("10.2.0.1".parse().unwrap(), "10.2.0.2".parse().unwrap()));
    // An address beyond the links is reached over both where both have a route.
    let found = pair(&remotes(&["192.0.2.7:80"]), &ours, everywhere);
    assert_eq!(shown(&found), ["a (10.1.0.1) to 192.0.2.7:80", "b (10.2.0.1) to 192.0.2.7:80"]);
}

#[test]
fn pairs_in_one_network_come_first_then_those_without_a_common_end() {
    let ours = [interface("a", 2, &["10.1.0.1/24"]), interface("b", 3, &["10.2.0.1/24"])];
    let found = pair(&remotes(&["192.0.2.1:1", "192.0.2.2:1", "10.2.0.2:1"]), &ours, everywhere);
    // What is private and at hand is reached directly alone.
    let order = [
        "b (10.2.0.1) to 10.2.0.2:1",
        "a (10.1.0.1) to 192.0.2.1:1",
        "b (10.2.0.1) to 192.0.2.2:1",
        "a (10.1.0.1) to 192.0.2.2:1",
        "b (10.2.0.1) to 192.0.2.1:1",
    ];
    assert_eq!(shown(&found), order);
    let public = [interface("a", 2, &["198.51.100.1/24"]), interface("b", 3, &["203.0.113.1/24"])];
    let found = pair(&remotes(&["203.0.113.2:1"]), &public, everywhere);
    let order = ["b (203.0.113.1) to 203.0.113.2:1", "a (198.51.100.1) to 203.0.113.2:1"];
    assert_eq!(shown(&found), order);
}

#[test]
fn families_and_reaches_do_not_mix() {
    let ours = [lo(), interface("a", 2, &["10.1.0.1/24", "2001:db8:1::1/64", "fd00:1::1/64", "fe80::1/64"])];
    let via = |remote: &str| shown(&pair(&remotes(&[remote]), &ours, everywhere));
    assert_eq!(via("192.0.2.7:1"), ["a (10.1.0.1) to 192.0.2.7:1"]);
    assert_eq!(via("[2001:db8:2::7]:1"), ["a (2001:db8:1::1) to [2001:db8:2::7]:1"]);
    assert_eq!(via("[fd00:2::7]:1"), ["a (fd00:1::1) to [fd00:2::7]:1"]);
    assert_eq!(via("[fe80::7%2]:1"), ["a (fe80::1) to [fe80::7%2]:1"]);
    for nowhere in ["[fe80::7]:1", "[fe80::7%3]:1", "169.254.1.1:1", "0.0.0.0:1", "[::]:1", "224.0.0.1:1", "10.1.0.2:0"]
    {
        assert_eq!(via(nowhere), [""; 0], "{nowhere}");
    }
    // Mapped addresses are those that they stand for.
    assert_eq!(via("[::ffff:192.0.2.7]:1"), via("192.0.2.7:1"));
}

#[test]
fn what_stays_on_this_machine_has_one_way() {
    let ours = [lo(), interface("a", 2, &["10.1.0.1/24"]), interface("b", 3, &["10.2.0.1/24"])];
    let via = |remote: &str| pair(&remotes(&[remote]), &ours, everywhere);
    for (remote, source) in [("127.0.0.1:1", "127.0.0.1"), ("127.5.5.5:1", "127.0.0.1"), ("10.2.0.1:1", "10.2.0.1")] {
        let [only] = &via(remote)[..] else { panic!("{remote}") };
        assert!(only.via.is_local && only.via.source == source.parse::<IpAddr>().unwrap(), "{remote}");
    }
    assert!(pair(&remotes(&["127.0.0.1:1"]), &ours[1..], everywhere).is_empty());
    // Who is met here is here, whatever else it listens at; who is met elsewhere is not, though its numbers are ours too.
    let here = pair(&remotes(&["127.0.0.1:1", "10.1.0.1:1", "192.0.2.7:1"]), &ours, everywhere);
    assert_eq!(shown(&here), ["lo (127.0.0.1) to 127.0.0.1:1"]);
    let elsewhere = pair(&remotes(&["10.1.0.2:1", "10.2.0.1:1", "127.0.0.1:1"]), &ours, everywhere);
    assert_eq!(shown(&elsewhere), ["a (10.1.0.1) to 10.1.0.2:1"]);
}

#[test]
fn an_interface_in_two_networks_counts_twice_and_two_addresses_in_one_once() {
    let ours = [interface("a", 2, &["10.1.0.1/24", "10.1.0.9/24", "10.2.0.1/24"])];
    let found = pair(&remotes(&["192.0.2.7:1"]), &ours, everywhere);
    assert_eq!(shown(&found), ["a (10.1.0.1) to 192.0.2.7:1", "a (10.2.0.1) to 192.0.2.7:1"]);
    // The system's choice among those of one network is ours too.
    let chosen = |interface: &LocalInterface, source, remote| match source {
        None => Some([10, 1, 0, 9].into()),
        some => everywhere(interface, some, remote),
    };
    let found = pair(&remotes(&["192.0.2.7:1"]), &ours, chosen);
    assert_eq!(shown(&found), ["a (10.1.0.9) to 192.0.2.7:1", "a (10.2.0.1) to 192.0.2.7:1"]);
}

#[test]
fn what_is_considered_has_its_limits() {
    let ours: Vec<_> = (1..=9).map(|at| interface("x", at, &[&format!("10.{at}.0.1/24")])).collect();
    let texts: Vec<String> = (1..=REMOTES_MAX + 1).map(|at| format!("192.0.2.{at}:1")).collect();
    let all: Vec<SocketAddr> = texts.iter().map(|text| text.parse().unwrap()).collect();
    assert_eq!(pair(&all[..7], &ours, everywhere).len(), 63);
    assert_eq!(pair(&all[..8], &ours, everywhere).len(), CANDIDATES_MAX);
    // The first of all diagonals is there whatever is cut: every interface keeps some.
    let found = pair(&all, &ours, everywhere);
    assert_eq!(found.iter().map(|found| found.via.index).collect::<std::collections::HashSet<_>>().len(), 9);
    assert!(found.iter().all(|found| found.remote != all[REMOTES_MAX]));
    let many: Vec<_> = (1..=40).map(|at| interface("x", at, &["10.0.0.1/24"])).collect();
    assert_eq!(restrict(many, &[]).iter().filter(|interface| interface.usable).count(), INTERFACES_MAX);
}

#[test]
fn names_restrict_what_leaves_the_machine() {
    let all = vec![lo(), interface("a", 2, &["10.1.0.1/24"]), interface("b", 3, &["10.2.0.1/24"])];
    let list = restrict(all, &["b".to_owned()]);
    assert_eq!(shown(&pair(&remotes(&["192.0.2.7:1"]), &list, everywhere)), ["b (10.2.0.1) to 192.0.2.7:1"]);
    assert_eq!(shown(&pair(&remotes(&["127.0.0.1:1"]), &list, everywhere)), ["lo (127.0.0.1) to 127.0.0.1:1"]);
    // An address of ours on an interface that may not be used is no way to anybody else's.
    let found = pair(&remotes(&["10.1.0.1:1"]), &list, everywhere);
    assert!(found[0].via.is_local);
}

#[test]
fn peers_reach_us_at_what_we_listen_on() {
    let list = vec![
        lo(),
        interface("a", 2, &["10.1.0.1/24", "fe80::1/64"]),
        interface("b", 3, &["10.2.0.1/24", "2001:db8::1/64"]),
    ];
    let interfaces = Interfaces { names: Vec::new(), list };
    let at = |listening: &[&str]| interfaces.reachable_at(&remotes(listening));
    assert_eq!(at(&["0.0.0.0:80"]), remotes(&["10.1.0.1:80", "10.2.0.1:80"]));
    assert_eq!(at(&["[::]:80"]), remotes(&["10.1.0.1:80", "10.2.0.1:80", "[2001:db8::1]:80"]));
    assert_eq!(at(&["0.0.0.0:80", "[::]:80"]).len(), 3);
    let uplink = |ip: &str| interfaces.uplink(ip.parse().unwrap()).to_string();
    assert_eq!(
        (uplink("2001:db8::1"), uplink("10.2.0.1"), uplink("10.9.0.1")),
        ("10.2.0.1".into(), "10.2.0.1".into(), "10.9.0.1".into())
    );
    assert_eq!(at(&["10.2.0.1:80", "10.9.0.1:80", "127.0.0.1:80"]), remotes(&["10.2.0.1:80"]));
}

#[test]
fn this_machine_has_a_loopback_and_unknown_names_are_told() {
    let interfaces = Interfaces::new(&[]).unwrap();
    let lo = interfaces.list().iter().find(|interface| interface.loopback).unwrap();
    assert!(lo.addresses.contains(&LocalAddress { ip: [127, 0, 0, 1].into(), prefix_len: 8 }), "{lo:?}");
    assert!(interfaces.has([127, 0, 0, 1].into()) && !interfaces.has([192, 0, 2, 1].into()));
    assert!(Interfaces::new(std::slice::from_ref(&lo.name)).is_ok());
    let error = Interfaces::new(&["nope7".to_owned()]).unwrap_err();
    assert!(error.to_string().starts_with("there is no network interface `nope7`: this machine has "), "{error}");
    assert!(error.to_string().contains(&lo.name), "{error}");
    assert!(matches!(Interfaces::new(&vec![String::new(); 33]), Err(InterfaceError::TooMany(33))));
}

fn address() -> impl Strategy<Value = LocalAddress> {
    // Few networks, so that addresses meet.
    let v4 = (0u8..4, 0u8..4, 8u8..=32).prop_map(|(net, host, len)| (IpAddr::from([10, net, 0, host]), len));
    let v6 = (0u16..4, 0u16..4, 8u8..=128).prop_map(|(net, host, len)| {
        (IpAddr::from([[0x2001, 0xfd00, 0xfe80, 0x2002][usize::from(net)], 0, 0, 0, 0, 0, 0, host]), len)
    });
    prop_oneof![v4, v6].prop_map(|(ip, prefix_len)| LocalAddress { ip, prefix_len })
}

proptest! {
    /// Whatever there is and wherever it leads: pairs of one family, none twice, within the limit, and the same every time.
    #[test]
    fn pairs_are_sound(
        addresses in proptest::collection::vec((proptest::collection::vec(address(), 0..6), any::<bool>()), 0..12),
        ends in proptest::collection::vec((prop_oneof![any::<IpAddr>(), address().prop_map(|address| address.ip)], any::<u16>()), 0..24),
        routes: u64,
    ) {
        let mut list = vec![lo()];
        for (at, (addresses, usable)) in addresses.into_iter().enumerate() {
            list.push(LocalInterface { name: format!("x{at}"), index: at as u32 + 2, loopback: false, running: usable, usable, addresses });
        }
        let remotes: Vec<SocketAddr> = ends.into_iter().map(SocketAddr::from).collect();
        let route = |interface: &LocalInterface, source, remote: SocketAddr| {
            let leads = routes >> ((interface.index + u32::from(remote.port())) % 64) & 1 == 1;
            everywhere(interface, source, remote).filter(|_| leads)
        };
        let found = pair(&remotes, &list, route);
        prop_assert!(found.len() <= CANDIDATES_MAX);
        prop_assert_eq!(&found, &pair(&remotes, &list, route));
        let ids: std::collections::HashSet<_> = found.iter().map(|found| found.path.id()).collect();
        prop_assert_eq!(ids.len(), found.len());
        let mut same_network_over = false;
        for IpCandidate { path, remote, via } in &found {
            prop_assert_eq!((path.local(), path.remote()), (via.source, remote.ip()));
            prop_assert_eq!(via.source.is_ipv4(), remote.is_ipv4());
            prop_assert_eq!(via.source.is_loopback(), remote.ip().is_loopback());
            let interface = list.iter().find(|interface| interface.index == via.index).unwrap();
            prop_assert!(interface.has(via.source) && (interface.usable || via.is_local));
            let address = interface.addresses.iter().find(|address| address.ip == via.source).unwrap();
            let same_network = address.has_in_network(remote.ip());
            prop_assert!(!(same_network && same_network_over));
            same_network_over |= !same_network;
        }
    }
}
