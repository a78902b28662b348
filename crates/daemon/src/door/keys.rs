//! Who may do what: tokens in files of their owner's, and the cookies that are given for them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_content::hash::sha256;
use anabranch_content::hex;
use ring::rand::{SecureRandom, SystemRandom};

use crate::store::replace;

/// Random bytes of a token or cookie.
const SECRET_LEN: usize = 32;
/// Longest token that is read from a file: users may write their own.
const TOKEN_BYTES_MAX: u64 = 1024;
/// Shortest token that is taken from a file: what cannot be guessed by trying.
const TOKEN_LEN_MIN: usize = 20;
/// Cookies at once; the one that was not used for longest goes.
const COOKIES_MAX: usize = 64;
/// A cookie that was not used for so long is worth nothing.
const COOKIE_AGE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// The files of tokens.
pub(crate) const TOKEN_FILE: &str = "token";
const READ_TOKEN_FILE: &str = "token-read";

/// What one may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    /// Look.
    Read,
    /// Everything.
    Full,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Its file cannot be used.
    #[error("cannot use {path}: {source}; make it readable for you alone, or delete it, and a new token is made", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others may read it.
    #[error("others may read {path}: delete it, and a new token is made, or `chmod 600` it if nobody has seen it", path = .0.display())]
    Open(PathBuf),
    /// It can be guessed.
    #[error("the token in {path} has fewer than {TOKEN_LEN_MIN} letters: delete the file, and a new one is made", path = .0.display())]
    Short(PathBuf),
    /// What is kept of the password makes no sense.
    #[error("{path} is damaged: delete it, and set the password again with `anabranch password`", path = .0.display())]
    Password(PathBuf),
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

/// The tokens, and the cookies that stand for them.
pub(crate) struct Keys {
    full: String,
    read: String,
    cookies: RefCell<BTreeMap<String, (Access, Instant)>>,
}

impl Keys {
    /// Reads the tokens in a folder, and makes those that are missing.
    pub(crate) fn open(dir: &Path) -> Result<Self, KeyError> {
        let [full, read] = [TOKEN_FILE, READ_TOKEN_FILE].map(|name| token(&dir.join(name)));
        Ok(Self { full: full?, read: read?, cookies: RefCell::default() })
    }

    /// The token for everything.
    pub(crate) fn full(&self) -> &str {
        &self.full
    }

    /// What whoever has this token may do.
    pub(crate) fn of_token(&self, token: &str) -> Option<Access> {
        // Both are compared whatever comes of the first.
        let (full, read) = (is_same(token, &self.full), is_same(token, &self.read));
        if full { Some(Access::Full) } else { read.then_some(Access::Read) }
    }

    /// A cookie for somebody who showed a token.
    pub(crate) fn cookie(&self, access: Access, now: Instant) -> Result<String, KeyError> {
        let cookie = secret()?;
        let mut cookies = self.cookies.borrow_mut();
        if cookies.len() >= COOKIES_MAX {
            let oldest = cookies.iter().min_by_key(|(_, (_, used))| *used).map(|(cookie, _)| cookie.clone());
            oldest.and_then(|oldest| cookies.remove(&oldest));
        }
        cookies.insert(fingerprint(&cookie), (access, now));
        Ok(cookie)
    }

    /// What whoever has this cookie may do.
    pub(crate) fn of_cookie(&self, cookie: &str, now: Instant) -> Option<Access> {
        let mut cookies = self.cookies.borrow_mut();
        // Looked up by its hash: how long that takes tells nothing of the cookie.
        let (access, used) = cookies.get_mut(&fingerprint(cookie))?;
        if now.saturating_duration_since(*used) > COOKIE_AGE_MAX {
            return None;
        }
        *used = now;
        Some(*access)
    }

    /// A cookie is worth nothing any more.
    pub(crate) fn forget(&self, cookie: &str) {
        self.cookies.borrow_mut().remove(&fingerprint(cookie));
    }
}

fn fingerprint(secret: &str) -> String {
    hex::encode(&sha256(secret.as_bytes()))
}

/// Whether two secrets are the same. How long that takes depends on neither.
pub(super) fn is_same(given: &str, secret: &str) -> bool {
    let (given, secret) = (sha256(given.as_bytes()), sha256(secret.as_bytes()));
    let differs = given.iter().zip(secret).fold(0, |differs, (given, secret)| differs | (given ^ secret));
    std::hint::black_box(differs) == 0
}

/// Letters that nobody guesses.
pub(crate) fn secret() -> Result<String, KeyError> {
    let mut bytes = [0; SECRET_LEN];
    SystemRandom::new().fill(&mut bytes).map_err(|_| KeyError::Random)?;
    Ok(hex::encode(&bytes))
}

fn token(path: &Path) -> Result<String, KeyError> {
    let failed = |source| KeyError::File { path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let token = secret()?;
            replace(path, format!("{token}\n").as_bytes()).map_err(failed)?;
            return Ok(token);
        }
        Err(error) => return Err(failed(error)),
    };
    if file.metadata().map_err(failed)?.mode() & 0o077 != 0 {
        return Err(KeyError::Open(path.to_owned()));
    }
    let mut text = String::new();
    file.take(TOKEN_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    let token = text.trim().to_owned();
    if token.len() < TOKEN_LEN_MIN { Err(KeyError::Short(path.to_owned())) } else { Ok(token) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn tokens_are_made_once_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path()).unwrap();
        let path = dir.path().join(TOKEN_FILE);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let again = Keys::open(dir.path()).unwrap();
        assert_eq!(again.of_token(keys.full()), Some(Access::Full));
        let read = std::fs::read_to_string(dir.path().join(READ_TOKEN_FILE)).unwrap();
        assert_eq!(again.of_token(read.trim()), Some(Access::Read));
        for wrong in ["", "x", &keys.full()[1..], &format!("{}0", keys.full())] {
            assert_eq!(again.of_token(wrong), None);
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Keys::open(dir.path()), Err(KeyError::Open(_))));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "password\n").unwrap();
        assert!(matches!(Keys::open(dir.path()), Err(KeyError::Short(_))));
    }

    #[test]
    fn cookies_are_bounded_age_and_can_be_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let (keys, now) = (Keys::open(dir.path()).unwrap(), Instant::now());
        let first = keys.cookie(Access::Read, now).unwrap();
        assert_eq!(keys.of_cookie(&first, now + COOKIE_AGE_MAX), Some(Access::Read));
        assert_eq!(keys.of_cookie(&first, now + COOKIE_AGE_MAX * 2), Some(Access::Read), "it was used");
        assert_eq!(keys.of_cookie(&first, now + COOKIE_AGE_MAX * 4), None);
        let second = keys.cookie(Access::Full, now).unwrap();
        keys.forget(&second);
        assert_eq!(keys.of_cookie(&second, now), None);
        for _ in 0..2 * COOKIES_MAX {
            keys.cookie(Access::Full, now).unwrap();
        }
        assert_eq!(keys.cookies.borrow().len(), COOKIES_MAX);
    }
}
