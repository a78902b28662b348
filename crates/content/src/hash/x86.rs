//! Vectors of 8 lanes (AVX2) and 16 lanes (AVX-512).
//!
//! The methods are `inline(always)` without a target feature of their own: they take on the features of the one function
//! that they end up in, at the bottom of this file.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::kernel::{self, BLOCK_BYTES, Columns, LANES_MAX, Pointers, Vector};

/// Selectors for `vpternlogd`: the truth table of the function, with inputs 0xf0, 0xcc and 0xaa.
const TERNARY_XOR: i32 = 0xf0 ^ 0xcc ^ 0xaa;
const TERNARY_CHOOSE: i32 = (0xf0 & 0xcc) | (!0xf0 & 0xaa);
const TERNARY_MAJORITY: i32 = (0xf0 & 0xcc) | (0xf0 & 0xaa) | (0xcc & 0xaa);

/// Reverses the bytes of every 32-bit word: indices within 16 bytes, as `pshufb` takes them.
const SWAP_BYTES: [i8; 16] = [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12];

#[derive(Clone, Copy)]
struct Avx512(__m512i);

// SAFETY (of every block below): `Vector` asks its caller for a processor with AVX-512 F and BW, and for valid pointers.
impl Vector for Avx512 {
    #[inline(always)]
    unsafe fn splat(value: u32) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm512_set1_epi32(value as i32) })
    }

    #[inline(always)]
    unsafe fn load(row: &[u32; LANES_MAX]) -> Self {
        // SAFETY: see the head of the impl; a row is 64 bytes.
        Self(unsafe { _mm512_loadu_si512(row.as_ptr().cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, row: &mut [u32; LANES_MAX]) {
        // SAFETY: see the head of the impl; a row is 64 bytes.
        unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn load_block(pointers: &Pointers, offset: usize) -> [Self; 16] {
        // SAFETY: see the head of the impl; the caller answers for 64 bytes behind every pointer.
        unsafe {
            let swap = _mm512_broadcast_i32x4(_mm_loadu_si128(SWAP_BYTES.as_ptr().cast()));
            let mut rows = [_mm512_setzero_si512(); 16];
            for (row, pointer) in rows.iter_mut().zip(pointers) {
                *row = _mm512_shuffle_epi8(_mm512_loadu_si512(pointer.add(offset).cast()), swap);
            }
            // No closure: `array::map` may become a call to a function without these instructions.
            let mut words = [Self(_mm512_setzero_si512()); 16];
            for (word, row) in words.iter_mut().zip(transpose_16x16(rows)) {
                *word = Self(row);
            }
            words
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm512_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm512_ternarylogic_epi32::<TERNARY_XOR>(self.0, b.0, c.0) })
    }

    #[inline(always)]
    unsafe fn choose(self, b: Self, c: Self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm512_ternarylogic_epi32::<TERNARY_CHOOSE>(self.0, b.0, c.0) })
    }

    #[inline(always)]
    unsafe fn majority(self, b: Self, c: Self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm512_ternarylogic_epi32::<TERNARY_MAJORITY>(self.0, b.0, c.0) })
    }

    #[inline(always)]
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm512_rol_epi32::<LEFT>(self.0) })
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: i32>(self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm512_srl_epi32(self.0, _mm_cvtsi32_si128(BITS)) })
    }
}

/// Turns 16 lanes of 16 words into 16 words of 16 lanes.
#[inline(always)]
unsafe fn transpose_16x16(r: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: only called by `Avx512::load_block`, whose caller answers for AVX-512 F.
    unsafe {
        // After two rounds of unpacking, u[4q + j] holds, in its 128-bit part p, word 4p + j of lanes 4q to 4q + 3.
        let mut u = r;
        for q in [0, 4, 8, 12] {
            let low01 = _mm512_unpacklo_epi32(r[q], r[q + 1]);
            let high01 = _mm512_unpackhi_epi32(r[q], r[q + 1]);
            let low23 = _mm512_unpacklo_epi32(r[q + 2], r[q + 3]);
            let high23 = _mm512_unpackhi_epi32(r[q + 2], r[q + 3]);
            u[q] = _mm512_unpacklo_epi64(low01, low23);
            u[q + 1] = _mm512_unpackhi_epi64(low01, low23);
            u[q + 2] = _mm512_unpacklo_epi64(high01, high23);
            u[q + 3] = _mm512_unpackhi_epi64(high01, high23);
        }
        // What is left is a 4x4 transposition of 128-bit parts for every j.
        let mut w = u;
        for j in 0..4 {
            let even_low = _mm512_shuffle_i32x4::<0x88>(u[j], u[4 + j]);
            let odd_low = _mm512_shuffle_i32x4::<0xdd>(u[j], u[4 + j]);
            let even_high = _mm512_shuffle_i32x4::<0x88>(u[8 + j], u[12 + j]);
            let odd_high = _mm512_shuffle_i32x4::<0xdd>(u[8 + j], u[12 + j]);
            w[j] = _mm512_shuffle_i32x4::<0x88>(even_low, even_high);
            w[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high);
            w[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even_low, even_high);
            w[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd_low, odd_high);
        }
        w
    }
}

#[derive(Clone, Copy)]
struct Avx2(__m256i);

// SAFETY (of every block below): `Vector` asks its caller for a processor with AVX2, and for valid pointers.
impl Vector for Avx2 {
    #[inline(always)]
    unsafe fn splat(value: u32) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm256_set1_epi32(value as i32) })
    }

    #[inline(always)]
    unsafe fn load(row: &[u32; LANES_MAX]) -> Self {
        // SAFETY: see the head of the impl; a row is longer than 32 bytes.
        Self(unsafe { _mm256_loadu_si256(row.as_ptr().cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, row: &mut [u32; LANES_MAX]) {
        // SAFETY: see the head of the impl; a row is longer than 32 bytes.
        unsafe { _mm256_storeu_si256(row.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn load_block(pointers: &Pointers, offset: usize) -> [Self; 16] {
        // SAFETY: see the head of the impl; the caller answers for 64 bytes behind every pointer.
        unsafe {
            let swap = _mm256_broadcastsi128_si256(_mm_loadu_si128(SWAP_BYTES.as_ptr().cast()));
            let mut halves = [[_mm256_setzero_si256(); 8]; 2];
            for (h, half) in halves.iter_mut().enumerate() {
                for (row, pointer) in half.iter_mut().zip(pointers) {
                    let at = pointer.add(offset + h * BLOCK_BYTES / 2);
                    *row = _mm256_shuffle_epi8(_mm256_loadu_si256(at.cast()), swap);
                }
                *half = transpose_8x8(*half);
            }
            // As above: no closure.
            let mut words = [Self(_mm256_setzero_si256()); 16];
            for (word, row) in words.iter_mut().zip(halves.as_flattened()) {
                *word = Self(*row);
            }
            words
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm256_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn xor3(self, b: Self, c: Self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm256_xor_si256(_mm256_xor_si256(self.0, b.0), c.0) })
    }

    #[inline(always)]
    unsafe fn choose(self, b: Self, c: Self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm256_xor_si256(c.0, _mm256_and_si256(self.0, _mm256_xor_si256(b.0, c.0))) })
    }

    #[inline(always)]
    unsafe fn majority(self, b: Self, c: Self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe {
            let both = _mm256_and_si256(self.0, b.0);
            _mm256_or_si256(both, _mm256_and_si256(c.0, _mm256_or_si256(self.0, b.0)))
        })
    }

    #[inline(always)]
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm256_or_si256(_mm256_slli_epi32::<LEFT>(self.0), _mm256_srli_epi32::<RIGHT>(self.0)) })
    }

    #[inline(always)]
    unsafe fn shift_right<const BITS: i32>(self) -> Self {
        // SAFETY: see the head of the impl.
        Self(unsafe { _mm256_srli_epi32::<BITS>(self.0) })
    }
}

/// Turns 8 lanes of 8 words into 8 words of 8 lanes.
#[inline(always)]
unsafe fn transpose_8x8(r: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: only called by `Avx2::load_block`, whose caller answers for AVX2.
    unsafe {
        let mut u = r;
        for q in [0, 4] {
            let low01 = _mm256_unpacklo_epi32(r[q], r[q + 1]);
            let high01 = _mm256_unpackhi_epi32(r[q], r[q + 1]);
            let low23 = _mm256_unpacklo_epi32(r[q + 2], r[q + 3]);
            let high23 = _mm256_unpackhi_epi32(r[q + 2], r[q + 3]);
            u[q] = _mm256_unpacklo_epi64(low01, low23);
            u[q + 1] = _mm256_unpackhi_epi64(low01, low23);
            u[q + 2] = _mm256_unpacklo_epi64(high01, high23);
            u[q + 3] = _mm256_unpackhi_epi64(high01, high23);
        }
        let mut w = u;
        for j in 0..4 {
            w[j] = _mm256_permute2x128_si256::<0x20>(u[j], u[4 + j]);
            w[4 + j] = _mm256_permute2x128_si256::<0x31>(u[j], u[4 + j]);
        }
        w
    }
}

/// SHA-1 in 16 lanes.
///
/// # Safety
/// The processor must have AVX-512 F and BW; every pointer must have `blocks * 64` readable bytes.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn sha1_avx512(columns: &mut Columns<5>, pointers: &Pointers, blocks: usize) {
    // SAFETY: passed on to the caller.
    unsafe { kernel::sha1_blocks::<Avx512>(columns, pointers, blocks) }
}

/// SHA-256 in 16 lanes.
///
/// # Safety
/// The processor must have AVX-512 F and BW; every pointer must have `blocks * 64` readable bytes.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn sha256_avx512(columns: &mut Columns<8>, pointers: &Pointers, blocks: usize) {
    // SAFETY: passed on to the caller.
    unsafe { kernel::sha256_blocks::<Avx512>(columns, pointers, blocks) }
}

/// SHA-1 in the first 8 lanes.
///
/// # Safety
/// The processor must have AVX2; the first 8 pointers must have `blocks * 64` readable bytes.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn sha1_avx2(columns: &mut Columns<5>, pointers: &Pointers, blocks: usize) {
    // SAFETY: passed on to the caller.
    unsafe { kernel::sha1_blocks::<Avx2>(columns, pointers, blocks) }
}

/// SHA-256 in the first 8 lanes.
///
/// # Safety
/// The processor must have AVX2; the first 8 pointers must have `blocks * 64` readable bytes.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn sha256_avx2(columns: &mut Columns<8>, pointers: &Pointers, blocks: usize) {
    // SAFETY: passed on to the caller.
    unsafe { kernel::sha256_blocks::<Avx2>(columns, pointers, blocks) }
}
