//! The hash functions that PPSPP names (RFC 7574 §7.6), and digests of any of their lengths.

use std::fmt;

use anabranch_content::hash::{sha1, sha1_many, sha256, sha256_many};
use sha2::Digest as _;

/// A hash function of Merkle trees (RFC 7574 §7.6, table 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashFunction {
    /// SHA-1, the only one that libswift knows.
    Sha1,
    /// SHA-224.
    Sha224,
    /// SHA-256, the default.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

/// Length of the longest digest.
pub const DIGEST_LEN_MAX: usize = 64;

impl HashFunction {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Sha1, Self::Sha224, Self::Sha256, Self::Sha384, Self::Sha512];

    /// From its number in the handshake; `None` where it has none.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its number in the handshake.
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// Length of its digests, in bytes.
    pub const fn len(self) -> usize {
        [20, 28, 32, 48, 64][self as usize]
    }

    /// Never.
    pub const fn is_empty(self) -> bool {
        false
    }

    /// The digest of one message.
    pub fn hash(self, message: &[u8]) -> Digest {
        match self {
            Self::Sha1 => Digest::copy(&sha1(message)),
            Self::Sha224 => Digest::copy(&sha2::Sha224::digest(message)),
            Self::Sha256 => Digest::copy(&sha256(message)),
            Self::Sha384 => Digest::copy(&sha2::Sha384::digest(message)),
            Self::Sha512 => Digest::copy(&sha2::Sha512::digest(message)),
        }
    }

    /// The digests of many messages, one after the other in `out`: side by side where the processor can.
    pub fn hash_many(self, messages: &[&[u8]], out: &mut Vec<u8>) {
        match self {
            Self::Sha1 => out.extend_from_slice(sha1_many(messages).as_flattened()),
            Self::Sha256 => out.extend_from_slice(sha256_many(messages).as_flattened()),
            _ => messages.iter().for_each(|message| out.extend_from_slice(self.hash(message).as_bytes())),
        }
    }

    /// The digest of an empty leaf: zeros (RFC 7574 §5.1).
    pub fn zero(self) -> Digest {
        Digest { bytes: [0; DIGEST_LEN_MAX], len: self.len() as u8 }
    }

    /// The node above two: "if the two children are empty hashes, the parent is an empty all-zeros hash as well"
    /// (RFC 7574 §5.1).
    pub fn parent(self, left: &Digest, right: &Digest) -> Digest {
        if left.is_zero() && right.is_zero() {
            return self.zero();
        }
        let mut both = [0; 2 * DIGEST_LEN_MAX];
        let len = self.len();
        both[..len].copy_from_slice(left.as_bytes());
        both[len..2 * len].copy_from_slice(right.as_bytes());
        self.hash(&both[..2 * len])
    }

    /// A digest of this function from its bytes; `None` where the length is another's.
    pub fn digest(self, bytes: &[u8]) -> Option<Digest> {
        (bytes.len() == self.len()).then(|| Digest::copy(bytes))
    }
}

/// A digest of any of the hash functions.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    /// Zeros past `len`.
    bytes: [u8; DIGEST_LEN_MAX],
    len: u8,
}

impl Digest {
    /// At most [`DIGEST_LEN_MAX`] bytes.
    fn copy(from: &[u8]) -> Self {
        let mut bytes = [0; DIGEST_LEN_MAX];
        bytes[..from.len()].copy_from_slice(from);
        Self { bytes, len: from.len() as u8 }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Whether it is that of an empty leaf.
    pub fn is_zero(&self) -> bool {
        self.bytes == [0; DIGEST_LEN_MAX]
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().take(6).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("..")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_the_one_of_its_name() {
        // FIPS 180-4, of "abc": the first eight bytes.
        let starts = [
            [0xa9, 0x99, 0x3e, 0x36, 0x47, 0x06, 0x81, 0x6a],
            [0x23, 0x09, 0x7d, 0x22, 0x34, 0x05, 0xd8, 0x22],
            [0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea],
            [0xcb, 0x00, 0x75, 0x3f, 0x45, 0xa3, 0x5e, 0x8b],
            [0xdd, 0xaf, 0x35, 0xa1, 0x93, 0x61, 0x7a, 0xba],
        ];
        for (number, (function, start)) in HashFunction::ALL.into_iter().zip(starts).enumerate() {
            assert_eq!((usize::from(function.to_u8()), HashFunction::from_u8(number as u8)), (number, Some(function)));
            let digest = function.hash(b"abc");
            assert_eq!((digest.as_bytes().len(), &digest.as_bytes()[..8]), (function.len(), &start[..]));
            assert_eq!(function.digest(digest.as_bytes()), Some(digest));
            assert_eq!(function.digest(&digest.as_bytes()[1..]), None);
            let mut many = Vec::new();
            function.hash_many(&[b"abc", b"", b"abc"], &mut many);
            assert_eq!(many, [digest, function.hash(b""), digest].map(|digest| digest.as_bytes().to_vec()).concat());
            assert!(function.parent(&function.zero(), &function.zero()).is_zero());
            let parent = function.hash(&[digest.as_bytes(), function.zero().as_bytes()].concat());
            assert_eq!(function.parent(&digest, &function.zero()), parent);
        }
        assert_eq!(HashFunction::from_u8(5), None);
    }
}
