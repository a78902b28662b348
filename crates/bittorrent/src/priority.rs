//! Whom of many to connect to (BEP 40): both ends of a connection reckon the same number from both addresses, so each pair that is worth keeping
//! is worth it to both, and everybody's choices spread over all. Who could choose its address freely gains little by it.

use std::net::{IpAddr, SocketAddr};

use anabranch_content::storage::crc32c;

/// The priority of the connection between `ours` and `theirs`: the greater one is preferred.
pub fn peer_priority(ours: SocketAddr, theirs: SocketAddr) -> u32 {
    let (our_ip, their_ip) = (ours.ip().to_canonical(), theirs.ip().to_canonical());
    if our_ip == their_ip {
        return of_both(&ours.port().to_be_bytes(), &theirs.port().to_be_bytes());
    }
    match (our_ip, their_ip) {
        (IpAddr::V4(ours), IpAddr::V4(theirs)) => of_masked(ours.octets(), theirs.octets(), 2),
        (IpAddr::V6(ours), IpAddr::V6(theirs)) => of_masked(ours.octets(), theirs.octets(), 6),
        // Between families nothing is prescribed.
        (ours, theirs) => of_both(&octets(ours), &octets(theirs)),
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The whole octets count as far as both are alike and one further, but `whole` at least; of the others every second bit.
fn of_masked<const LEN: usize>(ours: [u8; LEN], theirs: [u8; LEN], whole: usize) -> u32 {
    let alike = ours.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs).count();
    let whole = if alike < whole { whole } else { alike + 1 };
    let masked = |octets: [u8; LEN]| -> [u8; LEN] {
        std::array::from_fn(|at| if at < whole { octets[at] } else { octets[at] & 0x55 })
    };
    of_both(&masked(ours), &masked(theirs))
}

/// CRC-32C over both, the lesser first.
fn of_both(ours: &[u8], theirs: &[u8]) -> u32 {
    crc32c(0, &[ours.min(theirs), ours.max(theirs)].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(ours: &str, theirs: &str) -> u32 {
        peer_priority(ours.parse().unwrap(), theirs.parse().unwrap())
    }

    #[test]
    fn priorities_are_those_of_the_specification() {
        assert_eq!(of("123.213.32.10:0", "98.76.54.32:0"), 0xec2d_7224);
        assert_eq!(of("123.213.32.10:0", "123.213.32.234:0"), 0x9956_8189);
        assert_eq!(of("[::ffff:123.213.32.10]:0", "98.76.54.32:0"), 0xec2d_7224);
        // Every second bit of the last two octets does not matter, between networks.
        assert_eq!(of("123.213.32.10:0", "98.76.54.32:0"), of("123.213.34.10:0", "98.76.54.34:9"));
        assert_ne!(of("10.0.0.1:1", "10.0.0.1:2"), of("10.0.0.1:1", "10.0.0.1:3"));
    }

    proptest! {
        #[test]
        fn both_ends_reckon_the_same(ours: SocketAddr, theirs: SocketAddr) {
            prop_assert_eq!(peer_priority(ours, theirs), peer_priority(theirs, ours));
        }
    }
}
