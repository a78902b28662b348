//! The path log: a CSV row for each path every 50 ms.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{LogError, quote};

/// Rows of one log: 16 paths for three hours, 250 MB in memory. What is longer belongs into a tool for it.
pub const ROWS_MAX: usize = 4_000_000;
/// Bytes of one row; ours have about a hundred.
const ROW_BYTES_MAX: usize = 4096;
/// Bytes read in one go.
const CHUNK_BYTES: usize = 64 << 10;

/// The columns that are used, as the head of the file names them. Others are passed over.
const COLUMNS: [&str; 9] = ["seconds", "peer", "path", "state", "downloaded", "down_rate", "rtt_ms", "lost", "share"];

/// What happened on every path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathLog {
    /// A series for each path of each peer, in the order in which they first appear.
    pub series: Vec<Series>,
}

/// What happened on one path.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The address-level peer at its other end.
    pub peer: String,
    /// The path's id.
    pub path: String,
    /// In the order of time.
    pub points: Vec<Point>,
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Since the program's start.
    pub seconds: f64,
    /// Whether the path carried content then.
    pub active: bool,
    /// Bytes received over the path so far.
    pub downloaded: u64,
    /// Bytes per second, as the program estimated it.
    pub down_rate: u64,
    /// Round-trip time, where known.
    pub rtt_ms: Option<f64>,
    /// Packets lost so far.
    pub lost: u64,
    /// Of all requests, the share that goes over this path, 0 to 1.
    pub share: f64,
}

impl Series {
    /// Bytes received over the path in all.
    pub fn bytes(&self) -> u64 {
        self.points.last().map_or(0, |last| last.downloaded)
    }

    /// Bytes received by `seconds`, between rows in proportion.
    pub fn bytes_at(&self, seconds: f64) -> f64 {
        let after = self.points.partition_point(|point| point.seconds <= seconds);
        let Some(before) = after.checked_sub(1).map(|at| &self.points[at]) else { return 0.0 };
        let Some(next) = self.points.get(after) else { return before.downloaded as f64 };
        let along = (seconds - before.seconds) / (next.seconds - before.seconds);
        before.downloaded as f64 + along * (next.downloaded.saturating_sub(before.downloaded)) as f64
    }

    /// The middle one of the round-trip times while it carried content.
    pub fn rtt_ms_median(&self) -> Option<f64> {
        let mut times: Vec<f64> =
            self.points.iter().filter(|point| point.active).filter_map(|point| point.rtt_ms).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    }
}

/// Follows a path log, whether it is still written or complete.
#[derive(Debug)]
pub struct PathLogReader {
    path: PathBuf,
    file: Option<File>,
    /// The beginning of a row that is not whole yet.
    partial: Vec<u8>,
    line: usize,
    /// Where each of [`COLUMNS`] is, and how many columns there are, once the head was read.
    head: Option<([usize; COLUMNS.len()], usize)>,
    /// Where each series is, and what its earlier connections received: each counts from nothing.
    places: HashMap<(String, String), (usize, u64)>,
    rows: usize,
    /// What was read so far.
    pub log: PathLog,
}

impl PathLogReader {
    /// A reader of a file that need not be there yet.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            file: None,
            partial: Vec::new(),
            line: 0,
            head: None,
            places: HashMap::new(),
            rows: 0,
            log: PathLog::default(),
        }
    }

    /// Reads what has been written since.
    pub fn poll(&mut self) -> Result<(), LogError> {
        let unreadable = |error| LogError::Unreadable { file: self.path.display().to_string(), error };
        let file = match &mut self.file {
            Some(file) => file,
            none => match File::open(&self.path) {
                Ok(file) => none.insert(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(unreadable(error)),
            },
        };
        let mut text = std::mem::take(&mut self.partial);
        let mut chunk = vec![0; CHUNK_BYTES];
        // Ends at what was written when we came; a row costs less to read than to write.
        let mut fresh = Vec::new();
        loop {
            match file.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => fresh.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
        text.extend(fresh);
        self.feed(&text)
    }

    /// Reads the rest, which must end with a whole row, and answers the log.
    pub fn finish(mut self) -> Result<PathLog, LogError> {
        self.poll()?;
        if !self.partial.is_empty() {
            let rest = std::mem::take(&mut self.partial);
            self.row(&rest)?;
        }
        Ok(self.log)
    }

    fn feed(&mut self, text: &[u8]) -> Result<(), LogError> {
        let mut rest = text;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.row(&rest[..end])?;
            rest = &rest[end + 1..];
        }
        if rest.len() > ROW_BYTES_MAX {
            return Err(self.malformed(self.line + 1, "the row has no end"));
        }
        self.partial = rest.to_vec();
        Ok(())
    }

    fn malformed(&self, line: usize, problem: impl Into<String>) -> LogError {
        LogError::malformed(&self.path.display().to_string(), line, problem)
    }

    fn row(&mut self, row: &[u8]) -> Result<(), LogError> {
        self.line += 1;
        let parsed = std::str::from_utf8(row).map_err(|_| "no UTF-8 text".to_owned());
        parsed.and_then(|text| self.take(text.trim_end_matches('\r'))).map_err(|problem| {
            let line = self.line;
            self.malformed(line, problem)
        })
    }

    fn take(&mut self, row: &str) -> Result<(), String> {
        let fields = split(row)?;
        let Some((places, count)) = self.head else {
            self.head = Some((find_columns(&fields)?, fields.len()));
            return Ok(());
        };
        if fields.len() != count {
            return Err(format!("{} columns where the head has {count}: {}", fields.len(), quote(row)));
        }
        self.rows += 1;
        if self.rows > ROWS_MAX {
            return Err(format!("more than {ROWS_MAX} rows: a report is of a shorter transfer"));
        }
        let [seconds, peer, path, state, downloaded, down_rate, rtt_ms, lost, share] = places.map(|at| fields[at]);
        let point = Point {
            seconds: amount("seconds", seconds)?,
            active: state == "active",
            downloaded: count_of("downloaded", downloaded)?,
            down_rate: count_of("down_rate", down_rate)?,
            rtt_ms: if rtt_ms.is_empty() { None } else { Some(amount("rtt_ms", rtt_ms)?) },
            lost: count_of("lost", lost)?,
            share: if share.is_empty() { 0.0 } else { amount("share", share)? },
        };
        let key = (peer.to_owned(), path.to_owned());
        let (place, before) = self.places.entry(key).or_insert_with(|| {
            self.log.series.push(Series { peer: peer.to_owned(), path: path.to_owned(), points: Vec::new() });
            (self.log.series.len() - 1, 0)
        });
        let points = &mut self.log.series[*place].points;
        let last = points.last().map_or(0, |last| last.downloaded);
        if before.saturating_add(point.downloaded) < last {
            *before = last;
        }
        let point = Point { downloaded: before.saturating_add(point.downloaded), ..point };
        if points.last().is_some_and(|last| last.seconds > point.seconds) {
            return Err(format!("time goes back to {seconds} s"));
        }
        points.push(point);
        Ok(())
    }
}

/// The columns of a row. One with a comma in it, as SCION addresses have, is in double quotes (RFC 4180 §2).
fn split(row: &str) -> Result<Vec<&str>, String> {
    let mut fields = Vec::new();
    let mut rest = row;
    loop {
        let quoted = rest.strip_prefix('"').map(|inner| inner.split_once('"').ok_or("a quote has no end"));
        let (field, after) = match quoted.transpose()? {
            Some((field, after)) => (field, after),
            None => rest.split_at(rest.find(',').unwrap_or(rest.len())),
        };
        fields.push(field);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(fields),
            None => return Err(format!("text behind a quote: {}", quote(after))),
        }
    }
}

fn find_columns(head: &[&str]) -> Result<[usize; COLUMNS.len()], String> {
    let mut places = [0; COLUMNS.len()];
    for (place, name) in places.iter_mut().zip(COLUMNS) {
        let found = head.iter().position(|column| *column == name);
        *place = found.ok_or_else(|| format!("the head has no column `{name}`: {}", quote(&head.join(","))))?;
    }
    Ok(places)
}

fn amount(column: &str, text: &str) -> Result<f64, String> {
    let parsed = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    parsed.ok_or_else(|| format!("`{}` in column `{column}` is no amount", quote(text)))
}

fn count_of(column: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{}` in column `{column}` is no whole number", quote(text)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    const HEAD: &str = "seconds,content,peer,path,state,downloaded,uploaded,down_rate,up_rate,rtt_ms,lost,share\n";

    fn read(text: &str) -> Result<PathLog, LogError> {
        let mut reader = PathLogReader::new(Path::new("no/such/paths.csv"));
        reader.feed(text.as_bytes())?;
        reader.finish()
    }

    #[test]
    fn rows_become_series() {
        let text = format!(
            "{HEAD}0.050,abc,\"[1-1,::1]:1\",p1,active,0,0,0,0,,0,\n0.050,abc,\"[1-1,::1]:1\",p2,standby,5,0,0,0,12.5,1,0.5\n\
             0.100,abc,\"[1-1,::1]:1\",p1,active,1000,0,20000,0,30.1,0,1\n"
        );
        let log = read(&text).unwrap();
        assert_eq!(log.series.len(), 2);
        assert_eq!((log.series[0].peer.as_str(), log.series[0].path.as_str()), ("[1-1,::1]:1", "p1"));
        assert_eq!(log.series[0].bytes(), 1000);
        assert!((log.series[0].bytes_at(0.075) - 500.0).abs() < 1e-6);
        assert_eq!((log.series[0].bytes_at(0.01), log.series[0].bytes_at(9.0)), (0.0, 1000.0));
        assert_eq!(log.series[0].rtt_ms_median(), Some(30.1));
        assert!(!log.series[1].points[0].active);
        assert_eq!(log.series[1].rtt_ms_median(), None);
    }

    #[test]
    fn a_path_that_is_opened_anew_goes_on_counting() {
        let row = |seconds: &str, bytes: u64| format!("{seconds},abc,a:1,p1,active,{bytes},0,0,0,,0,1\n");
        let log = read(&format!("{HEAD}{}{}{}{}", row("0.1", 5), row("0.2", 9), row("0.3", 2), row("0.4", 4))).unwrap();
        let bytes: Vec<u64> = log.series[0].points.iter().map(|point| point.downloaded).collect();
        assert_eq!(bytes, [5, 9, 11, 13]);
    }

    #[test]
    fn empty_logs_are_logs() {
        for text in ["", HEAD, HEAD.trim_end()] {
            assert_eq!(read(text).unwrap(), PathLog::default());
        }
    }

    #[test]
    fn errors_name_file_line_and_what_is_wrong() {
        let row = "0.050,abc,a:1,p1,active,0,0,0,0,,0,1";
        for (text, says) in [
            ("seconds,peer\n".to_owned(), "line 1: the head has no column `path`"),
            (format!("{HEAD}{row}\n0.1,abc\n"), "line 3: 2 columns where the head has 12: 0.1,abc"),
            (format!("{HEAD}{}\n", row.replace("0.050", "soon")), "line 2: `soon` in column `seconds` is no amount"),
            (format!("{HEAD}{}\n", row.replace("0.050", "-1")), "no amount"),
            (
                format!("{HEAD}{}\n", row.replace("active,0", "active,0.5")),
                "`0.5` in column `downloaded` is no whole number",
            ),
            (format!("{HEAD}{row}\n{}", row.replace("0.050", "0.049")), "line 3: time goes back to 0.049 s"),
            (format!("{HEAD}\"{row}\n"), "line 2: a quote has no end"),
            (format!("{HEAD}\"0.1\"5,\n"), "text behind a quote"),
            (format!("{HEAD}{}", "x".repeat(ROW_BYTES_MAX + 1)), "line 2: the row has no end"),
        ] {
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("paths.csv"), "{error}");
        }
    }

    #[test]
    fn a_file_is_followed_while_it_grows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("paths.csv");
        let mut reader = PathLogReader::new(&path);
        reader.poll().unwrap();
        let mut file = File::create(&path).unwrap();
        for part in [&HEAD[..20], &HEAD[20..], "0.1,abc,a:1,p1,act", "ive,7,0,0,0,,0,1\n0.2,abc,a:1,p1,active,"] {
            file.write_all(part.as_bytes()).unwrap();
            reader.poll().unwrap();
        }
        assert_eq!(reader.log.series[0].bytes(), 7);
        file.write_all(b"9,0,0,0,,0,1").unwrap();
        assert_eq!(reader.finish().unwrap().series[0].bytes(), 9);
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in "\\PC{0,200}", rows in "[0-9.,\"a-c\n]{0,200}") {
            drop(read(&text));
            drop(read(&format!("{HEAD}{rows}")));
        }
    }
}
