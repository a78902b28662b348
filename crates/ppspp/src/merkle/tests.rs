use std::cell::RefCell;

use super::*;
use crate::binmap::Binmap;
use crate::hash::HashFunction;
use crate::sign::{SignatureAlgorithm, SigningKey};
use crate::wire::{Addressing, Codec, Dialect};

const HASH: HashFunction = HashFunction::Sha1;

fn leaves(hash: HashFunction, chunks: u64) -> Vec<u8> {
    let data: Vec<[u8; 8]> = (0..chunks).map(u64::to_be_bytes).collect();
    let mut leaves = Vec::new();
    hash.hash_many(&data.iter().map(|chunk| &chunk[..]).collect::<Vec<_>>(), &mut leaves);
    leaves
}

fn leaf(chunk: u64) -> Digest {
    HASH.hash(&chunk.to_be_bytes())
}

/// The newest munro of a source that signs subtrees.
fn signed(source: &LiveSource) -> Munro {
    tree(source).newest().expect("signed").clone()
}

fn tree(source: &LiveSource) -> &LiveTree {
    match source.proofs() {
        LiveProofs::Munros(tree) => tree,
        LiveProofs::Chunks(_) => panic!("it signs each chunk"),
    }
}

fn whole(chunks: u64) -> Tree<MemoryNodes> {
    let mut tree = Tree::growing(HASH, MemoryNodes::new(HASH));
    tree.extend(&leaves(HASH, chunks));
    tree
}

fn bin(number: u64) -> Bin {
    Bin::from_u64(number).expect("not empty")
}

/// What a receiver needs that has some chunks.
fn proof_of(tree: &Tree<MemoryNodes>, chunk: u64, has: &Binmap) -> Option<Vec<(Bin, Digest)>> {
    uncles_by(tree, chunk, has, &mut SiblingPath::default())
}

fn uncles_by(tree: &Tree<MemoryNodes>, chunk: u64, has: &Binmap, way: &mut SiblingPath) -> Option<Vec<(Bin, Digest)>> {
    let mut uncles = Vec::new();
    let known_layer =
        (0..=Bin::LAYER_MAX).find(|layer| Bin::chunk(chunk).is_some_and(|bin| !has.is_empty_in(bin.ancestor(*layer))));
    tree.uncles(chunk, known_layer, way, &mut uncles)?;
    Some(uncles)
}

/// RFC 7574 §5.1, figure 3, and §5.6.1, figure 4: seven chunks, by hand.
#[test]
fn the_rfcs_tree_of_seven() {
    let tree = whole(7);
    let p = |a: &Digest, b: &Digest| HASH.parent(a, b);
    let node1 = p(&leaf(0), &leaf(1));
    let node3 = p(&node1, &p(&leaf(2), &leaf(3)));
    let node9 = p(&leaf(4), &leaf(5));
    let node11 = p(&node9, &p(&leaf(6), &HASH.zero()));
    assert_eq!(tree.peaks(), [(bin(3), node3), (bin(9), node9), (bin(12), leaf(6))]);
    assert_eq!(tree.root(), Some(p(&node3, &node11)));
    // The uncles of C4 are its sibling alone, its parent being a peak; those of C0 are 5 and 2.
    let nothing = Binmap::new();
    assert_eq!(proof_of(&tree, 4, &nothing), Some(vec![(bin(10), leaf(5))]));
    let node5 = p(&leaf(2), &leaf(3));
    assert_eq!(proof_of(&tree, 0, &nothing), Some(vec![(bin(5), node5), (bin(2), leaf(1))]));
    // §5.3: who has chunk 2 knows node 1 already.
    let has: Binmap = [bin(4)].into_iter().collect();
    assert_eq!(proof_of(&tree, 0, &has), Some(vec![(bin(2), leaf(1))]));
    assert_eq!((proof_of(&tree, 6, &nothing), proof_of(&tree, 7, &nothing)), (Some(vec![]), None));
}

/// However a tree grows, it is the same one; every size has its own root.
#[test]
fn trees_grow_in_any_steps() {
    let mut roots = std::collections::HashSet::new();
    for chunks in 1..70 {
        let at_once = whole(chunks);
        for seed in 0..4 {
            println!("chunks {chunks}, seed {seed}");
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut tree = Tree::growing(HASH, MemoryNodes::new(HASH));
            let all = leaves(HASH, chunks);
            let mut rest = &all[..];
            while !rest.is_empty() {
                let (some, more) = rest.split_at((rng.usize(1..9) * HASH.len()).min(rest.len()));
                tree.extend(some);
                rest = more;
            }
            assert_eq!((tree.root(), tree.peaks()), (at_once.root(), at_once.peaks()));
            assert!(tree.check(|| true));
        }
        assert!(roots.insert(at_once.root()));
    }
    assert_eq!(whole(0).root(), None);
}

/// Chunks that follow each other are judged together as they are one by one: what holds is kept alike, and one that does not has none hold.
#[test]
fn runs_hold_where_each_of_their_chunks_does() {
    let mut held = 0;
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let chunks = rng.u64(2..300);
        let source = whole(chunks);
        let mut tree = Tree::with_root(HASH, source.root().expect("chunks"), Some(chunks), MemoryNodes::new(HASH));
        let mut has = Binmap::new();
        let offers_of = |chunk: u64, has: &Binmap| {
            let mut offers = Offers::new();
            let peaks = if has.is_empty() { source.peaks() } else { Vec::new() };
            let uncles = proof_of(&source, chunk, has).expect("a whole tree");
            peaks.iter().chain(&uncles).for_each(|(bin, digest)| offers.add(*bin, *digest));
            offers
        };
        for _ in 0..rng.u32(1..9) {
            let chunk = rng.u64(..chunks);
            assert_eq!(tree.verify(chunk, leaf(chunk), 8, &offers_of(chunk, &has)), Verdict::Good);
            has.insert_range(chunk..chunk + 1);
        }
        let first = rng.u64(..chunks);
        let end = chunks.min(first + rng.u64(1..70));
        println!("seed {seed}: {first}..{end} of {chunks}, {has:?}");
        let mut leaves: Vec<u8> = (first..end).flat_map(|chunk| leaf(chunk).as_bytes().to_vec()).collect();
        // Each chunk comes with what it needs after those before it, some of which may be lost.
        let is_lossy = rng.bool();
        let mut sent = has.clone();
        let mut offered: Vec<(Bin, Digest)> = Vec::new();
        for chunk in first..end {
            if !is_lossy || rng.u32(..4) > 0 {
                offered.extend(proof_of(&source, chunk, &sent).expect("a whole tree"));
            }
            sent.insert_range(chunk..chunk + 1);
        }
        let find = |bin: Bin| offered.iter().rev().find(|(of, _)| *of == bin).map(|(_, digest)| *digest);
        // A chunk that is not the content's, a digest of nothing: the run does not hold, and nothing is kept.
        let wrong = rng.usize(..leaves.len());
        leaves[wrong] ^= 1;
        let mut lied = tree.clone();
        assert!(!lied.verify_run(first, &leaves, find));
        leaves[wrong] ^= 1;
        assert!(!lied.verify_run(first + 1, &leaves, find), "at another place");
        let same = |one: &Tree<MemoryNodes>, other: &Tree<MemoryNodes>| {
            (0..2 * chunks - 1).filter_map(Bin::from_u64).all(|bin| one.node(bin) == other.node(bin))
        };
        assert!(same(&lied, &tree));
        let mut lies = offered.clone();
        lies.iter_mut().for_each(|(_, digest)| *digest = leaf(9999));
        let by_lies = |bin: Bin| lies.iter().find(|(of, _)| *of == bin).map(|(_, digest)| *digest);
        if lied.verify_run(first, &leaves, by_lies) {
            assert!(first > 0 || end < chunks || !has.is_empty(), "what is known alone proved it");
        }
        let mut together = tree.clone();
        let holds = together.verify_run(first, &leaves, find);
        // Whatever is known after it is the content's.
        let is_true = |bin: Bin| together.node(bin).is_none_or(|digest| source.node(bin) == Some(digest));
        assert!((0..2 * chunks - 1).filter_map(Bin::from_u64).all(is_true));
        if !holds {
            assert!(same(&together, &tree));
            let peaks = Bin::peaks(chunks).filter(|peak| peak.start() < end && first < peak.end()).count();
            assert!(is_lossy || peaks > 1, "nothing was missing");
            continue;
        }
        held += 1;
        // Siblings prove each other within a run: one by one, no fewer digests do than each chunk needs.
        let mut sent = has.clone();
        for chunk in first..end {
            let verdict = tree.verify(chunk, leaf(chunk), 8, &offers_of(chunk, &sent));
            assert_eq!(verdict, Verdict::Good, "chunk {chunk} by itself");
            assert_eq!(together.node(Bin::chunk(chunk).expect("a chunk")), Some(leaf(chunk)));
            sent.insert_range(chunk..chunk + 1);
        }
        // All that lies within it is known.
        let within = |bin: &Bin| first <= bin.start() && bin.end() <= end;
        assert!(
            (0..2 * chunks - 1)
                .filter_map(Bin::from_u64)
                .filter(within)
                .all(|bin| together.node(bin) == source.node(bin))
        );
    }
    assert!(held > 100, "{held}");
    let mut none = Tree::with_root(HASH, leaf(0), None, MemoryNodes::new(HASH));
    assert!(!none.verify_run(0, leaf(0).as_bytes(), |_| None) && !whole(4).verify_run(3, &leaves(HASH, 2), |_| None));
}

/// A leecher that knows the root, and perhaps the size, takes the chunks in any order, each with no more than it needs, and
/// can serve each of them at once.
#[test]
fn every_datagram_verifies_by_itself() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let chunks = rng.u64(1..200);
        let source = whole(chunks);
        let told = rng.bool().then_some(chunks);
        let mut tree = Tree::with_root(HASH, source.root().expect("chunks"), told, MemoryNodes::new(HASH));
        let mut order: Vec<u64> = (0..chunks).collect();
        rng.shuffle(&mut order);
        let mut has = Binmap::new();
        let way = RefCell::new(SiblingPath::default());
        let proof = |chunk, has: &Binmap| {
            let uncles = uncles_by(&source, chunk, has, &mut way.borrow_mut()).expect("a whole tree");
            let mut offers = Offers::new();
            // §5.6.2: the peaks go ahead of the first chunk.
            let peaks = if has.is_empty() { source.peaks() } else { Vec::new() };
            peaks.iter().chain(&uncles).for_each(|(bin, digest)| offers.add(*bin, *digest));
            (uncles, offers)
        };
        if told.is_none() && chunks > 1 {
            // Another chunk than the last only claims a size.
            assert_eq!(tree.verify(0, leaf(0), 8, &proof(0, &has).1), Verdict::Missing);
            assert_eq!((tree.chunks_claimed(), tree.chunk_count()), (Some(chunks), None));
            let last = order.iter().position(|chunk| *chunk == chunks - 1).expect("one of them");
            order.swap(0, last);
        }
        for chunk in order {
            let (uncles, offers) = proof(chunk, &has);
            // A lie first, which leaves nothing behind.
            if rng.bool() {
                assert_ne!(tree.verify(chunk, leaf(chunk + 1), 8, &offers), Verdict::Good);
            }
            if !uncles.is_empty() && rng.bool() && !has.is_empty() {
                let mut forged = offers.clone();
                forged.add(uncles[rng.usize(..uncles.len())].0, leaf(999));
                assert_eq!(tree.verify(chunk, leaf(chunk), 8, &forged), Verdict::Wrong);
                assert_eq!(tree.verify(chunk, leaf(chunk), 8, &Offers::new()), Verdict::Missing);
            }
            assert_eq!(tree.verify(chunk, leaf(chunk), 8, &offers), Verdict::Good);
            has.insert(Bin::chunk(chunk).expect("a chunk"));
            assert_eq!((tree.chunk_count(), tree.chunks_claimed()), (Some(chunks), None));
            let nothing = Binmap::new();
            assert_eq!(proof_of(&tree, chunk, &nothing), proof_of(&source, chunk, &nothing), "can be served");
            assert_eq!(tree.verify(chunks, leaf(chunks), 8, &offers), Verdict::Wrong, "past the end");
        }
        assert!(tree.check(|| true));
    }
}

/// What a root alone cannot refute, and the proof of the size does.
#[test]
fn no_size_is_believed_before_its_last_chunk() {
    let source = whole(7);
    let root = source.root().expect("chunks");
    let offers = |nodes: &[(Bin, Digest)]| {
        let mut offers = Offers::new();
        nodes.iter().for_each(|(bin, digest)| offers.add(*bin, *digest));
        offers
    };
    let mut tree = Tree::with_root(HASH, root, None, MemoryNodes::new(HASH));
    for forged in [whole(6).peaks(), whole(8).peaks(), source.peaks()[1..].to_vec(), source.peaks()[..2].to_vec()] {
        assert_eq!(tree.verify(0, leaf(0), 8, &offers(&forged)), Verdict::Missing);
        assert_eq!(tree.chunks_claimed(), None);
    }
    // One peak over eight, or over everything, is a claim that no chunk can prove.
    for (forged, last) in [(bin(7), 7), (Bin::ALL, crate::bin::CHUNKS_MAX - 1)] {
        assert_eq!(tree.verify(last, leaf(7), 8, &offers(&[(forged, root)])), Verdict::Missing);
        assert_eq!(tree.chunks_claimed(), Some(last + 1));
    }
    // "One chunk" that is the root's children.
    let node = |number| match number {
        11 => HASH.parent(&source.node(bin(9)).expect("a peak"), &HASH.parent(&leaf(6), &HASH.zero())),
        number => source.node(bin(number)).expect("complete"),
    };
    let children = [node(3).as_bytes(), node(11).as_bytes()].concat();
    assert_eq!(HASH.hash(&children), root);
    assert_eq!(tree.verify(0, root, children.len(), &Offers::new()), Verdict::Missing);
    assert_eq!(tree.chunk_count(), None);
    assert_eq!(tree.verify(6, leaf(6), 8, &offers(&source.peaks())), Verdict::Good);
    assert_eq!(tree.chunk_count(), Some(7));
    assert_eq!(tree.verify(u64::MAX, leaf(0), 8, &Offers::new()), Verdict::Wrong);
    let mut one = Tree::with_root(HASH, leaf(0), None, MemoryNodes::new(HASH));
    assert_eq!((one.verify(0, leaf(0), 8, &Offers::new()), one.chunk_count()), (Verdict::Good, Some(1)));
    let mut many = Offers::new();
    (0..2 * OFFERS_MAX as u64).for_each(|chunk| many.add(Bin::chunk(chunk).expect("a chunk"), leaf(chunk)));
    assert_eq!((many.len(), many.get(bin(0))), (OFFERS_MAX, None));
}

#[test]
fn a_tree_from_disk_needs_no_hashing_of_its_content() {
    let tree = whole(37);
    let sidecar = Sidecar { hash: HASH, chunk_len: 8, content_len: 37 * 8 - 3, root: tree.root().expect("chunks") };
    let nodes = sidecar.file_len().expect("small") as usize - SIDECAR_HEADER_LEN;
    let nodes = (nodes / HASH.len()) as u64;
    // In two parts, as a driver streams them.
    let file = [&sidecar.encode()[..], &sidecar.export(&tree, 0, 30), &sidecar.export(&tree, 30, nodes)].concat();
    let (header, read) = Sidecar::import(&file).expect("just written");
    assert_eq!((header, read.peaks()), (sidecar, tree.peaks()));
    for chunk in 0..37 {
        let at = sidecar.node_offset(Bin::chunk(chunk).expect("a chunk")) as usize;
        assert_eq!(file[at..at + HASH.len()], *leaf(chunk).as_bytes());
        let nothing = Binmap::new();
        assert_eq!(proof_of(&read, chunk, &nothing), proof_of(&tree, chunk, &nothing));
    }
    for seed in 0..60 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut broken = file.clone();
        match rng.u8(..3) {
            0 => broken.truncate(rng.usize(..file.len())),
            1 => broken.push(0),
            _ => {
                let at = rng.usize(..file.len());
                broken[at] ^= 1 << rng.u8(..8);
            }
        }
        match Sidecar::import(&broken) {
            // Nodes past the content, and the exact length of its last chunk, are nothing that the root knows.
            Ok((header, read)) => {
                assert_eq!((header.root, read.peaks()), (sidecar.root, tree.peaks()));
            }
            Err(error) => println!("{error}"),
        }
    }
    let absurd = Sidecar { content_len: u64::MAX, chunk_len: 1, ..sidecar };
    assert_eq!((Sidecar::parse(&absurd.encode()), absurd.file_len()), (Ok(absurd), None));
    assert_eq!(Sidecar::import(&absurd.encode()).map(|_| ()), Err(SidecarError::Length));
}

/// A node that is another one or missing, wherever it is: the tree does not hold.
#[test]
fn a_tree_that_is_damaged_anywhere_does_not_hold() {
    let mut rng = fastrand::Rng::with_seed(7);
    // Subtrees that are checked together have 512 chunks.
    for chunks in [1, 2, 511, 512, 513, 1536, 1601] {
        let tree = whole(chunks);
        assert!(tree.check(|| true) && !tree.check(|| false));
        let all: Vec<Bin> = (0..2 * chunks - 1).map(bin).filter(|bin| bin.end() <= chunks).collect();
        let highest = all.iter().max_by_key(|bin| bin.layer()).copied();
        let some = (0..12).map(|_| all[rng.usize(..all.len())]);
        for bin in some.chain([all[0], all[all.len() - 1]]).chain(highest) {
            for digest in [HASH.hash(b"another"), HASH.zero()] {
                let root = tree.root().expect("chunks");
                let mut damaged = Tree::with_root(HASH, root, Some(chunks), tree.nodes().clone());
                damaged.nodes_mut().put(bin, &digest);
                assert!(!damaged.check(|| true), "{bin:?} of {chunks} chunks");
            }
        }
    }
}

const LIVE: Codec = Codec {
    dialect: Dialect::Rfc7574,
    addressing: Addressing::Chunks32,
    hash: HASH,
    signature_len: 64,
    chunk_len: Some(1024),
};

fn key() -> SigningKey {
    let algorithm = SignatureAlgorithm::EcdsaP256Sha256;
    SigningKey::from_pkcs8(algorithm, &SigningKey::generate(algorithm).expect("random")).expect("just made")
}

const fn ntp(second: u64) -> u64 {
    (3_900_000_000 + second) << 32
}

#[test]
fn latecomers_believe_the_source_alone() {
    let mut source = LiveSource::new(key(), LIVE, 4, None).expect("a power of two");
    let public = source.key().clone();
    for chunk in 0..23 {
        let munro = source.push(&u64::to_be_bytes(chunk), ntp(chunk)).expect("signed");
        assert_eq!(munro.map(|munro| munro.chunks), (chunk % 4 == 3).then(|| chunk - 3..chunk + 1));
    }
    assert_eq!(source.checkpoint().chunk_next, 20, "the subtree that is not full is not there yet");
    let mut viewer = LiveTree::new(HASH);
    let newest = tree(&source).newest().expect("signed").clone();
    assert_eq!(newest.node.range(), 16..20);
    let now = ntp(25);
    let change = |change: fn(&mut Munro)| {
        let mut munro = newest.clone();
        change(&mut munro);
        munro
    };
    for forged in [
        change(|munro| munro.digest = leaf(7)),
        change(|munro| munro.ntp += 1),
        change(|munro| munro.node = Bin::new(2, 6).expect("a node")),
        change(|munro| munro.node = Bin::new(1, 8).expect("a node")),
        change(|munro| munro.node = Bin::ALL),
        change(|munro| munro.signature[3] ^= 1),
        change(|munro| munro.signature.clear()),
    ] {
        assert_eq!(viewer.offer(&public, &LIVE, forged, now), MunroVerdict::Wrong);
    }
    assert_eq!(viewer.offer(key().public(), &LIVE, newest.clone(), now), MunroVerdict::Wrong, "another key");
    assert_eq!(viewer.offer(&public, &LIVE, newest.clone(), ntp(20 + STALE_AFTER_S)), MunroVerdict::Stale);
    assert_eq!(viewer.offer(&public, &LIVE, newest.clone(), ntp(19 + STALE_AFTER_S)), MunroVerdict::New);
    assert_eq!(viewer.offer(&public, &LIVE, newest.clone(), now), MunroVerdict::Known);
    assert_eq!(viewer.verify(12, leaf(12), &Offers::new()), Verdict::Missing, "its munro is not known");
    for chunk in [18, 16, 19, 17] {
        let mut offers = Offers::new();
        for (bin, digest) in tree(&source).uncles(chunk, |_| false).expect("the source has all") {
            offers.add(bin, digest);
        }
        assert_eq!(viewer.verify(chunk, leaf(chunk + 1), &offers), Verdict::Wrong);
        assert_eq!(viewer.verify(chunk, leaf(chunk), &offers), Verdict::Good);
        assert_eq!(viewer.uncles(chunk, |_| false), tree(&source).uncles(chunk, |_| false), "re-served");
    }
    // Older munros of the same stream are taken too, until they lie behind the window.
    let older = tree(&source).munro(9).expect("signed").clone();
    assert_eq!(viewer.offer(&public, &LIVE, older.clone(), now), MunroVerdict::New);
    viewer.discard_before(18);
    assert_eq!((viewer.len(), viewer.offer(&public, &LIVE, older, now)), (1, MunroVerdict::Known));
    assert_eq!(viewer.verify(9, leaf(9), &Offers::new()), Verdict::Missing);
}

/// A stream that begins anew and went past where the old one was is taken for that one going on; one that is counted from further down is
/// not, however long it went on, and what is signed as one has its place among the others.
#[test]
fn a_stream_that_is_counted_from_further_down_is_a_new_one() {
    let algorithm = SignatureAlgorithm::EcdsaP256Sha256;
    let document = SigningKey::generate(algorithm).expect("random");
    let key = || SigningKey::from_pkcs8(algorithm, &document).expect("just made");
    let newest = |first: u64, groups: u64, second: u64| {
        let mut source = LiveSource::new(key(), LIVE, 2, None).expect("fine");
        source.go_on_from(Checkpoint { chunk_next: first, ntp: 0 }).expect("even");
        let chunks = first..first + 2 * groups;
        for chunk in chunks {
            source.push(&u64::to_be_bytes(chunk), ntp(second)).expect("signed");
        }
        signed(&source)
    };
    for (old, new, verdict) in [
        ((0, 2), (0, 9), MunroVerdict::New),
        ((100, 2), (0, 9), MunroVerdict::Restarted),
        ((100, 2), (0, 52), MunroVerdict::Restarted),
        ((100, 2), (0, 53), MunroVerdict::New),
    ] {
        let mut viewer = LiveTree::new(HASH);
        assert_eq!(viewer.offer(key().public(), &LIVE, newest(old.0, old.1, 1), ntp(1)), MunroVerdict::New);
        assert_eq!(viewer.offer(key().public(), &LIVE, newest(new.0, new.1, 2), ntp(2)), verdict, "{old:?} {new:?}");
    }
    let mut source = LiveSource::new(key(), LIVE, 2, None).expect("fine");
    assert!(source.go_on_from(Checkpoint { chunk_next: 1, ntp: 0 }).is_err());
    source.push(&u64::to_be_bytes(0), ntp(1)).expect("taken in");
    assert!(source.go_on_from(Checkpoint { chunk_next: 2, ntp: 0 }).is_err(), "something was taken in");
}

#[test]
fn a_source_goes_on_or_begins_anew() {
    let algorithm = SignatureAlgorithm::EcdsaP256Sha256;
    let document = SigningKey::generate(algorithm).expect("random");
    let again = || SigningKey::from_pkcs8(algorithm, &document).expect("just made");
    let public = again().public().clone();
    let munro = |source: &mut LiveSource, second| {
        let first = source.checkpoint().chunk_next;
        source.push(&u64::to_be_bytes(first), ntp(second)).expect("signed");
        source.push(&u64::to_be_bytes(first + 1), ntp(second)).expect("signed").expect("full");
        signed(source)
    };
    let mut source = LiveSource::new(again(), LIVE, 2, None).expect("fine");
    let (first, second) = (munro(&mut source, 1), munro(&mut source, 2));
    let mut viewer = LiveTree::new(HASH);
    assert_eq!(viewer.offer(&public, &LIVE, first.clone(), ntp(2)), MunroVerdict::New);
    assert_eq!(viewer.offer(&public, &LIVE, second.clone(), ntp(2)), MunroVerdict::New);
    // With its checkpoint: the next subtree, whatever the clock says now.
    let mut resumed = LiveSource::new(again(), LIVE, 2, Some(source.checkpoint())).expect("fine");
    let third = munro(&mut resumed, 0);
    assert_eq!((third.node.start(), third.ntp), (4, second.ntp + 1));
    assert_eq!(viewer.offer(&public, &LIVE, third, ntp(3)), MunroVerdict::New);
    // Without: from 0 again, newer.
    let mut anew = LiveSource::new(again(), LIVE, 2, None).expect("fine");
    let restarted = munro(&mut anew, 9);
    assert_eq!(viewer.offer(&public, &LIVE, restarted, ntp(9)), MunroVerdict::Restarted);
    assert_eq!(viewer.len(), 1);
    // Replays of the old stream do not bring it back.
    assert_eq!(viewer.offer(&public, &LIVE, first, ntp(9)), MunroVerdict::Known);
    assert_eq!(viewer.offer(&public, &LIVE, second, ntp(9)), MunroVerdict::Stale, "further on, and signed before");
    assert_eq!((viewer.len(), viewer.newest().map(|munro| munro.node.end())), (1, Some(2)));
    let error = |chunks, checkpoint| LiveSource::new(again(), LIVE, chunks, checkpoint).map(|_| ());
    let at = |chunk_next| Some(Checkpoint { chunk_next, ntp: 0 });
    for bad in [0, 1, 3, 8192] {
        assert_eq!(error(bad, None), Err(LiveError::ChunksPerSignature));
    }
    assert_eq!((error(4, at(8)), error(4, at(6))), (Ok(()), Err(LiveError::Checkpoint)));
}
