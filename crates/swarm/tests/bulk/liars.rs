//! A sender that lies, or says nothing, on the stream: it was invited, so what it says is taken for what it is.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anabranch_content::hash::sha256;
use anabranch_hercules::wire::message::{Message, Offer};
use anabranch_hercules::wire::ticket::{PROOF_LABEL, proof};
use anabranch_swarm::bulk::{self, Admission, Event, Options, Peers, Waiting};
use anabranch_transport::control::{ConnectionLease, ControlEndpoint, ControlStream, Inlet, RecvStream, SendStream};
use anabranch_transport::datagram::{Path, Place, Socket};
use anabranch_transport::{Identity, NodeId};

use crate::support::*;

const SECRET: [u8; 12] = [5; 12];

/// Who speaks QUIC as we do, and says what the test wants.
struct Liar {
    key: NodeId,
    endpoint: ControlEndpoint,
    over: Arc<AtomicBool>,
}

impl Liar {
    fn new() -> Self {
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let identity = Identity::ephemeral().unwrap();
        let (endpoint, inlet) = ControlEndpoint::new(&socket, &identity, b"anabranch-bulk/2").unwrap();
        let over = Arc::<AtomicBool>::default();
        let done = over.clone();
        std::thread::spawn(move || receive(&socket, &inlet, &done));
        Self { key: identity.node_id(), endpoint, over }
    }

    /// Calls, and says this; what is to come of it, for as long as that is kept.
    async fn say(&self, to: std::net::SocketAddr, sends: bool, messages: &[Message]) -> Said {
        let stream = self.call(to).await;
        let proof = Some(proof(&SECRET, &stream.export(PROOF_LABEL).unwrap()));
        let (mut send, hear, lease) = stream.split();
        let open = Message::Open { sends, chunk_len_max: 0, proof };
        send.write_all(&framed(&[&[open][..], messages].concat())).await.unwrap();
        Said { _send: send, hear, _lease: lease, bytes: Vec::new() }
    }

    async fn call(&self, to: std::net::SocketAddr) -> ControlStream {
        self.endpoint.connect(&Path::ip(to, None), None).await.unwrap()
    }
}

/// A connection of a liar's.
struct Said {
    _send: SendStream,
    hear: RecvStream,
    _lease: ConnectionLease,
    bytes: Vec<u8>,
}

impl Said {
    /// The next message that `pick` takes.
    async fn hear<T>(&mut self, pick: impl Fn(&Message) -> Option<T>) -> T {
        loop {
            while let Some((message, len)) = Message::parse(&self.bytes).unwrap() {
                self.bytes.drain(..len);
                if let Some(picked) = pick(&message) {
                    return picked;
                }
            }
            let more = tokio::time::timeout(PATIENCE, self.hear.read_chunk(10_000)).await.unwrap();
            self.bytes.extend_from_slice(&more.unwrap().expect("more is said"));
        }
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn receive(socket: &Socket, inlet: &Inlet, over: &AtomicBool) {
    let (mut receiver, fd): (_, RawFd) = (socket.receiver(), socket.as_raw_fd());
    let mut bodies = vec![0; 16 * 2000];
    while !over.load(Ordering::Relaxed) {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives over the call.
        unsafe { libc::poll(&raw mut poll, 1, 50) };
        let mut places: Vec<_> = bodies.chunks_mut(2000).map(|body| Place { head: &mut [], body }).collect();
        let Ok(batch) = receiver.recv(&mut places) else { continue };
        let came: Vec<_> = batch.iter().map(|packet| (packet.place, packet.len, packet.from)).collect();
        for (place, len, from) in came {
            let way_back = || Some(Path::back_ip(from, None, 0));
            inlet.deliver(from.into(), [&bodies[place * 2000..][..len], &[]], way_back);
        }
    }
}

fn offer(content_len: u64, manifest: &[u8]) -> Offer {
    let (manifest_len, manifest_hash) = (manifest.len() as u64, sha256(manifest));
    Offer { transfer: 1, chunk_len: 1400, content_len, manifest_len, manifest_hash }
}

fn framed(messages: &[Message]) -> Vec<u8> {
    let mut bytes = Vec::new();
    messages.iter().for_each(|message| message.write(&mut bytes));
    bytes
}

/// An entry of a folder of this name, as it is written.
fn folder(name: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 0x01, 0xed];
    bytes.extend([0; 12]);
    bytes.extend((name.len() as u16).to_be_bytes());
    bytes.extend(name);
    bytes
}

#[tokio::test]
async fn what_cannot_be_true_ends_it_and_nothing_is_written() {
    let good = folder(b"folder");
    let entries = |bytes: &[u8]| Message::Entries(bytes.to_vec());
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("longer than any message", vec![1, 0xff, 0xff, 0xff, 0xff, 0]),
        ("of no type", vec![99, 0, 0, 0, 0]),
        ("2^63 bytes", {
            let mut bytes = framed(&[Message::Offer(offer(0, &good))]);
            bytes[5 + 1 + 4 + 2] = 0x80;
            bytes
        }),
        ("out of the folder", framed(&[Message::Offer(offer(0, &folder(b"../up"))), entries(&folder(b"../up"))])),
        ("another manifest", framed(&[Message::Offer(offer(0, &folder(b"other!"))), entries(&good)])),
        ("more content than files", framed(&[Message::Offer(offer(1000, &good)), entries(&good)])),
        (
            "more manifest than was said",
            framed(&[Message::Offer(offer(0, &good)), entries(&[&good[..], &good].concat())]),
        ),
        ("hashes before all", framed(&[Message::Hashes { first: 0, hashes: vec![[0; 32]] }])),
    ];
    for (name, said) in cases {
        let memory = Memory::new();
        let (receiving, events) =
            bulk::receive(options(), Peers::Listen(by_ticket(SECRET, 1)), memory.clone()).unwrap();
        let mut receiver = Ear::new(events);
        let liar = Liar::new();
        let stream = liar.call(receiver.listening().await).await;
        let proof = proof(&SECRET, &stream.export(PROOF_LABEL).unwrap());
        let (mut send, mut hear, _kept) = stream.split();
        let open = Message::Open { sends: true, chunk_len_max: 0, proof: Some(proof) };
        send.write_all(&framed(&[open])).await.unwrap();
        send.write_all(&said).await.unwrap();
        let error = receiver.failed().await;
        assert!(error.contains("the transfer was ended"), "{name}: {error}");
        let answer = tokio::time::timeout(PATIENCE, hear.read_to_end(10_000)).await.unwrap().unwrap();
        assert!(matches!(Message::parse(&answer), Ok(Some((Message::End { code: 5, .. }, _)))), "{name}");
        assert!(memory.contents.lock().unwrap().is_empty(), "{name}: nothing was opened");
        receiving.cancel();
    }
}

#[tokio::test]
async fn who_says_nothing_holds_up_nobody() {
    let memory = Memory::new();
    let (_r, events) = bulk::receive(options(), Peers::Listen(by_ticket(SECRET, 1)), memory.clone()).unwrap();
    let mut receiver = Ear::new(events);
    let address = receiver.listening().await;
    let liar = Liar::new();
    let mut silent = Vec::new();
    // More than there are places for.
    for _ in 0..300 {
        let (mut send, hear, kept) = liar.call(address).await.split();
        // A byte of a message that never comes whole.
        send.write_all(&[10]).await.unwrap();
        silent.push((send, hear, kept));
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let pattern = Pattern::new(100_000, 4);
    let to = Peers::Dial(vec![dial(address, Some(SECRET))]);
    let (_s, events) = bulk::send(options(), to, pattern.clone()).unwrap();
    Ear::new(events).finished().await;
    receiver.until(|event| matches!(event, Event::Finished { .. }).then_some(())).await;
    memory.only().assert_is(&pattern);
}

/// Transfers at once.
const TRANSFERS_MAX: usize = 64;

#[tokio::test]
async fn who_comes_while_there_is_too_much_to_do_waits_for_its_turn() {
    for others in [TRANSFERS_MAX - 1, TRANSFERS_MAX] {
        let (memory, mine, liar) = (Memory::new(), Identity::ephemeral().unwrap(), Liar::new());
        let admission = Admission { keys: [mine.node_id(), liar.key].into(), ..Admission::default() };
        let (_r, events) = bulk::receive(options(), Peers::Listen(admission), memory.clone()).unwrap();
        let mut receiver = Ear::new(events);
        let address = receiver.listening().await;
        let mut said = Vec::new();
        for _ in 0..others {
            said.push(liar.say(address, true, &[]).await);
            receiver.until(|event| matches!(event, Event::PeerConnected { .. }).then_some(())).await;
        }
        let pattern = Pattern::new(100_000, 4);
        let to = Peers::Dial(vec![dial(address, None)]);
        let (_s, events) = bulk::send(Options { identity: mine, ..options() }, to, pattern.clone()).unwrap();
        let mut sender = Ear::new(events);
        let is_busy = |event: &Event| match event {
            Event::Waiting { what: Waiting::Peer(why), .. } => Some(why.contains("too many transfers")),
            Event::Finished { .. } => Some(false),
            Event::Failed { error, .. } => panic!("{error}"),
            _ => None,
        };
        assert_eq!(sender.until(is_busy).await, others == TRANSFERS_MAX);
        if others == TRANSFERS_MAX {
            drop(said);
            sender.finished().await;
        }
        memory.only().assert_is(&pattern);
    }
}

#[tokio::test]
async fn all_senders_together_are_asked_to_keep_to_the_limit() {
    const LIMIT: u64 = 1_000_001;
    let own = Options { limit_down: Some(LIMIT), ..options() };
    let (_r, events) = bulk::receive(own, Peers::Listen(by_ticket(SECRET, 2)), Memory::new()).unwrap();
    let address = Ear::new(events).listening().await;
    let limit = |message: &Message| match message {
        Message::Limit(limit) => Some(*limit),
        _ => None,
    };
    let offers = |transfer, name: &[u8]| {
        [Message::Offer(Offer { transfer, ..offer(0, &folder(name)) }), Message::Entries(folder(name))]
    };
    let (one, other) = (Liar::new(), Liar::new());
    let mut first = one.say(address, true, &offers(1, b"first")).await;
    assert_eq!(first.hear(limit).await, LIMIT);
    let mut second = other.say(address, true, &offers(2, b"second")).await;
    assert_eq!((second.hear(limit).await, first.hear(limit).await), (LIMIT / 2, LIMIT / 2));
    drop(second);
    assert_eq!(first.hear(limit).await, LIMIT);
}

#[tokio::test]
async fn who_is_not_ready_and_who_opens_no_path_is_waited_for_and_that_is_told() {
    for (messages, what) in [(&[][..], Waiting::Ready), (&[Message::Ready][..], Waiting::NoPath)] {
        let pattern = Pattern::new(100_000, 4);
        let (_s, events) = bulk::send(options(), Peers::Listen(by_ticket(SECRET, 1)), pattern).unwrap();
        let mut sender = Ear::new(events);
        let liar = Liar::new();
        let _said = liar.say(sender.listening().await, false, messages).await;
        let heard = sender.until(|event| match event {
            Event::Waiting { what, .. } => Some(what.clone()),
            Event::Failed { error, .. } => panic!("{error}"),
            _ => None,
        });
        assert_eq!(heard.await, what);
    }
}

#[tokio::test]
async fn who_says_twice_what_it_kept_is_found_out() {
    for (ranges, is_true) in [([0..1, 2..3], true), ([0..2, 1..3], false)] {
        let pattern = Pattern::new(5 << 20, 4);
        let (_s, events) = bulk::send(options(), Peers::Listen(by_ticket(SECRET, 1)), pattern).unwrap();
        let mut sender = Ear::new(events);
        let kept = ranges.map(|range| Message::Kept(vec![range]));
        let messages = [&kept[..], &[Message::Ready]].concat();
        let liar = Liar::new();
        let _said = liar.say(sender.listening().await, false, &messages).await;
        let is_offered = sender.until(|event| match event {
            Event::Offered { kept_bytes, .. } => {
                assert_eq!(*kept_bytes, 2 << 20);
                Some(true)
            }
            Event::Failed { .. } => Some(false),
            _ => None,
        });
        assert_eq!(is_offered.await, is_true);
    }
}
