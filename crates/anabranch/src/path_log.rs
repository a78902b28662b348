//! `--path-log`: what each path does over time, as CSV.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_swarm::PathProgress;

use crate::events;
use crate::exit::{Code, Failure};

/// Between two rows of a path: several to a round trip of long paths, and what a failover takes shows.
pub(crate) const PATH_LOG_EVERY: Duration = Duration::from_millis(50);
/// The first line; `docs/cli.md` says what the columns are.
const HEADER: &str = "seconds,content,peer,path,state,downloaded,uploaded,down_rate,up_rate,rtt_ms,lost,share";

/// The file.
#[derive(Debug)]
pub(crate) struct PathLog {
    path: PathBuf,
    file: BufWriter<File>,
    began: Instant,
    last: Option<Instant>,
    /// What each path had moved when it was last written of: down, up.
    moved: HashMap<(String, String, String), (u64, u64)>,
}

impl PathLog {
    /// Begins a file; one that is there is replaced.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let failed = |error| failure(path, &error);
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        writeln!(file, "{HEADER}").map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, began: Instant::now(), last: None, moved: HashMap::new() })
    }

    /// Whether rows are due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.saturating_duration_since(last) >= PATH_LOG_EVERY / 2)
    }

    /// Writes a row for each path of each content.
    pub(crate) fn write(&mut self, contents: &[(&str, Vec<PathProgress>)], now: Instant) -> Result<(), Failure> {
        let since = self.last.replace(now).map(|last| now.saturating_duration_since(last).as_secs_f64());
        let mut moved = HashMap::new();
        let mut rows = Vec::new();
        for (content, paths) in contents {
            let begin = rows.len();
            for path in paths {
                let key = ((*content).to_owned(), path.peer.to_string(), events::path_name(&path.path));
                let bytes = (path.downloaded_bytes, path.uploaded_bytes);
                let before = self.moved.get(&key).copied().unwrap_or(bytes);
                let rate = |now: u64, before: u64| match since {
                    // A path that was opened anew counts from zero.
                    Some(seconds) if seconds > 0.0 => (now.saturating_sub(before) as f64 / seconds) as u64,
                    _ => 0,
                };
                let rates = (rate(bytes.0, before.0), rate(bytes.1, before.1));
                rows.push((key.clone(), path, rates));
                moved.insert(key, bytes);
            }
            let total: u64 = rows[begin..].iter().map(|(_, _, (down, up))| down + up).sum();
            for ((content, peer, name), path, (down, up)) in &rows[begin..] {
                let share = if total > 0 { (down + up) as f64 / total as f64 } else { 0.0 };
                let rtt = path.rtt.map_or(String::new(), |rtt| format!("{:.3}", rtt.as_secs_f64() * 1e3));
                let seconds = now.saturating_duration_since(self.began).as_secs_f64();
                let (state, lost) = (path.condition, path.lost_packets);
                // A SCION address has a comma, and who is sent to may be called by it.
                let mark = if content.contains(',') { "\"" } else { "" };
                let row = writeln!(
                    self.file,
                    "{seconds:.3},{mark}{content}{mark},\"{peer}\",{name},{state},{},{},{down},{up},{rtt},{lost},{share:.4}",
                    path.downloaded_bytes, path.uploaded_bytes,
                );
                row.map_err(|error| failure(&self.path, &error))?;
            }
        }
        self.moved = moved;
        self.file.flush().map_err(|error| failure(&self.path, &error))
    }
}

fn failure(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Code::Storage, format!("cannot write the path log {}: {error}; give another file", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_paths::manager::PathCondition;

    #[test]
    fn rows_have_rates_since_the_last_ones_and_shares() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("paths.csv");
        let mut log = PathLog::create(&file).unwrap();
        let path = |last: u8, downloaded_bytes| PathProgress {
            peer: "[1-ff00:0:110,10.0.0.9]:7".parse().unwrap(),
            path: anabranch_paths::Path::ip([10, 0, 0, last].into(), [10, 0, 0, 9].into()),
            condition: PathCondition::Active,
            download_rate_bytes: 0,
            upload_rate_bytes: 0,
            downloaded_bytes,
            uploaded_bytes: 0,
            rtt: Some(Duration::from_micros(12_345)),
            lost_packets: 3,
            is_one_of_many: true,
        };
        let began = log.began;
        log.write(&[("abc", vec![path(1, 1000), path(2, 0)])], began + Duration::from_secs(1)).unwrap();
        log.write(&[("abc", vec![path(1, 4000), path(2, 1000)])], began + Duration::from_secs(2)).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], HEADER);
        assert_eq!(lines.len(), 5);
        let first = "1.000,abc,\"[1-ff00:0:110,10.0.0.9]:7\",10.0.0.1-10.0.0.9,active,1000,0,0,0,12.345,3,0.0000";
        assert_eq!(lines[1], first);
        assert!(lines[3].ends_with(",4000,0,3000,0,12.345,3,0.7500"), "{}", lines[3]);
        assert!(lines[4].ends_with(",1000,0,1000,0,12.345,3,0.2500"), "{}", lines[4]);
        log.write(&[("1-ff00:0:110,10.0.0.9", vec![path(1, 5000)])], began + Duration::from_secs(3)).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("3.000,\"1-ff00:0:110,10.0.0.9\",\"[1-ff00:"), "{text}");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let failed = PathLog::create(Path::new("/nowhere/at/all.csv")).unwrap_err();
        assert!(failed.to_string().contains("/nowhere/at/all.csv"), "{failed}");
    }
}
