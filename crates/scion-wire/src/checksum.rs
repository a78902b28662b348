//! The Internet checksum (RFC 1071) over SCION's pseudo header and the upper layer.
//!
//! A [`Sum`] is what has been added so far; sums of parts add up to the sum of the whole as long as every part but the
//! last has an even length. So the header's part is computed once per path and the payload's once per packet.

use std::ops::Add;

/// A one's complement sum that is not folded yet. In the machine's byte order, which RFC 1071 §2(B) allows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of one 16-bit number.
    pub fn from_u16(number: u16) -> Self {
        Self(number.to_be().into())
    }

    /// The sum of the halves of a 32-bit number.
    pub fn from_u32(number: u32) -> Self {
        Self(number.to_be().into())
    }

    /// The checksum field's value: the complement of the sum. Never zero, which in UDP means that nobody computed it;
    /// 0xffff is the same number in one's complement (RFC 768).
    pub fn checksum(self) -> u16 {
        match !self.folded() {
            0 => u16::MAX,
            checksum => checksum.to_be(),
        }
    }

    /// The sum was taken over everything, the checksum field included, and nothing was changed on the way.
    pub fn is_intact(self) -> bool {
        self.folded() == u16::MAX
    }

    fn folded(self) -> u16 {
        let mut sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        sum = (sum >> 32) + (sum & 0xffff_ffff);
        sum = (sum >> 16) + (sum & 0xffff);
        sum = (sum >> 16) + (sum & 0xffff);
        ((sum >> 16) + (sum & 0xffff)) as u16
    }
}

impl Add for Sum {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (sum, carry) = self.0.overflowing_add(other.0);
        Self(sum + u64::from(carry))
    }
}

/// The sum of bytes; an odd last one counts as if a zero followed.
pub fn sum(bytes: &[u8]) -> Sum {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= WIDE_LEN_MIN && std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as was just asked.
        return unsafe { sum_avx2(bytes) };
    }
    sum_portable(bytes)
}

/// Copies `from` to the start of `to` and returns its sum, in one pass over memory.
///
/// # Panics
/// If `to` is shorter than `from`.
pub fn copy_sum(to: &mut [u8], from: &[u8]) -> Sum {
    let to = &mut to[..from.len()];
    #[cfg(target_arch = "x86_64")]
    if from.len() >= WIDE_LEN_MIN && std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as was just asked.
        return unsafe { copy_sum_avx2(to, from) };
    }
    copy_sum_portable(to, from)
}

/// Below this the wide loops do not pay.
#[cfg(target_arch = "x86_64")]
const WIDE_LEN_MIN: usize = 64;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(bytes: &[u8]) -> Sum {
    sum_portable(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn copy_sum_avx2(to: &mut [u8], from: &[u8]) -> Sum {
    copy_sum_portable(to, from)
}

/// Bytes added in one round: two accumulators of four words each keep a wide unit busy.
const ROUND: usize = 64;

/// Written so that the compiler makes wide additions of it; compiled once more for each wider unit above.
#[inline(always)]
fn sum_portable(bytes: &[u8]) -> Sum {
    let (rounds, tail) = bytes.as_chunks::<ROUND>();
    let mut lanes = [0; LANES];
    for round in rounds {
        add_round(&mut lanes, round);
    }
    total(lanes) + sum_tail(tail)
}

#[inline(always)]
fn copy_sum_portable(to: &mut [u8], from: &[u8]) -> Sum {
    let (rounds, tail) = from.as_chunks::<ROUND>();
    let (to_rounds, to_tail) = to.as_chunks_mut::<ROUND>();
    let mut lanes = [0; LANES];
    for (round, to) in rounds.iter().zip(to_rounds) {
        *to = *round;
        add_round(&mut lanes, round);
    }
    to_tail.copy_from_slice(tail);
    total(lanes) + sum_tail(tail)
}

/// One lane for every eight bytes of a round.
const LANES: usize = ROUND / 8;

/// Adds both halves of every word to its lane, which has room for 2^31 of them: more than any buffer holds.
#[inline(always)]
fn add_round(lanes: &mut [u64; LANES], round: &[u8; ROUND]) {
    let (words, _) = round.as_chunks::<8>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        let word = u64::from_ne_bytes(*word);
        *lane += (word >> 32) + (word & 0xffff_ffff);
    }
}

#[inline(always)]
fn total(lanes: [u64; LANES]) -> Sum {
    lanes.into_iter().map(Sum).fold(Sum::default(), Sum::add)
}

#[inline(always)]
fn sum_tail(tail: &[u8]) -> Sum {
    let (words, rest) = tail.as_chunks::<8>();
    let mut sum = words.iter().map(|word| Sum(u64::from_ne_bytes(*word))).fold(Sum::default(), Sum::add);
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        sum = sum + Sum(u64::from_ne_bytes(word));
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As the RFC writes it: 16 bits at a time.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071() {
        // §3: the sum of these is 0xddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum(&bytes).checksum(), !0xddf2);
    }

    #[test]
    fn a_checksum_is_never_zero() {
        assert_eq!(sum(&[0xff, 0xff]).checksum(), 0xffff);
        assert_eq!(sum(&[]).checksum(), 0xffff);
    }

    #[test]
    fn carries_are_not_lost() {
        let bytes = [0xff; 65535];
        assert_eq!(sum(&bytes).folded().to_be(), !plain(&bytes));
        assert!((Sum(u64::MAX) + Sum(u64::MAX)).is_intact());
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_rfc(bytes in proptest::collection::vec(any::<u8>(), 0..700), skip in 0usize..9) {
            let bytes = &bytes[skip.min(bytes.len())..];
            let expected = plain(bytes);
            prop_assert_eq!(sum(bytes).folded().to_be(), !expected);
            prop_assert_eq!(sum_portable(bytes).folded().to_be(), !expected);
            let mut copy = vec![0; bytes.len() + 3];
            prop_assert_eq!(copy_sum(&mut copy, bytes).folded().to_be(), !expected);
            prop_assert_eq!(&copy[..bytes.len()], bytes);
        }

        #[test]
        fn parts_add_up(bytes in proptest::collection::vec(any::<u8>(), 0..300), half in 0usize..150) {
            let cut = (half * 2).min(bytes.len() & !1);
            let (first, second) = bytes.split_at(cut);
            prop_assert_eq!((sum(first) + sum(second)).checksum(), sum(&bytes).checksum());
        }
    }
}
