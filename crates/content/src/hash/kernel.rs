//! The two compression functions, written once over an abstract vector of 32-bit words.
//!
//! A [`Vector`] holds the same word of several independent messages, one a lane. A plain `u32` is a vector of one lane,
//! which makes the portable implementation the same text as the wide ones.

#![allow(unsafe_code)]

/// Lanes of the widest vector; the size of every array that is indexed by lane.
pub(super) const LANES_MAX: usize = 16;
/// Bytes that one call of a compression function takes from a message (FIPS 180-4 §5.2.1).
pub(super) const BLOCK_BYTES: usize = 64;

/// Chaining values of all lanes, word by word: `columns[word][lane]`.
pub(super) type Columns<const W: usize> = [[u32; LANES_MAX]; W];
/// Where each lane reads next.
pub(super) type Pointers = [*const u8; LANES_MAX];

/// First chaining value of SHA-1 (FIPS 180-4 §5.3.1).
pub(super) const SHA1_INIT: [u32; 5] = [0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0];
/// First chaining value of SHA-256 (FIPS 180-4 §5.3.3).
pub(super) const SHA256_INIT: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

/// Constants of SHA-1, one for every twenty rounds (FIPS 180-4 §4.2.1).
const SHA1_K: [u32; 4] = [0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6];

/// Constants of SHA-256, one a round (FIPS 180-4 §4.2.2).
#[rustfmt::skip]
pub(super) const SHA256_K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// One 32-bit word of several messages at once.
///
/// # Safety
/// Every method requires a processor with the instructions that the implementation uses.
pub(super) trait Vector: Copy {
    /// The same value in every lane.
    unsafe fn splat(value: u32) -> Self;
    /// The first lanes of one row of [`Columns`].
    unsafe fn load(row: &[u32; LANES_MAX]) -> Self;
    /// Back into the first lanes of one row.
    unsafe fn store(self, row: &mut [u32; LANES_MAX]);
    /// The sixteen big-endian words that start `offset` bytes after each lane's pointer, one vector a word.
    ///
    /// # Safety
    /// Every lane's pointer must have `offset + 64` readable bytes.
    unsafe fn load_block(pointers: &Pointers, offset: usize) -> [Self; 16];
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn xor3(self, b: Self, c: Self) -> Self;
    /// Bits of `b` where `self` is set, of `c` elsewhere: "Ch".
    unsafe fn choose(self, b: Self, c: Self) -> Self;
    /// What two of the three have: "Maj".
    unsafe fn majority(self, b: Self, c: Self) -> Self;
    /// Rotation to the left by `LEFT` bits; `RIGHT` is `32 - LEFT`.
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self;
    unsafe fn shift_right<const BITS: i32>(self) -> Self;
}

/// Calls `$round!($function, index)` for each index, so that every index is a literal and no array outlives unrolling.
macro_rules! unroll {
    ($round:ident, $function:ident; $($index:literal)*) => { $($round!($function, $index);)* };
}

/// SHA-1 of `blocks` consecutive 64-byte blocks in every lane (FIPS 180-4 §6.1.2).
///
/// # Safety
/// The processor must have `V`'s instructions; every lane's pointer must have `blocks * 64` readable bytes.
#[inline(always)]
pub(super) unsafe fn sha1_blocks<V: Vector>(columns: &mut Columns<5>, pointers: &Pointers, blocks: usize) {
    // SAFETY: what this function asks of its caller is what every call inside asks.
    unsafe {
        let mut state = columns.map(|row| V::load(&row));
        let constants = SHA1_K.map(|k| V::splat(k));
        for block in 0..blocks {
            let mut w = V::load_block(pointers, block * BLOCK_BYTES);
            let [mut a, mut b, mut c, mut d, mut e] = state;
            macro_rules! round {
                ($function:ident, $i:literal) => {
                    let sum = e.add(constants[$i / 20]).add(w[$i % 16]).add(b.$function(c, d));
                    e = d;
                    d = c;
                    c = b.rotate::<30, 2>();
                    b = a;
                    a = a.rotate::<5, 27>().add(sum);
                    if $i < 64 {
                        let mixed = w[($i + 13) % 16].xor3(w[($i + 8) % 16], w[($i + 2) % 16]);
                        w[$i % 16] = mixed.xor(w[$i % 16]).rotate::<1, 31>();
                    }
                };
            }
            unroll!(round, choose; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
            unroll!(round, xor3; 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39);
            unroll!(round, majority; 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59);
            unroll!(round, xor3; 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79);
            let [h0, h1, h2, h3, h4] = state;
            state = [h0.add(a), h1.add(b), h2.add(c), h3.add(d), h4.add(e)];
        }
        for (row, word) in columns.iter_mut().zip(state) {
            word.store(row);
        }
    }
}

/// SHA-256 of `blocks` consecutive 64-byte blocks in every lane (FIPS 180-4 §6.2.2).
///
/// # Safety
/// As for [`sha1_blocks`].
#[inline(always)]
pub(super) unsafe fn sha256_blocks<V: Vector>(columns: &mut Columns<8>, pointers: &Pointers, blocks: usize) {
    // SAFETY: what this function asks of its caller is what every call inside asks.
    unsafe {
        let mut state = columns.map(|row| V::load(&row));
        for block in 0..blocks {
            let mut w = V::load_block(pointers, block * BLOCK_BYTES);
            let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
            macro_rules! round {
                ($function:ident, $i:literal) => {
                    let sigma1 = e.rotate::<26, 6>().xor3(e.rotate::<21, 11>(), e.rotate::<7, 25>());
                    let sigma0 = a.rotate::<30, 2>().xor3(a.rotate::<19, 13>(), a.rotate::<10, 22>());
                    let fixed = h.add(w[$i % 16].add(V::splat(SHA256_K[$i])));
                    let sum = fixed.add(e.$function(f, g)).add(sigma1);
                    let other = sigma0.add(a.majority(b, c));
                    h = g;
                    g = f;
                    f = e;
                    e = d.add(sum);
                    d = c;
                    c = b;
                    b = a;
                    a = sum.add(other);
                    if $i < 48 {
                        let early = w[($i + 1) % 16];
                        let late = w[($i + 14) % 16];
                        let small0 = early.rotate::<25, 7>().xor3(early.rotate::<14, 18>(), early.shift_right::<3>());
                        let small1 = late.rotate::<15, 17>().xor3(late.rotate::<13, 19>(), late.shift_right::<10>());
                        w[$i % 16] = w[$i % 16].add(w[($i + 9) % 16]).add(small0).add(small1);
                    }
                };
            }
            unroll!(round, choose; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
            unroll!(round, choose; 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59);
            unroll!(round, choose; 60 61 62 63);
            let [h0, h1, h2, h3, h4, h5, h6, h7] = state;
            state = [h0.add(a), h1.add(b), h2.add(c), h3.add(d), h4.add(e), h5.add(f), h6.add(g), h7.add(h)];
        }
        for (row, word) in columns.iter_mut().zip(state) {
            word.store(row);
        }
    }
}

// The portable implementation: one lane, no special instructions.
impl Vector for u32 {
    #[inline(always)]
    unsafe fn splat(value: u32) -> Self {
        value
    }

    #[inline(always)]
    unsafe fn load(row: &[u32; LANES_MAX]) -> Self {
        row[0]
    }

    #[inline(always)]
    unsafe fn store(self, row: &mut [u32; LANES_MAX]) {
        row[0] = self;
    }

    #[inline(always)]
    unsafe fn load_block(pointers: &Pointers, offset: usize) -> [Self; 16] {
        // SAFETY: the caller answers for 64 readable bytes; `[u8; 64]` has no alignment.
        let bytes = unsafe { &*pointers[0].add(offset).cast::<[u8; BLOCK_BYTES]>() };
        let mut words = [0; 16];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_be_bytes(*chunk);
        }
        words
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        self ^ other
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        self ^ b ^ c
    }

    #[inline(always)]
    unsafe fn choose(self, b: Self, c: Self) -> Self {
        c ^ (self & (b ^ c))
    }

    #[inline(always)]
    unsafe fn majority(self, b: Self, c: Self) -> Self {
        (self & b) | (c & (self | b))
    }

    #[inline(always)]
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        self.rotate_left(LEFT as u32)
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: i32>(self) -> Self {
        self >> BITS
    }
}
