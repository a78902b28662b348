//! A wire between two namespaces for use by hand: `anabranch-wire RATE_MBIT RTT_MS [LOSS_PERCENT] [MTU]`.
//!
//! Prints the names of both namespaces and their addresses, and the counts once its input ends.

#![forbid(unsafe_code)]

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use anabranch_testbed::wire::{Shape, Wire};

fn main() -> ExitCode {
    let numbers: Option<Vec<f64>> = std::env::args().skip(1).map(|word| word.parse().ok()).collect();
    let Some(numbers) = numbers.filter(|numbers| (2..=4).contains(&numbers.len())) else {
        eprintln!("usage: anabranch-wire RATE_MBIT RTT_MS [LOSS_PERCENT] [MTU]");
        return ExitCode::from(2);
    };
    let mut shape = Shape::new((numbers[0] * 1e6) as u64, Duration::from_secs_f64(numbers[1] / 1e3));
    shape.loss = numbers.get(2).map_or(0.0, |percent| percent / 100.0);
    shape.mtu = numbers.get(3).map_or(shape.mtu, |mtu| *mtu as u32);
    let wire = match Wire::new(shape) {
        Ok(wire) => wire,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("ip netns exec {} COMMAND  # {}", wire.left.name(), Wire::LEFT);
    println!("ip netns exec {} COMMAND  # {}", wire.right.name(), Wire::RIGHT);
    println!("ends with its standard input (ctrl-D)");
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
    println!("{:?}", wire.counts());
    ExitCode::SUCCESS
}
