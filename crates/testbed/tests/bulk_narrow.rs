//! A path that swallows long packets and says nothing of it: a bulk transfer goes on with shorter ones, whichever end called.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::Process;
use anabranch_testbed::{Result, data};

const LIMIT: Duration = Duration::from_secs(120);
const LEN: u64 = 3 << 20;
/// What the hosts' own devices take, and what the link behind the router does.
const MTU: u32 = 1500;
const MTU_BEHIND: u32 = 1400;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Two hosts, and between them a router that drops what is longer than its second link takes.
struct Hosts {
    from: Namespace,
    _router: Namespace,
    to: Namespace,
}

impl Hosts {
    const FROM: &str = "10.8.1.1";
    const TO: &str = "10.8.2.1";

    fn new() -> Self {
        let [from, router, to] = [(); 3].map(|()| must(Namespace::new()));
        for (host, link, mtu) in [(&from, 1, MTU), (&to, 2, MTU_BEHIND)] {
            let (name, network) = (format!("link{link}"), format!("10.8.{link}.0/24"));
            must(host.link(&name, &router));
            must(host.device_up(&name, &format!("10.8.{link}.1/24"), &network, MTU));
            must(router.device_up(&name, &format!("10.8.{link}.2/24"), &network, mtu));
            must(host.route("10.8.0.0/16", &name, Some(&format!("10.8.{link}.2")), 1));
        }
        must(router.set("net.ipv4.ip_forward", "1"));
        Self { from, _router: router, to }
    }
}

/// One end; `words` are its command's.
fn start(host: &Namespace, key: &Path, words: &[&str]) -> Process {
    let mut command: Command = must(anabranch::command(Some(host)));
    command.args(words).args(["--json", "--key"]).arg(key);
    must(Process::spawn("anabranch", &mut command))
}

fn ticket(process: &mut Process) -> String {
    let (event, _) = must(process.wait_event("ticket", LIMIT));
    event["ticket"].as_str().unwrap().to_owned()
}

fn transfer(receiver_calls: bool) {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    let hosts = Hosts::new();
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| -> PathBuf { folder.path().join(name) };
    must(data::make_file(&place("content"), LEN, 7));
    let (content, out) = (place("content"), place("out"));
    let (content, out) = (content.to_str().unwrap(), out.to_str().unwrap());
    let (mut sending, mut receiving) = if receiver_calls {
        let listen = format!("{}:7000", Hosts::FROM);
        let mut sending = start(&hosts.from, &place("sender"), &["send", content, "--listen", &listen]);
        let ticket = ticket(&mut sending);
        (sending, start(&hosts.to, &place("receiver"), &["receive", &ticket, "-o", out]))
    } else {
        let listen = format!("{}:7000", Hosts::TO);
        let mut receiving = start(&hosts.to, &place("receiver"), &["receive", "--listen", &listen, "-o", out]);
        let ticket = ticket(&mut receiving);
        (start(&hosts.from, &place("sender"), &["send", content, "--to", &ticket]), receiving)
    };
    must(receiving.wait_success(LIMIT));
    must(sending.wait_success(LIMIT));
    assert_eq!(std::fs::read(content).unwrap(), std::fs::read(place("out/content")).unwrap());
}

#[test]
fn a_receiver_that_calls_gets_shorter_packets() {
    transfer(true);
}

#[test]
fn a_sender_that_calls_sends_shorter_packets() {
    transfer(false);
}
