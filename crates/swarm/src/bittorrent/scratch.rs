//! Memory for one receive: where the system puts what comes.
//!
//! A receive is laid out as the stream will be if the peer answers in the order in which it was asked: the rest of the block
//! that is arriving, then for every expected block its header and its payload, straight into the buffers that are hashed and
//! written, then memory for whatever else comes. If the stream turns out otherwise, the bytes that went astray are taken up
//! again with [`Scratch::gather`].
//!
//! # Pointers
//!
//! The system call takes addresses, and no other file of a connection has any. [`Layout`] borrows all memory whose address it
//! notes, exclusively: scratch memory, the content's buffers, and the memory of a block that is received aside. It ends with
//! the system call. So nothing can move, free or look at that memory while an address is good, and afterwards each
//! [`Segment`] says by name what came where. The unit tests run under Miri (`make miri`).

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::time::Instant;

use anabranch_bittorrent::ConnId;
use anabranch_bittorrent::wire::{BlockRange, PIECE_HEADER_LEN};
use anabranch_transport::Stream;

use crate::store::buffers::PieceBuffers;

/// Bytes received outside of block buffers at once.
pub(super) const SCRATCH_LEN: usize = 64 * 1024;
/// Entries of one receive: half the kernel's limit.
const SEGMENTS_MAX: usize = 512;
/// Entries that an expected block and what comes after all blocks take.
const SEGMENTS_SPARE: usize = 3;

/// What an entry of a receive is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// The rest of the block that is arriving: in its place, aside, or thrown away.
    Current,
    /// The header of an expected block.
    Header(usize),
    /// Payload of an expected block, and the address of its place.
    Expected(BlockRange, usize),
    /// Whatever comes.
    Scratch,
}

/// Memory for receiving that all connections of the thread share: nothing stays in it between two receives.
pub(crate) struct Scratch {
    bytes: Box<[u8]>,
    headers: Box<[[u8; PIECE_HEADER_LEN]]>,
    iovecs: Vec<libc::iovec>,
    segments: Vec<(Segment, usize)>,
}

impl Scratch {
    /// Allocates it.
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; SCRATCH_LEN].into(),
            headers: vec![[0; PIECE_HEADER_LEN]; SEGMENTS_MAX / 2].into(),
            iovecs: Vec::with_capacity(SEGMENTS_MAX),
            segments: Vec::with_capacity(SEGMENTS_MAX),
        }
    }

    /// What the last receive was laid out as, and how long each part is, in stream order.
    pub(super) fn segments(&self) -> &[(Segment, usize)] {
        &self.segments
    }

    /// The header that came for [`Segment::Header`].
    pub(super) fn header(&self, index: usize) -> &[u8] {
        &self.headers[index]
    }

    /// What came for [`Segment::Scratch`].
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The next `len` bytes of the stream from the segment with this number on, wherever they were laid out. `None` where some
    /// of that memory is gone.
    pub(super) fn gather(&self, from: usize, mut len: usize, buffers: Option<&PieceBuffers>) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        for (segment, room) in &self.segments[from..] {
            let take = len.min(*room);
            len -= take;
            match segment {
                _ if take == 0 => break,
                Segment::Header(index) => bytes.extend_from_slice(&self.header(*index)[..take]),
                Segment::Scratch => bytes.extend_from_slice(&self.bytes[..take]),
                Segment::Expected(range, _) => bytes.extend_from_slice(buffers?.laid_out(*range)?.get(..take)?),
                // The current block is always first, and never astray.
                Segment::Current => {}
            }
        }
        Some(bytes)
    }
}

/// A receive that is being laid out.
pub(super) struct Layout<'a> {
    bytes: *mut u8,
    headers: *mut [u8; PIECE_HEADER_LEN],
    headers_used: usize,
    iovecs: &'a mut Vec<libc::iovec>,
    segments: &'a mut Vec<(Segment, usize)>,
    buffers: Option<&'a mut PieceBuffers>,
    /// The memory of a block that is received aside; and what `bytes` and `headers` point to.
    borrowed: PhantomData<&'a mut [u8]>,
    len: usize,
}

impl<'a> Layout<'a> {
    /// An empty one.
    pub(super) fn new(scratch: &'a mut Scratch, buffers: Option<&'a mut PieceBuffers>) -> Self {
        let Scratch { bytes, headers, iovecs, segments } = scratch;
        iovecs.clear();
        segments.clear();
        Self {
            bytes: bytes.as_mut_ptr(),
            headers: headers.as_mut_ptr(),
            headers_used: 0,
            iovecs,
            segments,
            buffers,
            borrowed: PhantomData,
            len: 0,
        }
    }

    /// Bytes that there is room for.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Up to `len` bytes of a block that `conn` is receiving in its place, from byte `at` on. Answers whether the place is
    /// still its.
    pub(super) fn in_place(&mut self, range: BlockRange, conn: ConnId, at: u32, len: usize) -> bool {
        let Some(place) = self.buffers.as_mut().and_then(|buffers| buffers.resume(range, conn, at)) else {
            return false;
        };
        // `resume` answers room for the rest of the block.
        self.push(Segment::Current, place, len.min((range.len - at) as usize));
        true
    }

    /// The rest of a block that is received into memory of its own.
    pub(super) fn aside(&mut self, memory: &'a mut [u8]) {
        self.push(Segment::Current, memory.as_mut_ptr(), memory.len());
    }

    /// Up to `len` bytes of a block that is thrown away: what comes after them may be written over them.
    pub(super) fn discard(&mut self, len: usize) {
        self.push(Segment::Current, self.bytes, len.min(SCRATCH_LEN));
    }

    /// The last `header_len` bytes of an expected block's header, and its payload in its place. Answers whether there is one.
    pub(super) fn expected(&mut self, range: BlockRange, header_len: usize, now: Instant) -> bool {
        if self.headers_used >= SEGMENTS_MAX / 2 || self.iovecs.len() + SEGMENTS_SPARE > SEGMENTS_MAX {
            return false;
        }
        let Some(place) = self.buffers.as_mut().and_then(|buffers| buffers.place(range, now).ok()) else {
            return false;
        };
        let header = self.headers.wrapping_add(self.headers_used).cast();
        self.push(Segment::Header(self.headers_used), header, header_len.min(PIECE_HEADER_LEN));
        self.push(Segment::Expected(range, place.addr()), place, range.len as usize);
        self.headers_used += 1;
        true
    }

    /// Up to `len` bytes of whatever comes.
    pub(super) fn anything(&mut self, len: usize) {
        self.push(Segment::Scratch, self.bytes, len.min(SCRATCH_LEN));
    }

    /// Receives into what was laid out.
    pub(super) fn receive(self, stream: &Stream) -> io::Result<usize> {
        // SAFETY: every entry describes memory that `self` borrows exclusively until the call is over.
        self.fill(|iovecs| unsafe { stream.try_recv(iovecs) })
    }

    pub(super) fn fill(self, receive: impl FnOnce(&mut [libc::iovec]) -> io::Result<usize>) -> io::Result<usize> {
        let received = receive(self.iovecs);
        // The borrows end here, and the addresses with them.
        self.iovecs.clear();
        received
    }

    fn push(&mut self, segment: Segment, place: *mut u8, len: usize) {
        self.segments.push((segment, len));
        self.iovecs.push(libc::iovec { iov_base: place.cast(), iov_len: len });
        self.len += len;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use anabranch_content::geometry::{BLOCK_LEN, Geometry};

    use super::*;
    use crate::store::buffers::CHUNK_LEN;
    use crate::store::pools::Pools;

    const ONE: ConnId = ConnId(1);
    const TWO: ConnId = ConnId(2);

    fn buffers(pieces: u64) -> PieceBuffers {
        let geometry = Geometry::new(CHUNK_LEN, pieces * u64::from(CHUNK_LEN), Vec::new());
        PieceBuffers::new(Pools::new(pieces * u64::from(CHUNK_LEN)), geometry)
    }

    fn block(piece: u32, block: u32) -> BlockRange {
        BlockRange { piece, begin: block * BLOCK_LEN, len: BLOCK_LEN }
    }

    /// What the system does: the stream goes into the entries, one after the other.
    pub(in super::super) fn scatter(iovecs: &mut [libc::iovec], mut stream: &[u8]) -> io::Result<usize> {
        let mut received = 0;
        for iovec in iovecs {
            let (part, rest) = stream.split_at(stream.len().min(iovec.iov_len));
            // SAFETY: what `Layout::receive` says of the entries.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), iovec.iov_base.cast(), part.len()) };
            received += part.len();
            stream = rest;
        }
        Ok(received)
    }

    fn stream(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn a_stream_as_expected_lies_where_it_belongs_and_any_part_of_it_can_be_gathered() {
        let (mut buffers, mut scratch, now) = (buffers(2), Scratch::new(), Instant::now());
        let arriving = block(0, 2);
        buffers.begin(arriving, ONE, now).unwrap();
        let mut layout = Layout::new(&mut scratch, Some(&mut buffers));
        assert!(layout.in_place(arriving, ONE, 16_000, usize::MAX));
        assert!(layout.expected(block(0, 3), PIECE_HEADER_LEN - 2, now));
        assert!(layout.expected(block(1, 0), PIECE_HEADER_LEN, now));
        layout.anything(100);
        let stream = stream(layout.len());
        let received = layout.fill(|iovecs| scatter(iovecs, &stream)).unwrap();
        assert_eq!(received, stream.len());

        let rest = BLOCK_LEN as usize - 16_000;
        assert_eq!(buffers.laid_out(arriving).unwrap()[16_000..], stream[..rest]);
        let lens: Vec<usize> = scratch.segments().iter().map(|(_, len)| *len).collect();
        assert_eq!(lens, [rest, PIECE_HEADER_LEN - 2, 16_384, PIECE_HEADER_LEN, 16_384, 100]);
        for from in 1..lens.len() {
            let begin: usize = lens[..from].iter().sum();
            for len in [0, 1, 20, 17_000, stream.len() - begin] {
                let len = len.min(stream.len() - begin);
                let gathered = scratch.gather(from, len, Some(&buffers)).unwrap();
                assert!(gathered == stream[begin..begin + len], "{len} bytes from {from}");
            }
        }
        assert_eq!(scratch.gather(2, 5, None), None, "the content came to its end");
    }

    #[test]
    fn blocks_without_a_place_are_received_elsewhere() {
        let (mut buffers, mut scratch, now) = (buffers(1), Scratch::new(), Instant::now());
        buffers.begin(block(0, 0), ONE, now).unwrap();
        let mut memory = vec![0; BLOCK_LEN as usize];
        let mut layout = Layout::new(&mut scratch, Some(&mut buffers));
        assert!(!layout.in_place(block(0, 0), TWO, 0, 10), "it is another connection's");
        assert!(!layout.expected(block(0, 0), PIECE_HEADER_LEN, now), "it is arriving");
        assert!(!layout.expected(block(7, 0), PIECE_HEADER_LEN, now), "there is no such piece");
        layout.aside(&mut memory[100..]);
        layout.anything(50);
        let stream = stream(layout.len());
        layout.fill(|iovecs| scatter(iovecs, &stream)).unwrap();
        assert!(memory[100..] == stream[..BLOCK_LEN as usize - 100]);
        assert_eq!(scratch.bytes()[..50], stream[BLOCK_LEN as usize - 100..]);

        let mut layout = Layout::new(&mut scratch, None);
        layout.discard(30);
        layout.anything(50);
        assert!(!layout.expected(block(0, 1), PIECE_HEADER_LEN, now), "there is no content");
        let stream = &stream[..layout.len()];
        layout.fill(|iovecs| scatter(iovecs, stream)).unwrap();
        assert_eq!(scratch.bytes()[..50], stream[30..], "what is thrown away makes room for what comes after");
    }

    #[test]
    fn a_receive_has_no_more_entries_than_the_system_takes() {
        let (mut buffers, mut scratch, now) = (buffers(40), Scratch::new(), Instant::now());
        let mut layout = Layout::new(&mut scratch, Some(&mut buffers));
        let all = (0..40).flat_map(|piece| (0..CHUNK_LEN / BLOCK_LEN).map(move |at| block(piece, at)));
        let laid_out = all.take_while(|range| layout.expected(*range, PIECE_HEADER_LEN, now)).count();
        layout.anything(usize::MAX);
        assert!(layout.iovecs.len() <= SEGMENTS_MAX && laid_out >= SEGMENTS_MAX / 2 - 2, "{laid_out}");
        assert_eq!(layout.fill(|iovecs| scatter(iovecs, &[])).unwrap(), 0);
    }
}
