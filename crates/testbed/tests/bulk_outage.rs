//! A bulk transfer whose every path is gone for longer than a connection lives, and ones whose ends get another address: they wait, say
//! so, and go on.

use std::process::Command;
use std::time::Duration;

use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::Process;
use anabranch_testbed::{Result, data};

const LIMIT: Duration = Duration::from_secs(120);
/// At the limit of [`RATE`] it takes half a minute.
const LEN: u64 = 30 << 20;
const RATE: &str = "1M";
/// What goes before anything happens.
const BEFORE: Duration = Duration::from_secs(4);
/// Longer than a connection of which nothing is heard lives: it is made anew behind it.
const OUTAGE: Duration = Duration::from_secs(45);
const DEVICE: &str = "wire";
const NETWORK: &str = "10.11.0.0/24";
const FROM: &str = "10.11.0.1";
const TO: &str = "10.11.0.2";
/// What an end's address is later.
const LATER: &str = "10.11.0.3";

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// A transfer between two hosts on one wire.
struct Transfer {
    from: Namespace,
    to: Namespace,
    folder: tempfile::TempDir,
    sending: Process,
    receiving: Process,
}

impl Transfer {
    /// One that has begun.
    fn begun() -> Self {
        let [from, to] = [(); 2].map(|()| must(Namespace::new()));
        must(from.link(DEVICE, &to));
        must(from.device_up(DEVICE, &format!("{FROM}/24"), NETWORK, 1500));
        must(to.device_up(DEVICE, &format!("{TO}/24"), NETWORK, 1500));
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        must(data::make_file(&place("content"), LEN, 11));
        let mut receive = must(anabranch::command(Some(&to)));
        receive.args(["receive", "--json", "--listen", "0.0.0.0:7000"]);
        receive.arg("-o").arg(place("out")).arg("--key").arg(place("receiver"));
        let mut receiving = must(Process::spawn("receive", &mut receive));
        let (event, _) = must(receiving.wait_event("ticket", LIMIT));
        let mut send: Command = must(anabranch::command(Some(&from)));
        send.args(["send", "--json", "--limit-up", RATE, "--to", event["ticket"].as_str().unwrap()]);
        send.arg(place("content")).arg("--key").arg(place("sender"));
        let mut sending = must(Process::spawn("send", &mut send));
        must(sending.wait_event("started", LIMIT));
        std::thread::sleep(BEFORE);
        assert!(!sending.has_ended() && !receiving.has_ended(), "{}", sending.log());
        Self { from, to, folder, sending, receiving }
    }

    /// The sender says that it goes on, and both ends end with the content. How many bytes of it came over the last connection.
    fn arrives(mut self) -> Option<u64> {
        must(self.sending.wait_event("resumed", LIMIT));
        let (finished, _) = must(self.sending.wait_event("finished", LIMIT));
        let ended = self.receiving.wait_success(LIMIT).and_then(|_| self.sending.wait_success(LIMIT));
        ended.unwrap_or_else(|error| panic!("{error}\n{}\n{}", self.sending.log(), self.receiving.log()));
        let read = |name: &str| std::fs::read(self.folder.path().join(name)).unwrap();
        assert!(read("content") == read("out/content"));
        finished["bytes_moved"].as_u64()
    }
}

#[test]
fn all_paths_may_be_down_for_longer_than_a_connection_lives() {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    let mut transfer = Transfer::begun();
    must(transfer.from.set_device(DEVICE, false));
    must(transfer.sending.wait_event("waiting", LIMIT));
    must(transfer.receiving.wait_event("waiting", LIMIT));
    std::thread::sleep(OUTAGE);
    assert!(!transfer.sending.has_ended() && !transfer.receiving.has_ended(), "they give up too early");
    must(transfer.from.set_device(DEVICE, true));
    transfer.arrives();
}

/// The one who called, or the one who listens, moves to another address, and takes the connection along: nothing goes twice.
fn moves(is_caller: bool) {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    let mut transfer = Transfer::begun();
    let (namespace, address) = if is_caller { (&transfer.from, FROM) } else { (&transfer.to, TO) };
    let mut remove = namespace.command("ip");
    must(Process::run("ip", remove.args(["addr", "del", &format!("{address}/24"), "dev", DEVICE]), LIMIT));
    must(namespace.add_address(DEVICE, &format!("{LATER}/24")));
    must(transfer.sending.wait_event("waiting", LIMIT));
    assert_eq!(transfer.arrives(), Some(LEN), "not all came over one connection");
}

#[test]
fn a_sender_may_get_another_address() {
    moves(true);
}

#[test]
fn a_receiver_that_listens_may_get_another_address() {
    moves(false);
}
