//! Keeps the lanes full: hands messages of any lengths to the compression functions, so many at a time as there are lanes.
//!
//! A lane whose message ends takes the next one at once. When too few are left to pay for a wide call, the rest goes
//! through the narrow functions, two by two.

#![allow(unsafe_code)]

use super::kernel::{BLOCK_BYTES, Columns, LANES_MAX, Pointers};

/// Bytes of the message length that ends the padding (FIPS 180-4 §5.1.1).
const LENGTH_BYTES: usize = 8;

/// Compresses the same number of blocks in every lane.
pub(super) type Wide<const W: usize> = unsafe fn(&mut Columns<W>, &Pointers, usize);
/// Compresses the same number of blocks of `N` messages, each with a chaining value of its own.
pub(super) type Narrow<const W: usize, const N: usize> = unsafe fn(&mut [[u32; W]; N], [*const u8; N], usize);

/// The compression functions that one backend has for one algorithm; `W` is the number of words in a chaining value.
#[derive(Clone, Copy)]
pub(super) struct Kernels<const W: usize> {
    pub(super) init: [u32; W],
    pub(super) wide: Option<WideKernel<W>>,
    pub(super) single: Narrow<W, 1>,
    pub(super) pair: Option<Narrow<W, 2>>,
}

/// A wide function, how many lanes it fills, and how many must be in use for it to win (found by `benches/hash.rs`).
#[derive(Clone, Copy)]
pub(super) struct WideKernel<const W: usize> {
    pub(super) run: Wide<W>,
    pub(super) lanes: usize,
    pub(super) lanes_min: usize,
}

impl<const W: usize> Kernels<W> {
    /// Compresses `blocks` into `state`.
    pub(super) fn compress(&self, state: &mut [u32; W], blocks: &[[u8; BLOCK_BYTES]]) {
        if blocks.is_empty() {
            return;
        }
        let mut states = [*state];
        // SAFETY: a backend is only reachable on a processor that has its instructions; the pointer has all of `blocks`.
        unsafe { (self.single)(&mut states, [blocks.as_ptr().cast()], blocks.len()) };
        [*state] = states;
    }
}

/// A message on its way: where it stands and what is left of it.
pub(super) struct Lane<'a, const W: usize> {
    job: usize,
    state: [u32; W],
    body: &'a [[u8; BLOCK_BYTES]],
    slices: &'a [&'a [u8]],
    tail: [[u8; BLOCK_BYTES]; 2],
    tail_blocks: core::ops::Range<usize>,
}

impl<'a, const W: usize> Lane<'a, W> {
    /// A whole message, in slices that are whole blocks long, all but the last: `job` names it to the caller.
    ///
    /// # Panics
    /// Where a slice before the last is not a multiple of 64 bytes long.
    pub(super) fn message(job: usize, init: [u32; W], slices: &'a [&'a [u8]]) -> Self {
        let (last, others) = slices.split_last().map_or((&[][..], &[][..]), |(last, others)| (*last, others));
        assert!(
            others.iter().all(|slice| slice.len() % BLOCK_BYTES == 0),
            "only the last slice may end inside a block"
        );
        let length = slices.iter().map(|slice| slice.len() as u64).sum();
        let (tail, tail_blocks) = padding(last.as_chunks::<BLOCK_BYTES>().1, length);
        let mut lane = Self { job, state: init, body: &[], slices, tail, tail_blocks: 0..tail_blocks };
        lane.next_slice();
        lane
    }

    /// Whole blocks that go on from `state`, without padding.
    pub(super) fn part(job: usize, state: [u32; W], body: &'a [[u8; BLOCK_BYTES]]) -> Self {
        Self { job, state, body, slices: &[], tail: [[0; BLOCK_BYTES]; 2], tail_blocks: 0..0 }
    }

    fn next_slice(&mut self) {
        while let (true, Some((first, rest))) = (self.body.is_empty(), self.slices.split_first()) {
            self.body = first.as_chunks().0;
            self.slices = rest;
        }
    }

    /// The blocks that come next and lie together; empty at the end.
    fn run(&self) -> &[[u8; BLOCK_BYTES]] {
        if self.body.is_empty() { &self.tail[self.tail_blocks.clone()] } else { self.body }
    }

    fn pointer(&self) -> *const u8 {
        self.run().as_ptr().cast()
    }

    /// Steps over `blocks` of the current run; answers whether more is left.
    fn advance(&mut self, blocks: usize) -> bool {
        if self.body.is_empty() {
            self.tail_blocks.start += blocks;
        } else {
            self.body = &self.body[blocks..];
            self.next_slice();
        }
        !self.run().is_empty()
    }
}

/// The one or two blocks that end a message of `length` bytes, whose last, incomplete block is `rest` (FIPS 180-4 §5.1.1).
pub(super) fn padding(rest: &[u8], length: u64) -> ([[u8; BLOCK_BYTES]; 2], usize) {
    let mut tail = [[0; BLOCK_BYTES]; 2];
    let blocks = if rest.len() < BLOCK_BYTES - LENGTH_BYTES { 1 } else { 2 };
    tail[0][..rest.len()].copy_from_slice(rest);
    tail[0][rest.len()] = 0x80;
    tail[blocks - 1][BLOCK_BYTES - LENGTH_BYTES..].copy_from_slice(&length.wrapping_mul(8).to_be_bytes());
    (tail, blocks)
}

/// Runs every lane that `next` gives to its end and calls `done` with its job and final chaining value, in any order.
pub(super) fn drive<'a, const W: usize>(
    kernels: &Kernels<W>,
    next: impl FnMut() -> Option<Lane<'a, W>>,
    mut done: impl FnMut(usize, &[u32; W]),
) {
    // A part of no blocks is finished before it starts.
    let mut queue = core::iter::from_fn(next).fuse().filter(|lane| !lane.run().is_empty());
    let mut lanes: [Option<Lane<'a, W>>; LANES_MAX] = [const { None }; LANES_MAX];
    if let Some(wide) = kernels.wide {
        drive_wide(wide, &mut queue, &mut lanes, &mut done);
    }
    drive_narrow(kernels, lanes.into_iter().flatten().chain(queue), done);
}

/// Goes on while enough lanes are in use; what is left stays in `lanes`.
fn drive_wide<'a, const W: usize>(
    wide: WideKernel<W>,
    queue: &mut impl Iterator<Item = Lane<'a, W>>,
    lanes: &mut [Option<Lane<'a, W>>; LANES_MAX],
    done: &mut impl FnMut(usize, &[u32; W]),
) {
    let mut columns: Columns<W> = [[0; LANES_MAX]; W];
    loop {
        for (i, slot) in lanes[..wide.lanes].iter_mut().enumerate().filter(|(_, slot)| slot.is_none()) {
            *slot = queue.next();
            if let Some(lane) = slot {
                columns.iter_mut().zip(lane.state).for_each(|(row, word)| row[i] = word);
            }
        }
        let in_use = lanes.iter().flatten();
        let blocks = in_use.clone().map(|lane| lane.run().len()).min().unwrap_or(0);
        if blocks == 0 || in_use.clone().count() < wide.lanes_min {
            break;
        }
        // Idle lanes read along with a busy one; what they compute is dropped.
        let spare = in_use.clone().next().map_or(core::ptr::null(), Lane::pointer);
        let pointers = core::array::from_fn(|i| lanes[i].as_ref().map_or(spare, Lane::pointer));
        // SAFETY: a backend is only reachable on a processor that has its instructions; `blocks` is the shortest run.
        unsafe { (wide.run)(&mut columns, &pointers, blocks) };
        for (i, slot) in lanes.iter_mut().enumerate() {
            let Some(lane) = slot else { continue };
            if !lane.advance(blocks) {
                done(lane.job, &columns.map(|row| row[i]));
                *slot = None;
            }
        }
    }
    for (i, lane) in lanes.iter_mut().enumerate() {
        if let Some(lane) = lane {
            lane.state = columns.map(|row| row[i]);
        }
    }
}

/// Two messages at a time where the backend can, else one after the other.
fn drive_narrow<'a, const W: usize>(
    kernels: &Kernels<W>,
    mut queue: impl Iterator<Item = Lane<'a, W>>,
    mut done: impl FnMut(usize, &[u32; W]),
) {
    let mut other: Option<Lane<'a, W>> = None;
    while let Some(mut lane) = other.take().or_else(|| queue.next()) {
        if let Some(pair) = kernels.pair {
            other = queue.next();
            while let Some(beside) = &mut other {
                let blocks = lane.run().len().min(beside.run().len());
                let mut states = [lane.state, beside.state];
                // SAFETY: as in `drive_wide`.
                unsafe { pair(&mut states, [lane.pointer(), beside.pointer()], blocks) };
                [lane.state, beside.state] = states;
                let more = (lane.advance(blocks), beside.advance(blocks));
                if !more.1 {
                    done(beside.job, &beside.state);
                    other = queue.next();
                }
                if !more.0 {
                    break;
                }
            }
        }
        while !lane.run().is_empty() {
            let blocks = lane.run().len();
            let mut state = lane.state;
            kernels.compress(&mut state, lane.run());
            lane.state = state;
            lane.advance(blocks);
        }
        done(lane.job, &lane.state);
    }
}
