//! A set of pieces, in the layout of BEP 3's bitfield message.

/// One bit a piece; piece 0 is the highest bit of the first byte (BEP 3, "bitfield").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitfield {
    bytes: Vec<u8>,
    len: u32,
    ones: u32,
}

impl Bitfield {
    /// `len` pieces, none set.
    pub fn new(len: u32) -> Self {
        Self { bytes: vec![0; len.div_ceil(8) as usize], len, ones: 0 }
    }

    /// `len` pieces, all set.
    pub fn full(len: u32) -> Self {
        let mut bytes = vec![0xff; len.div_ceil(8) as usize];
        if let (Some(last), spare @ 1..) = (bytes.last_mut(), len.wrapping_neg() % 8) {
            *last <<= spare;
        }
        Self { bytes, len, ones: len }
    }

    /// From the wire: `None` where the length is wrong or a spare bit is set (BEP 3: drop the connection).
    pub fn from_bytes(bytes: &[u8], len: u32) -> Option<Self> {
        if bytes.len() != len.div_ceil(8) as usize {
            return None;
        }
        let spare = len.wrapping_neg() % 8;
        if spare > 0 && bytes.last().is_some_and(|last| last & ((1 << spare) - 1) != 0) {
            return None;
        }
        let ones = bytes.iter().map(|byte| byte.count_ones()).sum();
        Some(Self { bytes: bytes.to_vec(), len, ones })
    }

    /// The bytes of the bitfield message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of pieces, set or not.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are no pieces at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of pieces set.
    pub fn count(&self) -> u32 {
        self.ones
    }

    /// Whether every piece is set.
    pub fn is_full(&self) -> bool {
        self.ones == self.len
    }

    /// Whether `index` is set; `false` past the end.
    pub fn get(&self, index: u32) -> bool {
        index < self.len && self.bytes[(index / 8) as usize] & (0x80 >> (index % 8)) != 0
    }

    /// Sets `index`; answers whether it was clear before. Past the end nothing happens.
    pub fn set(&mut self, index: u32) -> bool {
        if index >= self.len || self.get(index) {
            return false;
        }
        self.bytes[(index / 8) as usize] |= 0x80 >> (index % 8);
        self.ones += 1;
        true
    }

    /// Clears `index`; answers whether it was set before.
    pub fn clear(&mut self, index: u32) -> bool {
        if !self.get(index) {
            return false;
        }
        self.bytes[(index / 8) as usize] &= !(0x80 >> (index % 8));
        self.ones -= 1;
        true
    }

    /// The pieces that are set, in order.
    pub fn iter_ones(&self) -> impl Iterator<Item = u32> + '_ {
        self.bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte & (0x80 >> bit) != 0).map(move |bit| at as u32 * 8 + bit)
        })
    }

    /// The pieces that are set here or in `other`, but not in both, in order. Both are of one length.
    pub fn iter_differing<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u32> + 'a {
        let bytes = self.bytes.iter().zip(&other.bytes).map(|(one, other)| one ^ other);
        bytes.enumerate().filter(|(_, byte)| *byte != 0).flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte & (0x80 >> bit) != 0).map(move |bit| at as u32 * 8 + bit)
        })
    }

    /// The pieces that are not set, in order.
    pub fn iter_zeros(&self) -> impl Iterator<Item = u32> + '_ {
        // Whole bytes at once: of a seed's millions there are none.
        self.bytes.iter().enumerate().filter(|(_, byte)| **byte != 0xff).flat_map(|(at, byte)| {
            let all = (0..8).filter(move |bit| byte & (0x80 >> bit) == 0).map(move |bit| at as u32 * 8 + bit);
            all.filter(|index| *index < self.len)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_leaves_spare_bits_clear() {
        assert_eq!(Bitfield::full(9).as_bytes(), [0xff, 0x80]);
        assert_eq!(Bitfield::full(8).as_bytes(), [0xff]);
        assert_eq!(Bitfield::full(0).as_bytes(), [0u8; 0]);
    }

    #[test]
    fn spare_bits_and_wrong_lengths_are_refused() {
        assert!(Bitfield::from_bytes(&[0xff, 0x80], 9).is_some());
        assert!(Bitfield::from_bytes(&[0xff, 0x81], 9).is_none());
        assert!(Bitfield::from_bytes(&[0xff], 9).is_none());
    }

    #[test]
    fn set_and_clear_keep_the_count() {
        let mut field = Bitfield::new(20);
        assert!(field.set(19) && !field.set(19) && !field.set(20));
        assert_eq!((field.count(), field.iter_ones().collect::<Vec<_>>()), (1, vec![19]));
        assert!(field.clear(19) && field.count() == 0);
    }
}
