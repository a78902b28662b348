use std::collections::BTreeMap;

use anabranch_paths::Interface;
use anabranch_scion_wire::combine::PATHS_MAX;

use super::super::Server;
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn local() -> IsdAs {
    IsdAs::new(1, 1).unwrap()
}

fn there(number: u64) -> IsdAs {
    IsdAs::new(2, number).unwrap()
}

/// The path over the `number`-th of parallel links.
fn path(destination: IsdAs, number: u16, expiry: SystemTime) -> ScionPath {
    let near = Interface { isd_as: local(), id: number };
    ScionPath {
        source: local(),
        destination,
        interfaces: vec![near, Interface { isd_as: destination, id: number }],
        expiry,
        next_hop: Some(([127, 0, 0, 1], 30_001).into()),
        // Only its being there counts here.
        dataplane: expiry.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis().to_be_bytes().to_vec(),
        ..path_inside(destination, 1472)
    }
}

fn down() -> LookupError {
    LookupError::Unreachable { server: Server::Daemon, address: "127.0.0.1:30255".into(), reason: "refused".into() }
}

/// A clock of both kinds.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
    now: Instant,
}

impl Clock {
    fn new() -> Self {
        let start = Instant::now();
        Self { start, now: start }
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_750_000_000) + (self.now - self.start)
    }
}

fn reply(manager: &mut PathManager, clock: &Clock, destination: IsdAs, numbers: &[u16], life: Duration) {
    let paths = numbers.iter().map(|&number| path(destination, number, clock.wall() + life)).collect();
    manager.on_reply(destination, Ok(paths), clock.now, clock.wall());
}

/// A daemon that is away at times, caches for a quarter of a path's life, and knows half the paths after a restart.
struct World {
    clock: Clock,
    manager: PathManager,
    rng: fastrand::Rng,
    life: Duration,
    outage_max: Duration,
    /// When the daemon goes or comes next, and whether it is up now.
    turn: Instant,
    is_up: bool,
    is_new: bool,
    cached_at: Option<SystemTime>,
    /// Answers on their way.
    replies: BTreeMap<Instant, Result<Vec<ScionPath>, LookupError>>,
    lookups: u64,
}

const PATHS: [u16; 4] = [1, 2, 3, 4];

impl World {
    fn new(seed: u64, life: Duration, outage_max: Duration) -> Self {
        let clock = Clock::new();
        Self {
            clock,
            manager: PathManager::new(local(), 1472, seed),
            rng: fastrand::Rng::with_seed(seed ^ 0x5eed),
            life,
            outage_max,
            turn: clock.now + HOUR / 10,
            is_up: true,
            is_new: false,
            cached_at: None,
            replies: BTreeMap::new(),
            lookups: 0,
        }
    }

    fn daemon(&mut self, lookup: Lookup) {
        self.lookups += 1;
        let delay = Duration::from_millis(self.rng.u64(1..200));
        let answer = if !self.is_up {
            Err(down())
        } else {
            let wall = self.clock.wall();
            let valid = self.cached_at.filter(|at| !lookup.refresh && wall < *at + self.life / 4);
            let made_at = valid.unwrap_or(wall);
            self.cached_at = Some(made_at);
            let known = if std::mem::take(&mut self.is_new) { &PATHS[..2] } else { &PATHS[..] };
            Ok(known.iter().map(|&number| path(there(1), number, made_at + self.life)).collect())
        };
        self.replies.insert(self.clock.now + delay, answer);
    }

    /// One step in time; whether there was one before `end`.
    fn step(&mut self, end: Instant) -> bool {
        let first_reply = self.replies.keys().next().copied();
        let next = [self.manager.deadline(), first_reply, Some(self.turn)].into_iter().flatten().min().unwrap();
        if next >= end {
            return false;
        }
        assert!(next >= self.clock.now || self.manager.poll_lookup(self.clock.now).is_none(), "the deadline moves on");
        self.clock.now = next.max(self.clock.now);
        if self.turn <= self.clock.now {
            self.is_up = !self.is_up;
            self.is_new = self.is_up;
            // Some refreshes at least between two restarts: a path may be left out by one answer, not by two.
            let length = if self.is_up { self.life * 4 } else { self.outage_max };
            let least = if self.is_up { 0.5 } else { 0.0 };
            self.turn = self.clock.now + length.mul_f64(least + (1.0 - least) * self.rng.f64());
        }
        while let Some(entry) = self.replies.first_entry().filter(|entry| *entry.key() <= self.clock.now) {
            let (clock, answer) = (self.clock, entry.remove());
            self.manager.on_reply(there(1), answer, clock.now, clock.wall());
        }
        self.manager.on_deadline(self.clock.now);
        while let Some(lookup) = self.manager.poll_lookup(self.clock.now) {
            self.daemon(lookup);
        }
        true
    }
}

/// A day of refreshes, with outages that are shorter than what is left of the paths' lives when they are refreshed.
#[test]
fn a_day_of_refreshes_takes_nothing_away() {
    for (life, outage_max) in [(Duration::from_secs(20), Duration::from_secs(4)), (6 * HOUR, 2 * HOUR)] {
        for seed in 0..2 {
            println!("seed {seed}, life {life:?}");
            let mut world = World::new(seed, life, outage_max);
            world.manager.request(there(1), world.clock.now).unwrap();
            world.manager.set_watched(there(1), true, world.clock.now);
            let end = world.clock.now + 24 * HOUR;
            let (mut seen, mut refreshed) = (Snapshot::default(), 0);
            while world.step(end) {
                let snapshot = world.manager.snapshot(there(1)).unwrap();
                let changed = snapshot.change_since(&seen);
                assert!(changed.removed.is_empty(), "nothing goes");
                assert!(changed.added.is_empty() || seen.paths.is_empty(), "nothing comes that was not there");
                assert!(snapshot.paths.iter().all(|path| path.expiry > world.clock.wall()), "nothing has expired");
                assert!(snapshot.paths.len() == PATHS.len() || !seen.is_answered());
                refreshed += changed.refreshed.len();
                seen = snapshot;
            }
            // Refreshed at least once in a life, asked at most once a second and mostly at about half of a life.
            let lives = (24 * HOUR).as_secs() / life.as_secs();
            assert!(refreshed as u64 >= lives * PATHS.len() as u64, "{refreshed}");
            assert!(world.lookups < 24 * 3600 / 3, "{} lookups", world.lookups);
        }
    }
}

/// Outages longer than a path's life: paths go when they expire, not before, and come back soon after the daemon does.
#[test]
fn a_long_outage_costs_the_paths_and_no_more() {
    for seed in 0..2 {
        println!("seed {seed}");
        let mut world = World::new(seed, Duration::from_secs(20), Duration::from_secs(120));
        world.manager.request(there(1), world.clock.now).unwrap();
        world.manager.set_watched(there(1), true, world.clock.now);
        let end = world.clock.now + 24 * HOUR;
        let (mut up_since, mut gone) = (Some(world.clock.now), 0);
        while world.step(end) {
            let snapshot = world.manager.snapshot(there(1)).unwrap();
            assert!(snapshot.paths.iter().all(|path| path.expiry > world.clock.wall()), "nothing has expired");
            up_since = if world.is_up { up_since.or(Some(world.clock.now)) } else { None };
            let recovered = up_since.is_some_and(|up| world.clock.now - up > Duration::from_secs(11));
            assert!(!recovered || !snapshot.paths.is_empty(), "back within the longest wait");
            gone += u32::from(snapshot.paths.is_empty() && snapshot.failure.is_some());
        }
        assert!(gone > 0, "the outages were long enough to matter");
    }
}

#[test]
fn a_path_that_one_answer_leaves_out_stays_and_goes_with_the_second() {
    let (clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    manager.request(there(1), clock.now).unwrap();
    let mut clock = clock;
    let mut count_after = |numbers: &[u16]| {
        manager.refresh_now(there(1), clock.now);
        manager.poll_lookup(clock.now).unwrap();
        reply(&mut manager, &clock, there(1), numbers, HOUR);
        clock.now += Duration::from_secs(1);
        manager.snapshot(there(1)).unwrap().paths.len()
    };
    assert_eq!(count_after(&[1, 2]), 2);
    assert_eq!(count_after(&[1]), 2);
    assert_eq!(count_after(&[1, 2]), 2);
    assert_eq!(count_after(&[1]), 2);
    assert_eq!(count_after(&[1, 3]), 2, "2 has gone, 3 has come");
}

// A link fails and comes back; whoever connects after that is to have it.
#[test]
fn a_path_that_was_lost_is_looked_for_soon_and_then_less_often() {
    for (away, limit) in [(3, SEARCH_SOON), (60, SEARCH_SOON), (300, SEARCH_MAX), (3 * 3600, REFRESH_MAX)] {
        let (mut clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
        let life = 8 * HOUR;
        manager.request(there(1), clock.now).unwrap();
        manager.set_watched(there(1), true, clock.now);
        manager.poll_lookup(clock.now).unwrap();
        reply(&mut manager, &clock, there(1), &[1, 2], life);
        let (start, mut lookups) = (clock.now, 0);
        manager.refresh_now(there(1), clock.now);
        let back_at = start + Duration::from_secs(away);
        let seen = loop {
            while manager.poll_lookup(clock.now).is_some() {
                lookups += 1;
                let known: &[u16] = if clock.now < back_at { &[1] } else { &[1, 2] };
                reply(&mut manager, &clock, there(1), known, life);
            }
            // One answer that leaves the path out proves nothing.
            let knows_both = manager.snapshot(there(1)).unwrap().paths.len() == 2;
            if clock.now >= back_at && knows_both {
                break clock.now - back_at;
            }
            clock.now = manager.deadline().unwrap().max(clock.now);
        };
        assert!(seen <= limit, "away for {away} s, seen {seen:?} after it was back");
        assert!(lookups <= 10 + away.min(120) / 5 + away / 20, "{lookups} lookups in {away} s");
    }
}

#[test]
fn paths_that_all_went_at_once_are_looked_for_as_soon() {
    let (mut clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    manager.request(there(1), clock.now).unwrap();
    manager.set_watched(there(1), true, clock.now);
    manager.poll_lookup(clock.now).unwrap();
    reply(&mut manager, &clock, there(1), &[1, 2], 8 * HOUR);
    let (start, mut last, mut lookups) = (clock.now, clock.now, 0);
    // Every link that fails is told of, and asked about.
    for _ in 0..10 {
        manager.refresh_now(there(1), clock.now);
        manager.poll_lookup(clock.now).unwrap();
        reply(&mut manager, &clock, there(1), &[], 8 * HOUR);
    }
    while clock.now < start + Duration::from_secs(600) {
        if manager.poll_lookup(clock.now).is_some() {
            let limit = if clock.now < start + Duration::from_secs(90) { SEARCH_SOON } else { SEARCH_MAX };
            assert!(clock.now - last <= limit, "{:?} after {:?}", clock.now - last, clock.now - start);
            (last, lookups) = (clock.now, lookups + 1);
            reply(&mut manager, &clock, there(1), &[], 8 * HOUR);
        }
        clock.now = manager.deadline().unwrap().max(clock.now);
    }
    assert!(lookups <= 55, "{lookups} lookups in ten minutes");
}

#[test]
fn nothing_is_looked_for_where_nothing_was_lost() {
    let (mut clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    manager.request(there(1), clock.now).unwrap();
    manager.set_watched(there(1), true, clock.now);
    let mut waits = Vec::new();
    for round in 0..9 {
        manager.poll_lookup(clock.now).unwrap();
        reply(&mut manager, &clock, there(1), &[1, 2], 8 * HOUR);
        if round == 0 {
            // The network changed, as somebody says, and no path of ours is the worse for it.
            manager.refresh_now(there(1), clock.now);
        } else {
            waits.push(manager.deadline().unwrap() - clock.now);
        }
        clock.now = manager.deadline().unwrap().max(clock.now);
    }
    assert!(waits[..4].is_sorted() && waits[3] <= Duration::from_secs(8), "{waits:?}");
    assert!(waits[4..].iter().all(|wait| *wait >= REFRESH_MAX / 3), "{waits:?}");
}

// Who begins while links are down has lost nothing.
#[test]
fn who_has_just_begun_looks_again_soon_and_who_uses_nothing_does_not() {
    for (is_watched, seconds) in [(true, 5), (false, 120)] {
        let (mut clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
        manager.request(there(1), clock.now).unwrap();
        manager.set_watched(there(1), is_watched, clock.now);
        clock.now += if is_watched { Duration::ZERO } else { Duration::from_secs(11) };
        manager.poll_lookup(clock.now).unwrap();
        reply(&mut manager, &clock, there(1), &[1], 8 * HOUR);
        let wait = manager.deadline().unwrap() - clock.now;
        assert_eq!(wait <= Duration::from_secs(5), is_watched, "{wait:?}");
        assert!(wait >= Duration::from_secs(seconds) / 2, "{wait:?}");
    }
    let (mut clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    manager.request(there(1), clock.now).unwrap();
    manager.set_watched(there(1), true, clock.now);
    let (end, mut lookups) = (clock.now + HOUR, 0);
    while clock.now < end {
        if manager.poll_lookup(clock.now).is_some() {
            lookups += 1;
            reply(&mut manager, &clock, there(1), &[1], 8 * HOUR);
        }
        clock.now = manager.deadline().unwrap().max(clock.now);
    }
    assert!(lookups <= 22, "{lookups} lookups in an hour: six more than every five minutes");
}

#[test]
fn what_others_use_is_looked_for_soon_and_no_more_often_than_that_however_often_they_say_so() {
    let (mut clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    manager.seek(there(1), clock.now);
    assert_eq!(manager.deadline(), None, "of what nobody asked for nothing is looked up");
    manager.request(there(1), clock.now).unwrap();
    manager.set_watched(there(1), true, clock.now);
    manager.poll_lookup(clock.now).unwrap();
    reply(&mut manager, &clock, there(1), &[1], 8 * HOUR);
    clock.now += SEEK_MIN - Duration::from_millis(1);
    manager.seek(there(1), clock.now);
    assert_eq!(manager.poll_lookup(clock.now), None);
    clock.now += Duration::from_millis(1);
    assert_eq!(manager.poll_lookup(clock.now), Some(Lookup { destination: there(1), refresh: false }));
    // While one is under way nothing else begins.
    manager.seek(there(1), clock.now);
    assert_eq!(manager.poll_lookup(clock.now), None);
    reply(&mut manager, &clock, there(1), &[1, 2], 8 * HOUR);
    // It was found: the next one is looked for as soon.
    clock.now += SEEK_MIN;
    manager.seek(there(1), clock.now);
    assert!(manager.poll_lookup(clock.now).is_some());
    reply(&mut manager, &clock, there(1), &[1, 2], 8 * HOUR);
    // Somebody who says so four times a second, of a path that there is not.
    let (end, mut lookups) = (clock.now + HOUR, 0);
    while clock.now < end {
        manager.seek(there(1), clock.now);
        while manager.poll_lookup(clock.now).is_some() {
            lookups += 1;
            reply(&mut manager, &clock, there(1), &[1, 2], 8 * HOUR);
        }
        clock.now += Duration::from_millis(250);
    }
    assert!((60..=90).contains(&lookups), "{lookups} lookups in an hour");
    // It comes after all, and no later than one of these.
    manager.seek(there(1), clock.now);
    clock.now += SEEK_MAX;
    assert!(manager.poll_lookup(clock.now).is_some());
}

#[test]
fn an_earlier_expiry_replaces_nothing() {
    let (clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    manager.request(there(1), clock.now).unwrap();
    for (life, kept) in [(HOUR, HOUR), (HOUR / 2, HOUR), (2 * HOUR, 2 * HOUR)] {
        manager.refresh_now(there(1), clock.now);
        manager.poll_lookup(clock.now).unwrap();
        reply(&mut manager, &clock, there(1), &[1], life);
        assert_eq!(manager.snapshot(there(1)).unwrap().paths[0].expiry, clock.wall() + kept);
    }
}

#[test]
fn failures_are_asked_again_with_growing_waits() {
    for (failure, longest) in [(Ok(Vec::new()), 60), (Err(down()), 10)] {
        let (mut clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
        manager.request(there(1), clock.now).unwrap();
        manager.set_watched(there(1), true, clock.now);
        let mut waits = Vec::new();
        for _ in 0..12 {
            assert!(!manager.poll_lookup(clock.now).unwrap().refresh);
            manager.on_reply(there(1), failure.clone(), clock.now, clock.wall());
            // Asked meanwhile, the failure is told and nothing else happens.
            assert!(manager.request(there(1), clock.now).unwrap().failure.is_some());
            assert_eq!(manager.poll_lookup(clock.now), None);
            let next = manager.deadline().unwrap();
            waits.push(next - clock.now);
            clock.now = next;
        }
        assert!(waits[0] <= Duration::from_millis(500), "{waits:?}");
        assert!(waits.windows(2).all(|pair| pair[1] > pair[0].mul_f64(0.8)), "{waits:?}");
        assert!(waits[11] > Duration::from_secs(longest).mul_f64(0.79), "{waits:?}");
        assert!(waits[11] <= Duration::from_secs(longest), "{waits:?}");
    }
}

#[test]
fn what_nobody_uses_is_not_refreshed_and_then_forgotten() {
    let (mut clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    manager.request(there(1), clock.now).unwrap();
    let mut last_lookup = clock.now;
    while let Some(next) = manager.deadline() {
        clock.now = next;
        manager.on_deadline(clock.now);
        if manager.poll_lookup(clock.now).is_some() {
            last_lookup = clock.now;
            reply(&mut manager, &clock, there(1), &[1], HOUR);
        }
    }
    assert!(last_lookup > clock.start + IDLE / 2, "while it was used lately, it was refreshed");
    assert_eq!(clock.now, clock.start + IDLE);
    assert!(manager.snapshot(there(1)).is_none());
    assert_eq!(manager.poll_changed(), None);
}

#[test]
fn destinations_are_limited_and_the_longest_unused_makes_room() {
    let (mut clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    for number in 1..=DESTINATIONS_MAX as u64 {
        clock.now += Duration::from_millis(1);
        manager.request(there(number), clock.now).unwrap();
        manager.set_watched(there(number), true, clock.now);
    }
    let one_more = there(DESTINATIONS_MAX as u64 + 1);
    let full = manager.request(one_more, clock.now).unwrap_err();
    assert_eq!(full, LookupError::TooManyDestinations(DESTINATIONS_MAX));
    for number in [7, 5] {
        clock.now += Duration::from_millis(1);
        manager.set_watched(there(number), false, clock.now);
    }
    manager.request(one_more, clock.now).unwrap();
    assert!(manager.snapshot(there(7)).is_none() && manager.snapshot(there(5)).is_some());
}

#[test]
fn lookups_under_way_are_limited() {
    let (clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    for number in 1..=LOOKUPS_MAX as u64 + 1 {
        manager.request(there(number), clock.now).unwrap();
    }
    let begun: Vec<Lookup> = std::iter::from_fn(|| manager.poll_lookup(clock.now)).collect();
    assert_eq!(begun.len(), LOOKUPS_MAX);
    // Nothing is due that could be begun: the caller sleeps until an answer comes, or a destination is forgotten.
    assert_eq!(manager.deadline(), Some(clock.now + IDLE));
    manager.on_reply(begun[0].destination, Err(down()), clock.now, clock.wall());
    assert_eq!(manager.poll_lookup(clock.now).unwrap().destination, there(LOOKUPS_MAX as u64 + 1));
    // A second answer to the same lookup, and one to none at all, change nothing.
    reply(&mut manager, &clock, begun[0].destination, &[1], HOUR);
    reply(&mut manager, &clock, there(999), &[1], HOUR);
    assert!(manager.snapshot(begun[0].destination).unwrap().paths.is_empty());
    assert_eq!(manager.poll_lookup(clock.now), None);
}

#[test]
fn ases_that_never_answer_leave_room_for_others() {
    let (mut clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    let dead = 2 * LOOKUPS_AGAIN_MAX as u64;
    for number in 1..=dead {
        manager.request(there(number), clock.now).unwrap();
        let lookup = manager.poll_lookup(clock.now).unwrap();
        manager.on_reply(lookup.destination, Err(down()), clock.now, clock.wall());
    }
    // All of them are to be asked again, long since, when somebody else is wanted.
    clock.now += Duration::from_secs(30);
    manager.request(there(99), clock.now).unwrap();
    let begun: Vec<IsdAs> = std::iter::from_fn(|| manager.poll_lookup(clock.now)).map(|due| due.destination).collect();
    assert_eq!((begun[0], begun.len()), (there(99), 1 + LOOKUPS_AGAIN_MAX));
    // Nothing else can begin, and nobody waits for it without sleep: no deadline has passed.
    assert!(manager.deadline().is_some_and(|at| at > clock.now));
    manager.request(there(100), clock.now).unwrap();
    assert_eq!(manager.poll_lookup(clock.now).map(|due| due.destination), Some(there(100)));
    manager.on_reply(begun[1], Err(down()), clock.now, clock.wall());
    assert!(manager.poll_lookup(clock.now).is_some_and(|due| due.destination != begun[1]));
}

#[test]
fn paths_of_a_destination_are_limited_to_the_short_ones() {
    let (clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    manager.request(there(1), clock.now).unwrap();
    manager.poll_lookup(clock.now).unwrap();
    let mut paths: Vec<_> =
        (1..=PATHS_MAX as u16 + 1).map(|number| path(there(1), number, clock.wall() + HOUR)).collect();
    let through = there(9);
    for id in [1, 2] {
        paths[0].interfaces.insert(1, Interface { isd_as: through, id });
    }
    manager.on_reply(there(1), Ok(paths), clock.now, clock.wall());
    let snapshot = manager.snapshot(there(1)).unwrap();
    assert_eq!(snapshot.paths.len(), PATHS_MAX);
    assert!(snapshot.paths.iter().all(|path| path.interfaces.len() == 2));
}

#[test]
fn expired_answers_are_no_answers() {
    let (clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    manager.request(there(1), clock.now).unwrap();
    for (life, count) in [(EXPIRY_MARGIN, 0), (EXPIRY_MARGIN + Duration::from_millis(1), 1)] {
        manager.refresh_now(there(1), clock.now);
        manager.poll_lookup(clock.now).unwrap();
        reply(&mut manager, &clock, there(1), &[1], life);
        let snapshot = manager.snapshot(there(1)).unwrap();
        assert_eq!((snapshot.paths.len(), snapshot.failure.is_none()), (count, count == 1));
    }
}

#[test]
fn ones_own_as_needs_no_lookup_and_wildcards_are_refused() {
    let (clock, mut manager) = (Clock::new(), PathManager::new(local(), 1400, 1));
    let inside = manager.request(local(), clock.now).unwrap();
    assert_eq!((inside.paths.len(), inside.paths[0].mtu, inside.paths[0].next_hop), (1, 1400, None));
    assert_eq!(manager.poll_lookup(clock.now), None);
    let wildcard = IsdAs::new(2, 0).unwrap();
    assert_eq!(manager.request(wildcard, clock.now).unwrap_err(), LookupError::Wildcard(wildcard));
}

#[test]
fn a_cache_that_has_nothing_newer_is_passed_over() {
    let (mut clock, mut manager) = (Clock::new(), PathManager::new(local(), 1472, 1));
    manager.request(there(1), clock.now).unwrap();
    manager.set_watched(there(1), true, clock.now);
    let expiry = clock.wall() + Duration::from_secs(60);
    let mut refreshes = Vec::new();
    for _ in 0..3 {
        refreshes.push(manager.poll_lookup(clock.now).unwrap().refresh);
        manager.on_reply(there(1), Ok(vec![path(there(1), 1, expiry)]), clock.now, clock.wall());
        clock.now = manager.deadline().unwrap();
    }
    assert_eq!(refreshes, [false, false, true]);
}
