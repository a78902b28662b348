//! `receive` onto a disk that takes writes and then does not keep them.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::bulk::{elsewhere, key_of};
use common::{Running, finish, noise};
use serde_json::Value;

/// Stands between a program and the C library: the first sync of `big.bin` fails, having dropped some of what was written, as Linux does
/// with pages that a disk did not take.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static int failed;
int fsync(int fd) {
    char link[64], path[4096], zeros[65536] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    path[len < 0 ? 0 : len] = 0;
    if (strstr(path, "/big.bin") && !__sync_lock_test_and_set(&failed, 1)) {
        int file = open(path, O_WRONLY);
        pwrite(file, zeros, sizeof zeros, 100000);
        close(file);
        errno = EIO;
        return -1;
    }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
"#;

/// The shim, built; `None` without a C compiler.
fn shim(dir: &Path) -> Option<PathBuf> {
    let (source, library) = (dir.join("shim.c"), dir.join("shim.so"));
    fs::write(&source, SHIM).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl").status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler here");
        return None;
    }
    Some(library)
}

#[test]
fn what_a_failed_sync_dropped_is_not_signed_for_and_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(shim) = shim(dir.path()) else { return };
    let content = noise(3_000_000, 1);
    fs::write(dir.path().join("big.bin"), &content).unwrap();
    let key = key_of(dir.path(), "a");
    let mut receiver = elsewhere(dir.path(), "r");
    // It writes where the program has nothing to write, so there is no sandbox around it.
    receiver.env("LD_PRELOAD", &shim).env("ANABRANCH_SANDBOX", "off");
    let arguments = ["receive", "--listen", "127.0.0.1:0", "--json", "-o", "in", "--allow", &key];
    let mut receiver = Running::start(receiver.args(arguments));
    let address = receiver.event("listening")["address"].as_str().unwrap().to_owned();
    let send = || finish(elsewhere(dir.path(), "a").args(["send", "big.bin", "--to", &address, "--json"]));
    let (code, _, stderr) = send();
    assert!(code == 6 && stderr.contains("cannot write what it receives"), "{code} {stderr}");
    let error = receiver.event("error");
    let message = error["message"].as_str().unwrap();
    assert!(error["kind"] == "storage" && message.contains("the disk did not take it"), "{message}");
    // The same command has all of it come again, as none of it is known to be there.
    let (code, out, stderr) = send();
    assert_eq!(code, 0, "{stderr}");
    let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let started = events.iter().find(|event| event["event"] == "started").unwrap();
    assert_eq!(started["bytes_kept"], 0, "{started}");
    receiver.event("finished");
    assert!(fs::read(dir.path().join("in/big.bin")).unwrap() == content);
}
