//! A name and a password, for programs and people who have no token. Of the password a hash is kept that takes time and memory to make
//! (Argon2id, RFC 9106), in a file of its owner's.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anabranch_content::hex;
use argon2::{Algorithm, Argon2, Block, Params, Version};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::keys::{KeyError, is_same};
use crate::store::replace;

/// The file of the password's hash.
const FILE: &str = "password";
/// What the file may have.
const FILE_BYTES_MAX: u64 = 4096;
/// Letters of a password.
const PASSWORD_LEN_MIN: usize = 8;
const PASSWORD_BYTES_MAX: usize = 1024;
/// Bytes of a name.
const USER_BYTES_MAX: usize = 128;
/// Bytes of the salt and of the hash.
const SALT_LEN: usize = 16;
const HASH_LEN: usize = 32;
/// Memory and passes of a new hash: the least that OWASP advises, tens of milliseconds.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
/// What a file may ask for: a damaged one does not take all the memory.
const MEMORY_KIB_MAX: u32 = 1 << 20;
const PASSES_MAX: u32 = 100;
/// Hashes that are made at once, each with its memory; others wait.
const HASHING_MAX: usize = 1;

/// Why a password is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PasswordError {
    /// It is too short to be one, or too long.
    #[error("the password must have at least {PASSWORD_LEN_MIN} letters, and at most {PASSWORD_BYTES_MAX} bytes")]
    Length,
    /// The name is none.
    #[error("the name must have 1 to {USER_BYTES_MAX} bytes in one line")]
    User,
    /// It cannot be kept.
    #[error("cannot keep the password: {0}; nothing was changed")]
    Io(#[from] io::Error),
    /// There are no random numbers, or no memory.
    #[error("cannot hash the password: {0}")]
    Hash(String),
}

/// The name and the hash.
#[derive(Clone)]
struct StoredHash {
    user: String,
    salt: [u8; SALT_LEN],
    hash: [u8; HASH_LEN],
    memory_kib: u32,
    passes: u32,
}

/// The password, if there is one.
pub(crate) struct Passwords {
    path: PathBuf,
    kept: RefCell<Option<Arc<StoredHash>>>,
    hashing: Semaphore,
}

impl Passwords {
    /// Reads what is kept in a folder.
    pub(crate) fn open(dir: &Path) -> Result<Self, KeyError> {
        let path = dir.join(FILE);
        let failed = |source| KeyError::File { path: path.clone(), source };
        let kept = match path.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
            Ok(there) if there.mode() & 0o077 != 0 => return Err(KeyError::Open(path)),
            Ok(there) if there.len() > FILE_BYTES_MAX => return Err(KeyError::Password(path)),
            Ok(_) => {
                let bytes = std::fs::read(&path).map_err(failed)?;
                let value = serde_json::from_slice(&bytes).unwrap_or_default();
                Some(Arc::new(read(&value).ok_or_else(|| KeyError::Password(path.clone()))?))
            }
        };
        Ok(Self { path, kept: RefCell::new(kept), hashing: Semaphore::new(HASHING_MAX) })
    }

    /// The name that goes with the password, where there is one.
    pub(crate) fn user(&self) -> Option<String> {
        self.kept.borrow().as_ref().map(|kept| kept.user.clone())
    }

    /// Whether these are the name and the password. Takes as long whatever the name is.
    pub(crate) async fn is_right(&self, user: &str, password: &str) -> bool {
        let Some(kept) = self.kept.borrow().clone() else { return false };
        if password.len() > PASSWORD_BYTES_MAX {
            return false;
        }
        let hash = self.hash(password, kept.salt, kept.memory_kib, kept.passes).await;
        let is_user = is_same(user, &kept.user);
        hash.is_ok_and(|hash| is_same(&hex::encode(&hash), &hex::encode(&kept.hash))) && is_user
    }

    /// Sets them. They are on the disk when this is done.
    pub(crate) async fn set(&self, user: &str, password: &str) -> Result<(), PasswordError> {
        if password.chars().count() < PASSWORD_LEN_MIN || password.len() > PASSWORD_BYTES_MAX {
            return Err(PasswordError::Length);
        }
        if user.is_empty() || user.len() > USER_BYTES_MAX || user.chars().any(char::is_control) {
            return Err(PasswordError::User);
        }
        let mut salt = [0; SALT_LEN];
        SystemRandom::new()
            .fill(&mut salt)
            .map_err(|_| PasswordError::Hash("the system gives no random numbers".into()))?;
        let hash = self.hash(password, salt, MEMORY_KIB, PASSES).await?;
        let kept = StoredHash { user: user.to_owned(), salt, hash, memory_kib: MEMORY_KIB, passes: PASSES };
        let (path, text) = (self.path.clone(), format!("{}\n", write(&kept)));
        let written = tokio::task::spawn_blocking(move || replace(&path, text.as_bytes()));
        written.await.map_err(|error| PasswordError::Hash(error.to_string()))??;
        *self.kept.borrow_mut() = Some(Arc::new(kept));
        Ok(())
    }

    /// Takes them away: nobody gets in by a password.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        *self.kept.borrow_mut() = None;
        Ok(())
    }

    async fn hash(
        &self,
        password: &str,
        salt: [u8; SALT_LEN],
        memory_kib: u32,
        passes: u32,
    ) -> Result<[u8; HASH_LEN], PasswordError> {
        let failed = |error: &dyn std::fmt::Display| PasswordError::Hash(error.to_string());
        let _place = self.hashing.acquire().await.map_err(|error| failed(&error))?;
        let password = password.to_owned();
        let hashed = tokio::task::spawn_blocking(move || {
            let params = Params::new(memory_kib, passes, 1, Some(HASH_LEN)).map_err(|error| error.to_string())?;
            let mut hash = [0; HASH_LEN];
            let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
            let mut memory = vec![Block::default(); argon2.params().block_count()];
            argon2
                .hash_password_into_with_memory(password.as_bytes(), &salt, &mut hash, &mut memory)
                .map_err(|error| error.to_string())?;
            Ok::<_, String>(hash)
        });
        hashed.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
    }
}

fn write(kept: &StoredHash) -> Value {
    json!({
        "user": kept.user,
        "algorithm": "argon2id",
        "memory_kib": kept.memory_kib,
        "passes": kept.passes,
        "salt": hex::encode(&kept.salt),
        "hash": hex::encode(&kept.hash),
    })
}

fn read(value: &Value) -> Option<StoredHash> {
    let number =
        |name: &str, most: u32| u32::try_from(value[name].as_u64()?).ok().filter(|number| (1..=most).contains(number));
    (value["algorithm"] == "argon2id").then_some(())?;
    Some(StoredHash {
        user: value["user"].as_str()?.to_owned(),
        salt: hex::decode(value["salt"].as_str()?)?,
        hash: hex::decode(value["hash"].as_str()?)?,
        memory_kib: number("memory_kib", MEMORY_KIB_MAX)?,
        passes: number("passes", PASSES_MAX)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_kept_as_a_hash_for_its_owner_alone_and_lets_in_who_has_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let passwords = Passwords::open(dir.path()).unwrap();
        runtime.block_on(async {
            assert!(!passwords.is_right("", "").await);
            for (user, password) in
                [("a", "short"), ("", "long enough"), ("a\n", "long enough"), ("a", &"x".repeat(1025))]
            {
                assert!(passwords.set(user, password).await.is_err(), "{user}");
            }
            passwords.set("me", "correct horse").await.unwrap();
            let again = Passwords::open(dir.path()).unwrap();
            for passwords in [&passwords, &again] {
                assert!(passwords.is_right("me", "correct horse").await);
                for (user, password) in [("me", "correct horsf"), ("you", "correct horse"), ("me", ""), ("", "")] {
                    assert!(!passwords.is_right(user, password).await);
                }
            }
            assert_eq!(again.user().as_deref(), Some("me"));
        });
        let path = dir.path().join(FILE);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert!(!std::fs::read_to_string(&path).unwrap().contains("horse"));
        passwords.remove().unwrap();
        assert!(passwords.user().is_none() && !path.exists());
        for bad in [
            "",
            "{}",
            "nonsense",
            r#"{"user":"a","algorithm":"md5","memory_kib":8,"passes":1,"salt":"00","hash":"00"}"#,
        ] {
            replace(&path, bad.as_bytes()).unwrap();
            assert!(matches!(Passwords::open(dir.path()), Err(KeyError::Password(_))), "{bad}");
        }
    }
}
