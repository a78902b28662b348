#![allow(unsafe_code)]

use anabranch_content::geometry::BLOCK_LEN;

use super::*;

const ONE: ConnId = ConnId(1);
const TWO: ConnId = ConnId(2);

/// Pieces of two chunks, and memory for `chunks`.
fn buffers(chunks: u64) -> (PieceBuffers, Instant) {
    let geometry = Geometry::new(2 * CHUNK_LEN, 10 * u64::from(CHUNK_LEN), Vec::new());
    (PieceBuffers::new(Pools::new(chunks * u64::from(CHUNK_LEN)), geometry), Instant::now())
}

fn block(piece: u32, block: u32) -> BlockRange {
    BlockRange { piece, begin: block * BLOCK_LEN, len: BLOCK_LEN }
}

fn fill(buffers: &mut PieceBuffers, piece: u32, blocks: std::ops::Range<u32>, now: Instant) {
    for at in blocks {
        buffers.insert(block(piece, at), &[at as u8; BLOCK_LEN as usize], now).unwrap();
    }
}

#[test]
fn a_block_has_one_filler_and_whoever_is_first_wins() {
    let (mut buffers, now) = buffers(4);
    let place = buffers.begin(block(0, 3), ONE, now).unwrap();
    assert_eq!(buffers.begin(block(0, 3), TWO, now), Err(NoPlace::Arriving));
    assert_eq!(buffers.place(block(0, 3), now), Err(NoPlace::Arriving));
    assert!(buffers.begin(block(0, 4), TWO, now).is_ok(), "its neighbour is free");
    // SAFETY: within the block.
    assert_eq!(buffers.resume(block(0, 3), ONE, 100), Some(unsafe { place.add(100) }));
    assert_eq!(buffers.resume(block(0, 3), ONE, BLOCK_LEN + 1), None);
    // The other one has it whole: it is taken from who was still receiving it.
    buffers.insert(block(0, 3), &[7; BLOCK_LEN as usize], now).unwrap();
    assert_eq!(buffers.resume(block(0, 3), ONE, 100), None);
    assert!(!buffers.finish(block(0, 3), ONE, now));
    assert_eq!(buffers.insert(block(0, 3), &[8; BLOCK_LEN as usize], now), Err(NoPlace::Here));
}

/// Blocks that follow each other go to their place at once, all of them or none.
#[test]
fn a_run_of_blocks_is_inserted_as_one() {
    let (mut buffers, now) = buffers(4);
    let parts: Vec<Vec<u8>> = (0..3u8).map(|at| vec![at; BLOCK_LEN as usize]).collect();
    let run = |first: u32| BlockRange { piece: 0, begin: first * BLOCK_LEN, len: 3 * BLOCK_LEN };
    let parts = || parts.iter().map(Vec::as_slice);
    buffers.insert_parts(run(4), parts(), now).unwrap();
    assert_eq!(buffers.laid_out(run(4)), Some(&parts().collect::<Vec<_>>().concat()[..]));
    assert_eq!(buffers.insert_parts(run(6), parts(), now), Err(NoPlace::Here));
    assert!(buffers.place(block(0, 7), now).is_ok(), "nothing of it was taken");
    // No run crosses the end of its memory, and the caller is told where that is.
    let per_chunk = CHUNK_LEN / BLOCK_LEN;
    assert_eq!(buffers.room_from((per_chunk - 2) * BLOCK_LEN), 2 * BLOCK_LEN);
    assert_eq!(buffers.room_from(per_chunk * BLOCK_LEN), CHUNK_LEN);
    assert_eq!(buffers.insert_parts(run(per_chunk - 2), parts(), now), Err(NoPlace::Outside));
    // Whoever was receiving one of them elsewhere has it no more.
    buffers.begin(block(0, 9), ONE, now).unwrap();
    buffers.insert_parts(run(8), parts(), now).unwrap();
    assert!(!buffers.finish(block(0, 9), ONE, now));
}

#[test]
fn nothing_is_laid_out_inside_a_block_that_is_arriving() {
    let (mut buffers, now) = buffers(4);
    // Asked for as one, given up when it was late, asked for anew block by block; and then the first answer comes.
    let whole = BlockRange { piece: 0, begin: 0, len: 4 * BLOCK_LEN };
    buffers.begin(whole, ONE, now).unwrap();
    for at in 0..4 {
        assert_eq!(buffers.place(block(0, at), now), Err(NoPlace::Arriving));
    }
    assert!(buffers.place(block(0, 4), now).is_ok());
    assert!(buffers.finish(whole, ONE, now));
    // One that the connection never received to its end does not stand in its own way.
    buffers.begin(block(0, 5), ONE, now).unwrap();
    assert!(buffers.begin(block(0, 5), ONE, now).is_ok());
}

#[test]
fn what_a_lost_connection_left_is_free_again() {
    let (mut buffers, now) = buffers(4);
    buffers.begin(block(0, 0), ONE, now).unwrap();
    buffers.disconnected(ONE);
    assert!(buffers.begin(block(0, 0), TWO, now).is_ok());
    assert!(buffers.finish(block(0, 0), TWO, now));
}

#[test]
fn nothing_outside_of_pieces_and_chunks_has_a_place() {
    let (mut buffers, now) = buffers(4);
    assert_eq!(buffers.place(block(5, 0), now), Err(NoPlace::Outside), "five pieces");
    assert_eq!(buffers.place(block(0, 32), now), Err(NoPlace::Outside), "32 blocks a piece");
    let across = BlockRange { piece: 0, begin: CHUNK_LEN - BLOCK_LEN, len: 2 * BLOCK_LEN };
    assert_eq!(buffers.place(across, now), Err(NoPlace::Outside));
    // Half a block would leave the other half to be taken for received.
    for (begin, len) in [(0, BLOCK_LEN / 2), (BLOCK_LEN / 2, BLOCK_LEN), (BLOCK_LEN, 0), (u32::MAX, u32::MAX)] {
        let part = BlockRange { piece: 0, begin, len };
        assert_eq!(buffers.place(part, now), Err(NoPlace::Outside), "{part:?}");
    }
}

#[test]
fn memory_ends_at_its_limit() {
    let (mut buffers, now) = buffers(2);
    assert!(buffers.place(block(0, 0), now).is_ok());
    assert!(buffers.place(block(1, 0), now).is_ok());
    assert_eq!(buffers.pools.free_bytes(), 0);
    assert_eq!(buffers.place(block(2, 0), now), Err(NoPlace::NoMemory));
    assert!(buffers.place(block(1, 1), now).is_ok(), "its chunk is there");
    // Laid out, never received into: given back without a write.
    assert!(buffers.spill().is_empty());
    assert_eq!(buffers.pools.free_bytes(), u64::from(CHUNK_LEN));
}

#[test]
fn a_whole_piece_leaves_once_and_late_blocks_find_it_closed() {
    let (mut buffers, now) = buffers(4);
    fill(&mut buffers, 0, 0..31, now);
    assert!(buffers.take(0).is_none(), "a block is missing");
    fill(&mut buffers, 0, 31..32, now);
    let whole = buffers.take(0).unwrap();
    assert!(whole.on_disk.is_empty() && whole.chunks.iter().all(Option::is_some));
    assert_eq!(whole.chunks[1].as_ref().unwrap()[0], 16);
    assert!(buffers.take(0).is_none());
    assert_eq!(buffers.place(block(0, 0), now), Err(NoPlace::Here));
    drop(whole);
    assert_eq!(buffers.pools.used_bytes(), 0);
    buffers.reopen(0);
    assert!(buffers.place(block(0, 0), now).is_ok());
}

#[test]
fn full_chunks_are_spilled_first_and_none_that_somebody_receives_into() {
    let (mut buffers, now) = buffers(4);
    fill(&mut buffers, 0, 0..20, now);
    fill(&mut buffers, 1, 0..1, now);
    let spills = buffers.spill();
    assert_eq!(spills.len(), 1);
    assert_eq!((spills[0].piece, spills[0].chunk, spills[0].blocks.len()), (0, 0, 16));
    assert_eq!(buffers.place(block(0, 0), now), Err(NoPlace::Here), "it is on disk");
    assert!(buffers.take(0).is_none());
    buffers.begin(block(0, 20), ONE, now).unwrap();
    buffers.begin(block(1, 1), TWO, now).unwrap();
    assert!(buffers.spill().is_empty());
    assert!(buffers.finish(block(0, 20), ONE, now));
    let half = buffers.spill();
    assert_eq!((half[0].piece, half[0].chunk, &half[0].blocks[..]), (0, 1, &[16, 17, 18, 19, 20][..]));
    drop(half);
    fill(&mut buffers, 0, 21..32, now);
    buffers.spilled(0);
    assert!(buffers.take(0).is_none(), "the second chunk is not on disk yet");
    buffers.spilled(0);
    let whole = buffers.take(0).unwrap();
    assert_eq!(whole.on_disk, (0..21).collect::<Vec<_>>());
    assert!(whole.chunks[0].is_none() && whole.chunks[1].is_some());
}
