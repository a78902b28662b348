//! Virtual time: every wait here is arithmetic.

use super::*;
use crate::extension::PathsInUse;

const NONE: Progress = Progress {
    uploaded_bytes: 0,
    downloaded_bytes: 0,
    left_bytes: 9,
    is_partial_seed: false,
    peers_wanted: 500,
    in_use: Vec::new(),
    needs_peers: false,
};
const NEED: Progress = Progress {
    uploaded_bytes: 0,
    downloaded_bytes: 0,
    left_bytes: 9,
    is_partial_seed: false,
    peers_wanted: 500,
    in_use: Vec::new(),
    needs_peers: true,
};

fn urls(names: &[&str]) -> Vec<TrackerUrl> {
    names.iter().map(|name| format!("http://{name}/announce").parse().unwrap()).collect()
}

fn announcer(tiers: &[&[&str]], seed: u64, now: Instant) -> Announcer {
    let hashes = InfoHashes { v1: Some([1; 20]), v2: None };
    let config = AnnouncerConfig { hashes, peer_id: [2; 20], port: 6881, scion: None, key: 3, seed };
    let tiers: Vec<_> = tiers.iter().map(|tier| urls(tier)).collect();
    Announcer::new(config, &tiers, now)
}

fn reply(interval_s: u64) -> AnnounceReply {
    AnnounceReply { interval: Some(Duration::from_secs(interval_s)), ..AnnounceReply::default() }
}

const DOWN: Outcome<'static> = Outcome::Failed { reason: "down", retry: Retry::Unsaid };

/// Polls for exactly one action.
fn one(announcer: &mut Announcer, now: Instant) -> Action {
    let action = announcer.poll(&NONE, now).expect("an announce is due");
    assert_eq!(announcer.poll(&NONE, now), None);
    action
}

#[test]
fn started_comes_first_then_regular_announces_at_the_interval() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"]], 0, start);
    assert_eq!(a.deadline(), Some(start));
    let first = one(&mut a, start);
    assert_eq!((first.request.event, first.request.numwant), (Event::Started, Some(NUMWANT_MAX)));
    assert_eq!(a.deadline(), None);
    a.on_outcome(first.id, Outcome::Reply(&reply(1800)), start);

    let due = start + Duration::from_secs(1800);
    assert_eq!(a.deadline(), Some(due));
    assert_eq!(a.poll(&NONE, due - Duration::from_nanos(1)), None);
    assert_eq!(one(&mut a, due).request.event, Event::None);
}

#[test]
fn who_minds_paths_is_told_of_them_as_soon_as_it_allows() {
    let start = Instant::now();
    let minute = Duration::from_secs(60);
    for (in_use, due) in [(None, 30 * minute), (Some(PathsInUse::default()), minute)] {
        let mut a = announcer(&[&["a"]], 0, start);
        let action = one(&mut a, start);
        let reply = AnnounceReply { interval_min: Some(minute), in_use, ..reply(1800) };
        a.on_outcome(action.id, Outcome::Reply(&reply), start);
        a.on_paths_changed(start + minute / 2);
        assert_eq!(a.deadline(), Some(start + due));
    }
}

#[test]
fn intervals_are_bounded_both_ways() {
    let start = Instant::now();
    for (said_s, wait) in [(0, INTERVAL_FLOOR), (1 << 31, INTERVAL_CAP)] {
        let mut a = announcer(&[&["a"]], 0, start);
        let action = one(&mut a, start);
        a.on_outcome(action.id, Outcome::Reply(&reply(said_s)), start);
        assert_eq!(a.deadline(), Some(start + wait));
    }
}

#[test]
fn completed_is_told_once_and_at_once() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"]], 0, start);
    let action = one(&mut a, start);
    a.on_outcome(action.id, Outcome::Reply(&reply(1800)), start);
    let later = start + Duration::from_secs(1);
    a.on_complete(later);
    assert_eq!(a.deadline(), Some(later));
    let action = one(&mut a, later);
    assert_eq!(action.request.event, Event::Completed);
    a.on_outcome(action.id, Outcome::Reply(&reply(1800)), later);
    assert_eq!(one(&mut a, later + Duration::from_secs(1800)).request.event, Event::None);
}

#[test]
fn a_completion_before_started_was_answered_follows_it() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"]], 0, start);
    let action = one(&mut a, start);
    a.on_complete(start);
    assert_eq!(a.poll(&NONE, start), None);
    a.on_outcome(action.id, Outcome::Reply(&reply(1800)), start);
    assert_eq!(one(&mut a, start).request.event, Event::Completed);
}

#[test]
fn tiers_are_tried_in_order_and_the_working_tracker_moves_to_the_front() {
    let start = Instant::now();
    let mut a = announcer(&[&["a", "b", "c"], &["d"]], 7, start);
    let order: Vec<String> = a.trackers().map(|tracker| tracker.url.host().to_owned()).collect();
    assert_eq!(order[3], "d");
    // The first two fail at once, the third answers.
    for host in &order[..2] {
        let action = one(&mut a, start);
        assert_eq!(action.tracker.host(), host);
        a.on_outcome(action.id, DOWN, start);
    }
    let third = one(&mut a, start);
    assert_eq!(third.tracker.host(), order[2]);
    a.on_outcome(third.id, Outcome::Reply(&reply(600)), start);
    assert_eq!(a.trackers().next().unwrap().url.host(), order[2]);
    assert_eq!(one(&mut a, start + Duration::from_secs(600)).tracker.host(), order[2]);
}

#[test]
fn the_second_tier_is_used_only_when_the_first_fails() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"], &["b"]], 0, start);
    let action = one(&mut a, start);
    a.on_outcome(action.id, DOWN, start);
    let action = one(&mut a, start);
    assert_eq!((action.tracker.host(), action.request.event), ("b", Event::Started));
    a.on_outcome(action.id, Outcome::Reply(&reply(600)), start);
    // The next regular announce begins at the first tier again.
    assert_eq!(one(&mut a, start + Duration::from_secs(600)).tracker.host(), "a");
}

#[test]
fn seeds_decide_the_order_within_a_tier() {
    let hosts: Vec<String> = (0..20).map(|n| format!("t{n}")).collect();
    let tier: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let order = |seed| -> Vec<TrackerUrl> {
        announcer(&[&tier], seed, Instant::now()).trackers().map(|tracker| tracker.url.clone()).collect()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn failures_back_off_with_jitter_up_to_the_cap() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"]], 5, start);
    let mut now = start;
    for failure in 0..20 {
        let action = one(&mut a, now);
        assert_eq!(action.request.event, Event::Started);
        a.on_outcome(action.id, DOWN, now);
        let wait = a.deadline().unwrap() - now;
        let base = BACKOFF_FIRST.saturating_mul(1 << failure).min(BACKOFF_CAP);
        assert!(wait >= base && wait <= base + base / BACKOFF_JITTER, "failure {failure}: {wait:?}");
        now += wait;
    }
    // One success forgets them all.
    let action = one(&mut a, now);
    a.on_outcome(action.id, Outcome::Reply(&reply(60)), now);
    now += Duration::from_secs(60);
    let action = one(&mut a, now);
    a.on_outcome(action.id, DOWN, now);
    assert!(a.deadline().unwrap() - now <= BACKOFF_FIRST * 5 / 4);
}

#[test]
fn a_refusal_says_when_to_return() {
    let start = Instant::now();
    let refused = |retry| {
        let mut a = announcer(&[&["a"]], 0, start);
        let action = one(&mut a, start);
        a.on_outcome(action.id, Outcome::Failed { reason: "no", retry }, start);
        assert_eq!(a.trackers().next().unwrap().message.as_deref(), Some("no"));
        a.deadline()
    };
    assert_eq!(refused(Retry::After(Duration::from_secs(3600))), Some(start + Duration::from_secs(3600)));
    assert_eq!(refused(Retry::After(Duration::MAX)), Some(start + RETRY_CAP));
    assert_eq!(refused(Retry::Never), None);
}

/// Polls for exactly one action of a content that needs peers.
fn one_in_need(announcer: &mut Announcer, now: Instant) -> Action {
    let action = announcer.poll(&NEED, now).expect("an announce is due");
    assert_eq!(announcer.poll(&NEED, now), None);
    action
}

#[test]
fn who_needs_peers_asks_again_from_the_min_interval_on_ever_more_seldom() {
    let minute = Duration::from_secs(60);
    for (said, first) in [(Some(2 * minute), 2), (None, 1)] {
        let start = Instant::now();
        let mut a = announcer(&[&["a"]], 0, start);
        let answer = AnnounceReply { interval_min: said, ..reply(1800) };
        let mut now = start;
        for doubled in 0..8 {
            let action = one_in_need(&mut a, now);
            a.on_outcome(action.id, Outcome::Reply(&answer), now);
            assert_eq!(a.poll(&NEED, now), None);
            let due = now + (first * minute * (1 << doubled)).min(30 * minute);
            assert_eq!(a.deadline(), Some(due), "answer {doubled}");
            assert_eq!(a.poll(&NEED, due - Duration::from_nanos(1)), None);
            now = due;
        }
        // Peers came and went: from the beginning.
        let action = one_in_need(&mut a, now);
        assert_eq!(a.poll(&NONE, now), None);
        a.on_outcome(action.id, Outcome::Reply(&answer), now);
        assert_eq!((a.poll(&NONE, now), a.deadline()), (None, Some(now + 30 * minute)));
        assert_eq!((a.poll(&NEED, now), a.deadline()), (None, Some(now + first * minute)));
    }
}

#[test]
fn who_needs_peers_asks_the_trackers_behind_one_that_knows_none() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"], &["b"]], 0, start);
    let first = one_in_need(&mut a, start);
    assert_eq!(first.tracker.host(), "a");
    a.on_outcome(first.id, Outcome::Reply(&reply(1800)), start);
    let second = one_in_need(&mut a, start);
    assert_eq!((second.tracker.host(), second.request.event), ("b", Event::Started));
    a.on_outcome(second.id, Outcome::Reply(&reply(60)), start);
    // The second one's interval is not the first one's.
    assert_eq!(a.poll(&NONE, start + NEED_INTERVAL), None);
    // Both know of us, and both are told when we leave.
    a.stop();
    let told: Vec<_> = std::iter::from_fn(|| a.poll(&NONE, start)).map(|action| action.request.event).collect();
    assert_eq!(told, [Event::Stopped; 2]);
}

#[test]
fn a_silent_tracker_does_not_hold_up_who_needs_peers() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"], &["b"]], 0, start);
    assert_eq!(one_in_need(&mut a, start).tracker.host(), "a");
    assert_eq!(a.deadline(), Some(start + IMPATIENCE));
    assert_eq!(a.poll(&NEED, start + IMPATIENCE - Duration::from_nanos(1)), None);
    assert_eq!(one_in_need(&mut a, start + IMPATIENCE).tracker.host(), "b");
    assert_eq!(a.deadline(), None);
}

#[test]
fn who_needs_peers_waits_for_a_tracker_that_fails_as_everybody_does() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"]], 0, start);
    let action = one_in_need(&mut a, start);
    a.on_outcome(action.id, DOWN, start);
    assert_eq!(a.poll(&NEED, start), None);
    let wait = a.deadline().unwrap() - start;
    assert!(wait >= BACKOFF_FIRST && wait <= BACKOFF_FIRST * 5 / 4, "{wait:?}");
    let action = one_in_need(&mut a, start + wait);
    a.on_outcome(action.id, Outcome::Failed { reason: "no", retry: Retry::Never }, start + wait);
    assert_eq!((a.poll(&NEED, start + wait), a.deadline(), a.usable()), (None, None, 0));
}

#[test]
fn hybrids_announce_under_both_hashes() {
    let start = Instant::now();
    let hashes = InfoHashes { v1: Some([1; 20]), v2: Some([2; 32]) };
    let config = AnnouncerConfig { hashes, peer_id: [0; 20], port: 1, scion: None, key: 0, seed: 0 };
    let mut a = Announcer::new(config, &[urls(&["a"])], start);
    let asked: Vec<_> = std::iter::from_fn(|| a.poll(&NONE, start)).map(|action| action.request.info_hash).collect();
    assert_eq!(asked, [[1; 20], [2; 20]]);
}

#[test]
fn stopping_tells_only_those_who_know_us() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"], &["b"], &["c"]], 0, start);
    let failed = one(&mut a, start);
    a.on_outcome(failed.id, DOWN, start);
    let told = one(&mut a, start);
    a.on_outcome(told.id, Outcome::Reply(&reply(1800)), start);
    a.stop();
    assert_eq!(a.deadline(), None);
    let action = one(&mut a, start);
    assert_eq!((action.tracker.host(), action.request.event), ("b", Event::Stopped));
    assert_eq!(action.request.numwant, Some(0));
    assert!(!a.is_stopped());
    a.on_outcome(action.id, DOWN, start);
    assert!(a.is_stopped());
}

#[test]
fn a_tracker_asked_at_the_moment_of_stopping_is_told_too() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"]], 0, start);
    let started = one(&mut a, start);
    a.stop();
    let stopped = one(&mut a, start);
    assert_eq!(stopped.request.event, Event::Stopped);
    a.on_outcome(started.id, Outcome::Reply(&reply(1800)), start);
    assert!(!a.is_stopped());
    a.on_outcome(stopped.id, Outcome::Reply(&reply(1800)), start);
    assert!(a.is_stopped());
    assert_eq!(a.poll(&NONE, start), None);
}

#[test]
fn the_number_wanted_falls_with_need() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"]], 0, start);
    let action = a.poll(&Progress { peers_wanted: 3, ..NONE }, start).unwrap();
    assert_eq!(action.request.numwant, Some(3));
}

#[test]
fn partial_seeds_say_so_each_time() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"]], 0, start);
    let partial = Progress { is_partial_seed: true, ..NONE };
    let mut events = Vec::new();
    for minute in 0..3 {
        let now = start + Duration::from_secs(60 * minute);
        let action = a.poll(&partial, now).unwrap();
        a.on_outcome(action.id, Outcome::Reply(&reply(60)), now);
        events.push(action.request.event);
    }
    assert_eq!(events, [Event::Started, Event::Paused, Event::Paused]);
    let action = one(&mut a, start + Duration::from_secs(180));
    assert_eq!(action.request.event, Event::None);
}

#[test]
fn the_tracker_id_goes_back() {
    let start = Instant::now();
    let mut a = announcer(&[&["a"]], 0, start);
    let action = one(&mut a, start);
    let answer = AnnounceReply { tracker_id: Some(b"id".to_vec()), ..reply(60) };
    a.on_outcome(action.id, Outcome::Reply(&answer), start);
    let action = one(&mut a, start + Duration::from_secs(60));
    assert_eq!(action.request.tracker_id.as_deref(), Some(&b"id"[..]));
}

#[test]
fn trackers_are_bounded_and_unique() {
    let hosts: Vec<String> = (0..TRACKERS_MAX + 1).map(|n| format!("t{n}")).collect();
    let tier: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let at = |count: usize| announcer(&[&tier[..count], &tier[..1]], 0, Instant::now()).trackers().count();
    assert_eq!(at(TRACKERS_MAX), TRACKERS_MAX);
    assert_eq!(at(TRACKERS_MAX + 1), TRACKERS_MAX);
}

#[test]
fn without_trackers_nothing_happens() {
    let now = Instant::now();
    let mut a = announcer(&[], 0, now);
    assert_eq!((a.poll(&NONE, now), a.deadline()), (None, None));
    a.stop();
    assert!(a.is_stopped());
}

/// A day with trackers that answer anything: time always goes on, and nobody is asked more often than the floor allows.
#[test]
fn a_day_of_random_trackers_never_spins() {
    for seed in 0..50 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let start = Instant::now();
        let hashes = InfoHashes { v1: Some([1; 20]), v2: Some([2; 32]) };
        let config = AnnouncerConfig { hashes, peer_id: [0; 20], port: 1, scion: None, key: 0, seed };
        let mut a = Announcer::new(config, &[urls(&["a", "b"]), urls(&["c"])], start);
        let (mut now, mut asked) = (start, [0u32; 3]);
        while let Some(at) = a.deadline() {
            if at > start + Duration::from_secs(86_400) {
                break;
            }
            now = now.max(at);
            let progress = Progress { needs_peers: rng.bool(), ..NONE };
            while let Some(action) = a.poll(&progress, now) {
                asked[usize::from(action.tracker.host().as_bytes()[0] - b'a')] += 1;
                let reply =
                    AnnounceReply { interval_min: rng.bool().then_some(Duration::ZERO), ..reply(rng.u64(0..100)) };
                let retry = [Retry::Unsaid, Retry::After(Duration::ZERO)][rng.usize(0..2)];
                let outcome = if rng.bool() { Outcome::Reply(&reply) } else { Outcome::Failed { reason: "", retry } };
                a.on_outcome(action.id, outcome, now);
                if rng.u8(0..20) == 0 {
                    a.on_complete(now);
                }
            }
            assert!(a.deadline().is_none_or(|next| next > now), "seed {seed}: no progress");
        }
        // Two hashes, each at most once in INTERVAL_FLOOR, and one `completed` in twenty besides.
        let bound = 2 * 86_400 / INTERVAL_FLOOR.as_secs() as u32 * 11 / 10;
        assert!(asked.iter().all(|count| *count < bound), "seed {seed}: {asked:?}");
    }
}
