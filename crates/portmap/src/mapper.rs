//! One router, and what it opens for us: which protocol it is asked by, and when.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::epoch::Epoch;
use crate::upnp::Upnp;
use crate::{Action, Config, DATAGRAM_LEN_MAX, Event, Failure, Method, PORTS_MAX, Port, Refusal, natpmp, pcp, ssdp};

/// What is asked for: long enough that a renewal may be late, short enough that what a killed program leaves is gone soon.
pub(crate) const LIFETIME: Duration = Duration::from_secs(3600);
/// No mapping is renewed more often, however short it is.
const RENEWED_AFTER_MIN: Duration = Duration::from_secs(30);
/// What a router promises for longer is asked about all the same (RFC 6887 §15: a day at most).
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// How often the address outside is asked for where mappings do not tell it.
pub(crate) const ADDRESS_EVERY: Duration = Duration::from_secs(20 * 60);
/// A port that the router refused, while it opened others, is asked for again.
const REFUSED_FOR: Duration = Duration::from_secs(3600);
/// Until a router that opens nothing is asked again; doubles each time.
const REST_FIRST: Duration = Duration::from_secs(5 * 60);
/// The longest such wait.
const REST_MAX: Duration = Duration::from_secs(3600);
/// First wait for an answer of PCP (RFC 6887 §8.1.1, IRT), which doubles.
const PCP_WAIT: Duration = Duration::from_secs(3);
/// The longest wait (the same, MRT).
const PCP_WAIT_MAX: Duration = Duration::from_secs(1024);
/// First wait for an answer of NAT-PMP (RFC 6886 §3.1), which doubles.
const NATPMP_WAIT: Duration = Duration::from_millis(250);
/// The longest wait (the same: nine questions, 64 s).
const NATPMP_WAIT_MAX: Duration = Duration::from_secs(64);
/// Questions of PCP to a router of which it is not known whether it speaks it: the other protocols are next.
const PCP_TRIES: u32 = 1;
/// The same of NAT-PMP.
const NATPMP_TRIES: u32 = 3;
/// Pause between searches.
const SEARCH_EVERY: Duration = Duration::from_secs(1);
/// Searches, of which datagrams may be lost.
const SEARCHES: u32 = 3;
/// Giving back takes no longer: the program ends, and mappings by themselves.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);
/// While it is given back, what is unanswered is said again.
const CLOSING_WAIT: Duration = Duration::from_millis(250);

/// One port of ours.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub port: Port,
    nonce: [u8; 12],
    /// Its number outside: the one that was given, or would be welcome.
    pub external: u16,
    pub state: State,
    /// Questions in a row without an answer that settles it.
    pub tries: u32,
    /// When it is asked for next.
    pub at: Option<Instant>,
    /// The router may hold it.
    pub is_asked: bool,
    /// A question is out.
    is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Wanted,
    Held {
        external: SocketAddrV4,
        /// When the router forgets it; `None`: when it is told to.
        until: Option<Instant>,
    },
    Refused(Refusal),
}

/// What is going on.
#[derive(Debug)]
pub(crate) enum Stage {
    Pcp,
    NatPmp(Address),
    Search { tries: u32, at: Instant },
    Upnp(Upnp),
    Rest(Instant),
    Over,
}

/// The router's address outside, which NAT-PMP tells by itself.
#[derive(Debug, Default)]
pub(crate) struct Address {
    ip: Option<Ipv4Addr>,
    at: Option<Instant>,
    tries: u32,
    is_awaited: bool,
}

/// One router, and what it opens for us at one address of ours.
#[derive(Debug)]
pub struct Mapper {
    pub(crate) gateway: Ipv4Addr,
    pub(crate) local: Ipv4Addr,
    pub(crate) rng: Rng,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) stage: Stage,
    epoch: Epoch,
    pub(crate) actions: VecDeque<Action>,
    events: VecDeque<Event>,
    refusals: Vec<(Method, Refusal)>,
    /// Times in a row that it opened nothing.
    rests: u32,
    is_failure_told: bool,
    /// It is given back; this long at most.
    closing: Option<Instant>,
    pub(crate) next_id: u64,
}

impl Mapper {
    /// Asks for nothing before [`Mapper::on_time`].
    pub fn new(config: Config, now: Instant) -> Self {
        let mut rng = Rng::with_seed(config.seed);
        let mapping = |port: Port| {
            let mut nonce = [0; 12];
            rng.fill(&mut nonce);
            Mapping {
                port,
                nonce,
                external: port.number,
                state: State::Wanted,
                tries: 0,
                at: Some(now),
                is_asked: false,
                is_awaited: false,
            }
        };
        let mappings = config.ports.into_iter().take(PORTS_MAX).map(mapping).collect();
        Self {
            gateway: config.gateway,
            local: config.local,
            rng,
            mappings,
            stage: Stage::Pcp,
            epoch: Epoch::default(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            refusals: Vec::new(),
            rests: 0,
            is_failure_told: false,
            closing: None,
            next_id: 0,
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What came of it.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Mapper::on_time`] is to be called, if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let mappings = || self.mappings.iter().filter_map(|mapping| mapping.at);
        let next = match &self.stage {
            Stage::Pcp => mappings().min(),
            Stage::NatPmp(address) => mappings().chain(address.at).min(),
            Stage::Search { at, .. } | Stage::Rest(at) => Some(*at),
            // The answer over HTTP comes, or is told not to.
            Stage::Upnp(upnp) if upnp.is_asking() => None,
            Stage::Upnp(upnp) => mappings().chain(upnp.address_at()).min(),
            Stage::Over => return None,
        };
        next.into_iter().chain(self.closing).min()
    }

    /// Whether all is given back, and nothing more comes.
    pub fn is_closed(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Gives back what the router opened. It is [closed](Mapper::is_closed) soon, whatever the router says.
    pub fn close(&mut self, now: Instant) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(now + CLOSED_WITHIN);
        self.actions.clear();
        let is_asked = self.mappings.iter().any(|mapping| mapping.is_asked);
        if !is_asked || matches!(self.stage, Stage::Search { .. } | Stage::Rest(_)) {
            self.stage = Stage::Over;
            return;
        }
        for mapping in &mut self.mappings {
            (mapping.tries, mapping.at) = (0, mapping.is_asked.then_some(now));
        }
        match &mut self.stage {
            Stage::NatPmp(address) => address.at = None,
            Stage::Upnp(upnp) => upnp.forget_request(),
            _ => {}
        }
        self.on_time(now);
    }

    /// It is `now`.
    pub fn on_time(&mut self, now: Instant) {
        if self.closing.is_some_and(|at| now >= at) {
            self.stage = Stage::Over;
        }
        if matches!(self.stage, Stage::Rest(at) if now >= at) {
            self.begin(Method::Pcp, now);
        }
        match self.stage {
            Stage::Pcp => self.ask_due(Method::Pcp, now),
            Stage::NatPmp(_) => {
                self.ask_address(now);
                if matches!(self.stage, Stage::NatPmp(_)) {
                    self.ask_due(Method::NatPmp, now);
                }
            }
            Stage::Search { tries, at } if now >= at => {
                if tries >= SEARCHES {
                    return self.give_up(Method::Upnp, Refusal::Silent, now);
                }
                self.stage = Stage::Search { tries: tries + 1, at: now + SEARCH_EVERY };
                self.send(ssdp::PORT, ssdp::search(self.gateway));
            }
            Stage::Upnp(_) => self.ask_over_http(now),
            Stage::Search { .. } | Stage::Rest(_) | Stage::Over => {}
        }
    }

    /// A datagram came from the router.
    pub fn on_datagram(&mut self, now: Instant, datagram: &[u8]) {
        if datagram.len() > DATAGRAM_LEN_MAX {
            return;
        }
        match self.stage {
            Stage::Pcp => match pcp::parse(datagram) {
                Some(pcp::Answer::OtherVersion) if !self.holds_any() => {
                    self.give_up(Method::Pcp, Refusal::Unsupported, now);
                }
                Some(pcp::Answer::Map(map)) => self.on_pcp(now, &map),
                _ => {}
            },
            Stage::NatPmp(_) => match natpmp::parse(datagram) {
                Some(natpmp::Answer::Address { result, epoch, ip }) => self.on_address(now, result, epoch, ip),
                Some(natpmp::Answer::Map { result, epoch, port, external, lifetime }) => {
                    self.on_natpmp(now, (result, epoch), port, external, lifetime);
                }
                None => {}
            },
            Stage::Search { .. } => match ssdp::parse(datagram, self.gateway) {
                Some(Ok(place)) => {
                    self.stage = Stage::Upnp(Upnp::new(place));
                    self.on_time(now);
                }
                Some(Err(refusal)) => self.give_up(Method::Upnp, refusal, now),
                None => {}
            },
            Stage::Upnp(_) | Stage::Rest(_) | Stage::Over => {}
        }
    }

    /// The router says that nobody listens where PCP and NAT-PMP are.
    pub fn on_unreachable(&mut self, now: Instant) {
        if self.holds_any() || self.closing.is_some() {
            return;
        }
        match self.stage {
            Stage::Pcp => {
                self.refusals.push((Method::Pcp, Refusal::Unsupported));
                self.give_up(Method::NatPmp, Refusal::Unsupported, now);
            }
            Stage::NatPmp(_) => self.give_up(Method::NatPmp, Refusal::Unsupported, now),
            _ => {}
        }
    }

    fn holds_any(&self) -> bool {
        self.mappings.iter().any(|mapping| matches!(mapping.state, State::Held { .. }))
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    fn send(&mut self, port: u16, bytes: Vec<u8>) {
        self.actions.push_back(Action::Datagram { port, bytes });
    }

    /// From now on the router is asked so.
    fn begin(&mut self, method: Method, now: Instant) {
        self.epoch = Epoch::default();
        for mapping in &mut self.mappings {
            (mapping.state, mapping.tries) = (State::Wanted, 0);
            (mapping.is_asked, mapping.is_awaited) = (false, false);
            // The others have to know the address first.
            mapping.at = (method == Method::Pcp).then_some(now);
        }
        self.stage = match method {
            Method::Pcp => Stage::Pcp,
            Method::NatPmp => Stage::NatPmp(Address { at: Some(now), ..Address::default() }),
            Method::Upnp => Stage::Search { tries: 0, at: now },
        };
    }

    /// A method came to nothing: the next one.
    pub(crate) fn give_up(&mut self, method: Method, refusal: Refusal, now: Instant) {
        self.refusals.push((method, refusal));
        if self.closing.is_some() {
            self.stage = Stage::Over;
            return;
        }
        match method {
            Method::Pcp => self.begin(Method::NatPmp, now),
            Method::NatPmp => self.begin(Method::Upnp, now),
            Method::Upnp => {
                let refusals = std::mem::take(&mut self.refusals);
                if !std::mem::replace(&mut self.is_failure_told, true) {
                    self.events.push_back(Event::Failed(Failure(refusals)));
                }
                self.stage = Stage::Rest(now + REST_FIRST.saturating_mul(1 << self.rests.min(8)).min(REST_MAX));
                self.rests += 1;
                return;
            }
        }
        self.on_time(now);
    }

    /// The router forgot what it opened, or is another one: all is asked for anew.
    pub(crate) fn lose(&mut self, now: Instant) {
        for mapping in &self.mappings {
            if let State::Held { .. } = mapping.state {
                self.events.push_back(Event::Lost { port: mapping.port });
            }
        }
        self.begin(Method::Pcp, now);
        self.on_time(now);
    }

    /// Asks for the mappings whose time it is, by datagrams.
    fn ask_due(&mut self, method: Method, now: Instant) {
        let (port, tries_max) = match method {
            Method::NatPmp => (pcp::PORT, NATPMP_TRIES),
            Method::Pcp | Method::Upnp => (pcp::PORT, PCP_TRIES),
        };
        let is_closing = self.is_closing();
        for at in 0..self.mappings.len() {
            let mapping = &mut self.mappings[at];
            if mapping.at.is_none_or(|due| due > now) {
                continue;
            }
            match mapping.state {
                _ if is_closing => {}
                State::Held { until: Some(until), .. } if now >= until => return self.lose(now),
                State::Wanted if mapping.tries >= tries_max => {
                    (mapping.state, mapping.at) = (State::Refused(Refusal::Silent), Some(now + REFUSED_FOR));
                    continue;
                }
                State::Refused(_) => (mapping.state, mapping.tries) = (State::Wanted, 0),
                State::Wanted | State::Held { .. } => {}
            }
            let wait = match method {
                _ if is_closing => CLOSING_WAIT,
                Method::NatPmp => NATPMP_WAIT.saturating_mul(1 << mapping.tries.min(16)).min(NATPMP_WAIT_MAX),
                Method::Pcp | Method::Upnp => PCP_WAIT.saturating_mul(1 << mapping.tries.min(16)).min(PCP_WAIT_MAX),
            };
            let until = match mapping.state {
                State::Held { until, .. } if !is_closing => until,
                _ => None,
            };
            mapping.tries += 1;
            // What it holds is not waited for beyond its end.
            mapping.at = Some(until.map_or(now + wait, |until| until.min(now + wait)));
            (mapping.is_asked, mapping.is_awaited) = (true, true);
            let lifetime = if is_closing { 0 } else { LIFETIME.as_secs() as u32 };
            let bytes = match method {
                // RFC 6886 §3.4: who gives back names no port outside.
                Method::NatPmp => {
                    natpmp::ask_map(mapping.port, if is_closing { 0 } else { mapping.external }, lifetime)
                }
                Method::Pcp | Method::Upnp => {
                    let (client, nonce, external) = (self.local, mapping.nonce, mapping.external);
                    pcp::Question { client, nonce, port: mapping.port, external, lifetime }.encode()
                }
            };
            self.send(port, bytes);
        }
        self.settle(method, now);
    }

    /// Once each mapping is held or refused: whether the method is worth staying with.
    pub(crate) fn settle(&mut self, method: Method, now: Instant) {
        let refusal = self.mappings.iter().find_map(|mapping| match mapping.state {
            State::Refused(refusal) => Some(refusal),
            State::Wanted | State::Held { .. } => None,
        });
        let is_all_refused = self.mappings.iter().all(|mapping| matches!(mapping.state, State::Refused(_)));
        if let Some(refusal) = refusal.filter(|_| is_all_refused && !self.is_closing()) {
            self.give_up(method, refusal, now);
        }
    }

    /// The router opened a port: outside it is `external`, for `lifetime`, or until it is told otherwise.
    pub(crate) fn accept(
        &mut self,
        at: usize,
        method: Method,
        external: SocketAddrV4,
        lifetime: Option<Duration>,
        now: Instant,
    ) {
        let Some(mapping) = self.mappings.get_mut(at) else { return };
        if external.port() == 0 || !may_be_outside(*external.ip()) {
            return self.refuse(at, Refusal::Nonsense("nobody is reached there"), now);
        }
        let is_news = !matches!(mapping.state, State::Held { external: before, .. } if before == external);
        let lifetime = lifetime.map(|lifetime| lifetime.min(LIFETIME_MAX));
        mapping.state = State::Held { external, until: lifetime.map(|lifetime| now + lifetime) };
        // RFC 6887 §11.2.1: at half of its time.
        mapping.at = Some(now + lifetime.map_or(ADDRESS_EVERY, |lifetime| (lifetime / 2).max(RENEWED_AFTER_MIN)));
        (mapping.external, mapping.tries, mapping.is_asked) = (external.port(), 0, true);
        let port = mapping.port;
        (self.rests, self.is_failure_told) = (0, false);
        self.refusals.clear();
        if is_news {
            self.events.push_back(Event::Mapped { port, external, method });
        }
    }

    /// The router does not open a port.
    pub(crate) fn refuse(&mut self, at: usize, refusal: Refusal, now: Instant) {
        let Some(mapping) = self.mappings.get_mut(at) else { return };
        if let State::Held { .. } = mapping.state {
            self.events.push_back(Event::Lost { port: mapping.port });
        }
        mapping.state = State::Refused(refusal);
        (mapping.at, mapping.tries, mapping.is_asked) = (Some(now + REFUSED_FOR), 0, false);
    }

    /// The router has another address outside than before: so have the ports.
    pub(crate) fn moved_to(&mut self, method: Method, ip: Ipv4Addr) {
        for mapping in &mut self.mappings {
            if let State::Held { external, .. } = &mut mapping.state
                && *external.ip() != ip
            {
                external.set_ip(ip);
                self.events.push_back(Event::Mapped { port: mapping.port, external: *external, method });
            }
        }
    }

    /// A port is given back, or was not had.
    pub(crate) fn gave_back(&mut self, at: usize) {
        if let Some(mapping) = self.mappings.get_mut(at) {
            (mapping.state, mapping.at, mapping.is_asked) = (State::Wanted, None, false);
        }
        if self.is_closing() && self.mappings.iter().all(|mapping| !mapping.is_asked) {
            self.stage = Stage::Over;
        }
    }

    /// An answer while all is given back: to that, or still to a question before it.
    fn on_given_back(&mut self, at: usize, is_held: bool) {
        if is_held {
            self.mappings[at].is_awaited = true;
        } else {
            self.gave_back(at);
        }
    }

    /// The answer to a question that is out, for the mapping of which `is_it`.
    fn answered(&mut self, is_it: impl Fn(&Mapping) -> bool) -> Option<usize> {
        let at = self.mappings.iter().position(|mapping| mapping.is_awaited && is_it(mapping))?;
        self.mappings[at].is_awaited = false;
        Some(at)
    }

    fn on_pcp(&mut self, now: Instant, map: &pcp::Map) {
        let is_it = |mapping: &Mapping| {
            let port = mapping.port;
            (mapping.nonce, port.protocol.number(), port.number) == (map.nonce, map.protocol, map.internal)
        };
        let Some(at) = self.answered(is_it) else { return };
        if self.is_closing() {
            return self.on_given_back(at, map.result == 0 && map.lifetime > 0);
        }
        self.note_epoch(now, map.epoch);
        match (map.result, map.external_ip) {
            (0, Some(ip)) if map.lifetime > 0 => {
                let lifetime = Duration::from_secs(map.lifetime.into());
                self.accept(at, Method::Pcp, SocketAddrV4::new(ip, map.external_port), Some(lifetime), now);
            }
            (0, _) => self.refuse(at, Refusal::Nonsense("it opens nothing"), now),
            (code, _) => self.refuse(at, Refusal::Code(code.into()), now),
        }
        self.settle(Method::Pcp, now);
    }

    fn on_natpmp(&mut self, now: Instant, (result, epoch): (u16, u32), port: Port, external: u16, lifetime: u32) {
        let Stage::NatPmp(Address { ip: Some(ip), .. }) = self.stage else { return };
        let Some(at) = self.answered(|mapping| mapping.port == port) else { return };
        if self.is_closing() {
            return self.on_given_back(at, result == 0 && lifetime > 0);
        }
        self.note_epoch(now, epoch);
        match result {
            0 if lifetime > 0 => {
                let lifetime = Duration::from_secs(lifetime.into());
                self.accept(at, Method::NatPmp, SocketAddrV4::new(ip, external), Some(lifetime), now);
            }
            0 => self.refuse(at, Refusal::Nonsense("it opens nothing"), now),
            code => self.refuse(at, Refusal::Code(code), now),
        }
        self.settle(Method::NatPmp, now);
    }

    /// Where the router began anew, what it opened is asked for again now.
    fn note_epoch(&mut self, now: Instant, epoch: u32) {
        if self.epoch.is_anew(now, epoch) {
            let held = |mapping: &&mut Mapping| matches!(mapping.state, State::Held { .. });
            self.mappings.iter_mut().filter(held).for_each(|mapping| (mapping.at, mapping.tries) = (Some(now), 0));
        }
    }

    fn ask_address(&mut self, now: Instant) {
        let Stage::NatPmp(address) = &mut self.stage else { return };
        if address.at.is_none_or(|at| at > now) {
            return;
        }
        if address.ip.is_none() && address.tries >= NATPMP_TRIES {
            return self.give_up(Method::NatPmp, Refusal::Silent, now);
        }
        let wait = NATPMP_WAIT.saturating_mul(1 << address.tries.min(16)).min(NATPMP_WAIT_MAX);
        address.at = Some(now + wait);
        address.tries += 1;
        address.is_awaited = true;
        self.send(pcp::PORT, natpmp::ask_address());
    }

    fn on_address(&mut self, now: Instant, result: u16, epoch: u32, ip: Ipv4Addr) {
        let Stage::NatPmp(address) = &mut self.stage else { return };
        if !std::mem::take(&mut address.is_awaited) {
            return;
        }
        let refusal = match result {
            0 if may_be_outside(ip) => None,
            0 => Some(Refusal::Nonsense("nobody is reached at its address")),
            code => Some(Refusal::Code(code)),
        };
        let is_first = address.ip.is_none();
        (address.at, address.tries) = (Some(now + ADDRESS_EVERY), 0);
        match refusal {
            Some(refusal) if is_first => return self.give_up(Method::NatPmp, refusal, now),
            // What was known stays.
            Some(_) => return,
            None => address.ip = Some(ip),
        }
        self.note_epoch(now, epoch);
        if is_first {
            self.mappings.iter_mut().for_each(|mapping| mapping.at = Some(now));
        }
        self.moved_to(Method::NatPmp, ip);
        self.on_time(now);
    }
}

/// Whether a router may have this address outside: any but those that are nobody's. It may be a private one, where there is another router.
pub(crate) fn may_be_outside(ip: Ipv4Addr) -> bool {
    !(ip.octets()[0] == 0 || ip.is_loopback() || ip.is_link_local() || ip.octets()[0] >= 224)
}
