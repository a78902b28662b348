//! Where the bytes of piece space lie in files.

use crate::info::{FileKind, Info};

/// What backs a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Bytes of a regular file.
    File,
    /// Zeros that are nowhere on disk (BEP 47, "Padding files").
    Pad,
}

/// A run of piece space that lies in one entry of the file list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index in [`Info::files`].
    pub file: usize,
    /// Where in the file the run starts, in bytes.
    pub file_offset: u64,
    /// Where in piece space the run starts, in bytes.
    pub offset: u64,
    /// Bytes; never 0.
    pub len: u64,
    /// File or padding.
    pub kind: SegmentKind,
}

/// The non-empty entries of a file list, packed for binary search: 16 bytes each.
#[derive(Debug)]
pub struct Layout {
    spans: Box<[Span]>,
    total: u64,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    file: u32,
    pad: bool,
}

impl Layout {
    /// Takes over the order of `info.files`; symlinks and empty files take no space and never appear in a segment.
    pub fn new(info: &Info) -> Self {
        let spans: Box<[Span]> = (info.files.iter().enumerate())
            .filter(|(_, entry)| entry.length > 0 && !matches!(entry.kind, FileKind::Symlink { .. }))
            .map(|(file, entry)| Span { start: entry.offset, file: file as u32, pad: entry.kind == FileKind::Pad })
            .collect();
        debug_assert!(spans.first().is_none_or(|span| span.start == 0));
        debug_assert!(spans.windows(2).all(|pair| pair[0].start < pair[1].start));
        Self { spans, total: info.geometry.total() }
    }

    /// Bytes of piece space.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The segments of `len` bytes from `offset`, in order, cut at the end of piece space.
    pub fn segments(&self, offset: u64, len: u64) -> Segments<'_> {
        let end = offset.saturating_add(len).min(self.total);
        let index = self.spans.partition_point(|span| span.start <= offset).saturating_sub(1);
        Segments { layout: self, index, at: offset.min(end), end }
    }

    /// The pieces that hold bytes of more than one regular file, in order. Only these can be wanted in part.
    pub(crate) fn shared_pieces(&self, piece_length: u32) -> Box<[u32]> {
        let piece_length = u64::from(piece_length);
        let mut shared = Vec::new();
        let mut last_piece_of_previous = None;
        for (index, span) in self.spans.iter().enumerate().filter(|(_, span)| !span.pad) {
            let first = (span.start / piece_length) as u32;
            if last_piece_of_previous == Some(first) && shared.last() != Some(&first) {
                shared.push(first);
            }
            last_piece_of_previous = Some(((self.span_end(index) - 1) / piece_length) as u32);
        }
        shared.into()
    }

    fn span_end(&self, index: usize) -> u64 {
        self.spans.get(index + 1).map_or(self.total, |next| next.start)
    }
}

/// See [`Layout::segments`]. Does not allocate.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    layout: &'a Layout,
    index: usize,
    at: u64,
    end: u64,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        if self.at >= self.end {
            return None;
        }
        let span = *self.layout.spans.get(self.index)?;
        let stop = self.layout.span_end(self.index).min(self.end);
        let segment = Segment {
            file: span.file as usize,
            file_offset: self.at - span.start,
            offset: self.at,
            len: stop - self.at,
            kind: if span.pad { SegmentKind::Pad } else { SegmentKind::File },
        };
        self.index += 1;
        self.at = stop;
        Some(segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::testing::info;
    use proptest::prelude::*;

    /// One byte at a time, from the definition.
    fn naive(info: &Info, offset: u64, len: u64) -> Vec<(usize, u64, bool)> {
        let mut bytes = Vec::new();
        for (file, entry) in info.files.iter().enumerate() {
            for at in 0..entry.length {
                bytes.push((file, at, entry.kind == FileKind::Pad));
            }
        }
        bytes.into_iter().skip(offset as usize).take(len as usize).collect()
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_walk(
            files in proptest::collection::vec((0u64..40, 0u8..4), 1..12), offset in 0u64..300, len in 0u64..300,
        ) {
            let info = info(7, &files);
            let layout = Layout::new(&info);
            let mut walked = Vec::new();
            let mut at = offset;
            for segment in layout.segments(offset, len) {
                prop_assert!(segment.len > 0 && segment.offset == at);
                at += segment.len;
                for byte in 0..segment.len {
                    walked.push((segment.file, segment.file_offset + byte, segment.kind == SegmentKind::Pad));
                }
            }
            prop_assert_eq!(walked, naive(&info, offset, len));
        }

        #[test]
        fn shared_pieces_are_those_with_two_files(files in proptest::collection::vec((0u64..40, 0u8..4), 1..12)) {
            let info = info(7, &files);
            let layout = Layout::new(&info);
            let expected: Vec<u32> = (0..info.geometry.piece_count()).filter(|piece| {
                let mut touched: Vec<usize> = naive(&info, info.geometry.piece_offset(*piece), 7)
                    .into_iter().filter(|byte| !byte.2).map(|byte| byte.0).collect();
                touched.dedup();
                touched.len() > 1
            }).collect();
            prop_assert_eq!(&*layout.shared_pieces(7), &expected[..]);
        }
    }

    #[test]
    fn ranges_past_the_end_are_cut() {
        let info = info(7, &[(10, 0)]);
        let layout = Layout::new(&info);
        assert_eq!(layout.segments(8, u64::MAX).map(|segment| segment.len).sum::<u64>(), 2);
        assert_eq!(layout.segments(10, 1).count(), 0);
        assert_eq!(layout.segments(u64::MAX, 1).count(), 0);
    }
}
