//! Bulk transfer: packets of odd lengths land in any order, many with one call, over several files; what they have to hash to may
//! be known only when all of them are there.

use anabranch_content::hash::{ExpectedHash, sha1};

use super::*;

/// Packets that one call brings.
const BATCH_MAX: usize = 64;

/// A batch is laid out for the packets that are most likely; those that are others are moved.
fn receive_batch(client: &mut Client, expected: &[BlockRange], rng: &mut Rng) {
    let mut arrived = expected.to_vec();
    // Most of the time all come as expected.
    if rng.u8(..4) == 0 {
        rng.shuffle(&mut arrived);
        arrived.truncate(rng.usize(1..=arrived.len()));
    }
    let mut astray = Vec::new();
    for (at, range) in arrived.iter().enumerate() {
        let (payload, is_damaged) = client.payload(*range, rng);
        if expected[at] == *range {
            client.receive(*range, &payload).unwrap();
            client.keep(*range, is_damaged);
        } else {
            // It lies where another belongs: it is copied from there before that one's place is used again.
            astray.push((*range, payload, is_damaged));
        }
    }
    for (range, payload, is_damaged) in astray {
        // Makes room where there is none.
        client.place(range).unwrap();
        client.buffers.insert(range, &payload, Instant::now()).unwrap();
        client.note(range, is_damaged);
    }
}

#[test]
fn packets_in_any_order_are_verified_when_their_hash_is_known() {
    let met = std::cell::RefCell::new(Met::default());
    for_seeds(|rng| {
        let block_length = rng.u32(1300..8_950);
        let piece_length = block_length * rng.u32(1..400);
        let files: Vec<u64> = (0..rng.usize(1..5)).map(|_| rng.u64(1..1_000_000)).collect();
        let content = content(rng, &files, piece_length, block_length);
        let mut client = Client::new(rng, content);
        let pieces = client.geometry().piece_count();
        let expected: Vec<ExpectedHash> = (0..pieces)
            .map(|piece| BlockRange { piece, begin: 0, len: client.geometry().data_len(piece) })
            .map(|range| ExpectedHash { sha1: Some(sha1(client.bytes(range))), merkle: None })
            .collect();
        // The hash of some ranges is known from the start, that of others at the end.
        let known_from_start: Vec<bool> = expected.iter().map(|_| rng.bool()).collect();
        let mut at_the_end = false;
        let mut restart_at = rng.bool().then(|| rng.usize(1..12));
        while !client.verified.is_full() {
            let mut missing = client.missing(rng);
            if missing.is_empty() {
                at_the_end = true;
            }
            while !missing.is_empty() {
                let batch = missing.split_off(missing.len().saturating_sub(rng.usize(1..BATCH_MAX)));
                let sample = batch[0];
                receive_batch(&mut client, &batch, rng);
                if client.is_here(sample) && rng.u8(..8) == 0 {
                    client.try_nonsense(sample);
                }
                for piece in batch.iter().map(|range| range.piece).collect::<BTreeSet<u32>>() {
                    if client.is_whole(piece) && known_from_start[piece as usize] {
                        client.verify(piece, expected[piece as usize]);
                        client.answers();
                    }
                }
                restart_at = restart_at.and_then(|left| left.checked_sub(1));
                if restart_at == Some(0) {
                    client.restart();
                    break;
                }
            }
            for piece in (0..pieces).filter(|_| at_the_end) {
                if client.is_whole(piece) {
                    client.verify(piece, expected[piece as usize]);
                }
            }
            client.answers();
        }
        client.assert_complete();
        met.borrow_mut().add(&client.met);
    });
    met.borrow().assert_all();
}
