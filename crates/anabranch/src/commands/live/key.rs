//! The key that a live stream is signed with. Its public half is in the link: whoever has the file can go on with the stream.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anabranch_ppspp::pem;
use anabranch_ppspp::sign::{SignatureAlgorithm, SigningKey};

use crate::exit::{Code, Failure};

/// An RSA key of 8192 bits has less.
const FILE_LEN_MAX: u64 = 16 << 10;
/// Whoever else may read or write a file.
const OTHERS: u32 = 0o077;
const NEW: SignatureAlgorithm = SignatureAlgorithm::EcdsaP256Sha256;

/// The key in the file at `path`, made there where there is none; without a path, one for this run.
pub(super) fn open(path: Option<&Path>) -> Result<SigningKey, Failure> {
    let document = path.map_or_else(new, document)?;
    SigningKey::from_any_pkcs8(&document).map_err(|_| no_randomness())
}

/// The PKCS#8 document of the key in the file at `path`, made there where there is none.
pub(crate) fn document(path: &Path) -> Result<Vec<u8>, Failure> {
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
            file.write_all(pem::encode(&document).as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            return Ok(document);
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
    let document = std::str::from_utf8(&text).ok().and_then(pem::decode);
    document.filter(|document| SigningKey::from_any_pkcs8(document).is_ok()).ok_or_else(|| {
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

#[cfg(test)]
mod tests {
    use super::*;

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
