//! The key exchange: Diffie-Hellman over the 768-bit prime that message stream encryption prescribes, with generator 2.
//!
//! Written here rather than taken from a crate of big integers: there is one modulus, of one length, and one operation. What it
//! guards is no secret (768 bits are few, and nobody proves who he is); still no branch and no index depends on an exponent.

/// Bytes of a public key, and of what both ends come to share.
pub(super) const KEY_LEN: usize = 96;
/// Bytes of an exponent: "160 bits are enough".
pub(super) const PRIVATE_LEN: usize = 20;

const LIMBS: usize = KEY_LEN / 8;
/// The least significant first.
type Number = [u64; LIMBS];

/// The prime: 2^768 - 2^704 - 1 + 2^64 * ([2^638 pi] + 149686), but for its lowest limb.
const PRIME: Number = [
    0x0000_0000_0009_0563,
    0xf44c_42e9_a63a_3621,
    0xe485_b576_625e_7ec6,
    0x4fe1_356d_6d51_c245,
    0x302b_0a6d_f25f_1437,
    0xef95_19b3_cd3a_431b,
    0x514a_0879_8e34_04dd,
    0x020b_bea6_3b13_9b22,
    0x2902_4e08_8a67_cc74,
    0xc4c6_628b_80dc_1cd1,
    0xc90f_daa2_2168_c234,
    0xffff_ffff_ffff_ffff,
];
const ONE: Number = {
    let mut one = [0; LIMBS];
    one[0] = 1;
    one
};
const TWO: Number = {
    let mut two = [0; LIMBS];
    two[0] = 2;
    two
};
/// -1 / PRIME modulo 2^64, by Newton's iteration.
const PRIME_INVERSE: u64 = {
    let mut inverse = 1u64;
    let mut round = 0;
    while round < 6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(PRIME[0].wrapping_mul(inverse)));
        round += 1;
    }
    inverse.wrapping_neg()
};
/// 2^1536 modulo the prime: multiplied with it, a number takes Montgomery's form.
const SQUARED_RADIX: Number = {
    let (mut number, _) = minus(&[0; LIMBS], &PRIME);
    let mut bit = 0;
    while bit < 64 * LIMBS {
        let mut doubled = [0; LIMBS];
        let mut limb = 0;
        let mut carry = 0;
        while limb < LIMBS {
            doubled[limb] = number[limb] << 1 | carry;
            carry = number[limb] >> 63;
            limb += 1;
        }
        let (reduced, borrow) = minus(&doubled, &PRIME);
        number = if carry == 1 || borrow == 0 { reduced } else { doubled };
        bit += 1;
    }
    number
};

/// The public key that belongs to a private one.
pub(super) fn public_key(private: &[u8; PRIVATE_LEN]) -> [u8; KEY_LEN] {
    to_bytes(&power(&TWO, private))
}

/// What both ends share. `None` for a public key that no honest one sends: 0, 1, and what is no smaller than the prime's
/// predecessor, with which anybody could foretell it.
pub(super) fn shared_secret(private: &[u8; PRIVATE_LEN], theirs: &[u8; KEY_LEN]) -> Option<[u8; KEY_LEN]> {
    let theirs = from_bytes(theirs);
    let (last, _) = minus(&PRIME, &ONE);
    let (is_small, is_large) = (minus(&theirs, &TWO).1 == 1, minus(&theirs, &last).1 == 0);
    (!is_small && !is_large).then(|| to_bytes(&power(&theirs, private)))
}

fn power(base: &Number, exponent: &[u8; PRIVATE_LEN]) -> Number {
    let base = times(base, &SQUARED_RADIX);
    let mut result = times(&ONE, &SQUARED_RADIX);
    for byte in exponent {
        for bit in (0..8).rev() {
            result = times(&result, &result);
            let with = times(&result, &base);
            result = choose(&result, &with, u64::from(byte >> bit & 1));
        }
    }
    times(&result, &ONE)
}

/// Montgomery's product `a * b / 2^768` modulo the prime, for numbers below it.
fn times(a: &Number, b: &Number) -> Number {
    let mut sum = [0u64; LIMBS + 2];
    for a in a {
        let mut carry = 0;
        for (limb, b) in b.iter().enumerate() {
            (sum[limb], carry) = multiply_add(*a, *b, sum[limb], carry);
        }
        let (high, over) = sum[LIMBS].overflowing_add(carry);
        (sum[LIMBS], sum[LIMBS + 1]) = (high, u64::from(over));
        let factor = sum[0].wrapping_mul(PRIME_INVERSE);
        let (_, mut carry) = multiply_add(factor, PRIME[0], sum[0], 0);
        for limb in 1..LIMBS {
            (sum[limb - 1], carry) = multiply_add(factor, PRIME[limb], sum[limb], carry);
        }
        let (high, over) = sum[LIMBS].overflowing_add(carry);
        (sum[LIMBS - 1], sum[LIMBS]) = (high, sum[LIMBS + 1] + u64::from(over));
    }
    let mut low = [0; LIMBS];
    low.copy_from_slice(&sum[..LIMBS]);
    let (reduced, borrow) = minus(&low, &PRIME);
    // Below twice the prime: taken off once where there was a carry, or no borrow.
    choose(&low, &reduced, sum[LIMBS] | (borrow ^ 1))
}

/// `a * b + c + d`, low and high.
fn multiply_add(a: u64, b: u64, c: u64, d: u64) -> (u64, u64) {
    let all = u128::from(a) * u128::from(b) + u128::from(c) + u128::from(d);
    (all as u64, (all >> 64) as u64)
}

/// `a - b` modulo 2^768, and what had to be borrowed.
const fn minus(a: &Number, b: &Number) -> (Number, u64) {
    let mut difference = [0; LIMBS];
    let (mut limb, mut borrow) = (0, 0);
    while limb < LIMBS {
        let (first, under) = a[limb].overflowing_sub(b[limb]);
        let (second, under_again) = first.overflowing_sub(borrow);
        difference[limb] = second;
        borrow = (under | under_again) as u64;
        limb += 1;
    }
    (difference, borrow)
}

/// `a` where `which` is 0, `b` where it is 1.
fn choose(a: &Number, b: &Number, which: u64) -> Number {
    let mask = which.wrapping_neg();
    std::array::from_fn(|limb| a[limb] ^ (a[limb] ^ b[limb]) & mask)
}

fn from_bytes(bytes: &[u8; KEY_LEN]) -> Number {
    let mut number = [0; LIMBS];
    for (limb, bytes) in number.iter_mut().rev().zip(bytes.as_chunks().0) {
        *limb = u64::from_be_bytes(*bytes);
    }
    number
}

fn to_bytes(number: &Number) -> [u8; KEY_LEN] {
    let mut bytes = [0; KEY_LEN];
    for (limb, bytes) in number.iter().rev().zip(bytes.as_chunks_mut().0) {
        *bytes = limb.to_be_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(hex: &str) -> [u8; KEY_LEN] {
        std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..][..2], 16).unwrap())
    }

    /// Reckoned with Python's `pow`: exponents 0x0102...14 and 0x6566...78.
    #[test]
    fn powers_are_those_that_another_reckoner_finds() {
        let x: [u8; PRIVATE_LEN] = std::array::from_fn(|at| at as u8 + 1);
        let y: [u8; PRIVATE_LEN] = std::array::from_fn(|at| at as u8 + 101);
        let of_x = "96e112dab29e8c5272accb9b17b26887ce54a144a4e3b697c7d159b7a817e556b0918db2b4c658e02a87f7e5fb14b18a553e\
                    084cbf3dad2d30f16596ccb982d406258c61b30c5c1dae2ddc60bdbd48d79896312aad63238c39e1a633821eb693";
        let of_y = "d32ae8cedd0de9ca4fe67e35626bb8c7cdb0966727d899f6a62fdb2b68817f9ddc4b684e3eb34030b8dba4e028b7cff32640\
                    20340cb4eab61923cdc4e4216ba873368d83f0a38e497f1f6b4e3d2012eb91a3ee6056f966f9eae732089b6fa46e";
        let both = "d05ed96a95215a89b44073afe5d0b1626289ac01cff7849392948b2470b346547e944d7562a897ae86976bc389999083ec09\
                    572dbdc8ed7f6a0a86a1aa42a3ca04209b72d8239890360435640643b76479ed7836f1857963fcc7cb72084c3ab4";
        assert_eq!(public_key(&x), number(of_x));
        assert_eq!(public_key(&y), number(of_y));
        assert_eq!(shared_secret(&x, &number(of_y)), Some(number(both)));
        assert_eq!(shared_secret(&y, &number(of_x)), Some(number(both)));
    }

    #[test]
    fn keys_that_foretell_the_secret_are_refused() {
        let prime = to_bytes(&PRIME);
        let near = |less: u8| {
            let mut key = prime;
            key[KEY_LEN - 1] -= less;
            key
        };
        let private = [7; PRIVATE_LEN];
        for (key, fits) in [
            ([0; KEY_LEN], false),
            (to_bytes(&ONE), false),
            (to_bytes(&TWO), true),
            (near(2), true),
            (near(1), false),
            (prime, false),
            ([0xff; KEY_LEN], false),
        ] {
            assert_eq!(shared_secret(&private, &key).is_some(), fits, "{key:02x?}");
        }
    }

    proptest! {
        #[test]
        fn both_ends_come_to_the_same(x: [u8; PRIVATE_LEN], y: [u8; PRIVATE_LEN]) {
            // An exponent of zero is no key.
            prop_assume!(x[0] | y[0] != 0);
            let (of_x, of_y) = (public_key(&x), public_key(&y));
            prop_assert_eq!(shared_secret(&x, &of_y), shared_secret(&y, &of_x));
            let number = from_bytes(&of_x);
            prop_assert_eq!(to_bytes(&number), of_x);
            prop_assert_eq!(minus(&number, &PRIME).1, 1, "below the prime");
        }
    }
}
