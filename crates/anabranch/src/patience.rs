//! How long `get` waits for what is missing, what it says meanwhile, and when it gives up.
//!
//! A content has no source left when nobody is connected, no tracker can be asked, the DHT is off or knows no way in, no address that others named is being tried,
//! and every peer that the user or the link named is in trouble. Then:
//!
//! - at once, where waiting cannot help: nobody is named, or what the user asked for cannot be (no SCION network, no path there
//!   for some seconds, a policy that forbids all of them);
//! - after [`LONELY_MAX`], where a named peer may just be starting, or somebody may know where we listen;
//! - never, where nobody is named and the user chose the port that others are to dial.
//!
//! With `--give-up TIME` only time without progress counts, but for what cannot be at all. Trackers, even those that fail,
//! may bring somebody at any time: without `--give-up` they are waited for.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anabranch_swarm::{FailureKind, Progress, Sources, Trouble, WebSeed};

use crate::units;

/// Between the last source's end and giving up: a peer that is started again, or late, is back by then.
pub(crate) const LONELY_MAX: Duration = Duration::from_secs(30);
/// Nobody is known at all: so long what happens at the start may take.
const SETTLING: Duration = Duration::from_secs(1);
/// Without progress for so long, it is said what is waited for.
const STALLED: Duration = Duration::from_secs(10);
/// Peers whose trouble is named in one message.
const NAMED_MAX: usize = 3;

/// What the command line says about waiting.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// Give up without progress for so long.
    pub give_up: Option<Duration>,
    /// Somebody may know where we listen: it was given or printed.
    pub is_known: bool,
    /// The user chose a port for others to dial.
    pub awaits_callers: bool,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Wait.
    Wait,
    /// Wait, and say for what: it was not said before.
    Tell(String),
    /// Nothing more will come.
    GiveUp(FailureKind, String),
}

/// The waiting of one content.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience {
    /// What was there when something came last, and when that was.
    moved: Option<(Amounts, Instant)>,
    /// Since when no source is left.
    alone_since: Option<Instant>,
    was_connected: bool,
    told: BTreeSet<Stall>,
    paused_for: Option<String>,
}

/// What there is of a content at a moment.
#[derive(Clone, Copy, Debug)]
struct Amounts {
    /// Bytes verified, and bytes wanted once that is known.
    known: (u64, Option<u64>),
    /// Bytes received that were not in vain so far: a peer that sends rubbish brings nothing.
    received: u64,
}

impl Amounts {
    fn of(progress: &Progress) -> Self {
        let stats = &progress.stats;
        let received = stats.downloaded_bytes.saturating_sub(stats.wasted_bytes);
        Self { known: (progress.bytes_done, progress.bytes_total), received }
    }

    /// Whether something came since `before`. What turned out to be in vain is taken off, and is no news when it comes again.
    fn has_come_since(&self, before: &Self) -> bool {
        self.known != before.known || self.received > before.received
    }
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stall {
    Callers,
    Trackers,
    Dht,
    NobodyHasIt,
    NobodyServes,
}

impl Patience {
    /// Storage is out of order, and why; or it works again.
    pub(crate) fn paused(&mut self, reason: Option<String>) {
        self.paused_for = reason;
    }

    /// Looks at a content that is not finished.
    pub(crate) fn look(&mut self, sources: &Sources, progress: &Progress, rules: &Rules, now: Instant) -> Verdict {
        let amounts = Amounts::of(progress);
        let is_at_work = !sources.is_waiting && !progress.paused && self.paused_for.is_none();
        let since = match self.moved {
            Some((before, since)) if !amounts.has_come_since(&before) && !is_at_work => since,
            _ => now,
        };
        self.moved = Some((amounts, since));
        self.was_connected |= sources.connections > 0;
        let still_for = now.saturating_duration_since(since);
        if let Some(limit) = rules.give_up.filter(|limit| still_for >= *limit) {
            let (kind, why) = match &self.paused_for {
                Some(reason) => (FailureKind::Storage, reason.clone()),
                None => (FailureKind::Sources, explain(sources)),
            };
            return Verdict::GiveUp(kind, format!("nothing came for {}: {why}", units::duration(limit)));
        }
        if !sources.is_waiting {
            self.alone_since = None;
            return Verdict::Wait;
        }
        if self.is_over(sources, rules, now) {
            return Verdict::GiveUp(FailureKind::Sources, format!("no source is left: {}", explain(sources)));
        }
        let stall = stall(sources, rules).filter(|_| still_for >= STALLED);
        match stall.filter(|stall| self.told.insert(*stall)) {
            Some(stall) => Verdict::Tell(stall.text(sources)),
            None => Verdict::Wait,
        }
    }

    /// Whether no source is left, and none can come.
    fn is_over(&mut self, sources: &Sources, rules: &Rules, now: Instant) -> bool {
        let named = &sources.named;
        let serves = |seed: &WebSeed| seed.trouble.is_none();
        let is_sure = sources.connections > 0 || sources.trackers > 0 || sources.dht || sources.heard_of > 0;
        let is_sure = is_sure || sources.web_seeds.iter().any(serves);
        if is_sure || named.iter().any(|peer| peer.trouble.is_none()) {
            self.alone_since = None;
            return false;
        }
        let lonely_for = now.saturating_duration_since(*self.alone_since.get_or_insert(now));
        // Who says how long to wait knows that what cannot be now may be then: a network whose paths come and go.
        if rules.give_up.is_some() {
            return false;
        }
        let is_final = |trouble: &Option<Trouble>| trouble.as_ref().is_some_and(|trouble| trouble.is_final);
        let mut troubles = named.iter().map(|peer| &peer.trouble);
        let mut of_seeds = sources.web_seeds.iter().map(|seed| &seed.trouble);
        let may_come_back = of_seeds.any(|trouble| !is_final(trouble));
        if !named.is_empty() && troubles.all(is_final) && !may_come_back {
            return true;
        }
        if named.is_empty() && rules.awaits_callers {
            return false;
        }
        let somebody_may_come = !named.is_empty() || may_come_back || rules.is_known || self.was_connected;
        lonely_for >= if somebody_may_come { LONELY_MAX } else { SETTLING }
    }
}

fn stall(sources: &Sources, rules: &Rules) -> Option<Stall> {
    match sources.connections {
        0 if sources.trackers > 0 => Some(Stall::Trackers),
        0 if sources.dht => Some(Stall::Dht),
        0 if sources.named.is_empty() && rules.awaits_callers => Some(Stall::Callers),
        0 => None,
        _ if !sources.is_any_wanted => Some(Stall::NobodyHasIt),
        _ if !sources.is_any_serving => Some(Stall::NobodyServes),
        _ => None,
    }
}

impl Stall {
    fn text(self, sources: &Sources) -> String {
        let connected = count(sources.connections, "peer is connected", "peers are connected");
        match self {
            Self::Callers => "nobody is known to fetch from: waiting for peers that connect to us".to_owned(),
            Self::Trackers => format!(
                "no peer is connected: waiting for {} to name some",
                count(sources.trackers, "tracker", "trackers")
            ),
            Self::Dht => "no peer is connected: looking for some in the DHT".to_owned(),
            Self::NobodyHasIt => format!("{connected}, and none has what is missing: waiting for others"),
            Self::NobodyServes => format!("{connected}, and none serves us at the moment: waiting for their turn"),
        }
    }
}

/// Why nothing comes.
fn explain(sources: &Sources) -> String {
    let troubles = sources.named.iter().filter_map(|peer| Some((peer.address, peer.trouble.as_ref()?)));
    let texts = troubles.map(|(address, trouble)| format!("{address}: {}", trouble.reason));
    let of_seeds = sources.web_seeds.iter().filter_map(|seed| Some((&seed.url, seed.trouble.as_ref()?)));
    let texts = texts.chain(of_seeds.map(|(url, trouble)| format!("{url}: {}", trouble.reason)));
    let texts: Vec<String> = texts.collect();
    if let Some(stall) = stall(sources, &Rules::default()).filter(|_| sources.connections > 0 || texts.is_empty()) {
        return stall.text(sources);
    }
    if let (true, Some(peer)) = (texts.is_empty(), sources.named.first()) {
        return format!(
            "no answer yet from {}; name others with --peer or --tracker, or wait longer with --give-up",
            peer.address
        );
    }
    if texts.is_empty() {
        return "nobody is known to fetch from: give --peer or --tracker, or --listen with a port that others dial"
            .to_owned();
    }
    let more = match texts.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!(
        "{}{more}; name others with --peer or --tracker, or wait longer with --give-up",
        texts[..texts.len().min(NAMED_MAX)].join("; ")
    )
}

fn count(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use anabranch_swarm::NamedPeer;

    use super::*;

    fn progress(bytes_done: u64) -> Progress {
        Progress {
            name: None,
            bytes_done,
            bytes_total: Some(100),
            pieces_have: 0,
            pieces_total: 1,
            stats: Default::default(),
            finished: false,
            paused: false,
        }
    }

    fn waiting() -> Sources {
        Sources { is_waiting: true, ..Sources::default() }
    }

    fn named(now: Instant, troubles: &[Option<bool>]) -> Sources {
        let peer = |(port, is_final): (usize, &Option<bool>)| NamedPeer {
            address: format!("127.0.0.1:{}", port + 1).parse().unwrap(),
            trouble: is_final.map(|is_final| Trouble { reason: "refused".to_owned(), since: now, is_final }),
        };
        Sources { named: troubles.iter().enumerate().map(peer).collect(), ..waiting() }
    }

    fn with_web_seeds(now: Instant, troubles: &[Option<bool>]) -> Sources {
        let seed = |is_final: &Option<bool>| WebSeed {
            url: "http://w.example".to_owned(),
            trouble: is_final.map(|is_final| Trouble { reason: "refused".to_owned(), since: now, is_final }),
        };
        Sources { web_seeds: troubles.iter().map(seed).collect(), ..waiting() }
    }

    /// When it gives up, looking four times a second for an hour.
    fn ends_after(sources: &Sources, rules: &Rules) -> Option<Duration> {
        let (mut patience, start) = (Patience::default(), Instant::now());
        let mut looks = (0..4 * 3600).map(|quarter| Duration::from_millis(quarter * 250));
        looks.find(|after| {
            matches!(
                patience.look(sources, &progress(1), rules, start + *after),
                Verdict::GiveUp(FailureKind::Sources, _)
            )
        })
    }

    #[test]
    fn what_cannot_be_ends_at_once_and_what_may_come_is_waited_for() {
        let now = Instant::now();
        let known = Rules { is_known: true, ..Rules::default() };
        let callers = Rules { awaits_callers: true, ..known };
        for (sources, rules, ends) in [
            (waiting(), Rules::default(), Some(SETTLING)),
            (waiting(), known, Some(LONELY_MAX)),
            (waiting(), callers, None),
            (named(now, &[Some(true)]), callers, Some(Duration::ZERO)),
            (named(now, &[Some(true), Some(true)]), known, Some(Duration::ZERO)),
            (named(now, &[Some(true), Some(false)]), Rules::default(), Some(LONELY_MAX)),
            (named(now, &[Some(false)]), callers, Some(LONELY_MAX)),
            (named(now, &[Some(false), None]), known, None),
            (Sources { trackers: 1, ..named(now, &[Some(true)]) }, Rules::default(), None),
            (Sources { heard_of: 1, ..waiting() }, Rules::default(), None),
            (with_web_seeds(now, &[None]), Rules::default(), None),
            (with_web_seeds(now, &[Some(false), Some(true)]), Rules::default(), Some(LONELY_MAX)),
            (with_web_seeds(now, &[Some(true)]), Rules::default(), Some(SETTLING)),
            (
                Sources { named: named(now, &[Some(true)]).named, ..with_web_seeds(now, &[Some(false)]) },
                Rules::default(),
                Some(LONELY_MAX),
            ),
            (Sources { dht: true, ..named(now, &[Some(true)]) }, Rules::default(), None),
            (Sources { connections: 1, ..named(now, &[Some(false)]) }, Rules::default(), None),
            (Sources { is_waiting: false, ..waiting() }, Rules::default(), None),
        ] {
            assert_eq!(ends_after(&sources, &rules), ends, "{sources:?} {rules:?}");
        }
    }

    #[test]
    fn the_users_time_goes_before_ours_whatever_seems_impossible_now() {
        let now = Instant::now();
        let rules = |seconds| Rules { give_up: Some(Duration::from_secs(seconds)), ..Rules::default() };
        for (sources, seconds, ends) in [
            (named(now, &[Some(false)]), 3, Some(3)),
            (named(now, &[Some(false)]), 600, Some(600)),
            (named(now, &[Some(true)]), 600, Some(600)),
            (Sources { trackers: 2, connections: 1, ..waiting() }, 60, Some(60)),
            (Sources { is_waiting: false, ..waiting() }, 60, None),
        ] {
            let ended = ends_after(&sources, &rules(seconds));
            assert_eq!(ended, ends.map(Duration::from_secs), "{sources:?} {seconds}");
        }
    }

    #[test]
    fn progress_begins_the_wait_anew_and_a_pause_is_storages_fault() {
        let (mut patience, start) = (Patience::default(), Instant::now());
        let rules = Rules { give_up: Some(Duration::from_secs(10)), ..Rules::default() };
        let sources = Sources { connections: 1, is_any_wanted: true, is_any_serving: true, ..waiting() };
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..30 {
            assert_eq!(patience.look(&sources, &progress(second / 9), &rules, at(second)), Verdict::Wait);
        }
        patience.paused(Some("the disk is full".to_owned()));
        let paused = Sources { is_waiting: false, ..sources };
        assert_eq!(patience.look(&paused, &progress(3), &rules, at(36)), Verdict::Wait);
        let verdict = patience.look(&paused, &progress(3), &rules, at(37));
        let said = "nothing came for 10s: the disk is full".to_owned();
        assert_eq!(verdict, Verdict::GiveUp(FailureKind::Storage, said));
    }

    /// A second of rubbish after the other is as good as silence; what comes between counts.
    #[test]
    fn what_comes_in_vain_is_no_progress() {
        let (mut patience, start) = (Patience::default(), Instant::now());
        let rules = Rules { give_up: Some(Duration::from_secs(10)), ..Rules::default() };
        let sources = Sources { connections: 1, is_any_wanted: true, is_any_serving: true, ..waiting() };
        let mut look = |second, downloaded, wasted| {
            let mut progress = progress(0);
            (progress.stats.downloaded_bytes, progress.stats.wasted_bytes) = (downloaded, wasted);
            patience.look(&sources, &progress, &rules, start + Duration::from_secs(second))
        };
        for second in 0..8 {
            // Each block is received first, and found to be wrong then.
            let verdict = look(second, second * 1000, second.saturating_sub(1) * 1000);
            assert_eq!(verdict, Verdict::Wait, "{second}");
        }
        assert_eq!(look(8, 9000, 7000), Verdict::Wait, "a block that is good");
        for second in 9..18 {
            assert_eq!(look(second, second * 1000, (second - 1) * 1000), Verdict::Wait, "{second}");
        }
        assert!(matches!(look(18, 18_000, 17_000), Verdict::GiveUp(FailureKind::Sources, _)));
    }

    #[test]
    fn each_cause_of_a_stall_is_told_once() {
        let (mut patience, start) = (Patience::default(), Instant::now());
        let mut look = |sources: &Sources, seconds| {
            patience.look(sources, &progress(0), &Rules::default(), start + Duration::from_secs(seconds))
        };
        let lonely = Sources { trackers: 2, ..waiting() };
        assert_eq!((look(&lonely, 0), look(&lonely, 9)), (Verdict::Wait, Verdict::Wait));
        let Verdict::Tell(text) = look(&lonely, 10) else { panic!("nothing is told") };
        assert_eq!(text, "no peer is connected: waiting for 2 trackers to name some");
        let idle = Sources { connections: 1, ..lonely.clone() };
        assert!(
            matches!(look(&idle, 11), Verdict::Tell(text) if text.starts_with("1 peer is connected, and none has"))
        );
        let choked = Sources { is_any_wanted: true, ..idle.clone() };
        assert!(matches!(look(&choked, 12), Verdict::Tell(text) if text.contains("none serves us")));
        for sources in [lonely, idle, choked] {
            assert_eq!(look(&sources, 13), Verdict::Wait);
        }
    }

    #[test]
    fn what_is_said_at_the_end_names_the_peers() {
        let text = explain(&named(Instant::now(), &[Some(false); NAMED_MAX + 2]));
        assert!(
            text.starts_with("127.0.0.1:1: refused; 127.0.0.1:2: refused") && text.contains("and 2 more"),
            "{text}"
        );
        // Nothing is wrong with it so far, but that there was no time to answer.
        assert!(explain(&named(Instant::now(), &[None])).starts_with("no answer yet from 127.0.0.1:1;"));
        assert!(explain(&waiting()).starts_with("nobody is known"));
    }
}
