//! Which instructions do the work: found out once, at run time.

#![allow(unsafe_code)]

use std::sync::OnceLock;

use super::kernel::{self, Columns, LANES_MAX, Pointers, SHA1_INIT, SHA256_INIT};
use super::lanes::Kernels;
#[cfg(target_arch = "x86_64")]
use super::{lanes::WideKernel, sha_ni, x86};

/// A set of implementations of both hashes. Only those that this processor can run are ever handed out.
pub struct Backend {
    name: &'static str,
    pub(super) sha1: Kernels<5>,
    pub(super) sha256: Kernels<8>,
}

impl Backend {
    /// The fastest one here.
    pub fn best() -> &'static Self {
        static BEST: OnceLock<&'static Backend> = OnceLock::new();
        BEST.get_or_init(|| Self::supported().next().unwrap_or(&SCALAR))
    }

    /// All that this processor can run, the fastest first; the last is portable.
    pub fn supported() -> impl Iterator<Item = &'static Self> {
        #[cfg(target_arch = "x86_64")]
        let special = {
            let sha = is_x86_feature_detected!("sha") && is_x86_feature_detected!("sse4.1");
            let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            let avx2 = is_x86_feature_detected!("avx2");
            [
                (avx512 && sha, &AVX512_WITH_SHA),
                // Server processors of 2017 to 2020 have the long vectors, and no SHA instructions.
                (avx512, &AVX512),
                (avx2 && sha, &AVX2_WITH_SHA),
                (avx2, &AVX2),
                (sha, &SHA),
            ]
        };
        #[cfg(not(target_arch = "x86_64"))]
        let special: [(bool, &'static Self); 0] = [];
        special.into_iter().filter(|(here, _)| *here).map(|(_, backend)| backend).chain([&SCALAR])
    }

    /// Its name, for people.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

static SCALAR: Backend = Backend {
    name: "scalar",
    sha1: Kernels { init: SHA1_INIT, wide: None, single: sha1_scalar, pair: None },
    sha256: Kernels { init: SHA256_INIT, wide: None, single: sha256_scalar, pair: None },
};

#[cfg(target_arch = "x86_64")]
static SHA: Backend = Backend {
    name: "sha",
    sha1: Kernels { init: SHA1_INIT, wide: None, single: sha_ni::sha1::<1>, pair: Some(sha_ni::sha1::<2>) },
    sha256: Kernels { init: SHA256_INIT, wide: None, single: sha_ni::sha256::<1>, pair: Some(sha_ni::sha256::<2>) },
};

#[cfg(target_arch = "x86_64")]
static AVX2: Backend = Backend {
    name: "avx2 x8",
    sha1: Kernels {
        init: SHA1_INIT,
        wide: Some(WideKernel { run: x86::sha1_avx2, lanes: 8, lanes_min: 3 }),
        single: sha1_scalar,
        pair: None,
    },
    sha256: Kernels {
        init: SHA256_INIT,
        wide: Some(WideKernel { run: x86::sha256_avx2, lanes: 8, lanes_min: 3 }),
        single: sha256_scalar,
        pair: None,
    },
};

#[cfg(target_arch = "x86_64")]
static AVX2_WITH_SHA: Backend = Backend {
    name: "avx2 x8 + sha",
    sha1: Kernels { wide: Some(WideKernel { run: x86::sha1_avx2, lanes: 8, lanes_min: 6 }), ..SHA.sha1 },
    // Eight lanes without rotations lose to the SHA instructions: 1.6 against 2.2 GB/s where both were measured.
    sha256: SHA.sha256,
};

#[cfg(target_arch = "x86_64")]
static AVX512: Backend = Backend {
    name: "avx512 x16",
    sha1: Kernels { wide: Some(WideKernel { run: x86::sha1_avx512, lanes: 16, lanes_min: 2 }), ..SCALAR.sha1 },
    sha256: Kernels { wide: Some(WideKernel { run: x86::sha256_avx512, lanes: 16, lanes_min: 2 }), ..SCALAR.sha256 },
};

#[cfg(target_arch = "x86_64")]
static AVX512_WITH_SHA: Backend = Backend {
    name: "avx512 x16 + sha",
    sha1: Kernels { wide: Some(WideKernel { run: x86::sha1_avx512, lanes: 16, lanes_min: 6 }), ..SHA.sha1 },
    sha256: Kernels { wide: Some(WideKernel { run: x86::sha256_avx512, lanes: 16, lanes_min: 9 }), ..SHA.sha256 },
};

/// # Safety
/// The pointer must have `blocks * 64` readable bytes.
unsafe fn sha1_scalar(states: &mut [[u32; 5]; 1], pointers: [*const u8; 1], blocks: usize) {
    // SAFETY: a `u32` needs no special instructions and reads the first lane only; the pointer is the caller's.
    one_lane(states, pointers, |columns, all| unsafe { kernel::sha1_blocks::<u32>(columns, all, blocks) });
}

/// # Safety
/// The pointer must have `blocks * 64` readable bytes.
unsafe fn sha256_scalar(states: &mut [[u32; 8]; 1], pointers: [*const u8; 1], blocks: usize) {
    // SAFETY: a `u32` needs no special instructions and reads the first lane only; the pointer is the caller's.
    one_lane(states, pointers, |columns, all| unsafe { kernel::sha256_blocks::<u32>(columns, all, blocks) });
}

#[inline(always)]
fn one_lane<const W: usize>(
    [state]: &mut [[u32; W]; 1],
    [pointer]: [*const u8; 1],
    run: impl FnOnce(&mut Columns<W>, &Pointers),
) {
    let mut columns = state.map(|word| [word; LANES_MAX]);
    run(&mut columns, &[pointer; LANES_MAX]);
    *state = columns.map(|row| row[0]);
}
