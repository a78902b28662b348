//! A folder goes from `send` to `receive` through the front door: names, modes, times, holes, links, and what is there already.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

fn anabranch(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    command.env("XDG_STATE_HOME", home.join("state")).current_dir(home).stdin(Stdio::null());
    command
}

/// A sender, the ticket that it printed, and its output, which stays open.
fn send(home: &Path) -> (Child, String, BufReader<ChildStdout>) {
    let mut command = anabranch(home);
    command.args(["send", "photos", "--listen", "127.0.0.1:0", "--give-up", "60s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program");
    let mut ticket = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("its output"));
    out.read_line(&mut ticket).expect("a ticket");
    (child, ticket.trim().to_owned(), out)
}

fn receive(home: &Path, ticket: &str, flags: &[&str]) -> Output {
    anabranch(home).args(["receive", ticket, "-o", "in"]).args(flags).output().expect("the program")
}

#[test]
fn a_folder_arrives_as_it_was_and_replaces_nothing() {
    let home = tempfile::tempdir().expect("a folder");
    let photos = home.path().join("photos");
    fs::create_dir_all(photos.join("empty")).expect("folders");
    let odd = photos.join(OsStr::from_bytes(b"caf\xe9"));
    fs::write(&odd, vec![7; 2_000_000]).expect("a file");
    symlink("empty", photos.join("link")).expect("a link");
    let hole = File::create(photos.join("hole")).expect("a file");
    hole.set_len(50 << 20).expect("a length");
    hole.write_all_at(b"x", 30 << 20).expect("a byte");
    let time = SystemTime::UNIX_EPOCH + Duration::new(631_152_000, 123_456_789);
    File::open(&odd).expect("there").set_times(FileTimes::new().set_modified(time)).expect("a time");
    fs::set_permissions(&odd, Permissions::from_mode(0o440)).expect("a mode");

    let (mut sender, ticket, _out) = send(home.path());
    let received = receive(home.path(), &ticket, &[]);
    assert!(received.status.success(), "{}", String::from_utf8_lossy(&received.stderr));
    assert!(sender.wait().expect("its end").success());
    let got = home.path().join("in/photos");
    let meta = got.join(OsStr::from_bytes(b"caf\xe9")).metadata().expect("there");
    assert_eq!((meta.len(), meta.mode() & 0o7777, meta.modified().expect("a time")), (2_000_000, 0o440, time));
    assert!(fs::read(got.join(OsStr::from_bytes(b"caf\xe9"))).expect("bytes") == vec![7; 2_000_000]);
    assert_eq!(fs::read_link(got.join("link")).expect("a link"), Path::new("empty"));
    assert!(fs::read(got.join("hole")).expect("bytes") == fs::read(photos.join("hole")).expect("bytes"));
    assert!(got.join("empty").is_dir());
    assert_eq!(fs::read_dir(home.path().join("in")).expect("there").count(), 1, "no record is left");

    fs::write(got.join("hole"), "precious").expect("a file");
    let (mut sender, ticket, _out) = send(home.path());
    let refused = receive(home.path(), &ticket, &[]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(5) && told.contains("--force"), "{told}");
    assert_eq!(fs::read(got.join("hole")).expect("bytes"), b"precious");
    sender.kill().and_then(|()| sender.wait()).expect("its end");
    let (mut sender, ticket, _out) = send(home.path());
    let forced = receive(home.path(), &ticket, &["--force"]);
    assert!(forced.status.success(), "{}", String::from_utf8_lossy(&forced.stderr));
    assert!(sender.wait().expect("its end").success());
    assert_eq!(fs::metadata(got.join("hole")).expect("there").len(), 50 << 20);
}
