//! The processor's own SHA instructions, over one or two messages at once.
//!
//! One message leaves the unit idle for most of each instruction's latency; a second one, interleaved, fills the gap.

#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::kernel::{BLOCK_BYTES, SHA256_K};

/// SHA-1 of `blocks` consecutive 64-byte blocks of each of `N` messages (FIPS 180-4 §6.1.2).
///
/// # Safety
/// The processor must have SHA, SSSE3 and SSE4.1; every pointer must have `blocks * 64` readable bytes.
#[target_feature(enable = "sha,ssse3,sse4.1")]
pub(super) unsafe fn sha1<const N: usize>(states: &mut [[u32; 5]; N], pointers: [*const u8; N], blocks: usize) {
    // SAFETY: features and pointers are the caller's; loads and stores below stay inside `states` and the blocks.
    unsafe {
        // The instructions want the first word in the highest position, so all sixteen bytes are reversed.
        let reverse = _mm_set_epi64x(0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f);
        let mut abcd = [_mm_setzero_si128(); N];
        let mut e = [_mm_setzero_si128(); N];
        for n in 0..N {
            abcd[n] = _mm_shuffle_epi32::<0x1b>(_mm_loadu_si128(states[n].as_ptr().cast()));
            e[n] = _mm_set_epi32(states[n][4] as i32, 0, 0, 0);
        }
        for block in 0..blocks {
            let saved = (abcd, e);
            let mut w = [[_mm_setzero_si128(); 4]; N];
            for n in 0..N {
                for (i, words) in w[n].iter_mut().enumerate() {
                    let at = pointers[n].add(block * BLOCK_BYTES + i * 16);
                    *words = _mm_shuffle_epi8(_mm_loadu_si128(at.cast()), reverse);
                }
            }
            // `before` is the state four rounds ago: its first word, rotated, is the E of these rounds.
            let mut before = [_mm_setzero_si128(); N];
            macro_rules! four_rounds {
                ($function:literal; $($group:literal)*) => { $(
                    for n in 0..N {
                        if $group >= 4 {
                            let partial = _mm_sha1msg1_epu32(w[n][$group % 4], w[n][($group + 1) % 4]);
                            let partial = _mm_xor_si128(partial, w[n][($group + 2) % 4]);
                            w[n][$group % 4] = _mm_sha1msg2_epu32(partial, w[n][($group + 3) % 4]);
                        }
                        let words = if $group == 0 {
                            _mm_add_epi32(e[n], w[n][0])
                        } else {
                            _mm_sha1nexte_epu32(before[n], w[n][$group % 4])
                        };
                        before[n] = abcd[n];
                        abcd[n] = _mm_sha1rnds4_epu32::<$function>(abcd[n], words);
                    }
                )* };
            }
            four_rounds!(0; 0 1 2 3 4);
            four_rounds!(1; 5 6 7 8 9);
            four_rounds!(2; 10 11 12 13 14);
            four_rounds!(3; 15 16 17 18 19);
            for n in 0..N {
                abcd[n] = _mm_add_epi32(abcd[n], saved.0[n]);
                e[n] = _mm_sha1nexte_epu32(before[n], saved.1[n]);
            }
        }
        for n in 0..N {
            _mm_storeu_si128(states[n].as_mut_ptr().cast(), _mm_shuffle_epi32::<0x1b>(abcd[n]));
            states[n][4] = _mm_extract_epi32::<3>(e[n]) as u32;
        }
    }
}

/// SHA-256 of `blocks` consecutive 64-byte blocks of each of `N` messages (FIPS 180-4 §6.2.2).
///
/// # Safety
/// As for [`sha1`].
#[target_feature(enable = "sha,ssse3,sse4.1")]
pub(super) unsafe fn sha256<const N: usize>(states: &mut [[u32; 8]; N], pointers: [*const u8; N], blocks: usize) {
    // SAFETY: features and pointers are the caller's; loads and stores below stay inside `states`, the constants and the blocks.
    unsafe {
        let swap = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        // The instructions want the state as two vectors, ABEF and CDGH, highest word first.
        let mut abef = [_mm_setzero_si128(); N];
        let mut cdgh = [_mm_setzero_si128(); N];
        for n in 0..N {
            let cdab = _mm_shuffle_epi32::<0xb1>(_mm_loadu_si128(states[n].as_ptr().cast()));
            let efgh = _mm_shuffle_epi32::<0x1b>(_mm_loadu_si128(states[n].as_ptr().add(4).cast()));
            abef[n] = _mm_alignr_epi8::<8>(cdab, efgh);
            cdgh[n] = _mm_blend_epi16::<0xf0>(efgh, cdab);
        }
        for block in 0..blocks {
            let saved = (abef, cdgh);
            let mut w = [[_mm_setzero_si128(); 4]; N];
            for n in 0..N {
                for (i, words) in w[n].iter_mut().enumerate() {
                    let at = pointers[n].add(block * BLOCK_BYTES + i * 16);
                    *words = _mm_shuffle_epi8(_mm_loadu_si128(at.cast()), swap);
                }
            }
            macro_rules! four_rounds {
                ($($group:literal)*) => { $(
                    let constants = _mm_loadu_si128(SHA256_K.as_ptr().add($group * 4).cast());
                    for n in 0..N {
                        if $group >= 4 {
                            let (w2, w3) = (w[n][($group + 2) % 4], w[n][($group + 3) % 4]);
                            let partial = _mm_sha256msg1_epu32(w[n][$group % 4], w[n][($group + 1) % 4]);
                            let partial = _mm_add_epi32(partial, _mm_alignr_epi8::<4>(w3, w2));
                            w[n][$group % 4] = _mm_sha256msg2_epu32(partial, w3);
                        }
                        let words = _mm_add_epi32(w[n][$group % 4], constants);
                        cdgh[n] = _mm_sha256rnds2_epu32(cdgh[n], abef[n], words);
                        abef[n] = _mm_sha256rnds2_epu32(abef[n], cdgh[n], _mm_shuffle_epi32::<0x0e>(words));
                    }
                )* };
            }
            four_rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            for n in 0..N {
                abef[n] = _mm_add_epi32(abef[n], saved.0[n]);
                cdgh[n] = _mm_add_epi32(cdgh[n], saved.1[n]);
            }
        }
        for n in 0..N {
            let feba = _mm_shuffle_epi32::<0x1b>(abef[n]);
            let dchg = _mm_shuffle_epi32::<0xb1>(cdgh[n]);
            _mm_storeu_si128(states[n].as_mut_ptr().cast(), _mm_blend_epi16::<0xf0>(feba, dchg));
            _mm_storeu_si128(states[n].as_mut_ptr().add(4).cast(), _mm_alignr_epi8::<8>(dchg, feba));
        }
    }
}
