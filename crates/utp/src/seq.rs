//! Sequence numbers: sixteen bits on the wire that wrap, sixty-four inside that do not.

/// A packet's number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seq(pub u16);

impl Seq {
    /// The number so many packets later.
    pub fn plus(self, packets: u16) -> Self {
        Self(self.0.wrapping_add(packets))
    }

    /// The number so many packets earlier.
    pub fn minus(self, packets: u16) -> Self {
        Self(self.0.wrapping_sub(packets))
    }

    /// The whole number next to `near` that has this one as its end.
    pub(crate) fn unwrap(self, near: u64) -> u64 {
        let ahead = self.0.wrapping_sub(near as u16).cast_signed();
        near.wrapping_add_signed(i64::from(ahead))
    }
}

impl From<u64> for Seq {
    fn from(whole: u64) -> Self {
        Self(whole as u16)
    }
}

/// Where whole numbers begin: high enough that none before the first is below zero.
pub(crate) const FIRST: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_near_one_are_found_across_the_wrap() {
        for near in [FIRST, FIRST + 0x7fff, FIRST + 0xffff, FIRST + 0x1_0001] {
            for offset in [-0x8000, -1, 0, 1, 0x7fff] {
                let whole = near.wrapping_add_signed(offset);
                assert_eq!(Seq::from(whole).unwrap(near), whole, "{near} {offset}");
            }
        }
        assert_eq!(Seq(0xffff).plus(2), Seq(1));
        assert_eq!(Seq(1).minus(2), Seq(0xffff));
    }
}
