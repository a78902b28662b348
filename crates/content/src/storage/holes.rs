//! Where a file has data, and where holes.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Bytes of what the system counts a file's space in.
const STAT_BLOCK_LEN: u64 = 512;

/// The runs of data among the first `len` bytes of `file`, at most `max` of them: where there are more, the smallest holes are taken
/// for data. A file system that knows no holes has one run.
pub fn data_runs(file: &File, len: u64, max: usize) -> io::Result<Vec<Range<u64>>> {
    let (mut runs, mut at) = (Vec::<Range<u64>>::new(), 0);
    while let Some(start) = seek(file, at, libc::SEEK_DATA)?.filter(|start| *start < len) {
        let end = seek(file, start, libc::SEEK_HOLE)?.unwrap_or(len).min(len);
        if end <= start {
            // Somebody writes to it meanwhile; whoever reads notices.
            break;
        }
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
        at = end;
        if runs.len() >= 2 * max {
            merge(&mut runs, max);
        }
    }
    merge(&mut runs, max);
    Ok(runs)
}

/// Whether the file has these bytes, and no data there.
pub(crate) fn is_hole(file: &File, range: Range<u64>) -> bool {
    let Ok(meta) = file.metadata() else { return false };
    // Most files have no holes, and need not be asked where.
    let may_be = meta.len() >= range.end && meta.blocks().saturating_mul(STAT_BLOCK_LEN) < meta.len();
    may_be && seek(file, range.start, libc::SEEK_DATA).is_ok_and(|data| data.is_none_or(|data| data >= range.end))
}

/// `None` past the last of what is looked for.
fn seek(file: &File, from: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    // SAFETY: the descriptor is open; no memory is involved.
    let found = unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, whence) };
    if let Ok(found) = u64::try_from(found) {
        return Ok(Some(found));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        // It knows no holes: everything is data.
        Some(libc::EINVAL | libc::EOPNOTSUPP) => Ok(Some(if whence == libc::SEEK_DATA { from } else { u64::MAX })),
        _ => Err(error),
    }
}

/// Closes the smallest holes until `max` runs are left.
fn merge(runs: &mut Vec<Range<u64>>, max: usize) {
    let surplus = runs.len().saturating_sub(max);
    if surplus == 0 {
        return;
    }
    let mut holes: Vec<(u64, usize)> = (1..runs.len()).map(|at| (runs[at].start - runs[at - 1].end, at)).collect();
    holes.select_nth_unstable(surplus - 1);
    let mut closed = vec![false; runs.len()];
    holes[..surplus].iter().for_each(|(_, at)| closed[*at] = true);
    let mut merged = Vec::<Range<u64>>::with_capacity(max);
    for (run, closed) in runs.drain(..).zip(closed) {
        match merged.last_mut() {
            Some(last) if closed => last.end = run.end,
            _ => merged.push(run),
        }
    }
    *runs = merged;
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn runs_are_where_the_data_is() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10 << 20).unwrap();
        assert_eq!(data_runs(&file, 10 << 20, 9).unwrap(), []);
        file.write_all_at(&[1; 100_000], 2 << 20).unwrap();
        file.write_all_at(&[1; 1], (8 << 20) + 5).unwrap();
        let runs = data_runs(&file, 10 << 20, 9).unwrap();
        assert!(!is_hole(&file, 0..3 << 20) && !is_hole(&file, 9 << 20..(10 << 20) + 1));
        let has = |at: u64| runs.iter().any(|run| run.contains(&at));
        assert!(has(2 << 20) && has((2 << 20) + 99_999) && has((8 << 20) + 5), "{runs:?}");
        if runs.len() == 2 {
            assert!(!has(0) && !has(5 << 20) && !has((10 << 20) - 1), "{runs:?}");
            assert_eq!(data_runs(&file, 10 << 20, 1).unwrap(), [runs[0].start..runs[1].end]);
            assert!(is_hole(&file, 0..1 << 20) && is_hole(&file, 9 << 20..10 << 20));
        }
    }

    #[test]
    fn the_smallest_holes_go() {
        let mut runs = vec![0..10, 11..20, 30..40, 42..50, 1000..1001];
        merge(&mut runs, 3);
        assert_eq!(runs, [0..20, 30..50, 1000..1001]);
        merge(&mut runs, 3);
        assert_eq!(runs.len(), 3);
    }
}
