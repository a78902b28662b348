//! What the receiver signs at the end: that it has all of it, verified.

use ring::signature::{ED25519, UnparsedPublicKey};

use super::{Input, WireError};

/// Bytes of an Ed25519 key (RFC 8032).
pub const KEY_LEN: usize = 32;
/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;
/// Bytes of a receipt.
pub const RECEIPT_LEN: usize = 4 + 32 + 8 + 32 + 4 + 8 + 2 * KEY_LEN + SIGNATURE_LEN;
/// What is signed starts with this, so that no signature of another protocol is one of a receipt.
const CONTEXT: &[u8] = b"anabranch bulk receipt v2\0";

/// Who has what, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The transfer's id.
    pub transfer: u32,
    /// Root over the content.
    pub root: [u8; 32],
    /// Bytes of content.
    pub content_len: u64,
    /// SHA-256 of the manifest: names, modes, times.
    pub manifest_hash: [u8; 32],
    /// Entries of the manifest.
    pub entries: u32,
    /// Seconds since 1970 by the receiver's clock.
    pub finished: u64,
    /// The sender's key.
    pub sender: [u8; KEY_LEN],
    /// The receiver's key, which signed.
    pub receiver: [u8; KEY_LEN],
    /// By the receiver, of [`Receipt::signed_bytes`].
    pub signature: [u8; SIGNATURE_LEN],
}

impl Receipt {
    /// What the receiver's key signs.
    pub fn signed_bytes(&self) -> Vec<u8> {
        let mut out = CONTEXT.to_vec();
        self.write_fields(&mut out);
        out
    }

    /// Whether the receiver's key signed it.
    pub fn verify(&self) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.receiver).verify(&self.signed_bytes(), &self.signature).is_ok()
    }

    /// Appends it, signature and all.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_fields(out);
        out.extend(self.signature);
    }

    fn write_fields(&self, out: &mut Vec<u8>) {
        out.extend(self.transfer.to_be_bytes());
        out.extend(self.root);
        out.extend(self.content_len.to_be_bytes());
        out.extend(self.manifest_hash);
        out.extend(self.entries.to_be_bytes());
        out.extend(self.finished.to_be_bytes());
        out.extend(self.sender);
        out.extend(self.receiver);
    }

    /// Reads one; whether it is true is [`Receipt::verify`]'s to say.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Input(bytes);
        let receipt = Self {
            transfer: input.u32()?,
            root: input.array()?,
            content_len: input.u64()?,
            manifest_hash: input.array()?,
            entries: input.u32()?,
            finished: input.u64()?,
            sender: input.array()?,
            receiver: input.array()?,
            signature: input.array()?,
        };
        input.finish()?;
        Ok(receipt)
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    #[test]
    fn a_receipt_is_true_as_it_was_signed_and_no_other() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let mut receipt = Receipt {
            transfer: 1,
            root: [2; 32],
            content_len: 3,
            manifest_hash: [4; 32],
            entries: 5,
            finished: 6,
            sender: [7; 32],
            receiver: pair.public_key().as_ref().try_into().unwrap(),
            signature: [0; 64],
        };
        assert!(!receipt.verify());
        receipt.signature = pair.sign(&receipt.signed_bytes()).as_ref().try_into().unwrap();
        let mut bytes = Vec::new();
        receipt.write(&mut bytes);
        assert_eq!(bytes.len(), RECEIPT_LEN);
        assert_eq!(Receipt::parse(&bytes).as_ref(), Ok(&receipt));
        assert!(receipt.verify());
        for at in 0..RECEIPT_LEN {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(!Receipt::parse(&bad).unwrap().verify(), "byte {at}");
            assert!(Receipt::parse(&bytes[..at]).is_err());
        }
    }
}
