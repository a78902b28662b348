//! What both ends do alike: keys, padding, and bytes that come in portions.

use super::dh::{self, KEY_LEN, PRIVATE_LEN};
use super::rc4::Rc4;
use super::{Ciphers, MseError, PADDING_LEN_MAX, hash};
use crate::InfoHash;

/// The verification constant: eight zeros.
pub(super) const CONSTANT_LEN: usize = 8;

/// Random bytes, from a seed that nobody else knows.
#[derive(Debug)]
pub(super) struct Random(Rc4);

impl Random {
    pub(super) fn new(seed: &[u8; 32]) -> Self {
        Self(Rc4::new(seed))
    }

    fn bytes<const LEN: usize>(&mut self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.0.apply(&mut bytes);
        bytes
    }

    /// A private key. Its highest bit is set, so that it is none of those with which the secret is known.
    pub(super) fn private(&mut self) -> [u8; PRIVATE_LEN] {
        let mut private = self.bytes();
        private[0] |= 0x80;
        private
    }

    /// How long the next padding is.
    pub(super) fn padding_len(&mut self) -> usize {
        usize::from(u16::from_be_bytes(self.bytes())) % (PADDING_LEN_MAX + 1)
    }

    /// Appends padding.
    pub(super) fn pad(&mut self, len: usize, out: &mut Vec<u8>) {
        let begin = out.len();
        out.resize(begin + len, 0);
        self.0.apply(&mut out[begin..]);
    }
}

/// What both ends share, and nobody else.
#[derive(Clone, Debug)]
pub(super) struct Secret([u8; KEY_LEN]);

impl Secret {
    pub(super) fn new(private: &[u8; PRIVATE_LEN], theirs: &[u8; KEY_LEN]) -> Result<Self, MseError> {
        dh::shared_secret(private, theirs).map(Self).ok_or(MseError::BadKey)
    }

    /// HASH('req1', S): where the caller's padding ends.
    pub(super) fn mark(&self) -> [u8; 20] {
        hash(b"req1", &[&self.0])
    }

    /// The word for a content on the wire from its [`content_key`](super::content_key), and the other way round: xor HASH('req3', S).
    pub(super) fn mask(&self, key: &[u8; 20]) -> [u8; 20] {
        let mask = hash(b"req3", &[&self.0]);
        std::array::from_fn(|at| key[at] ^ mask[at])
    }

    /// The ciphers of the one who calls, about a content.
    pub(super) fn caller(&self, info_hash: &InfoHash) -> Ciphers {
        let cipher = |name| Rc4::new(&hash(name, &[&self.0, info_hash]));
        Ciphers { send: cipher(b"keyA"), receive: cipher(b"keyB") }
    }

    /// The ciphers of the one who is called.
    pub(super) fn called(&self, info_hash: &InfoHash) -> Ciphers {
        let Ciphers { send, receive } = self.caller(info_hash);
        Ciphers { send: receive, receive: send }
    }
}

/// Bytes that came and were not dealt with yet: of a whole greeting at most, and one portion.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// Of these, how many were looked at in vain for a mark.
    searched: usize,
}

impl Inbox {
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next `LEN` bytes, once all are there.
    pub(super) fn take<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        let taken = *self.bytes.first_chunk()?;
        self.bytes.drain(..LEN);
        Some(taken)
    }

    /// The next `len` bytes, once all are there.
    pub(super) fn take_vec(&mut self, len: usize) -> Option<Vec<u8>> {
        (self.bytes.len() >= len).then(|| self.bytes.drain(..len).collect())
    }

    /// All the rest.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Skips padding and the mark behind it, once that is there.
    pub(super) fn skip_to(&mut self, mark: &[u8]) -> Result<Option<()>, MseError> {
        let window = &self.bytes[self.searched..self.bytes.len().min(PADDING_LEN_MAX + mark.len())];
        if let Some(at) = window.windows(mark.len()).position(|part| part == mark) {
            self.bytes.drain(..self.searched + at + mark.len());
            self.searched = 0;
            return Ok(Some(()));
        }
        self.searched += (window.len() + 1).saturating_sub(mark.len());
        if self.searched > PADDING_LEN_MAX { Err(MseError::OutOfSync) } else { Ok(None) }
    }
}
