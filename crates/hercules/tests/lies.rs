//! Receivers that lie in their reports, over links in virtual time: found out, or no faster than who tells the truth. Seeds are
//! printed.

mod sim;

use std::time::Duration;

use anabranch_hercules::congestion::Kind;
use anabranch_hercules::wire::control::{Control, Report};
use anabranch_hercules::{Event, Misbehaviour, PacketWindow};
use sim::{Content, Lie, Link, Net, mbit, ms};

const KINDS: [Kind; 5] = [Kind::Fair, Kind::Allegro, Kind::Vivace, Kind::Bbr, Kind::Fixed(2e6)];
const ONE_PATH: [(&[usize], &[usize], Option<u32>); 1] = [(&[0], &[1], None)];

/// Where everything up to a number came.
fn all_up_to(next: u64) -> PacketWindow {
    let mut window = PacketWindow::default();
    (next.saturating_sub(1 << 19)..next).for_each(|number| _ = window.insert(number));
    window
}

/// Says that all of what a report is about came, and of what is behind it as much again.
fn optimistic(ahead: u64) -> Lie {
    Box::new(move |control| {
        if let Control::Report(report) = control {
            let high = report.high + ahead;
            *control = Control::Report(Report::of(&all_up_to(high), report.path, report.answer, report.low, high));
        }
    })
}

#[test]
fn who_acknowledges_what_did_not_come_is_found_out() {
    for seed in 0..20 {
        let kind = KINDS[seed as usize % KINDS.len()];
        // One that hides what was lost, and one that acknowledges what cannot be there yet.
        for (loss, ahead) in [(0.02, 0), (0.0, 20)] {
            let links = vec![Link::new(mbit(20.0), ms(20), 3e5).lossy(loss), Link::wide(ms(20))];
            let mut net = Net::new(seed, links);
            let flow = net.add_flow(Content::Blank(1 << 40), 1400, kind, &ONE_PATH, &[], None);
            net.flows[flow].lie = Some(optimistic(ahead));
            net.run(Duration::from_secs(5), |net| net.flows[flow].misbehaved.is_some());
            let (at, found) = net.flows[flow].misbehaved.expect("it is found out");
            let progress = net.flows[flow].sender.progress();
            println!("{kind:?}, loss {loss}: after {at:?}, {} packets: {found}", progress.sent_packets);
            let typed = [Misbehaviour::ReportedSkipped { path: 0 }, Misbehaviour::ReportedUnsent { path: 0 }];
            assert!(typed.contains(&found));
            assert!(at < Duration::from_secs(4));
        }
    }
}

type Clocks = Vec<(&'static str, fn(&mut fastrand::Rng) -> Lie)>;

/// Answers say that a mark came when it left, so that no queue shows, or whatever else.
fn clocks() -> Clocks {
    fn each(
        change: impl Fn(&mut fastrand::Rng, &mut anabranch_hercules::wire::control::Answer) + 'static,
        seed: u64,
    ) -> Lie {
        let mut rng = fastrand::Rng::with_seed(seed);
        Box::new(move |control| {
            if let Control::Report(report) = control
                && let Some(answer) = &mut report.answer
            {
                change(&mut rng, answer);
            }
        })
    }
    vec![
        ("no queue", |rng| each(|_, answer| answer.receiver_us = answer.sender_us, rng.u64(..))),
        ("a slow clock", |rng| each(|_, answer| answer.receiver_us /= 10, rng.u64(..))),
        ("backwards", |rng| each(|_, answer| answer.receiver_us = u64::MAX - answer.receiver_us, rng.u64(..))),
        ("at random", |rng| each(|rng, answer| answer.receiver_us = rng.u64(..), rng.u64(..))),
        ("all of it waited", |rng| each(|_, answer| answer.delay_us = u32::MAX, rng.u64(..))),
        ("some waited", |rng| each(|rng, answer| answer.delay_us = rng.u32(0..60_000), rng.u64(..))),
        ("neither queue nor path", |rng| {
            each(|_, answer| (answer.receiver_us, answer.delay_us) = (answer.sender_us, 1 << 30), rng.u64(..))
        }),
    ]
}

#[test]
fn a_clock_that_lies_takes_no_more_of_a_link_than_a_true_one() {
    for (at, kind) in [Kind::Fair, Kind::Bbr].into_iter().enumerate() {
        let part = |lie: Option<Lie>| {
            let links = vec![Link::new(mbit(50.0), ms(20), 5e5), Link::wide(ms(20))];
            let mut net = Net::new(at as u64, links);
            let flow = net.add_flow(Content::Blank(1 << 40), 1400, kind, &ONE_PATH, &[], None);
            net.flows[flow].lie = lie;
            net.add_cubic(&[0], &[1]);
            net.run(Duration::from_secs(40), |_| false);
            assert!(net.flows[flow].misbehaved.is_none());
            let (from, to) = (Duration::from_secs(15), Duration::from_secs(40));
            let cubic = sim::rate(&net.cubics[0].arrived_bytes, from, to);
            (net.arrival_rate(flow, from, to) / (net.arrival_rate(flow, from, to) + cubic), net.links[0].dropped)
        };
        let (honest, dropped) = part(None);
        for (name, lie) in clocks() {
            let (lying, dropped_too) = part(Some(lie(&mut fastrand::Rng::with_seed(at as u64))));
            println!(
                "{kind:?}, {name}: {lying:.2} beside CUBIC instead of {honest:.2}; {dropped_too} dropped instead of {dropped}"
            );
            assert!(dropped_too < 20 * (dropped + 50), "{kind:?}, {name}");
            assert!(lying < honest + 0.3, "{kind:?}, {name}");
        }
    }
}

/// Says of every report that nobody asked for it, so that the way back is never silent, and no mark is ever answered.
fn unasked() -> Lie {
    Box::new(|control| {
        if let Control::Report(report) = control {
            report.answer = None;
        }
    })
}

/// When a path counted as down whose receiver reports and answers no mark, or answers all of them.
fn down_at(lie: Option<Lie>) -> Option<Duration> {
    let links = vec![Link::new(mbit(50.0), ms(5), 5e5), Link::wide(ms(5))];
    let mut net = Net::new(31, links);
    let flow = net.add_flow(Content::Blank(1 << 40), 1400, Kind::Fixed(2e6), &ONE_PATH, &[], None);
    net.flows[flow].lie = lie;
    let is_down = |net: &Net| net.flows[flow].events.iter().any(|(_, event)| *event == Event::AllPathsDown);
    net.run(Duration::from_secs(120), is_down);
    is_down(&net).then_some(net.now)
}

/// What is kept of a path until its marks are answered has a limit.
#[test]
fn who_answers_no_mark_is_silent_in_the_end_whatever_else_it_says() {
    let at = down_at(Some(unasked())).expect("it counts as down");
    println!("down after {at:?}");
    // Its reports are heard for long: over 8192 intervals of 10 ms.
    assert!(at > Duration::from_secs(60));
    assert_eq!(down_at(None), None);
}
