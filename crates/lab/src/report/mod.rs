//! Reports: data in, one HTML page out.
//!
//! The page needs nothing else: styles, charts and maps are in it, drawn here as SVG; it asks no network for anything, is
//! legible in light and in dark, printed, and without JavaScript. The same data make the same page to the byte. Text of
//! any origin is escaped. However long the logs, charts have a bounded number of points.

mod chart;
mod layout;
mod map;
pub(crate) mod markup;
mod panels;
mod path_labels;
mod rates;
mod results;

use crate::network::{Bound, Network};
use crate::run::{Candidate, Change, Decision, PathLog, Series};
use crate::text;

use markup::{escape, put};
use path_labels::Book;

/// Above this share of work, processors were in each other's way.
const BUSY_MAX: f64 = 0.9;

/// Everything that a report is about.
#[derive(Clone, Debug)]
pub struct Report {
    /// The network that all runs went over.
    pub network: Network,
    /// What it can carry from the sender to the receiver.
    pub bound: Option<Bound>,
    /// Bytes of the file that every run fetched.
    pub content_bytes: u64,
    /// The runs, in their order. The first one is what the others are compared with.
    pub runs: Vec<Run>,
    /// Where and when all this happened: names and values.
    pub facts: Vec<(String, String)>,
}

/// One transfer.
#[derive(Clone, Debug)]
pub struct Run {
    /// What it is called: its selector.
    pub name: String,
    /// How it chose paths, in a few words.
    pub about: String,
    /// What was typed to make it happen.
    pub commands: Vec<String>,
    /// Paths to one peer that it might use.
    pub paths_max: usize,
    /// When the fetching program was started, in seconds since 1970.
    pub began: f64,
    /// From the start of that program until the file was there and verified.
    pub seconds: f64,
    /// Bytes received for nothing.
    pub wasted: u64,
    /// What the receiver logged of every path.
    pub log: PathLog,
    /// What was chosen, and why, in the order of time.
    pub decisions: Vec<Decision>,
    /// What became of the paths, as the receiver tells.
    pub changes: Vec<Change>,
    /// What the routers counted on every link, in the order of the network: what left the first and the second end.
    pub links: Vec<[LinkUse; 2]>,
    /// Share of the machine's processors that were at work meanwhile, where the system says so.
    pub busy: Option<f64>,
    /// It still runs: all this is as of now.
    pub is_going: bool,
}

/// What a router counted on one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkUse {
    /// Bytes of SCION packets, headers included.
    pub bytes: u64,
    /// Packets that the link's queue had no room for.
    pub dropped: u64,
}

impl Run {
    /// Bits per second of the file.
    pub fn rate(&self, content_bytes: u64) -> f64 {
        self.arrived(content_bytes) as f64 * 8.0 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Bytes of the file that arrived.
    fn arrived(&self, content_bytes: u64) -> u64 {
        let so_far = || self.log.series.iter().map(Series::bytes).sum::<u64>().min(content_bytes);
        if self.is_going { so_far() } else { content_bytes }
    }

    /// Bits per second that came into the receiver's AS, headers included.
    pub fn wire_rate(&self, network: &Network) -> f64 {
        let into = network.lines.iter().zip(&self.links).flat_map(|(line, used)| {
            [0, 1].map(|end| if line.ends[1 - end].isd_as == network.receiver { used[end].bytes } else { 0 })
        });
        into.sum::<u64>() as f64 * 8.0 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// What was chosen for the longest part of the run, by the side that chose.
    pub fn decision(&self) -> Option<&Decision> {
        let done = self.began + self.seconds;
        let chose: Vec<&Decision> = self.decisions.iter().filter(|decision| decision.selector.is_some()).collect();
        let held = chose.iter().enumerate().map(|(at, decision)| {
            let until = chose.get(at + 1).map_or(done, |next| next.time.min(done));
            (until - decision.time, *decision)
        });
        let longest = held.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, decision)| decision);
        longest.or(self.decisions.last())
    }

    /// The paths that carried content.
    pub fn used(&self) -> impl Iterator<Item = &str> {
        self.log.series.iter().filter(|series| series.bytes() > 0).map(|series| series.path.as_str())
    }

    /// What is known of a path.
    pub fn candidate(&self, path: &str) -> Option<&Candidate> {
        self.decisions.iter().rev().flat_map(|decision| &decision.candidates).find(|candidate| candidate.path == path)
    }

    /// What the paths that were used can carry together, in bits per second: at full links they give way evenly.
    pub fn limit(&self, network: &Network) -> Option<f64> {
        let mut used: Vec<&str> = self.used().collect();
        used.sort_unstable();
        used.dedup();
        let paths: Option<Vec<_>> = used.iter().map(|path| Some(self.candidate(path)?.interfaces.clone())).collect();
        let rates = network.fair_rates(&paths?)?;
        Some(rates.iter().sum()).filter(|sum| *sum > 0.0)
    }
}

impl Report {
    /// The page.
    pub fn html(&self) -> String {
        self.page("")
    }

    /// The page as it is served while runs go on: it asks every second for what is new, where it was found.
    pub fn followed_html(&self) -> String {
        self.page(include_str!("follow.js"))
    }

    fn page(&self, further_script: &str) -> String {
        let book = Book::new(self);
        let mut page = String::with_capacity(256 << 10);
        page.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
        put!(page, "<title>Anabranch: one file over {}</title>\n", escape(&self.network.name));
        put!(page, "<style>\n{}{}</style>\n</head>\n<body>\n<main>\n", include_str!("style.css"), self.panel_styles());
        self.head(&mut page);
        results::write(&mut page, self);
        rates::write(&mut page, self, &book);
        panels::write(&mut page, self, &book);
        self.method(&mut page);
        put!(
            page,
            "</main>\n<div id=\"tip\"></div>\n<script>\n{}{further_script}</script>\n</body>\n</html>\n",
            include_str!("script.js")
        );
        page
    }

    /// What came out, as a table for a terminal.
    pub fn text(&self) -> String {
        results::plain(self)
    }

    /// The runs in which the machine had hardly anything left, so that it may have been the limit and not the network.
    pub fn starved(&self) -> Vec<&Run> {
        self.runs.iter().filter(|run| run.busy.is_some_and(|busy| busy > BUSY_MAX)).collect()
    }

    /// How often the first run's rate a run reached.
    pub fn ratio(&self, run: &Run) -> f64 {
        let first = self.runs.first().map_or(0.0, |first| first.rate(self.content_bytes));
        run.rate(self.content_bytes) / first.max(f64::MIN_POSITIVE)
    }

    /// Which panel each choice shows; as many rules as there are runs.
    fn panel_styles(&self) -> String {
        let mut rules = String::new();
        for at in 0..self.runs.len() {
            put!(rules, "#run-{at}:checked ~ .panel-{at} {{ display: block; }}\n");
            put!(rules, "#run-{at}:checked ~ .tabs label[for=run-{at}] ");
            rules.push_str(
                "{ background: var(--tab); color: var(--text); font-weight: 600; box-shadow: var(--shadow); }\n",
            );
        }
        rules
    }

    fn head(&self, page: &mut String) {
        let ways = match self.runs.len() {
            1 => "one way to choose paths".to_owned(),
            2 => "two ways to choose paths".to_owned(),
            3 => "three ways to choose paths".to_owned(),
            count => format!("{count} ways to choose paths"),
        };
        put!(page, "<header>\n<h1>One file, one network, {ways}</h1>\n<p class=\"lede\">");
        let host = |isd_as| {
            let node = self.network.nodes.iter().find(|node| node.isd_as == isd_as);
            node.and_then(|node| node.host.clone()).unwrap_or_else(|| text::short_as(isd_as))
        };
        let (sender, receiver) = (host(self.network.sender), host(self.network.receiver));
        put!(
            page,
            "{} fetches {} from {} across a SCION network of {} ASes",
            escape(receiver),
            text::mib(self.content_bytes),
            escape(sender),
            self.network.nodes.len()
        );
        let offered = self.runs.iter().filter_map(|run| Some(run.decision()?.candidates.len())).max().unwrap_or(0);
        if offered > 1 {
            put!(page, " that offers {offered} paths");
        }
        page.push_str(". ");
        if let Some(going) = self.runs.iter().find(|run| run.is_going) {
            let percent = going.arrived(self.content_bytes) as f64 * 100.0 / self.content_bytes.max(1) as f64;
            let (name, seconds) = (escape(&going.name), text::seconds(going.seconds));
            put!(page, "<b>Under way:</b> <code>{name}</code> has {percent:.0} % of the file after {seconds}.");
        } else if let [first, .., last] = &self.runs[..] {
            put!(page, "<code>{}</code> takes <b>{}</b>: ", escape(&last.name), text::seconds(last.seconds));
            put!(page, "<b>{:.1} times</b> the rate of one path", first.seconds / last.seconds.max(f64::MIN_POSITIVE));
            if let [.., naive, _] = &self.runs[1..] {
                let ratio = naive.seconds / last.seconds.max(f64::MIN_POSITIVE);
                put!(
                    page,
                    ", and {ratio:.1} times that of as many connections over <code>{}</code> paths",
                    escape(&naive.name)
                );
            }
            page.push('.');
        }
        page.push_str("</p>\n</header>\n");
    }

    fn method(&self, page: &mut String) {
        page.push_str("<section>\n<h2>How this was measured</h2>\n");
        page.push_str(
            "<p class=\"sub\">Every number on this page comes from this run: times, paths, reasons and bytes per path from what \
             <code>anabranch get</code> logged, loads of links from the counters of the routers. Time runs from the start of \
             that command until the last byte was verified. Rates of the file are its size over that time; rates of links are \
             of SCION packets with all headers, so a full link carries a tenth less of the file. Routers, links, \
             <code>share</code> and <code>get</code> ran on this one machine; the links are limited in software.</p>\n<dl>\n",
        );
        for (name, value) in &self.facts {
            put!(page, "<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(value));
        }
        page.push_str("</dl>\n");
        for run in &self.runs {
            put!(
                page,
                "<h3>{}</h3>\n<pre tabindex=\"0\">{}</pre>\n",
                escape(&run.name),
                escape(run.commands.join("\n"))
            );
        }
        page.push_str("</section>\n");
    }
}

#[cfg(test)]
pub(crate) mod tests;
