//! Standard output and standard error, for people and for programs.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::exit::{Code, Failure};

/// How much to say on standard error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chatter {
    /// Errors only.
    pub quiet: bool,
    /// Peers and trackers too.
    pub verbose: bool,
}

impl Chatter {
    /// Whether progress is drawn: only where somebody looks on.
    pub(crate) fn draws(self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// Something worth knowing, unless nobody wants to.
    pub(crate) fn note(self, text: impl fmt::Display) {
        if !self.quiet {
            stderr_line(format_args!("{}", one_line(&text.to_string())));
        }
    }
}

/// Says why the program ends.
pub(crate) fn complain(failure: &Failure) {
    if failure.code != Code::StdoutClosed {
        stderr_line(format_args!("error: {}", one_line(&failure.to_string())));
        failure.details.iter().for_each(|detail| stderr_line(format_args!("  {}", one_line(detail))));
    }
}

fn stderr_line(text: fmt::Arguments<'_>) {
    // Where even standard error is closed, there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Names and reasons come from peers and files: what could move the cursor, break the line or show a name as another is replaced.
pub(crate) fn one_line(text: &str) -> String {
    let hides = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}');
    text.chars().map(|c| if c.is_control() || hides(c) { '\u{fffd}' } else { c }).collect()
}

/// A line on standard output.
pub(crate) fn line(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| Failure::stdout(&error))
}

/// Bytes on standard output.
pub(crate) fn raw(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| Failure::stdout(&error))
}

/// An event, as a line of JSON on standard output: `event`, `time`, then `fields`.
pub(crate) fn json_event(event: &str, fields: Value) -> Result<(), Failure> {
    let mut object = Map::new();
    object.insert("event".into(), event.into());
    object.insert("time".into(), unix_seconds(SystemTime::now()).into());
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    line(Value::Object(object))
}

/// Seconds since 1970, to the millisecond.
pub(crate) fn unix_seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as f64 / 1000.0
}
