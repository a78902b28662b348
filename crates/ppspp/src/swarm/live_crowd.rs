//! Fifty viewers of a stream of 4 Mbit/s whose source has an uplink of 12: what it takes that nobody's picture stands still.

use super::live_sim::*;

/// Viewers, and what their uplinks carry beside the source's.
const VIEWERS: usize = 50;
const STREAM_MBPS: u64 = 4;
const SOURCE_MBPS: u64 = 12;
const VIEWER_MBPS: u64 = 8;
/// The source is alone at first, and all watch so long after the last one came.
const ALONE_US: u64 = 1_000_000;
const WATCH_US: u64 = 12_000_000;

/// How they come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crowd {
    /// One every 100 ms.
    OneByOne,
    /// All at the same moment.
    AtOnce,
    /// One every 100 ms; then ten leave without a word, and others come for them.
    Changing,
    /// One every 100 ms, and one of a hundred datagrams is lost.
    Lossy,
}

/// What became of them.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// How long it took until they played: half of them, 95 of 100, and the last.
    start_ms: [u64; 3],
    stalls: u32,
    copies: f64,
    behind_s: f64,
    /// How long a chunk took from the source to a viewer: half of them, 999 of 1,000, and the last.
    lag_ms: [u16; 3],
    /// Chunks that came to a viewer twice, and datagrams that were lost in queues, of 1,000 that were sent.
    twice: f64,
    overflowed: f64,
    /// Bytes beside each chunk, in its datagram and in others.
    beside: [f64; 2],
    /// Datagrams for each chunk that left, its own among them; and looks of a viewer at its core, for each that came.
    datagrams: f64,
    looks: f64,
}

fn gather(sim: &LiveSim) -> Outcome {
    let mut starts: Vec<u64> = sim.viewers().map(|node| node.started_us.map_or(u64::MAX, |us| us / 1000)).collect();
    let mut lags: Vec<u16> = sim.viewers().flat_map(|node| node.lags_ms.iter().copied()).collect();
    starts.sort_unstable();
    lags.sort_unstable();
    let at = |len: usize, of: usize| (len * of / 1000).min(len - 1);
    let nodes = || sim.nodes.iter().flatten();
    let sent = nodes().map(|node| node.sent_chunks).sum::<u64>() as f64 / 1000.0;
    Outcome {
        start_ms: [500, 950, 1000].map(|of| starts[at(starts.len(), of)]),
        stalls: sim.stalls(),
        copies: sim.copies(),
        behind_s: sim.mean_delay_s(),
        lag_ms: [500, 999, 1000].map(|of| lags[at(lags.len(), of)]),
        twice: nodes().map(|node| node.swarm.wasted_bytes() / PAYLOAD_LEN as u64).sum::<u64>() as f64 / sent,
        overflowed: nodes().map(|node| node.overflowed).sum::<u64>() as f64 / sent,
        beside: [
            nodes().map(|node| node.beside_bytes).sum::<u64>() as f64 / sent / 1000.0,
            nodes().map(|node| node.control_bytes).sum::<u64>() as f64 / sent / 1000.0,
        ],
        datagrams: sim.count as f64 / sent / 1000.0,
        looks: sim.looks as f64 / sent / 1000.0,
    }
}

/// The crowd watches; what became of it is printed as a line of the table.
fn watch(crowd: Crowd, seed: u64) -> Outcome {
    let loss = if crowd == Crowd::Lossy { 0.01 } else { 0.0 };
    let mut sim = LiveSim::with_stream(seed, loss, SOURCE_MBPS, STREAM_MBPS);
    sim.run(ALONE_US);
    for _ in 0..VIEWERS {
        sim.join(VIEWER_MBPS);
        sim.run(if crowd == Crowd::AtOnce { 0 } else { 100_000 });
    }
    if crowd == Crowd::Changing {
        for _ in 0..10 {
            let gone = sim.rng.usize(1..=VIEWERS);
            sim.leave(gone);
            sim.join(VIEWER_MBPS);
            sim.run(300_000);
        }
    }
    sim.run(WATCH_US);
    let outcome = gather(&sim);
    let Outcome {
        start_ms: [half, most, last],
        stalls,
        copies,
        behind_s,
        lag_ms,
        twice,
        overflowed,
        beside,
        datagrams,
        looks,
    } = outcome;
    println!(
        "| {crowd:?} | {seed} | {half}, {most}, {last} ms | {stalls} | {copies:.2} | {behind_s:.2} s | {lag_ms:?} ms | \
         {twice:.1}, {overflowed:.1} | {beside:.0?} | {datagrams:.2}, {looks:.2} |"
    );
    assert!(sim.viewers().all(|node| node.liars.is_empty()), "nobody lies");
    assert!(sim.nodes.iter().flatten().all(|node| node.chunks_max as u64 <= WINDOW + PER_SIGNATURE));
    outcome
}

/// The source sends three copies at most, and nobody is far behind it; of those who come and stay nobody waits for long, and no picture
/// stands still, or hardly any.
fn assert_good(crowd: Crowd, seed: u64, outcome: &Outcome) {
    let Outcome { start_ms: [.., last], stalls, copies, behind_s, .. } = *outcome;
    let name = format!("{crowd:?}, seed {seed}");
    assert!(copies <= 3.0, "{name}: {copies:.2} copies");
    assert!(behind_s < 3.0, "{name}: {behind_s:.2} s behind");
    if matches!(crowd, Crowd::OneByOne | Crowd::AtOnce) {
        assert!(last <= 2000, "{name}: somebody began after {last} ms");
        // Of those who come one after the other, one stands still once, with some seeds.
        let stalls_max = u32::from(crowd == Crowd::OneByOne);
        assert!(stalls <= stalls_max, "{name}: {stalls} stalls");
    }
}

#[test]
fn fifty_viewers_of_a_source_with_three_copies() {
    assert_good(Crowd::AtOnce, 0, &watch(Crowd::AtOnce, 0));
}

/// The table that `make live` prints.
#[test]
#[ignore = "minutes"]
fn live_table() {
    println!(
        "| viewers come | seed | start: half, 95 %, all | stalls | copies | behind | a chunk takes: half, 99.9 %, all | twice, lost in \
         queues, of 1,000 | bytes beside a chunk: with it, in other datagrams | datagrams, and looks at the core, a chunk |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let seeds: u64 = std::env::var("ANABRANCH_LIVE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(8);
    let crowds = [Crowd::OneByOne, Crowd::AtOnce, Crowd::Changing, Crowd::Lossy];
    let all = crowds.into_iter().flat_map(|crowd| (0..seeds).map(move |seed| (crowd, seed)));
    let outcomes: Vec<(Crowd, u64, Outcome)> = all.map(|(crowd, seed)| (crowd, seed, watch(crowd, seed))).collect();
    outcomes.iter().for_each(|(crowd, seed, outcome)| assert_good(*crowd, *seed, outcome));
}
