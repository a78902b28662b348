//! The targets of `fuzz/` without the engine that they are written for: each takes its samples, and what a thousand small changes
//! make of them. What needs millions of tries to be found is found by `make fuzz`; here is seen that every target stands, on
//! every change, with no build of its own.

use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anabranch_content::hex;

/// The targets name the engine: it is this program, whose `fuzz_target!` makes a function of each.
extern crate self as libfuzzer_sys;

/// Each is a program of its own where the engine drives it.
#[allow(unused_attributes)]
#[path = "../../../fuzz/fuzz_targets"]
mod targets {
    pub(super) mod bencode;
    pub(super) mod bulk;
    pub(super) mod bulk_ends;
    pub(super) mod control;
    pub(super) mod daemon;
    pub(super) mod datagram;
    pub(super) mod dht;
    pub(super) mod edit;
    pub(super) mod extension;
    pub(super) mod frames;
    pub(super) mod ip_filter;
    pub(super) mod known_keys;
    pub(super) mod lookup;
    pub(super) mod magnet;
    pub(super) mod metainfo;
    pub(super) mod mse;
    pub(super) mod pace;
    pub(super) mod plan;
    pub(super) mod policy;
    pub(super) mod portmap;
    pub(super) mod ppspp_bins;
    pub(super) mod ppspp_link;
    pub(super) mod ppspp_manifest;
    pub(super) mod ppspp_wire;
    pub(super) mod resume;
    pub(super) mod router;
    pub(super) mod scion_packet;
    pub(super) mod scion_socket;
    pub(super) mod scmp;
    pub(super) mod segments;
    pub(super) mod socks;
    pub(super) mod topology;
    pub(super) mod tracker;
    pub(super) mod utp;
    pub(super) mod web_seed;
    pub(super) mod wire;
}

#[path = "../../../fuzz/src/samples/mod.rs"]
mod samples;

/// Makes a target a function of bytes.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: &[u8]| $body:block) => {
        pub(crate) fn run($input: &[u8]) $body
    };
    (|$input:ident: &str| $body:block) => {
        pub(crate) fn run(bytes: &[u8]) {
            if let Ok($input) = std::str::from_utf8(bytes) $body
        }
    };
}

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 36] = [
    ("bencode", targets::bencode::run),
    ("bulk", targets::bulk::run),
    ("bulk_ends", targets::bulk_ends::run),
    ("control", targets::control::run),
    ("daemon", targets::daemon::run),
    ("datagram", targets::datagram::run),
    ("dht", targets::dht::run),
    ("edit", targets::edit::run),
    ("extension", targets::extension::run),
    ("frames", targets::frames::run),
    ("ip_filter", targets::ip_filter::run),
    ("known_keys", targets::known_keys::run),
    ("lookup", targets::lookup::run),
    ("magnet", targets::magnet::run),
    ("metainfo", targets::metainfo::run),
    ("mse", targets::mse::run),
    ("pace", targets::pace::run),
    ("plan", targets::plan::run),
    ("policy", targets::policy::run),
    ("portmap", targets::portmap::run),
    ("ppspp_bins", targets::ppspp_bins::run),
    ("ppspp_link", targets::ppspp_link::run),
    ("ppspp_manifest", targets::ppspp_manifest::run),
    ("ppspp_wire", targets::ppspp_wire::run),
    ("resume", targets::resume::run),
    ("router", targets::router::run),
    ("scion_packet", targets::scion_packet::run),
    ("scion_socket", targets::scion_socket::run),
    ("scmp", targets::scmp::run),
    ("segments", targets::segments::run),
    ("socks", targets::socks::run),
    ("topology", targets::topology::run),
    ("tracker", targets::tracker::run),
    ("utp", targets::utp::run),
    ("web_seed", targets::web_seed::run),
    ("wire", targets::wire::run),
];

/// Changes for each target.
const CHANGED: usize = 1000;
/// Longest input: what is read has bounds of its own, and what lies past them costs time alone.
const INPUT_LEN_MAX: usize = 16 * 1024;

#[test]
fn every_target_takes_its_samples_and_what_small_changes_make_of_them() {
    let samples = samples::all();
    // The same once more, where something was found.
    let given = std::env::var("ANABRANCH_FUZZ_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    for (name, target) in TARGETS {
        let (_, own) = samples.iter().find(|(of, _)| *of == name).unwrap_or_else(|| panic!("{name} has no samples"));
        assert!(!own.is_empty(), "{name} has no samples");
        own.iter().for_each(|sample| feed(name, target, sample));
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        eprintln!("{name}: ANABRANCH_FUZZ_SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..CHANGED {
            feed(name, target, &changed(own, &mut random));
        }
    }
}

/// A target that is in the folder and not here would be left out in silence.
#[test]
fn every_target_of_the_folder_is_run() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz");
    let manifest = fs::read_to_string(format!("{folder}/Cargo.toml")).unwrap();
    let mut files: Vec<String> = fs::read_dir(format!("{folder}/fuzz_targets"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, TARGETS.map(|(name, _)| format!("{name}.rs")));
    for (name, _) in TARGETS {
        assert!(
            manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")),
            "{name} is no program of fuzz/Cargo.toml"
        );
    }
}

fn feed(name: &str, target: Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        panic!("{name}: {} at {}", message(&*panic), hex::encode(input));
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

/// One of `samples` with one to four changes.
fn changed(samples: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut input = samples[random.usize(..samples.len())].clone();
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(..=input.len());
        let end = (at + random.usize(1..=32)).min(input.len());
        match random.u8(..8) {
            0 => input.truncate(at),
            1 => input.insert(at, random.u8(..)),
            2 => drop(input.drain(at..end)),
            3 => drop(input.splice(at..at, input[at..end].to_vec())),
            // The end of another sample.
            4 => {
                let other = &samples[random.usize(..samples.len())];
                input.truncate(at);
                input.extend(&other[random.usize(..=other.len())..]);
            }
            // Numbers at the edges of what their bytes hold.
            5 => input[at..end].fill(random.choice([0, 1, 0x7f, 0x80, 0xff]).unwrap_or_default()),
            6 if at < end => input[at] ^= 1 << random.u8(..8),
            _ if at < end => input[at] = random.u8(..),
            _ => {}
        }
    }
    input.truncate(INPUT_LEN_MAX);
    input
}
