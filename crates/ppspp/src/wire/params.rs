//! What a swarm is, and whether a peer's handshake means the same.

use thiserror::Error;

use super::{
    Addressing, CHUNK_LEN_MAX, ChannelId, Codec, Dialect, DiscardWindow, Handshake, Integrity, SWARM_ID_LEN_MAX,
};
use crate::hash::HashFunction;
use crate::sign::{KeyError, PublicKey};

/// The version that RFC 7574 describes (§7.2).
pub(super) const VERSION: u8 = 1;

/// A swarm's metadata (RFC 7574 §8.4): what all of its peers have to agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmParams {
    swarm_id: Box<[u8]>,
    integrity: Integrity,
    hash: HashFunction,
    addressing: Addressing,
    chunk_len: Option<u32>,
    key: Option<PublicKey>,
}

/// Why a swarm cannot be so, or a peer is not of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// The identifier is empty or too long, or not as long as a root hash of the function.
    #[error("the swarm's identifier has a wrong length for its hash function")]
    IdLength,
    /// The identifier of a live stream is no key.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// Chunks without a length, or longer than a datagram.
    #[error(
        "chunks are between 1 and {CHUNK_LEN_MAX} bytes long; where chunks differ, ranges of bytes cannot name them"
    )]
    ChunkLen,
    /// The peer speaks other versions.
    #[error("peer does not speak version {VERSION} of the protocol")]
    Version,
    /// The peer named another swarm, or none where it had to.
    #[error("peer means another swarm")]
    Swarm,
    /// The peer's option of this code differs from the swarm's, or is missing.
    #[error("peer's handshake option {0} is not the swarm's")]
    Option(u8),
    /// The oldest dialect has no options: only its defaults can be meant.
    #[error("peer speaks libswift's first dialect, which knows SHA-1, Merkle trees and 32-bit bins alone")]
    Dialect,
}

impl SwarmParams {
    /// A swarm; `chunk_len` is `None` where chunks differ in length.
    pub fn new(
        swarm_id: &[u8],
        integrity: Integrity,
        hash: HashFunction,
        addressing: Addressing,
        chunk_len: Option<u32>,
    ) -> Result<Self, Mismatch> {
        let key = if integrity.is_signed() { Some(PublicKey::parse(swarm_id)?) } else { None };
        let right_length = match integrity {
            Integrity::MerkleTree => swarm_id.len() == hash.len(),
            _ => (1..=SWARM_ID_LEN_MAX).contains(&swarm_id.len()),
        };
        if !right_length {
            return Err(Mismatch::IdLength);
        }
        let len_ok = chunk_len.is_none_or(|len| (1..=CHUNK_LEN_MAX).contains(&len));
        if !len_ok || (chunk_len.is_none() && addressing == Addressing::Bytes64) {
            return Err(Mismatch::ChunkLen);
        }
        Ok(Self { swarm_id: swarm_id.into(), integrity, hash, addressing, chunk_len, key })
    }

    /// The swarm's identifier.
    pub fn swarm_id(&self) -> &[u8] {
        &self.swarm_id
    }

    /// How content is protected.
    pub fn integrity(&self) -> Integrity {
        self.integrity
    }

    /// The hash function.
    pub fn hash(&self) -> HashFunction {
        self.hash
    }

    /// How we name chunks.
    pub fn addressing(&self) -> Addressing {
        self.addressing
    }

    /// The source's key, where it signs.
    pub fn key(&self) -> Option<&PublicKey> {
        self.key.as_ref()
    }

    /// Length of every chunk but the last, in bytes.
    pub fn chunk_len(&self) -> Option<u32> {
        self.chunk_len
    }

    /// How its messages look in `dialect`.
    pub fn codec(&self, dialect: Dialect) -> Codec {
        Codec {
            dialect,
            addressing: self.addressing,
            hash: self.hash,
            // At most SIGNATURE_LEN_MAX.
            signature_len: self.key.as_ref().map_or(0, |key| key.signature_len() as u16),
            chunk_len: self.chunk_len,
        }
    }

    /// Whether libswift's first dialect can be meant.
    pub fn is_legacy(&self) -> bool {
        (self.integrity, self.hash, self.addressing) == (Integrity::MerkleTree, HashFunction::Sha1, Addressing::Bins32)
    }

    /// The dialect of a handshake, where so many in `dialect` or another were not answered: libswift does not answer RFC 7574's, and others
    /// need not answer its. Where it may be meant, each second one is in the other.
    pub fn dialect_of_try(&self, dialect: Dialect, tries: u32) -> Dialect {
        let may_be_libswift = (self.integrity, self.hash) == (Integrity::MerkleTree, HashFunction::Sha1);
        match dialect {
            Dialect::Rfc7574 if may_be_libswift && tries % 2 == 1 => Dialect::Draft10,
            Dialect::Draft10 if tries % 2 == 1 => Dialect::Rfc7574,
            own => own,
        }
    }

    /// Our handshake. The one that opens names the swarm (RFC 7574 §7.4); of a live stream, both say what they keep (§7.9). An answer names
    /// chunks as the peer does: see [`Handshake::addressing`].
    pub fn handshake(
        &self,
        dialect: Dialect,
        channel: ChannelId,
        opens: bool,
        window: Option<DiscardWindow>,
    ) -> Handshake {
        let signed = self.key.as_ref().map(PublicKey::algorithm);
        Handshake {
            channel,
            version: Some(VERSION),
            version_min: Some(VERSION),
            swarm_id: opens.then(|| self.swarm_id.clone()),
            integrity: Some(self.integrity),
            // §7.6: for Merkle trees; a live tree has one too.
            hash: self.integrity.is_hashed().then_some(self.hash),
            signature: signed,
            addressing: Some(self.addressing),
            window: window.filter(|_| self.integrity != Integrity::MerkleTree),
            // All of them are: §7.10 asks for the option only of those that read fewer, and it breaks libswift.
            supported: None,
            chunk_len: (dialect == Dialect::Rfc7574).then(|| self.chunk_len.unwrap_or(u32::MAX)),
            uuid: None,
        }
    }

    /// Whether a peer's handshake means this swarm; then how to talk to it. `opens`: the peer is the one who opened.
    pub fn check(&self, dialect: Dialect, handshake: &Handshake, opens: bool) -> Result<Codec, Mismatch> {
        match handshake.swarm_id.as_deref() {
            Some(id) if *id != *self.swarm_id => return Err(Mismatch::Swarm),
            None if opens => return Err(Mismatch::Swarm),
            _ => {}
        }
        if dialect == Dialect::Legacy {
            return if self.is_legacy() { Ok(self.codec(dialect)) } else { Err(Mismatch::Dialect) };
        }
        let spoken = handshake.version_min.unwrap_or(VERSION)..=handshake.version.unwrap_or(0);
        if !spoken.contains(&VERSION) {
            return Err(Mismatch::Version);
        }
        // What libswift says of a file's protection is whatever was in that byte of its memory, and it names the hash function only
        // where that is a Merkle tree by chance. It means one: what it sends has to lead to the root all the same.
        let is_vague = dialect == Dialect::Draft10 && self.integrity == Integrity::MerkleTree;
        if handshake.integrity != Some(self.integrity) && !is_vague {
            return Err(Mismatch::Option(3));
        }
        // §7.6: "MUST be included" for Merkle trees; for live ones libswift leaves it out and means SHA-1.
        match handshake.hash {
            Some(hash) if self.integrity.is_hashed() && hash != self.hash => return Err(Mismatch::Option(4)),
            None if self.integrity == Integrity::MerkleTree && !is_vague => return Err(Mismatch::Option(4)),
            _ => {}
        }
        if let Some(key) = &self.key
            && handshake.signature != Some(key.algorithm())
        {
            return Err(Mismatch::Option(5));
        }
        if handshake.chunk_len.is_some_and(|len| len != self.chunk_len.unwrap_or(u32::MAX)) {
            return Err(Mismatch::Option(9));
        }
        match handshake.addressing {
            Some(addressing) if addressing == self.addressing => Ok(self.codec(dialect)),
            Some(addressing) if opens && self.may_be_named_by(addressing) => {
                Ok(Codec { addressing, ..self.codec(dialect) })
            }
            _ => Err(Mismatch::Option(6)),
        }
    }

    /// Whether chunks may be named in this way to a peer that asks for it. RFC 7574 §4 has all peers of a swarm use one way; but chunks are the
    /// same whatever they are called, but where their names are signed.
    fn may_be_named_by(&self, addressing: Addressing) -> bool {
        !self.integrity.is_signed() && (self.chunk_len.is_some() || addressing != Addressing::Bytes64)
    }
}
