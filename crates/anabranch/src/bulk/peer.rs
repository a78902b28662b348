//! One other end: what is known of it, what was said of it, and how it ended.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anabranch_paths::Endpoint;
use anabranch_swarm::bulk::{DestinationError, PathProgress, Progress, SourceError, TransferError};
use anabranch_transport::NodeId;
use serde_json::{Value, json};

use crate::exit::Code;
use crate::units;

/// How long an end that was never reached is tried ...
const NEVER_MET_MAX: Duration = Duration::from_secs(30);
/// ... and one that was lost: a machine that starts again is back by then.
const LOST_MAX: Duration = Duration::from_secs(600);
/// How long an end may take to answer before somebody is told that it does not.
const SILENCE_MAX: Duration = Duration::from_millis(900);
/// Causes of waiting that are told of one end; more are the same again.
const CAUSES_MAX: usize = 64;

/// How the transfer with a peer ended.
#[derive(Debug)]
pub(crate) enum End {
    /// All of it is there, and signed for.
    Finished,
    /// It will not be there.
    Failed(Code, String),
}

/// One other end.
#[derive(Debug)]
pub(crate) struct Peer {
    /// As the user wrote it, or where it called from.
    pub label: String,
    /// Where it is.
    pub address: Option<Endpoint>,
    /// What it proved.
    pub key: Option<NodeId>,
    /// What goes to it, or comes from it.
    pub names: Vec<String>,
    /// Bytes of content, and of these, there from before.
    pub offered: Option<(u64, u64)>,
    /// When the content was offered first.
    pub started: Option<Instant>,
    /// How far it is.
    pub progress: Option<Progress>,
    /// How it ended.
    pub end: Option<End>,
    /// Nothing moves since then, and why.
    waiting: Option<(Instant, String)>,
    /// It is room on our disk that is waited for.
    lacks_room: bool,
    told: HashSet<String>,
}

impl Peer {
    /// One that is just being called, or that just called.
    pub(crate) fn new(label: String, now: Instant) -> Self {
        Self {
            label,
            address: None,
            key: None,
            names: Vec::new(),
            offered: None,
            started: None,
            progress: None,
            end: None,
            waiting: Some((now, "it does not answer".to_owned())),
            lacks_room: false,
            told: HashSet::new(),
        }
    }

    /// Nothing moves, for want of room on our disk or for another reason; whether that is news.
    pub(crate) fn waits(&mut self, why: &str, lacks_room: bool, now: Instant) -> bool {
        // Who waited for us is not the one who is lost since then.
        let is_same = std::mem::replace(&mut self.lacks_room, lacks_room) == lacks_room;
        let since = self.waiting.as_ref().filter(|_| is_same).map_or(now, |(since, _)| *since);
        self.waiting = Some((since, why.to_owned()));
        self.told.len() < CAUSES_MAX && self.told.insert(why.to_owned())
    }

    /// It moves. Whether that is to be told, as somebody heard that it did not.
    pub(crate) fn moves(&mut self) -> bool {
        (self.waiting, self.lacks_room) = (None, false);
        !std::mem::take(&mut self.told).is_empty()
    }

    /// Whether nothing moves.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.is_some() && self.end.is_none()
    }

    /// Whether it was called a while ago, and nobody was told that it does not answer.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        let since = self.waiting.as_ref().filter(|_| self.end.is_none() && self.key.is_none() && self.told.is_empty());
        since.is_some_and(|(since, _)| now.saturating_duration_since(*since) >= SILENCE_MAX)
    }

    /// Why it is given up, if it has been waited for as long as the user has patience. Room on our own disk is the user's to make: without
    /// a word of his it is waited for however long that takes.
    pub(crate) fn gives_up(&self, patience: Option<Duration>, now: Instant) -> Option<String> {
        let (since, why) = self.waiting.as_ref().filter(|_| self.end.is_none())?;
        if patience.is_none() && self.lacks_room {
            return None;
        }
        let max = patience.unwrap_or(if self.key.is_none() { NEVER_MET_MAX } else { LOST_MAX });
        (now.saturating_duration_since(*since) >= max)
            .then(|| format!("{why}; given up after {} (--give-up)", units::duration(max)))
    }

    /// What a line calls the content.
    pub(crate) fn content(&self) -> String {
        match self.names.as_slice() {
            [] => "nothing".to_owned(),
            [one] => one.clone(),
            [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        }
    }

    /// The progress line.
    pub(crate) fn line(&self, is_sender: bool) -> String {
        let (way, label) = (if is_sender { "to" } else { "from" }, &self.label);
        if let Some((_, why)) = self.waiting.as_ref() {
            return format!("waiting  {way} {label}: {why}");
        }
        let Some(progress) = &self.progress else { return format!("begins  {way} {label}") };
        let percent = units::percent(progress.done_bytes, progress.content_len);
        let left = progress.content_len.saturating_sub(progress.done_bytes);
        let eta = match progress.rate_bytes {
            _ if left == 0 => String::new(),
            0 => "  ETA -".to_owned(),
            rate => format!("  ETA {}", units::duration(Duration::from_secs(left / rate))),
        };
        let up = progress.paths.iter().filter(|path| path.is_up).count();
        let round = progress.round.filter(|round| *round > 1).map_or(String::new(), |round| format!("  round {round}"));
        format!(
            "{percent:5.1} %  {} of {}  {:>10}  {}{eta}{round}  {way} {label}",
            units::bytes(progress.done_bytes),
            units::bytes(progress.content_len),
            units::rate(progress.rate_bytes),
            units::count(up, "path"),
        )
    }

    /// A line for each path, where there is more than one.
    pub(crate) fn path_lines(&self) -> Vec<String> {
        let Some(progress) = self.progress.as_ref().filter(|progress| progress.paths.len() > 1) else {
            return Vec::new();
        };
        let total: u64 = progress.paths.iter().map(|path| path.rate_bytes).sum();
        let line = |path: &PathProgress| {
            let rtt = path.rtt.map_or("-".to_owned(), |rtt| format!("{:.1} ms", rtt.as_secs_f64() * 1e3));
            let lost = path.packets.map_or(String::new(), |(_, lost)| format!("  lost {lost:<6}"));
            format!(
                "  {:2}  {:4}  {:>11}  {:5.1} %  RTT {rtt:>9}{lost}  {}",
                path.path,
                if path.is_up { "up" } else { "down" },
                units::rate(path.rate_bytes),
                units::percent(path.rate_bytes, total.max(1)),
                path.way.name,
            )
        };
        progress.paths.iter().map(line).collect()
    }
}

/// The fields of a `progress` event.
pub(crate) fn progress_json(progress: &Progress) -> Value {
    let total: u64 = progress.paths.iter().map(|path| path.rate_bytes).sum();
    let path = |path: &PathProgress| {
        json!({
            "path": path.path,
            "way": &*path.way.name,
            "remote": path.way.remote.to_string(),
            "state": if path.is_up { "active" } else { "down" },
            "rate": path.rate_bytes,
            "bytes": path.bytes,
            "packets": path.packets.map(|(sent, _)| sent),
            "lost": path.packets.map(|(_, lost)| lost),
            "rtt_ms": path.rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            "share": if total > 0 { path.rate_bytes as f64 / total as f64 } else { 0.0 },
        })
    };
    json!({
        "bytes_done": progress.done_bytes,
        "bytes_total": progress.content_len,
        "bytes_verified": progress.verified_bytes,
        "round": progress.round,
        "rate": progress.rate_bytes,
        "paths": progress.paths.iter().map(path).collect::<Vec<_>>(),
    })
}

/// What the program ends with because of such an error.
pub(crate) fn code(error: &TransferError) -> Code {
    match error {
        TransferError::Source(SourceError::Changed(_)) | TransferError::Receipt => Code::Incomplete,
        TransferError::Source(SourceError::Io { .. }) => Code::Input,
        // Standard output: whoever closed it needs no word about it.
        TransferError::Destination(DestinationError::Io { source, .. }) if source.kind() == ErrorKind::BrokenPipe => {
            Code::StdoutClosed
        }
        TransferError::Destination(DestinationError::Full(_) | DestinationError::Io { .. })
        | TransferError::Refused(_) => Code::Storage,
        TransferError::Cancelled => Code::Interrupted,
        TransferError::Misbehaviour(_)
        | TransferError::Ended { .. }
        | TransferError::Rejected(_)
        | TransferError::WrongKey { .. }
        | TransferError::Unreachable(_) => Code::Network,
    }
}

/// What programs know such an error by.
pub(crate) fn kind(error: &TransferError) -> &'static str {
    match error {
        TransferError::Source(SourceError::Changed(_)) => "changed",
        TransferError::Source(SourceError::Io { .. }) => "source",
        TransferError::Destination(_) => "storage",
        TransferError::Misbehaviour(_) => "protocol",
        TransferError::Ended { .. } => "ended",
        TransferError::Rejected(_) => "rejected",
        TransferError::WrongKey { .. } => "key",
        TransferError::Unreachable(_) => "unreachable",
        TransferError::Refused(_) => "refused",
        TransferError::Receipt => "receipt",
        TransferError::Cancelled => "interrupted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_was_met_is_waited_for_longer_than_one_that_was_not() {
        let now = Instant::now();
        let mut peer = Peer::new("a".to_owned(), now);
        assert!(peer.gives_up(None, now + NEVER_MET_MAX - Duration::from_millis(1)).is_none());
        assert!(peer.gives_up(None, now + NEVER_MET_MAX).unwrap().contains("after 30s"));
        peer.key = Some(NodeId::from_bytes([1; 32]));
        assert!(!peer.moves() && peer.gives_up(None, now + LOST_MAX).is_none());
        assert!(peer.waits("nobody", false, now) && !peer.waits("nobody", false, now + Duration::from_secs(9)));
        assert!(peer.waits("the link is down", false, now));
        assert!(peer.gives_up(None, now + LOST_MAX - Duration::from_millis(1)).is_none());
        assert!(peer.gives_up(None, now + LOST_MAX).unwrap().starts_with("the link is down; given up after 10m00s"));
        assert!(peer.gives_up(Some(Duration::from_secs(5)), now + Duration::from_secs(5)).is_some());
        assert!(peer.moves() && !peer.moves() && peer.waits("nobody", false, now));
    }

    #[test]
    fn room_on_our_own_disk_is_waited_for_however_long_that_takes() {
        let now = Instant::now();
        let mut peer = Peer::new("a".to_owned(), now);
        peer.key = Some(NodeId::from_bytes([1; 32]));
        let day = now + Duration::from_secs(86_400);
        assert!(!peer.moves() && peer.waits("no room", true, now) && !peer.waits("no room", true, day));
        assert!(peer.gives_up(None, day).is_none());
        assert!(peer.gives_up(Some(Duration::from_secs(60)), day).is_some());
        // Who is lost then is waited for from then on.
        assert!(peer.waits("nobody", false, day) && peer.gives_up(None, day + Duration::from_secs(1)).is_none());
        assert!(peer.gives_up(None, day + LOST_MAX).is_some());
    }
}
