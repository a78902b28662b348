//! Live streams each of whose chunks is signed: "Sign All" (RFC 7574 §6.1.1).
//!
//! A signature is over the chunk's number, the time and the chunk's bytes, so it says nothing without the chunk: what a peer
//! announces is a claim until one of its chunks came. The time is what old chunks are told from new ones by, for the numbers of a
//! stream and those of one before it of the same key may be the same.

use std::collections::BTreeMap;
use std::ops::Range;

use super::live::{LiveError, STALE_AFTER_S, signed_chunk_text};
use super::proofs::LiveVerdict;
use crate::sign::{PublicKey, SigningKey};
use crate::wire::Codec;

/// Signatures that are kept where no window says fewer: four minutes of 4 Mbit/s in chunks of 1 KiB.
const SIGNATURES_MAX: usize = 131_072;

/// The source's signature over a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkSignature {
    /// When it was made: NTP's 64 bits, seconds since 1900 in the upper half.
    pub ntp: u64,
    /// The signature.
    pub signature: Box<[u8]>,
}

impl ChunkSignature {
    /// Signs a chunk.
    ///
    /// # Errors
    /// The system gives no randomness, or the addressing method has no name for the chunk.
    pub fn make(key: &SigningKey, codec: &Codec, chunk: u64, ntp: u64, payload: &[u8]) -> Result<Self, LiveError> {
        let text = signed_chunk_text(codec, chunk, ntp, payload).ok_or(LiveError::Sign)?;
        let signature = key.sign(&text).ok_or(LiveError::Sign)?.into();
        Ok(Self { ntp, signature })
    }
}

/// The signatures of a live stream's chunks, as many as are known and not forgotten: those of chunks that were here, and hold.
#[derive(Clone, Debug, Default)]
pub struct ChunkSignatures {
    signed: BTreeMap<u64, ChunkSignature>,
    /// Chunks before this one are forgotten.
    floor: u64,
}

impl ChunkSignatures {
    /// None known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Judges a chunk by the signature that came with it, which is kept where the chunk holds. `ntp_now` is the time.
    pub fn judge(
        &mut self,
        key: &PublicKey,
        codec: &Codec,
        (chunk, payload): (u64, &[u8]),
        offered: Option<&ChunkSignature>,
        ntp_now: u64,
    ) -> LiveVerdict {
        let Some(offered) = offered else { return LiveVerdict::Unsigned };
        let newest = self.newest();
        // The source counts and signs upwards: newer, but at or before what is known, means that it began anew.
        let is_anew = newest.is_some_and(|(last, newest)| offered.ntp > newest.ntp && chunk <= last);
        match newest {
            None if offered.ntp >> 32 < (ntp_now >> 32).saturating_sub(STALE_AFTER_S) => return LiveVerdict::Stale,
            Some(_) if is_anew => {}
            _ if chunk < self.floor => return LiveVerdict::Missing,
            // What is signed later lies further on, and nothing twice; what does not is of a stream before this one.
            Some(_) if !self.is_in_order(chunk, offered) => return LiveVerdict::Replayed,
            _ => {}
        }
        let text = signed_chunk_text(codec, chunk, offered.ntp, payload);
        if !text.is_some_and(|text| key.verify(&text, &offered.signature)) {
            return LiveVerdict::Wrong;
        }
        if is_anew {
            *self = Self::new();
        }
        self.keep(chunk, offered.clone());
        if is_anew { LiveVerdict::Restarted } else { LiveVerdict::Good }
    }

    /// Whether a chunk that was signed so has its place among those that are known.
    fn is_in_order(&self, chunk: u64, offered: &ChunkSignature) -> bool {
        let before = self.signed.range(..chunk).next_back();
        let after = self.signed.range(chunk.saturating_add(1)..).next();
        self.signed.get(&chunk).is_none_or(|known| known == offered)
            && before.is_none_or(|(_, before)| before.ntp <= offered.ntp)
            && after.is_none_or(|(_, after)| offered.ntp <= after.ntp)
    }

    /// Keeps the signature of a chunk that holds.
    pub(super) fn keep(&mut self, chunk: u64, signature: ChunkSignature) {
        self.signed.insert(chunk, signature);
        if self.signed.len() > SIGNATURES_MAX
            && let Some((oldest, _)) = self.signed.pop_first()
        {
            self.floor = self.floor.max(oldest + 1);
        }
    }

    /// The signature of a chunk.
    pub fn get(&self, chunk: u64) -> Option<&ChunkSignature> {
        self.signed.get(&chunk)
    }

    /// Whether there is a signature of any of these chunks.
    pub fn has_any(&self, chunks: Range<u64>) -> bool {
        !chunks.is_empty() && self.signed.range(chunks).next().is_some()
    }

    /// The newest chunk.
    pub fn newest(&self) -> Option<(u64, &ChunkSignature)> {
        self.signed.last_key_value().map(|(chunk, signature)| (*chunk, signature))
    }

    /// The oldest chunk.
    pub fn oldest(&self) -> Option<(u64, &ChunkSignature)> {
        self.signed.first_key_value().map(|(chunk, signature)| (*chunk, signature))
    }

    /// The first chunk that was signed at `ntp` or later.
    pub fn since(&self, ntp: u64) -> Option<(u64, &ChunkSignature)> {
        // Times go up with the numbers.
        let (mut from, mut to) = (self.oldest()?.0, self.newest()?.0);
        while from < to {
            let middle = from + (to - from) / 2;
            match self.signed.range(..=middle).next_back().is_some_and(|(_, signature)| signature.ntp >= ntp) {
                true => to = middle,
                false => from = middle + 1,
            }
        }
        self.signed.get(&from).filter(|signature| signature.ntp >= ntp).map(|signature| (from, signature))
    }

    /// Forgets the chunks before this one (RFC 7574 §6.2).
    pub fn discard_before(&mut self, chunk: u64) {
        self.floor = self.floor.max(chunk);
        self.signed = self.signed.split_off(&self.floor);
    }

    /// Chunks whose signatures are known.
    pub fn len(&self) -> usize {
        self.signed.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.signed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hash::HashFunction;
    use crate::sign::SignatureAlgorithm;
    use crate::wire::{Addressing, Dialect};

    const CODEC: Codec = Codec {
        dialect: Dialect::Rfc7574,
        addressing: Addressing::Chunks32,
        hash: HashFunction::Sha256,
        signature_len: 64,
        chunk_len: None,
    };

    const fn ntp(second: u64) -> u64 {
        (3_900_000_000 + second) << 32
    }

    fn key(algorithm: SignatureAlgorithm) -> SigningKey {
        SigningKey::from_pkcs8(algorithm, &SigningKey::generate(algorithm).expect("random")).expect("just made")
    }

    #[test]
    fn a_chunk_holds_by_its_own_signature_alone() {
        for algorithm in [SignatureAlgorithm::EcdsaP256Sha256, SignatureAlgorithm::EcdsaP384Sha384] {
            let (source, other) = (key(algorithm), key(algorithm));
            let sign = |key: &SigningKey, chunk, second, payload: &[u8]| {
                ChunkSignature::make(key, &CODEC, chunk, ntp(second), payload).expect("signed")
            };
            let good = sign(&source, 7, 20, b"seven");
            let now = ntp(25);
            let judge = |known: &mut ChunkSignatures, chunk, payload, offered: Option<&ChunkSignature>, now| {
                known.judge(source.public(), &CODEC, (chunk, payload), offered, now)
            };
            for (chunk, payload, offered, verdict) in [
                (7, &b"seven"[..], None, LiveVerdict::Unsigned),
                (7, b"eight", Some(good.clone()), LiveVerdict::Wrong),
                (8, b"seven", Some(good.clone()), LiveVerdict::Wrong),
                (7, b"seven", Some(sign(&other, 7, 20, b"seven")), LiveVerdict::Wrong),
                (7, b"seven", Some(ChunkSignature { ntp: good.ntp + 1, ..good.clone() }), LiveVerdict::Wrong),
                (7, b"seven", Some(ChunkSignature { signature: Box::new([]), ..good.clone() }), LiveVerdict::Wrong),
                (1 << 40, b"seven", Some(good.clone()), LiveVerdict::Wrong),
                (7, b"seven", Some(good.clone()), LiveVerdict::Good),
            ] {
                let mut known = ChunkSignatures::new();
                assert_eq!(judge(&mut known, chunk, payload, offered.as_ref(), now), verdict, "{offered:?}");
                assert_eq!(known.get(7), offered.as_ref().filter(|_| verdict == LiveVerdict::Good));
            }
            // Just too old to begin with, and just not.
            let mut known = ChunkSignatures::new();
            assert_eq!(judge(&mut known, 7, b"seven", Some(&good), ntp(21 + STALE_AFTER_S)), LiveVerdict::Stale);
            assert_eq!(judge(&mut known, 7, b"seven", Some(&good), ntp(20 + STALE_AFTER_S)), LiveVerdict::Good);
        }
    }

    #[test]
    fn what_was_signed_before_is_not_further_on() {
        let source = key(SignatureAlgorithm::EcdsaP256Sha256);
        let mut known = ChunkSignatures::new();
        let judge = |known: &mut ChunkSignatures, chunk, second| {
            let signature = ChunkSignature::make(&source, &CODEC, chunk, ntp(second), b"chunk").expect("signed");
            known.judge(source.public(), &CODEC, (chunk, b"chunk"), Some(&signature), ntp(60))
        };
        for (chunk, second, verdict) in [
            (100, 50, LiveVerdict::Good),
            (110, 54, LiveVerdict::Good),
            // Between the two, by its number and not by its time.
            (105, 49, LiveVerdict::Replayed),
            (105, 52, LiveVerdict::Good),
            (103, 53, LiveVerdict::Replayed),
            // Before and behind all.
            (90, 51, LiveVerdict::Replayed),
            (90, 40, LiveVerdict::Good),
            (120, 53, LiveVerdict::Replayed),
            (120, 55, LiveVerdict::Good),
        ] {
            assert_eq!(judge(&mut known, chunk, second), verdict, "chunk {chunk}, second {second}");
        }
        known.discard_before(104);
        assert_eq!((known.len(), known.oldest().map(|(chunk, _)| chunk)), (3, Some(105)));
        assert_eq!(judge(&mut known, 103, 51), LiveVerdict::Missing, "behind the window");
        // The source began anew: from further down, and later.
        assert_eq!(judge(&mut known, 20, 58), LiveVerdict::Restarted);
        assert_eq!((known.len(), judge(&mut known, 121, 56)), (1, LiveVerdict::Replayed));
        assert_eq!(judge(&mut known, 19, 57), LiveVerdict::Good);
    }

    proptest! {
        #[test]
        fn the_first_chunk_since_then_is_found(times in proptest::collection::btree_map(0..400u64, 0..90u64, 1..40), at in 0..120u64) {
            let mut known = ChunkSignatures::new();
            let mut sorted: Vec<u64> = times.values().copied().collect();
            sorted.sort_unstable();
            for (chunk, ntp) in times.keys().zip(sorted) {
                known.keep(*chunk, ChunkSignature { ntp, signature: Box::new([]) });
            }
            let naive = known.signed.iter().find(|(_, signature)| signature.ntp >= at).map(|(chunk, _)| *chunk);
            prop_assert_eq!(known.since(at).map(|(chunk, _)| chunk), naive);
        }
    }
}
