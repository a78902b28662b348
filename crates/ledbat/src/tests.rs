//! LEDBAT over links in virtual time. `cargo test -p anabranch-ledbat -- --nocapture` prints the tables.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::*;

const PACKET_BYTES: f64 = 1088.0;

/// One queue that every flow's packets go through, then half of the round trip; ACKs take the other half.
struct Link {
    mbit: f64,
    rtt_ms: f64,
    queue_ms: f64,
    loss: f64,
    /// Packets arrive in bunches, one after each slot; 0 for none.
    slot_ms: f64,
}

enum Control {
    Ledbat(Box<Ledbat>),
    Cubic(Cubic),
}

struct Flow {
    control: Control,
    start_s: f64,
    end_s: f64,
    clock_offset_us: i64,
    inflight: BTreeMap<u64, f64>,
    next: u64,
    send_at_s: f64,
    delivered: Vec<f64>,
    /// The window at the end of each slot.
    windows: Vec<f64>,
    queue_ms_max_steady: f64,
}

/// A model of CUBIC (RFC 9438): window in packets, fast convergence left out.
struct Cubic {
    window: f64,
    threshold: f64,
    window_max: f64,
    epoch_s: f64,
    loss_until_s: f64,
    rtt_s: f64,
}

impl Cubic {
    fn acked(&mut self, now_s: f64, rtt_s: f64) {
        self.rtt_s = rtt_s;
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let k = (self.window_max * 0.3 / 0.4).cbrt();
        let since = now_s - self.epoch_s;
        let cubic = 0.4 * (since + rtt_s - k).powi(3) + self.window_max;
        let reno = self.window_max * 0.7 + 0.53 * since / rtt_s;
        let goal = cubic.max(reno).clamp(self.window, self.window * 1.5);
        self.window += (goal - self.window) / self.window;
    }

    fn lost(&mut self, now_s: f64) {
        if now_s >= self.loss_until_s {
            self.window_max = self.window;
            self.window = (self.window * 0.7).max(2.0);
            self.threshold = self.window;
            (self.epoch_s, self.loss_until_s) = (now_s, now_s + self.rtt_s);
        }
    }
}

fn flow(control: Control, start_s: f64, end_s: f64) -> Flow {
    Flow {
        control,
        start_s,
        end_s,
        clock_offset_us: -5_000_000,
        inflight: BTreeMap::new(),
        next: 0,
        send_at_s: start_s,
        delivered: Vec::new(),
        windows: Vec::new(),
        queue_ms_max_steady: 0.0,
    }
}

fn ledbat(mode: Mode) -> Control {
    Control::Ledbat(Box::new(Ledbat::new(mode)))
}

fn cubic() -> Control {
    let (window, threshold) = (10.0, f64::MAX);
    Control::Cubic(Cubic { window, threshold, window_max: 10.0, epoch_s: 0.0, loss_until_s: 0.0, rtt_s: 1.0 })
}

/// Length of the slots in which deliveries are counted.
const SLOT_S: f64 = 0.1;

impl Flow {
    fn mbit(&self, from_s: f64, to_s: f64) -> f64 {
        let slots = &self.delivered[(from_s / SLOT_S) as usize..((to_s / SLOT_S) as usize).min(self.delivered.len())];
        slots.iter().sum::<f64>() * PACKET_BYTES * 8e-6 / (to_s - from_s)
    }
}

/// Events by time in nanoseconds: a flow may send; a packet's ACK is back.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send(usize),
    Ack(usize, u64, u64),
    Timeout(usize, u64),
}

fn run(link: &Link, flows: &mut [Flow], end_s: f64, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let origin = Instant::now();
    let at = |s: f64| origin + Duration::from_secs_f64(s);
    let ns = |s: f64| (s * 1e9) as u64;
    let mut events = BinaryHeap::new();
    let packet_s = PACKET_BYTES * 8e-6 / link.mbit;
    // The time at which the queue is empty.
    let mut free_s = 0.0f64;
    for (number, flow) in flows.iter_mut().enumerate() {
        flow.delivered = vec![0.0; (end_s / SLOT_S) as usize + 1];
        flow.windows = vec![0.0; (end_s / SLOT_S) as usize];
        events.push(Reverse((ns(flow.start_s), Event::Send(number))));
    }
    while let Some(Reverse((time, event))) = events.pop() {
        let now_s = time as f64 / 1e9;
        if now_s >= end_s {
            return;
        }
        match event {
            Event::Send(number) => {
                let flow = &mut flows[number];
                let (window, interval) = match &flow.control {
                    Control::Ledbat(ledbat) => (ledbat.window(), ledbat.send_interval().as_secs_f64()),
                    Control::Cubic(cubic) => (cubic.window, cubic.rtt_s / cubic.window / 1.25),
                };
                if now_s < flow.send_at_s - 1e-9 || now_s >= flow.end_s || flow.inflight.len() as f64 >= window.max(1.0)
                {
                    continue;
                }
                let queue_s = (free_s - now_s).max(0.0);
                if now_s > 10.0 {
                    flow.queue_ms_max_steady = flow.queue_ms_max_steady.max(queue_s * 1e3);
                }
                let id = flow.next;
                flow.next += 1;
                flow.inflight.insert(id, now_s);
                flow.send_at_s = now_s + interval;
                events.push(Reverse((ns(flow.send_at_s) + 1, Event::Send(number))));
                if let Control::Ledbat(ledbat) = &flow.control {
                    events.push(Reverse((time + ledbat.timeout().as_nanos() as u64, Event::Timeout(number, id))));
                }
                if queue_s * 1e3 <= link.queue_ms {
                    free_s = now_s.max(free_s) + packet_s;
                    if rng.f64() >= link.loss {
                        let (there_s, slot_s) = (free_s + link.rtt_ms / 2e3, link.slot_ms / 1e3);
                        let arrives_s = if slot_s > 0.0 { (there_s / slot_s).ceil() * slot_s } else { there_s };
                        let delay_us = ((arrives_s - now_s) * 1e6) as i64 + flow.clock_offset_us;
                        events.push(Reverse((
                            ns(arrives_s + link.rtt_ms / 2e3),
                            Event::Ack(number, id, delay_us as u64),
                        )));
                    }
                }
            }
            Event::Ack(number, id, delay_us) => {
                let flow = &mut flows[number];
                flow.delivered[(now_s / SLOT_S) as usize] += 1.0;
                let Some(sent_s) = flow.inflight.remove(&id) else { continue };
                // Three later packets are here: what left before is lost.
                let late: Vec<u64> = flow.inflight.range(..id.saturating_sub(3)).map(|(id, _)| *id).collect();
                let lost: Vec<f64> = late.iter().filter_map(|id| flow.inflight.remove(id)).collect();
                match &mut flow.control {
                    Control::Ledbat(ledbat) => {
                        flow.windows[(now_s / SLOT_S) as usize] = ledbat.window();
                        let limited = flow.inflight.len() as f64 + 2.0 >= ledbat.window() / 2.0;
                        ledbat.acked(at(now_s), 1, Some(Duration::from_secs_f64(now_s - sent_s)), delay_us, limited);
                        if let Some(sent_s) = lost.last() {
                            ledbat.lost(at(now_s), lost.len() as u64, at(*sent_s));
                        }
                    }
                    Control::Cubic(cubic) => {
                        cubic.acked(now_s, now_s - sent_s);
                        if !lost.is_empty() {
                            cubic.lost(now_s);
                        }
                    }
                }
                events.push(Reverse((time.max(ns(flow.send_at_s)) + 1, Event::Send(number))));
            }
            Event::Timeout(number, id) => {
                let flow = &mut flows[number];
                if let Some(sent_s) = flow.inflight.remove(&id) {
                    let rest = std::mem::take(&mut flow.inflight);
                    if let Control::Ledbat(ledbat) = &mut flow.control {
                        if rest.is_empty() {
                            ledbat.timed_out(at(now_s))
                        } else {
                            ledbat.lost(at(now_s), 1, at(sent_s))
                        }
                    }
                    flow.inflight = rest;
                    events.push(Reverse((time + 1, Event::Send(number))));
                }
            }
        }
    }
}

fn alone(mode: Mode, link: &Link, end_s: f64) -> Flow {
    let mut flows = [flow(ledbat(mode), 0.0, f64::MAX)];
    run(link, &mut flows, end_s, 1);
    let [flow] = flows;
    flow
}

/// 1 to 1000 Mbit/s at 60 ms: in steady state the link is full and the queue near its target.
#[test]
fn fills_links_of_every_rate() {
    println!("{:>6} {:>8} {:>10} {:>14}", "Mbit/s", "of link", "queue ms", "0.9 after s");
    for mbit in [1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0] {
        let link = Link { mbit, rtt_ms: 60.0, queue_ms: 400.0, loss: 0.0, slot_ms: 0.0 };
        let end_s = if mbit > 100.0 { 14.0 } else { 30.0 };
        let flow = alone(Mode::Fast, &link, end_s);
        let part = flow.mbit(10.0, end_s) / mbit;
        println!("{mbit:>6} {part:>8.3} {:>10.1} {:>14.1}", flow.queue_ms_max_steady, filled_after_s(&flow, mbit));
        assert!(part >= 0.95, "{mbit} Mbit/s: {part}");
        assert!(flow.queue_ms_max_steady <= 110.0, "{mbit} Mbit/s: {} ms", flow.queue_ms_max_steady);
    }
}

/// When the flow first moved 0.9 of the link over half a second.
fn filled_after_s(flow: &Flow, mbit: f64) -> f64 {
    let mut at_s = 0.0;
    while at_s + 0.5 < flow.delivered.len() as f64 * SLOT_S - SLOT_S && flow.mbit(at_s, at_s + 0.5) < 0.9 * mbit {
        at_s += SLOT_S;
    }
    at_s + 0.5
}

/// 25 to 500 ms: the default is there within 5 s; the paper's mode takes the catalogue's times for 100 MB (003-fig9).
#[test]
fn long_ways_fill_fast_by_default_and_slowly_as_in_the_paper() {
    println!("{:>6} {:>14} {:>8} {:>16} {:>16}", "ms", "0.9 after s", "of link", "paper 100 MB s", "paper final");
    for (delay_ms, expected_s) in [(25.0, 82.0), (100.0, 92.0), (150.0, 102.0), (300.0, 150.0), (500.0, 237.0)] {
        let link = Link { mbit: 10.0, rtt_ms: delay_ms + 40.0, queue_ms: 400.0, loss: 0.0, slot_ms: 0.0 };
        let fast = alone(Mode::Fast, &link, 30.0);
        let (after_s, part) = (filled_after_s(&fast, 10.0), fast.mbit(10.0, 30.0) / 10.0);
        let paper = alone(Mode::Paper, &link, 300.0);
        let (mut sum, mut slot) = (0.0, 0);
        while sum < 1e8 / 1024.0 && slot < paper.delivered.len() {
            sum += paper.delivered[slot];
            slot += 1;
        }
        let paper_s = slot as f64 * SLOT_S;
        let paper_final = paper.mbit(paper_s - 5.0, paper_s);
        println!("{delay_ms:>6} {after_s:>14.1} {part:>8.3} {paper_s:>10.0} ({expected_s:>3.0}) {paper_final:>16.1}");
        assert!(after_s <= 5.0 && part >= 0.9, "{delay_ms} ms: {after_s} s, {part}");
        assert!((paper_s / expected_s - 1.0).abs() < 0.25, "{delay_ms} ms: {paper_s} s in the paper's mode");
    }
}

/// Loss without a queue is the wire's: the default stays, the paper's mode saws (003-fig10, 003-fig11).
#[test]
fn loss_of_the_wire_costs_what_is_lost() {
    println!("{:>6} {:>10} {:>10}", "loss %", "default", "paper");
    let mut paper_before = f64::MAX;
    for loss in [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0] {
        let link = Link { mbit: 10.0, rtt_ms: 60.0, queue_ms: 400.0, loss: loss / 100.0, slot_ms: 0.0 };
        let [fast, paper] = [Mode::Fast, Mode::Paper].map(|mode| alone(mode, &link, 60.0).mbit(10.0, 60.0));
        println!("{loss:>6} {fast:>10.2} {paper:>10.2}");
        assert!(fast >= if loss <= 1.5 { 8.5 } else { 7.5 }, "{loss} %: {fast}");
        assert!(loss < 1.5 || paper < 5.0, "{loss} %: {paper} in the paper's mode");
        assert!(paper <= paper_before * 1.1, "completion rises with loss");
        paper_before = paper;
    }
}

/// Beside one CUBIC flow: at most 15 % of the link, and 0.9 of it within 3 s of the flow's end; also where the queue is shorter than the
/// target. One of 10 ms is too short to be noticed in: there the flow is left three quarters.
#[test]
fn yields_to_cubic_and_comes_back() {
    println!("{:>6} {:>9} {:>10} {:>10} {:>12}", "Mbit/s", "queue ms", "beside", "CUBIC", "3 s after");
    for (queue_ms, beside_max) in [(400.0, 0.15), (150.0, 0.15), (80.0, 0.15), (40.0, 0.15), (20.0, 0.15), (10.0, 0.3)]
    {
        for mbit in [10.0, 50.0] {
            // Less than two packets fit: no flow fills such a link.
            if queue_ms * mbit < 200.0 {
                continue;
            }
            let link = Link { mbit, rtt_ms: 60.0, queue_ms, loss: 0.0, slot_ms: 0.0 };
            let mut flows = [flow(ledbat(Mode::Fast), 0.0, f64::MAX), flow(cubic(), 10.0, 50.0)];
            run(&link, &mut flows, 60.0, 1);
            let (beside, other) = (flows[0].mbit(20.0, 50.0) / mbit, flows[1].mbit(20.0, 50.0) / mbit);
            let after = flows[0].mbit(53.0, 55.0) / mbit;
            println!("{mbit:>6} {queue_ms:>9} {beside:>10.3} {other:>10.3} {after:>12.3}");
            assert!(beside <= beside_max, "{beside} of the link beside CUBIC");
            assert!(after >= 0.9, "{after} of the link 3 s after CUBIC's end");
        }
    }
}

/// Who comes when the queue is long takes its length for the way's, and all the rest of the link with it, until somebody pauses.
#[test]
fn who_comes_late_takes_no_more_than_its_part() {
    println!("{:>6} {:>6} {:>8} {:>8} {:>10}", "Mbit/s", "ms", "first", "second", "queue ms");
    let mut parts = Vec::new();
    for (mbit, rtt_ms) in [(10.0, 20.0), (10.0, 60.0), (10.0, 300.0), (50.0, 60.0), (50.0, 300.0)] {
        let link = Link { mbit, rtt_ms, queue_ms: 400.0, loss: 0.0, slot_ms: 0.0 };
        let mut flows = [flow(ledbat(Mode::Fast), 0.0, f64::MAX), flow(ledbat(Mode::Fast), 20.0, f64::MAX)];
        run(&link, &mut flows, 140.0, 1);
        let [first, second] = [0, 1].map(|number| flows[number].mbit(60.0, 140.0) / mbit);
        println!("{mbit:>6} {rtt_ms:>6} {first:>8.3} {second:>8.3} {:>10.1}", flows[1].queue_ms_max_steady);
        parts.push((first, second));
    }
    assert!(parts.iter().all(|(first, second)| first.min(*second) >= 0.2 && first + second >= 0.9), "{parts:?}");
}

/// Delays that vary by themselves, where packets cross in bunches, are nobody's queue, whatever is lost.
#[test]
fn bunches_are_not_taken_for_a_queue() {
    println!("{:>6} {:>9} {:>8} {:>8}", "Mbit/s", "bunch ms", "loss %", "of link");
    for mbit in [2.0, 10.0, 50.0] {
        for (slot_ms, loss) in [(10.0, 0.0), (20.0, 0.0), (40.0, 0.0), (0.0, 1.0), (10.0, 1.0), (20.0, 1.0)] {
            let link = Link { mbit, rtt_ms: 60.0, queue_ms: 150.0, loss: loss / 100.0, slot_ms };
            let part = alone(Mode::Fast, &link, 30.0).mbit(10.0, 30.0) / mbit;
            println!("{mbit:>6} {slot_ms:>9} {loss:>8} {part:>8.3}");
            assert!(part >= 0.9, "{mbit} Mbit/s, {slot_ms} ms, {loss} %: {part}");
        }
    }
}

/// The paper's mode as the catalogue has it: 003-fig7 (5 Mbit/s, buffers of 40 and 400 KB) and 003-fig8 (2 to 20 Mbit/s).
#[test]
fn the_papers_mode_fills_the_papers_links() {
    println!(
        "{:>6} {:>10} {:>8} {:>6} {:>10} {:>11} {:>10}",
        "Mbit/s", "buffer KB", "of link", "asked", "highest", "at the end", "settled s"
    );
    for (mbit, buffer_kb, least) in
        [(5.0, 40.0, 0.9), (5.0, 400.0, 0.95), (2.0, 400.0, 0.9), (10.0, 400.0, 0.9), (20.0, 400.0, 0.9)]
    {
        let link = Link { mbit, rtt_ms: 60.0, queue_ms: buffer_kb * 8.192 / mbit, loss: 0.0, slot_ms: 0.0 };
        let flow = alone(Mode::Paper, &link, 160.0);
        let part = flow.mbit(60.0, 160.0) / mbit;
        let late = &flow.windows[(60.0 / SLOT_S) as usize..];
        let highest = flow.windows.iter().copied().fold(0.0, f64::max);
        let end = late.iter().sum::<f64>() / late.len() as f64;
        let stays = |window: &f64| (window / end - 1.0).abs() <= 0.15;
        let settled_s = flow.windows.iter().rposition(|window| !stays(window)).map_or(0.0, |slot| slot as f64 * SLOT_S);
        println!("{mbit:>6} {buffer_kb:>10} {part:>8.3} {least:>6} {highest:>10.1} {end:>11.1} {settled_s:>10.1}");
        assert!(part >= least, "{part} of {mbit} Mbit/s");
        // A buffer shorter than the target loses packets, and the window saws: why the paper's curve does not is not said there.
        assert!(buffer_kb < 400.0 || settled_s < 60.0, "the window stands still after {settled_s} s");
    }
}

/// Clocks whose difference is anything, and delays that a liar makes up.
#[test]
fn absurd_delays_move_the_window_within_its_bounds() {
    let now = Instant::now();
    for seed in 0..20 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for mode in [Mode::Paper, Mode::Fast] {
            let mut ledbat = Ledbat::new(mode);
            let mut at = now;
            for _ in 0..2000 {
                at += Duration::from_millis(rng.u64(..5000));
                match rng.u8(..8) {
                    0 => ledbat.lost(at, rng.u64(..100), at - Duration::from_millis(rng.u64(..500))),
                    1 => ledbat.timed_out(at),
                    _ => ledbat.acked(
                        at,
                        rng.u64(..4),
                        rng.bool().then(|| Duration::from_micros(rng.u64(..1 << 40))),
                        rng.u64(..),
                        true,
                    ),
                }
                assert!((WINDOW_MIN_PAPER..=WINDOW_MAX).contains(&ledbat.window()));
                assert!(ledbat.send_interval() < Duration::from_secs(1 << 40) && ledbat.timeout() <= TIMEOUT_MAX);
            }
        }
    }
    let mut ledbat = Ledbat::new(Mode::Fast);
    for (at_s, (delay, queue_ms)) in (0..).zip([(u64::MAX - 4999, 0), (5000, 0), (5000, 0), (5000, 0), (5000, 10)]) {
        ledbat.acked(now + Duration::from_secs(at_s), 1, None, delay, true);
        assert_eq!(ledbat.queue(), Duration::from_millis(queue_ms), "across zero");
    }
    // Ten minutes on, a longer way is the way.
    for minute in 1..=10 {
        ledbat.acked(now + Duration::from_secs(61 * minute), 1, None, 5000, true);
    }
    assert_eq!(ledbat.queue(), Duration::ZERO);
}
