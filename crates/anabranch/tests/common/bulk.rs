//! Two ends of a bulk transfer on loopback.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Running, anabranch};

/// The program as another user or host would run it: with a key and a memory of its own.
pub(crate) fn elsewhere(dir: &Path, who: &str) -> Command {
    let mut command = anabranch(dir);
    command.env("XDG_STATE_HOME", dir.join(format!("state-{who}")));
    command
}

/// One that prints a ticket: the program, and the ticket.
pub(crate) fn with_ticket(command: &mut Command, arguments: &[&str]) -> (Running, String) {
    let mut running = Running::start(command.args(arguments).args(["--listen", "127.0.0.1:0", "--json"]));
    let ticket = running.event("ticket")["ticket"].as_str().unwrap().to_owned();
    (running, ticket)
}

/// A standing receiver that lets in `keys`: the program, and its address with its key.
pub(crate) fn standing(dir: &Path, who: &str, out: &str, keys: &[String]) -> (Running, String, String) {
    let allow = dir.join(format!("allow-{who}"));
    fs::write(&allow, keys.join("\n")).unwrap();
    let mut command = elsewhere(dir, who);
    command.args(["receive", "--listen", "127.0.0.1:0", "--json", "-o", out, "--allow", allow.to_str().unwrap()]);
    let mut running = Running::start(&mut command);
    let listening = running.event("listening");
    let field = |name: &str| listening[name].as_str().unwrap().to_owned();
    let (address, key) = (field("address"), field("key"));
    (running, address, key)
}

/// The key of somebody.
pub(crate) fn key_of(dir: &Path, who: &str) -> String {
    let (code, key, stderr) = super::finish(elsewhere(dir, who).args(["keys", "own"]));
    assert_eq!(code, 0, "{stderr}");
    key.trim().to_owned()
}

/// Whether two folders hold the same files, links and folders, with the same modes.
pub(crate) fn assert_same_tree(one: &Path, other: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let (a, b) = (fs::symlink_metadata(one).unwrap(), fs::symlink_metadata(other));
    let b = b.unwrap_or_else(|error| panic!("{}: {error}", other.display()));
    assert_eq!(a.file_type(), b.file_type(), "{}", other.display());
    if a.is_symlink() {
        assert_eq!(fs::read_link(one).unwrap(), fs::read_link(other).unwrap());
        return;
    }
    assert_eq!(a.permissions().mode() & 0o777, b.permissions().mode() & 0o777, "{}", other.display());
    assert_eq!(a.modified().unwrap(), b.modified().unwrap(), "{}", other.display());
    if a.is_file() {
        assert!(fs::read(one).unwrap() == fs::read(other).unwrap(), "{} differs", other.display());
        return;
    }
    let names = |folder: &Path| {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(one), names(other), "{}", other.display());
    for name in names(one) {
        assert_same_tree(&one.join(&name), &other.join(&name));
    }
}
