//! AES-128-GCM of packets (`ring`), in place and from one buffer to another.
//!
//! Nonces are the caller's: one that is used twice with a key gives both texts away.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::seal::TAG_LEN;

/// Bytes of a key.
pub(super) const KEY_LEN: usize = 16;
/// Bytes of a nonce.
pub(super) const NONCE_LEN: usize = 12;

/// A packet does not authenticate: another key, nonce, head or text than it was sealed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forged;

/// A key, with what is computed of it once.
#[derive(Clone)]
pub(super) struct Key(LessSafeKey);

impl Key {
    pub(super) fn new(key: &[u8; KEY_LEN]) -> Self {
        let key = UnboundKey::new(&AES_128_GCM, key);
        // AES-128 takes any 16 bytes.
        Self(LessSafeKey::new(key.expect("the length is right")))
    }

    /// Encrypts `text` into `sealed`, which is as long; the tag over both.
    pub(super) fn seal(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], text: &[u8], sealed: &mut [u8]) -> [u8; TAG_LEN] {
        sealed.copy_from_slice(text);
        self.seal_in_place(nonce, aad, sealed)
    }

    /// The same where the text lies.
    pub(super) fn seal_in_place(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(aad), text);
        let mut bytes = [0; TAG_LEN];
        bytes.copy_from_slice(tag.expect("a packet is far shorter than AES-GCM's limit").as_ref());
        bytes
    }

    /// Decrypts `sealed` into `text`, which is as long. With an error `text` may hold anything: let nobody read it.
    pub(super) fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        tag: &[u8; TAG_LEN],
        sealed: &[u8],
        text: &mut [u8],
    ) -> Result<(), Forged> {
        text.copy_from_slice(sealed);
        self.open_in_place(nonce, aad, tag, text)
    }

    /// The same where it lies.
    pub(super) fn open_in_place(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        tag: &[u8; TAG_LEN],
        sealed: &mut [u8],
    ) -> Result<(), Forged> {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        match self.0.open_in_place_separate_tag(nonce, Aad::from(aad), (*tag).into(), sealed, 0..) {
            Ok(_) => Ok(()),
            Err(_) => Err(Forged),
        }
    }
}
