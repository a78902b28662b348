//! SHA-1 and SHA-256, many messages at once.
//!
//! One SHA-1 is a chain: each round waits for the one before, and most of the processor idles. Content is thousands of
//! independent messages (pieces of v1, 16 KiB blocks of v2, nodes of Merkle trees), so they run side by side, each in its
//! own lane of the vector registers: 16 lanes with AVX-512, 8 with AVX2. Where few messages wait, the processor's SHA
//! instructions do the work, two messages interleaved; elsewhere portable code does. [`Backend`] chooses once, at run time.
//!
//! - One message in memory: [`sha1`], [`sha256`]; in parts: [`Sha1`], [`Sha256`].
//! - Many messages of any lengths: [`sha1_many`], [`sha256_many`]; each in several slices: [`sha1_pieces`], [`sha256_pieces`].
//! - Many messages in parts: [`sha1_update_many`], [`sha256_update_many`].
//!
//! ```
//! use anabranch_content::hash;
//!
//! let messages: Vec<Vec<u8>> = (0..20).map(|i| vec![i; 1000 + usize::from(i)]).collect();
//! let slices: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
//! let digests = hash::sha1_many(&slices);
//! assert_eq!(digests[7], hash::sha1(&messages[7]));
//! ```

mod backend;
mod expected;
mod kernel;
mod lanes;
#[cfg(target_arch = "x86_64")]
mod sha_ni;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use backend::Backend;
pub use expected::ExpectedHash;

use crate::info::{Sha1Digest, Sha256Digest};
use lanes::{Kernels, Lane, drive};
use stream::Stream;

/// Everything that differs between the two algorithms is a number of words, a table of functions and names.
macro_rules! algorithm {
    (
        $title:literal, $words:literal, $digest:ty, $bytes:literal, $field:ident,
        $stream:ident, $one:ident, $many:ident, $many_into:ident, $pieces:ident, $pieces_into:ident, $update_many:ident
    ) => {
        #[doc = concat!($title, " of a message that arrives in parts.")]
        #[derive(Clone)]
        pub struct $stream(Stream<$words>);

        impl $stream {
            /// No bytes yet.
            pub fn new() -> Self {
                Self(Stream::new(Backend::best().$field.init))
            }

            /// Takes in the next bytes.
            pub fn update(&mut self, data: &[u8]) {
                self.0.update(&Backend::best().$field, data);
            }

            /// The digest of all bytes taken in.
            pub fn finish(self) -> $digest {
                digest(&self.0.finish(&Backend::best().$field))
            }
        }

        impl Default for $stream {
            fn default() -> Self {
                Self::new()
            }
        }

        impl std::fmt::Debug for $stream {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($stream)).finish_non_exhaustive()
            }
        }

        #[doc = concat!($title, " of one message.")]
        pub fn $one(message: &[u8]) -> $digest {
            let mut hash = $stream::new();
            hash.update(message);
            hash.finish()
        }

        #[doc = concat!($title, " of every message, side by side; lengths may differ.")]
        pub fn $many(messages: &[&[u8]]) -> Vec<$digest> {
            let mut digests = vec![[0; $bytes]; messages.len()];
            $many_into(messages, &mut digests);
            digests
        }

        #[doc = concat!("[`", stringify!($many), "`] into `digests`.")]
        ///
        /// # Panics
        /// Where `digests` is not as long as `messages`.
        pub fn $many_into(messages: &[&[u8]], digests: &mut [$digest]) {
            Backend::best().$many_into(messages, digests);
        }

        #[doc = concat!($title, " of every message, each given as slices that are multiples of 64 bytes long, all but its last.")]
        ///
        /// # Panics
        /// Where another slice than a message's last ends inside a 64-byte block.
        pub fn $pieces(messages: &[&[&[u8]]]) -> Vec<$digest> {
            let mut digests = vec![[0; $bytes]; messages.len()];
            Backend::best().$pieces_into(messages, &mut digests);
            digests
        }

        /// Gives each state the data of the same position, side by side; lengths may differ.
        ///
        /// # Panics
        /// Where there are not as many states as data.
        pub fn $update_many(states: &mut [$stream], data: &[&[u8]]) {
            Backend::best().$update_many(states, data);
        }

        impl Backend {
            #[doc = concat!("[`", stringify!($many_into), "`] with this backend.")]
            pub fn $many_into(&self, messages: &[&[u8]], digests: &mut [$digest]) {
                assert_eq!(messages.len(), digests.len());
                hash_messages(&self.$field, messages.iter().map(core::slice::from_ref), |job, state| {
                    digests[job] = digest(state);
                });
            }

            #[doc = concat!("[`", stringify!($pieces), "`] with this backend, into `digests`.")]
            pub fn $pieces_into(&self, messages: &[&[&[u8]]], digests: &mut [$digest]) {
                assert_eq!(messages.len(), digests.len());
                hash_messages(&self.$field, messages.iter().copied(), |job, state| digests[job] = digest(state));
            }

            #[doc = concat!("[`", stringify!($update_many), "`] with this backend.")]
            pub fn $update_many(&self, states: &mut [$stream], data: &[&[u8]]) {
                assert_eq!(states.len(), data.len());
                let kernels = &self.$field;
                let parts: Vec<_> = states.iter_mut().zip(data).map(|(state, data)| state.0.split(kernels, data)).collect();
                let mut jobs = parts.iter().enumerate();
                let mut results: Vec<_> = states.iter().map(|state| state.0.state).collect();
                let next = || jobs.next().map(|(job, part)| Lane::part(job, states[job].0.state, part));
                drive(kernels, next, |job, state| results[job] = *state);
                states.iter_mut().zip(results).for_each(|(state, result)| state.0.state = result);
            }
        }
    };
}

algorithm!(
    "SHA-1",
    5,
    Sha1Digest,
    20,
    sha1,
    Sha1,
    sha1,
    sha1_many,
    sha1_many_into,
    sha1_pieces,
    sha1_pieces_into,
    sha1_update_many
);
algorithm!(
    "SHA-256",
    8,
    Sha256Digest,
    32,
    sha256,
    Sha256,
    sha256,
    sha256_many,
    sha256_many_into,
    sha256_pieces,
    sha256_pieces_into,
    sha256_update_many
);

fn hash_messages<'a, const W: usize>(
    kernels: &Kernels<W>,
    messages: impl Iterator<Item = &'a [&'a [u8]]>,
    done: impl FnMut(usize, &[u32; W]),
) {
    let mut messages = messages.enumerate();
    let next = || messages.next().map(|(job, slices)| Lane::message(job, kernels.init, slices));
    drive(kernels, next, done);
}

/// A chaining value's words as the digest's bytes, big-endian (FIPS 180-4 §6.1.2, §6.2.2).
fn digest<const W: usize, const BYTES: usize>(state: &[u32; W]) -> [u8; BYTES] {
    const { assert!(BYTES == W * 4) };
    let mut bytes = [0; BYTES];
    for (chunk, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *chunk = word.to_be_bytes();
    }
    bytes
}
