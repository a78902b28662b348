//! Progress on a terminal: lines that are drawn over and over in one place.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use crate::output::{Chatter, one_line};
use crate::units;

/// Columns where the terminal does not say how many it has.
const COLUMNS_DEFAULT: usize = 80;
/// How often a meter is drawn.
const METER_EVERY: Duration = Duration::from_millis(100);

/// Lines at the bottom of a terminal.
#[derive(Debug, Default)]
pub(crate) struct StatusLines {
    drawn: usize,
}

impl StatusLines {
    /// Draws `lines` in place of those before.
    pub(crate) fn draw(&mut self, lines: &[String]) {
        let columns = terminal_size::terminal_size_of(io::stderr())
            .map_or(COLUMNS_DEFAULT, |(terminal_size::Width(columns), _)| usize::from(columns));
        let mut text = self.erasing();
        for line in lines {
            text.push_str(fit(&one_line(line), columns.saturating_sub(1)));
            text.push('\n');
        }
        self.drawn = lines.len();
        put(&text);
    }

    /// Takes the lines away, so that something else can be said.
    pub(crate) fn clear(&mut self) {
        put(&self.erasing());
        self.drawn = 0;
    }

    fn erasing(&self) -> String {
        // ECMA-48: CUU moves up, ED erases from there to the end of the screen.
        if self.drawn > 0 { format!("\x1b[{}A\r\x1b[J", self.drawn) } else { String::new() }
    }
}

fn put(text: &str) {
    // A terminal that went away needs no progress.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// As much of `text` as fits in `columns`. East Asian letters and emoji take two.
fn fit(text: &str, columns: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += if u32::from(*c) >= 0x1100 { 2 } else { 1 };
        used > columns
    });
    end.map_or(text, |(end, _)| &text[..end])
}

/// Progress of something that calls back: hashing, verifying.
#[derive(Debug)]
pub(crate) struct Meter {
    what: &'static str,
    lines: Option<StatusLines>,
    started: Instant,
    drawn: Option<Instant>,
}

impl Meter {
    /// A meter that says `what` is going on, where somebody looks on.
    pub(crate) fn new(chatter: Chatter, what: &'static str) -> Self {
        let lines = chatter.draws().then(StatusLines::default);
        Self { what, lines, started: Instant::now(), drawn: None }
    }

    /// So many bytes are done.
    pub(crate) fn show(&mut self, done: u64, total: u64) {
        let Some(lines) = &mut self.lines else { return };
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < METER_EVERY) {
            return;
        }
        self.drawn = Some(Instant::now());
        let rate = done as f64 / self.started.elapsed().as_secs_f64().max(0.001);
        let (percent, total) = (units::percent(done, total), units::bytes(total));
        lines.draw(&[format!("{} {percent:5.1} % of {total}  {}", self.what, units::rate(rate as u64))]);
    }

    /// Takes it away.
    pub(crate) fn clear(&mut self) {
        if let Some(lines) = &mut self.lines {
            lines.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_their_columns() {
        assert_eq!(fit("abcdef", 6), "abcdef");
        assert_eq!(fit("abcdef", 5), "abcde");
        assert_eq!(fit("日本語", 5), "日本");
        assert_eq!(fit("", 0), "");
    }
}
