//! Which key a host had the last time (trust on first use): whoever a user names by an address alone is remembered by the key
//! that answered there, and has to prove the same one from then on. As `known_hosts` of ssh.
//!
//! The file is text, one line each, `[ISD-AS,host]:port KEY`, with remarks behind `#`. It is read anew for every question, changed
//! under a lock and replaced as a whole, so that programs may share it and none ever sees half of it. A line that makes no
//! sense is an error, for what it guarded would be open otherwise.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anabranch_paths::Endpoint;

use crate::NodeId;

/// Hosts remembered; the one that was met first goes, as its line is the uppermost.
pub const HOSTS_MAX: usize = 4096;
/// Bytes of the file that are read: twice what so many lines take.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// What stands on top of a new file.
const HEADING: &str =
    "# Keys that hosts had when they were first met by these addresses. `anabranch keys forget ADDR` drops one.\n";

/// A line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownKey {
    /// Counted from 1.
    pub line: usize,
    /// Where it answers.
    pub address: Endpoint,
    /// What it proved.
    pub key: NodeId,
}

/// Why a file of known keys is of no use.
#[derive(Debug, thiserror::Error)]
pub enum KnownKeysError {
    /// The system's word.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// Somebody wrote something else into it.
    #[error(
        "{}, line {line}: `{text}` is not `ADDR KEY`, such as `[ISD-AS,host]:port KEY`: mend the line or remove it",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What stands there, made fit to print.
        text: String,
    },
    /// It is no list of keys.
    #[error("{} has more than {FILE_BYTES_MAX} bytes: it is no list of keys; name another with --known-keys", .0.display())]
    TooLong(PathBuf),
    /// Somebody else answers there now.
    #[error(transparent)]
    Changed(Box<ChangedKey>),
}

/// Somebody has another key than the one that is remembered.
#[derive(Debug, thiserror::Error)]
#[error(
    "{endpoint} has the key {found}, and {}, line {line}, remembers {known}: somebody may be in between. Ask its owner; if its key is a new \
     one, `anabranch keys forget {endpoint}` and come again", path.display()
)]
pub struct ChangedKey {
    /// Whom we tried to reach.
    pub endpoint: Endpoint,
    /// What it proved.
    pub found: NodeId,
    /// The file.
    pub path: PathBuf,
    /// Where in it, counted from 1.
    pub line: usize,
    /// What it had to prove.
    pub known: NodeId,
}

/// Reads such a file; what makes no sense is answered by its line's number.
pub fn parse(text: &str) -> Result<Vec<KnownKey>, usize> {
    let mut known: Vec<KnownKey> = Vec::new();
    let mut addresses = HashSet::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default();
        let mut words = text.split_ascii_whitespace();
        let (address, key) = match (words.next(), words.next(), words.next()) {
            (None, ..) => continue,
            (Some(address), Some(key), None) => (address, key),
            _ => return Err(line),
        };
        let address = address.parse::<Endpoint>().map_err(|_| line)?;
        let key = key.parse().map_err(|_| line)?;
        // A second word on one host would be one too many.
        if !addresses.insert(address) || known.len() == HOSTS_MAX {
            return Err(line);
        }
        known.push(KnownKey { line, address, key });
    }
    Ok(known)
}

/// A line of the file, with its end.
pub fn format(address: Endpoint, key: NodeId) -> String {
    format!("{address} {key}\n")
}

/// A file of known keys, which need not be there yet.
#[derive(Clone, Debug)]
pub struct KnownKeys {
    path: PathBuf,
}

impl KnownKeys {
    /// The file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it can be used, so that somebody is told while that helps.
    pub fn check(&self) -> Result<(), KnownKeysError> {
        self.list()?;
        self.lock().map(|_| ())
    }

    /// All of them, the one met first in front.
    pub fn list(&self) -> Result<Vec<KnownKey>, KnownKeysError> {
        self.read().map(|(_, known)| known)
    }

    /// The key that `address` has to prove, if it was met before.
    pub fn find(&self, address: Endpoint) -> Result<Option<KnownKey>, KnownKeysError> {
        Ok(self.list()?.into_iter().find(|known| known.address == address))
    }

    /// `address` proved `key`. Remembers it where it is new; answers whether it is.
    ///
    /// # Errors
    /// It had another one.
    pub fn meet(&self, address: Endpoint, key: NodeId) -> Result<bool, KnownKeysError> {
        if let Some(known) = self.find(address)? {
            return self.compare(known, key).map(|()| false);
        }
        let _lock = self.lock()?;
        // Somebody else may have met it just now.
        let (mut text, known) = self.read()?;
        if let Some(known) = known.iter().find(|known| known.address == address) {
            return self.compare(*known, key).map(|()| false);
        }
        if text.is_empty() {
            text.push_str(HEADING);
        }
        if known.len() >= HOSTS_MAX {
            let oldest: HashSet<usize> = known[..=known.len() - HOSTS_MAX].iter().map(|known| known.line).collect();
            text = without(&text, &oldest);
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format(address, key));
        self.replace(&text).map(|()| true)
    }

    /// Forgets `address`; answers what it was known by.
    pub fn forget(&self, address: Endpoint) -> Result<Option<KnownKey>, KnownKeysError> {
        if self.find(address)?.is_none() {
            return Ok(None);
        }
        let _lock = self.lock()?;
        let (text, known) = self.read()?;
        let Some(known) = known.into_iter().find(|known| known.address == address) else { return Ok(None) };
        self.replace(&without(&text, &HashSet::from([known.line])))?;
        Ok(Some(known))
    }

    fn compare(&self, known: KnownKey, found: NodeId) -> Result<(), KnownKeysError> {
        if known.key == found {
            return Ok(());
        }
        let KnownKey { line, address: endpoint, key: known } = known;
        let changed = ChangedKey { endpoint, found, path: self.path.clone(), line, known };
        Err(KnownKeysError::Changed(Box::new(changed)))
    }

    fn read(&self) -> Result<(String, Vec<KnownKey>), KnownKeysError> {
        let mut bytes = Vec::new();
        let read = File::open(&self.path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((String::new(), Vec::new())),
            Err(source) => return Err(self.io(source)),
            Ok(_) if bytes.len() as u64 > FILE_BYTES_MAX => return Err(KnownKeysError::TooLong(self.path.clone())),
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match parse(&text) {
            Ok(known) => Ok((text, known)),
            Err(line) => {
                let wrong: String = text.lines().nth(line - 1).unwrap_or_default().chars().take(80).collect();
                let text = wrong.escape_debug().to_string();
                Err(KnownKeysError::Line { path: self.path.clone(), line, text })
            }
        }
    }

    /// Keeps other programs from changing the file for as long as what is answered lives.
    fn lock(&self) -> Result<File, KnownKeysError> {
        let open = || {
            if let Some(folder) = self.path.parent() {
                fs::create_dir_all(folder)?;
            }
            let lock = OpenOptions::new().create(true).truncate(false).write(true).open(self.beside(".lock"))?;
            lock.lock()?;
            Ok(lock)
        };
        open().map_err(|source| self.io(source))
    }

    /// To be called under the lock.
    fn replace(&self, text: &str) -> Result<(), KnownKeysError> {
        let new = self.beside(".new");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        };
        write().map_err(|source| {
            // What is half written is of no use.
            let _ = fs::remove_file(&new);
            self.io(source)
        })
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(ending);
        name.into()
    }

    fn io(&self, source: io::Error) -> KnownKeysError {
        KnownKeysError::Io { path: self.path.clone(), source }
    }
}

/// `text` without some of its lines, counted from 1.
fn without(text: &str, lines: &HashSet<usize>) -> String {
    let mut left = String::with_capacity(text.len());
    for (_, line) in (1..).zip(text.lines()).filter(|(number, _)| !lines.contains(number)) {
        let _ = writeln!(left, "{line}");
    }
    left
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Identity;

    fn address(port: u16) -> Endpoint {
        format!("[1-ff00:0:110,10.0.0.1]:{port}").parse().unwrap()
    }

    fn key() -> NodeId {
        Identity::ephemeral().unwrap().node_id()
    }

    #[test]
    fn who_was_met_is_known_by_its_key_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let keys = KnownKeys::new(dir.path().join("state/known-keys"));
        let (alice, bob) = (key(), key());
        assert!(keys.list().unwrap().is_empty());
        assert!(keys.meet(address(1), alice).unwrap());
        assert!(keys.meet(address(2), bob).unwrap());
        assert!(!keys.meet(address(1), alice).unwrap());
        let error = keys.meet(address(1), bob).unwrap_err();
        assert!(matches!(&error, KnownKeysError::Changed(changed) if changed.line == 2), "{error}");
        for word in
            ["known-keys, line 2", &alice.to_string(), &bob.to_string(), "keys forget [1-ff00:0:110,10.0.0.1]:1"]
        {
            assert!(error.to_string().contains(word), "{error}");
        }
        assert_eq!(keys.forget(address(1)).unwrap().unwrap().key, alice);
        assert!(keys.forget(address(1)).unwrap().is_none());
        assert!(keys.meet(address(1), bob).unwrap());
        assert_eq!(
            keys.list().unwrap().iter().map(|known| known.address).collect::<Vec<_>>(),
            [address(2), address(1)]
        );
    }

    #[test]
    fn what_people_write_stays_and_what_makes_no_sense_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("known-keys");
        fs::write(&path, format!("# mine\n\n{} {} # the lab\n# end", address(1), key())).unwrap();
        let keys = KnownKeys::new(&path);
        assert!(keys.meet(address(2), key()).unwrap());
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# mine\n\n") && text.contains("# the lab\n# end\n["), "{text}");
        fs::write(&path, format!("{text}nonsense\x1b\n")).unwrap();
        let error = keys.meet(address(1), key()).unwrap_err().to_string();
        assert!(error.contains("line 6: `nonsense\\u{1b}`"), "{error}");
        fs::write(&path, vec![b'#'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(matches!(keys.list(), Err(KnownKeysError::TooLong(_))));
        fs::write(&path, vec![b'#'; FILE_BYTES_MAX as usize]).unwrap();
        assert!(keys.list().unwrap().is_empty());
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let keys = KnownKeys::new(dir.path().join("known-keys"));
        let same = key();
        let full: String = (1..=HOSTS_MAX as u16).map(|port| format(address(port), same)).collect();
        fs::write(keys.path(), &full).unwrap();
        assert_eq!(keys.list().unwrap().len(), HOSTS_MAX);
        assert!(keys.meet(address(60_000), same).unwrap());
        let list = keys.list().unwrap();
        assert_eq!(
            (list.len(), list[0].address, list[HOSTS_MAX - 1].address),
            (HOSTS_MAX, address(2), address(60_000))
        );
        assert_eq!(parse(&format!("{full}{}", format(address(60_000), same))), Err(HOSTS_MAX + 1));
    }

    #[test]
    fn programs_that_meet_hosts_at_once_lose_none() {
        let dir = tempfile::tempdir().unwrap();
        let keys = KnownKeys::new(dir.path().join("known-keys"));
        let same = key();
        std::thread::scope(|scope| {
            for thread in 0..4u16 {
                let keys = keys.clone();
                scope.spawn(move || {
                    for port in 1..=25 {
                        keys.meet(address(100 * (thread + 1) + port), same).unwrap();
                        keys.meet(address(port), same).unwrap();
                    }
                });
            }
        });
        assert_eq!(keys.list().unwrap().len(), 125);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_by_its_line(text in "(\\[1-ff00:0:110,10\\.0\\.0\\.[12]\\]:[0-9]{1,6}|192\\.0\\.2\\.[12]:[0-9]|[a-z2-7]{52}|#|\\PC| |\n){0,40}") {
            match parse(&text) {
                Ok(known) => {
                    let again: String = known.iter().map(|known| format(known.address, known.key)).collect();
                    let pairs = |list: &[KnownKey]| list.iter().map(|known| (known.address, known.key)).collect::<Vec<_>>();
                    prop_assert_eq!(pairs(&parse(&again).unwrap()), pairs(&known));
                }
                Err(line) => prop_assert!((1..=text.lines().count()).contains(&line)),
            }
        }
    }
}
