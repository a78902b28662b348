//! The Internet checksum (RFC 1071) over SCION's pseudo header and the upper layer.
//!
//! A [`Sum`] is what has been added so far; sums of parts add up to the sum of the whole as long as every part but the
//! last has an even length. So the header's part is computed once per path and the payload's once per packet.

#![allow(unsafe_code)]

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

    /// The same bytes' sum where an odd number of bytes stands before them: each is the other half of its number then.
    #[must_use]
    pub fn after_odd(self) -> Self {
        // RFC 1071 §2(B): swapping the bytes of the sum is the sum of swapped bytes.
        Self(self.folded().swap_bytes().into())
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

/// Copies `from` to the start of `to` and returns its sum, so that it comes from memory once.
///
/// # Panics
/// If `to` is shorter than `from`.
pub fn copy_sum(to: &mut [u8], from: &[u8]) -> Sum {
    let to = &mut to[..from.len()];
    let mut sum = Sum::default();
    for (to, from) in to.chunks_mut(COPY_LEN).zip(from.chunks(COPY_LEN)) {
        to.copy_from_slice(from);
        sum = sum + self::sum(from);
    }
    sum
}

/// Bytes that are copied before they are summed: few enough to stay in the first-level cache meanwhile. (One loop that
/// does both is no faster; compilers split it.)
const COPY_LEN: usize = 4096;
/// Below this the wide loops do not pay.
#[cfg(target_arch = "x86_64")]
const WIDE_LEN_MIN: usize = 64;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(bytes: &[u8]) -> Sum {
    sum_portable(bytes)
}

/// Written so that the compiler makes wide additions of it; compiled once more for the wider unit above.
#[inline(always)]
fn sum_portable(bytes: &[u8]) -> Sum {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut halves = Halves::default();
    for word in words {
        halves.add(*word);
    }
    halves.finish(tail)
}

/// The sum of 32-bit halves of words, without a carry to look after: the sum of the words may wrap, because it gives
/// up the low halves' sum once the high halves' is taken from it.
#[derive(Default)]
struct Halves {
    words: u64,
    /// Exact: there is no memory for 2^32 words.
    high: u64,
}

impl Halves {
    #[inline(always)]
    fn add(&mut self, word: [u8; 8]) {
        let word = u64::from_ne_bytes(word);
        self.words = self.words.wrapping_add(word);
        self.high += word >> 32;
    }

    #[inline(always)]
    fn finish(mut self, tail: &[u8]) -> Sum {
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        self.add(last);
        let low = self.words.wrapping_sub(self.high << 32);
        Sum(low) + Sum(self.high)
    }
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

    #[test]
    fn long_copies_are_summed_whole() {
        let bytes: Vec<u8> = (0..3 * COPY_LEN + 5).map(|i| (i * 31) as u8).collect();
        let mut copy = vec![0; bytes.len()];
        assert_eq!(copy_sum(&mut copy, &bytes).checksum(), plain(&bytes));
        assert_eq!(copy, bytes);
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

        #[test]
        fn odd_parts_add_up_too(bytes in proptest::collection::vec(any::<u8>(), 1..300), half in 0usize..150) {
            let odd_max = (bytes.len() - 1) / 2 * 2 + 1;
            let cut = (half * 2 + 1).min(odd_max);
            let (first, second) = bytes.split_at(cut);
            prop_assert_eq!((sum(first) + sum(second).after_odd()).checksum(), sum(&bytes).checksum());
        }
    }
}
