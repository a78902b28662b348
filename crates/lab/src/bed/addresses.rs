//! Who has which address in a network of namespaces. Everything follows from places in the topology: AS number `n` of the file
//! has a /24, whose `.1` is the AS's own address (its routers and services), and whose `.10` and on are hosts; link number
//! `n` has a /30. Nothing leaves the namespaces, so no address can meet another one.

use std::net::Ipv4Addr;

use super::BedError;

/// ASes of one network: each is a namespace with processes of its own.
pub(crate) const ASES_MAX: usize = 200;
/// Links of one network: each is a thread and two devices.
pub(crate) const LINKS_MAX: usize = 1000;
/// Hosts of one AS: they have `.10` to `.249`.
pub(super) const HOSTS_PER_AS_MAX: usize = 240;
/// Hosts of one network: each is a namespace with a peer in it.
pub(super) const HOSTS_MAX: usize = 500;

const HOST_FIRST: u8 = 10;

/// First address of an AS's /24.
pub(super) fn network(at: usize) -> Ipv4Addr {
    // Below 200: one step of the second byte suffices.
    Ipv4Addr::new(10, 1, at as u8, 0)
}

/// An AS's own address.
pub(super) fn own(at: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, at as u8, 1)
}

/// The address of a host of an AS.
pub(super) fn host(at: usize, number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, at as u8, HOST_FIRST + number as u8)
}

/// The address of one end (0 or 1) of a link.
pub(super) fn link(number: usize, end: usize) -> Ipv4Addr {
    let base = u32::from(Ipv4Addr::new(10, 128, 0, 0));
    Ipv4Addr::from(base + 4 * number as u32 + 1 + end as u32)
}

/// The number that BGP knows an AS by; also the order of router ids.
pub(super) fn asn(at: usize) -> u32 {
    // The first of the private numbers of 32 bits (RFC 6996).
    4_200_000_000 + at as u32
}

/// Whether all of it has addresses.
pub(super) fn check(ases: usize, links: usize, hosts: &[usize]) -> Result<(), BedError> {
    let many = [
        ("ASes", ases, ASES_MAX),
        ("links", links, LINKS_MAX),
        ("hosts in one AS", hosts.iter().copied().max().unwrap_or(0), HOSTS_PER_AS_MAX),
        ("hosts", hosts.iter().sum(), HOSTS_MAX),
    ];
    match many.into_iter().find(|(_, found, max)| found > max) {
        Some((what, found, max)) => Err(BedError::TooMany { what, found, max }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_everything_has_an_address_of_its_own() {
        assert_eq!(host(ASES_MAX - 1, HOSTS_PER_AS_MAX - 1).to_string(), "10.1.199.249");
        assert_eq!(
            [link(0, 0), link(0, 1), link(1, 0)].map(|each| each.to_string()),
            ["10.128.0.1", "10.128.0.2", "10.128.0.5"]
        );
        assert_eq!(link(LINKS_MAX - 1, 1).to_string(), "10.128.15.158");
        assert!(check(ASES_MAX, LINKS_MAX, &[HOSTS_PER_AS_MAX, 20]).is_ok());
        assert!(check(ASES_MAX + 1, 1, &[]).is_err());
        let error = check(1, 1, &[HOSTS_PER_AS_MAX + 1]).unwrap_err().to_string();
        assert!(error.contains("241 hosts in one AS"), "{error}");
    }
}
