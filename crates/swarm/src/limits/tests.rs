//! Connections in virtual time: how a limit is kept, and how it is shared.

use std::net::SocketAddr;
use std::task::{Context, Waker};

use anabranch_paths::Host;

use super::*;

fn handle(now: Instant) -> Rc<ConnHandle> {
    let peer = SocketAddr::from(([127, 0, 0, 1], 6881));
    Rc::new(ConnHandle::new(Host::of(&peer.into()), now))
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// What a connection would do.
#[derive(Clone, Copy)]
struct Habit {
    content: u64,
    peer: u32,
    /// It moves no more than this a second, whatever it might.
    need_bytes: Option<u64>,
    /// What it moves is not cut smaller than this.
    block: u64,
    /// It wants to move only in this part of every second.
    busy: f64,
    /// What it moves was asked for.
    is_asked: bool,
}

const GREEDY: Habit = Habit { content: 1, peer: 0, need_bytes: None, block: 1, busy: 1.0, is_asked: true };

struct Town {
    line: Rc<Line>,
    start: Instant,
    now: Instant,
    conns: Vec<(Habit, Share)>,
    moved: Vec<u64>,
    rng: fastrand::Rng,
}

impl Town {
    fn new(limit: Option<u64>, contents: &[(u64, Option<u64>)], habits: &[Habit], own: Option<u64>) -> Self {
        let now = Instant::now();
        let line = Line::new(limit, now);
        contents.iter().for_each(|(content, limit)| line.add_content(*content, *limit, now));
        let share = |habit: &Habit| (*habit, line.share(habit.content, own, &handle(now), now));
        let conns: Vec<_> = habits.iter().map(share).collect();
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let moved = vec![0; conns.len()];
        Self { line, start: now, now, conns, moved, rng: fastrand::Rng::with_seed(seed) }
    }

    /// Lets `time` pass; answers what each connection moved.
    fn run(&mut self, time: Duration) -> Vec<u64> {
        let (before, end) = (self.moved.clone(), self.now + time);
        while self.now < end {
            self.line.serve(None, self.now);
            // Tasks are woken in any order.
            let mut order: Vec<usize> = (0..self.conns.len()).collect();
            self.rng.shuffle(&mut order);
            for at in order {
                self.turn(at);
            }
            self.now += MS * self.rng.u32(1..8);
        }
        self.moved.iter().zip(before).map(|(moved, before)| moved - before).collect()
    }

    fn turn(&mut self, at: usize) {
        let (habit, share) = &self.conns[at];
        let elapsed = (self.now - self.start).as_secs_f64();
        loop {
            let wanted = habit.need_bytes.map_or(u64::MAX, |need| (need as f64 * elapsed) as u64);
            if elapsed.fract() >= habit.busy || self.moved[at] >= wanted {
                return share.rest();
            }
            let allowed = share.available(|| (PeerKey(habit.peer), habit.is_asked), self.now);
            if allowed == 0 {
                return;
            }
            let bytes = allowed.min(wanted - self.moved[at]).max(habit.block);
            share.spend(bytes);
            self.moved[at] += bytes;
        }
    }
}

fn assert_within(moved: &[u64], part: f64) {
    let mean = moved.iter().sum::<u64>() as f64 / moved.len() as f64;
    let off = moved.iter().map(|moved| (*moved as f64 / mean - 1.0).abs()).fold(0.0, f64::max);
    assert!(off <= part, "{off}: {moved:?}");
}

#[test]
fn a_limit_is_kept_and_used_whoever_is_under_it() {
    for limit in [10_000, 1_000_000, 100_000_000] {
        for conns in [1, 3, 50] {
            let habits: Vec<Habit> = (0..conns).map(|peer| Habit { peer, ..GREEDY }).collect();
            let mut town = Town::new(Some(limit), &[(1, None)], &habits, None);
            let moved: u64 = town.run(SECOND * 10).iter().sum();
            let expected = limit * 10;
            assert!((expected * 95 / 100..=expected * 105 / 100).contains(&moved), "{limit} {conns} {moved}");
        }
    }
}

#[test]
fn the_tightest_limit_holds() {
    for (all, content, own) in [(50, 10_000, 10_000), (10_000, 50, 10_000), (10_000, 10_000, 50)] {
        let kb = |rate: u64| Some(rate * 1000);
        let mut town = Town::new(kb(all), &[(1, kb(content))], &[GREEDY], kb(own));
        let moved = town.run(SECOND * 10)[0];
        assert!((475_000..=525_000).contains(&moved), "{all} {content} {own} {moved}");
    }
}

/// A limit was had by whoever was awake first: three peers at 2.5, 1.9 and 0.6 MB/s, or at 5, 0 and 0 for ten seconds.
#[test]
fn a_limit_is_shared_evenly_by_peers_however_they_ask() {
    for limit in [200_000, 5_000_000, 500_000_000] {
        // Long blocks and short ones, and one peer with eight connections.
        let mut habits = vec![Habit { block: 16 << 10, ..GREEDY }, Habit { peer: 1, ..GREEDY }];
        habits.extend([Habit { peer: 2, block: 1400, ..GREEDY }; 8]);
        let mut town = Town::new(Some(limit), &[(1, None)], &habits, None);
        town.run(SECOND);
        for _ in 0..4 {
            let moved = town.run(SECOND * 5);
            assert_within(&[moved[0], moved[1], moved[2..].iter().sum()], 0.2);
        }
    }
}

#[test]
fn contents_share_evenly_and_so_do_the_peers_of_each() {
    let habits: Vec<Habit> = (0..6).map(|peer| Habit { content: 1 + u64::from(peer > 0), peer, ..GREEDY }).collect();
    let mut town = Town::new(Some(5_000_000), &[(1, None), (2, None)], &habits, None);
    for _ in 0..4 {
        let moved = town.run(SECOND * 5);
        assert_within(&[moved[0], moved[1..].iter().sum()], 0.2);
        assert_within(&moved[1..], 0.2);
    }
}

#[test]
fn what_one_cannot_use_is_the_others_and_is_not_saved_up() {
    // One needs little and gets it, one has a content with a limit of its own, one is there half of the time.
    let habits = [
        Habit { need_bytes: Some(200_000), ..GREEDY },
        Habit { content: 2, peer: 1, ..GREEDY },
        Habit { content: 3, peer: 2, busy: 0.5, ..GREEDY },
        Habit { content: 4, peer: 3, ..GREEDY },
    ];
    let contents = [(1, None), (2, Some(500_000)), (3, None), (4, None)];
    let mut town = Town::new(Some(4_000_000), &contents, &habits, None);
    town.run(SECOND);
    let moved = town.run(SECOND * 10);
    assert!((1_900_000..=2_100_000).contains(&moved[0]), "{moved:?}");
    assert!((4_700_000..=5_300_000).contains(&moved[1]), "{moved:?}");
    // 3.3 MB/s are left: half of that while both are there, all of it while one is not.
    assert!((7_000_000..=9_500_000).contains(&moved[2]), "{moved:?}");
    assert!(moved.iter().sum::<u64>() >= 38_000_000, "{moved:?}");
}

#[test]
fn three_hundred_wait_and_each_has_its_part() {
    let habits: Vec<Habit> = (0..300).map(|peer| Habit { peer, block: 16 << 10, ..GREEDY }).collect();
    let mut town = Town::new(Some(100_000_000), &[(1, None)], &habits, None);
    town.run(SECOND);
    assert_within(&town.run(SECOND * 5), 0.2);
}

#[test]
fn what_was_owed_is_paid_back_to_a_limit() {
    let mut town = Town::new(Some(100_000), &[(1, None)], &[GREEDY], None);
    // What has to be said is said.
    town.conns[0].1.spend(150_000);
    assert_eq!(town.run(SECOND), [0]);
    assert!(town.run(SECOND)[0] > 0);
    town.conns[0].1.spend(1 << 40);
    town.run(SECOND * 3);
    assert!(town.run(SECOND)[0] > 0);
}

#[test]
fn rest_earns_no_more_than_a_burst_and_who_leaves_takes_nothing_along() {
    let mut town = Town::new(Some(1_000_000), &[(1, None)], &[GREEDY, Habit { peer: 1, ..GREEDY }], None);
    town.now += SECOND * 3600;
    town.turn(0);
    assert!((190_000..=200_000).contains(&town.moved[0]), "{:?}", town.moved);
    // One stands in line and one has a turn as they end.
    town.now += MS * 4;
    for (habit, share) in &town.conns {
        share.available(|| (PeerKey(habit.peer), habit.is_asked), town.now);
    }
    town.conns.clear();
    assert_eq!(town.line.state.borrow().waiting, 0);
    assert_eq!(town.line.serve(None, town.now), None);
}

#[test]
fn gone_peers_are_forgotten() {
    let mut town = Town::new(Some(1_000_000), &[(1, None)], &[GREEDY], None);
    for peer in 0..1000 {
        town.conns[0].0.peer = peer;
        town.run(MS * 20);
    }
    let peers = town.line.state.borrow().contents[&1].peers.len();
    assert!(peers <= PEERS_SPARE + 4, "{peers}");
}

#[test]
fn who_asks_is_not_woken_by_its_own_question_and_others_are() {
    let now = Instant::now();
    let line = Line::new(Some(100_000), now);
    line.add_content(0, None, now);
    let is_woken = |handle: &Rc<ConnHandle>| {
        let mut notified = std::pin::pin!(handle.notified());
        notified.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    let [(one, first), (other, second)] = [1, 2].map(|peer| {
        let handle = handle(now);
        (line.share(0, None, &handle, now), (handle, PeerKey(peer)))
    });
    // It has a turn at once, gives that back, and sleeps.
    assert!(one.available(|| (first.1, true), now) > 0);
    one.rest();
    assert!(!is_woken(&first.0));
    // Who asks while nothing is left is woken when it is its turn.
    while one.available(|| (first.1, true), now) > 0 {
        one.spend(1 << 20);
    }
    assert_eq!(other.available(|| (second.1, true), now), 0);
    line.serve(None, now + Duration::from_secs(60));
    assert!(is_woken(&first.0) && is_woken(&second.0));
}

#[test]
fn no_limit_is_unlimited() {
    let town = Town::new(None, &[(1, None)], &[GREEDY], None);
    assert_eq!(town.conns[0].1.available(|| (PeerKey(0), true), town.now), u64::MAX);
    assert!(!town.conns[0].1.is_limited());
}

#[test]
fn what_nobody_asked_for_takes_little_however_many_send_it() {
    let mut habits = vec![GREEDY, Habit { peer: 1, ..GREEDY }];
    habits.extend((2..200).map(|peer| Habit { peer, is_asked: false, ..GREEDY }));
    let mut town = Town::new(Some(1_000_000), &[(1, None)], &habits, None);
    town.run(SECOND);
    let moved = town.run(SECOND * 5);
    assert_within(&moved[..2], 0.1);
    let asked: u64 = moved[..2].iter().sum();
    assert!((4_500_000..4_900_000).contains(&asked), "{asked}");
    // Where nothing else is to be moved, all of the limit is theirs.
    town.conns.drain(..2);
    let moved: u64 = town.run(SECOND * 5).iter().sum();
    assert!(moved >= 4_700_000, "{moved}");
}
