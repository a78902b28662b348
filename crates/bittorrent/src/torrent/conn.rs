//! State of one connection: what both sides have, want and owe.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;
use anabranch_paths::{Endpoint, PathId, PathState, ScionAddr};

use super::PeerMisbehaved;
use super::addresses::AddressTalk;
use super::answers::Answer;
use super::config::{
    CHATTER_LEAK, CHATTER_MAX, PENDING_HAVES_MAX, PIPELINE_BYTES_MAX, TAKEN_BACK_SPARE, UPLOAD_OVERFLOW_LEAK,
};
use super::meeting::Quota;
use crate::PeerKey;
use crate::choker::{SNUBBED_AFTER, UNUSED_AFTER};
use crate::extension::{Challenge, ExtensionIds, PeerIdentity, PexState};
use crate::picker::Tally;
use crate::pipeline::{Pipeline, REQQ_DEFAULT};
use crate::rate::Rate;
use crate::requests::Requests;
use crate::wire::BlockRange;

/// What rates are averaged over: short enough to follow, long enough to be calm.
pub(super) const RATE_WINDOW: Duration = Duration::from_secs(4);

/// What tells a path that turned slow: a few of its round trips.
pub(super) const RECENT_WINDOW: Duration = Duration::from_secs(1);

/// The pieces that a peer has.
#[derive(Clone, Debug)]
pub(super) enum Has {
    /// The piece count is not known yet: what the peer said, to be replayed.
    Pending { all: bool, bitfield: Option<Vec<u8>>, haves: Vec<u32> },
    /// One bit a piece.
    Known(Bitfield),
}

/// Where a connection leads, and over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The other end.
    pub address: Endpoint,
    /// Whether we opened it.
    pub outgoing: bool,
    /// The way there, seen from here, whoever opened it. `None`: any way, the only one to this address.
    pub path: Option<PathId>,
    /// The key by which the other end proved who it is, where the transport knows one.
    pub key: Option<[u8; 32]>,
    /// The address that its packets leave from here, where it is known.
    pub local: Option<IpAddr>,
    /// It is a connection over uTP (BEP 29): the address is one that others may call the peer at over uTP.
    pub over_utp: bool,
    /// It stays within our own network, where there is room: other links are shared with whoever else is there.
    pub is_near: bool,
}

/// One connection. It belongs to one path.
pub(super) struct Conn {
    pub peer: PeerKey,
    pub address: Endpoint,
    pub outgoing: bool,
    pub path: Option<PathId>,
    pub path_state: PathState,
    /// The key that its transport proved, and the address here.
    pub key: Option<[u8; 32]>,
    pub local: Option<IpAddr>,
    pub is_near: bool,
    /// What its peer calls itself here: a claim, until it is proven.
    pub claimed: Option<PeerIdentity>,
    /// What its peer has to sign for that; `None` once an answer came, be it right or wrong.
    pub challenge: Option<Challenge>,
    /// We proved our own name.
    pub proved: bool,
    /// Of its peer's connections, this one stands for the pieces that the peer has: each peer counts once.
    pub counted: bool,
    /// How the picker counts them, where it does.
    pub tally: Option<Tally>,
    /// Pieces that it said it has no more.
    pub taken_back: u32,
    /// Messages that moved nothing on, of late: see [`CHATTER_MAX`].
    pub chatter: u32,
    pub fast: bool,
    pub extended: bool,
    pub v2: bool,

    /// Control messages waiting to be sent.
    pub out: Vec<u8>,
    /// Of [`Content::gained`](super::content::Content::gained), how many the peer was told of.
    pub told: usize,
    /// When it was told of pieces last; `None` where it is to be told at once.
    pub told_at: Option<Instant>,
    /// Pieces that the peer was told of while we were super-seeding, once we are not any more: it is about to be told of the others.
    pub shown: Option<Bitfield>,
    pub dirty: bool,
    pub closing: bool,

    pub has: Has,
    /// It said of all pieces in one message that it has them.
    pub said_all_at_once: bool,
    pub upload_only: bool,
    /// Its peer suggested pieces (BEP 6), and wants to hear what others have.
    pub suggests: bool,
    pub choking_us: bool,
    /// When the peer choked us last.
    pub choked_us_at: Option<Instant>,
    pub interested_in_us: bool,
    pub allowed_fast: Vec<u32>,

    pub choking: bool,
    /// Pieces that the peer has and we want: interest lasts while there are any.
    pub wanted: u32,
    pub interested: bool,
    /// Since when there are none, where interest is not taken back yet.
    pub idle_since: Option<Instant>,
    /// What we asked for; to be changed by `ledger.rs` alone.
    pub requests: Requests,
    pub unsolicited: u32,
    /// Requests that the peer rejected in a row while it was not choking us.
    pub rejected: u32,
    /// Until then nothing is asked of it.
    pub resting_until: Option<Instant>,
    pub pipeline: Pipeline,

    pub uploads: VecDeque<BlockRange>,
    /// Long answers that are not made yet.
    pub answers: VecDeque<Answer>,
    pub upload_overflow: u32,
    /// Pieces we grant the peer while it is choked, and the bytes of them that are left to grant (BEP 6).
    pub granted_fast: Vec<u32>,
    pub granted_left_bytes: u64,
    /// When the peer was unchoked, or sent payload last: since when its slot is unused.
    pub served_at: Instant,

    pub down: Rate,
    /// The same over [`RECENT_WINDOW`]: what a path does now.
    pub recent: Rate,
    pub up: Rate,
    pub downloaded_bytes: u64,
    pub uploaded_bytes: u64,
    pub opened: Instant,
    pub last_received: Instant,
    pub last_sent: Instant,
    /// Payload or a first request moved last, or requests timed out: what the next timeout is measured from.
    pub last_progress: Instant,
    /// Since when the peer, unchoking us, owes us an answer: what snubbing is measured from.
    pub waiting_since: Option<Instant>,
    /// Since when there have been requests under way without a break.
    pub busy_since: Instant,

    pub reqq: u32,
    pub request_len_max: u32,
    pub client: Option<String>,
    pub listen_port: Option<u16>,
    /// It wants its connections encrypted: it opened this one so, took no other, or says it.
    pub prefers_encryption: bool,
    /// How long it says the metadata is (BEP 9).
    pub metadata_size: Option<u64>,
    /// Timeouts in a row without a block.
    pub timeouts: u32,
    /// What the peer said as `ab_scion`: it understands SCION addresses, and listens there unless it is 0.
    pub scion_port: Option<u16>,
    /// What is said of addresses; nothing with peers of another kind.
    pub addresses: Option<Box<AddressTalk>>,
    /// Numbers under which the peer takes extended messages (BEP 10).
    pub extensions: ExtensionIds,
    pub pex: PexState,
    /// When to look again whether there are peers to tell of.
    pub pex_next: Instant,
    /// Extension messages that could not be read.
    pub bad_extensions: u32,
    pub over_utp: bool,
    /// What it may have us do for it and others to meet.
    pub meetings: Quota,
}

/// What the two handshakes agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Negotiated {
    /// BEP 6.
    pub fast: bool,
    /// BEP 10.
    pub extended: bool,
    /// BEP 52: hash requests may be sent.
    pub v2: bool,
}

impl Conn {
    pub(super) fn new(peer: PeerKey, link: Link, negotiated: Negotiated, pieces: Option<u32>, now: Instant) -> Self {
        Self {
            peer,
            address: link.address,
            outgoing: link.outgoing,
            path: link.path,
            path_state: PathState::Active,
            key: link.key,
            local: link.local,
            is_near: link.is_near,
            claimed: None,
            challenge: None,
            proved: false,
            counted: false,
            tally: None,
            taken_back: 0,
            chatter: 0,
            fast: negotiated.fast,
            extended: negotiated.extended,
            v2: negotiated.v2,
            out: Vec::new(),
            told: 0,
            told_at: Some(now),
            shown: None,
            dirty: false,
            closing: false,
            has: match pieces {
                Some(count) => Has::Known(Bitfield::new(count)),
                None => Has::Pending { all: false, bitfield: None, haves: Vec::new() },
            },
            said_all_at_once: false,
            upload_only: false,
            suggests: false,
            choking_us: true,
            choked_us_at: None,
            interested_in_us: false,
            allowed_fast: Vec::new(),
            choking: true,
            wanted: 0,
            interested: false,
            idle_since: None,
            requests: Requests::default(),
            unsolicited: 0,
            rejected: 0,
            resting_until: None,
            pipeline: Pipeline::new(PIPELINE_BYTES_MAX),
            uploads: VecDeque::new(),
            answers: VecDeque::new(),
            upload_overflow: 0,
            granted_fast: Vec::new(),
            granted_left_bytes: 0,
            served_at: now,
            down: Rate::new(RATE_WINDOW),
            recent: Rate::new(RECENT_WINDOW),
            up: Rate::new(RATE_WINDOW),
            downloaded_bytes: 0,
            uploaded_bytes: 0,
            opened: now,
            last_received: now,
            last_sent: now,
            last_progress: now,
            waiting_since: None,
            busy_since: now,
            reqq: REQQ_DEFAULT,
            request_len_max: anabranch_content::geometry::BLOCK_LEN,
            client: None,
            listen_port: None,
            prefers_encryption: false,
            metadata_size: None,
            timeouts: 0,
            scion_port: None,
            addresses: None,
            extensions: ExtensionIds::default(),
            pex: PexState::default(),
            pex_next: now,
            bad_extensions: 0,
            over_utp: link.over_utp,
            meetings: Quota::new(now),
        }
    }

    /// The pieces the peer has, once the piece count is known.
    pub(super) fn bits(&self) -> Option<&Bitfield> {
        match &self.has {
            Has::Known(bits) => Some(bits),
            Has::Pending { .. } => None,
        }
    }

    /// Whether the peer has everything.
    pub(super) fn is_seed(&self) -> bool {
        self.bits().is_some_and(|bits| bits.is_full() && !bits.is_empty())
    }

    /// Whether the peer leaves our requests unanswered for long (BEP 3, "anti-snubbing").
    pub(super) fn is_snubbing(&self, now: Instant) -> bool {
        self.waiting_since.is_some_and(|since| now.saturating_duration_since(since) >= SNUBBED_AFTER)
    }

    /// Whether the peer has a slot and asks for nothing.
    pub(super) fn leaves_slot_unused(&self, now: Instant) -> bool {
        let unused = now.saturating_duration_since(self.served_at) >= UNUSED_AFTER;
        self.interested_in_us && !self.choking && self.uploads.is_empty() && unused
    }

    /// Once a tick: requests that could not be served are forgiven at a steady pace.
    pub(super) fn leak_overflow(&mut self) {
        self.upload_overflow = self.upload_overflow.saturating_sub(UPLOAD_OVERFLOW_LEAK);
        self.chatter = self.chatter.saturating_sub(CHATTER_LEAK);
    }

    /// A message came that moves nothing on by itself, and takes `work` units of work: what honest peers send now and then, and
    /// who floods us sends without end.
    pub(super) fn chat(&mut self, work: u32) -> Result<(), PeerMisbehaved> {
        self.chatter = self.chatter.saturating_add(work);
        if self.chatter > CHATTER_MAX { Err(PeerMisbehaved::Chatter) } else { Ok(()) }
    }

    /// The peer took back `pieces`. Who loses all it has once may have lost a disk; who goes on plays with us.
    pub(super) fn take_back(&mut self, pieces: u32) -> Result<(), PeerMisbehaved> {
        self.taken_back = self.taken_back.saturating_add(pieces);
        let all = self.bits().map_or(0, Bitfield::len);
        if self.taken_back > all.saturating_add(TAKEN_BACK_SPARE) { Err(PeerMisbehaved::TakesBack) } else { Ok(()) }
    }

    /// Keeps a have message for the day when the piece count is known; answers whether there was room.
    pub(super) fn pend_have(&mut self, piece: u32) -> bool {
        match &mut self.has {
            Has::Pending { haves, .. } if haves.len() < PENDING_HAVES_MAX => {
                haves.push(piece);
                true
            }
            _ => false,
        }
    }

    /// Where the peer can be dialled, over what it is connected by: its own word for the port where we did not dial it.
    pub(super) fn listen_address(&self) -> Option<Endpoint> {
        if self.outgoing {
            return Some(self.address);
        }
        match self.address {
            Endpoint::Ip(address) => Some(SocketAddr::new(address.ip(), self.listen_port?).into()),
            Endpoint::Scion(ScionAddr { isd_as, host }) => {
                let port = self.scion_port.filter(|port| *port != 0)?;
                Some(ScionAddr::new(isd_as, SocketAddr::new(host.ip(), port)).into())
            }
        }
    }
}
