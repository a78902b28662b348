//! Signatures of live streams: the swarm's identifier is the source's public key (RFC 7574 §6.1).
//!
//! Keys are in the form of a DNSKEY record (RFC 4034): one byte of algorithm, then the key. Every algorithm that the RFC makes
//! mandatory is verified. RSA with SHA-1 is verified and not made: nobody should start a stream with it.

use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::{
    self, ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED,
    ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RsaKeyPair, RsaPublicKeyComponents, UnparsedPublicKey,
};
use thiserror::Error;

/// An algorithm of signatures, by its DNSSEC number (RFC 7574 §7.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignatureAlgorithm {
    /// RSA with SHA-1, number 5 (RFC 3110).
    RsaSha1,
    /// RSA with SHA-256, number 8 (RFC 5702).
    RsaSha256,
    /// ECDSA on P-256 with SHA-256, number 13 (RFC 6605): the default.
    EcdsaP256Sha256,
    /// ECDSA on P-384 with SHA-384, number 14 (RFC 6605).
    EcdsaP384Sha384,
}

impl SignatureAlgorithm {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::RsaSha1, Self::RsaSha256, Self::EcdsaP256Sha256, Self::EcdsaP384Sha384];

    /// From its DNSSEC number; `None` for those that PPSPP does not name.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.to_u8() == number)
    }

    /// Its DNSSEC number.
    pub const fn to_u8(self) -> u8 {
        [5, 8, 13, 14][self as usize]
    }
}

/// The shortest and longest RSA modulus that is verified, in bytes: 1024 to 8192 bits, as the library does.
pub const RSA_MODULUS_LEN: std::ops::RangeInclusive<usize> = 128..=1024;
/// The longest signature, that of the longest RSA key.
pub const SIGNATURE_LEN_MAX: usize = 1024;

/// Why bytes are not the public key of a live stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// No algorithm byte, or one that PPSPP does not name.
    #[error(
        "the swarm's key is of an algorithm that is not supported: RSA with SHA-1 or SHA-256, ECDSA P-256 and P-384 are"
    )]
    Algorithm,
    /// The bytes do not have the length of such a key.
    #[error("the swarm's key has a wrong length")]
    Length,
    /// The private key is none of its algorithm.
    #[error("the private key cannot be read: a PKCS#8 document of the same algorithm is asked for")]
    Private,
}

/// The source's public key: verifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    algorithm: SignatureAlgorithm,
    /// The swarm's identifier, algorithm byte and all.
    id: Box<[u8]>,
    /// Where the RSA exponent lies in `id`; the modulus follows. Empty for ECDSA.
    exponent: std::ops::Range<usize>,
}

impl PublicKey {
    /// From the swarm's identifier.
    pub fn parse(id: &[u8]) -> Result<Self, KeyError> {
        let (number, key) = id.split_first().ok_or(KeyError::Algorithm)?;
        let algorithm = SignatureAlgorithm::from_u8(*number).ok_or(KeyError::Algorithm)?;
        let right_length = |len| if key.len() == len { Ok(0..0) } else { Err(KeyError::Length) };
        let exponent = match algorithm {
            SignatureAlgorithm::EcdsaP256Sha256 => right_length(64)?,
            SignatureAlgorithm::EcdsaP384Sha384 => right_length(96)?,
            SignatureAlgorithm::RsaSha1 | SignatureAlgorithm::RsaSha256 => {
                // RFC 3110 §2: the exponent's length in one byte, or a zero and two bytes.
                let (len, start) = match *key {
                    [0, high, low, ..] => (usize::from(u16::from_be_bytes([high, low])), 4),
                    [len, ..] => (usize::from(len), 2),
                    [] => return Err(KeyError::Length),
                };
                let modulus_len = id.len().checked_sub(start + len).ok_or(KeyError::Length)?;
                if len == 0 || !RSA_MODULUS_LEN.contains(&modulus_len) {
                    return Err(KeyError::Length);
                }
                start..start + len
            }
        };
        Ok(Self { algorithm, id: id.into(), exponent })
    }

    /// How it signs.
    pub fn algorithm(&self) -> SignatureAlgorithm {
        self.algorithm
    }

    /// The swarm's identifier.
    pub fn swarm_id(&self) -> &[u8] {
        &self.id
    }

    /// Length of its signatures in bytes (RFC 7574 §8.9).
    pub fn signature_len(&self) -> usize {
        match self.algorithm {
            SignatureAlgorithm::EcdsaP256Sha256 => 64,
            SignatureAlgorithm::EcdsaP384Sha384 => 96,
            _ => self.id.len() - self.exponent.end,
        }
    }

    /// Whether the source signed `message` so.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        let rsa = |params| {
            let (e, n) = (&self.id[self.exponent.clone()], &self.id[self.exponent.end..]);
            RsaPublicKeyComponents { n, e }.verify(params, message, signature).is_ok()
        };
        let ecdsa = |params| {
            // An uncompressed point starts with 4, which DNSSEC leaves out (RFC 6605 §4).
            let point = [&[4], &self.id[1..]].concat();
            UnparsedPublicKey::new(params, point).verify(message, signature).is_ok()
        };
        match self.algorithm {
            SignatureAlgorithm::RsaSha1 => rsa(&signature::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY),
            SignatureAlgorithm::RsaSha256 => rsa(&signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY),
            SignatureAlgorithm::EcdsaP256Sha256 => ecdsa(&ECDSA_P256_SHA256_FIXED),
            SignatureAlgorithm::EcdsaP384Sha384 => ecdsa(&ECDSA_P384_SHA384_FIXED),
        }
    }
}

/// The source's key pair: signs. ECDSA takes randomness from the system, the one thing in this crate that a seed does not
/// replay.
#[derive(Clone)]
pub struct SigningKey {
    pair: Pair,
    public: PublicKey,
}

#[derive(Clone)]
enum Pair {
    Ecdsa(Arc<EcdsaKeyPair>),
    Rsa(Arc<RsaKeyPair>),
}

impl SigningKey {
    /// A new key as a PKCS#8 document, to keep; `None` for RSA, whose keys other tools make.
    pub fn generate(algorithm: SignatureAlgorithm) -> Option<Vec<u8>> {
        let params = match algorithm {
            SignatureAlgorithm::EcdsaP256Sha256 => &ECDSA_P256_SHA256_FIXED_SIGNING,
            SignatureAlgorithm::EcdsaP384Sha384 => &ECDSA_P384_SHA384_FIXED_SIGNING,
            SignatureAlgorithm::RsaSha1 | SignatureAlgorithm::RsaSha256 => return None,
        };
        Some(EcdsaKeyPair::generate_pkcs8(params, &SystemRandom::new()).ok()?.as_ref().to_vec())
    }

    /// From a PKCS#8 document of any algorithm that signs.
    pub fn from_any_pkcs8(document: &[u8]) -> Result<Self, KeyError> {
        let known = SignatureAlgorithm::ALL.into_iter().filter(|known| *known != SignatureAlgorithm::RsaSha1);
        known
            .map(|algorithm| Self::from_pkcs8(algorithm, document))
            .find(Result::is_ok)
            .unwrap_or(Err(KeyError::Private))
    }

    /// From a PKCS#8 document.
    pub fn from_pkcs8(algorithm: SignatureAlgorithm, document: &[u8]) -> Result<Self, KeyError> {
        let mut id = vec![algorithm.to_u8()];
        let ecdsa = |params| EcdsaKeyPair::from_pkcs8(params, document, &SystemRandom::new()).map(Arc::new);
        let pair = match algorithm {
            SignatureAlgorithm::EcdsaP256Sha256 => {
                Pair::Ecdsa(ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(private)?)
            }
            SignatureAlgorithm::EcdsaP384Sha384 => {
                Pair::Ecdsa(ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING).map_err(private)?)
            }
            SignatureAlgorithm::RsaSha256 => Pair::Rsa(Arc::new(RsaKeyPair::from_pkcs8(document).map_err(private)?)),
            SignatureAlgorithm::RsaSha1 => return Err(KeyError::Algorithm),
        };
        match &pair {
            Pair::Ecdsa(pair) => id.extend_from_slice(&pair.public_key().as_ref()[1..]),
            Pair::Rsa(pair) => {
                let key: RsaPublicKeyComponents<Vec<u8>> = pair.public().into();
                // RFC 3110 §2; exponents are a few bytes long.
                id.push(u8::try_from(key.e.len()).map_err(|_| KeyError::Length)?);
                id.extend_from_slice(&key.e);
                id.extend_from_slice(&key.n);
            }
        }
        Ok(Self { pair, public: PublicKey::parse(&id)? })
    }

    /// The public half.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs; `None` where the system has no randomness.
    pub fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Ecdsa(pair) => Some(pair.sign(&random, message).ok()?.as_ref().to_vec()),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut signature).ok()?;
                Some(signature)
            }
        }
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("public", &self.public).finish_non_exhaustive()
    }
}

fn private<E>(_: E) -> KeyError {
    KeyError::Private
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_sources_signature_over_that_message_holds() {
        for algorithm in [SignatureAlgorithm::EcdsaP256Sha256, SignatureAlgorithm::EcdsaP384Sha384] {
            let [key, other] = [(); 2].map(|()| {
                let document = SigningKey::generate(algorithm).expect("made here");
                SigningKey::from_pkcs8(algorithm, &document).expect("just made")
            });
            let public = PublicKey::parse(key.public().swarm_id()).expect("its own");
            let mut signature = key.sign(b"munro").expect("randomness");
            assert_eq!((signature.len(), public.algorithm()), (public.signature_len(), algorithm));
            assert!(public.verify(b"munro", &signature) && !public.verify(b"monru", &signature));
            assert!(!other.public().verify(b"munro", &signature));
            assert!(!public.verify(b"munro", &signature[1..]) && !public.verify(b"munro", &[]));
            signature[7] ^= 1;
            assert!(!public.verify(b"munro", &signature));
        }
        assert!(SigningKey::generate(SignatureAlgorithm::RsaSha1).is_none());
        assert_eq!(
            SigningKey::from_pkcs8(SignatureAlgorithm::RsaSha256, b"nonsense").map(|_| ()),
            Err(KeyError::Private)
        );
    }

    #[test]
    fn keys_are_as_long_as_their_algorithm_says() {
        let ok = |id: &[u8]| PublicKey::parse(id).map(|key| key.signature_len());
        assert_eq!((ok(&[]), ok(&[15; 33])), (Err(KeyError::Algorithm), Err(KeyError::Algorithm)));
        assert_eq!(
            (ok(&[13; 65]), ok(&[13; 64]), ok(&[13; 66])),
            (Ok(64), Err(KeyError::Length), Err(KeyError::Length))
        );
        assert_eq!((ok(&[14; 97]), ok(&[14; 65])), (Ok(96), Err(KeyError::Length)));
        let rsa = |head: &[u8], modulus: usize| [head, &vec![0xc1; modulus]].concat();
        // The exponent 65537 in both of RFC 3110's forms.
        assert_eq!(ok(&rsa(&[8, 3, 1, 0, 1], 256)), Ok(256));
        assert_eq!(ok(&rsa(&[5, 0, 0, 3, 1, 0, 1], 128)), Ok(128));
        assert_eq!(ok(&rsa(&[8, 3, 1, 0, 1], 127)), Err(KeyError::Length));
        assert_eq!(ok(&rsa(&[8, 3, 1, 0, 1], 1024)), Ok(1024));
        assert_eq!(ok(&rsa(&[8, 3, 1, 0, 1], 1025)), Err(KeyError::Length));
        for short in [&[8][..], &[8, 0], &[8, 0, 0, 0], &[8, 255, 1]] {
            assert_eq!(ok(short), Err(KeyError::Length), "{short:?}");
        }
        let key = PublicKey::parse(&rsa(&[5, 3, 1, 0, 1], 128)).expect("a key by its lengths");
        assert!(!key.verify(b"message", &[1; 128]));
    }

    /// A key of 1024 bits and its signatures over "munro", made by OpenSSL.
    #[test]
    fn rsa_signatures_of_another_program_hold() {
        let modulus = "d7e1fedd83588cd0e109d98f34bc2bf27257c18068dbd2e7eca05dc3c876b38c65aeea6386162a22cd2d4ec43fa305e9\
         c68dd6c213c5f4b3f85903813866dc1a65ddeca5084d27891c3b59990639c98f80ad3372f322a4240c6ed9f3fd1c7e72\
         511b003b494c355391c83d6168efa526c6759624b6e9fd30c1da9dbd5312a419";
        let sha1 = "6102f897bc6e71c702fcdb9d1fadfb523e32232605155f224054b13a7b43c450e17211a0d36bb249775789199db37832\
         2eabcaa235c3a59a2881ed3ce98d47f51f96b80a47a04c334987b3a143be87c996e3d92045be00eeae07da529b09b21a\
         abc9d7a058b09aa7ce474e10dfd47c1b9d41390964e83e0b783fab1d06118cb1";
        let sha256 = "2a3f94580208079857fefdc5f50ad45e2dd76f1116d857a5e3e1cba8669b2b25edd4ea2263d807b6da25a5d57a2bddbf\
         9f60292f3024a7b615200adca87b7ff55150aeca91871d9015100b6750f9692a36e481a74235e8b8ce524789ab672097\
         254c68378af43091ad6ba678a6127ad90eb0e5e0dbd8a1d5615ce83910700a6d";
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("digits")).collect()
        };
        for (number, signature, other) in [(5, sha1, sha256), (8, sha256, sha1)] {
            let key = PublicKey::parse(&[&[number, 3, 1, 0, 1], &hex(modulus)[..]].concat()).expect("a key");
            assert_eq!(key.signature_len(), 128);
            assert!(key.verify(b"munro", &hex(signature)), "algorithm {number}");
            assert!(!key.verify(b"munrO", &hex(signature)) && !key.verify(b"munro", &hex(other)));
        }
    }
}
