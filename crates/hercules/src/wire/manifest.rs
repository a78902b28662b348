//! What is sent: files, folders and links, with modes, times and holes.
//!
//! A manifest is a list of entries. The content of a transfer is the data of its files, one behind the other in the order of
//! the list, without their holes: a hole is never sent. [`Layout`] says where a byte of the content lies.
//!
//! Names are bytes, as Linux has them; what a file system or a policy makes of them is the driver's to decide. What can
//! leave the folder is refused here: empty names, `.`, `..`, a leading `/`, NUL.

use std::ops::Range;

use super::{CONTENT_LEN_MAX, Input, WireError, put_varint};

/// Bytes of all entries: two million of ordinary names.
pub const MANIFEST_LEN_MAX: u64 = 128 << 20;
/// Entries of a manifest.
pub const ENTRIES_MAX: u32 = 1 << 22;
/// Bytes of a path or of a link's target: Linux's `PATH_MAX`.
pub const NAME_LEN_MAX: usize = 4096;
/// Bytes of a component: Linux's `NAME_MAX`.
pub const COMPONENT_LEN_MAX: usize = 255;
/// Runs of data in one file: its entry still fits one message. Who has more sends the smaller holes.
pub const EXTENTS_MAX: usize = 3000;
/// Longest encoding of an entry.
pub const ENTRY_LEN_MAX: usize = 64 << 10;

/// A file, a folder or a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Components from the top, none of them empty.
    pub name: Vec<u8>,
    /// Permission bits, `0o7777` at most.
    pub mode: u16,
    /// Modification time: seconds since 1970, may be before it, and nanoseconds.
    pub modified: (i64, u32),
    /// What it is.
    pub kind: EntryKind,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A folder.
    Folder,
    /// A symbolic link, and where it points.
    Link(Vec<u8>),
    /// A file of `len` bytes, with data in `extents` and holes elsewhere.
    File {
        /// Bytes.
        len: u64,
        /// In order, apart from each other, none empty, within `len`.
        extents: Vec<Range<u64>>,
    },
}

impl Entry {
    /// Whether this may be sent, and read by who gets it.
    pub fn check(&self) -> Result<(), WireError> {
        check_name(&self.name)?;
        if self.mode > 0o7777 {
            return Err(WireError::Invalid("mode"));
        }
        if self.modified.1 >= 1_000_000_000 {
            return Err(WireError::Invalid("time"));
        }
        match &self.kind {
            EntryKind::Folder => Ok(()),
            EntryKind::Link(target) if target.is_empty() || target.contains(&0) => {
                Err(WireError::Invalid("link's target"))
            }
            EntryKind::Link(target) if target.len() > NAME_LEN_MAX => Err(WireError::TooMany("bytes of a name")),
            EntryKind::Link(_) => Ok(()),
            EntryKind::File { extents, .. } if extents.len() > EXTENTS_MAX => Err(WireError::TooMany("runs of a file")),
            EntryKind::File { len, extents } => {
                let mut at = None;
                for extent in extents {
                    if extent.is_empty() || at.is_some_and(|at| extent.start <= at) {
                        return Err(WireError::Invalid("run of a file"));
                    }
                    at = Some(extent.end);
                }
                // The length may be all hole.
                if at.unwrap_or(0) > *len || *len > i64::MAX as u64 {
                    return Err(WireError::Invalid("file length"));
                }
                Ok(())
            }
        }
    }

    /// Bytes of content.
    pub fn data_len(&self) -> u64 {
        match &self.kind {
            EntryKind::File { extents, .. } => extents.iter().map(|extent| extent.end - extent.start).sum(),
            _ => 0,
        }
    }

    /// Appends the entry; one that [`Entry::check`] refuses is not written.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        self.check()?;
        out.push(match self.kind {
            EntryKind::File { .. } => 0,
            EntryKind::Folder => 1,
            EntryKind::Link(_) => 2,
        });
        out.extend(self.mode.to_be_bytes());
        out.extend(self.modified.0.to_be_bytes());
        out.extend(self.modified.1.to_be_bytes());
        put_bytes(out, &self.name);
        match &self.kind {
            EntryKind::Folder => {}
            EntryKind::Link(target) => put_bytes(out, target),
            EntryKind::File { len, extents } => {
                out.extend(len.to_be_bytes());
                put_varint(out, extents.len() as u64);
                let mut at = 0;
                for extent in extents {
                    out.extend((extent.start - at).to_be_bytes());
                    out.extend((extent.end - extent.start).to_be_bytes());
                    at = extent.end;
                }
            }
        }
        Ok(())
    }

    fn read(input: &mut Input<'_>) -> Result<Self, WireError> {
        let kind = input.u8()?;
        let mode = input.u16()?;
        let modified = (i64::from_be_bytes(input.array()?), input.u32()?);
        let name = take_bytes(input)?;
        let kind = match kind {
            0 => {
                let (len, count) = (input.u64()?, input.varint()?);
                if count > EXTENTS_MAX as u64 {
                    return Err(WireError::TooMany("runs of a file"));
                }
                let (mut extents, mut at) = (Vec::new(), 0u64);
                for _ in 0..count {
                    let start = at.checked_add(input.u64()?).ok_or(WireError::Invalid("run of a file"))?;
                    at = start.checked_add(input.u64()?).ok_or(WireError::Invalid("run of a file"))?;
                    extents.push(start..at);
                }
                EntryKind::File { len, extents }
            }
            1 => EntryKind::Folder,
            2 => EntryKind::Link(take_bytes(input)?),
            other => return Err(WireError::UnknownType(other)),
        };
        let entry = Self { name, mode, modified, kind };
        entry.check()?;
        Ok(entry)
    }
}

/// Reads the first entry of `bytes`, and how long it is.
pub fn parse_entry(bytes: &[u8]) -> Result<(Entry, usize), WireError> {
    let mut input = Input(bytes);
    let entry = Entry::read(&mut input)?;
    Ok((entry, bytes.len() - input.0.len()))
}

/// Reads whole entries until the bytes end.
pub fn parse_entries(bytes: &[u8]) -> Result<Vec<Entry>, WireError> {
    let (mut input, mut entries) = (Input(bytes), Vec::new());
    while !input.0.is_empty() {
        entries.push(Entry::read(&mut input)?);
    }
    Ok(entries)
}

fn check_name(name: &[u8]) -> Result<(), WireError> {
    if name.len() > NAME_LEN_MAX {
        return Err(WireError::TooMany("bytes of a name"));
    }
    let good = |component: &[u8]| {
        !component.is_empty() && component != b"." && component != b".." && component.len() <= COMPONENT_LEN_MAX
    };
    if name.contains(&0) || !name.split(|byte| *byte == b'/').all(good) {
        return Err(WireError::Invalid("name"));
    }
    Ok(())
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Names are shorter than 2^16.
    out.extend((bytes.len() as u16).to_be_bytes());
    out.extend(bytes);
}

fn take_bytes(input: &mut Input<'_>) -> Result<Vec<u8>, WireError> {
    let len = usize::from(input.u16()?);
    if len > NAME_LEN_MAX {
        return Err(WireError::TooMany("bytes of a name"));
    }
    input.take(len).map(<[u8]>::to_vec)
}

/// A run of content within a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the entry.
    pub entry: u32,
    /// Where it starts in the file.
    pub file_offset: u64,
    /// How long it is.
    pub len: u64,
}

/// Where each byte of the content lies.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// First byte of content, entry, offset in the file; in order.
    extents: Vec<(u64, u32, u64)>,
    entries: u32,
    len: u64,
}

impl Layout {
    /// Adds the next entry.
    pub fn push(&mut self, entry: &Entry) -> Result<(), WireError> {
        entry.check()?;
        if self.entries >= ENTRIES_MAX {
            return Err(WireError::TooMany("files"));
        }
        if entry.data_len() > CONTENT_LEN_MAX - self.len {
            return Err(WireError::TooMany("bytes"));
        }
        if let EntryKind::File { extents, .. } = &entry.kind {
            for extent in extents {
                self.extents.push((self.len, self.entries, extent.start));
                self.len += extent.end - extent.start;
            }
        }
        self.entries += 1;
        Ok(())
    }

    /// Bytes of content.
    pub fn content_len(&self) -> u64 {
        self.len
    }

    /// Entries so far.
    pub fn entry_count(&self) -> u32 {
        self.entries
    }

    /// The files' runs that the content `range` lies in, in order.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + '_ {
        let range = range.start..range.end.min(self.len);
        let first = self.extents.partition_point(|(start, ..)| *start <= range.start).saturating_sub(1);
        let ends = self.extents.iter().skip(first + 1).map(|(start, ..)| *start).chain([self.len]);
        let extents = self.extents.iter().skip(first).zip(ends);
        extents.take_while(move |((start, ..), _)| *start < range.end).map(move |((start, entry, offset), end)| {
            let from = range.start.max(*start);
            Piece { entry: *entry, file_offset: offset + (from - start), len: range.end.min(end) - from }
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn entry() -> impl Strategy<Value = Entry> {
        let extents = prop::collection::vec((1..1000u64, 1..1000u64), 0..5).prop_map(|steps| {
            let mut at = 0;
            let extents: Vec<_> = steps
                .into_iter()
                .map(|(gap, len)| {
                    let start = at + gap;
                    at = start + len;
                    start..at
                })
                .collect();
            EntryKind::File { len: at + 7, extents }
        });
        let kind = prop_oneof![
            extents,
            Just(EntryKind::Folder),
            prop::collection::vec(1..255u8, 1..20).prop_map(EntryKind::Link)
        ];
        ("[a-z]{1,9}(/[a-z.]{3,9}){0,2}", 0..0o10000u16, any::<i64>(), 0..1_000_000_000u32, kind).prop_filter_map(
            "a name",
            |(name, mode, seconds, ns, kind)| {
                let entry = Entry { name: name.into_bytes(), mode, modified: (seconds, ns), kind };
                entry.check().is_ok().then_some(entry)
            },
        )
    }

    proptest! {
        #[test]
        fn entries_are_written_and_read(entries in prop::collection::vec(entry(), 0..6)) {
            let mut bytes = Vec::new();
            entries.iter().for_each(|entry| entry.write(&mut bytes).unwrap());
            prop_assert_eq!(parse_entries(&bytes), Ok(entries.clone()));
            let mut layout = Layout::default();
            entries.iter().for_each(|entry| layout.push(entry).unwrap());
            // Every byte of content lies where walking the extents finds it.
            let naive: Vec<(u32, u64)> = (0u32..).zip(&entries).flat_map(|(number, entry)| match &entry.kind {
                EntryKind::File { extents, .. } => extents.iter().cloned().flatten().map(|at| (number, at)).collect(),
                _ => Vec::new(),
            }).collect();
            prop_assert_eq!(naive.len() as u64, layout.content_len());
            let (from, to) = (naive.len() / 3, naive.len() * 2 / 3);
            let pieces = layout.pieces(from as u64..to as u64);
            let found: Vec<_> = pieces.flat_map(|piece| (0..piece.len).map(move |at| (piece.entry, piece.file_offset + at))).collect();
            prop_assert_eq!(&found[..], &naive[from..to]);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(entries) = parse_entries(&bytes) {
                prop_assert!(entries.iter().all(|entry| entry.check().is_ok()));
            }
        }
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for name in ["", "/etc", "a//b", "..", "a/../b", "./a", "a/", "a\0b"] {
            assert_eq!(check_name(name.as_bytes()), Err(WireError::Invalid("name")), "{name:?}");
        }
        for name in ["a", "...", "a/b.c", "-", " "] {
            assert_eq!(check_name(name.as_bytes()), Ok(()), "{name:?}");
        }
        assert!(check_name(&[b'a'; COMPONENT_LEN_MAX]).is_ok() && check_name(&[b'a'; COMPONENT_LEN_MAX + 1]).is_err());
    }

    #[test]
    fn lengths_that_nobody_has_are_refused() {
        let file = |len, extents| Entry {
            name: b"a".to_vec(),
            mode: 0o644,
            modified: (0, 0),
            kind: EntryKind::File { len, extents },
        };
        assert!(file(1 << 63, vec![]).check().is_err() && file((1 << 63) - 1, vec![]).check().is_ok());
        let mut layout = Layout::default();
        assert!(layout.push(&file(CONTENT_LEN_MAX + 1, vec![0..CONTENT_LEN_MAX + 1])).is_err());
        assert!(layout.push(&file(CONTENT_LEN_MAX, vec![0..CONTENT_LEN_MAX])).is_ok());
        assert!(layout.push(&file(1, vec![0..1])).is_err());
    }
}
