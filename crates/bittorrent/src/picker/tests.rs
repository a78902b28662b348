//! The picker in random swarms and virtual time. Every property prints its seed through proptest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anabranch_content::geometry::BLOCK_LEN;
use proptest::prelude::*;

use super::*;

const A: ConnId = ConnId(0);
const B: ConnId = ConnId(1);
const MB: u64 = 1 << 20;

fn geometry(pieces: u32, blocks: u32) -> Geometry {
    Geometry::new(blocks * BLOCK_LEN, u64::from(pieces * blocks * BLOCK_LEN) - 7, Vec::new())
}

fn picker(pieces: u32, blocks: u32, config: PickerConfig) -> Picker {
    Picker::new(geometry(pieces, blocks), &Bitfield::new(pieces), config)
}

fn pick(picker: &mut Picker, conn: ConnId, has: &Bitfield, blocks: usize, rate: u64) -> Vec<BlockRef> {
    let mut out = Vec::new();
    picker.pick(conn, has, None, blocks, Pace { rate_bytes: rate, ..Pace::default() }, Instant::now(), &mut out);
    out
}

fn field(len: u32, pieces: impl IntoIterator<Item = u32>) -> Bitfield {
    let mut field = Bitfield::new(len);
    pieces.into_iter().for_each(|piece| assert!(field.set(piece)));
    field
}

fn receive_all(picker: &mut Picker, conn: ConnId, blocks: &[BlockRef]) {
    for block in blocks {
        assert!(matches!(picker.received(conn, *block), Received::First { .. }));
    }
}

#[derive(Clone, Debug)]
struct Swarm {
    seed: u64,
    pieces: u32,
    blocks: u32,
    peers: u32,
    order: PieceOrder,
    strategy: RequestStrategy,
}

fn swarms() -> impl Strategy<Value = Swarm> {
    let order = prop_oneof![Just(PieceOrder::RarestFirst), Just(PieceOrder::Sequential)];
    let strategy = prop_oneof![
        Just(RequestStrategy::PrioritizeFastest),
        Just(RequestStrategy::FuzzyPrioritized),
        Just(RequestStrategy::StrictlyPrioritized)
    ];
    (any::<u64>(), 1..40u32, 1..9u32, 1..8u32, order, strategy).prop_map(
        |(seed, pieces, blocks, peers, order, strategy)| Swarm { seed, pieces, blocks, peers, order, strategy },
    )
}

/// Runs a swarm whose peers answer in random order, fail now and then, choke, leave and lie; answers the picks.
fn run(swarm: &Swarm) -> Vec<(ConnId, BlockRef)> {
    let mut rng = fastrand::Rng::with_seed(swarm.seed);
    let config = PickerConfig { order: swarm.order, strategy: swarm.strategy, seed: swarm.seed, ..Default::default() };
    let mut picker = picker(swarm.pieces, swarm.blocks, config);
    let start = Instant::now();
    // The first peer is a seed that never leaves, so that the swarm can finish.
    let mut peers: BTreeMap<ConnId, (Bitfield, u64, Tally)> = BTreeMap::new();
    for conn in 0..swarm.peers {
        let some = (0..swarm.pieces).filter(|_| rng.bool()).collect::<Vec<_>>();
        let has = if conn == 0 { Bitfield::full(swarm.pieces) } else { field(swarm.pieces, some) };
        let tally = picker.peer_joined(&has);
        peers.insert(ConnId(conn), (has, rng.u64(..4 * MB), tally));
    }
    let mut next_conn = swarm.peers;
    let mut flying: BTreeSet<(ConnId, BlockRef)> = BTreeSet::new();
    let mut got: BTreeSet<BlockRef> = BTreeSet::new();
    let mut log = Vec::new();
    let failures_max = swarm.pieces * 2;
    let mut failures = 0;
    for step in 0..200_000u64 {
        if picker.wanted_missing_count() == 0 {
            break;
        }
        let now = start + Duration::from_millis(step);
        let conns: Vec<ConnId> = peers.keys().copied().collect();
        let conn = conns[rng.usize(..conns.len())];
        if rng.u32(..10) == 0 {
            picker.suggested(PeerKey(conn.0 / 2), rng.u32(..swarm.pieces), now);
            picker.set_full_peers(rng.u32(..3));
        }
        match rng.u32(..100) {
            0..40 => {
                let (has, rate, _) = &peers[&conn];
                let mut out = Vec::new();
                let others = flying.clone();
                // Some are paths to a peer that has others, as slow as it comes.
                let arrives_at = now + Duration::from_millis(rng.u64(..500));
                let path = (!conn.0.is_multiple_of(3))
                    .then(|| PathPace { lead_bytes: rng.u64(..40 * u64::from(BLOCK_LEN)) * rng.u64(..2), arrives_at });
                picker.pick(
                    conn,
                    has,
                    None,
                    rng.usize(1..12),
                    Pace {
                        rate_bytes: *rate,
                        path,
                        is_near: false,
                        peer: Some(PeerKey(conn.0 / 2)),
                        is_busy: rng.bool(),
                    },
                    now,
                    &mut out,
                );
                for (at, block) in out.iter().enumerate() {
                    assert!(has.get(block.piece), "peer lacks {block:?}");
                    assert!(!got.contains(block), "{block:?} is there already");
                    assert!(flying.insert((conn, *block)), "{block:?} twice to one peer");
                    let holders = others.iter().filter(|(_, other)| other == block).count();
                    assert!(holders <= DUPLICATES_MAX);
                    assert!(
                        holders == 0 || picker.endgame(),
                        "{block:?} (pick {at}) assigned twice outside the endgame"
                    );
                    log.push((conn, *block));
                }
            }
            40..90 => {
                let of: Vec<_> = flying.iter().copied().collect();
                if of.is_empty() {
                    continue;
                }
                let (from, block) = of[rng.usize(..of.len())];
                match picker.received(from, block) {
                    Received::First { also_requested_from, piece_complete } => {
                        assert!(got.insert(block), "{block:?} counted twice");
                        let mut holders = also_requested_from.clone();
                        holders.push(from);
                        holders.sort();
                        let expected: Vec<ConnId> =
                            flying.iter().filter(|(_, b)| *b == block).map(|(c, _)| *c).collect();
                        assert_eq!(holders, expected);
                        flying.retain(|(_, other)| *other != block);
                        assert_eq!(
                            piece_complete,
                            (0..swarm.blocks.min(99)).all(|b| {
                                b >= picker.geometry.block_count(block.piece)
                                    || got.contains(&BlockRef { piece: block.piece, block: b })
                            })
                        );
                        if piece_complete {
                            assert_eq!(
                                picker.contributors(block.piece).count() as u32,
                                picker.geometry.block_count(block.piece)
                            );
                            if failures < failures_max && rng.u32(..4) == 0 {
                                failures += 1;
                                let suspects = picker.contributors(block.piece).map(|(_, conn)| conn).collect();
                                picker.prefer_single_source(block.piece, suspects);
                                picker.piece_failed(block.piece);
                                got.retain(|other| other.piece != block.piece);
                            } else {
                                picker.piece_passed(block.piece);
                            }
                        }
                    }
                    other => panic!("{other:?} for an outstanding block"),
                }
            }
            90..95 => {
                let of: Vec<_> = flying.iter().filter(|(by, _)| *by == conn).copied().collect();
                if !of.is_empty() {
                    let (_, block) = of[rng.usize(..of.len())];
                    picker.returned(conn, block);
                    flying.remove(&(conn, block));
                }
            }
            95..97 => {
                picker.withdrawn_all(conn, held(&flying, conn).into_iter());
                flying.retain(|(by, _)| *by != conn);
            }
            97 => {
                let (has, ..) = peers.get_mut(&conn).unwrap();
                let piece = rng.u32(..swarm.pieces);
                if has.set(piece) {
                    picker.peer_has(piece);
                } else if conn != ConnId(0) && has.clear(piece) {
                    picker.withdrawn_all(conn, held(&flying, conn).into_iter());
                    flying.retain(|(by, _)| *by != conn);
                    picker.peer_lost_piece(piece);
                }
            }
            98 => picker.set_priority(rng.u32(..swarm.pieces), Priority::new(rng.u8(1..8)).unwrap()),
            _ if conn != ConnId(0) => {
                let (has, rate, tally) = peers.remove(&conn).unwrap();
                picker.peer_left(&has, tally);
                picker.forget(conn, held(&flying, conn).into_iter());
                flying.retain(|(by, _)| *by != conn);
                let tally = picker.peer_joined(&has);
                peers.insert(ConnId(next_conn), (has, rate, tally));
                next_conn += 1;
            }
            _ => {}
        }
        if step % 16 == 0 {
            check(&picker, &peers, &flying, &got);
        }
    }
    assert_eq!(picker.wanted_missing_count(), 0, "not finished");
    assert_eq!((picker.open_bytes(), picker.requested_count(), picker.open_count()), (0, 0, 0));
    log
}

fn held(flying: &BTreeSet<(ConnId, BlockRef)>, conn: ConnId) -> Vec<BlockRef> {
    flying.iter().filter(|(by, _)| *by == conn).map(|(_, block)| *block).collect()
}

/// Everything the picker counts, counted naively.
fn check(
    picker: &Picker,
    peers: &BTreeMap<ConnId, (Bitfield, u64, Tally)>,
    flying: &BTreeSet<(ConnId, BlockRef)>,
    got: &BTreeSet<BlockRef>,
) {
    picker.pieces.check();
    for piece in 0..picker.pieces.count() {
        let naive = peers.values().filter(|(has, ..)| has.get(piece)).count();
        assert_eq!(picker.availability(piece), naive as u32, "availability of {piece}");
    }
    let requested: BTreeSet<BlockRef> = flying.iter().map(|(_, block)| *block).collect();
    assert_eq!(picker.requested_count(), requested.len() as u64);
    let unverified = got.iter().filter(|block| picker.wants(block.piece));
    let bytes = |block: &BlockRef| u64::from(picker.geometry.block_len(block.piece, block.block));
    assert_eq!(picker.open_bytes(), requested.iter().chain(unverified).map(bytes).sum::<u64>());
    for (conn, (has, ..)) in peers {
        let mut requested = picker.requested_from(*conn);
        requested.sort();
        assert_eq!(requested, held(flying, *conn));
        let naive = has.iter_ones().filter(|piece| picker.wants(*piece)).count();
        assert_eq!(picker.wanted_count(has) as usize, naive);
    }
    let free: u32 = picker.open.iter().map(|open| open.free).sum();
    assert_eq!(picker.free, u64::from(free));
    let partials: BTreeSet<u32> = picker.open.iter().filter(|open| open.free > 0).map(|open| open.piece).collect();
    assert_eq!(picker.partials, partials);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn random_swarms_finish_with_every_block_counted_once(swarm in swarms()) {
        run(&swarm);
    }

    #[test]
    fn the_same_seed_gives_the_same_picks(swarm in swarms()) {
        prop_assert_eq!(run(&swarm), run(&swarm));
    }

    #[test]
    fn the_bit_scan_equals_a_naive_one(seed: u64, len in 0u32..300, from in 0u32..320) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let left = field(len, (0..len).filter(|_| rng.bool()));
        let right = field(len, (0..len).filter(|_| rng.bool()));
        let naive: Vec<u32> = (from..len.max(from)).filter(|piece| left.get(*piece) && right.get(*piece)).collect();
        prop_assert_eq!(pieces::common(&left, &right, from).collect::<Vec<_>>(), naive.clone());
        if from == 0 {
            prop_assert_eq!(pieces::common_count(&left, &right) as usize, naive.len());
        }
    }
}

#[test]
fn blocks_of_a_piece_go_to_one_peer_in_order() {
    let (mut picker, has) = (picker(16, 8, PickerConfig::default()), Bitfield::full(16));
    let first = pick(&mut picker, A, &has, 3, 10 * MB);
    let other = pick(&mut picker, B, &has, 8, 10 * MB);
    let rest = pick(&mut picker, A, &has, 5, 10 * MB);
    assert_eq!(first.iter().chain(&rest).map(|block| block.block).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert!(rest.iter().all(|block| block.piece == first[0].piece));
    assert!(other.iter().all(|block| block.piece == other[0].piece && block.piece != first[0].piece));
}

#[test]
fn after_the_first_piece_the_rarest_comes_first() {
    let mut picker = picker(32, 2, PickerConfig::default());
    let (seed, most) = (Bitfield::full(32), field(32, (0..32).filter(|piece| *piece != 21)));
    for has in [&seed, &most, &most] {
        picker.peer_joined(has);
    }
    let first = pick(&mut picker, A, &most, 2, MB);
    receive_all(&mut picker, A, &first);
    picker.piece_passed(first[0].piece);
    assert_eq!(pick(&mut picker, A, &seed, 2, MB)[0].piece, 21);
}

/// Were one of these a walk over all pieces, this would take days.
#[test]
fn what_a_seed_loses_and_gains_costs_what_it_says() {
    const PIECES: u32 = 100_000;
    let (mut picker, mut has) = (picker(PIECES, 1, PickerConfig::default()), Bitfield::full(PIECES));
    let tally = picker.peer_joined(&has);
    for _ in 0..1_000_000 {
        picker.peer_lost_piece(7);
        picker.peer_has(7);
    }
    assert_eq!(picker.availability(7), 1);
    has.clear(7);
    picker.peer_lost_piece(7);
    assert_eq!((picker.availability(7), picker.availability(8)), (0, 1));
    picker.peer_left(&has, tally);
    assert_eq!((picker.availability(7), picker.availability(8)), (0, 0));
}

#[test]
fn a_peer_with_few_common_pieces_is_served_past_the_shelf_scan() {
    let mut picker = picker(5000, 1, PickerConfig::default());
    picker.piece_passed(0);
    // 4000 rare pieces this peer does not have lie before the one it has.
    let (rare, one) = (field(5000, 0..4000), field(5000, [4321]));
    for _ in 0..3 {
        picker.peer_joined(&one);
    }
    picker.peer_joined(&rare);
    assert_eq!(pick(&mut picker, A, &one, 4, MB), [BlockRef { piece: 4321, block: 0 }]);
}

#[test]
fn sequential_goes_from_the_front_and_deadlines_go_before_it() {
    let config = PickerConfig { order: PieceOrder::Sequential, ..Default::default() };
    let (mut picker, has, now) = (picker(16, 2, config), Bitfield::full(16), Instant::now());
    picker.set_priority(0, Priority::SKIP);
    picker.set_deadline(9, Some(now + Duration::from_secs(60)));
    picker.set_deadline(7, Some(now + Duration::from_secs(30)));
    picker.set_deadline(5, Some(now));
    picker.set_deadline(5, None);
    let pieces: Vec<u32> = pick(&mut picker, A, &has, 10, MB).iter().step_by(2).map(|block| block.piece).collect();
    assert_eq!(pieces, [7, 9, 1, 2, 3]);
}

#[test]
fn a_late_piece_is_asked_of_several_peers_but_not_strictly() {
    for (strategy, copies) in [(RequestStrategy::PrioritizeFastest, 2), (RequestStrategy::StrictlyPrioritized, 0)] {
        let (mut picker, has, now) =
            (picker(16, 2, PickerConfig { strategy, ..Default::default() }), Bitfield::full(16), Instant::now());
        picker.set_deadline(7, Some(now));
        let first = pick(&mut picker, A, &has, 2, MB);
        assert_eq!(first[0].piece, 7);
        let second = pick(&mut picker, B, &has, 2, MB);
        assert_eq!(second.iter().filter(|block| block.piece == 7).count(), copies);
    }
}

#[test]
fn the_endgame_doubles_up_to_the_limit_and_reports_whom_to_cancel() {
    let (mut picker, has) = (picker(1, 4, PickerConfig::default()), Bitfield::full(1));
    let blocks = pick(&mut picker, A, &has, 4, 1000);
    assert!(picker.endgame());
    for conn in 1..=DUPLICATES_MAX as u32 {
        assert_eq!(pick(&mut picker, ConnId(conn), &has, 9, MB).len(), 4, "{conn}");
        assert_eq!(pick(&mut picker, ConnId(conn), &has, 9, MB).len(), 0, "no block twice to one peer");
    }
    assert_eq!(pick(&mut picker, ConnId(77), &has, 9, MB).len(), 0);
    let also_requested_from = vec![A, ConnId(2)];
    assert_eq!(picker.received(B, blocks[0]), Received::First { also_requested_from, piece_complete: false });
    assert_eq!(picker.received(A, blocks[0]), Received::Duplicate);
}

#[test]
fn a_slow_peer_does_not_double_what_a_fast_one_has_under_way() {
    let (mut picker, has) = (picker(1, 4, PickerConfig::default()), Bitfield::full(1));
    pick(&mut picker, A, &has, 4, 2000);
    assert_eq!(pick(&mut picker, B, &has, 4, 999).len(), 0);
    assert_eq!(pick(&mut picker, B, &has, 4, 1000).len(), 4);
}

#[test]
fn blocks_of_a_mute_peer_go_to_another_once_returned() {
    let (mut picker, has) = (picker(1, 4, PickerConfig::default()), Bitfield::full(1));
    let mute = pick(&mut picker, A, &has, 4, MB);
    mute.iter().for_each(|block| picker.returned(A, *block));
    assert_eq!((picker.open_count(), picker.open_bytes()), (0, 0));
    assert_eq!(pick(&mut picker, B, &has, 4, 0), mute);
}

#[test]
fn whoever_failed_on_a_piece_gets_another_while_there_is_one() {
    let (mut picker, has) = (picker(2, 4, PickerConfig::default()), Bitfield::full(2));
    let first = pick(&mut picker, A, &has, 2, MB);
    picker.returned(A, first[0]);
    let second = pick(&mut picker, A, &has, 4, MB);
    assert!(second.iter().all(|block| block.piece != first[0].piece));
    // Alone in the world it gets the first piece again.
    assert_eq!(pick(&mut picker, A, &has, 9, MB).len(), 3);
}

#[test]
fn a_late_block_is_kept_while_it_is_missing() {
    let (mut picker, has) = (picker(4, 4, PickerConfig::default()), Bitfield::full(4));
    let blocks = pick(&mut picker, A, &has, 2, MB);
    picker.returned(A, blocks[0]);
    assert!(matches!(picker.received(A, blocks[0]), Received::First { piece_complete: false, .. }));
    assert_eq!(picker.received(B, blocks[0]), Received::Duplicate);
    let unknown = [BlockRef { piece: 4, block: 0 }, BlockRef { piece: blocks[0].piece, block: 4 }];
    unknown.iter().for_each(|block| assert_eq!(picker.received(A, *block), Received::NotRequested));
    // Nor does it matter that every request for the piece was returned meanwhile: then it is begun by the block.
    let untouched = BlockRef { piece: (blocks[0].piece + 1) % 4, block: 0 };
    assert!(picker.accepts(A, untouched));
    assert!(matches!(picker.received(A, untouched), Received::First { piece_complete: false, .. }));
    assert!(!picker.accepts(A, untouched));
}

#[test]
fn slow_peers_share_a_piece_and_leave_the_others_whole() {
    let (mut picker, has) = (picker(64, 64, PickerConfig::default()), Bitfield::full(64));
    let slow: Vec<u32> = (0..6).map(|conn| pick(&mut picker, ConnId(conn), &has, 2, 5_000)[0].piece).collect();
    assert!(slow.iter().all(|piece| *piece == slow[0]), "{slow:?}");
    assert_ne!(pick(&mut picker, ConnId(9), &has, 2, 50 * MB)[0].piece, slow[0]);
}

#[test]
fn unfinished_pieces_stay_few() {
    let (mut picker, has) = (picker(1000, 8, PickerConfig::default()), Bitfield::full(1000));
    // A peer that is asked and fails again and again would otherwise leave a trail of begun pieces.
    for _ in 0..200 {
        let blocks = pick(&mut picker, A, &has, 2, MB);
        receive_all(&mut picker, A, &blocks[..1]);
        picker.returned(A, blocks[1]);
        assert!(picker.partials.len() <= 1 + PARTIALS_SPARE);
    }
}

#[test]
fn no_piece_is_begun_past_the_memory_limit_and_fast_peers_come_to_the_rescue() {
    let limit = u64::from(16 * BLOCK_LEN);
    let config = PickerConfig { open_bytes_max: limit, ..Default::default() };
    let (mut picker, has) = (picker(64, 4, config), Bitfield::full(64));
    assert_eq!(pick(&mut picker, A, &has, 100, 1000).len(), 16);
    assert_eq!(picker.open_bytes(), limit);
    assert_eq!(pick(&mut picker, B, &has, 100, 3999).len(), 0);
    assert_eq!(pick(&mut picker, B, &has, 100, 4000).len(), 16);
    assert_eq!(picker.open_bytes(), limit);
}

#[test]
fn one_pick_hands_out_a_bounded_number() {
    let config = PickerConfig { open_bytes_max: u64::MAX, ..Default::default() };
    let (mut picker, has) = (picker(64, 64, config), Bitfield::full(64));
    assert_eq!(pick(&mut picker, A, &has, usize::MAX >> 1, MB).len(), PICK_BLOCKS_MAX);
}

#[test]
fn a_choked_peer_is_asked_for_allowed_fast_pieces_only() {
    let (mut picker, has, mut out) = (picker(16, 2, PickerConfig::default()), field(16, 2..16), Vec::new());
    picker.pick(A, &has, Some(&[1, 3, 99, 5]), 9, Pace::default(), Instant::now(), &mut out);
    assert_eq!(out.iter().map(|block| block.piece).collect::<Vec<_>>(), [3, 3, 5, 5]);
}

#[test]
fn pieces_without_a_hash_wait_for_it() {
    let (mut picker, has) = (picker(2, 1, PickerConfig::default()), Bitfield::full(2));
    (0..2).for_each(|piece| picker.set_fetchable(piece, false));
    assert!(picker.wanted_count(&has) > 0 && pick(&mut picker, A, &has, 9, MB).is_empty());
    picker.set_fetchable(1, true);
    assert_eq!(pick(&mut picker, A, &has, 9, MB), [BlockRef { piece: 1, block: 0 }]);
}

#[test]
fn a_piece_of_padding_alone_is_never_picked() {
    let geometry = Geometry::new(BLOCK_LEN, u64::from(BLOCK_LEN) * 2, vec![(1, 0)]);
    let mut picker = Picker::new(geometry, &Bitfield::new(2), PickerConfig::default());
    picker.set_priority(1, Priority::new(7).unwrap());
    picker.set_fetchable(1, true);
    assert_eq!(pick(&mut picker, A, &Bitfield::full(2), 9, MB).len(), 1);
    picker.piece_passed(1);
    assert_eq!(picker.wanted_missing_count(), 1);
}

#[test]
fn a_suspected_piece_is_fetched_again_from_one_other_peer() {
    let (mut picker, has) = (picker(3, 4, PickerConfig::default()), Bitfield::full(3));
    let blocks = pick(&mut picker, A, &has, 4, MB);
    let bad = blocks[0].piece;
    receive_all(&mut picker, A, &blocks);
    picker.prefer_single_source(bad, vec![A]);
    picker.piece_failed(bad);
    let first = pick(&mut picker, A, &has, 8, MB);
    assert!(first.iter().all(|block| block.piece != bad));
    assert!(pick(&mut picker, B, &has, 2, MB).iter().all(|block| block.piece == bad));
    assert_eq!(pick(&mut picker, ConnId(2), &has, 4, MB).len(), 0, "one source");
    assert_eq!(pick(&mut picker, B, &has, 2, MB).len(), 2);
}

#[test]
fn a_connection_on_parole_works_alone() {
    let (mut picker, has) = (picker(2, 4, PickerConfig::default()), Bitfield::full(2));
    picker.set_parole(B, true);
    let other = pick(&mut picker, A, &has, 2, MB)[0].piece;
    let alone = pick(&mut picker, B, &has, 9, MB);
    assert!(alone.len() == 4 && alone.iter().all(|block| block.piece != other));
}

#[test]
fn a_connection_on_parole_finishes_what_the_gone_have_begun() {
    let (mut picker, has) = (picker(1, 4, PickerConfig::default()), Bitfield::full(1));
    for block in pick(&mut picker, A, &has, 2, MB) {
        picker.received(A, block);
    }
    picker.set_parole(B, true);
    assert_eq!(pick(&mut picker, B, &has, 9, MB), [], "while the other one may go on");
    let left = picker.requested_from(A);
    picker.forget(A, left.into_iter());
    assert_eq!(pick(&mut picker, B, &has, 9, MB).len(), 2);
}

#[test]
fn the_fastest_goes_in_order_and_the_others_where_they_are_inclined() {
    let config = PickerConfig { order: PieceOrder::Sequential, ..Default::default() };
    let (mut picker, has) = (picker(64, 1, config), Bitfield::full(64));
    assert_eq!(pick(&mut picker, A, &has, 2, 10 * MB).iter().map(|b| b.piece).collect::<Vec<_>>(), [0, 1]);
    let others: Vec<u32> =
        (1..9).flat_map(|conn| pick(&mut picker, ConnId(conn), &has, 1, MB)).map(|b| b.piece).collect();
    assert_eq!(pick(&mut picker, A, &has, 1, 10 * MB)[0].piece, (2..64).find(|piece| !others.contains(piece)).unwrap());
    assert!(!others.is_sorted() && others.iter().all(|piece| *piece < 2 + 8 + WINDOW as u32), "{others:?}");
}

fn pick_over(
    picker: &mut Picker,
    conn: ConnId,
    has: &Bitfield,
    blocks: usize,
    lead: u32,
    arrives_at: Instant,
) -> Vec<BlockRef> {
    let path = PathPace { lead_bytes: u64::from(lead * BLOCK_LEN), arrives_at };
    let mut out = Vec::new();
    picker.pick(
        conn,
        has,
        None,
        blocks,
        Pace { rate_bytes: MB, path: Some(path), ..Pace::default() },
        arrives_at,
        &mut out,
    );
    out
}

/// The blocks' numbers, counted through all pieces of this many.
fn numbers(blocks: &[BlockRef], per_piece: u32) -> Vec<u32> {
    blocks.iter().map(|block| block.piece * per_piece + block.block).collect()
}

#[test]
fn a_slower_path_leaves_to_the_others_what_they_bring_before() {
    let config = PickerConfig { order: PieceOrder::Sequential, ..Default::default() };
    let (mut picker, has, now) = (picker(8, 4, config), Bitfield::full(8), Instant::now());
    // 6 blocks will have come otherwise: it takes the third block of the second piece, and what follows.
    assert_eq!(numbers(&pick_over(&mut picker, B, &has, 3, 6, now), 4), [6, 7, 8]);
    assert_eq!(numbers(&pick_over(&mut picker, A, &has, 5, 0, now), 4), [0, 1, 2, 3, 4]);
    // The front has moved to block 5, and what is asked for already is skipped: 5, then 9 to 11.
    assert_eq!(numbers(&pick_over(&mut picker, B, &has, 2, 4, now), 4), [12, 13]);
    assert_eq!(numbers(&pick_over(&mut picker, A, &has, 4, 0, now), 4), [5, 9, 10, 11]);
    picker.pieces.check();
}

#[test]
fn a_slower_path_leaves_the_nearest_deadlines_to_the_others() {
    let (mut picker, has, now) = (picker(8, 4, PickerConfig::default()), Bitfield::full(8), Instant::now());
    for piece in [5, 6] {
        picker.set_deadline(piece, Some(now + Duration::from_secs(u64::from(piece) * 10)));
    }
    assert_eq!(numbers(&pick_over(&mut picker, B, &has, 2, 5, now), 4), [25, 26]);
    assert_eq!(numbers(&pick_over(&mut picker, A, &has, 6, 0, now), 4), [20, 21, 22, 23, 24, 27]);
}

#[test]
fn at_the_end_a_slower_path_is_asked_for_nothing_that_the_others_finish_first() {
    for order in [PieceOrder::RarestFirst, PieceOrder::Sequential] {
        let config = PickerConfig { order, ..Default::default() };
        let (mut picker, has, now) = (picker(2, 4, config), Bitfield::full(2), Instant::now());
        assert_eq!(pick_over(&mut picker, B, &has, 1, 8, now), [], "{order:?}: all of it");
        assert_eq!(pick_over(&mut picker, B, &has, 1, 7, now).len(), 1, "{order:?}: all but a block");
        assert_eq!(pick_over(&mut picker, B, &has, 1, 7, now), [], "{order:?}");
        assert_eq!(pick_over(&mut picker, A, &has, 8, 0, now).len(), 7, "{order:?}");
    }
}

#[test]
fn paths_double_a_block_in_the_endgame_alone_where_it_gains_or_is_late() {
    let (mut picker, has, now) = (picker(1, 4, PickerConfig::default()), Bitfield::full(1), Instant::now());
    let soon = now + DUPLICATE_GAIN;
    assert_eq!(pick_over(&mut picker, A, &has, 4, 0, soon).len(), 4);
    // 64 KiB at 1 MiB/s take 62 ms: all of A is here 162 ms from now.
    let due = soon + Duration::from_secs(1) / 16;
    let (ms, block) = (Duration::from_millis(1), Duration::from_secs(1) / 64);
    assert_eq!(pick_over(&mut picker, B, &has, 4, 0, due - DUPLICATE_GAIN).len(), 0, "no gain");
    let gains = due - DUPLICATE_GAIN - block - ms;
    assert_eq!(pick_over(&mut picker, B, &has, 4, 0, gains).len(), 2, "the third would come too late");
    assert_eq!(pick_over(&mut picker, ConnId(2), &has, 4, 0, gains).len(), 2, "no sooner than over the second path");
    assert_eq!(pick_over(&mut picker, ConnId(3), &has, 4, 0, due + DUPLICATE_GAIN).len(), 0, "late, but not enough");
    let late = due + DUPLICATE_GAIN + block * 4;
    assert_eq!(pick_over(&mut picker, ConnId(3), &has, 4, 0, late).len(), 4);
    // Where memory has run out, a fast path helps no other one.
    let limited = PickerConfig { open_bytes_max: u64::from(4 * BLOCK_LEN), ..Default::default() };
    let (mut picker, has) = (self::picker(4, 4, limited), Bitfield::full(4));
    assert_eq!(pick_over(&mut picker, A, &has, 4, 0, now + Duration::from_secs(5)).len(), 4);
    assert_eq!(pick_over(&mut picker, B, &has, 4, 0, now).len(), 0);
}

#[test]
fn what_a_path_gave_up_is_anybodys() {
    let (mut picker, has) = (picker(1, 4, PickerConfig::default()), Bitfield::full(1));
    let blocks = pick(&mut picker, A, &has, 4, MB);
    blocks[2..].iter().for_each(|block| picker.withdrawn(A, *block));
    assert_eq!(picker.requested_from(A).len(), 2);
    assert_eq!(pick(&mut picker, A, &has, 1, MB), blocks[2..3]);
    assert_eq!(pick(&mut picker, B, &has, 1, MB), blocks[3..]);
}

/// Two hundred seeds that send nothing held every block against the one that did.
#[test]
fn a_crowd_that_brings_nothing_does_not_hold_the_last_blocks() {
    let (mut picker, has) = (picker(4, 4, PickerConfig::default()), Bitfield::full(4));
    for crowd in 10..60 {
        pick(&mut picker, ConnId(crowd), &has, 4, 0);
    }
    assert!(picker.endgame());
    let blocks: BTreeSet<BlockRef> = pick(&mut picker, A, &has, 16, MB).into_iter().collect();
    assert_eq!(blocks.len(), 16);
    // Those that do bring something still share the rest between few.
    for helper in 100..100 + DUPLICATES_MAX as u32 {
        assert_eq!(pick(&mut picker, ConnId(helper), &has, 16, MB).len(), 16);
    }
    assert_eq!(pick(&mut picker, B, &has, 16, MB), []);
}

#[test]
fn a_failed_piece_is_anybodys_once_its_one_source_is_asked_for_nothing_of_it() {
    let (mut picker, has) = (picker(1, 4, PickerConfig::default()), Bitfield::full(1));
    let blocks = pick(&mut picker, A, &has, 4, MB);
    receive_all(&mut picker, A, &blocks);
    picker.piece_failed(0);
    picker.prefer_single_source(0, Vec::new());
    let alone = pick(&mut picker, A, &has, 2, MB);
    assert_eq!(pick(&mut picker, B, &has, 4, MB), [], "it is being fetched alone");
    // It brings what it was asked for, and chokes us: nothing of it is under way.
    receive_all(&mut picker, A, &alone);
    assert_eq!(pick(&mut picker, B, &has, 1, MB).len(), 1);
    assert_eq!(pick(&mut picker, A, &has, 4, MB), [], "now it is the other's");
    assert_eq!(pick(&mut picker, B, &has, 4, MB).len(), 1);
}

#[test]
fn the_sequential_order_begins_at_the_front_and_comes_round() {
    let (now, has) = (Instant::now(), Bitfield::full(8));
    let path = PathPace { lead_bytes: 0, arrives_at: now };
    for strategy in [RequestStrategy::PrioritizeFastest, RequestStrategy::StrictlyPrioritized] {
        for pace in [Pace::default(), Pace { path: Some(path), ..Pace::default() }] {
            let config = PickerConfig { order: PieceOrder::Sequential, strategy, ..PickerConfig::default() };
            let mut picker = Picker::new(Geometry::new(65536, 65536 * 8, Vec::new()), &Bitfield::new(8), config);
            picker.peer_joined(&has);
            picker.set_front(5);
            let mut blocks = Vec::new();
            picker.pick(ConnId(0), &has, None, 32, pace, now, &mut blocks);
            let mut pieces: Vec<u32> = blocks.iter().map(|block| block.piece).collect();
            pieces.dedup();
            assert_eq!(pieces, [5, 6, 7, 0, 1, 2, 3, 4], "{strategy:?} {pace:?}");
        }
    }
}

proptest! {
    #[test]
    fn each_piece_falls_to_one_of_the_neighbours(
        ids in prop::collection::btree_set(any::<u64>(), 1..12), pieces in 1..400u32, leaves in any::<prop::sample::Index>(),
    ) {
        let ids: Vec<u64> = ids.into_iter().collect();
        let parts = |ids: &[u64]| -> Vec<Vec<u32>> {
            let part = |own: &u64| {
                let mut picker = picker(pieces, 1, PickerConfig::default());
                picker.divide(*own, ids.iter().copied().filter(|id| id != own).collect());
                (0..pieces).filter(|piece| picker.division.is_ours(*piece)).collect()
            };
            ids.iter().map(part).collect()
        };
        let all = parts(&ids);
        let mut once: Vec<u32> = all.concat();
        once.sort_unstable();
        prop_assert_eq!(once, (0..pieces).collect::<Vec<u32>>());
        // Who goes leaves its part to the others, and nothing else moves.
        let gone = leaves.index(ids.len());
        let left: Vec<u64> = ids.iter().copied().filter(|id| *id != ids[gone]).collect();
        let before = all.iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, part)| part);
        for (before, after) in before.zip(parts(&left)) {
            prop_assert!(before.iter().all(|piece| after.contains(piece)));
            prop_assert!(after.iter().all(|piece| before.contains(piece) || all[gone].contains(piece)));
        }
    }
}

#[test]
fn what_falls_to_neighbours_is_fetched_from_afar_last() {
    let (near, far, now) = (A, B, Instant::now());
    let has = Bitfield::full(64);
    for order in [PieceOrder::RarestFirst, PieceOrder::Sequential] {
        let mut picker = picker(64, 1, PickerConfig { order, seed: 3, ..PickerConfig::default() });
        picker.peer_joined(&has);
        picker.divide(1, vec![2, 3, 4]);
        let ours: Vec<u32> = (0..64).filter(|piece| picker.division.is_ours(*piece)).collect();
        assert!((4..32).contains(&ours.len()), "{ours:?}");
        let mut ask = |conn: ConnId, count: usize| -> Vec<u32> {
            let (mut out, pace) =
                (Vec::new(), Pace { rate_bytes: MB, is_near: conn == near, path: None, peer: None, is_busy: false });
            picker.pick(conn, &has, None, count, pace, now, &mut out);
            out.iter().map(|block| block.piece).collect()
        };
        if order == PieceOrder::Sequential {
            assert_eq!(ask(far, 8), (0..8).collect::<Vec<u32>>(), "where order matters, nobody waits");
            continue;
        }
        let mut first: Vec<u32> = Vec::new();
        while first.len() < ours.len() {
            first.extend(ask(far, 1));
        }
        first.sort_unstable();
        assert_eq!(first, ours);
        let from_neighbour = ask(near, 10);
        assert_eq!(from_neighbour.len(), 10);
        let rest: BTreeSet<u32> = from_neighbour.into_iter().chain(ask(far, 64)).collect();
        assert_eq!(rest, (0..64).filter(|piece| !ours.contains(piece)).collect(), "and then all of it");
    }
    // Where some are wanted more than others, these come first, whoever they fall to.
    let mut picker = picker(64, 1, PickerConfig::default());
    picker.peer_joined(&has);
    picker.divide(1, vec![2, 3, 4]);
    let theirs = (0..64).find(|piece| !picker.division.is_ours(*piece)).unwrap();
    picker.set_priority(theirs, Priority::new(7).unwrap());
    assert_eq!(pick(&mut picker, far, &has, 1, MB)[0].piece, theirs);
}
