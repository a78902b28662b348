//! The key that a live stream is signed with. Its public half is in the link: whoever has the file can go on with the stream.
//!
//! The file is a PKCS#8 document in PEM (RFC 7468), as `openssl genpkey` writes them.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anabranch_ppspp::sign::{SignatureAlgorithm, SigningKey};

use crate::exit::{Code, Failure};

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";
const LINE_LEN: usize = 64;
/// An RSA key of 8192 bits has less.
const FILE_LEN_MAX: u64 = 16 << 10;
/// Whoever else may read or write a file.
const OTHERS: u32 = 0o077;
const NEW: SignatureAlgorithm = SignatureAlgorithm::EcdsaP256Sha256;
/// Those that a file may have a key for.
const KNOWN: [SignatureAlgorithm; 3] =
    [SignatureAlgorithm::EcdsaP256Sha256, SignatureAlgorithm::EcdsaP384Sha384, SignatureAlgorithm::RsaSha256];

/// The key in the file at `path`, made there where there is none; without a path, one for this run.
pub(super) fn open(path: Option<&Path>) -> Result<SigningKey, Failure> {
    let Some(path) = path else { return parse(&new()?).ok_or_else(no_randomness) };
    let shown = path.display();
    let failed = |error: std::io::Error| {
        Failure::input(format!("cannot use the key file {shown}: {error}; name another with --key"))
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let document = new()?;
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
            file.write_all(encode(&document).as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            return parse(&document).ok_or_else(no_randomness);
        }
        Err(error) => return Err(failed(error)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_file() && metadata.mode() & OTHERS != 0 {
        let message =
            format!("others can read the key file {shown}: run `chmod 600 {shown}`, or remove it to get a new key");
        return Err(Failure::input(message));
    }
    let mut text = Vec::new();
    file.take(FILE_LEN_MAX).read_to_end(&mut text).map_err(failed)?;
    let document = std::str::from_utf8(&text).ok().and_then(decode);
    document.and_then(|document| parse(&document)).ok_or_else(|| {
        Failure::input(format!(
            "{shown} has no key to sign a stream with, which is a PKCS#8 document in PEM of ECDSA with P-256 or P-384, or of RSA: \
             name another file with --key, one that is not there to get a new key"
        ))
    })
}

fn new() -> Result<Vec<u8>, Failure> {
    SigningKey::generate(NEW).ok_or_else(no_randomness)
}

fn no_randomness() -> Failure {
    Failure::new(Code::Failed, "the system has no randomness to make a key of")
}

fn parse(document: &[u8]) -> Option<SigningKey> {
    KNOWN.iter().find_map(|algorithm| SigningKey::from_pkcs8(*algorithm, document).ok())
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 in lines (RFC 4648 §4), between the marks.
fn encode(document: &[u8]) -> String {
    let mut text = Vec::new();
    for group in document.chunks(3) {
        let bits = group.iter().enumerate().fold(0u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        let letter = |at: usize| ALPHABET[(bits >> (18 - 6 * at)) as usize & 63];
        text.extend((0..4).map(|at| if at <= group.len() { letter(at) } else { b'=' }));
    }
    let mut out = format!("{BEGIN}\n");
    for line in text.chunks(LINE_LEN) {
        out.extend(line.iter().map(|byte| char::from(*byte)));
        out.push('\n');
    }
    out + END + "\n"
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once(BEGIN)?;
    let (body, _) = rest.split_once(END)?;
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for letter in body.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=') {
        bits = bits << 6 | ALPHABET.iter().position(|known| *known == letter)? as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for len in 0..200u8 {
            let document: Vec<u8> = (0..len).map(|byte| byte.wrapping_mul(83)).collect();
            assert_eq!(decode(&encode(&document)), Some(document));
        }
        assert_eq!(encode(b"Man"), format!("{BEGIN}\nTWFu\n{END}\n"));
        assert_eq!(encode(b"Ma"), format!("{BEGIN}\nTWE=\n{END}\n"));
        for bad in ["", BEGIN, &format!("{BEGIN}\n?\n{END}")] {
            assert_eq!(decode(bad), None);
        }
    }

    proptest::proptest! {
        /// Whatever a key file holds, it is a key or none.
        #[test]
        fn any_file_is_read(text in ".*", document in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            decode(&text);
            decode(&format!("{BEGIN}{text}{END}"));
            parse(&document);
            proptest::prop_assert_eq!(decode(&encode(&document)), Some(document));
        }
    }

    #[test]
    fn a_key_is_made_once_and_others_may_not_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = open(Some(&path)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(open(Some(&path)).unwrap().public(), key.public());
        assert_ne!(open(None).unwrap().public(), key.public());
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert!(open(Some(&path)).err().unwrap().to_string().contains("chmod 600"));
        for bad in ["", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            let path = dir.path().join("bad");
            let _ = std::fs::remove_file(&path);
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .unwrap()
                .write_all(bad.as_bytes())
                .unwrap();
            assert!(open(Some(&path)).err().unwrap().to_string().contains("bad has no key"), "{bad}");
        }
    }
}
