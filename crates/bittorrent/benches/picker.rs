//! What picking costs per block: `cargo bench -p anabranch-bittorrent --bench picker`.
//!
//! Each line is one swarm: every connection keeps 32 requests outstanding, blocks come back in order, pieces pass.
//! The cost is of one block's whole way through the picker: picked, received, and its share of the piece passing.

use std::collections::VecDeque;
use std::time::Instant;

use anabranch_bittorrent::ConnId;
use anabranch_bittorrent::picker::{BlockRef, Pace, Picker, PickerConfig, PieceOrder, Received, RequestStrategy};
use anabranch_content::bitfield::Bitfield;
use anabranch_content::geometry::{BLOCK_LEN, Geometry};

const BLOCKS_MAX: u32 = 1_000_000;

fn main() {
    println!("{:<44} {:>9} {:>9}", "swarm", "blocks", "ns/block");
    for (name, pieces, blocks, conns, part) in [
        ("2 GiB, 1 MiB pieces, 1 seed", 2048, 64, 1, false),
        ("2 GiB, 16 KiB pieces, 1 seed", 131_072, 1, 1, false),
        ("2 GiB, 1 MiB pieces, 300 seeds", 2048, 64, 300, false),
        ("2 GiB, 16 KiB pieces, 300 halves", 131_072, 1, 300, true),
        ("1 TiB, 1 MiB pieces, 300 seeds", 1 << 20, 64, 300, false),
        ("1 TiB, 1 MiB pieces, 300 halves", 1 << 20, 64, 300, true),
    ] {
        for order in [PieceOrder::RarestFirst, PieceOrder::Sequential] {
            let config = PickerConfig { order, seed: 1, open_bytes_max: u64::MAX, ..PickerConfig::default() };
            run(&format!("{name}, {order:?}"), config, pieces, blocks, conns, part);
        }
    }
    let config = PickerConfig { strategy: RequestStrategy::StrictlyPrioritized, seed: 1, ..PickerConfig::default() };
    run("2 GiB, 1 MiB pieces, 300 seeds, strictly", config, 2048, 64, 300, false);
}

fn run(name: &str, config: PickerConfig, pieces: u32, blocks: u32, conns: u32, part: bool) {
    let mut rng = fastrand::Rng::with_seed(config.seed);
    let total = u64::from(pieces) * u64::from(blocks) * u64::from(BLOCK_LEN);
    let geometry = Geometry::new(blocks * BLOCK_LEN, total, Vec::new());
    let mut picker = Picker::new(geometry, &Bitfield::new(pieces), config);
    let mut peers: Vec<(Bitfield, VecDeque<BlockRef>)> = Vec::new();
    for _ in 0..conns {
        let mut has = if part { Bitfield::new(pieces) } else { Bitfield::full(pieces) };
        for piece in (0..pieces).filter(|_| part && rng.bool()) {
            has.set(piece);
        }
        picker.peer_joined(&has);
        peers.push((has, VecDeque::new()));
    }
    let (start, mut done, mut out, mut idle) = (Instant::now(), 0u32, Vec::new(), 0);
    while picker.wanted_missing_count() > 0 && done < BLOCKS_MAX && idle < conns {
        idle = 0;
        for (conn, (has, queue)) in (0..).map(ConnId).zip(&mut peers) {
            let pace = Pace {
                rate_bytes: 1_000_000 + u64::from(conn.0),
                path: None,
                is_near: false,
                peer: None,
                is_busy: false,
            };
            picker.pick(conn, has, None, 32 - queue.len(), pace, start, &mut out);
            queue.extend(out.drain(..));
            idle += u32::from(queue.is_empty());
            for _ in 0..8 {
                let Some(block) = queue.pop_front() else { break };
                if let Received::First { piece_complete, .. } = picker.received(conn, block) {
                    done += 1;
                    if piece_complete {
                        picker.piece_passed(block.piece);
                    }
                }
            }
        }
    }
    println!("{name:<44} {done:>9} {:>9}", start.elapsed().as_nanos() / u128::from(done.max(1)));
}
