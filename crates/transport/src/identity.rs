//! Who a node is: an Ed25519 key, kept in a file or made for one run.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::SigningKey;

/// Bytes of an Ed25519 key, public or private (RFC 8032).
const KEY_LEN: usize = 32;
/// Bytes of a signature (RFC 8032).
const SIGNATURE_LEN: usize = 64;
/// What stands before the private key in PKCS #8 (RFC 8410 §7).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// What stands before the public key in a SubjectPublicKeyInfo (RFC 8410 §4).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// The first word of a key file; the key follows in hexadecimal.
const FILE_TAG: &str = "anabranch-key-v1";
/// No key file is longer; what is, is not one.
const FILE_LEN_MAX: u64 = 256;
/// Anybody but the owner may do something with a file of this mode.
const OTHERS: u32 = 0o077;
/// The alphabet of base32 (RFC 4648 §6), in lower case.
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Characters of a key in base32, unpadded.
const BASE32_LEN: usize = (KEY_LEN * 8).div_ceil(5);

/// The public key of a node: what others know it by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId([u8; KEY_LEN]);

/// Why a text is no node's key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no node key: write the {BASE32_LEN} letters and digits that the other node prints as its key")]
pub struct NodeIdError(pub String);

impl NodeId {
    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// The key of these bytes. Whether anybody can prove it is another question.
    pub fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// From a SubjectPublicKeyInfo as it stands in a handshake (RFC 7250); `None` if it holds no Ed25519 key.
    pub(crate) fn from_spki(spki: &[u8]) -> Option<Self> {
        Some(Self(spki.strip_prefix(&SPKI_PREFIX)?.try_into().ok()?))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(BASE32_LEN);
        let (mut bits, mut count) = (0u32, 0);
        for byte in self.0 {
            bits = bits << 8 | u32::from(byte);
            count += 8;
            while count >= 5 {
                count -= 5;
                text.push(char::from(BASE32[(bits >> count & 31) as usize]));
            }
        }
        text.push(char::from(BASE32[(bits << (5 - count) & 31) as usize]));
        f.pad(&text)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

impl FromStr for NodeId {
    type Err = NodeIdError;

    /// Reads base32 as it is printed, or hexadecimal.
    fn from_str(text: &str) -> Result<Self, NodeIdError> {
        let parsed = if text.len() == 2 * KEY_LEN { parse_hex(text) } else { parse_base32(text) };
        parsed.map(Self).ok_or_else(|| NodeIdError(text.to_owned()))
    }
}

fn parse_hex(text: &str) -> Option<[u8; KEY_LEN]> {
    let mut key = [0; KEY_LEN];
    if text.len() != 2 * KEY_LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(key)
}

fn parse_base32(text: &str) -> Option<[u8; KEY_LEN]> {
    if text.len() != BASE32_LEN {
        return None;
    }
    let mut key = Vec::with_capacity(KEY_LEN + 1);
    let (mut bits, mut count) = (0u32, 0);
    for letter in text.bytes() {
        let value = BASE32.iter().position(|known| *known == letter.to_ascii_lowercase())?;
        bits = bits << 5 | value as u32;
        count += 5;
        if count >= 8 {
            count -= 8;
            key.push((bits >> count) as u8);
        }
    }
    // One text for one key: the bits behind the last byte are zero.
    if bits & ((1 << count) - 1) != 0 { None } else { key.try_into().ok() }
}

/// Why a node has no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The key file cannot be read or made.
    #[error("cannot use the key file {}: {source}", path.display())]
    Io {
        /// The key file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others can read the key.
    #[error("others can read the key file {path}: run `chmod 600 {path}`, or remove it to get a new key", path = .0.display())]
    Exposed(PathBuf),
    /// The file holds something else.
    #[error("{} is not a key file of Anabranch: remove it to get a new key, or name another file", .0.display())]
    NotAKey(PathBuf),
    /// The system gave no randomness.
    #[error("the system has no randomness to make a key of")]
    NoRandomness,
}

/// A node's own key pair.
#[derive(Clone)]
pub struct Identity {
    key: Arc<dyn SigningKey>,
    node_id: NodeId,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.node_id)
    }
}

impl Identity {
    /// A key for this run alone.
    pub fn ephemeral() -> Result<Self, IdentityError> {
        Ok(Self::from_seed(random_seed()?))
    }

    /// The key in the file at `path`, made there (for its owner's eyes only) if there is no file yet.
    pub fn open(path: &Path) -> Result<Self, IdentityError> {
        let failed = |source| IdentityError::Io { path: path.to_owned(), source };
        loop {
            match File::open(path) {
                Ok(file) => return Self::read(path, file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
            let seed = random_seed()?;
            match create(path, &seed) {
                Ok(()) => return Ok(Self::from_seed(seed)),
                // Another process made it meanwhile: theirs is the key.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn read(path: &Path, file: File) -> Result<Self, IdentityError> {
        let failed = |source| IdentityError::Io { path: path.to_owned(), source };
        if file.metadata().map_err(failed)?.mode() & OTHERS != 0 {
            return Err(IdentityError::Exposed(path.to_owned()));
        }
        let mut text = String::new();
        match file.take(FILE_LEN_MAX).read_to_string(&mut text) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(IdentityError::NotAKey(path.to_owned()));
            }
            Err(error) => return Err(failed(error)),
        }
        let seed = text.trim().strip_prefix(FILE_TAG).and_then(|key| parse_hex(key.trim()));
        seed.map(Self::from_seed).ok_or_else(|| IdentityError::NotAKey(path.to_owned()))
    }

    fn from_seed(seed: [u8; KEY_LEN]) -> Self {
        let pkcs8 = PrivatePkcs8KeyDer::from([PKCS8_PREFIX.as_slice(), &seed].concat());
        // Every 32 bytes are an Ed25519 key, and the frame around them is constant.
        let key = rustls::crypto::ring::sign::any_eddsa_type(&pkcs8).expect("a key in its constant frame");
        let node_id = key.public_key().and_then(|spki| NodeId::from_spki(&spki)).expect("its public half");
        Self { key, node_id }
    }

    /// What others know this node by.
    pub fn node_id(&self) -> NodeId {
        self.node_id
    }

    /// A secret for `purpose` that follows from the key: the same in every run that has the key, unknown to everybody else.
    /// Ed25519 signatures are deterministic (RFC 8032), and nothing else is signed with this prefix.
    pub fn secret(&self, purpose: &str) -> [u8; KEY_LEN] {
        let message = [b"anabranch secret v1\0", purpose.as_bytes()].concat();
        let [secret, _] = *self.sign(&message).as_chunks().0 else { unreachable!("64 bytes are twice 32") };
        secret
    }

    /// The key's Ed25519 signature of `message`, which has to begin with words that no other protocol's messages begin with.
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        let signer = self.key.choose_scheme(&[rustls::SignatureScheme::ED25519]);
        let signature = signer.and_then(|signer| signer.sign(message).ok());
        let signature = signature.as_deref().and_then(|signature| signature.try_into().ok());
        signature.expect("an Ed25519 key signs every message with 64 bytes")
    }

    pub(crate) fn signing_key(&self) -> Arc<dyn SigningKey> {
        Arc::clone(&self.key)
    }
}

fn random_seed() -> Result<[u8; KEY_LEN], IdentityError> {
    let mut seed = [0; KEY_LEN];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut seed).map_err(|_| IdentityError::NoRandomness)?;
    Ok(seed)
}

/// Writes beside the place and links into it: nobody ever sees half a key, and an older key is never overwritten.
fn create(path: &Path, seed: &[u8; KEY_LEN]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let hex: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        writeln!(file, "{FILE_TAG} {hex}")?;
        file.sync_all()?;
        std::fs::hard_link(&beside, path)
    };
    let written = write();
    // Left behind it would be a second copy of the key; if it cannot be removed, the key itself still stands.
    let _ = std::fs::remove_file(&beside);
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_is_made_once_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let first = Identity::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Identity::open(&path).unwrap().node_id(), first.node_id());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_ne!(Identity::ephemeral().unwrap().node_id(), first.node_id());
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        Identity::open(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let error = Identity::open(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn what_is_no_key_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        for content in ["", "anabranch-key-v1", "anabranch-key-v1 abcd", "letter to a friend", "\u{0}\u{1}"] {
            let path = dir.path().join("key");
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            assert!(matches!(Identity::open(&path), Err(IdentityError::NotAKey(_))), "{content:?}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
    }

    #[test]
    fn node_ids_round_trip_in_base32_and_hex() {
        // RFC 8032 §7.1, test 1: the private key and its public half.
        let seed = parse_hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60").unwrap();
        let node_id = Identity::from_seed(seed).node_id();
        assert_eq!("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a".parse(), Ok(node_id));
        let text = node_id.to_string();
        assert_eq!(text.len(), BASE32_LEN);
        assert_eq!(text.parse(), Ok(node_id));
        assert_eq!(text.to_uppercase().parse(), Ok(node_id));
    }

    proptest::proptest! {
        #[test]
        fn every_key_has_one_text(key: [u8; KEY_LEN]) {
            let text = NodeId(key).to_string();
            proptest::prop_assert_eq!(text.parse::<NodeId>(), Ok(NodeId(key)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            if let Ok(node_id) = text.parse::<NodeId>() {
                proptest::prop_assert!(text.len() == 64 || node_id.to_string() == text.to_lowercase());
            }
        }
    }
}
