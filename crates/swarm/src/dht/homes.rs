//! Which addresses of ours are places in a network.
//!
//! A socket that is bound to one address is one place. One that is bound to all of them is a place for every uplink, as others see another
//! address of ours over each (BEP 45); where there is one uplink, packets go as the system's routes go.

use std::net::{IpAddr, SocketAddr};

use anabranch_bittorrent::reach::Reach;
use anabranch_dht::snapshot::Saved;
use anabranch_dht::{Dht, Family, HomeConfig, HomeId};
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_transport::{Interfaces, LocalInterface, Via};

use super::kept::SavedTables;

/// Uplinks that are places of their own, of each family.
const UPLINKS_MAX: usize = 8;

/// Where a place is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    family: Family,
    /// Which of the sockets; none over SCION.
    port: Option<usize>,
    /// How packets leave; `None`: as the system's routes go.
    via: Option<Via>,
    /// Our address there as others see it, where it is known for sure.
    address: Option<Endpoint>,
}

/// The places there are.
#[derive(Default)]
pub(super) struct Homes(Vec<(HomeId, Spot)>);

/// The places that there should be, for sockets at `ports` and one at `scion`.
pub(super) fn wanted(ports: &[SocketAddr], interfaces: Option<&Interfaces>, scion: Option<ScionAddr>) -> Vec<Spot> {
    let mut spots: Vec<Spot> = Vec::new();
    for (at, bound) in ports.iter().enumerate() {
        if !bound.ip().is_unspecified() {
            let family = Family::of(&(*bound).into());
            spots.push(Spot { family, port: Some(at), via: None, address: as_others_see(bound.ip(), *bound) });
            continue;
        }
        for family in [Family::V4, Family::V6] {
            // An IPv6 socket at all addresses takes IPv4 too.
            if family == Family::V6 && bound.is_ipv4() {
                continue;
            }
            let vias = uplinks(interfaces, family);
            let is_restricted = interfaces.is_some_and(Interfaces::is_restricted);
            let of = |via: Option<Via>, ip: Option<IpAddr>| {
                let address = ip.and_then(|ip| as_others_see(ip, *bound));
                Spot { family, port: Some(at), via, address }
            };
            match vias.as_slice() {
                [] if is_restricted || family == Family::V6 => {}
                [] => spots.push(of(None, None)),
                [via] if !is_restricted => spots.push(of(None, Some(via.source))),
                _ => spots.extend(vias.iter().map(|via| of(Some(via.clone()), Some(via.source)))),
            }
        }
    }
    spots.extend(scion.map(|local| Spot { family: Family::Scion, port: None, via: None, address: Some(local.into()) }));
    spots
}

/// One way out for each uplink that has an address of the family.
fn uplinks(interfaces: Option<&Interfaces>, family: Family) -> Vec<Via> {
    let list = interfaces.map(Interfaces::list).unwrap_or_default();
    let usable = list.iter().filter(|interface| interface.usable && !interface.loopback);
    usable.filter_map(|interface| via(interface, family)).take(UPLINKS_MAX).collect()
}

/// By the address that reaches farthest.
fn via(interface: &LocalInterface, family: Family) -> Option<Via> {
    let of_family = |ip: &IpAddr| ip.is_ipv4() == (family == Family::V4) && Reach::of(*ip) >= Reach::Site;
    let ips = interface.addresses.iter().map(|address| address.ip).filter(of_family);
    // Of several, the first that the system lists.
    let source = ips.rev().max_by_key(|ip| Reach::of(*ip))?;
    Some(Via { source, interface: interface.name.clone(), index: interface.index, is_local: false })
}

/// Behind a NAT others see another one.
fn as_others_see(ip: IpAddr, bound: SocketAddr) -> Option<Endpoint> {
    (Reach::of(ip) == Reach::World).then(|| SocketAddr::new(ip, bound.port()).into())
}

impl Homes {
    /// Takes the places that are wanted, and leaves those that are no more.
    pub(super) fn settle(
        &mut self,
        wanted: Vec<Spot>,
        core: &mut Dht,
        kept: &mut SavedTables,
        now: std::time::Instant,
    ) {
        self.0.retain(|(id, spot)| {
            let is_wanted = wanted.contains(spot);
            if !is_wanted {
                // Its nodes are those of the network, from whichever address.
                kept.put_back(spot.family, core.snapshot(*id, now));
                core.remove_home(*id, now);
            }
            is_wanted
        });
        for spot in wanted {
            if self.0.iter().any(|(_, held)| *held == spot) {
                continue;
            }
            let saved = kept.take(spot.family);
            let config = HomeConfig { family: spot.family, address: spot.address, saved };
            if let Some(id) = core.add_home(config, now) {
                self.0.push((id, spot));
            }
        }
    }

    /// The place that a datagram came to.
    pub(super) fn at(&self, port: usize, family: Family, local: Option<IpAddr>) -> Option<HomeId> {
        let mut here = self.0.iter().filter(|(_, spot)| spot.port == Some(port) && spot.family == family);
        let source = |spot: &Spot| spot.via.as_ref().map(|via| via.source);
        let exact = here.clone().find(|(_, spot)| local.is_some() && source(spot) == local);
        exact.or_else(|| here.next()).map(|(id, _)| *id)
    }

    /// The place in the SCION network.
    pub(super) fn scion(&self) -> Option<HomeId> {
        self.0.iter().find(|(_, spot)| spot.family == Family::Scion).map(|(id, _)| *id)
    }

    /// From which socket a place sends, and by which uplink.
    pub(super) fn way(&self, home: HomeId) -> Option<(usize, Option<&Via>)> {
        let (_, spot) = self.0.iter().find(|(id, _)| *id == home)?;
        Some((spot.port?, spot.via.as_ref()))
    }

    /// What to keep of all places.
    pub(super) fn snapshot(&self, core: &Dht, now: std::time::Instant) -> Vec<(Family, Saved)> {
        self.0.iter().filter_map(|(id, spot)| Some((spot.family, core.snapshot(*id, now)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_address_is_one_place_and_a_wildcard_one_of_each_family_at_least() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let of = |spots: Vec<Spot>| spots.into_iter().map(|spot| (spot.family, spot.port)).collect::<Vec<_>>();
        assert_eq!(
            of(wanted(&[at("127.0.0.1:1"), at("[::1]:1")], None, None)),
            [(Family::V4, Some(0)), (Family::V6, Some(1))]
        );
        assert_eq!(of(wanted(&[at("[::]:1")], None, None)), [(Family::V4, Some(0))]);
        let scion = "[1-ff00:0:110,10.0.0.1]:31000".parse().unwrap();
        assert_eq!(of(wanted(&[], None, Some(scion))), [(Family::Scion, None)]);
        assert_eq!(wanted(&[at("10.0.0.1:1")], None, None)[0].address, None);
        assert!(wanted(&[at("198.51.100.1:1")], None, None)[0].address.is_some());
    }
}
