//! What a transfer leaves behind, read back: the JSON events and the path log of `anabranch get` and `share`.
//!
//! Both readers take a file as far as it is written, line by line, so the same code follows a transfer that runs and reads
//! one that has ended. What does not parse is an error that names file and line: a report must not be drawn from half a log.

pub mod events;
pub mod path_log;

pub use events::{Candidate, Change, Choice, Decision, Event, EventReader, Side};
pub use path_log::{PathLog, PathLogReader, Point, Series};

/// A log that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The system does not let us.
    #[error("cannot read {file}: {error}")]
    Unreadable {
        /// Which file.
        file: String,
        /// Why.
        error: std::io::Error,
    },
    /// A line is not what its program writes.
    #[error("{file}, line {line}: {problem}")]
    Malformed {
        /// Which file, or whose output.
        file: String,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
}

impl LogError {
    fn malformed(file: &str, line: usize, problem: impl Into<String>) -> Self {
        Self::Malformed { file: file.to_owned(), line, problem: problem.into() }
    }
}

/// At most this much of a text that is not understood goes into an error.
const QUOTED_CHARS_MAX: usize = 60;

/// As much of a text as an error should show.
fn quote(text: &str) -> String {
    let mut quoted: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    if quoted.len() < text.len() {
        quoted.push_str("...");
    }
    quoted
}
