//! Both ends over links in virtual time: loss, reordering, duplication, delay, paths that go and come back. Seeds are printed.

mod sim;

use std::time::Duration;

use anabranch_hercules::congestion::Kind;
use anabranch_hercules::{Event, SharedShelf};
use sim::{Content, Link, Net, content, mbit, ms};

const MINUTE: Duration = Duration::from_secs(60);

fn finished(net: &Net) -> bool {
    net.flows.iter().all(|flow| flow.complete_at.is_some())
}

/// A lossy way there and back.
fn rough(rng: &mut fastrand::Rng, rate: f64) -> [Link; 2] {
    let delay = ms(rng.u64(1..80));
    let mut there = Link::new(rate, delay, rate * 0.05).lossy([0.0, 0.01, 0.1][rng.usize(..3)]);
    there.jitter = (0.05, ms(rng.u64(1..10)));
    there.duplicate = 0.02;
    let mut back = Link::wide(delay).lossy([0.0, 0.05, 0.3][rng.usize(..3)]);
    back.duplicate = 0.02;
    [there, back]
}

#[test]
fn everything_arrives_over_whatever_links() {
    for seed in 0..24 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let links = [rough(&mut rng, mbit(50.0)), rough(&mut rng, mbit(20.0))].concat();
        let mut net = Net::new(seed, links);
        let bytes = content(rng.usize(0..5_000_000), seed);
        let kind = [Kind::Vivace, Kind::Bbr, Kind::Allegro, Kind::Fixed(mbit(15.0))][rng.usize(..4)];
        let routes = [(&[0][..], &[1][..], None), (&[2], &[3], None)];
        net.add_flow(Content::Real(bytes.clone()), 1400, kind, &routes, &[], None);
        net.run(10 * MINUTE, finished);
        let flow = &net.flows[0];
        assert!(flow.complete_at.is_some(), "{kind:?}: {:?}, {:?}", flow.sender.progress(), flow.events);
        assert!(flow.written == bytes, "the content is what was sent");
    }
}

#[test]
fn a_path_that_is_cut_costs_little_and_carries_again_when_it_is_back() {
    let pair = |delay| [Link::new(mbit(80.0), ms(delay), 2e5), Link::wide(ms(delay))];
    let mut links = [pair(20), pair(30)].concat();
    links[0].down.push((Duration::from_secs(2), Duration::from_secs(6)));
    let mut net = Net::new(1, links);
    let routes = [(&[0][..], &[1][..], None), (&[2], &[3], None)];
    net.add_flow(Content::Blank(1 << 40), 8192, Kind::Vivace, &routes, &[], None);
    net.run(Duration::from_secs(12), |_| false);
    let flow = &net.flows[0];
    let of = |from: u64, to: u64| net.arrival_rate(0, Duration::from_secs(from), Duration::from_secs(to)) / mbit(80.0);
    println!("before {:.2}, meanwhile {:.2}, after {:.2} of one path", of(1, 2), of(3, 6), of(9, 12));
    assert!(flow.events.iter().any(|(_, event)| *event == Event::PathDown { path: 0 }));
    assert!(of(3, 6) > 0.5 && of(9, 12) > of(3, 6) + 0.3);
    // What was under way went over the other path: nothing is missing long after.
    assert!(flow.sender.progress().round >= 1);
}

#[test]
fn all_paths_lost_for_a_minute_is_waited_out() {
    let mut links = vec![Link::new(mbit(20.0), ms(10), 1e5), Link::wide(ms(10))];
    links[0].down.push((ms(500), ms(500) + MINUTE));
    let mut net = Net::new(2, links);
    let bytes = content(4_000_000, 2);
    net.add_flow(Content::Real(bytes.clone()), 1400, Kind::Bbr, &[(&[0], &[1], None)], &[], None);
    net.run(3 * MINUTE, finished);
    let flow = &net.flows[0];
    assert!(flow.events.iter().any(|(_, event)| *event == Event::AllPathsDown));
    assert!(flow.complete_at.is_some_and(|at| at < 2 * MINUTE), "{:?}", flow.complete_at);
    assert!(flow.written == bytes);
}

#[test]
fn what_was_kept_is_not_sent_again() {
    let bytes = content(10 << 20, 3);
    let kept = [0, 1, 2, 5, 9];
    let mut net = Net::new(3, vec![Link::new(mbit(100.0), ms(10), 1e5), Link::wide(ms(10))]);
    net.add_flow(Content::Real(bytes.clone()), 1400, Kind::Fixed(mbit(50.0)), &[(&[0], &[1], None)], &kept, None);
    net.run(MINUTE, finished);
    let flow = &net.flows[0];
    assert!(flow.complete_at.is_some() && flow.written == bytes);
    // Five of ten spans, chunks on their edges, and what is doubled at the end.
    let sent = flow.sender.progress().sent_packets * 1400;
    assert!(sent > 5 << 20 && sent < (5 << 20) + 200_000, "{sent}");
}

#[test]
fn several_destinations_share_what_is_read_and_the_slow_one_holds_up_nobody() {
    // Three fast destinations and one that is 20 times slower.
    let mut links = vec![Link::wide(ms(5))];
    links.extend((0..4).map(|at| Link::new(mbit(if at == 3 { 4.0 } else { 80.0 }), ms(10), 1e5)));
    let mut net = Net::new(4, links);
    let (len, unit) = (10_000_000u64, 64);
    let chunks = len.div_ceil(1400);
    net.shelves.push(SharedShelf::new(chunks, unit, 32));
    for at in 1..5 {
        let rate = if at == 4 { 3.5 } else { 70.0 };
        let routes = [(&[at][..], &[0][..], None)];
        net.add_flow(Content::Real(content(len as usize, 4)), 1400, Kind::Fixed(mbit(rate)), &routes, &[], Some(0));
    }
    net.run(MINUTE, |net| net.flows[..3].iter().all(|flow| flow.complete_at.is_some()));
    let (fast, reads) = (net.now, net.shelves[0].reads());
    println!("the fast ones took {fast:?}; {reads} reads of {} ranges", chunks.div_ceil(unit));
    assert!(fast < Duration::from_secs(3));
    assert!(reads <= chunks.div_ceil(unit) * 11 / 10);
    net.run(2 * MINUTE, finished);
    assert!(net.flows[3].complete_at.is_some() && net.flows[3].written == content(len as usize, 4));
    println!("the slow one took {:?}; {} reads", net.now, net.shelves[0].reads());
}

#[test]
fn reports_are_few_whatever_is_lost() {
    for (seed, loss) in [(5, 0.0), (6, 0.02)] {
        let mut net = Net::new(seed, vec![Link::new(mbit(200.0), ms(20), 1e6).lossy(loss), Link::wide(ms(20))]);
        net.add_flow(Content::Blank(1 << 40), 1400, Kind::Vivace, &[(&[0], &[1], None)], &[], None);
        net.run(Duration::from_secs(4), |_| false);
        let part = net.flows[0].report_bytes as f64 / net.flows[0].data_bytes as f64;
        println!("loss {loss}: report bytes {:.3} % of the data's", part * 100.0);
        assert!(part < 0.005);
    }
}
