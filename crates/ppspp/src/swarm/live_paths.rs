//! A live stream whose viewers are reached over several paths: each path has a channel, and all channels to a viewer are one viewer's.

use super::live_sim::*;
use super::*;

/// Chunks that come at once, before a pause and after it.
const BEFORE: u64 = 2_000;
const AFTER: u64 = 400;
const PAUSE_US: u64 = 4_000_000;
/// How long a source waits at the end for those who lack some of it.
const LINGER_US: u64 = 10_000_000;

/// Over how many paths a viewer has channels, and which of them it asks over.
#[derive(Clone, Copy, Debug)]
struct Paths {
    used: u8,
    standby: u8,
}

/// A source whose input comes in bursts with a pause between them, and ends; the viewers have nobody else, and their channels open
/// one after the other.
fn broadcast(seed: u64, loss: f64, viewers: &[Paths]) -> LiveSim {
    let mut sim = LiveSim::new(seed, loss, 100);
    sim.push_at_us = None;
    sim.burst(BEFORE);
    sim.run(2_000_000);
    for paths in viewers {
        let number = sim.join(100);
        sim.node(number).is_hidden = true;
        for path in 1..paths.used + paths.standby {
            let us = sim.rng.u64(..150_000);
            sim.run(us);
            let (now, way) = (sim.now(), address(SOURCE).over(path));
            sim.node(number).swarm.connect(now, &way);
            sim.node(number).swarm.set_use(&way, path < paths.used, now);
            sim.flush(number);
        }
    }
    sim.run(PAUSE_US);
    sim.burst(AFTER);
    sim.run(LINGER_US);
    sim
}

/// Viewers that lack something from where they began on, and as many as the source knows of.
fn lacking(sim: &mut LiveSim) -> (usize, usize) {
    let source = &sim.node(SOURCE).swarm;
    let (edge, told) = (source.live_edge(), source.lacking_peers());
    let lacks = |node: &&Node| {
        let began = node.events.iter().find_map(|event| match event {
            LiveEvent::Tuned(chunk) => Some(*chunk),
            _ => None,
        });
        began.is_none_or(|began| node.swarm.have().next_clear(began) < edge)
    };
    (sim.viewers().filter(lacks).count(), told)
}

/// A viewer that is alone with the source has every chunk in the end, whichever of its paths it asks over, and once.
#[test]
fn a_viewer_over_several_paths_has_all_of_it() {
    for (used, standby) in [(1, 0), (2, 0), (3, 0), (4, 0), (1, 3), (2, 4), (4, 2), (4, 3)] {
        for (seed, loss) in (0..8).map(|seed| (seed, if seed < 5 { 0.0 } else { 0.01 })) {
            let mut sim = broadcast(seed, loss, &[Paths { used, standby }]);
            let (lacking, copies) = (lacking(&mut sim), sim.copies());
            assert_eq!(lacking, (0, 0), "{used} paths and {standby} that stand by, seed {seed}, {copies:.2} copies");
            assert!((1.0..1.1).contains(&copies), "{copies:.2} copies over {used} paths and {standby}, seed {seed}");
        }
    }
}

/// Viewers who reach nobody but the source have the end of it in time, though it may not send a copy to each while it flows.
#[test]
fn viewers_without_neighbours_have_the_end_of_it() {
    let viewers = [(4, 2), (1, 0), (2, 0), (1, 3), (1, 0), (3, 0)].map(|(used, standby)| Paths { used, standby });
    for seed in 0..4 {
        let mut sim = broadcast(seed, 0.002, &viewers);
        let (lacking, copies) = (lacking(&mut sim), sim.copies());
        assert_eq!(lacking, (0, 0), "seed {seed}, {copies:.2} copies");
        assert!(copies < 6.5, "{copies:.2} copies, seed {seed}");
    }
}

/// Channels to the source are one neighbour, however many they are: a viewer still looks for others.
#[test]
fn several_channels_to_a_peer_are_one_neighbour() {
    let mut sim = LiveSim::new(0, 0.0, 100);
    let number = sim.join(100);
    for path in 1..=NEIGHBOURS as u8 {
        let now = sim.now();
        sim.node(number).swarm.connect(now, &address(SOURCE).over(path));
        sim.flush(number);
    }
    sim.run(1_000_000);
    let viewer = &sim.node(number).swarm;
    assert_eq!((viewer.peers().count(), viewer.needs_neighbours()), (NEIGHBOURS + 1, true));
}
