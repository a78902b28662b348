//! Names of nodes, how far they are from each other, and which of them an address may have (BEP 5, BEP 42).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use anabranch_paths::Endpoint;

/// Bytes of a name, and of what is looked for: an info-hash, an item's target.
pub const ID_LEN: usize = 20;
/// Bits of it.
pub const ID_BITS: usize = 8 * ID_LEN;

/// BEP 42: the bits of an IPv4 address that decide; an owner of many addresses has few names to choose from.
const MASK_V4: [u8; 4] = [0x03, 0x0f, 0x3f, 0xff];
/// The same of the high half of an IPv6 address.
const MASK_V6: [u8; 8] = [0x01, 0x03, 0x07, 0x0f, 0x1f, 0x3f, 0x7f, 0xff];
/// Bits of a name that the address decides.
const SECURE_BITS: usize = 21;

/// The name of a node, or of what is looked for: they share one space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub [u8; ID_LEN]);

/// How far two names are from each other: smaller is nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Distance([u8; ID_LEN]);

impl NodeId {
    /// The name in `bytes`, if they are as many as it has.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Any name.
    pub fn random(rng: &mut fastrand::Rng) -> Self {
        let mut id = [0; ID_LEN];
        rng.fill(&mut id);
        Self(id)
    }

    /// BEP 5: "the distance metric is XOR and the result is interpreted as an unsigned integer".
    pub fn distance(&self, other: &Self) -> Distance {
        Distance(std::array::from_fn(|at| self.0[at] ^ other.0[at]))
    }

    /// Leading bits that both have in common; at most [`ID_BITS`].
    pub fn shared_bits(&self, other: &Self) -> usize {
        self.distance(other).leading_zeros()
    }

    /// A name that has exactly `bits` leading bits in common with this one, and is else any.
    pub fn at_depth(&self, bits: usize, rng: &mut fastrand::Rng) -> Self {
        let mut id = Self::random(rng);
        for bit in 0..=bits.min(ID_BITS - 1) {
            let (at, mask) = (bit / 8, 0x80 >> (bit % 8));
            let own = self.0[at] & mask;
            let wanted = if bit == bits { own ^ mask } else { own };
            id.0[at] = id.0[at] & !mask | wanted;
        }
        id
    }

    /// A name that the host at `address` may have. Its last byte is `salt`, which decides too.
    pub fn secure(address: &Endpoint, salt: u8, rng: &mut fastrand::Rng) -> Self {
        let mut id = Self::random(rng);
        if let Some(crc) = checksum(address, salt) {
            let [a, b, c, _] = crc.to_be_bytes();
            (id.0[0], id.0[1]) = (a, b);
            id.0[2] = c & 0xf8 | id.0[2] & 0x07;
        }
        id.0[ID_LEN - 1] = salt;
        id
    }

    /// Whether the host at `address` may have this name: those of local networks may have any.
    pub fn is_secure(&self, address: &Endpoint) -> bool {
        let Some(crc) = checksum(address, self.0[ID_LEN - 1]) else { return true };
        let own = u32::from_be_bytes([self.0[0], self.0[1], self.0[2], 0]);
        (own ^ crc) >> (32 - SECURE_BITS) == 0
    }
}

impl Distance {
    /// Farther than all.
    pub const MAX: Self = Self([0xff; ID_LEN]);

    /// Leading bits that are not set.
    pub fn leading_zeros(&self) -> usize {
        let at = self.0.iter().position(|byte| *byte != 0).unwrap_or(ID_LEN);
        8 * at + self.0.get(at).map_or(0, |byte| byte.leading_zeros() as usize)
    }
}

/// What the first bits of a name have to be; `None` where any will do.
///
/// BEP 42 knows IP alone. Hosts of SCION are numbered by their AS, in whatever way it likes; so the AS stands in front of the host's masked
/// number, and an AS has no more names to choose from than a network of IP.
fn checksum(address: &Endpoint, salt: u8) -> Option<u32> {
    let salt = salt & 0x07;
    let mut bytes = Vec::with_capacity(16);
    if let Some(scion) = address.as_scion() {
        bytes.extend_from_slice(&scion.isd_as.to_u64().to_be_bytes());
    } else if is_local(address.ip()) {
        return None;
    }
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => bytes.extend(ip.octets().iter().zip(MASK_V4).map(|(octet, mask)| octet & mask)),
        IpAddr::V6(ip) => bytes.extend(ip.octets().iter().zip(MASK_V6).map(|(octet, mask)| octet & mask)),
    }
    // BEP 42: "ip[0] |= r << 5": these bits are masked out before, but in a SCION address.
    bytes[0] ^= salt << 5;
    Some(crc32c(&bytes))
}

/// BEP 42: the networks whose hosts may have any name.
fn is_local(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_private() || ip.is_link_local() || ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unique_local(),
    }
}

/// The network that `address` is in, whose owner has many addresses: 24 bits of IPv4, 48 of IPv6, the AS before either. `None` for local
/// networks, which are their users' own.
pub(crate) fn network_of(address: &Endpoint) -> Option<(u64, IpAddr)> {
    let isd_as = address.as_scion().map(|scion| scion.isd_as.to_u64());
    if isd_as.is_none() && is_local(address.ip()) {
        return None;
    }
    let network = match address.ip().to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() & !0xff).into()),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 80))),
    };
    // Within an AS any number is free: its network is the AS.
    Some(isd_as.map_or((0, network), |isd_as| (isd_as, IpAddr::V6(Ipv6Addr::UNSPECIFIED))))
}

/// CRC-32C (RFC 3720 §12.1), of what is a few bytes long or written once in minutes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&anabranch_content::hex::encode(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rng() -> fastrand::Rng {
        fastrand::Rng::with_seed(7)
    }

    #[test]
    fn names_are_those_of_the_specification() {
        // BEP 42, "vectors to test implementations".
        for (ip, salt, id) in [
            ("124.31.75.21", 1, "5fbfbff10c5d6a4ec8a88e4c6ab4c28b95eee401"),
            ("21.75.31.124", 86, "5a3ce9c14e7a08645677bbd1cfe7d8f956d53256"),
            ("65.23.51.170", 22, "a5d43220bc8f112a3d426c84764f8c2a1150e616"),
            ("84.124.73.14", 65, "1b0321dd1bb1fe518101ceef99462b947a01ff41"),
            ("43.213.53.83", 90, "e56f6cbf5b7c4be0237986d5243b87aa6d51305a"),
        ] {
            let bytes: Vec<u8> =
                (0..ID_LEN).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap()).collect();
            let (id, address) = (NodeId::from_slice(&bytes).unwrap(), format!("{ip}:6881").parse().unwrap());
            assert!(id.is_secure(&address), "{ip}");
            let own = NodeId::secure(&address, salt, &mut rng());
            assert!(own.is_secure(&address) && own.shared_bits(&id) >= SECURE_BITS, "{ip}");
            assert!(!id.is_secure(&"124.31.75.22:6881".parse().unwrap()));
            // One bit that counts, and one that does not.
            let mut other = id;
            other.0[2] ^= 0x08;
            assert!(!other.is_secure(&address));
            other.0[2] ^= 0x09;
            assert!(other.is_secure(&address));
        }
    }

    #[test]
    fn hosts_of_local_networks_may_have_any_name_and_those_of_an_as_may_not() {
        for local in ["127.0.0.1:1", "10.1.2.3:1", "192.168.1.1:1", "169.254.1.1:1", "[::1]:1", "[fd00::1]:1"] {
            assert!(NodeId([9; ID_LEN]).is_secure(&local.parse().unwrap()), "{local}");
        }
        let own: Endpoint = "[1-ff00:0:110,10.0.0.1]:6881".parse().unwrap();
        let id = NodeId::secure(&own, 5, &mut rng());
        assert!(id.is_secure(&own) && id.is_secure(&"[1-ff00:0:110,10.0.0.1]:1".parse().unwrap()));
        for other in ["[1-ff00:0:111,10.0.0.1]:6881", "[1-ff00:0:110,10.0.0.2]:6881", "[2-ff00:0:110,10.0.0.1]:6881"] {
            assert!(!id.is_secure(&other.parse().unwrap()), "{other}");
        }
        let v6: Endpoint = "[2001:db8:1:2::1]:1".parse().unwrap();
        let id = NodeId::secure(&v6, 200, &mut rng());
        assert!(id.is_secure(&v6) && id.is_secure(&"[2001:db8:1:2:3::1]:1".parse().unwrap()));
        assert!(!id.is_secure(&"[2001:db8:1:3::1]:1".parse().unwrap()));
    }

    #[test]
    fn depths_and_distances_agree() {
        let (own, mut rng) = (NodeId([0x5a; ID_LEN]), rng());
        for bits in [0, 1, 7, 8, 9, 63, 158, 159] {
            assert_eq!(own.at_depth(bits, &mut rng).shared_bits(&own), bits);
        }
        assert_eq!((own.shared_bits(&own), Distance::MAX.leading_zeros()), (ID_BITS, 0));
    }

    #[test]
    fn a_network_is_as_large_as_one_owner_has() {
        let of = |text: &str| network_of(&text.parse().unwrap());
        assert_eq!(of("192.0.2.1:1"), of("192.0.2.200:2"));
        assert_ne!(of("192.0.2.1:1"), of("192.0.3.1:1"));
        assert_eq!(of("[2001:db8:1:2::1]:1"), of("[2001:db8:1:3::1]:1"));
        assert_ne!(of("[2001:db8:1:2::1]:1"), of("[2001:db8:2:2::1]:1"));
        assert_eq!(of("[1-ff00:0:110,10.0.0.1]:1"), of("[1-ff00:0:110,192.0.2.1]:1"));
        assert_ne!(of("[1-ff00:0:110,10.0.0.1]:1"), of("[1-ff00:0:111,10.0.0.1]:1"));
        assert_eq!((of("127.0.0.1:1"), of("10.0.0.1:1")), (None, None));
    }

    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
