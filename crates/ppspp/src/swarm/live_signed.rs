//! Live streams each of whose chunks is signed (RFC 7574 §6.1.1): no munro says what there is.

use super::live_sim::*;
use super::*;
use crate::merkle::{ChunkSignature, STALE_AFTER_S};
use crate::wire::{Integrity, Message};

/// Where a viewer began.
fn began(node: &Node) -> Option<u64> {
    node.events.iter().find_map(|event| match event {
        LiveEvent::Tuned(chunk) => Some(*chunk),
        _ => None,
    })
}

/// Nobody keeps more than the window, and what is kept is the stream's.
fn assert_bounded(sim: &LiveSim) {
    for node in sim.nodes.iter().flatten() {
        let live = node.swarm.live.as_ref().expect("live");
        assert!(live.proofs().len() as u64 <= WINDOW + PER_SIGNATURE, "{} signatures", live.proofs().len());
        assert!((1..=WINDOW + PER_SIGNATURE).contains(&(node.chunks_max as u64)), "{} chunks", node.chunks_max);
        assert!(node.chunks.iter().all(|(chunk, bytes)| **bytes == payload(*chunk)));
    }
}

/// Viewers come one by one and late, serve each other, and one knows another viewer alone; nobody is accused.
#[test]
fn viewers_have_signed_chunks_from_each_other() {
    for (seed, loss) in [(0, 0.0), (1, 0.01), (2, 0.01)] {
        let mut sim = LiveSim::sign_all(seed, loss, 8);
        sim.run(1_000_000);
        for _ in 0..10 {
            sim.join(5);
            sim.run(200_000);
        }
        let through = sim.join_at(3, 5);
        sim.node(through).is_hidden = true;
        sim.run(12_000_000);
        let edge = sim.node(SOURCE).swarm.live_edge();
        let late = sim.join(5);
        sim.run(6_000_000);
        sim.print();
        println!("{:.2} copies, {:.2} s behind", sim.copies(), sim.mean_delay_s());
        assert!(sim.all_play(), "seed {seed}");
        assert!(sim.viewers().all(|node| node.liars.is_empty()), "nobody lies");
        assert!(sim.copies() <= 3.0, "{:.2} copies", sim.copies());
        assert!(sim.mean_delay_s() < 3.0, "{:.2} s behind", sim.mean_delay_s());
        assert_eq!(sim.node(through).swarm.peers().count(), 1, "it knows one viewer");
        let began = began(sim.node(late)).expect("it plays");
        assert!(began + 500_000 / sim.chunk_us > edge, "it begins at {began} of {edge}");
        assert_bounded(&sim);
    }
}

/// Who is alone with the source has every chunk in the end; what comes in bursts with pauses between them comes whole. So it does where
/// datagrams are too short for a chunk with its signature.
#[test]
fn bursts_and_pauses_and_the_end() {
    for (seed, datagram_len) in [(0, None), (1, None), (2, Some(1100)), (3, Some(1100))] {
        let mut sim = LiveSim::sign_all(seed, 0.01, 100);
        sim.push_at_us = None;
        sim.burst(500);
        sim.run(1_000_000);
        let viewer = sim.join(100);
        sim.node(viewer).is_hidden = true;
        sim.run(3_000_000);
        if let Some(len) = datagram_len {
            sim.node(SOURCE).swarm.set_datagram_len(&address(viewer), len);
        }
        let beside_before = sim.node(SOURCE).beside_bytes;
        sim.burst(700);
        sim.run(4_000_000);
        sim.burst(1);
        sim.push(&[]);
        sim.run(10_000_000);
        // IP, UDP, the channel and the head of a chunk are 49 bytes, a signature 81.
        let source = sim.node(SOURCE);
        let beside = (source.beside_bytes - beside_before) as f64 / 701.0;
        assert_eq!(beside < 110.0, datagram_len.is_some(), "{beside} bytes beside a chunk");
        let edge = source.swarm.live_edge();
        let viewer = sim.node(viewer);
        let began = began(viewer).expect("tuned");
        assert_eq!((edge, viewer.swarm.live_edge(), viewer.swarm.have().next_clear(began)), (1202, 1202, 1202));
        assert_eq!(sim.node(SOURCE).swarm.lacking_peers(), 0);
    }
}

/// A source that is started again, from chunk 0 or from further down: viewers find it, those too who know other viewers alone.
#[test]
fn a_source_of_signed_chunks_that_starts_again() {
    for (seed, first, first_again) in [(0, 0, 0), (1, 0, 0), (2, 10_000, 9_000), (3, 10_000, 2_000)] {
        let mut sim = LiveSim::sign_all(seed, 0.005, 10);
        if first > 0 {
            sim.node(SOURCE).swarm.begin_at(first).expect("nothing was pushed");
            (sim.pushed, sim.began_us) = (first, sim.now_us.wrapping_sub(first * sim.chunk_us));
        }
        for _ in 0..6 {
            sim.join(5);
        }
        sim.run(1_000_000);
        let through = sim.join_at(2, 5);
        sim.node(through).is_hidden = true;
        sim.run(4_000_000);
        assert!(sim.all_play());
        sim.push_at_us = None;
        sim.leave(SOURCE);
        sim.run(2_000_000);
        let mut again = sim.source();
        again.begin_at(first_again).expect("nothing was pushed");
        let number = sim.add(again, 10);
        sim.nodes.swap(SOURCE, number);
        sim.nodes.truncate(number);
        sim.numbers.insert(address(SOURCE), SOURCE);
        sim.numbers.remove(&address(number));
        (sim.push_at_us, sim.pushed) = (Some(sim.now_us), first_again);
        sim.began_us = sim.now_us.wrapping_sub(first_again * sim.chunk_us);
        for _ in 0..14 {
            sim.run(1_000_000);
            // As drivers do: who was named is called again.
            (1..number).filter(|viewer| *viewer != through).for_each(|viewer| sim.connect(viewer, SOURCE));
            sim.connect(through, 2);
        }
        sim.print();
        assert!(sim.all_play(), "seed {seed}");
        for node in sim.viewers() {
            let restarts = node.events.iter().filter(|event| **event == LiveEvent::Restarted).count();
            assert_eq!((restarts, node.liars.len()), (1, 0));
        }
        assert_bounded(&sim);
    }
}

/// Whichever way somebody lies, it is named and banned by those whom it reached, and nobody else is.
#[test]
fn liars_about_signed_chunks_are_named_and_nobody_else() {
    let lies = [Lie::Chunk, Lie::Signature, Lie::OfAnother, Lie::OfOldStream, Lie::Unsigned];
    for (seed, lie) in (0..).zip(lies) {
        let mut sim = LiveSim::sign_all(seed, 0.005, 10);
        let mut numbers: Vec<usize> = (0..8).map(|_| sim.join(5)).collect();
        let liar = numbers.remove(sim.rng.usize(..8));
        sim.run(1_000_000);
        sim.node(liar).lie = Some(lie);
        sim.run(14_000_000);
        sim.print();
        let named: Vec<PathAddress> = sim.viewers().flat_map(|node| node.liars.clone()).collect();
        println!("{lie:?}, seed {seed}: named by {} viewers", named.len());
        assert!(!named.is_empty() && named.iter().all(|named| *named == address(liar)), "{lie:?}: {named:?}");
        assert!(sim.all_play(), "{lie:?}");
        assert_bounded(&sim);
    }
}

/// A viewer with two peers, which say what the test wants; it plays since chunk 100.
struct Pair {
    document: Vec<u8>,
    viewer: Swarm<PathAddress>,
    now: Instant,
    channels: [ChannelId; 2],
}

const SECOND: u64 = 1 << 32;

impl Pair {
    fn new() -> Self {
        let (document, now) = (document(), Instant::now());
        let params = params_of(&document, Integrity::SignAll);
        let mut viewer =
            Swarm::viewer(params.clone(), WINDOW, NTP + 1000 * SECOND, Mode::Fast, 7, now).expect("signed");
        let channels = [1, 2].map(|number| {
            viewer.connect(now, &address(number));
            let hello = viewer.transmit().expect("a handshake");
            let channel = u32::from_be_bytes(hello.datagram[5..9].try_into().expect("four bytes"));
            let mut answer = channel.to_be_bytes().to_vec();
            params.handshake(Dialect::Rfc7574, 4, false, None).encode(&mut answer);
            viewer.datagram(now, &address(number), &answer);
            channel
        });
        Self { document, viewer, now, channels }
    }

    /// Datagrams that it sends to a peer, read.
    fn asked(&mut self) -> Vec<(PathAddress, Range<u64>)> {
        let codec = self.viewer.params.codec(Dialect::Rfc7574);
        let mut asked = Vec::new();
        while let Some(transmit) = self.viewer.transmit() {
            for message in crate::wire::Messages::new(codec, &transmit.datagram[4..]).map_while(Result::ok) {
                if let Message::Request(range) = message {
                    asked.push((transmit.peer, range));
                }
            }
        }
        asked
    }

    fn say(&mut self, peer: usize, messages: &[Message<'_>]) -> Vec<u64> {
        let codec = self.viewer.params.codec(Dialect::Rfc7574);
        let mut datagram = self.channels[peer - 1].to_be_bytes().to_vec();
        messages.iter().for_each(|message| message.encode(&codec, &mut datagram).expect("fits"));
        let chunks = self.viewer.datagram(self.now, &address(peer), &datagram).unwrap_or_default();
        let chunks: Vec<u64> = chunks.into_iter().map(|(chunk, _)| chunk).collect();
        chunks.iter().for_each(|chunk| self.viewer.stored(*chunk));
        chunks
    }

    fn sign(&self, chunk: u64, second: u64) -> ChunkSignature {
        let codec = self.viewer.params.codec(Dialect::Rfc7574);
        let ntp = NTP + second * SECOND;
        ChunkSignature::make(&key(&self.document), &codec, chunk, ntp, &payload(chunk)).expect("signed")
    }

    /// A chunk with a signature; gives what was handed out.
    fn send(&mut self, peer: usize, chunk: u64, signature: &ChunkSignature, payload: &[u8]) -> Vec<u64> {
        let ChunkSignature { ntp, signature } = signature;
        let node = Bin::chunk(chunk).expect("a chunk");
        let data = Message::Data { chunk, sent_us: 0, payload };
        self.say(peer, &[Message::SignedIntegrity { node, ntp: *ntp, signature }, data])
    }

    fn liars(&mut self) -> Vec<PathAddress> {
        let events = std::iter::from_fn(|| self.viewer.event());
        events.filter_map(|event| if let Event::Liar(peer) = event { Some(peer) } else { None }).collect()
    }

    fn live_events(&mut self) -> Vec<LiveEvent<PathAddress>> {
        std::iter::from_fn(|| self.viewer.live_event()).collect()
    }

    fn later(&mut self, ms: u64) {
        self.now += std::time::Duration::from_millis(ms);
        self.viewer.poll(self.now);
    }
}

/// What peers announce is a claim: each is asked for the newest chunk of it, and a chunk that holds says where the stream is.
#[test]
fn where_the_stream_is_a_signature_says() {
    let mut pair = Pair::new();
    pair.say(1, &[Message::Have(0..1 << 30)]);
    pair.say(2, &[Message::Have(90..101)]);
    assert_eq!(pair.asked(), [(address(1), (1 << 30) - 1..1 << 30), (address(2), 100..101)]);
    assert_eq!((pair.viewer.live_edge(), pair.live_events()), (0, vec![]));
    // One that is too old is nobody's lie, and nothing; it is told.
    let old = pair.sign(100, 1000 - STALE_AFTER_S - 1);
    assert_eq!(pair.send(2, 100, &old, &payload(100)), []);
    assert_eq!((pair.viewer.live_edge(), pair.live_events()), (0, vec![LiveEvent::Stale(address(2))]));
    // Nobody answers at once: the newest of what is announced by then is asked for.
    pair.say(2, &[Message::Have(90..104)]);
    assert_eq!(pair.asked(), []);
    pair.later(200);
    let asked = pair.asked();
    assert!(asked.contains(&(address(2), 103..104)), "{asked:?}");
    let good = pair.sign(103, 999);
    assert_eq!(pair.send(2, 103, &good, &payload(103)), [103]);
    assert_eq!(pair.viewer.live_edge(), 104);
    pair.later(200);
    assert_eq!(pair.live_events(), [LiveEvent::Tuned(103)]);
    // What is announced is asked for as far as the window goes, and nothing of it is taken for there.
    pair.asked();
    pair.say(2, &[Message::Have(0..1 << 30)]);
    let asked = pair.asked();
    assert!(!asked.is_empty() && asked.iter().all(|(peer, range)| *peer == address(2) && range.start > 103));
    assert!(asked.iter().all(|(_, range)| range.end <= 104 + WINDOW || range.end == 1 << 30), "{asked:?}");
    assert_eq!(pair.viewer.channels[&pair.channels[1]].has.end(), 104 + WINDOW);
    // Who has shown no chunk of the stream is heard of nothing.
    pair.say(1, &[Message::Have(0..200)]);
    assert!(pair.viewer.channels[&pair.channels[0]].has.is_empty());
    assert_eq!((pair.viewer.live_edge(), pair.liars()), (104, vec![]));
}

/// Wrong signatures, and right ones of other chunks, times and keys: nothing of them counts, and who sends them is banned.
#[test]
fn a_signature_is_of_one_chunk_at_one_time() {
    let forge: [fn(&Pair, u64) -> ChunkSignature; 5] = [
        |pair, chunk| pair.sign(chunk + 1, 999),
        |pair, chunk| ChunkSignature { ntp: NTP + 999 * SECOND + 1, ..pair.sign(chunk, 999) },
        |pair, chunk| {
            let mut wrong = pair.sign(chunk, 999);
            wrong.signature[40] ^= 1;
            wrong
        },
        |pair, chunk| {
            let codec = pair.viewer.params.codec(Dialect::Rfc7574);
            let other = key(&document());
            ChunkSignature::make(&other, &codec, chunk, NTP + 999 * SECOND, &payload(chunk)).expect("signed")
        },
        |pair, chunk| {
            let codec = pair.viewer.params.codec(Dialect::Rfc7574);
            ChunkSignature::make(&key(&pair.document), &codec, chunk, NTP + 999 * SECOND, b"other").expect("signed")
        },
    ];
    for (number, forge) in forge.iter().enumerate() {
        for is_tuned in [false, true] {
            let mut pair = Pair::new();
            if is_tuned {
                let good = pair.sign(100, 998);
                assert_eq!(pair.send(2, 100, &good, &payload(100)), [100]);
            }
            let forged = forge(&pair, 101);
            assert_eq!(pair.send(1, 101, &forged, &payload(101)), [], "forgery {number}");
            assert_eq!((pair.viewer.live_edge(), pair.liars()), (if is_tuned { 101 } else { 0 }, vec![address(1)]));
            assert!(!pair.viewer.connect(pair.now, &address(1)), "banned");
            // The honest one's chunk of the same number counts.
            let good = pair.sign(101, 999);
            assert_eq!((pair.send(2, 101, &good, &payload(101)), pair.liars()), (vec![101], vec![]));
        }
    }
}

/// Chunks of an older stream, and chunks without signatures, are nothing. Some may be honest; so many in a row are not.
#[test]
fn old_and_unsigned_chunks_are_forgiven_some_times() {
    for is_old in [true, false] {
        let mut pair = Pair::new();
        for chunk in [100, 400] {
            let good = pair.sign(chunk, 900 + chunk / 100);
            assert_eq!(pair.send(2, chunk, &good, &payload(chunk)), [chunk]);
        }
        let useless = |pair: &mut Pair, chunk: u64| {
            if is_old {
                let old = pair.sign(chunk, 890);
                return pair.send(1, chunk, &old, &payload(chunk));
            }
            pair.say(1, &[Message::Data { chunk, sent_us: 0, payload: &payload(chunk) }])
        };
        let forgiven = u64::from(live::UNPROVEN_MAX) - 1;
        for chunk in 101..101 + forgiven {
            assert_eq!(useless(&mut pair, chunk), []);
        }
        assert_eq!(pair.liars(), []);
        // One that holds, and it begins anew; then one more than it may.
        let good = pair.sign(300, 903);
        assert_eq!(pair.send(1, 300, &good, &payload(300)), [300]);
        (101..101 + forgiven).for_each(|chunk| drop(useless(&mut pair, chunk)));
        assert_eq!(pair.liars(), []);
        useless(&mut pair, 200);
        assert_eq!((pair.liars(), pair.viewer.live_edge()), (vec![address(1)], 401));
        assert_eq!(pair.viewer.have().count(), 3);
    }
}

/// A chunk that comes again with its own signature is nothing new; with a newer one it is of a new stream.
#[test]
fn a_replayed_chunk_is_nothing_and_a_newer_one_a_new_stream() {
    let mut pair = Pair::new();
    let good: Vec<ChunkSignature> = (100..110).map(|chunk| pair.sign(chunk, 900 + chunk - 100)).collect();
    for (chunk, signature) in (100..).zip(&good) {
        assert_eq!(pair.send(2, chunk, signature, &payload(chunk)), [chunk]);
    }
    for (chunk, signature) in (100..).zip(&good) {
        assert_eq!(pair.send(1, chunk, signature, &payload(chunk)), []);
    }
    assert_eq!((pair.liars(), pair.viewer.live_edge(), pair.viewer.have().count()), (vec![], 110, 10));
    // An older time is nothing either.
    let old = pair.sign(105, 904);
    assert_eq!(pair.send(1, 105, &old, &payload(105)), []);
    assert_eq!((pair.liars(), pair.viewer.live_edge()), (vec![], 110));
    pair.live_events();
    let newer = pair.sign(105, 950);
    assert_eq!(pair.send(1, 105, &newer, &payload(105)), [105]);
    assert_eq!(pair.live_events().first(), Some(&LiveEvent::Restarted));
    assert_eq!((pair.viewer.live_edge(), pair.viewer.have().count()), (106, 1));
    // What is left of the old stream does not bring it back.
    assert_eq!(pair.send(2, 109, &good[9], &payload(109)), []);
    assert_eq!((pair.liars(), pair.viewer.live_edge()), (vec![], 106));
}

/// Signatures that wait for their chunks are few, whatever a peer sends.
#[test]
fn signatures_without_chunks_are_bounded() {
    let mut pair = Pair::new();
    for chunk in 0..1000 {
        let node = Bin::chunk(chunk).expect("a chunk");
        pair.say(1, &[Message::SignedIntegrity { node, ntp: NTP, signature: &[7; 64] }]);
    }
    // Those of nodes mean nothing.
    let node = Bin::new(3, 1).expect("a node");
    pair.say(1, &[Message::SignedIntegrity { node, ntp: NTP, signature: &[7; 64] }]);
    let offers = &pair.viewer.channels[&pair.channels[0]].offers;
    let waiting = (0..1000).filter(|chunk| offers.signature(*chunk).is_some()).count();
    assert_eq!((waiting, offers.len()), (crate::merkle::SIGNATURES_WAITING_MAX, 0));
    assert_eq!(pair.liars(), []);
}

/// Two sources with one key: the one that hears of chunks that it did not make asks for one, and says so. One that it signed itself
/// before it began anew is none, and one that nobody signed is a lie.
#[test]
fn a_twin_of_a_source_of_signed_chunks_is_told_of() {
    for (second, is_forged) in [(500, false), (500, true), (1, false)] {
        let mut sim = LiveSim::sign_all(0, 0.0, 10);
        sim.now_us = 100_000_000;
        (sim.push_at_us, sim.began_us) = (Some(sim.now_us), sim.now_us);
        sim.run(1_000_000);
        let (now, document) = (sim.now(), sim.document.clone());
        let params = params_of(&document, Integrity::SignAll);
        let codec = params.codec(Dialect::Rfc7574);
        let source = &mut sim.node(SOURCE).swarm;
        let edge = source.live_edge();
        let mut opening = vec![0; 4];
        crate::wire::Opening::encode(
            Dialect::Rfc7574,
            &params.handshake(Dialect::Rfc7574, 9, true, None),
            &mut opening,
        );
        source.datagram(now, &address(1), &opening);
        let channel = *source.channels.keys().next().expect("one");
        let chunk = edge + 50;
        let mut say = |messages: &[Message<'_>]| {
            let mut datagram = channel.to_be_bytes().to_vec();
            messages.iter().for_each(|message| message.encode(&codec, &mut datagram).expect("fits"));
            source.datagram(now, &address(1), &datagram);
            std::iter::from_fn(|| source.transmit()).map(|transmit| transmit.datagram).collect::<Vec<_>>()
        };
        let mut request = Vec::new();
        Message::Request(chunk..chunk + 1).encode(&codec, &mut request).expect("fits");
        let is_asked = |said: &[Vec<u8>]| said.iter().any(|said| said.windows(request.len()).any(|at| at == request));
        assert!(!is_asked(&say(&[Message::Have(0..edge)])));
        assert!(is_asked(&say(&[Message::Have(chunk - 9..chunk + 1)])));
        let ntp = NTP + second * SECOND;
        let mut made = ChunkSignature::make(&key(&document), &codec, chunk, ntp, b"twin").expect("signed");
        made.signature[3] ^= u8::from(is_forged);
        let node = Bin::chunk(chunk).expect("a chunk");
        let signature = Message::SignedIntegrity { node, ntp, signature: &made.signature };
        say(&[signature, Message::Data { chunk, sent_us: 0, payload: b"twin" }]);
        let events: Vec<_> = std::iter::from_fn(|| source.event()).collect();
        let is_twin = second == 500 && !is_forged;
        assert_eq!(source.live_event(), is_twin.then(|| LiveEvent::Twin(address(1))), "{second}, {is_forged}");
        assert_eq!(events.contains(&Event::Liar(address(1))), is_forged, "{events:?}");
        assert_eq!((source.live_edge(), source.have().contains(chunk)), (edge, false));
    }
}
