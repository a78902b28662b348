//! Who is one host, and by which way it is dialled at first.

use super::*;

fn view(peer: u32, listens: &[&str]) -> PeerView {
    PeerView {
        peer: PeerKey(peer),
        conns: vec![ConnId(peer)],
        listens: listens.iter().map(|at| at.parse().unwrap()).collect(),
        name: None,
        speaks_paths: false,
        wish: None,
        is_interested: false,
        is_served: false,
        is_wanted: peer.is_multiple_of(2),
    }
}

/// With nothing told of further addresses.
fn alone(views: &[PeerView]) -> Vec<(PeerView, Vec<Endpoint>)> {
    views.iter().map(|view| (view.clone(), Vec::new())).collect()
}

fn grouped(desk: &mut IpDesk, views: &[PeerView]) -> Vec<(HostId, Vec<u32>, usize)> {
    let hosts = desk.hosts_of(&alone(views)).into_iter();
    hosts.map(|host| (host.id, host.conns.iter().map(|conn| conn.0).collect(), host.listens.len())).collect()
}

#[test]
fn who_listens_at_one_address_is_one_host_whatever_its_peer_ids() {
    let mut desk = IpDesk::default();
    let (one, other) = ("192.0.2.1:80", "192.0.2.2:80");
    let first = grouped(&mut desk, &[view(1, &[one]), view(2, &[one]), view(3, &[other])]);
    assert_eq!(first.iter().map(|(_, conns, _)| conns.clone()).collect::<Vec<_>>(), [vec![1, 2], vec![3]]);
    let hosts = desk.hosts_of(&alone(&[view(1, &[one]), view(2, &[one])]));
    assert!(hosts[0].is_wanted && hosts.len() == 1);
    // It stays itself when the connection by which it was met goes, and when one of our kind turns out to have more addresses.
    let later = grouped(&mut desk, &[view(2, &[one]), view(4, &[other, "192.0.2.3:80"])]);
    assert_eq!(later[0], (first[0].0, vec![2], 1));
    assert_eq!(later[1].2, 2);
    let last = grouped(&mut desk, &[view(4, &["192.0.2.3:80"])]);
    assert_eq!(last, [(later[1].0, vec![4], 1)]);
    // One that cannot be dialled is itself all the same.
    assert_eq!(grouped(&mut desk, &[view(5, &[]), view(6, &[])]).len(), 2);
    assert!(desk.of_address.is_empty());
}

#[test]
fn an_unproven_name_makes_one_host_only_of_addresses_that_it_told() {
    let mut desk = IpDesk::default();
    let (one, other) = ("192.0.2.1:80", "192.0.2.2:80");
    let named =
        |peer, listens: &[&str], name: u8| PeerView { name: Some(PeerIdentity([name; 32])), ..view(peer, listens) };
    let told = |at: &str| vec![at.parse().unwrap()];
    let mut conns = |views: &[(PeerView, Vec<Endpoint>)]| -> Vec<Vec<u32>> {
        let hosts = desk.hosts_of(views).into_iter();
        hosts.map(|host| host.conns.iter().map(|conn| conn.0).collect()).collect()
    };
    assert_eq!(conns(&[(named(1, &[one], 7), told(other)), (named(2, &[other], 7), vec![])]), [[1, 2]]);
    assert_eq!(conns(&[(named(3, &["192.0.2.3:80"], 7), vec![]), (named(4, &["192.0.2.4:80"], 7), vec![])]).len(), 2);
    let strange = [(named(5, &["192.0.2.5:80"], 7), told("192.0.2.6:80")), (named(6, &["192.0.2.6:80"], 8), vec![])];
    assert_eq!(conns(&strange).len(), 2);
}

#[test]
fn refusals_count_when_they_follow_an_opening() {
    let (mut desk, now) = (IpDesk::default(), Instant::now());
    let host = desk.hosts_of(&alone(&[view(1, &["192.0.2.1:80"])]))[0].id;
    let path = Path::ip([10, 0, 0, 1].into(), [192, 0, 2, 1].into());
    let way = Way::new("192.0.2.1:80".parse().unwrap(), path, None, None, std::rc::Rc::default());
    desk.hosts.insert(host, IpPeer { opened_at: Some(now), ..IpPeer::default() });
    desk.left(PeerKey(1), &way, now + TOO_MANY_WITHIN - Duration::from_millis(1));
    assert_eq!(desk.hosts[&host].too_many, 1);
    desk.left(PeerKey(1), &way, now);
    assert_eq!(desk.hosts[&host].too_many, 1, "no opening since");
    desk.hosts.insert(host, IpPeer { opened_at: Some(now), too_many: 1, ..IpPeer::default() });
    desk.left(PeerKey(1), &way, now + TOO_MANY_WITHIN);
    assert_eq!((desk.hosts[&host].too_many, desk.hosts[&host].alone_until), (1, None));
    desk.left(PeerKey(1), &way, now + TOO_MANY_WITHIN / 2);
    assert_eq!(desk.hosts[&host].alone_until, Some(now + TOO_MANY_WITHIN / 2 + LEFT_ALONE));
}

#[test]
fn the_first_attempt_is_the_systems_and_later_ones_go_round() {
    let remote = "127.0.0.1:80".parse().unwrap();
    let free = WaysOut::open(&[]).unwrap();
    let ways: Vec<bool> = (0..4).map(|failures| free.via(remote, failures).unwrap().is_some()).collect();
    assert_eq!(ways, [false, true, false, true]);
    let lo = Interfaces::new(&[]).unwrap().list().iter().find(|interface| interface.loopback).unwrap().name.clone();
    let only = WaysOut::open(std::slice::from_ref(&lo)).unwrap();
    assert_eq!(only.via(remote, 0).unwrap().unwrap().via.interface, lo);
    let nowhere = only.via("192.0.2.1:80".parse().unwrap(), 0).unwrap_err();
    assert!(nowhere.contains("--interface"), "{nowhere}");
    assert!(WaysOut::open(&["nope7".to_owned()]).is_err());
}

#[test]
fn failed_attempts_are_forgotten_with_their_addresses_and_bounded() {
    let mut desk = super::super::Desk::default();
    let address = |number: u32| -> Endpoint { SocketAddr::from((std::net::Ipv4Addr::from_bits(number), 1)).into() };
    (0..super::super::FAILURES_MAX as u32).for_each(|number| desk.tried(address(number), false));
    desk.tried(address(7), false);
    assert_eq!(desk.failures(address(7)), 1, "all were forgotten at the limit, and this one counts anew");
    desk.tried(address(8), false);
    desk.forget_address(address(8));
    desk.tried(address(7), true);
    assert_eq!((desk.failures(address(7)), desk.failures(address(8)), desk.failures.len()), (0, 0, 0));
}
