//! What CUBIC and BBR make of lines that lose packets, have short queues, or are shared.

use std::time::Duration;

use super::config::{Congestion, MTU_MAX};
use super::sim::{Bottleneck, MTU, Measured, Span, asked_for, run, steadily};

const SECOND: Duration = Duration::from_secs(1);
const ROUND_TRIP: Duration = Duration::from_millis(40);

/// `rate` in Mbit/s; the queue in parts of what fits into the line in one round trip.
fn line(rate: u64, queue: f64) -> Bottleneck {
    let product_bytes = rate as f64 * 1e6 / 8.0 * ROUND_TRIP.as_secs_f64();
    Bottleneck {
        rate_bps: Some(rate * 1_000_000),
        queue_bytes: ((product_bytes * queue) as usize).max(3000),
        round_trip: ROUND_TRIP,
        loss: 0.0,
        mtu_claimed: MTU,
    }
}

fn alone(bottleneck: Bottleneck, congestion: Congestion, seconds: u32) -> Measured {
    run(bottleneck, &[(congestion, Duration::ZERO)], 2 * SECOND, seconds * SECOND)[0]
}

#[test]
fn bbr_fills_a_line_that_loses_packets_and_cubic_does_not() {
    let lossy = Bottleneck { loss: 0.02, ..line(50, 1.0) };
    let [cubic, bbr] = [Congestion::Cubic, Congestion::Bbr].map(|control| alone(lossy, control, 7));
    assert!(cubic.goodput_bps < 0.1 * 50e6, "{cubic:?}");
    assert!(bbr.goodput_bps > 0.65 * 50e6, "{bbr:?}");
}

#[test]
fn bbr_fills_lines_with_short_and_long_queues_and_leaves_the_queues_short() {
    // 91 % of the line are payload.
    for (queue, least) in [(0.1, 0.6), (0.25, 0.75), (4.0, 0.75)] {
        let reached = alone(line(50, queue), Congestion::Bbr, 7);
        assert!(reached.goodput_bps > least * 50e6, "{queue}: {reached:?}");
        assert!(reached.round_trip < ROUND_TRIP * 13 / 10, "{queue}: {reached:?}");
        assert!(reached.lost < 0.04, "{queue}: {reached:?}");
    }
}

#[test]
fn the_window_grows_ahead_of_a_sender_whose_path_holds_more_than_it_starts_with() {
    let round_trip = Duration::from_millis(100);
    let reached = alone(Bottleneck { round_trip, queue_bytes: 2_500_000, ..line(200, 1.0) }, Congestion::Bbr, 5);
    assert!(reached.goodput_bps > 0.75 * 200e6, "{reached:?}");
}

/// Who asks for what he gets sends little, and acknowledges every other packet, as who says nothing does.
#[test]
fn a_receiver_that_asks_acknowledges_in_time() {
    for (rate, millis) in [(20, 8), (20, 40), (200, 8)] {
        let bottleneck =
            Bottleneck { round_trip: Duration::from_millis(millis), queue_bytes: 512 << 10, ..line(rate, 1.0) };
        for congestion in [Congestion::Bbr, Congestion::Cubic] {
            let reached = asked_for(bottleneck, congestion, 2 * SECOND, 5 * SECOND);
            println!("{rate} Mbit/s, {millis} ms, {congestion:?}: {reached:?}");
            assert!(reached.acknowledged > 0.45, "{rate} Mbit/s, {millis} ms, {congestion:?}: {reached:?}");
        }
    }
}

#[test]
fn cubic_gets_its_part_of_a_line_that_bbr_uses() {
    let flows = [(Congestion::Bbr, Duration::ZERO), (Congestion::Cubic, SECOND)];
    for queue in [1.0, 4.0] {
        let reached = run(line(50, queue), &flows, 3 * SECOND, 15 * SECOND);
        // It varies with BBR's probe times, around a fifth or more.
        assert!(reached[1].goodput_bps > 0.05 * 50e6, "{queue}: {reached:?}");
    }
}

/// Ten minutes after the last search for larger packets the next one begins: with nothing claimed, for up to nine kilobytes.
#[test]
fn payload_goes_on_while_larger_packets_are_tried() {
    const RATE_BYTES: u64 = 100_000;
    let minutes = |mtu_claimed, congestion| {
        let line = Bottleneck { mtu_claimed, ..line(20, 1.0) };
        steadily(line, congestion, RATE_BYTES, SECOND, 1200 * SECOND)
    };
    let bytes = |seconds: &[Span]| seconds.iter().map(|second| second.received_bytes).sum::<u64>();
    let too_big = |seconds: &[Span]| seconds.iter().map(|second| second.too_big).sum::<u64>();
    for congestion in [Congestion::Bbr, Congestion::Cubic] {
        let seconds = minutes(MTU_MAX, congestion);
        let (before, during) = (&seconds[300..360], &seconds[600..660]);
        assert!(too_big(before) == 0 && too_big(during) > 10, "{congestion:?}: no search");
        assert!(bytes(during) * 100 >= bytes(before) * 98, "{congestion:?}: {} {}", bytes(before), bytes(during));
        // Nor is it a matter of seconds. (BBR empties the queue now and then, whatever is tried: what is late at the end of a second
        // comes in the next.)
        let least = during.windows(2).map(|seconds| seconds[0].received_bytes + seconds[1].received_bytes).min();
        assert!(least.is_some_and(|least| least * 10 >= 2 * RATE_BYTES * 8), "{congestion:?}: {during:?}");
        // Where a path's claim is known, nothing larger is ever tried.
        assert_eq!(too_big(&minutes(MTU, congestion)), 0, "{congestion:?}");
    }
}

/// `cargo test --release -p anabranch-transport --lib congestion_table -- --ignored --nocapture`
#[test]
#[ignore = "a table to look at; takes a minute"]
fn congestion_table() {
    println!("one connection, 40 ms, 20 s of which 18 count");
    println!("| Mbit/s | queue | lost on the line | control | goodput | round trip | lost in all |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let show = |rate: u64, queue: f64, loss: f64| {
        for congestion in [Congestion::Cubic, Congestion::Bbr] {
            let reached = alone(Bottleneck { loss, ..line(rate, queue) }, congestion, 20);
            println!(
                "| {rate} | {queue} | {:.1} % | {congestion:?} | {:.0} % | {:.2} | {:.2} % |",
                loss * 100.0,
                reached.goodput_bps / rate as f64 / 1e4,
                reached.round_trip.as_secs_f64() / ROUND_TRIP.as_secs_f64(),
                reached.lost * 100.0,
            );
        }
    };
    for rate in [20, 50, 100] {
        for queue in [0.1, 0.25, 1.0, 4.0] {
            show(rate, queue, 0.0);
        }
    }
    for loss in [0.001, 0.01, 0.02, 0.05] {
        show(100, 1.0, loss);
    }
    println!("\ntwo connections, 50 Mbit/s, 40 ms, the second 3 s later; 30 s of which 24 count");
    println!("| queue | first | second | of the first | of the second | lost |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for queue in [0.25, 1.0, 4.0] {
        for (one, other) in [
            (Congestion::Cubic, Congestion::Cubic),
            (Congestion::Bbr, Congestion::Bbr),
            (Congestion::Cubic, Congestion::Bbr),
            (Congestion::Bbr, Congestion::Cubic),
        ] {
            let flows = [(one, Duration::ZERO), (other, 3 * SECOND)];
            let reached = run(line(50, queue), &flows, 6 * SECOND, 30 * SECOND);
            let part = |at: usize| reached[at].goodput_bps / 50e4;
            let lost = reached.iter().map(|each| format!("{:.2} %", each.lost * 100.0)).collect::<Vec<_>>();
            println!("| {queue} | {one:?} | {other:?} | {:.0} % | {:.0} % | {} |", part(0), part(1), lost.join(", "));
        }
    }
}
