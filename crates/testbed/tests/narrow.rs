//! A path that swallows long packets and says nothing of it: transfers go on with shorter ones.

use std::process::Command;
use std::time::Duration;

use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::Process;
use anabranch_testbed::{Result, data};

const LIMIT: Duration = Duration::from_secs(120);
const LEN: u64 = 3 << 20;
/// What the hosts' own devices take.
const MTU: u32 = 1500;

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

    fn new(mtu_behind: u32) -> Self {
        let [from, router, to] = [(); 3].map(|()| must(Namespace::new()));
        for (host, link, mtu) in [(&from, 1, MTU), (&to, 2, mtu_behind)] {
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
fn start(host: &Namespace, words: &[&str]) -> Process {
    let mut command: Command = must(anabranch::command(Some(host)));
    must(Process::spawn("anabranch", command.args(words).arg("--json")))
}

fn ticket(process: &mut Process) -> String {
    let (event, _) = must(process.wait_event("ticket", LIMIT));
    event["ticket"].as_str().unwrap().to_owned()
}

/// A bulk transfer.
fn send(receiver_calls: bool) {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    let hosts = Hosts::new(1400);
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| -> String { folder.path().join(name).to_str().unwrap().to_owned() };
    let (content, out, from_key, to_key) = (&place("content"), &place("out"), &place("sender"), &place("receiver"));
    must(data::make_file(content.as_ref(), LEN, 7));
    let (mut sending, mut receiving) = if receiver_calls {
        let listen = format!("{}:7000", Hosts::FROM);
        let mut sending = start(&hosts.from, &["send", content, "--listen", &listen, "--key", from_key]);
        let ticket = ticket(&mut sending);
        (sending, start(&hosts.to, &["receive", &ticket, "-o", out, "--key", to_key]))
    } else {
        let listen = format!("{}:7000", Hosts::TO);
        let mut receiving = start(&hosts.to, &["receive", "--listen", &listen, "-o", out, "--key", to_key]);
        let ticket = ticket(&mut receiving);
        (start(&hosts.from, &["send", content, "--to", &ticket, "--key", from_key]), receiving)
    };
    must(receiving.wait_success(LIMIT));
    must(sending.wait_success(LIMIT));
    assert!(std::fs::read(content).unwrap() == std::fs::read(place("out/content")).unwrap());
}

#[test]
fn a_receiver_that_calls_gets_shorter_packets() {
    send(true);
}

#[test]
fn a_sender_that_calls_sends_shorter_packets() {
    send(false);
}

/// A stream over a link that takes a chunk with a few digests beside it, of contents that need more of them than fit, and of one that needs
/// so many that they never go beside a chunk.
#[test]
fn a_viewer_gets_digests_ahead_of_their_chunks() {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    let hosts = Hosts::new(1280);
    for (at, (len, flags)) in [(65_000, &[][..]), (LEN, &[]), (65_000, &["--secure"])].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| -> String { folder.path().join(name).to_str().unwrap().to_owned() };
        let (content, out, key) = (&place("content"), &place("out"), &place("key"));
        must(data::make_file(content.as_ref(), len, 7));
        let listen = format!("{}:{}", Hosts::FROM, 7000 + at);
        let words = [&["share", "--ppspp", content, "--listen", &listen, "--key", key], flags].concat();
        let mut sharing = start(&hosts.from, &words);
        let (started, _) = must(sharing.wait_event("started", LIMIT));
        let link = started["link"].as_str().unwrap();
        let mut getting = start(&hosts.to, &["get", link, "--peer", &listen, "-o", out]);
        must(getting.wait_success(LIMIT));
        assert!(std::fs::read(content).unwrap() == std::fs::read(place("out/content")).unwrap(), "{len} {flags:?}");
    }
}

#[test]
fn a_viewer_of_a_live_stream_does_too() {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    let hosts = Hosts::new(1280);
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| -> String { folder.path().join(name).to_str().unwrap().to_owned() };
    let (content, out, listen) = (&place("content"), &place("out"), format!("{}:7000", Hosts::FROM));
    must(data::make_file(content.as_ref(), LEN, 7));
    let words = ["live", "--input", content, "--rate", "400K", "--listen", &listen, "--key", &place("key")];
    let mut source = start(&hosts.from, &words);
    let (started, _) = must(source.wait_event("started", LIMIT));
    let link = started["link"].as_str().unwrap();
    let mut viewer = start(&hosts.to, &["get", link, "--peer", &listen, "-o", out]);
    let (recorded, _) = must(viewer.wait_event("recorded", LIMIT));
    assert_eq!(recorded["skipped_chunks"], 0, "{recorded}");
    must(viewer.wait_success(LIMIT));
    let (film, out) = (std::fs::read(content).unwrap(), std::fs::read(out).unwrap());
    assert!(out.len() > film.len() / 2 && film.ends_with(&out), "{} bytes are not the stream's rest", out.len());
    must(source.wait_success(LIMIT));
}
