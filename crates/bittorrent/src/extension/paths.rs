//! Which paths to use ("ab_paths", ours alone): a downloader wishes for paths, an uploader grants some, both say which they use.
//!
//! The uploader chooses, as it knows all its downloaders (paper "BitTorrent over SCION", section IV.B): it dials back over what
//! it chose, or, where it cannot dial, grants the list for the downloader to dial. A path is named by the interfaces it passes,
//! in order from the downloader to the uploader, which both ends can look up anew whatever the age of their hop fields. What
//! is in use is told, so that others do not choose a bottleneck that is taken (the paper's future work).
//!
//! The message is a dictionary; a key that is left out leaves what it stands for as it was:
//!
//! | key | what |
//! | --- | --- |
//! | `grants` | list of paths: the sender uploads over these, and no longer over those it granted before |
//! | `used` | list of paths: over these the sender moves content at present, with whomever |
//! | `wish` | dictionary: `paths` (0 takes the wish back), `dial` (1: the sender can be dialled), `selector` (a name, optional) |
//!
//! A path is a string of ten bytes an interface: ISD-AS number, then interface number, big-endian. [`PathTalk`] is one side of the
//! talk with one peer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anabranch_content::bencode::{DictBuilder, ListBuilder, Value};
use anabranch_paths::select::Selector;
use anabranch_paths::{Interface, IsdAs};

use super::{ExtensionError, parse_dict};

/// Interfaces of one path: two for each of the links between 64 hop fields, which is all that a SCION header holds.
pub const INTERFACES_MAX: usize = 126;
/// Paths granted to one peer: as many connections as one may have.
pub const GRANTS_MAX: usize = crate::torrent::PATHS_PER_PEER_MAX;
/// Paths in use that are told of, and remembered of each peer.
pub const USED_MAX: usize = 32;
/// How long a path counts as used after its peer said that it is not any more: as long as it takes until slots have gone round.
const USED_FOR: Duration = Duration::from_secs(20);
/// Between two messages that we send, so that many small decisions become one.
pub const PATHS_INTERVAL: Duration = PATHS_RECEIVE_INTERVAL;
/// The same where only what we use is other than before: that changes all the time, and is heeded slowly.
const USED_INTERVAL: Duration = Duration::from_secs(5);
/// Messages that a peer may send at once, and ...
pub const PATHS_BURST_MAX: u32 = 16;
/// ... the time after which it may send another one.
pub const PATHS_RECEIVE_INTERVAL: Duration = Duration::from_millis(500);
/// Bytes of one interface.
const INTERFACE_LEN: usize = 10;
/// The name in errors.
const MESSAGE: &str = "ab_paths";

/// The interfaces that a path passes, in order: what names it between two hosts, whatever the age of its hop fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceSequence(Vec<Interface>);

impl InterfaceSequence {
    /// `None` for what is no path between two ASes: none, an odd number, or more than [`INTERFACES_MAX`] interfaces, or one
    /// numbered 0.
    pub fn new(interfaces: Vec<Interface>) -> Option<Self> {
        let good = (2..=INTERFACES_MAX).contains(&interfaces.len()) && interfaces.len().is_multiple_of(2);
        (good && interfaces.iter().all(|interface| interface.id != 0)).then_some(Self(interfaces))
    }

    /// The interfaces.
    pub fn interfaces(&self) -> &[Interface] {
        &self.0
    }

    /// The same path, seen from its other end.
    pub fn reversed(&self) -> Self {
        Self(self.0.iter().rev().copied().collect())
    }

    /// The bytes by which messages name it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let entry = |interface: &Interface| {
            let (isd_as, id) = (interface.isd_as.to_u64().to_be_bytes(), interface.id.to_be_bytes());
            isd_as.into_iter().chain(id)
        };
        self.0.iter().flat_map(entry).collect()
    }

    /// Reads them; `None` where they name no path.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (entries, rest) = bytes.as_chunks::<INTERFACE_LEN>();
        if !rest.is_empty() || entries.len() > INTERFACES_MAX {
            return None;
        }
        let entry = |[a, b, c, d, e, f, g, h, i, j]: &[u8; INTERFACE_LEN]| Interface {
            isd_as: IsdAs::from_u64(u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h])),
            id: u16::from_be_bytes([*i, *j]),
        };
        Self::new(entries.iter().map(entry).collect())
    }
}

/// What a downloader wants of an uploader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wish {
    /// Paths in all, those it has among them: at most [`GRANTS_MAX`].
    pub paths: u8,
    /// The uploader can dial the downloader.
    pub dial: bool,
    /// How it would choose, where the uploader has no mind of its own.
    pub selector: Option<Selector>,
}

/// An ab_paths message. `None`: as it was.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PathsMessage {
    /// What the sender wants of the receiver; `Some(None)`: nothing any more.
    pub wish: Option<Option<Wish>>,
    /// What the sender lets the receiver dial.
    pub grants: Option<Vec<InterfaceSequence>>,
    /// What the sender uses.
    pub used: Option<Vec<InterfaceSequence>>,
}

impl PathsMessage {
    /// The extended message's payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut dict = DictBuilder::new();
        for (key, paths) in [("grants", &self.grants), ("used", &self.used)] {
            let Some(paths) = paths else { continue };
            let mut list = ListBuilder::new();
            for path in paths {
                list.bytes(path.encode());
            }
            dict.list(key, &list);
        }
        if let Some(wish) = &self.wish {
            let mut entry = DictBuilder::new();
            entry.int("paths", wish.map_or(0, |wish| wish.paths));
            if let Some(wish) = wish {
                entry.int("dial", u8::from(wish.dial));
                if let Some(selector) = wish.selector {
                    entry.bytes("selector", selector.name());
                }
            }
            dict.dict("wish", &entry);
        }
        dict.encode()
    }

    /// Reads a payload. Lists are cut to [`GRANTS_MAX`] and [`USED_MAX`], what is no path is left out of them, and parts of
    /// the wrong type count as left out.
    ///
    /// # Errors
    /// Where the payload is no bencoded dictionary.
    pub fn parse(payload: &[u8]) -> Result<Self, ExtensionError> {
        let tree = parse_dict(payload, MESSAGE)?;
        let dict = tree.root();
        let list = |key: &str, max: usize| {
            let entries = dict.get(key)?.as_list()?;
            Some(entries.filter_map(|path| InterfaceSequence::parse(path.as_bytes()?)).take(max).collect())
        };
        Ok(Self {
            wish: dict.get("wish").and_then(parse_wish),
            grants: list("grants", GRANTS_MAX),
            used: list("used", USED_MAX),
        })
    }
}

fn parse_wish(wish: Value<'_>) -> Option<Option<Wish>> {
    let paths = wish.get("paths")?.as_uint()?.min(GRANTS_MAX as u64) as u8;
    let dial = wish.get("dial").and_then(|dial| dial.as_uint()).is_some_and(|dial| dial != 0);
    let selector = wish.get("selector").and_then(|name| name.as_str()?.parse().ok());
    Some((paths > 0).then_some(Wish { paths, dial, selector }))
}

/// What changed on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PathsNews {
    /// [`PathTalk::their_wish`].
    pub wish: bool,
    /// [`PathTalk::granted`].
    pub granted: bool,
    /// [`PathTalk::their_used`].
    pub used: bool,
}

/// The talk with one peer: what each side said, and what is to be said.
#[derive(Clone, Debug, Default)]
pub struct PathTalk {
    ours: Said,
    theirs: Said,
    /// What the peer used until then, and uses no more.
    rested: VecDeque<(InterfaceSequence, Instant)>,
    /// What changed on our side since the last message.
    unsaid: PathsNews,
    sent: Option<Instant>,
    /// The same of what we use; `None` where it is to be told at once.
    used_sent: Option<Instant>,
    /// Messages that the peer may send at once: how many it used up of [`PATHS_BURST_MAX`], and as of when.
    spent: u32,
    spent_at: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
struct Said {
    wish: Option<Wish>,
    grants: Vec<InterfaceSequence>,
    used: Vec<InterfaceSequence>,
}

impl PathTalk {
    /// What we want of the peer; `None`: nothing, and what it granted is void.
    pub fn wish(&mut self, wish: Option<Wish>) {
        let wish = wish.filter(|wish| wish.paths > 0);
        let wish = wish.map(|wish| Wish { paths: wish.paths.min(GRANTS_MAX as u8), ..wish });
        self.unsaid.wish |= wish != self.ours.wish;
        self.ours.wish = wish;
        let kept = wish.map_or(0, |wish| usize::from(wish.paths));
        self.theirs.grants.truncate(kept);
    }

    /// What we grant the peer, best first: cut to what it wished for. Answers how many that are.
    pub fn grant(&mut self, mut paths: Vec<InterfaceSequence>) -> usize {
        paths.truncate(self.theirs.wish.map_or(0, |wish| usize::from(wish.paths)));
        self.unsaid.granted |= paths != self.ours.grants;
        self.ours.grants = paths;
        self.ours.grants.len()
    }

    /// What we use; at most [`USED_MAX`] are told of.
    pub fn using(&mut self, paths: &[InterfaceSequence]) {
        let told = &paths[..paths.len().min(USED_MAX)];
        if self.ours.used != told {
            self.unsaid.used = true;
            self.ours.used = told.to_vec();
        }
    }

    /// The message that is due, if any.
    pub fn next(&mut self, now: Instant) -> Option<PathsMessage> {
        if self.unsaid == PathsNews::default() || self.deadline().is_some_and(|deadline| now < deadline) {
            return None;
        }
        let is_early = self.used_sent.is_some_and(|sent| now < sent + USED_INTERVAL);
        if is_early && !self.unsaid.wish && !self.unsaid.granted {
            return None;
        }
        let PathsNews { wish, granted, used } = std::mem::take(&mut self.unsaid);
        self.sent = Some(now);
        if used {
            self.used_sent = Some(now);
        }
        Some(PathsMessage {
            wish: wish.then_some(self.ours.wish),
            grants: granted.then(|| self.ours.grants.clone()),
            used: used.then(|| self.ours.used.clone()),
        })
    }

    /// When [`PathTalk::next`] may have something again; `None` before the first message.
    pub fn deadline(&self) -> Option<Instant> {
        self.sent.map(|sent| sent + PATHS_INTERVAL)
    }

    /// The connection that the talk went over is gone, and what was said last may be lost: it is said again over another.
    pub fn repeat(&mut self) {
        let Said { wish, grants, used } = &self.ours;
        self.unsaid.wish |= wish.is_some();
        self.unsaid.granted |= !grants.is_empty();
        self.unsaid.used |= !used.is_empty();
        self.used_sent = None;
    }

    /// A message of the peer came. Messages that come too fast are left out, and so are grants that we did not wish for.
    pub fn on_message(&mut self, message: PathsMessage, now: Instant) -> PathsNews {
        let mut news = PathsNews::default();
        if !self.may_receive(now) {
            return news;
        }
        if let Some(wish) = message.wish {
            news.wish = wish != self.theirs.wish;
            self.theirs.wish = wish;
            // A smaller wish takes back what was granted beyond it; both sides know without a word.
            self.ours.grants.truncate(wish.map_or(0, |wish| usize::from(wish.paths)));
        }
        if let (Some(mut grants), Some(wish)) = (message.grants, self.ours.wish) {
            grants.truncate(usize::from(wish.paths));
            news.granted = grants != self.theirs.grants;
            self.theirs.grants = grants;
        }
        if let Some(mut used) = message.used {
            used.truncate(USED_MAX);
            news.used = used != self.theirs.used;
            self.rested.retain(|(path, _)| !used.contains(path));
            let before = std::mem::replace(&mut self.theirs.used, used);
            self.rested
                .extend(before.into_iter().filter(|path| !self.theirs.used.contains(path)).map(|path| (path, now)));
            let beyond = self.rested.len().saturating_sub(USED_MAX);
            self.rested.drain(..beyond);
        }
        news
    }

    fn may_receive(&mut self, now: Instant) -> bool {
        let since = self.spent_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let forgiven = (since.as_nanos() / PATHS_RECEIVE_INTERVAL.as_nanos()) as u32;
        if forgiven > 0 || self.spent_at.is_none() {
            self.spent = self.spent.saturating_sub(forgiven);
            self.spent_at = Some(now);
        }
        let may = self.spent < PATHS_BURST_MAX;
        self.spent += u32::from(may);
        may
    }

    /// What the peer wants of us.
    pub fn their_wish(&self) -> Option<Wish> {
        self.theirs.wish
    }

    /// What the peer grants us, best first.
    pub fn granted(&self) -> &[InterfaceSequence] {
        &self.theirs.grants
    }

    /// What the peer uses.
    pub fn their_used(&self) -> &[InterfaceSequence] {
        &self.theirs.used
    }

    /// What it uses, or used until lately: who pauses will often go on, and whoever chooses paths by what others do at the moment never
    /// settles.
    pub fn their_used_lately(&self, now: Instant) -> impl Iterator<Item = &InterfaceSequence> {
        let is_recent = move |at: Instant| now.saturating_duration_since(at) < USED_FOR;
        let rested = self.rested.iter().filter(move |(_, at)| is_recent(*at)).map(|(path, _)| path);
        self.theirs.used.iter().chain(rested)
    }
}

#[cfg(test)]
impl InterfaceSequence {
    /// From AS 1-110 over one link to AS 1-111, for tests.
    pub(crate) fn of_link(id: u16) -> Self {
        let interface = |asn| Interface { isd_as: IsdAs::new(1, asn).unwrap(), id };
        Self::new(vec![interface(110), interface(111)]).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WISH: Wish = Wish { paths: 3, dial: true, selector: Some(Selector::Disjoint) };

    fn path(number: u16, links: usize) -> InterfaceSequence {
        let interface = |id| Interface { isd_as: IsdAs::new(1, 110 + u64::from(id)).unwrap(), id };
        InterfaceSequence::new((0..links * 2).map(|at| interface(number + at as u16)).collect()).unwrap()
    }

    fn paths(count: u16) -> Vec<InterfaceSequence> {
        (1..=count).map(|number| path(number * 200, 2)).collect()
    }

    #[test]
    fn what_was_used_until_lately_counts_a_while() {
        let (mut talk, now) = (PathTalk::default(), Instant::now());
        let using = |count: u16| PathsMessage { used: Some(paths(count)), ..PathsMessage::default() };
        let lately = |talk: &PathTalk, now| talk.their_used_lately(now).cloned().collect::<Vec<_>>();
        talk.on_message(using(3), now);
        talk.on_message(using(1), now);
        assert_eq!((talk.their_used(), lately(&talk, now)), (&paths(1)[..], paths(3)));
        let later = now + USED_FOR / 2;
        talk.on_message(using(2), later);
        assert_eq!(lately(&talk, later), paths(3));
        assert_eq!(lately(&talk, now + USED_FOR), paths(2));
        // However many one changes among.
        for count in 0..USED_MAX as u16 {
            talk.on_message(using(count), later + PATHS_RECEIVE_INTERVAL * u32::from(count));
        }
        assert!(talk.rested.len() <= USED_MAX);
    }

    #[test]
    fn what_is_no_path_is_none() {
        let interface = Interface { isd_as: IsdAs::new(1, 110).unwrap(), id: 1 };
        for (count, good) in
            [(0, false), (1, false), (2, true), (3, false), (INTERFACES_MAX, true), (INTERFACES_MAX + 2, false)]
        {
            assert_eq!(InterfaceSequence::new(vec![interface; count]).is_some(), good, "{count}");
        }
        assert_eq!(InterfaceSequence::new(vec![interface, Interface { id: 0, ..interface }]), None);
        assert_eq!(InterfaceSequence::parse(&[1; 19]), None);
    }

    #[test]
    fn a_message_of_every_limit_is_read_and_what_is_beyond_is_cut() {
        let long =
            |count: usize| (0..count).map(|number| path(number as u16 + 1, INTERFACES_MAX / 2)).collect::<Vec<_>>();
        for more in [0, 1] {
            let message = PathsMessage {
                wish: Some(Some(Wish { paths: (GRANTS_MAX + more) as u8, ..WISH })),
                grants: Some(long(GRANTS_MAX + more)),
                used: Some(long(USED_MAX + more)),
            };
            let bytes = message.encode();
            assert!(bytes.len() < 128 * 1024, "{}", bytes.len());
            let parsed = PathsMessage::parse(&bytes).unwrap();
            assert_eq!(parsed.grants.as_ref().map(Vec::len), Some(GRANTS_MAX));
            assert_eq!(parsed.used.as_ref().map(Vec::len), Some(USED_MAX));
            assert_eq!(parsed.wish.flatten().map(|wish| usize::from(wish.paths)), Some(GRANTS_MAX));
        }
    }

    #[test]
    fn parts_of_the_wrong_kind_count_as_left_out() {
        let parsed = PathsMessage::parse(b"d6:grantsi3e4:usedl3:abci4ee4:wishd4:dialleee").unwrap();
        assert_eq!(parsed, PathsMessage { used: Some(Vec::new()), ..PathsMessage::default() });
        let parsed = PathsMessage::parse(b"d4:wishd5:pathsi2e8:selector4:bestee").unwrap();
        assert_eq!(parsed.wish, Some(Some(Wish { paths: 2, dial: false, selector: None })));
        assert!(PathsMessage::parse(b"le").is_err());
    }

    /// What one says, the other hears.
    fn exchange(from: &mut PathTalk, to: &mut PathTalk, now: Instant) -> PathsNews {
        from.next(now)
            .map_or(PathsNews::default(), |message| to.on_message(PathsMessage::parse(&message.encode()).unwrap(), now))
    }

    #[test]
    fn a_wish_is_granted_and_taken_back() {
        let (mut down, mut up, mut now) = (PathTalk::default(), PathTalk::default(), Instant::now());
        assert_eq!(up.grant(paths(5)), 0, "nobody wished");
        down.wish(Some(WISH));
        assert_eq!(exchange(&mut down, &mut up, now), PathsNews { wish: true, ..PathsNews::default() });
        assert_eq!(up.their_wish(), Some(WISH));
        assert_eq!(up.grant(paths(5)), 3);
        up.using(&paths(2));
        assert_eq!(exchange(&mut up, &mut down, now), PathsNews { wish: false, granted: true, used: true });
        assert_eq!((down.granted(), down.their_used()), (&paths(3)[..], &paths(2)[..]));
        now += PATHS_INTERVAL;
        down.wish(Some(Wish { paths: 1, ..WISH }));
        exchange(&mut down, &mut up, now);
        assert_eq!((down.granted().len(), up.ours.grants.len()), (1, 1));
        now += PATHS_INTERVAL;
        down.wish(None);
        exchange(&mut down, &mut up, now);
        assert_eq!((up.their_wish(), down.granted().len(), up.ours.grants.len()), (None, 0, 0));
    }

    #[test]
    fn nothing_is_said_twice_or_too_often_and_a_new_connection_hears_all() {
        let (mut talk, now) = (PathTalk::default(), Instant::now());
        assert_eq!(talk.next(now), None);
        talk.wish(Some(WISH));
        assert!(talk.next(now).is_some());
        talk.wish(Some(WISH));
        assert_eq!(talk.next(now + PATHS_INTERVAL), None);
        talk.using(&paths(USED_MAX as u16 + 1));
        talk.using(&paths(USED_MAX as u16 + 1));
        assert_eq!(talk.next(now + PATHS_INTERVAL - Duration::from_millis(1)), None);
        let message = talk.next(now + PATHS_INTERVAL).unwrap();
        assert_eq!((message.wish, message.used.map(|used| used.len())), (None, Some(USED_MAX)));
        talk.using(&paths(2));
        assert_eq!(talk.next(now + USED_INTERVAL), None);
        assert!(talk.next(now + PATHS_INTERVAL + USED_INTERVAL).is_some_and(|message| message.used.is_some()));
        talk.repeat();
        let again = talk.next(now + 2 * PATHS_INTERVAL + USED_INTERVAL).unwrap();
        assert!(again.wish == Some(Some(WISH)) && again.used.is_some() && again.grants.is_none());
    }

    #[test]
    fn grants_nobody_wished_for_and_messages_that_come_too_fast_are_left_out() {
        let (mut talk, now) = (PathTalk::default(), Instant::now());
        let grant = |count| PathsMessage { grants: Some(paths(count)), ..PathsMessage::default() };
        assert_eq!(talk.on_message(grant(2), now), PathsNews::default());
        talk.wish(Some(WISH));
        for count in 1..PATHS_BURST_MAX as u16 {
            talk.on_message(grant(1 + count % 2), now);
        }
        assert!(!talk.on_message(grant(3), now + PATHS_RECEIVE_INTERVAL - Duration::from_millis(1)).granted);
        assert!(talk.on_message(grant(3), now + PATHS_RECEIVE_INTERVAL).granted);
        assert!(!talk.on_message(grant(1), now + PATHS_RECEIVE_INTERVAL).granted);
    }

    proptest! {
        #[test]
        fn messages_round_trip(
            wish in proptest::option::of(proptest::option::of((1..=GRANTS_MAX as u8, any::<bool>(), 0..8usize))),
            lists: [Option<Vec<Vec<(u64, u16)>>>; 2],
        ) {
            let wish = wish.map(|wish| wish.map(|(paths, dial, at)| Wish { paths, dial, selector: Selector::ALL.get(at).copied() }));
            let list = |list: Vec<Vec<(u64, u16)>>, max: usize| {
                let entry = |(isd_as, id): (u64, u16)| Interface { isd_as: IsdAs::from_u64(isd_as), id };
                let paths = list.into_iter().map(|path| path.into_iter().map(entry).collect());
                paths.filter_map(InterfaceSequence::new).take(max).collect::<Vec<_>>()
            };
            let [grants, used] = lists;
            let message = PathsMessage {
                wish, grants: grants.map(|paths| list(paths, GRANTS_MAX)), used: used.map(|paths| list(paths, USED_MAX)),
            };
            prop_assert_eq!(PathsMessage::parse(&message.encode()), Ok(message));
        }

        /// Whatever is said in whatever order, nobody holds more than was wished for.
        #[test]
        fn two_talks_agree(events in proptest::collection::vec((0..5u8, 0..20u16), 0..60)) {
            let (mut down, mut up, mut now) = (PathTalk::default(), PathTalk::default(), Instant::now());
            for (action, number) in events {
                match action {
                    0 => down.wish(Some(Wish { paths: number as u8, ..WISH })),
                    1 => drop(up.grant(paths(number))),
                    2 => up.using(&paths(number)),
                    3 => down.repeat(),
                    _ => now += PATHS_INTERVAL / 3,
                }
                exchange(&mut down, &mut up, now);
                exchange(&mut up, &mut down, now);
                let wished = down.ours.wish.map_or(0, |wish| usize::from(wish.paths));
                prop_assert!(down.granted().len() <= wished);
            }
            for _ in 0..2 {
                now += USED_INTERVAL;
                exchange(&mut down, &mut up, now);
                exchange(&mut up, &mut down, now);
            }
            prop_assert_eq!(up.their_wish(), down.ours.wish);
            prop_assert_eq!(down.their_used(), &up.ours.used[..]);
            prop_assert!(up.ours.grants.len() <= down.ours.wish.map_or(0, |wish| usize::from(wish.paths)));
            prop_assert!(up.ours.grants.iter().zip(down.granted()).all(|(ours, theirs)| ours == theirs));
        }
    }
}
