//! Answers others' queries.

use std::time::{Duration, Instant};

use anabranch_paths::compact::is_dialable;
use anabranch_paths::{Endpoint, Host};

use super::{Dht, HomeId};
use crate::family::{Contact, Family};
use crate::id::NodeId;
use crate::items::Item;
use crate::table::BUCKET_LEN;
use crate::wire::{Answer, Ask, Body, Message, Query, Refusal, Samples, Want};

/// Bytes of an answer: with headers it fits in a packet of Ethernet over IPv6, and in what tunnels leave of one.
pub(super) const ANSWER_LEN_MAX: usize = 1400;
/// The same over SCION, which cuts nothing: what all paths carry that are used at all, as they carry QUIC (RFC 9000 §14.1).
const ANSWER_LEN_MAX_SCION: usize = 1200;
/// Peers told at once: as many as fit beside the rest.
const VALUES_MAX: usize = 50;
/// Info-hashes told at once (BEP 51).
const SAMPLES_MAX: usize = 20;
/// Whoever asks again before tells the same ones (BEP 51, "interval").
const SAMPLES_CHANGE_EVERY: Duration = Duration::from_secs(10 * 60);

impl Dht {
    pub(super) fn answer(
        &mut self,
        home: HomeId,
        (from, query_len): (Endpoint, usize),
        message: &Message<'_>,
        query: &Query<'_>,
        now: Instant,
    ) {
        if self.config.read_only || !self.limits.takes_query(&from, now) {
            self.ignored += 1;
            return;
        }
        // BEP 43: who answers no queries is of no use in a table.
        if !message.read_only {
            self.heard_of(home, Contact { id: query.id, address: from }, now);
        }
        let token = self.tokens.of(&from, now);
        let kept = match &query.ask {
            Ask::Get { target, .. } => self.items.get(target, now).cloned(),
            _ => None,
        };
        match self.judge(home, &from, query, (&token, kept.as_ref()), now) {
            Ok(answer) => self.send_answer(home, (from, query_len), message.transaction, Body::Answer(answer), now),
            Err(refusal) => self.refuse(home, (from, query_len), message.transaction, refusal, now),
        }
    }

    /// A query cannot be read: it costs its sender as much as one that can.
    pub(super) fn refuse_unread(
        &mut self,
        home: HomeId,
        from: (Endpoint, usize),
        transaction: &[u8],
        refusal: Refusal,
        now: Instant,
    ) {
        if self.config.read_only || !self.limits.takes_query(&from.0, now) {
            self.ignored += 1;
            return;
        }
        self.refuse(home, from, transaction, refusal, now);
    }

    fn refuse(&mut self, home: HomeId, from: (Endpoint, usize), transaction: &[u8], refusal: Refusal, now: Instant) {
        let text = refusal.to_string();
        self.send_answer(home, from, transaction, Body::Error { code: refusal.code(), text: text.as_bytes() }, now);
    }

    fn judge<'a>(
        &mut self,
        home: HomeId,
        from: &Endpoint,
        query: &Query<'_>,
        (token, kept): (&'a [u8], Option<&'a Item>),
        now: Instant,
    ) -> Result<Box<Answer<'a>>, Refusal> {
        let own = self.homes.get(&home).map_or(NodeId([0; 20]), |home| home.table.own());
        let family = Family::of(from);
        let mut answer = Box::new(Answer::new(own));
        let asks_for_nodes = !matches!(query.ask, Ask::Ping | Ask::AnnouncePeer { .. } | Ask::Put { .. });
        answer.lists = Some(family).filter(|family| asks_for_nodes && query.want.is_none_or(|want| want.has(*family)));
        match &query.ask {
            Ask::Ping => {}
            Ask::FindNode { target } => answer.nodes = self.nearest(target, query.want, from, now),
            Ask::GetPeers { info_hash, no_seeds, scrape } => {
                answer.nodes = self.nearest(info_hash, query.want, from, now);
                answer.token = Some(token);
                answer.values = self.peers.some(info_hash, (family, *no_seeds), VALUES_MAX, &mut self.rng, now);
                let policy = &self.config.policy;
                answer.values.retain(|value| policy.fits(value, from));
                if *scrape {
                    answer.scrape = self.peers.scrape(info_hash, family, now).map(Box::new);
                }
            }
            Ask::AnnouncePeer { info_hash, port, seed, token } => {
                self.check_token(token, from, now)?;
                let address = at_port(from, port.unwrap_or(from.socket_addr().port()));
                if !is_dialable(&address) {
                    return Err(Refusal::Protocol("port"));
                }
                self.peers.announce(*info_hash, address, *seed, now);
            }
            Ask::Get { target, seq } => {
                answer.nodes = self.nearest(target, query.want, from, now);
                answer.token = Some(token);
                if let Some(item) = kept {
                    answer.seq = item.owner.as_ref().map(|owner| owner.seq);
                    // BEP 44: an item that the asker has already is not sent again.
                    if answer.seq.is_none() || answer.seq > *seq {
                        answer.item = Some(&item.value);
                        answer.item_key = item.owner.as_ref().map(|owner| (&owner.key, &owner.signature));
                    }
                }
            }
            Ask::Put { token, value, mutable, cas } => {
                self.check_token(token, from, now)?;
                self.items.put(Item::received(value, mutable.as_ref()), *cas, Host::of(from), now)?;
            }
            Ask::SampleInfohashes { target } => {
                answer.nodes = self.nearest(target, query.want, from, now);
                let period = SAMPLES_CHANGE_EVERY.as_secs();
                let (hashes, total) = self.peers.sample(SAMPLES_MAX, self.sample_seed(now, period));
                answer.samples = Some(Samples { hashes, total: total as u32, interval: period as u32 });
            }
        }
        Ok(answer)
    }

    fn sample_seed(&self, now: Instant, period: u64) -> u64 {
        self.config.seed ^ (self.asking.age(now).as_secs() / period)
    }

    fn check_token(&mut self, token: &[u8], from: &Endpoint, now: Instant) -> Result<(), Refusal> {
        if !self.tokens.is_valid(token, from, now) {
            return Err(Refusal::Token);
        }
        self.limits.proven(from, now);
        Ok(())
    }

    /// The nodes nearest to `target` in the networks that are wanted, and that are the asker's business.
    fn nearest(&self, target: &NodeId, want: Option<Want>, from: &Endpoint, now: Instant) -> Vec<Contact> {
        let want = want.unwrap_or_else(|| Want::of([Family::of(from)]));
        let mut found = Vec::new();
        for family in Family::ALL.into_iter().filter(|family| want.has(*family)) {
            let of_family = self.homes.values().filter(|home| home.family == family);
            let mut nearest: Vec<Contact> =
                of_family.flat_map(|home| home.table.nearest(target, 2 * BUCKET_LEN, now)).collect();
            nearest.retain(|contact| contact.address != *from && self.config.policy.fits(&contact.address, from));
            nearest.sort_by_key(|contact| (contact.id.distance(target), contact.address));
            nearest.dedup_by_key(|contact| contact.id);
            nearest.truncate(BUCKET_LEN);
            found.extend(nearest);
        }
        found
    }

    /// Cuts an answer to what may be sent there, and sends it, if anything is left.
    fn send_answer(
        &mut self,
        home: HomeId,
        (from, query_len): (Endpoint, usize),
        transaction: &[u8],
        body: Body<'_>,
        now: Instant,
    ) {
        let fitting = if from.as_scion().is_some() { ANSWER_LEN_MAX_SCION } else { ANSWER_LEN_MAX };
        let len_max = self.limits.answer_len_max(&from, query_len, now).min(fitting);
        let version = self.config.version;
        let mut message =
            Message { transaction, version: Some(&version), your_address: Some(from), read_only: false, body };
        loop {
            let bytes = message.encode();
            if bytes.len() <= len_max {
                self.limits.answered(&from, query_len, bytes.len(), now);
                self.answered += 1;
                self.send(home, from, bytes);
                return;
            }
            if !shorten(&mut message) {
                self.ignored += 1;
                return;
            }
        }
    }
}

/// Leaves out of an answer what can best be done without; `false` where nothing can.
fn shorten(message: &mut Message<'_>) -> bool {
    if let Body::Answer(answer) = &mut message.body {
        if answer.scrape.take().is_some() {
            return true;
        }
        if answer.values.len() > 4 {
            answer.values.truncate(answer.values.len() / 2);
            return true;
        }
        if let Some(samples) = answer.samples.as_mut().filter(|samples| !samples.hashes.is_empty()) {
            samples.hashes.truncate(samples.hashes.len() / 2);
            return true;
        }
        if answer.nodes.len() > 1 || answer.item.is_some() && !answer.nodes.is_empty() {
            answer.nodes.truncate(answer.nodes.len() / 2);
            return true;
        }
        if !answer.values.is_empty() {
            answer.values.clear();
            return true;
        }
        if answer.item.take().is_some() {
            answer.item_key = None;
            return true;
        }
        if !answer.nodes.is_empty() {
            answer.nodes.clear();
            return true;
        }
    }
    message.version.take().is_some() || message.your_address.take().is_some()
}

/// The same host at another port.
pub(super) fn at_port(address: &Endpoint, port: u16) -> Endpoint {
    match *address {
        Endpoint::Ip(mut address) => {
            address.set_port(port);
            address.into()
        }
        Endpoint::Scion(mut address) => {
            address.host.set_port(port);
            address.into()
        }
    }
}
