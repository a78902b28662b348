//! `ping`: asks a SCION host for answers, over one path.

use std::fmt;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anabranch_paths::ScionPath;
use serde_json::{Value, json};

use crate::cli::PingFlags;
use crate::exit::{Code, Failure};
use crate::path_list::PathList;

/// Answers to `--interactive` that name no path, before the program gives up.
const WRONG_ANSWERS_MAX: usize = 16;
/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4096;

/// Runs the command.
pub fn run(_flags: PingFlags) -> Result<Code, Failure> {
    Err(Failure::new(Code::Failed, "paths are not looked up yet"))
}

/// Lists the paths and asks which one to take. What is asked goes to `screen`, so that results stay apart from it.
fn ask(list: &PathList, answers: impl BufRead, mut screen: impl Write) -> Result<Arc<ScionPath>, Failure> {
    let shown = |error: std::io::Error| Failure::new(Code::Failed, format!("cannot ask which path to take: {error}"));
    let mut answers = answers.take(ANSWER_BYTES_MAX * WRONG_ANSWERS_MAX as u64);
    write!(screen, "{}", list.text(SystemTime::now())).map_err(shown)?;
    for _ in 0..WRONG_ANSWERS_MAX {
        write!(screen, "path (number or id): ").and_then(|()| screen.flush()).map_err(shown)?;
        let mut answer = String::new();
        if answers.read_line(&mut answer).map_err(shown)? == 0 {
            break;
        }
        match list.choose(&answer) {
            Ok(path) => return Ok(path.clone()),
            Err(error) => writeln!(screen, "{error}").map_err(shown)?,
        }
    }
    Err(Failure::usage("no path was chosen: answer with a number of the list, or give --path ID"))
}

/// What came of all requests so far.
#[derive(Clone, Debug, Default)]
struct Summary {
    sent: u64,
    received: u64,
    rtt_min: Option<Duration>,
    rtt_max: Duration,
    rtt_sum: Duration,
}

impl Summary {
    /// A request went out, and was answered after `rtt` if at all.
    fn add(&mut self, rtt: Option<Duration>) {
        self.sent += 1;
        if let Some(rtt) = rtt {
            self.received += 1;
            self.rtt_min = Some(self.rtt_min.map_or(rtt, |min| min.min(rtt)));
            self.rtt_max = self.rtt_max.max(rtt);
            self.rtt_sum += rtt;
        }
    }

    fn lost_percent(&self) -> f64 {
        (self.sent - self.received) as f64 * 100.0 / self.sent.max(1) as f64
    }

    /// Smallest, mean and largest round-trip time, in milliseconds.
    fn rtt_ms(&self) -> Option<[f64; 3]> {
        let ms = |rtt: Duration| rtt.as_secs_f64() * 1e3;
        self.rtt_min.map(|min| [ms(min), ms(self.rtt_sum) / self.received as f64, ms(self.rtt_max)])
    }

    fn json(&self) -> Value {
        let [min, mean, max] = self.rtt_ms().map_or([None; 3], |rtts| rtts.map(Some));
        json!({
            "sent": self.sent,
            "received": self.received,
            "rtt_ms_min": min,
            "rtt_ms_mean": mean,
            "rtt_ms_max": max,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sent, {} answered, {:.0} % lost", self.sent, self.received, self.lost_percent())?;
        match self.rtt_ms() {
            Some([min, mean, max]) => write!(f, "; {min:.3} ms at least, {mean:.3} ms on average, {max:.3} ms at most"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path_list::tests::path;

    fn list() -> PathList {
        let paths = ["1-1 1>2 1-2", "1-1 3>4 1-2"].map(|text| Arc::new(path(text)));
        PathList::new(paths[0].source, paths[0].destination, paths.into())
    }

    #[test]
    fn the_user_is_asked_until_an_answer_names_a_path() {
        let list = list();
        let mut screen = Vec::new();
        let chosen = ask(&list, "7\nwest\n1\n".as_bytes(), &mut screen).unwrap();
        assert_eq!(chosen, list.paths()[1]);
        let screen = String::from_utf8(screen).unwrap();
        assert!(screen.starts_with("2 paths from 1-1 to 1-2"), "{screen}");
        assert!(screen.contains("`west` is no path id"), "{screen}");
    }

    #[test]
    fn asking_ends() {
        let ended = ask(&list(), "west\n".as_bytes(), Vec::new()).unwrap_err();
        assert!(ended.to_string().contains("--path ID"));
        let mut screen = Vec::new();
        let endless = "west\n".repeat(WRONG_ANSWERS_MAX + 1) + "0\n";
        assert!(ask(&list(), endless.as_bytes(), &mut screen).is_err());
        assert_eq!(String::from_utf8(screen).unwrap().matches("path (").count(), WRONG_ANSWERS_MAX);
    }

    #[test]
    fn the_summary_adds_up() {
        let mut summary = Summary::default();
        assert_eq!(summary.to_string(), "0 sent, 0 answered, 0 % lost");
        for rtt in [Some(20), None, Some(10), Some(30)] {
            summary.add(rtt.map(Duration::from_millis));
        }
        let text = "4 sent, 3 answered, 25 % lost; 10.000 ms at least, 20.000 ms on average, 30.000 ms at most";
        assert_eq!(summary.to_string(), text);
        assert_eq!(summary.json()["rtt_ms_mean"], 20.0);
        assert_eq!(Summary::default().json()["rtt_ms_min"], Value::Null);
    }
}
