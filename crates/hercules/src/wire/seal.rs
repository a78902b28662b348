//! Heads of packets, and the keys that seal them.
//!
//! A data packet is a head of [`DATA_HEAD_LEN`] bytes and one encrypted chunk; a control packet a head of
//! [`CONTROL_HEAD_LEN`] bytes and an encrypted body. The tag stands in the head, so that a receiver opens a chunk from where
//! the packet lies straight into its place; the chunk index is authenticated with the head and not encrypted, for the same reason:
//! the place has to be known first.
//!
//! Packets share a socket with QUIC: their first byte is in the range that RFC 9443 §4 leaves to nobody.
//!
//! Keys come of one secret a transfer, exported from the QUIC connection. Each direction, kind and path has keys of its own,
//! and a new one every 2^22 packets, half of what RFC 9001 §6.6 allows AES-GCM.

use ring::hkdf::{self, HKDF_SHA256, Prk};

use super::aead::{Forged, Key};
use crate::window::PacketWindow;

/// Bytes of the secret that the driver exports: label `EXPORTER-anabranch-bulk`, no context.
pub const SECRET_LEN: usize = 32;
/// The label of the secret that the driver exports.
pub const SECRET_LABEL: &[u8] = b"EXPORTER-anabranch-bulk";
/// Bytes of an authentication tag.
pub const TAG_LEN: usize = 16;
/// Kind, path, transfer and packet number.
const PREFIX_LEN: usize = 12;
/// Head of a data packet: prefix, chunk index, tag.
pub const DATA_HEAD_LEN: usize = PREFIX_LEN + 6 + TAG_LEN;
/// Head of a control packet: prefix, tag.
pub const CONTROL_HEAD_LEN: usize = PREFIX_LEN + TAG_LEN;
/// One more than the highest packet number.
pub const PACKETS_MAX: u64 = 1 << 48;
/// Packets sealed with one key, as a power of two.
const EPOCH_BITS: u32 = 22;

/// What a packet is: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A chunk, from the sender.
    Data = 8,
    /// Control, from the sender.
    FromSender = 9,
    /// Control, from the receiver.
    FromReceiver = 10,
}

/// Why a packet was left. Nothing else happens because of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// Not of this protocol, or shorter than its head.
    NotOurs,
    /// Of another transfer.
    OtherTransfer,
    /// Of a path that was not added.
    UnknownPath,
    /// Its number was seen, or is older than the window.
    Replayed,
    /// It does not authenticate, or it is numbered further ahead than any key is made for.
    Forged,
}

/// What a head says before anything is authenticated. A hint where to look, nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// Index of the path.
    pub path: u8,
    /// Which transfer.
    pub transfer: u32,
    /// Number of the packet on this path, of this kind.
    pub number: u64,
    /// Which chunk; 0 for control.
    pub chunk: u64,
}

impl Head {
    /// Reads the first bytes of a packet.
    pub fn peek(packet: &[u8]) -> Result<Self, Dropped> {
        let kind = match packet.first() {
            Some(8) => Kind::Data,
            Some(9) => Kind::FromSender,
            Some(10) => Kind::FromReceiver,
            _ => return Err(Dropped::NotOurs),
        };
        let len = if kind == Kind::Data { DATA_HEAD_LEN } else { CONTROL_HEAD_LEN };
        if packet.len() < len {
            return Err(Dropped::NotOurs);
        }
        let number = |at: usize, len: usize| packet[at..at + len].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let chunk = if kind == Kind::Data { number(PREFIX_LEN, 6) } else { 0 };
        Ok(Self { kind, path: packet[1], transfer: number(2, 4) as u32, number: number(6, 6), chunk })
    }

    fn associated(&self) -> ([u8; PREFIX_LEN + 6], usize) {
        let mut bytes = [0; PREFIX_LEN + 6];
        bytes[0] = self.kind as u8;
        bytes[1] = self.path;
        bytes[2..6].copy_from_slice(&self.transfer.to_be_bytes());
        bytes[6..12].copy_from_slice(&self.number.to_be_bytes()[2..]);
        bytes[12..].copy_from_slice(&self.chunk.to_be_bytes()[2..]);
        (bytes, if self.kind == Kind::Data { PREFIX_LEN + 6 } else { PREFIX_LEN })
    }
}

/// What two ends of a transfer share: its id and its secret.
#[derive(Clone)]
pub struct Secret {
    transfer: u32,
    prk: std::sync::Arc<Prk>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret(transfer {})", self.transfer)
    }
}

impl Secret {
    /// Of what the driver exported.
    pub fn new(transfer: u32, secret: &[u8; SECRET_LEN]) -> Self {
        Self { transfer, prk: std::sync::Arc::new(Prk::new_less_safe(HKDF_SHA256, secret)) }
    }

    /// The transfer's id.
    pub fn transfer(&self) -> u32 {
        self.transfer
    }

    fn epoch_key(&self, kind: Kind, path: u8, epoch: u32) -> EpochKey {
        let transfer = self.transfer.to_be_bytes();
        let info = [&b"anabranch bulk v1"[..], &transfer, &[kind as u8, path], &epoch.to_be_bytes()];
        let mut material = [0; 28];
        // RFC 5869 §2.3 allows 255 hashes' length; 28 bytes are less, and an AES-128 key is 16.
        let filled = self.prk.expand(&info, MaterialLen).and_then(|okm| okm.fill(&mut material));
        filled.expect("the length is right");
        let (mut key, mut iv) = ([0; 16], [0; 12]);
        key.copy_from_slice(&material[..16]);
        iv.copy_from_slice(&material[16..]);
        EpochKey { epoch, key: Key::new(&key), iv }
    }
}

struct MaterialLen;

impl hkdf::KeyType for MaterialLen {
    fn len(&self) -> usize {
        28
    }
}

#[derive(Clone)]
struct EpochKey {
    epoch: u32,
    key: Key,
    iv: [u8; 12],
}

impl EpochKey {
    /// RFC 9001 §5.3: the packet number over the end of the IV.
    fn nonce(&self, number: u64) -> [u8; 12] {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        nonce
    }
}

fn epoch_of(number: u64) -> u32 {
    // Below 2^26: numbers have 48 bits.
    (number >> EPOCH_BITS) as u32
}

/// Seals packets of one kind for one path. Allocates nothing.
#[derive(Clone)]
pub struct Sealer {
    secret: Secret,
    kind: Kind,
    path: u8,
    key: EpochKey,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealer({:?}, path {})", self.kind, self.path)
    }
}

impl Sealer {
    /// For packets of `kind` over the path `path`.
    pub fn new(secret: &Secret, kind: Kind, path: u8) -> Self {
        Self { secret: secret.clone(), kind, path, key: secret.epoch_key(kind, path, 0) }
    }

    /// Encrypts `chunk` in place and writes the head of its packet. A number is used once: the state machine hands them out.
    pub fn seal_chunk(&mut self, number: u64, index: u64, chunk: &mut [u8], head: &mut [u8; DATA_HEAD_LEN]) {
        debug_assert_eq!(self.kind, Kind::Data);
        self.seal(number, index, head, |key, nonce, aad| key.seal_in_place(nonce, aad, chunk));
    }

    /// The same from where the chunk lies into its packet, behind the head. Both are of one length.
    pub fn seal_chunk_into(
        &mut self,
        number: u64,
        index: u64,
        chunk: &[u8],
        head: &mut [u8; DATA_HEAD_LEN],
        sealed: &mut [u8],
    ) {
        debug_assert_eq!(self.kind, Kind::Data);
        self.seal(number, index, head, |key, nonce, aad| key.seal(nonce, aad, chunk, sealed));
    }

    /// Encrypts `body` in place and writes the head of its packet.
    pub fn seal_control(&mut self, number: u64, body: &mut [u8], head: &mut [u8; CONTROL_HEAD_LEN]) {
        debug_assert_ne!(self.kind, Kind::Data);
        self.seal(number, 0, head, |key, nonce, aad| key.seal_in_place(nonce, aad, body));
    }

    fn seal(
        &mut self,
        number: u64,
        chunk: u64,
        head: &mut [u8],
        encrypt: impl FnOnce(&Key, &[u8; 12], &[u8]) -> [u8; TAG_LEN],
    ) {
        debug_assert!(number < PACKETS_MAX && chunk < PACKETS_MAX);
        let epoch = epoch_of(number);
        if self.key.epoch != epoch {
            self.key = self.secret.epoch_key(self.kind, self.path, epoch);
        }
        let fields = Head { kind: self.kind, path: self.path, transfer: self.secret.transfer, number, chunk };
        let (bytes, len) = fields.associated();
        let tag = encrypt(&self.key.key, &self.key.nonce(number), &bytes[..len]);
        head[..len].copy_from_slice(&bytes[..len]);
        head[len..].copy_from_slice(&tag);
    }
}

/// Opens packets of one kind from one path, each once. Allocates nothing but a key every 2^22 packets that authenticate.
pub struct Opener {
    secret: Secret,
    kind: Kind,
    path: u8,
    /// The one before, the current and the next: a forged number makes nobody compute one.
    keys: [EpochKey; 3],
    window: PacketWindow,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opener({:?}, path {}, {:?})", self.kind, self.path, self.window)
    }
}

impl Opener {
    /// For packets of `kind` over the path `path`.
    pub fn new(secret: &Secret, kind: Kind, path: u8) -> Self {
        let key = |epoch| secret.epoch_key(kind, path, epoch);
        // Before the first there is none: the first stands in its place.
        Self { secret: secret.clone(), kind, path, keys: [key(0), key(0), key(1)], window: PacketWindow::default() }
    }

    /// Authenticates a packet and decrypts `body` in place; with an error `body` may hold anything, and nothing else changed.
    pub fn open(&mut self, head: &[u8], body: &mut [u8]) -> Result<Head, Dropped> {
        self.open_with(head, |key, nonce, aad, tag| key.open_in_place(nonce, aad, tag, body))
    }

    /// The same from where the packet lies to where its chunk does. Both are of one length.
    pub fn open_into(&mut self, head: &[u8], sealed: &[u8], chunk: &mut [u8]) -> Result<Head, Dropped> {
        self.open_with(head, |key, nonce, aad, tag| key.open(nonce, aad, tag, sealed, chunk))
    }

    fn open_with(
        &mut self,
        head: &[u8],
        decrypt: impl FnOnce(&Key, &[u8; 12], &[u8], &[u8; TAG_LEN]) -> Result<(), Forged>,
    ) -> Result<Head, Dropped> {
        let fields = Head::peek(head)?;
        if fields.kind != self.kind {
            return Err(Dropped::NotOurs);
        }
        if fields.transfer != self.secret.transfer {
            return Err(Dropped::OtherTransfer);
        }
        if fields.path != self.path {
            return Err(Dropped::UnknownPath);
        }
        if !self.window.is_new(fields.number) {
            return Err(Dropped::Replayed);
        }
        let epoch = epoch_of(fields.number);
        let key = self.keys.iter().find(|key| key.epoch == epoch).ok_or(Dropped::Forged)?;
        let (bytes, len) = fields.associated();
        let tag = head.get(len..).and_then(|rest| rest.first_chunk()).ok_or(Dropped::NotOurs)?;
        decrypt(&key.key, &key.nonce(fields.number), &bytes[..len], tag).map_err(|Forged| Dropped::Forged)?;
        self.window.insert(fields.number);
        if epoch > self.keys[1].epoch {
            let next = self.secret.epoch_key(self.kind, self.path, epoch + 1);
            self.keys.rotate_left(1);
            self.keys[2] = next;
        }
        Ok(fields)
    }

    /// Which packets came.
    pub fn window(&self) -> &PacketWindow {
        &self.window
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret() -> Secret {
        Secret::new(7, &[3; SECRET_LEN])
    }

    fn sealed(number: u64, chunk: u64, body: &[u8]) -> ([u8; DATA_HEAD_LEN], Vec<u8>) {
        let (mut head, mut body) = ([0; DATA_HEAD_LEN], body.to_vec());
        Sealer::new(&secret(), Kind::Data, 2).seal_chunk(number, chunk, &mut body, &mut head);
        (head, body)
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_once_and_nothing_else_does(
            number in 0..2u64 << EPOCH_BITS, chunk in 0..PACKETS_MAX, body in prop::collection::vec(any::<u8>(), 0..80),
            flip in any::<prop::sample::Index>(),
        ) {
            let (head, mut bytes) = sealed(number, chunk, &body);
            let mut opener = Opener::new(&secret(), Kind::Data, 2);
            let (mut bad_head, mut bad) = (head, bytes.clone());
            let bit = flip.index((head.len() + bytes.len()) * 8);
            match bad_head.get_mut(bit / 8) {
                Some(byte) => *byte ^= 1 << (bit % 8),
                None => bad[bit / 8 - head.len()] ^= 1 << (bit % 8),
            }
            prop_assert!(opener.open(&bad_head, &mut bad).is_err());
            prop_assert_eq!(opener.window().next(), 0);
            let opened = opener.open(&head, &mut bytes).unwrap();
            prop_assert_eq!((opened.number, opened.chunk), (number, chunk));
            prop_assert_eq!(bytes, body.clone());
            let (head, mut bytes) = sealed(number, chunk, &body);
            prop_assert_eq!(opener.open(&head, &mut bytes), Err(Dropped::Replayed));
        }

        #[test]
        fn what_is_sealed_and_opened_into_another_place_is_the_same(
            number in 0..1u64 << EPOCH_BITS, chunk in 0..PACKETS_MAX, body in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let (mut head, mut bytes) = ([0; DATA_HEAD_LEN], vec![0; body.len()]);
            Sealer::new(&secret(), Kind::Data, 2).seal_chunk_into(number, chunk, &body, &mut head, &mut bytes);
            prop_assert_eq!((head, bytes.clone()), sealed(number, chunk, &body));
            let (mut opener, mut opened) = (Opener::new(&secret(), Kind::Data, 2), vec![0; body.len()]);
            prop_assert_eq!(opener.open_into(&head, &bytes, &mut opened).map(|head| head.chunk), Ok(chunk));
            prop_assert_eq!(opened, body);
        }

        #[test]
        fn any_bytes_are_dropped(head in prop::collection::vec(any::<u8>(), 0..60), mut body in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert!(Opener::new(&secret(), Kind::Data, 2).open(&head, &mut body).is_err());
        }
    }

    #[test]
    fn a_number_two_keys_ahead_is_left() {
        let (head, mut body) = sealed(2 << EPOCH_BITS, 1, b"far");
        let mut opener = Opener::new(&secret(), Kind::Data, 2);
        assert_eq!(opener.open(&head, &mut body), Err(Dropped::Forged));
        // Once the first came of the key before, it is not.
        let (first, mut bytes) = sealed(1 << EPOCH_BITS, 0, b"near");
        opener.open(&first, &mut bytes).unwrap();
        let (head, mut body) = sealed(2 << EPOCH_BITS, 1, b"far");
        assert_eq!(opener.open(&head, &mut body).map(|head| head.chunk), Ok(1));
        assert_eq!(body, b"far");
    }

    #[test]
    fn bytes_are_those_of_the_page() {
        // docs/bulk.md, "An example": what another implementation has to get.
        let (head, body) = sealed(1, 0x0102_0304_0506, b"chunk");
        let hex: String = head.iter().chain(&body).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "0802",
                "00000007",
                "000000000001",
                "010203040506",
                "11232f40867ec9e54b7d4c8cbdbe163a",
                "35bb52e6cc"
            )
        );
    }
}
