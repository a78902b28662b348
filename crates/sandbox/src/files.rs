//! Which files may be reached: Landlock.
//!
//! Before its second version (Linux 5.19) nothing could be renamed from one folder to another, which writing contents needs: such
//! kernels count as having none.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::{Bounds, SandboxError};

/// The newest version that is asked for: the newest whose every right the tests have met.
const NEWEST: ABI = ABI::V6;

/// Whether the bounds hold.
pub(crate) fn close(bounds: &Bounds) -> Result<bool, SandboxError> {
    restrict(bounds).map_err(|error| SandboxError::Failed(error.to_string()))
}

fn restrict(bounds: &Bounds) -> Result<bool, RulesetError> {
    let mut scope: BitFlags<Scope> = Scope::Signal.into();
    // A supervisor may be told of by an abstract name.
    if !bounds.calls.unix_sockets {
        scope |= Scope::AbstractUnixSocket;
    }
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::SoftRequirement)
        .handle_access(AccessFs::Refer)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(scope)?
        .create()?;
    for (paths, rights) in [(&bounds.read, to_read()), (&bounds.write, to_write(bounds))] {
        for path in paths {
            if let Some(rule) = rule(path, rights) {
                // Files of the kernel's are made anew when memory is short, and a rule is about the one that it met: that stays.
                if path.starts_with("/proc") {
                    std::mem::forget(PathFd::new(path));
                }
                // What has no place in the tree of folders, such as a pipe under `/dev/stdout`, takes no rule and is under none.
                let added = (&mut rules).add_rule(rule).map(drop);
                debug_assert!(added.is_ok() || !path.is_dir(), "{}: {added:?}", path.display());
            }
        }
    }
    let status = rules.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// `None` where there is nothing at `path`.
fn rule(path: &Path, rights: BitFlags<AccessFs>) -> Option<PathBeneath<PathFd>> {
    let rights = if path.is_dir() { rights } else { rights & AccessFs::from_file(NEWEST) };
    PathFd::new(path).ok().map(|folder| PathBeneath::new(folder, rights))
}

/// Nothing is ever executed: a process that needs that has one [beside](crate::Beside) it.
fn to_read() -> BitFlags<AccessFs> {
    AccessFs::from_read(NEWEST) & !AccessFs::Execute
}

fn to_write(bounds: &Bounds) -> BitFlags<AccessFs> {
    let never = AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeFifo | AccessFs::IoctlDev;
    let all = AccessFs::from_all(NEWEST) & !never;
    if bounds.calls.unix_sockets { all } else { all & !AccessFs::MakeSock }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::io::ErrorKind;

    use crate::{Bounds, Calls, Wish, close};

    /// What holds for a thread ends with it.
    fn shut_in(bounds: Bounds, work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(move || {
            if close(&bounds, Wish::Auto).unwrap().files {
                work();
            } else {
                println!("this kernel has no Landlock");
            }
        });
        thread.join().unwrap();
    }

    fn is_denied<T>(done: std::io::Result<T>) -> bool {
        done.is_err_and(|error| matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::CrossesDevices))
    }

    #[test]
    fn nothing_outside_is_read_written_made_moved_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        for folder in ["in/deep", "shared", "out"] {
            fs::create_dir_all(root.join(folder)).unwrap();
            fs::write(root.join(folder).join("file"), "there").unwrap();
        }
        fs::write(root.join("log"), "").unwrap();
        std::os::unix::fs::symlink(root.join("out"), root.join("in/way-out")).unwrap();
        let bounds = Bounds {
            read: vec![root.join("shared"), root.join("nowhere")],
            write: vec![root.join("in"), root.join("log")],
            calls: Calls::default(),
        };
        shut_in(bounds, move || {
            // Inside, all goes on as ever.
            fs::write(root.join("in/new"), "new").unwrap();
            fs::create_dir(root.join("in/folder")).unwrap();
            fs::rename(root.join("in/new"), root.join("in/folder/new")).unwrap();
            fs::hard_link(root.join("in/folder/new"), root.join("in/deep/link")).unwrap();
            OpenOptions::new().append(true).open(root.join("in/deep/file")).unwrap().set_len(2).unwrap();
            fs::remove_dir_all(root.join("in/folder")).unwrap();
            std::os::unix::fs::symlink("nowhere", root.join("in/link")).unwrap();
            File::create(root.join("log")).unwrap();
            assert_eq!(fs::read(root.join("shared/file")).unwrap(), b"there");
            assert_eq!(fs::read_dir(root.join("shared")).unwrap().count(), 1);
            // What is shared is read alone, and outside nothing is reached, by whatever way.
            for folder in ["shared", "out", "in/way-out", "in/../out"] {
                let file = root.join(folder).join("file");
                assert!(is_denied(File::create(&file)) && is_denied(OpenOptions::new().append(true).open(&file)));
                assert!(is_denied(File::create_new(root.join(folder).join("new"))), "{folder}");
                assert!(is_denied(fs::remove_file(&file)) && is_denied(fs::rename(&file, root.join("in/stolen"))));
                assert!(is_denied(fs::hard_link(&file, root.join("in/stolen"))), "{folder}");
                assert!(is_denied(fs::rename(root.join("in/deep/file"), root.join(folder).join("planted"))));
                assert!(is_denied(fs::create_dir(root.join(folder).join("new"))), "{folder}");
            }
            for folder in ["out", "in/way-out", "."] {
                assert!(is_denied(fs::read_dir(root.join(folder))), "{folder}");
            }
            assert!(is_denied(File::open(root.join("out/file"))) && is_denied(File::open("/etc/hostname")));
            // Threads that it starts are in there with it.
            let file = root.join("out/file");
            assert!(std::thread::spawn(move || is_denied(File::open(file))).join().unwrap());
        });
    }

    #[test]
    fn without_a_wish_nothing_changes() {
        let held = close(&Bounds::default(), Wish::Off).unwrap();
        assert!(!held.files && !held.calls && File::open("/proc/self/status").is_ok());
    }
}
