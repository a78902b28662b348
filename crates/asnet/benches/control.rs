//! How long a daemon takes to find paths, and a network to start: a full mesh of ten core ASes, a leaf below each two of
//! them.
//!
//! `cargo bench -p anabranch-asnet --bench control`. The first lookup also finds the segments; the bound is 50 ms for any
//! lookup, and one second for the start of these 20 ASes.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anabranch_asnet::control::{ControlPlane, Keys, Options, SECRET_LEN};
use anabranch_asnet::network::{self, Network};
use anabranch_asnet::topology::Topology;
use anabranch_paths::IsdAs;

const CORES: usize = 10;
const ROUNDS: usize = 50;

fn main() {
    let mut text = String::from("network = '127.80.0.0'\n");
    for a in 1..=CORES {
        text += &format!("[as.'1-{a}']\ncore = true\n[as.'1-{}']\n", 100 + a);
    }
    for a in 1..=CORES {
        for b in a + 1..=CORES {
            text += &format!("[[link]]\ncore = ['1-{a}', '1-{b}']\n");
        }
        for parent in [a, a % CORES + 1] {
            text += &format!("[[link]]\nparent = '1-{parent}'\nchild = '1-{}'\n", 100 + a);
        }
    }
    let topology = Arc::new(Topology::from_toml("mesh", &text).expect("the mesh is valid"));
    let keys = Arc::new(Keys::new(&topology, &[0; SECRET_LEN]));
    let plane = || ControlPlane::new(topology.clone(), keys.clone(), Options::default());
    let number = |text: &str| text.parse::<IsdAs>().expect("a number");
    println!("{CORES} core ASes in a full mesh, {CORES} leaves with two parents each");
    for (what, from, to) in
        [("core to core", "1-1", "1-6"), ("leaf to leaf", "1-101", "1-106"), ("leaf to core", "1-101", "1-6")]
    {
        let (mut first_ms, mut later_ms, mut count) = (Vec::new(), Vec::new(), 0);
        for _ in 0..ROUNDS {
            let plane = plane();
            for times_ms in [&mut first_ms, &mut later_ms] {
                let start = Instant::now();
                count = plane.paths(number(from), number(to), SystemTime::now()).expect("both are there").len();
                times_ms.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        println!("{what}: {count} paths; the first time {}; later {}", summary(first_ms), summary(later_ms));
    }
    for (what, local, src, dst) in
        [("all core segments", "1-101", "1-0", "1-0"), ("up segments", "1-101", "1-101", "1-0")]
    {
        let plane = plane();
        let start = Instant::now();
        let found =
            plane.segments(number(local), number(src), number(dst), SystemTime::now()).expect("a valid request");
        println!("{what}: {} in {:.1} ms the first time", found.1.len(), start.elapsed().as_secs_f64() * 1e3);
    }
    let start = Instant::now();
    let network =
        Network::start(Topology::clone(&topology), network::Options::default()).expect("the addresses are free");
    let count = network.ases().count();
    println!("{count} ASes started in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let start = Instant::now();
    drop(network);
    println!("and stopped in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
}

/// Median and worst of some times in milliseconds.
fn summary(mut times_ms: Vec<f64>) -> String {
    times_ms.sort_by(f64::total_cmp);
    let median_ms = times_ms[times_ms.len() / 2];
    format!("{median_ms:.1} ms, at worst {:.1} ms", times_ms[times_ms.len() - 1])
}
