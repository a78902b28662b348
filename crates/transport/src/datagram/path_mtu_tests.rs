use proptest::prelude::*;

use super::*;

const RTT: Duration = Duration::from_millis(40);

/// A path in virtual time that takes packets of at most `mtu` bytes.
struct Line {
    now: Instant,
    start: Instant,
    mtu: u16,
    search: PathMtu,
    probes: Vec<u16>,
}

impl Line {
    fn new(claimed: u16, mtu: u16) -> Self {
        let now = Instant::now();
        let mut search = PathMtu::new(Bounds::up_to(claimed), now);
        search.set_rtt(RTT);
        Self { now, start: now, mtu, search, probes: Vec::new() }
    }

    /// One probe, to its end. False if none is due before `until`.
    fn step(&mut self, until: Instant) -> bool {
        let Some(due) = self.search.deadline().filter(|due| *due <= until) else { return false };
        self.now = self.now.max(due);
        if let Some(probe) = self.search.probe(self.now) {
            assert!(probe.len <= self.search.bounds().max);
            self.probes.push(probe.len);
            if probe.len <= self.mtu {
                self.now += RTT;
                assert!(self.search.on_probe_acked(probe.id, self.now));
                assert!(!self.search.on_probe_acked(probe.id, self.now), "counts once");
            }
        }
        true
    }

    /// Until the search is over, or has failed.
    fn settle(&mut self) {
        for _ in 0..200 {
            if matches!(self.search.phase(), Phase::SearchComplete | Phase::Error) {
                return;
            }
            assert!(self.step(self.now + PROBE_TIMEOUT_MAX));
        }
        panic!("the search does not end: {:?}", self.search);
    }

    fn lose_data(&mut self, times: u32) {
        for _ in 0..times {
            let len = self.search.packet_len_max();
            self.search.on_data_lost(len, self.now);
        }
    }
}

#[test]
fn what_is_claimed_is_found_with_two_probes() {
    let mut line = Line::new(9000, 9000);
    assert_eq!((line.search.phase(), line.search.packet_len_max()), (Phase::Base, BASE_MTU));
    line.settle();
    assert_eq!((line.search.packet_len_max(), &line.probes[..]), (9000, &[1280, 9000][..]));
    assert_eq!(line.now - line.start, RTT * 2);
}

#[test]
fn a_path_of_the_base_length_is_complete_at_once() {
    let mut line = Line::new(1280, 1280);
    line.settle();
    assert_eq!((line.search.packet_len_max(), &line.probes[..]), (1280, &[1280][..]));
    // One that claims less starts from what it claims.
    let mut line = Line::new(700, 700);
    line.settle();
    assert_eq!((line.search.packet_len_max(), &line.probes[..]), (700, &[700][..]));
}

#[test]
fn a_common_length_below_the_claim_ends_the_search() {
    let mut line = Line::new(9000, 1500);
    line.settle();
    assert_eq!(line.search.packet_len_max(), 1500);
    assert_eq!(line.probes, [1280, 9000, 9000, 9000, 1500, 1508, 1508, 1508]);
}

#[test]
fn a_path_narrower_than_the_base_is_an_error_until_it_widens() {
    let mut line = Line::new(1500, 1279);
    line.settle();
    assert_eq!((line.search.phase(), line.search.packet_len_max()), (Phase::Error, MIN_MTU));
    assert_eq!(line.probes, [1280; 3]);
    // It goes on asking, but not all the time.
    let until = line.now + Duration::from_secs(600);
    while line.step(until) {}
    assert!((100..=150).contains(&line.probes.len()), "{}", line.probes.len());
    line.mtu = 1500;
    for _ in 0..20 {
        line.step(line.now + PROBE_TIMEOUT_MAX);
    }
    assert_eq!((line.search.phase(), line.search.packet_len_max()), (Phase::SearchComplete, 1500));
}

#[test]
fn a_path_that_widens_is_noticed_after_the_raise_timer() {
    let mut line = Line::new(9000, 1500);
    line.settle();
    line.mtu = 9000;
    let settled = line.now;
    assert!(!line.step(settled + RAISE_AFTER - Duration::from_millis(1)));
    assert!(line.step(settled + RAISE_AFTER));
    line.settle();
    assert_eq!(line.search.packet_len_max(), 9000);
}

#[test]
fn a_black_hole_is_found_by_probes_and_not_by_losses_alone() {
    let mut line = Line::new(9000, 9000);
    line.settle();
    // Congestion: the path takes what it took, and the probe says so.
    line.lose_data(SUSPICIOUS_LOSSES - 1);
    assert!(line.search.deadline().unwrap() > line.now, "one less is no suspicion");
    line.search.on_data_acked(9000);
    line.lose_data(SUSPICIOUS_LOSSES);
    assert!(line.step(line.now));
    assert_eq!((line.search.phase(), line.search.packet_len_max()), (Phase::SearchComplete, 9000));
    assert_eq!(*line.probes.last().unwrap(), 9000);
    // The path has become narrower.
    line.mtu = 1500;
    line.probes.clear();
    line.lose_data(SUSPICIOUS_LOSSES);
    while line.search.packet_len_max() == 9000 {
        assert!(line.step(line.now + PROBE_TIMEOUT_MAX));
    }
    assert_eq!(line.search.packet_len_max(), BASE_MTU);
    assert_eq!(line.probes, [9000, 9000, 9000, BASE_MTU]);
    line.settle();
    assert_eq!(line.search.packet_len_max(), 1500);
}

#[test]
fn losses_of_short_packets_accuse_nobody() {
    let mut line = Line::new(9000, 9000);
    line.settle();
    for _ in 0..10 * SUSPICIOUS_LOSSES {
        line.search.on_data_lost(BASE_MTU, line.now);
    }
    assert!(line.search.deadline().unwrap() > line.now);
}

#[test]
fn a_message_that_says_too_big_is_tried_and_not_believed() {
    // About a probe: what it names is the next length.
    let mut line = Line::new(9000, 4000);
    line.step(line.now);
    let probe = line.search.probe(line.now).unwrap();
    line.search.on_too_big(4000, line.now);
    assert!(!line.search.on_probe_acked(probe.id, line.now), "it was given up");
    line.settle();
    assert!((4000 - STEP..=4000).contains(&line.search.packet_len_max()));
    assert_eq!(line.probes[1], 4000);
    // A forged one about data: the path takes what it took.
    let len = line.search.packet_len_max();
    line.search.on_too_big(1300, line.now);
    assert_eq!(line.search.packet_len_max(), len);
    line.step(line.now);
    assert_eq!((line.search.phase(), line.search.packet_len_max()), (Phase::SearchComplete, len));
    // A true one.
    line.mtu = 1400;
    line.search.on_too_big(1400, line.now);
    while line.search.phase() == Phase::SearchComplete {
        line.step(line.now + PROBE_TIMEOUT_MAX);
    }
    line.settle();
    assert_eq!(line.search.packet_len_max(), 1400);
    // Absurd ones.
    for mtu in [0, MIN_MTU - 1, 9000, u16::MAX] {
        line.search.on_too_big(mtu, line.now);
    }
    assert!(line.search.deadline().unwrap() > line.now);
}

#[test]
fn another_claim_starts_another_search() {
    let mut line = Line::new(1500, 1500);
    line.settle();
    line.mtu = 9000;
    line.search.set_claimed(9000, line.now);
    line.settle();
    assert_eq!(line.search.packet_len_max(), 9000);
    line.search.set_claimed(1400, line.now);
    assert_eq!(line.search.packet_len_max(), 1400);
    line.settle();
    line.search.set_claimed(600, line.now);
    assert_eq!(line.search.packet_len_max(), 600);
}

#[test]
fn a_probe_that_did_not_leave_says_nothing() {
    let mut line = Line::new(9000, 9000);
    line.step(line.now);
    for _ in 0..10 * PROBES_MAX {
        line.now = line.search.deadline().unwrap();
        let probe = line.search.probe(line.now).unwrap();
        assert_eq!(probe.len, 9000);
        line.search.on_probe_unsent(probe.id, line.now);
    }
    line.settle();
    assert_eq!(line.search.packet_len_max(), 9000);
}

proptest! {
    // Whatever the path takes, the search ends near it, never above, with few probes.
    #[test]
    fn the_search_finds_what_the_path_takes(claimed in 64u16.., mtu in 64u16..) {
        let mut line = Line::new(claimed, mtu);
        line.settle();
        let found = line.search.packet_len_max();
        let base = BASE_MTU.min(claimed);
        if mtu < base {
            prop_assert_eq!((line.search.phase(), found), (Phase::Error, MIN_MTU.min(claimed)));
        } else {
            prop_assert!(found <= mtu && found <= claimed);
            prop_assert!(u32::from(found) + u32::from(STEP) > u32::from(mtu.min(claimed)), "{found} of {mtu}");
            prop_assert!(line.probes.len() <= 60, "{:?}", line.probes);
        }
    }

    // Any calls in any order: no panic, no probe and no data above what is claimed, ids come once, and there is a deadline.
    #[test]
    fn nothing_that_happens_breaks_the_bounds(
        claimed in 64u16..10_000, calls in proptest::collection::vec((0..9u8, any::<u16>(), 0..20_000u64), 0..200)
    ) {
        let mut now = Instant::now();
        let mut search = PathMtu::new(Bounds::up_to(claimed), now);
        let mut last = None;
        for (call, number, ms) in calls {
            match call {
                0 | 1 => {
                    now += Duration::from_millis(ms);
                    if let Some(probe) = search.probe(now) {
                        prop_assert!(probe.len <= search.bounds().max && probe.len >= search.bounds().base);
                        prop_assert!(last.is_none_or(|last| last < probe.id));
                        last = Some(probe.id);
                    }
                }
                2 => _ = search.on_probe_acked(last.unwrap_or(0), now),
                3 => search.on_probe_lost(last.unwrap_or(0), now),
                4 => (0..SUSPICIOUS_LOSSES).for_each(|_| search.on_data_lost(number, now)),
                5 => search.on_too_big(number, now),
                6 => search.set_claimed(number.max(64), now),
                7 => search.on_data_acked(number),
                _ => search.on_probe_unsent(last.unwrap_or(0), now),
            }
            prop_assert!(search.packet_len_max() <= search.bounds().max);
            prop_assert!(search.packet_len_max() >= search.bounds().min);
            prop_assert!(search.deadline().is_some());
        }
    }
}
