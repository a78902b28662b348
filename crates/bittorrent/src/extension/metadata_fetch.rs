//! Getting the info dictionary from peers when only its hash is known (BEP 9).
//!
//! Peers may lie in two ways: about the size and about the bytes. Each size that is claimed gets an [`Candidate`] of its own,
//! so a false one delays nobody. A finished attempt is checked against the info-hashes; where it fails and one peer supplied
//! it all, that peer is to blame, and where several did, it starts again in [copies](METADATA_COPIES_MAX), each of one peer
//! alone, side by side, until one of them is right.
//!
//! Others say nothing. Who was asked and is [mute](METADATA_PATIENCE) counts for nothing in how many are asked: twice as many are,
//! and twice as many again, so that thirty of them cost seconds.
//!
//! Some clients (rtorrent) keep one answer of several requests that come together, and drop the rest. So a peer that leaves
//! some of several unanswered is asked for one piece at a time from then on.

use std::time::{Duration, Instant};

use anabranch_content::hash::{sha1, sha256};
use anabranch_content::info::InfoHashes;
use thiserror::Error;

use crate::ConnId;

use super::ut_metadata::{METADATA_LEN_MAX, METADATA_PIECE_LEN, metadata_piece_count};

/// Pieces asked of one peer at once: 128 KiB in flight move 1 MiB of metadata in eight round trips; more than a few
/// are dropped by clients that guard themselves against floods.
pub const METADATA_REQUESTS_PER_PEER_MAX: usize = 8;

/// Peers that may be asked for the same piece at once, beside as many as are mute and as many mute ones.
pub const METADATA_REQUESTS_PER_PIECE_MAX: usize = 2;

/// Peers that metadata is fetched from at once; further ones are not needed.
pub const METADATA_SOURCES_MAX: usize = 64;

/// Bytes of unverified metadata held in all. Attempts of few and talkative peers go first.
pub const METADATA_HELD_LEN_MAX: usize = 2 * METADATA_LEN_MAX as usize;

/// How long a peer has for one piece.
pub const METADATA_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a peer may be silent with several requests before it is asked for one at a time: it may have dropped the others.
/// Shorter than [`METADATA_REQUEST_TIMEOUT`], as nothing is lost where it is only slow: what comes late is taken.
pub(super) const METADATA_SILENCE: Duration = Duration::from_secs(3);

/// How long a peer that never answered anything may take before it counts as mute: longer than a round trip and a busy disk.
pub(super) const METADATA_PATIENCE: Duration = Duration::from_secs(2);

/// Copies that are fetched side by side, each of one peer, once it is known that somebody lies; those of mute peers do not count.
pub(super) const METADATA_COPIES_MAX: usize = 8;

/// How long a peer that refused, or let time run out, is not asked again.
pub const METADATA_PAUSE: Duration = Duration::from_secs(20);

/// What came of a piece of metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataProgress {
    /// Nothing new, or more is needed.
    Going,
    /// The info dictionary, verified. The fetch is over.
    Complete(Vec<u8>),
    /// All pieces came and their hash is wrong; the fetch goes on from the start. Where `blamed` is a peer, it alone
    /// supplied them: it lied and is no longer asked.
    Failed {
        /// The liar.
        blamed: Option<ConnId>,
    },
}

/// A peer broke BEP 9; it is no longer asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MetadataMisbehaved {
    /// Its handshake and its data messages differ.
    #[error("peer claimed metadata of {claimed} bytes and then of {found}")]
    Size {
        /// By its extension handshake.
        claimed: u32,
        /// By its data message.
        found: u64,
    },
    /// A piece that does not exist or has another length.
    #[error("peer sent {found} bytes as piece {piece} of metadata where {expected} belong")]
    Length {
        /// Piece of the metadata.
        piece: u32,
        /// Bytes that came.
        found: usize,
        /// Bytes that belong there; 0 past the end.
        expected: usize,
    },
}

/// Assembles the info dictionary of one content.
#[derive(Debug)]
pub struct MetadataFetch {
    hashes: InfoHashes,
    sources: Vec<Source>,
    attempts: Vec<Candidate>,
    requests: Vec<Request>,
}

/// A peer that has the metadata.
#[derive(Debug)]
struct Source {
    conn: ConnId,
    size: u32,
    paused_until: Option<Instant>,
    /// Pieces that it is asked for at once.
    requests_max: usize,
    /// When it was asked while nothing was under way, or answered last: what its silence is measured from.
    heard: Option<Instant>,
    /// When it was asked first, and whether it ever answered.
    asked_first: Option<Instant>,
    has_answered: bool,
}

impl Source {
    /// It was asked, and says nothing for the time being.
    fn is_silent(&self, now: Instant) -> bool {
        self.paused_until.is_some() || self.heard.is_some_and(|at| now >= at + METADATA_PATIENCE)
    }

    fn is_mute(&self, now: Instant) -> bool {
        !self.has_answered && self.asked_first.is_some_and(|at| now >= at + METADATA_PATIENCE)
    }
}

/// What was asked and not yet answered.
#[derive(Debug)]
struct Request {
    conn: ConnId,
    piece: u32,
    deadline: Instant,
}

/// The metadata of one claimed size, or a copy of it from one peer. Lives while a peer claims that size.
#[derive(Debug)]
struct Candidate {
    size: u32,
    /// By piece: who sent it, and what.
    pieces: Vec<Option<(ConnId, Box<[u8]>)>>,
    held_len: usize,
    /// It is a copy, of this peer alone.
    solo: Option<ConnId>,
    /// It failed, and nobody knows whose fault that was: nothing is asked for it any more but copies.
    is_split: bool,
}

impl MetadataFetch {
    /// Nothing fetched yet. What comes has to match every hash that `hashes` has.
    pub fn new(hashes: InfoHashes) -> Self {
        Self { hashes, sources: Vec::new(), attempts: Vec::new(), requests: Vec::new() }
    }

    /// A peer's extension handshake named ut_metadata and `metadata_size`. Answers whether the peer is of use: not where the
    /// size is 0 or above [`METADATA_LEN_MAX`], or where there are [`METADATA_SOURCES_MAX`] already and none of them is mute; it may
    /// be offered again.
    pub fn add_peer(&mut self, conn: ConnId, metadata_size: u64, now: Instant) -> bool {
        let Some(size) = u32::try_from(metadata_size).ok().filter(|size| (1..=METADATA_LEN_MAX).contains(size)) else {
            return false;
        };
        if self.sources.iter().any(|source| source.conn == conn) {
            return false;
        }
        if self.sources.len() >= METADATA_SOURCES_MAX {
            let Some(mute) = self.sources.iter().find(|source| source.is_mute(now)).map(|source| source.conn) else {
                return false;
            };
            self.remove_peer(mute);
        }
        self.sources.push(Source {
            conn,
            size,
            paused_until: None,
            requests_max: METADATA_REQUESTS_PER_PEER_MAX,
            heard: None,
            asked_first: None,
            has_answered: false,
        });
        if self.attempts.iter().all(|attempt| attempt.size != size) {
            self.attempts.push(Candidate::new(size));
        }
        true
    }

    /// The connection is gone.
    pub fn remove_peer(&mut self, conn: ConnId) {
        self.sources.retain(|source| source.conn != conn);
        self.requests.retain(|request| request.conn != conn);
        self.attempts.retain(|attempt| {
            attempt.solo != Some(conn) && self.sources.iter().any(|source| source.size == attempt.size)
        });
    }

    /// Whether a peer is one of those that metadata is fetched from.
    pub fn has_peer(&self, conn: ConnId) -> bool {
        self.sources.iter().any(|source| source.conn == conn)
    }

    /// Where what `conn` sends belongs: its own copy, or the attempt of its size.
    fn attempt_of(&self, conn: ConnId, size: u32) -> Option<usize> {
        let own = self.attempts.iter().position(|attempt| attempt.solo == Some(conn));
        own.or_else(|| {
            self.attempts.iter().position(|attempt| attempt.size == size && !attempt.is_split && attempt.solo.is_none())
        })
    }

    /// Begins a copy from `conn`, where there is room for one.
    fn begin_copy(&mut self, conn: ConnId, size: u32, now: Instant) -> Option<usize> {
        let is_live = |attempt: &&Candidate| {
            let of = |source: &&Source| attempt.solo == Some(source.conn);
            self.sources.iter().find(of).is_some_and(|source| !source.is_silent(now))
        };
        let live = self.attempts.iter().filter(|attempt| attempt.size == size).filter(is_live).count();
        if live >= METADATA_COPIES_MAX {
            return None;
        }
        self.attempts.push(Candidate { solo: Some(conn), ..Candidate::new(size) });
        Some(self.attempts.len() - 1)
    }

    /// The piece to ask `conn` for now, noted as asked. Call until `None`; again after an answer, a timeout or a new peer.
    pub fn next_request(&mut self, conn: ConnId, now: Instant) -> Option<u32> {
        self.expire(now);
        let source = self.sources.iter().find(|source| source.conn == conn)?;
        if source.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        let (size, requests_max) = (source.size, source.requests_max);
        let under_way = self.under_way(conn);
        if under_way >= requests_max {
            return None;
        }
        let attempt = self.attempt_of(conn, size).or_else(|| self.begin_copy(conn, size, now))?;
        let piece = self.least_asked(&self.attempts[attempt], conn, now)?;
        if under_way == 0 {
            self.note_heard(conn, now);
        }
        if let Some(source) = self.sources.iter_mut().find(|source| source.conn == conn) {
            source.asked_first.get_or_insert(now);
        }
        self.requests.push(Request { conn, piece, deadline: now + METADATA_REQUEST_TIMEOUT });
        Some(piece)
    }

    /// `conn` answered "reject": it is not asked for a while (BEP 9).
    pub fn rejected(&mut self, conn: ConnId, piece: u32, now: Instant) {
        let before = self.requests.len();
        self.requests.retain(|request| (request.conn, request.piece) != (conn, piece));
        if self.requests.len() < before {
            self.pause(conn, now);
        }
    }

    /// `conn` sent a piece. Pieces that nobody needs any more are of no harm.
    ///
    /// # Errors
    /// Where the message contradicts the peer's own handshake or the format. The peer is no longer asked.
    pub fn received(
        &mut self,
        conn: ConnId,
        piece: u32,
        total_size: Option<u64>,
        data: &[u8],
        now: Instant,
    ) -> Result<MetadataProgress, MetadataMisbehaved> {
        let Some(source) = self.sources.iter_mut().find(|source| source.conn == conn) else {
            return Ok(MetadataProgress::Going);
        };
        source.heard = Some(now);
        source.has_answered = true;
        let size = source.size;
        if let Some(misbehaved) = misbehaviour(size, piece, total_size, data) {
            self.remove_peer(conn);
            return Err(misbehaved);
        }
        self.requests.retain(|request| (request.conn, request.piece) != (conn, piece));
        let Some(at) = self.attempt_of(conn, size) else { return Ok(MetadataProgress::Going) };
        let attempt = &mut self.attempts[at];
        if !attempt.put(conn, piece, data) {
            return Ok(MetadataProgress::Going);
        }
        if attempt.pieces.iter().any(Option::is_none) {
            self.keep_within_limit();
            return Ok(MetadataProgress::Going);
        }
        Ok(self.finish(at))
    }

    /// When to call [`next_request`](Self::next_request) again though nothing came.
    pub fn deadline(&self) -> Option<Instant> {
        let pauses = self.sources.iter().filter_map(|source| source.paused_until);
        let silences = self.sources.iter().filter(|source| self.under_way(source.conn) > 1);
        let silences = silences.filter_map(|source| Some(source.heard? + METADATA_SILENCE));
        self.requests.iter().map(|request| request.deadline).chain(pauses).chain(silences).min()
    }

    fn under_way(&self, conn: ConnId) -> usize {
        self.requests.iter().filter(|request| request.conn == conn).count()
    }

    fn note_heard(&mut self, conn: ConnId, now: Instant) {
        if let Some(source) = self.sources.iter_mut().find(|source| source.conn == conn) {
            source.heard = Some(now);
        }
    }

    /// Peers that are silent with several requests are asked for one at a time, at once.
    fn ask_the_silent_singly(&mut self, now: Instant) {
        let silent = |source: &Source| source.heard.is_some_and(|at| now >= at + METADATA_SILENCE);
        for at in 0..self.sources.len() {
            let conn = self.sources[at].conn;
            if silent(&self.sources[at]) && self.under_way(conn) > 1 {
                self.sources[at].requests_max = 1;
                self.requests.retain(|request| request.conn != conn);
            }
        }
    }

    /// Frees what was asked too long ago, and ends pauses.
    fn expire(&mut self, now: Instant) {
        for source in &mut self.sources {
            source.paused_until = source.paused_until.filter(|until| now < *until);
        }
        self.ask_the_silent_singly(now);
        let late: Vec<ConnId> =
            self.requests.iter().filter(|request| request.deadline <= now).map(|request| request.conn).collect();
        self.requests.retain(|request| now < request.deadline);
        for conn in late {
            self.pause(conn, now);
        }
    }

    fn pause(&mut self, conn: ConnId, now: Instant) {
        if let Some(source) = self.sources.iter_mut().find(|source| source.conn == conn) {
            source.paused_until = Some(now + METADATA_PAUSE);
        }
        // Its copy gives its place to another's.
        self.attempts.retain(|attempt| attempt.solo != Some(conn));
    }

    /// The missing piece of `attempt` that the fewest were asked for, and `conn` was not.
    fn least_asked(&self, attempt: &Candidate, conn: ConnId, now: Instant) -> Option<u32> {
        let mut asked = vec![0usize; attempt.pieces.len()];
        let mut mute = vec![0usize; attempt.pieces.len()];
        for request in &self.requests {
            let Some(source) = self.sources.iter().find(|source| source.conn == request.conn) else { continue };
            let own = source.conn == conn;
            let at = request.piece as usize;
            // A copy is its peer's alone.
            if at >= asked.len() || !own && (source.size != attempt.size || attempt.solo.is_some()) {
                continue;
            }
            match (own, source.is_mute(now)) {
                (true, _) => asked[at] = usize::MAX,
                (false, true) => mute[at] += 1,
                (false, false) => asked[at] = asked[at].saturating_add(1),
            }
        }
        let missing = (0..attempt.pieces.len()).filter(|piece| attempt.pieces[*piece].is_none());
        let piece = missing.min_by_key(|piece| asked[*piece])?;
        (asked[piece] < METADATA_REQUESTS_PER_PIECE_MAX + mute[piece]).then_some(piece as u32)
    }

    /// All pieces of the attempt are there: verify them, or find out who lied.
    fn finish(&mut self, at: usize) -> MetadataProgress {
        let attempt = &mut self.attempts[at];
        let metadata: Vec<u8> = attempt.pieces.iter().flatten().flat_map(|(_, data)| data.iter().copied()).collect();
        if matches(&metadata, &self.hashes) {
            self.sources.clear();
            self.attempts.clear();
            self.requests.clear();
            return MetadataProgress::Complete(metadata);
        }
        let mut suppliers: Vec<ConnId> = attempt.pieces.iter().flatten().map(|(conn, _)| *conn).collect();
        suppliers.sort_unstable();
        suppliers.dedup();
        // What is still to come of the failed attempt counts for the next as well: it is checked like all else.
        attempt.restart();
        if let [liar] = suppliers[..] {
            self.remove_peer(liar);
            return MetadataProgress::Failed { blamed: Some(liar) };
        }
        attempt.is_split = true;
        MetadataProgress::Failed { blamed: None }
    }

    /// Drops what the attempt with the most bytes a source holds, while there is too much in all.
    fn keep_within_limit(&mut self) {
        while self.attempts.iter().map(|attempt| attempt.held_len).sum::<usize>() > METADATA_HELD_LEN_MAX {
            let claimants = |size| self.sources.iter().filter(|source| source.size == size).count().max(1);
            let Some(fattest) =
                self.attempts.iter_mut().max_by_key(|attempt| attempt.held_len / claimants(attempt.size))
            else {
                return;
            };
            fattest.restart();
        }
    }
}

impl Candidate {
    fn new(size: u32) -> Self {
        Self { size, pieces: vec![None; metadata_piece_count(size) as usize], held_len: 0, solo: None, is_split: false }
    }

    fn restart(&mut self) {
        *self = Self { solo: self.solo, is_split: self.is_split, ..Self::new(self.size) };
    }

    /// Answers whether the piece was missing.
    fn put(&mut self, conn: ConnId, piece: u32, data: &[u8]) -> bool {
        match self.pieces.get_mut(piece as usize) {
            Some(slot @ None) => {
                *slot = Some((conn, data.into()));
                self.held_len += data.len();
                true
            }
            _ => false,
        }
    }
}

fn misbehaviour(size: u32, piece: u32, total_size: Option<u64>, data: &[u8]) -> Option<MetadataMisbehaved> {
    // Some clients leave total_size out; one that is there has to agree.
    if let Some(found) = total_size.filter(|found| *found != u64::from(size)) {
        return Some(MetadataMisbehaved::Size { claimed: size, found });
    }
    let expected = u64::from(size)
        .saturating_sub(u64::from(piece) * u64::from(METADATA_PIECE_LEN))
        .min(u64::from(METADATA_PIECE_LEN)) as usize;
    (data.len() != expected || expected == 0).then_some(MetadataMisbehaved::Length {
        piece,
        found: data.len(),
        expected,
    })
}

fn matches(metadata: &[u8], hashes: &InfoHashes) -> bool {
    hashes.v1.is_none_or(|v1| sha1(metadata) == v1)
        && hashes.v2.is_none_or(|v2| sha256(metadata) == v2)
        && (hashes.v1.is_some() || hashes.v2.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u32 = 3 * METADATA_PIECE_LEN + 5;

    fn metadata() -> Vec<u8> {
        (0..SIZE).map(|at| (at % 251) as u8).collect()
    }

    fn fetch() -> MetadataFetch {
        MetadataFetch::new(InfoHashes { v1: Some(sha1(&metadata())), v2: Some(sha256(&metadata())) })
    }

    /// Asks `conn` for all it may be asked and answers from `content`.
    fn serve(fetch: &mut MetadataFetch, conn: ConnId, content: &[u8], now: Instant) -> Vec<MetadataProgress> {
        let asked: Vec<u32> = std::iter::from_fn(|| fetch.next_request(conn, now)).collect();
        let piece = |piece: u32| content.chunks(METADATA_PIECE_LEN as usize).nth(piece as usize).unwrap();
        asked.into_iter().map(|n| fetch.received(conn, n, Some(content.len() as u64), piece(n), now).unwrap()).collect()
    }

    #[test]
    fn one_honest_peer_is_enough() {
        let (mut fetch, now) = (fetch(), Instant::now());
        assert!(fetch.add_peer(ConnId(1), SIZE.into(), now));
        let progress = serve(&mut fetch, ConnId(1), &metadata(), now);
        assert_eq!(progress.len(), 4);
        assert_eq!(progress[3], MetadataProgress::Complete(metadata()));
        assert_eq!(fetch.deadline(), None);
    }

    #[test]
    fn a_lone_liar_is_blamed_and_not_asked_again() {
        let (mut fetch, now) = (fetch(), Instant::now());
        fetch.add_peer(ConnId(1), SIZE.into(), now);
        let progress = serve(&mut fetch, ConnId(1), &vec![0; SIZE as usize], now);
        assert_eq!(progress.last(), Some(&MetadataProgress::Failed { blamed: Some(ConnId(1)) }));
        assert_eq!(fetch.next_request(ConnId(1), now), None);
        fetch.add_peer(ConnId(2), SIZE.into(), now);
        let progress = serve(&mut fetch, ConnId(2), &metadata(), now);
        assert_eq!(progress.last(), Some(&MetadataProgress::Complete(metadata())));
    }

    #[test]
    fn a_liar_among_honest_peers_is_found_by_asking_each_for_a_copy() {
        let (mut fetch, now) = (fetch(), Instant::now());
        let (liar, honest) = (ConnId(1), ConnId(2));
        fetch.add_peer(liar, SIZE.into(), now);
        fetch.add_peer(honest, SIZE.into(), now);
        let asked = fetch.next_request(liar, now).unwrap();
        let lie = vec![9; METADATA_PIECE_LEN as usize];
        assert_eq!(fetch.received(liar, asked, None, &lie, now), Ok(MetadataProgress::Going));
        let progress = serve(&mut fetch, honest, &metadata(), now);
        assert_eq!(progress.last(), Some(&MetadataProgress::Failed { blamed: None }));
        // With a copy of its own, the liar gives itself away.
        let progress = serve(&mut fetch, liar, &vec![0; SIZE as usize], now);
        assert_eq!(progress.last(), Some(&MetadataProgress::Failed { blamed: Some(liar) }));
        let progress = serve(&mut fetch, honest, &metadata(), now);
        assert_eq!(progress.last(), Some(&MetadataProgress::Complete(metadata())));
    }

    #[test]
    fn a_false_size_delays_nobody() {
        let (mut fetch, now) = (fetch(), Instant::now());
        fetch.add_peer(ConnId(1), u64::from(METADATA_LEN_MAX), now);
        assert_eq!(fetch.next_request(ConnId(1), now), Some(0));
        fetch.add_peer(ConnId(2), SIZE.into(), now);
        let progress = serve(&mut fetch, ConnId(2), &metadata(), now);
        assert_eq!(progress.last(), Some(&MetadataProgress::Complete(metadata())));
    }

    #[test]
    fn a_mute_peer_is_overtaken_and_paused() {
        let (mut fetch, now) = (fetch(), Instant::now());
        let (mute, other) = (ConnId(1), ConnId(2));
        fetch.add_peer(mute, SIZE.into(), now);
        while fetch.next_request(mute, now).is_some() {}
        fetch.add_peer(other, SIZE.into(), now);
        let progress = serve(&mut fetch, other, &metadata()[..], now);
        assert_eq!(progress.last(), Some(&MetadataProgress::Complete(metadata())));

        let mut fetch = self::fetch();
        fetch.add_peer(mute, SIZE.into(), now);
        while fetch.next_request(mute, now).is_some() {}
        // First it is asked for less, then left alone.
        assert_eq!(fetch.deadline(), Some(now + METADATA_SILENCE));
        let silent = now + METADATA_SILENCE;
        assert_eq!(fetch.next_request(mute, silent), Some(0));
        assert_eq!(fetch.next_request(mute, silent), None);
        assert_eq!(fetch.deadline(), Some(silent + METADATA_REQUEST_TIMEOUT));
        let late = silent + METADATA_REQUEST_TIMEOUT;
        assert_eq!(fetch.next_request(mute, late), None);
        assert_eq!(fetch.deadline(), Some(late + METADATA_PAUSE));
        assert_eq!(fetch.next_request(mute, late + METADATA_PAUSE), Some(0));
    }

    #[test]
    fn who_answers_one_request_of_several_is_asked_one_at_a_time() {
        let (mut fetch, mut now) = (fetch(), Instant::now());
        let (start, one) = (now, ConnId(1));
        fetch.add_peer(one, SIZE.into(), now);
        let content = metadata();
        for _ in 0..20 {
            let asked: Vec<u32> = std::iter::from_fn(|| fetch.next_request(one, now)).collect();
            // Whichever it keeps: here the last that came, like a client with room for one answer.
            if let Some(piece) = asked.last() {
                let data = content.chunks(METADATA_PIECE_LEN as usize).nth(*piece as usize).unwrap();
                if let MetadataProgress::Complete(bytes) = fetch.received(one, *piece, None, data, now).unwrap() {
                    assert_eq!(bytes, content);
                    assert_eq!(now, start + METADATA_SILENCE, "one silence is enough to know");
                    return;
                }
            }
            now = now.max(fetch.deadline().filter(|_| fetch.under_way(one) > 0).unwrap_or(now));
        }
        panic!("it never came");
    }

    /// Mute ones were asked two at a time, ten seconds each.
    #[test]
    fn sixty_mute_peers_delay_an_honest_one_by_seconds() {
        let (mut fetch, start) = (fetch(), Instant::now());
        let mute = METADATA_SOURCES_MAX as u32 - 1;
        (0..=mute).for_each(|conn| assert!(fetch.add_peer(ConnId(conn), SIZE.into(), start)));
        let (honest, content) = (ConnId(mute), metadata());
        for tick in 0..200 {
            let now = start + tick * Duration::from_millis(250);
            for conn in 0..mute {
                while fetch.next_request(ConnId(conn), now).is_some() {}
            }
            if let Some(MetadataProgress::Complete(_)) = serve(&mut fetch, honest, &content, now).pop() {
                assert!(now <= start + METADATA_PATIENCE * 8, "{:?}", now - start);
                return;
            }
        }
        panic!("it never came");
    }

    #[test]
    fn who_comes_when_all_places_are_taken_by_mute_ones_gets_one() {
        let (mut fetch, now) = (fetch(), Instant::now());
        for conn in 0..METADATA_SOURCES_MAX as u32 {
            fetch.add_peer(ConnId(conn), SIZE.into(), now);
            fetch.next_request(ConnId(conn), now);
        }
        let late = ConnId(1000);
        assert!(!fetch.add_peer(late, SIZE.into(), now) && !fetch.has_peer(late));
        let now = now + METADATA_PATIENCE;
        assert!(fetch.add_peer(late, SIZE.into(), now) && fetch.has_peer(late) && !fetch.has_peer(ConnId(0)));
        assert_eq!(fetch.sources.len(), METADATA_SOURCES_MAX);
    }

    /// Five liars, each good for one wrong piece and mute from then on, took ten seconds each.
    #[test]
    fn liars_that_fall_silent_do_not_hold_up_the_honest_ones_copy() {
        let (mut fetch, now) = (fetch(), Instant::now());
        let lie = vec![9; METADATA_PIECE_LEN as usize];
        let honest = ConnId(99);
        (0..5).for_each(|conn| assert!(fetch.add_peer(ConnId(conn), SIZE.into(), now)));
        fetch.add_peer(honest, SIZE.into(), now);
        fetch.next_request(ConnId(0), now);
        fetch.received(ConnId(0), 0, None, &lie, now).unwrap();
        let progress = serve(&mut fetch, honest, &metadata(), now);
        assert_eq!(progress.last(), Some(&MetadataProgress::Failed { blamed: None }));
        (0..5).for_each(|conn| while fetch.next_request(ConnId(conn), now).is_some() {});
        let progress = serve(&mut fetch, honest, &metadata(), now);
        assert_eq!(progress.last(), Some(&MetadataProgress::Complete(metadata())));
    }

    #[test]
    fn copies_are_few_unless_their_peers_are_silent() {
        let (mut fetch, now) = (fetch(), Instant::now());
        for conn in 0..20 {
            fetch.add_peer(ConnId(conn), SIZE.into(), now);
        }
        fetch.attempts[0].is_split = true;
        let asked = |fetch: &mut MetadataFetch, now| {
            (0..20).filter(|conn| fetch.next_request(ConnId(*conn), now).is_some()).count()
        };
        assert_eq!(asked(&mut fetch, now), METADATA_COPIES_MAX);
        (0..20).for_each(|conn| while fetch.next_request(ConnId(conn), now).is_some() {});
        assert_eq!(asked(&mut fetch, now + METADATA_PATIENCE), METADATA_COPIES_MAX);
    }

    #[test]
    fn rejects_pause_and_unasked_rejects_do_not() {
        let (mut fetch, now) = (fetch(), Instant::now());
        fetch.add_peer(ConnId(1), SIZE.into(), now);
        fetch.rejected(ConnId(1), 0, now);
        assert_eq!(fetch.next_request(ConnId(1), now), Some(0));
        fetch.rejected(ConnId(1), 0, now);
        assert_eq!(fetch.next_request(ConnId(1), now), None);
        assert_eq!(fetch.next_request(ConnId(1), now + METADATA_PAUSE), Some(0));
    }

    #[test]
    fn contradictions_are_named() {
        let now = Instant::now();
        for (piece, size, len, expected) in [
            (0, Some(7), METADATA_PIECE_LEN, MetadataMisbehaved::Size { claimed: SIZE, found: 7 }),
            (0, None, 9, MetadataMisbehaved::Length { piece: 0, found: 9, expected: METADATA_PIECE_LEN as usize }),
            (3, None, 6, MetadataMisbehaved::Length { piece: 3, found: 6, expected: 5 }),
            (4, None, 0, MetadataMisbehaved::Length { piece: 4, found: 0, expected: 0 }),
        ] {
            let mut fetch = fetch();
            fetch.add_peer(ConnId(1), SIZE.into(), now);
            assert_eq!(fetch.received(ConnId(1), piece, size, &vec![0; len as usize], now), Err(expected));
            assert_eq!(fetch.next_request(ConnId(1), now), None);
        }
    }

    #[test]
    fn sizes_and_peers_and_requests_have_limits() {
        let (mut fetch, now) = (fetch(), Instant::now());
        assert!(!fetch.add_peer(ConnId(1), 0, now));
        assert!(!fetch.add_peer(ConnId(1), u64::from(METADATA_LEN_MAX) + 1, now));
        for conn in 0..METADATA_SOURCES_MAX as u32 {
            assert!(fetch.add_peer(ConnId(conn), METADATA_LEN_MAX.into(), now));
        }
        assert!(!fetch.add_peer(ConnId(1000), SIZE.into(), now));
        let asked = std::iter::from_fn(|| fetch.next_request(ConnId(0), now)).count();
        assert_eq!(asked, METADATA_REQUESTS_PER_PEER_MAX);
    }

    #[test]
    fn what_is_held_unverified_is_bounded() {
        let (mut fetch, now) = (fetch(), Instant::now());
        let full = vec![1; METADATA_PIECE_LEN as usize];
        let pieces_max = METADATA_HELD_LEN_MAX / full.len();
        // Three claims near the limit; together they would hold more than is allowed.
        for conn in 0..3 {
            let size = METADATA_LEN_MAX - conn;
            fetch.add_peer(ConnId(conn), size.into(), now);
            for piece in 0..metadata_piece_count(size) - 1 {
                fetch.received(ConnId(conn), piece, None, &full, now).unwrap();
                let held: usize = fetch.attempts.iter().map(|attempt| attempt.held_len).sum();
                assert!(held / full.len() <= pieces_max);
            }
        }
        fetch.add_peer(ConnId(9), SIZE.into(), now);
        let progress = serve(&mut fetch, ConnId(9), &metadata(), now);
        assert_eq!(progress.last(), Some(&MetadataProgress::Complete(metadata())));
    }

    proptest! {
        /// Whatever liars and mutes do, an honest peer that stays gets the metadata through.
        #[test]
        fn an_honest_peer_always_prevails(script in proptest::collection::vec((0..4u32, 0..6u8, 0..5u32), 0..80)) {
            let (mut fetch, mut now) = (fetch(), Instant::now());
            let honest = ConnId(9);
            fetch.add_peer(honest, SIZE.into(), now);
            let lie = vec![7; SIZE as usize];
            let mut done = false;
            for (conn, action, piece) in script {
                let conn = ConnId(conn);
                let progress = match action {
                    0 => { fetch.add_peer(conn, SIZE.into(), now); continue }
                    1 => { fetch.remove_peer(conn); continue }
                    2 => { fetch.next_request(conn, now); continue }
                    3 => { fetch.rejected(conn, piece, now); continue }
                    4 => { now += Duration::from_secs(3); serve(&mut fetch, honest, &metadata(), now) }
                    _ => serve(&mut fetch, conn, &lie, now),
                };
                for step in progress {
                    prop_assert_ne!(&step, &MetadataProgress::Failed { blamed: Some(honest) });
                    done |= matches!(step, MetadataProgress::Complete(_));
                }
                if done { break }
            }
            // Then only the honest one answers: bounded by one timeout and pause for each other peer.
            for _ in 0..200 {
                if done { break }
                for conn in 0..4 { fetch.next_request(ConnId(conn), now); }
                done = serve(&mut fetch, honest, &metadata(), now).iter().any(|step| matches!(step, MetadataProgress::Complete(_)));
                now += Duration::from_secs(3);
            }
            prop_assert!(done);
        }
    }
}
