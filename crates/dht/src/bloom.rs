//! Sets of addresses of which only the size can be told (BEP 33).

use std::net::IpAddr;

use anabranch_content::hash::sha1;

/// Bytes of a filter: BEP 33, "m = 256 * 8".
pub const BLOOM_LEN: usize = 256;
const BITS: usize = 8 * BLOOM_LEN;
/// BEP 33: "k = 2".
const HASHES: usize = 2;

/// A set of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bloom([u8; BLOOM_LEN]);

impl Default for Bloom {
    fn default() -> Self {
        Self([0; BLOOM_LEN])
    }
}

impl Bloom {
    /// As another node sent it.
    pub fn from_bits(bits: &[u8; BLOOM_LEN]) -> Self {
        Self(*bits)
    }

    /// As it is sent.
    pub fn bits(&self) -> &[u8; BLOOM_LEN] {
        &self.0
    }

    /// One more address.
    pub fn insert(&mut self, ip: IpAddr) {
        let hash = match ip.to_canonical() {
            IpAddr::V4(ip) => sha1(&ip.octets()),
            IpAddr::V6(ip) => sha1(&ip.octets()),
        };
        for at in 0..HASHES {
            // BEP 33: "index1 = hash[0] | hash[1] << 8", modulo m.
            let index = (usize::from(hash[2 * at]) | usize::from(hash[2 * at + 1]) << 8) % BITS;
            self.0[index / 8] |= 1 << (index % 8);
        }
    }

    /// All that are in the other, too.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own |= other);
    }

    /// How many addresses there are, about; where nearly all bits are set, the most that can be told.
    pub fn estimate(&self) -> f64 {
        let (bits, set) = (BITS as f64, self.0.iter().map(|byte| byte.count_ones()).sum::<u32>());
        // BEP 33: "c = min(m - 1, number of zero bits)".
        let zeros = (bits - f64::from(set)).clamp(1.0, bits - 1.0);
        if set == 0 { 0.0 } else { (zeros / bits).ln() / (HASHES as f64 * (1.0 - 1.0 / bits).ln()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_of_the_specification_is_estimated_as_there() {
        // BEP 33, "test vectors": 192.0.2.0/24 and 1000 addresses from 2001:DB8::.
        let mut bloom = Bloom::default();
        (0..=255u8).for_each(|last| bloom.insert([192, 0, 2, last].into()));
        for last in 0..=0x3e7u16 {
            bloom.insert([0x2001, 0xdb8, 0, 0, 0, 0, 0, last].into());
        }
        assert_eq!(&bloom.0[..8], [0xf6, 0xc3, 0xf5, 0xea, 0xa0, 0x7f, 0xfd, 0x91]);
        assert!((bloom.estimate() - 1224.9308).abs() < 0.001, "{}", bloom.estimate());
    }

    #[test]
    fn sets_grow_by_those_that_are_new_up_to_what_can_be_told() {
        let mut bloom = Bloom::default();
        assert_eq!(bloom.estimate(), 0.0);
        bloom.insert([192, 0, 2, 1].into());
        let one = bloom.estimate();
        assert!((one - 1.0).abs() < 0.01);
        let mut other = Bloom::default();
        other.insert([192, 0, 2, 1].into());
        other.insert([192, 0, 2, 2].into());
        bloom.merge(&other);
        assert!((bloom.estimate() - 2.0).abs() < 0.01);
        let full = Bloom([0xff; BLOOM_LEN]);
        assert!(full.estimate().is_finite() && full.estimate() > 7000.0);
    }
}
