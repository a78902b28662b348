//! `send` and `receive` past the kernel, through the front door.

use std::fs;
use std::path::Path;
use std::process::Command;

use anabranch_testbed::net::Namespace;
use anabranch_testbed::peers::anabranch::program;
use anabranch_testbed::process::Process;

use super::{PATIENCE, must, pair, run};

const LEN: usize = 24 << 20;

/// The program in a namespace and a folder of its own.
fn anabranch(inside: &Namespace, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = inside.command(must(program()));
    command.current_dir(folder).env("HOME", folder).env("XDG_STATE_HOME", folder.join("state")).args(arguments);
    command
}

/// Sends a file by ticket from one namespace to the other; answers what each end said of its interfaces.
fn send(to: &Namespace, from: &Namespace, receive: &[&str], send: &[&str]) -> [serde_json::Value; 2] {
    let dir = must(tempfile::tempdir());
    let content: Vec<u8> = (0..LEN as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    must(fs::write(dir.path().join("content"), &content));
    let receive = [&["receive", "-o", "in", "--json"], receive].concat();
    let mut receiver = must(Process::spawn("receive", &mut anabranch(to, dir.path(), &receive)));
    let ticket = must(receiver.wait_event("ticket", PATIENCE)).0;
    let received_by = must(receiver.wait_event("io", PATIENCE)).0;
    let ticket = ticket["ticket"].as_str().expect("a ticket").to_owned();
    let send = [&["send", "content", "--to", &ticket, "--json"], send].concat();
    let mut sender = must(Process::spawn("send", &mut anabranch(from, dir.path(), &send)));
    let sent_by = must(sender.wait_event("io", PATIENCE)).0;
    must(sender.wait_success(PATIENCE * 2));
    must(receiver.wait_success(PATIENCE));
    assert!(must(fs::read(dir.path().join("in/content"))) == content, "what came is not what was sent");
    [received_by, sent_by]
}

#[test]
fn a_transfer_goes_past_the_kernel_where_it_is_told_to() {
    let Some([a, b]) = pair(1500, 1) else { return };
    let xdp = ["--io", "xdp", "--interface", "link0"];
    for said in send(&b, &a, &xdp, &xdp) {
        assert!(said["interface"] == "link0" && said["io"] == "xdp", "{said}");
        assert!(said["mode"] == "copy" || said["mode"] == "generic", "{said}");
    }
    // Nothing is left on the interface.
    assert!(!run(&a, "ip", &["link", "show", "link0"]).contains("xdp"));
}

#[test]
fn where_it_gains_nothing_the_systems_sockets_are_used_and_the_reason_is_told() {
    let Some([a, b]) = pair(1500, 1) else { return };
    for said in send(&b, &a, &["--io", "auto"], &["--io=auto"]) {
        assert!(said["interface"] == "link0" && said["io"] == "udp", "{said}");
        assert!(said["reason"].as_str().is_some_and(|reason| reason.contains("link0")), "{said}");
    }
}

#[test]
fn an_interface_that_does_not_do_ends_the_command_with_the_reason() {
    let Some([a, _b]) = pair(1500, 1) else { return };
    let dir = must(tempfile::tempdir());
    for (arguments, needles) in [
        (&["--io", "xdp", "--interface", "lo"][..], &["lo", "AF_XDP"][..]),
        (&["--io", "xdp", "--interface", "link0", "--interface", "lo"], &["lo"]),
    ] {
        let mut command = anabranch(&a, dir.path(), &[&["receive"], arguments].concat());
        let output = must(command.output());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(6), "{arguments:?}: {said}");
        assert!(needles.iter().all(|needle| said.contains(needle)), "{said}");
    }
}
