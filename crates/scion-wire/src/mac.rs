//! The seals on hop fields: AES-CMAC (RFC 4493) over one block, under a key that only the AS knows.
//!
//! The input is always one whole block, so a MAC is one AES call once the key schedule and the subkey K1 are there:
//! a [`HopKey`] is made once and kept.

use aes::Aes128;
use aes::cipher::{BlockEncrypt, KeyInit};
use sha2::{Digest, Sha256};

use crate::path::{HopField, HopMac};

/// Bytes of a key and of a block.
const KEY_LEN: usize = 16;
/// What the reference derives hop keys with, so that one master key serves both.
const DERIVE_SALT: &[u8] = b"Derive OF Key";
/// Its number of rounds.
const DERIVE_ROUNDS: usize = 1000;

/// An AS's forwarding key, ready to use.
#[derive(Clone)]
pub struct HopKey {
    cipher: Aes128,
    /// K1 of RFC 4493 §2.3: what whole last blocks are xored with.
    subkey: u128,
}

impl HopKey {
    /// From the key itself.
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        let cipher = Aes128::new(key.into());
        let zero = u128::from_be_bytes(encrypt(&cipher, 0));
        // RFC 4493 §2.3: doubling in GF(2^128).
        let subkey = zero << 1 ^ if zero >> 127 == 1 { 0x87 } else { 0 };
        Self { cipher, subkey }
    }

    /// From an AS's master key: PBKDF2 with HMAC-SHA-256, as the reference's `HFMacFactory` derives it.
    pub fn derive(master: &[u8]) -> Self {
        let block = pbkdf2_block(master, DERIVE_SALT, DERIVE_ROUNDS);
        let mut key = [0; KEY_LEN];
        key.copy_from_slice(&block[..KEY_LEN]);
        Self::new(&key)
    }

    /// The seal on a hop: `seg_id` is β of the hop in construction direction, and β of the hop behind it (this one's
    /// own MAC chained in) for the hop field of a peering link. The hop's own `mac` is not looked at.
    pub fn mac(&self, seg_id: u16, timestamp_s: u32, hop: &HopField) -> HopMac {
        let full = self.full_mac(seg_id, timestamp_s, hop);
        let [m0, m1, m2, m3, m4, m5, ..] = full;
        [m0, m1, m2, m3, m4, m5]
    }

    /// All 16 bytes of it (EPIC keys derive from these).
    pub fn full_mac(&self, seg_id: u16, timestamp_s: u32, hop: &HopField) -> [u8; KEY_LEN] {
        // "Hop Field MAC Computation": 0 (2), β (2), Timestamp (4), 0 (1), ExpTime (1), ConsIngress (2), ConsEgress (2),
        // 0 (2).
        let input = u128::from(seg_id) << 96
            | u128::from(timestamp_s) << 64
            | u128::from(hop.exp_time) << 48
            | u128::from(hop.cons_ingress) << 32
            | u128::from(hop.cons_egress) << 16;
        encrypt(&self.cipher, input ^ self.subkey)
    }

    /// The hop carries the seal it must have. Takes the same time whether it does or not.
    pub fn verify(&self, seg_id: u16, timestamp_s: u32, hop: &HopField) -> bool {
        let expected = self.mac(seg_id, timestamp_s, hop);
        let difference = expected.iter().zip(&hop.mac).fold(0, |difference, (a, b)| difference | (a ^ b));
        difference == 0
    }

    /// `hop`, sealed.
    pub fn sealed(&self, seg_id: u16, timestamp_s: u32, hop: HopField) -> HopField {
        HopField { mac: self.mac(seg_id, timestamp_s, &hop), ..hop }
    }
}

impl std::fmt::Debug for HopKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HopKey")
    }
}

/// β of the next hop in construction direction: β xor the first two bytes of this hop's MAC.
pub fn chained(seg_id: u16, mac: &HopMac) -> u16 {
    seg_id ^ u16::from_be_bytes([mac[0], mac[1]])
}

fn encrypt(cipher: &Aes128, block: u128) -> [u8; KEY_LEN] {
    let mut block = block.to_be_bytes().into();
    cipher.encrypt_block(&mut block);
    block.into()
}

/// The first block of PBKDF2 with HMAC-SHA-256 (RFC 8018 §5.2): 32 bytes are more than a hop key needs.
fn pbkdf2_block(password: &[u8], salt: &[u8], rounds: usize) -> [u8; 32] {
    let hmac = Hmac::new(password);
    let mut round = hmac.of(&[salt, &1u32.to_be_bytes()]);
    let mut block = round;
    for _ in 1..rounds {
        round = hmac.of(&[&round]);
        block.iter_mut().zip(round).for_each(|(sum, byte)| *sum ^= byte);
    }
    block
}

/// HMAC-SHA-256 (RFC 2104) with the padded key hashed in.
struct Hmac {
    inner: Sha256,
    outer: Sha256,
}

impl Hmac {
    /// SHA-256 takes 64 bytes at a time; longer keys are hashed first.
    const BLOCK_LEN: usize = 64;

    fn new(key: &[u8]) -> Self {
        let mut block = [0; Self::BLOCK_LEN];
        if key.len() > Self::BLOCK_LEN {
            block[..32].copy_from_slice(&Sha256::digest(key));
        } else {
            block[..key.len()].copy_from_slice(key);
        }
        let keyed = |pad: u8| Sha256::new().chain_update(block.map(|byte| byte ^ pad));
        Self { inner: keyed(0x36), outer: keyed(0x5c) }
    }

    fn of(&self, message: &[&[u8]]) -> [u8; 32] {
        let inner = message.iter().fold(self.inner.clone(), |hash, part| hash.chain_update(part)).finalize();
        self.outer.clone().chain_update(inner).finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex<const N: usize>(text: &str) -> [u8; N] {
        std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
    }

    #[test]
    fn cmac_is_that_of_rfc_4493() {
        // §4: the subkey, and example 2, a message of one block.
        let key = HopKey::new(&hex("2b7e151628aed2a6abf7158809cf4f3c"));
        assert_eq!(key.subkey.to_be_bytes(), hex("fbeed618357133667c85e08f7236a8de"));
        let message = u128::from_be_bytes(hex("6bc1bee22e409f96e93d7e117393172a"));
        assert_eq!(encrypt(&key.cipher, message ^ key.subkey), hex("070a16b46b4d4144f79bdd9dd04a287c"));
    }

    #[test]
    fn pbkdf2_is_that_of_the_rfcs_test_vectors() {
        // RFC 7914 §11, first vector (first 32 bytes of 64).
        let expected = hex("55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc");
        assert_eq!(pbkdf2_block(b"passwd", b"salt", 1), expected);
    }

    fn hop(exp_time: u8, cons_ingress: u16, cons_egress: u16) -> HopField {
        HopField { ingress_alert: true, egress_alert: true, exp_time, cons_ingress, cons_egress, mac: [0; 6] }
    }

    #[test]
    fn hops_are_sealed_as_others_seal_them() {
        // Computed with OpenSSL's CMAC over the input block of the specification.
        let zero_key = HopKey::new(&[0; 16]);
        assert_eq!(zero_key.full_mac(0x111, 0x100, &hop(63, 41, 0)), hex("459045fb7cbf360401329ce5fcd3edfc"));
        // And with Python's PBKDF2 before it.
        let derived = HopKey::derive(b"0123456789abcdef");
        assert_eq!(derived.mac(0x1234, 0x5f5e_1000, &hop(63, 1, 2)), hex("49a98b56b260"));
    }

    #[test]
    fn any_changed_field_breaks_the_seal() {
        let key = HopKey::derive(b"a master key");
        let sealed = key.sealed(7, 1000, hop(63, 1, 2));
        assert!(key.verify(7, 1000, &sealed));
        // Alerts are set and cleared on the way; the seal leaves them out.
        assert!(key.verify(7, 1000, &HopField { ingress_alert: false, ..sealed }));
        assert!(!key.verify(6, 1000, &sealed) && !key.verify(7, 1001, &sealed));
        assert!(!key.verify(7, 1000, &HopField { exp_time: 64, ..sealed }));
        assert!(!key.verify(7, 1000, &HopField { cons_ingress: 3, ..sealed }));
        assert!(!key.verify(7, 1000, &HopField { cons_egress: 3, ..sealed }));
        for byte in 0..6 {
            let mut mac = sealed.mac;
            mac[byte] ^= 0x80;
            assert!(!key.verify(7, 1000, &HopField { mac, ..sealed }));
        }
        assert!(!HopKey::derive(b"another").verify(7, 1000, &sealed));
    }

    #[test]
    fn long_keys_are_hashed_first() {
        // RFC 4231 §4.7.
        let expected = hex("60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
        assert_eq!(Hmac::new(&[0xaa; 131]).of(&[b"Test Using Larger Than Block-Size Key - Hash Key First"]), expected);
    }

    /// A segment of three ASes, walked by routers both ways (SCION header, "AS Traversal Operations"), and a peering
    /// entry at its second AS.
    #[test]
    fn chained_seals_verify_in_both_directions() {
        let keys = [b"one".as_slice(), b"two", b"three"].map(HopKey::derive);
        let mut beta = 0xbeef;
        let mut betas = vec![beta];
        let mut hops = Vec::new();
        for (key, hop) in keys.iter().zip([hop(63, 0, 1), hop(63, 2, 3), hop(63, 4, 0)]) {
            let hop = key.sealed(beta, 1000, hop);
            beta = chained(beta, &hop.mac);
            betas.push(beta);
            hops.push(hop);
        }
        // Down: SegID starts at the first β; each egress router chains.
        let mut seg_id = betas[0];
        for (key, hop) in keys.iter().zip(&hops) {
            assert!(key.verify(seg_id, 1000, hop));
            seg_id = chained(seg_id, &hop.mac);
        }
        // Up: the sender's AS looks at its own hop as it is; each next ingress router chains before it looks.
        let mut seg_id = betas[2];
        for (step, (key, hop)) in keys.iter().zip(&hops).rev().enumerate() {
            if step > 0 {
                seg_id = chained(seg_id, &hop.mac);
            }
            assert!(key.verify(seg_id, 1000, hop));
        }
        // "Peering Links": sealed with the β behind the AS's own entry.
        let peer = keys[1].sealed(chained(betas[1], &hops[1].mac), 1000, self::hop(63, 9, 3));
        assert!(keys[1].verify(betas[2], 1000, &peer));
    }
}
