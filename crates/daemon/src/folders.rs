//! Which folders the API may name: the default one, those that are allowed beside it, and what is below them.
//!
//! A path is judged by where it leads once links are followed, as far as it exists; what is missing of it is made below that, and has
//! no `..`. Whoever may change links inside the allowed folders may already write there.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// Longest path that is looked at: what Linux takes.
const PATH_BYTES_MAX: usize = 4096;

/// The allowed folders.
#[derive(Clone, Debug)]
pub(crate) struct Folders {
    roots: Vec<PathBuf>,
}

/// Why a path is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FolderError {
    /// It is no place by itself.
    #[error("`{0}` is not the whole path of a place: begin with `/`, and leave out `..`")]
    NotWhole(String),
    /// It is somewhere else.
    #[error("`{0}` is outside of the folders that the daemon may use: start it with --allow-dir to allow others")]
    Outside(String),
    /// It does not exist.
    #[error("cannot look at `{0}`: {1}")]
    Unreadable(String, String),
}

impl Folders {
    /// These folders, which must exist.
    pub(crate) fn new<'a>(roots: impl IntoIterator<Item = &'a Path>) -> std::io::Result<Self> {
        let roots = roots.into_iter().map(Path::canonicalize).collect::<Result<_, _>>()?;
        Ok(Self { roots })
    }

    /// A folder that contents may go to, with links followed. It may be missing so far.
    pub(crate) fn admit(&self, path: &Path) -> Result<PathBuf, FolderError> {
        let shown = path.to_string_lossy().into_owned();
        let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        let bytes = path.as_os_str().as_encoded_bytes();
        if !path.is_absolute() || !is_plain || bytes.len() > PATH_BYTES_MAX || bytes.contains(&0) {
            return Err(FolderError::NotWhole(shown));
        }
        let mut there = path;
        let resolved = loop {
            match there.canonicalize() {
                Ok(resolved) => break resolved,
                // A link that leads nowhere is there, and what is made below it would be elsewhere.
                Err(error) if error.kind() == ErrorKind::NotFound && there.symlink_metadata().is_err() => {}
                Err(error) => return Err(FolderError::Unreadable(shown, error.to_string())),
            }
            match there.parent() {
                Some(parent) => there = parent,
                None => return Err(FolderError::Outside(shown)),
            }
        };
        let missing = path.strip_prefix(there).unwrap_or(Path::new(""));
        let whole = if missing.as_os_str().is_empty() { resolved } else { resolved.join(missing) };
        if self.roots.iter().any(|root| whole.starts_with(root)) { Ok(whole) } else { Err(FolderError::Outside(shown)) }
    }

    /// Something that is there and is to be shared.
    pub(crate) fn admit_existing(&self, path: &Path) -> Result<PathBuf, FolderError> {
        let admitted = self.admit(path)?;
        match admitted.symlink_metadata() {
            Ok(_) if self.roots.contains(&admitted) && admitted.parent().is_none() => {
                Err(FolderError::Outside(path.to_string_lossy().into_owned()))
            }
            Ok(_) => Ok(admitted),
            Err(error) => Err(FolderError::Unreadable(path.to_string_lossy().into_owned(), error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_leads_into_the_folders_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let [inside, outside] = ["in", "out"].map(|name| base.join(name));
        std::fs::create_dir_all(inside.join("a")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        symlink(inside.join("a"), outside.join("back")).unwrap();
        symlink(base.join("nowhere"), inside.join("dangling")).unwrap();
        let folders = Folders::new([inside.as_path()]).unwrap();
        for good in ["in", "in/a", "in/new", "in/a/new/deep", "out/back", "out/back/new"] {
            let admitted = folders.admit(&base.join(good)).unwrap();
            assert!(admitted.starts_with(&inside), "{good}");
        }
        for bad in [
            "out",
            "in/link",
            "in/link/new",
            "in/dangling",
            "in/dangling/x",
            "in/../out",
            "in/a/../../out",
            "inside",
            ".",
        ] {
            assert!(folders.admit(&base.join(bad)).is_err(), "{bad}");
        }
        for bad in ["", "in", "./in", "/", "/etc", "/etc/passwd", "/proc/self/root/etc", "\0"] {
            assert!(folders.admit(Path::new(bad)).is_err(), "{bad}");
        }
        assert!(folders.admit(&inside.join("x".repeat(5000))).is_err());
        assert!(folders.admit_existing(&inside.join("a")).is_ok());
        assert!(folders.admit_existing(&inside.join("new")).is_err());
    }
}
