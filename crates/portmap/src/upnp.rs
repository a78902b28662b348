//! A router of UPnP: its description first, then its address outside, then one port after the other; one request at a time.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use crate::igd::{self, Service};
use crate::mapper::{ADDRESS_EVERY, LIFETIME, Mapper, Stage, State, may_be_outside};
use crate::ssdp::Place;
use crate::{Action, BODY_LEN_MAX, HttpRequest, Method, Refusal};

/// Numbers outside that are tried until one is nobody's.
const NUMBERS_TRIED_MAX: u32 = 5;
/// Numbers outside that we choose: those of no service.
const NUMBERS: std::ops::RangeInclusive<u16> = 1024..=65535;
/// A renewal that came to nothing is tried again; doubles.
const AGAIN_FIRST: Duration = Duration::from_secs(30);
/// So often, and the router is another one.
const AGAIN_MAX: u32 = 5;

/// What is known of it.
#[derive(Debug)]
pub(crate) struct Upnp {
    description: Place,
    services: Vec<Service>,
    /// Which of them opens our ports.
    at: usize,
    address: Option<Ipv4Addr>,
    address_at: Option<Instant>,
    asked: Option<(u64, Asked)>,
    /// It knows no leases that end.
    is_permanent: bool,
}

/// What was asked.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Description,
    Address,
    Map { at: usize, external: u16 },
    GiveBack { at: usize },
}

impl Upnp {
    /// One whose description is at `description`.
    pub(crate) fn new(description: Place) -> Self {
        Self {
            description,
            services: Vec::new(),
            at: 0,
            address: None,
            address_at: None,
            asked: None,
            is_permanent: false,
        }
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    pub(crate) fn address_at(&self) -> Option<Instant> {
        self.address_at
    }

    /// Nobody waits for the answer any more.
    pub(crate) fn forget_request(&mut self) {
        self.asked = None;
    }

    fn lifetime(&self) -> Option<Duration> {
        (!self.is_permanent).then_some(LIFETIME)
    }
}

impl Mapper {
    /// Asks what is to be asked next, if nothing is being asked.
    pub(crate) fn ask_over_http(&mut self, now: Instant) {
        let is_closing = self.is_closing();
        let Stage::Upnp(upnp) = &mut self.stage else { return };
        if upnp.asked.is_some() {
            return;
        }
        let due = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        let asked = if is_closing {
            let Some(at) = self.mappings.iter().position(|mapping| mapping.is_asked) else {
                self.stage = Stage::Over;
                return;
            };
            Asked::GiveBack { at }
        } else if upnp.services.is_empty() {
            Asked::Description
        } else if upnp.address.is_none() || due(upnp.address_at) {
            Asked::Address
        } else if let Some(at) = self.mappings.iter().position(|mapping| due(mapping.at)) {
            let mapping = &mut self.mappings[at];
            match mapping.state {
                State::Held { until: Some(until), .. } if now >= until => return self.lose(now),
                State::Held { .. } if mapping.tries >= AGAIN_MAX => return self.lose(now),
                State::Refused(_) => (mapping.state, mapping.tries) = (State::Wanted, 0),
                State::Wanted | State::Held { .. } => {}
            }
            mapping.is_asked = true;
            mapping.tries += 1;
            Asked::Map { at, external: mapping.external }
        } else {
            return;
        };
        let service = upnp.services.get(upnp.at);
        let (place, soap) = match (asked, service) {
            (Asked::Description, _) | (_, None) => (&upnp.description, None),
            (Asked::Address, Some(service)) => (&service.place, Some(igd::ask_address(service.kind))),
            (Asked::Map { at, external }, Some(service)) => {
                let lifetime = upnp.lifetime().map_or(0, |lifetime| lifetime.as_secs() as u32);
                let port = self.mappings[at].port;
                (&service.place, Some(igd::ask_map(service.kind, (port, self.local), external, lifetime)))
            }
            (Asked::GiveBack { at }, Some(service)) => {
                let mapping = &self.mappings[at];
                (&service.place, Some(igd::give_back(service.kind, mapping.port, mapping.external)))
            }
        };
        let id = self.next_id;
        self.next_id += 1;
        let request = HttpRequest { id, port: place.port, target: place.target.clone(), soap };
        upnp.asked = Some((id, asked));
        self.actions.push_back(Action::Http(request));
    }

    /// What came of a request over HTTP: status and body of its answer, or `None` where none came. Each is told of once.
    pub fn on_http(&mut self, now: Instant, id: u64, answer: Option<(u16, &[u8])>) {
        let Stage::Upnp(upnp) = &mut self.stage else { return };
        let Some((_, asked)) = upnp.asked.take_if(|(waiting, _)| *waiting == id) else { return };
        let answer = match answer {
            None => Err(Refusal::Silent),
            Some((_, body)) if body.len() > BODY_LEN_MAX => Err(Refusal::Nonsense("it is too long")),
            Some((status, body)) => igd::answer(status, body),
        };
        match asked {
            Asked::Description => {
                let found = answer.and_then(|text| igd::services(text, &upnp.description, self.gateway));
                match found {
                    Ok(services) => upnp.services = services,
                    Err(refusal) => return self.give_up(Method::Upnp, refusal, now),
                }
            }
            Asked::Address => self.on_upnp_address(now, answer.and_then(igd::address)),
            Asked::Map { at, external } => self.on_upnp_map(now, at, external, answer.map(|_| ())),
            // Whatever it says: it cannot be asked for more.
            Asked::GiveBack { at } => self.gave_back(at),
        }
        self.ask_over_http(now);
    }

    fn on_upnp_address(&mut self, now: Instant, told: Result<Ipv4Addr, Refusal>) {
        let Stage::Upnp(upnp) = &mut self.stage else { return };
        let told = told.and_then(|ip| match may_be_outside(ip) {
            true => Ok(ip),
            false => Err(Refusal::Nonsense("nobody is reached at its address")),
        });
        match told {
            Ok(ip) => {
                if upnp.address.replace(ip).is_none() {
                    self.mappings.iter_mut().for_each(|mapping| mapping.at = Some(now));
                }
                upnp.address_at = Some(now + ADDRESS_EVERY);
                self.moved_to(Method::Upnp, ip);
            }
            // What was known stays.
            Err(_) if upnp.address.is_some() => upnp.address_at = Some(now + ADDRESS_EVERY),
            // Another of its ways out may be the one that is in use.
            Err(_) if upnp.at + 1 < upnp.services.len() => upnp.at += 1,
            Err(refusal) => self.give_up(Method::Upnp, refusal, now),
        }
    }

    fn on_upnp_map(&mut self, now: Instant, at: usize, external: u16, answer: Result<(), Refusal>) {
        let Stage::Upnp(upnp) = &mut self.stage else { return };
        let Some(address) = upnp.address else { return };
        let mapping = &mut self.mappings[at];
        let is_held = matches!(mapping.state, State::Held { .. });
        match answer {
            Ok(()) => {
                let lifetime = upnp.lifetime();
                self.accept(at, Method::Upnp, SocketAddrV4::new(address, external), lifetime, now);
            }
            Err(Refusal::Code(igd::PERMANENT_ONLY)) if !upnp.is_permanent => {
                upnp.is_permanent = true;
                mapping.at = Some(now);
            }
            Err(Refusal::Code(igd::CONFLICT)) if mapping.tries < NUMBERS_TRIED_MAX => {
                mapping.external = self.rng.u16(NUMBERS);
                mapping.at = Some(now);
            }
            // It does not want to, or not any more.
            Err(refusal) if !is_held || matches!(refusal, Refusal::Code(_)) => {
                self.refuse(at, refusal, now);
                self.settle(Method::Upnp, now);
            }
            // It is busy, or gone: what it holds may be there still.
            Err(_) => mapping.at = Some(now + AGAIN_FIRST.saturating_mul(1 << mapping.tries.min(6))),
        }
    }
}
