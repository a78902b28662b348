//! What strangers send in PPSPP to who shares and to who fetches, while a transfer goes on: it arrives whole, the honest are accused of
//! nothing, and nobody's memory grows.

mod common;

use std::collections::HashSet;
use std::fs;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anabranch_ppspp::bin::Bin;
use anabranch_ppspp::hash::HashFunction;
use anabranch_ppspp::link::Link;
use anabranch_ppspp::wire::{ChannelId, Codec, Dialect, Message, Messages, Opening, split_channel};
use common::{Running, anabranch, noise, run};
use serde_json::Value;

/// A film that takes some seconds at this rate.
const FILM_LEN: usize = 1_500_000;
const RATE: &str = "500K";
/// More is not bounded memory for such a film, whatever strangers say: a program of this kind has 30 MiB as it starts.
const RSS_KIB_MAX: u64 = 96 * 1024;
/// Addresses of one answer that are believed (docs/streaming.md).
const PEX_TAKEN_MAX: usize = 16;

/// What a stranger does once its channel is open, again and again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trick {
    /// Has everything that can be numbered, and then every second chunk of it.
    HasAll,
    /// Asks for everything, in ranges as many as there is room for, and for what is nowhere.
    AsksAll,
    /// Acknowledges what never left, at times that cannot be.
    AcksAll,
    /// Sends digests of nodes anywhere.
    Digests,
    /// Sends chunks that nobody asked for: past the content's end, empty, too long.
    Unasked,
    /// Says where others are, unasked and a hundred times over.
    Peers,
    /// Chokes and unchokes, cancels, closes the channel and goes on in it.
    Fidgets,
    /// Messages that are cut, of kinds that there are not.
    Noise,
}

const TRICKS: [Trick; 8] = [
    Trick::HasAll,
    Trick::AsksAll,
    Trick::AcksAll,
    Trick::Digests,
    Trick::Unasked,
    Trick::Peers,
    Trick::Fidgets,
    Trick::Noise,
];

impl Trick {
    /// The messages of one datagram.
    fn messages(self, codec: &Codec, rng: &mut fastrand::Rng, pointed_at: &[SocketAddrV4]) -> Vec<u8> {
        let mut out = Vec::new();
        let last = u64::from(u32::MAX);
        let payload = noise(rng.usize(..2000), rng.u64(..));
        for _ in 0..rng.usize(1..40) {
            let some = rng.u64(..last);
            let range = some..some.saturating_add(rng.u64(1..1 << 20)).min(last);
            let near = rng.u64(..4000);
            let message = match self {
                Self::HasAll if rng.bool() => Message::Have(0..last),
                Self::HasAll => Message::Have(2 * near..2 * near + 1),
                Self::AsksAll if rng.bool() => Message::Request(0..last),
                Self::AsksAll => Message::Request([near..near + 1, range][rng.usize(..2)].clone()),
                Self::AcksAll => {
                    Message::Ack { chunks: [0..last, range][rng.usize(..2)].clone(), delay_us: rng.u64(..) }
                }
                Self::Digests => {
                    let node = Bin::new(rng.u32(..32), 0).and_then(|bin| Bin::new(bin.layer(), near >> bin.layer()));
                    let digest = HashFunction::Sha256.hash(&some.to_be_bytes());
                    Message::Integrity { node: node.unwrap_or(Bin::ALL), digest }
                }
                Self::Unasked => Message::Data { chunk: last - near, sent_us: rng.u64(..), payload: &payload },
                Self::Peers => Message::PexV4(pointed_at[rng.usize(..pointed_at.len())]),
                Self::Fidgets => [
                    Message::Choke,
                    Message::Unchoke,
                    Message::Cancel(0..last),
                    Message::PexRequest,
                    Message::Request(near..near + 1),
                    Message::Handshake(anabranch_ppspp::wire::Handshake::closing()),
                ][rng.usize(..6)]
                .clone(),
                Self::Noise => {
                    out.extend(noise(rng.usize(1..30), some));
                    continue;
                }
            };
            let _ = message.encode(codec, &mut out);
            if self == Self::Unasked {
                break;
            }
        }
        out.truncate(if self == Self::Unasked { 2100 } else { 1400 });
        if self == Self::Noise {
            out.truncate(rng.usize(..=out.len()))
        }
        out
    }
}

/// A peer with a right handshake, who does its trick to whoever it dials and whoever dials it.
fn stranger(
    trick: Trick,
    link: &Link,
    victims: Vec<SocketAddr>,
    pointed_at: Vec<SocketAddrV4>,
    stop: Arc<AtomicBool>,
) -> (SocketAddr, JoinHandle<usize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let address = socket.local_addr().unwrap();
    let params = link.params.clone();
    let open = move |channel: ChannelId, is_first: bool, to: ChannelId| {
        let mut datagram = to.to_be_bytes().to_vec();
        let handshake = params.handshake(Dialect::Rfc7574, channel, is_first, None);
        Opening::encode(Dialect::Rfc7574, &handshake, &mut datagram);
        datagram
    };
    let codec = link.params.codec(Dialect::Rfc7574);
    let doing = std::thread::spawn(move || {
        let mut rng = fastrand::Rng::with_seed(trick as u64);
        let (mut channels, mut count, mut datagram): (Vec<(SocketAddr, ChannelId)>, usize, _) =
            (Vec::new(), 0, [0; 4096]);
        let mut dialled_at: Option<Instant> = None;
        while !stop.load(Ordering::Relaxed) {
            if dialled_at.is_none_or(|at| at.elapsed() > Duration::from_millis(500)) {
                dialled_at = Some(Instant::now());
                for victim in &victims {
                    let _ = socket.send_to(&open(rng.u32(1..), true, 0), victim);
                }
            }
            if let Ok((len, from)) = socket.recv_from(&mut datagram)
                && let Some((to, messages)) = split_channel(&datagram[..len])
                && let Ok(opening) = Opening::parse(messages)
                && opening.handshake.channel != 0
            {
                if to == 0 {
                    let _ = socket.send_to(&open(7, false, opening.handshake.channel), from);
                }
                channels.retain(|(of, _)| *of != from);
                channels.push((from, opening.handshake.channel));
            }
            for (victim, channel) in &channels {
                let mut datagram = channel.to_be_bytes().to_vec();
                datagram.extend(trick.messages(&codec, &mut rng, &pointed_at));
                count += usize::from(socket.send_to(&datagram, victim).is_ok());
            }
        }
        count
    });
    (address, doing)
}

/// The most that it had in memory; 0 of one that has ended.
fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().map_or(0, |kib| kib.parse().unwrap())
}

fn share(dir: &Path) -> (Running, Link, SocketAddr, Vec<u8>) {
    let film = noise(FILM_LEN, 11);
    fs::write(dir.join("film"), &film).unwrap();
    let usual = ["share", "--ppspp", "film", "--listen", "127.0.0.1:0", "--json"];
    let mut sharer = Running::start(anabranch(dir).args(usual));
    let link: Link = sharer.event("started")["link"].as_str().unwrap().parse().unwrap();
    let address = link.peers[0].parse().unwrap();
    (sharer, link, address, film)
}

/// Fetches with these peers beside the honest one, under attack of `dialling`; answers the addresses of those banned.
fn fetched_all_the_same(trick: Trick) {
    println!("{trick:?}");
    let dir = tempfile::tempdir().unwrap();
    let (sharer, link, honest, film) = share(dir.path());
    let stop = Arc::new(AtomicBool::new(false));
    // Who is pointed at hears how many listened.
    let crowd: Vec<UdpSocket> = (0..60).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let pointed_at: Vec<SocketAddrV4> = crowd
        .iter()
        .filter_map(|socket| match socket.local_addr() {
            Ok(SocketAddr::V4(address)) => Some(address),
            _ => None,
        })
        .collect();
    let (waiting, one) = stranger(trick, &link, vec![honest], pointed_at.clone(), Arc::clone(&stop));
    let (source, peer) = (link.to_string(), waiting.to_string());
    let arguments = ["get", &source, "--peer", &peer, "--limit-down", RATE, "-o", "out"];
    let mut getter = Running::start(anabranch(dir.path()).args(arguments).args(["--listen", "127.0.0.1:0", "--json"]));
    let victim = getter.event("listening")["address"].as_str().unwrap().parse().unwrap();
    let (dialling, other) = stranger(trick, &link, vec![victim], pointed_at, Arc::clone(&stop));
    let strangers: HashSet<String> = [waiting.to_string(), dialling.to_string()].into();
    let (mut banned, mut finished) = (Vec::new(), false);
    let mut most_kib = 0;
    while let Some(line) = getter.line_or_end() {
        most_kib = most_kib.max(if finished { 0 } else { rss_kib(getter.child.id()) });
        let event: Value = serde_json::from_str(&line).unwrap();
        finished |= event["event"] == "finished";
        if event["event"] == "banned" {
            banned.push(event["peer"].as_str().unwrap().to_owned());
        }
    }
    assert!(finished && getter.child.wait().unwrap().code() == Some(0), "{trick:?}");
    assert!(fs::read(dir.path().join("out/film")).unwrap() == film, "{trick:?}");
    assert!(banned.iter().all(|peer| strangers.contains(peer)), "{trick:?}: {banned:?}");
    let kib = most_kib.max(rss_kib(sharer.child.id()));
    assert!(kib < RSS_KIB_MAX, "{trick:?}: {kib} KiB");
    stop.store(true, Ordering::Relaxed);
    let said = one.join().unwrap() + other.join().unwrap();
    assert!(said > 0, "{trick:?}: nobody listened to the strangers");
    // Each of two strangers answered once or twice in this time, at most: what it says unasked is nothing.
    let heard = crowd.iter().filter(|socket| {
        socket.set_nonblocking(true).unwrap();
        socket.recv(&mut [0; 100]).is_ok()
    });
    assert!(heard.count() <= 2 * PEX_TAKEN_MAX, "{trick:?}");
    // Who shares is as before.
    let (code, _, stderr) = run(dir.path(), &["get", &link.to_string(), "-o", "again", "--listen", "127.0.0.1:0"]);
    assert_eq!(code, 0, "{trick:?}: {stderr}");
    assert!(fs::read(dir.path().join("again/film")).unwrap() == film);
    assert_eq!(sharer.interrupt().0, 0);
}

#[test]
fn a_transfer_outlives_what_strangers_say() {
    std::thread::scope(|scope| {
        // Two at a time: each waits for its limit, mostly.
        for half in TRICKS.chunks(TRICKS.len().div_ceil(2)) {
            scope.spawn(move || half.iter().for_each(|trick| fetched_all_the_same(*trick)));
        }
    });
}

/// Everything that passes between two is seen by a third, who sends it again, later and from elsewhere: nothing comes of it.
#[test]
fn replayed_and_forged_datagrams_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_sharer, link, honest, film) = share(dir.path());
    // The third stands between them: what it forwards, it sends once more from its own place, and once more much later.
    let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = front.local_addr().unwrap();
    for socket in [&front, &back] {
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    }
    let (stop, forged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let between = {
        let (stop, forged) = (Arc::clone(&stop), Arc::clone(&forged));
        std::thread::spawn(move || {
            let (mut datagram, mut getter) = ([0; 4096], None);
            let mut kept: Vec<(bool, Vec<u8>)> = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                for (from, to_honest) in [(&front, true), (&back, false)] {
                    let Ok((len, sender)) = from.recv_from(&mut datagram) else { continue };
                    if to_honest {
                        getter = Some(sender);
                    }
                    let Some(getter) = getter else { continue };
                    let send = |bytes: &[u8], to_honest: bool| {
                        let (by, to) = if to_honest { (&back, honest) } else { (&front, getter) };
                        let _ = by.send_to(bytes, to);
                        let _ = forger.send_to(bytes, to);
                        forged.fetch_add(1, Ordering::Relaxed);
                    };
                    send(&datagram[..len], to_honest);
                    kept.push((to_honest, datagram[..len].to_vec()));
                    if kept.len() > 100 {
                        let (to_honest, bytes) = kept.swap_remove(fastrand::usize(..kept.len()));
                        send(&bytes, to_honest);
                        // With the last byte changed, from elsewhere: the channel's number is right, and nothing else.
                        let mut wrong = bytes;
                        wrong.last_mut().into_iter().for_each(|last| *last ^= 1);
                        let _ = forger.send_to(&wrong, if to_honest { honest } else { getter });
                    }
                }
            }
        })
    };
    let alone = Link { peers: vec![address.to_string()], ..link };
    let (code, stdout, stderr) =
        run(dir.path(), &["get", &alone.to_string(), "-o", "out", "--no-pex", "--listen", "127.0.0.1:0", "--json"]);
    stop.store(true, Ordering::Relaxed);
    between.join().unwrap();
    assert_eq!(code, 0, "{stderr}");
    assert!(!stdout.contains("\"banned\""), "{stdout}");
    assert!(forged.load(Ordering::Relaxed) > 200);
    assert!(fs::read(dir.path().join("out/film")).unwrap() == film);
}

/// A content of 2^63 bytes, as a link says it and as a peer's peaks do: told, and nothing is made of it.
#[test]
fn absurd_sizes_are_refused_or_never_believed() {
    let dir = tempfile::tempdir().unwrap();
    let id = "ab".repeat(32);
    for len in ["9223372036854775807", "9223372036854775808", "18446744073709551615", "99999999999999999999"] {
        let link = format!("ppspp:{id}?cp=1&hf=2&ca=4&cl={len}&pe=127.0.0.1:9");
        let (code, _, stderr) =
            run(dir.path(), &["get", &link, "-o", "out", "--listen", "127.0.0.1:0", "--give-up", "1s"]);
        assert!([3, 4, 5, 6].contains(&code) && !stderr.is_empty(), "{len}: {code} {stderr}");
    }
    // A peer that claims 2^32 chunks by digests that it made up.
    let link: Link = format!("ppspp:{id}?cp=1&hf=2&ca=2").parse().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let claimed = Link { peers: vec![socket.local_addr().unwrap().to_string()], ..link.clone() };
    let codec = link.params.codec(Dialect::Rfc7574);
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    let claiming = std::thread::spawn(move || {
        let mut datagram = [0; 2048];
        let mut asked = 0;
        while !ended.load(Ordering::Relaxed) {
            let Ok((len, from)) = socket.recv_from(&mut datagram) else { continue };
            let Some((to, messages)) = split_channel(&datagram[..len]) else { continue };
            if let (0, Ok(opening)) = (to, Opening::parse(messages)) {
                let mut answer = opening.handshake.channel.to_be_bytes().to_vec();
                let handshake = link.params.handshake(Dialect::Rfc7574, 5, false, None);
                Opening::encode(Dialect::Rfc7574, &handshake, &mut answer);
                Message::Have(0..1 << 32).encode(&codec, &mut answer).unwrap();
                for layer in [31, 30, 29] {
                    let node = Bin::new(layer, (1 << (32 - layer)) - 2).unwrap();
                    let digest = HashFunction::Sha256.hash(&[layer as u8]);
                    Message::Integrity { node, digest }.encode(&codec, &mut answer).unwrap();
                }
                let chunk = (1 << 32) - 1;
                Message::Data { chunk, sent_us: 0, payload: &[1; 1024] }.encode(&codec, &mut answer).unwrap();
                socket.send_to(&answer, from).unwrap();
            } else {
                asked +=
                    Messages::new(codec, messages).filter(|message| matches!(message, Ok(Message::Request(_)))).count();
            }
        }
        asked
    });
    let source = claimed.to_string();
    let arguments = ["get", &source, "-o", "claimed", "--listen", "127.0.0.1:0", "--give-up", "2s"];
    let (code, _, stderr) = run(dir.path(), &arguments);
    stop.store(true, Ordering::Relaxed);
    claiming.join().unwrap();
    assert_eq!(code, 6, "{stderr}");
    assert!(!dir.path().join("claimed").exists(), "a file of a claimed size");
}
