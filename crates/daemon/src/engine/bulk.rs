//! Bulk transfers: how they are described when they come, and what is told of them at work.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anabranch_content::hex;
use anabranch_swarm::NodeId;
use anabranch_swarm::bulk::{self, Job, News, TICKET_SECRET_LEN, Task, Ticket, UselessTicket, check_ticket};
use serde_json::{Value, json};

use super::add::Described;
use super::live::{PathChange, Phase};
use super::view::path_name;
use super::{Completed, Engine, Refusal, Whole, unix_now};
use crate::library::{Bulk, Entry, Origin, Partner};

/// Bulk transfers of a library: each has threads and sockets of its own.
const BULK_MAX: usize = 100;
/// Keys that may send to one of them.
const KEYS_MAX: usize = 1000;
/// How long a ticket is good, where nobody says: a day. And at most: ten years.
const EXPIRES_SECONDS: u64 = 86_400;
const EXPIRES_SECONDS_MAX: u64 = 10 * 366 * 86_400;

/// A bulk transfer to be added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewBulk {
    /// What is sent; `None`: something is received.
    pub(crate) send: Option<PathBuf>,
    /// The ticket that somebody else made.
    pub(crate) ticket: Option<String>,
    /// The keys that may come, where no ticket is made.
    pub(crate) keys: Option<BTreeSet<String>>,
    /// How many may come with the ticket that is made.
    pub(crate) times: Option<u64>,
    /// How long it is good.
    pub(crate) expires_seconds: Option<u64>,
    /// The port to be called at over IP.
    pub(crate) port: Option<u64>,
    /// What is received goes over other files that are there.
    pub(crate) overwrite: bool,
}

/// How others come to a bulk transfer, or a live stream, at work.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    /// The ticket of a bulk transfer, a secret.
    pub(super) ticket: Option<String>,
    /// The link of a live stream.
    pub(super) link: Option<String>,
    pub(super) addresses: Vec<String>,
    /// The key that is proven to those who come.
    pub(super) key: Option<String>,
}

/// Keys of others, as they are printed.
pub(super) fn keys(given: &BTreeSet<String>) -> Result<BTreeSet<String>, Refusal> {
    let parsed = given.iter().map(|key| key.parse().map(|key: NodeId| key.to_string()));
    let must = "a list of 1 to 1000 keys, as `anabranch keys own` prints them";
    let parsed: BTreeSet<String> = parsed.collect::<Result<_, _>>().map_err(|_| invalid("allow", must))?;
    match parsed.len() {
        1..=KEYS_MAX => Ok(parsed),
        _ => Err(invalid("allow", must)),
    }
}

pub(super) fn invalid(field: &'static str, must: impl Into<String>) -> Refusal {
    Refusal::Invalid { field, must: must.into() }
}

impl NewBulk {
    /// Receives by a ticket.
    pub(crate) fn of_ticket(ticket: &str) -> Self {
        Self { ticket: Some(ticket.trim().to_owned()), ..Self::default() }
    }

    fn partner(&self) -> Result<Partner, Refusal> {
        let is_made = self.ticket.is_none() && self.keys.is_none();
        for (field, is_given) in [("times", self.times.is_some()), ("expires_seconds", self.expires_seconds.is_some())]
        {
            if is_given && !is_made {
                return Err(invalid(field, "left out: it is about a ticket that is made here, and none is"));
            }
        }
        if self.port.is_some() && self.ticket.is_some() {
            return Err(invalid("port", "left out: with a ticket, this end calls"));
        }
        match (&self.ticket, &self.keys) {
            (Some(_), Some(_)) => Err(invalid("allow", "left out: with a ticket, this end calls")),
            (Some(text), None) => {
                let ticket: Ticket =
                    text.parse().map_err(|error: bulk::TicketError| Refusal::Source(error.to_string()))?;
                check_ticket(&ticket, self.send.is_some(), SystemTime::now()).map_err(useless)?;
                Ok(Partner::Ticket(ticket.to_string()))
            }
            (None, Some(given)) => Ok(Partner::Allowed(keys(given)?)),
            (None, None) => {
                let times = self.times.unwrap_or(1);
                let times = u16::try_from(times).ok().filter(|times| *times > 0);
                let times = times.ok_or_else(|| invalid("times", "a whole number from 1 to 65535"))?;
                let seconds = self.expires_seconds.unwrap_or(EXPIRES_SECONDS);
                if !(1..=EXPIRES_SECONDS_MAX).contains(&seconds) {
                    return Err(invalid("expires_seconds", format!("from 1 to {EXPIRES_SECONDS_MAX}")));
                }
                let secret = bulk::ticket_secret().map_err(|error| Refusal::Conflict(error.to_string()))?;
                Ok(Partner::Invited { secret: hex::encode(&secret), expires: unix_now() + seconds, times })
            }
        }
    }
}

fn useless(useless: UselessTicket) -> Refusal {
    Refusal::Source(match useless {
        UselessTicket::ForSending => {
            "this ticket is one for sending: say what is to be sent to who made it (`send` with `ticket`, or \
             `anabranch add PATH --to TICKET`)"
                .to_owned()
        }
        UselessTicket::ForReceiving => {
            "this ticket is one for receiving: give it as `receive` with `ticket`, or to `anabranch add TICKET`"
                .to_owned()
        }
        UselessTicket::Expired(_) => "the ticket expired: ask for a new one".to_owned(),
    })
}

impl Engine {
    /// What is known of a bulk transfer before it is at work.
    pub(super) fn describe_bulk(&self, new: NewBulk) -> Result<Described, Refusal> {
        let partner = new.partner()?;
        if new.overwrite && new.send.is_some() {
            return Err(invalid("overwrite", "left out: nothing is received"));
        }
        let port = new.port.unwrap_or(0);
        let port = u16::try_from(port).map_err(|_| invalid("port", "a whole number from 0 to 65535"))?;
        if self.state().contents.values().filter(|content| content.entry.bulk().is_some()).count() >= BULK_MAX {
            return Err(Refusal::Conflict(format!("the library holds {BULK_MAX} bulk transfers: remove some")));
        }
        let send = new.send.map(|path| self.folders().admit_existing(&path)).transpose()?;
        let name = match (&send, &partner) {
            (Some(path), _) => path.file_name().map(|name| name.to_string_lossy().into_owned()),
            (None, Partner::Ticket(ticket)) => {
                let address = ticket.parse().ok().and_then(|ticket: Ticket| ticket.addresses.first().copied());
                address.map(|address| format!("from {address}"))
            }
            (None, _) => Some("incoming".to_owned()),
        };
        let name = name.ok_or_else(|| invalid("send", "a file or a folder that has a name"))?;
        let origin = Origin::Bulk(Box::new(Bulk { send, partner, overwrite: new.overwrite, ports: (port, 0) }));
        Ok(Described { origin, hashes: Vec::new(), name, size: None, torrent: None, about: None })
    }

    /// That no option is given that means nothing to a bulk transfer; `is_live`: to a live stream, which has trackers and peers.
    pub(super) fn check_apart(options: &Entry, is_live: bool) -> Result<(), Refusal> {
        let given = [
            ("trackers", !is_live && !options.trackers.is_empty()),
            ("web_seeds", !options.web_seeds.is_empty()),
            ("peers", !is_live && !options.peers.is_empty()),
            ("sequential", options.sequential),
            ("edges_first", options.edges_first),
            ("super_seed", options.super_seed),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((field, _)) if is_live => Err(invalid(field, "left out: a live stream has none")),
            Some((field, _)) => Err(invalid(field, "left out: a bulk transfer has none")),
            None => Ok(()),
        }
    }

    /// That a content has files to look at, where something is asked that is not done with bulk transfers and live streams.
    pub(super) fn has_files(&self, id: u64) -> Result<(), Refusal> {
        match self.entry(id)?.origin {
            Origin::Live(_) | Origin::Broadcast(_) => Err(Refusal::Conflict(format!(
                "content {id} is a live stream, which is not kept: there is nothing to check, move or choose among"
            ))),
            Origin::Torrent | Origin::Magnet(_) | Origin::Link(_) | Origin::Path { .. } => Ok(()),
            Origin::Bulk(_) => Err(Refusal::Conflict(format!(
                "content {id} is a bulk transfer: its files come whole, in any order, and stay where they are; they are not \
                 listed, chosen among, checked, moved or played"
            ))),
        }
    }

    /// How others come to a bulk transfer, with its ticket, or by its addresses and its key; and how to a live stream whose source is here, by
    /// its link. Nothing of other contents, and of those that are not at work.
    pub(crate) fn reach(&self, id: u64) -> Result<Value, Refusal> {
        self.entry(id)?;
        let reach = self.with(id, |content| content.live.reach.clone()).flatten();
        let (ticket, link, addresses, key) = match reach {
            Some(reach) => (reach.ticket, reach.link, reach.addresses, reach.key),
            None => (None, None, Vec::new(), None),
        };
        Ok(json!({ "ticket": ticket, "link": link, "addresses": addresses, "key": key }))
    }

    /// What the session tells of a bulk transfer.
    pub(super) async fn on_bulk(&self, id: u64, news: News) {
        let at = unix_now();
        match news {
            News::Begun { bytes_total } => {
                self.with(id, |content| content.live.phase = Phase::Open);
                if bytes_total.is_some() {
                    self.learn(id, |entry| (entry.size, entry.done) = (bytes_total, 0));
                }
            }
            News::Reachable { ticket, addresses, key, ports } => {
                // Kept before it is told: the ticket has them.
                self.settle_bulk(id, |bulk| bulk.ports = ports).await;
                let addresses = addresses.iter().map(ToString::to_string).collect();
                let reach = Reach { ticket, link: None, addresses, key: Some(key.to_string()) };
                self.with(id, |content| content.live.reach = Some(reach));
                self.feed.tell("reachable", &json!({ "id": id }));
            }
            News::Offered { peer, name, bytes_total, bytes_kept } => {
                let kept =
                    if bytes_kept > 0 { format!(", of which {bytes_kept} are there already") } else { String::new() };
                self.note(id, format!("{name}, {bytes_total} bytes{kept}, with {peer}"));
                self.learn(id, |entry| {
                    if entry.bulk().is_some_and(|bulk| bulk.send.is_none() && bulk.is_once()) {
                        entry.name.clone_from(&name);
                    }
                    (entry.size, entry.done) = (Some(bytes_total), bytes_kept);
                });
            }
            News::Path { peer, path, is_up, reason } => {
                let state = if is_up { "active" } else { "down" };
                let (peer, path) = (peer.to_string(), path_name(&path));
                let told = json!({ "id": id, "peer": peer, "path": path, "state": state, "reason": reason });
                let change = PathChange { at, peer, path, state: state.to_owned(), reason };
                self.with(id, |content| content.live.path_change(change));
                self.feed.tell("path", &told);
            }
            News::Waits(waits) => {
                self.with(id, |content| content.live.waits = waits);
            }
            News::Note(text) => self.note(id, text),
            News::Delivered { peer, key, name, bytes_total, placed } => {
                self.note(
                    id,
                    format!(
                        "{name}, {bytes_total} bytes, is complete and verified, with {peer}, which has the key {key}"
                    ),
                );
                self.settle_bulk(id, |bulk| {
                    if let Partner::Invited { times, .. } = &mut bulk.partner {
                        *times = times.saturating_sub(1);
                    }
                })
                .await;
                self.look_at(id).await;
                self.keep_totals().await;
                if let Some(placed) = placed {
                    self.tell_received(id, Whole::Bulk { name, bytes: bytes_total, placed });
                }
            }
            News::Over(why) => {
                let is_new = self.with(id, |content| content.entry.completed.is_none());
                let done = self.with(id, |content| content.entry.size).flatten();
                self.learn(id, |entry| {
                    entry.completed = entry.completed.or(Some(at));
                    entry.done = done.unwrap_or(entry.done);
                });
                self.settle(id, |entry| (entry.paused, entry.paused_because) = (true, Some(why.clone()))).await;
                self.with(id, |content| (content.live.waits, content.live.reach) = (None, None));
                if is_new == Some(true) {
                    self.note(id, why);
                }
                self.changed.notify_one();
            }
        }
        self.announce(id);
    }

    /// Tells who does something about it that something came whole.
    fn tell_received(&self, id: u64, what: Whole) {
        let of = self.with(id, |content| content.live.session.map(|session| (session, content.entry.dir.clone())));
        if let (Some(completed), Some((session, dir))) = (&self.completed, of.flatten()) {
            // Nobody has to hear of it.
            let _ = completed.try_send(Completed { session, what, dir });
        }
    }

    /// Changes what is kept of a bulk transfer alone. It is on the disk when this is done.
    async fn settle_bulk(&self, id: u64, change: impl Fn(&mut Bulk)) {
        let is_news = |bulk: &Bulk| {
            let mut after = bulk.clone();
            change(&mut after);
            after != *bulk
        };
        if !self.with(id, |content| content.entry.bulk().is_some_and(is_news)).unwrap_or(false) {
            return;
        }
        let settled = |entry: &mut Entry| {
            if let Origin::Bulk(bulk) = &mut entry.origin {
                change(bulk);
            }
        };
        self.settle(id, settled).await;
    }
}

/// What goes into the session.
pub(super) fn task(entry: &Entry, bulk: &Bulk) -> Result<Task, String> {
    let partner = match &bulk.partner {
        Partner::Ticket(ticket) => {
            let ticket: Ticket = ticket.parse().map_err(|error: bulk::TicketError| error.to_string())?;
            bulk::Partner::Ticket(ticket)
        }
        Partner::Invited { secret, expires, times } => {
            let bytes = hex::decode::<TICKET_SECRET_LEN>(secret);
            let secret =
                bytes.ok_or_else(|| "the secret of its ticket is damaged: remove it, and add it again".to_owned())?;
            bulk::Partner::Invited { secret, expires: UNIX_EPOCH + Duration::from_secs(*expires), times: *times }
        }
        Partner::Allowed(keys) => {
            let keys = keys.iter().map(|key| key.parse::<NodeId>());
            bulk::Partner::Allowed(keys.collect::<Result<_, _>>().map_err(|error| error.to_string())?)
        }
    };
    let job = bulk.send.clone().map_or(Job::Receive, |path| Job::Send(vec![path]));
    Ok(Task { job, partner, ports: bulk.ports, is_over: entry.is_complete() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_at_the_other_end_is_settled_by_what_is_given_and_contradictions_are_named() {
        let key = NodeId::from_bytes([7; 32]).to_string();
        let keys = |keys: &[&str]| Some(keys.iter().map(|key| (*key).to_owned()).collect());
        let new = NewBulk::default();
        assert!(matches!(new.partner(), Ok(Partner::Invited { times: 1, .. })));
        let all = NewBulk { keys: keys(&[&key]), port: Some(7), ..NewBulk::default() };
        assert_eq!(all.partner().unwrap(), Partner::Allowed([key.clone()].into()));
        let ticket = || NewBulk::of_ticket("bulk1-nonsense");
        for (wrong, field) in [
            (NewBulk { times: Some(0), ..NewBulk::default() }, "times"),
            (NewBulk { times: Some(65_536), ..NewBulk::default() }, "times"),
            (NewBulk { expires_seconds: Some(0), ..NewBulk::default() }, "expires_seconds"),
            (NewBulk { expires_seconds: Some(u64::MAX), ..NewBulk::default() }, "expires_seconds"),
            (NewBulk { keys: keys(&[]), ..NewBulk::default() }, "allow"),
            (NewBulk { keys: keys(&["nobody"]), ..NewBulk::default() }, "allow"),
            (NewBulk { times: Some(2), ..all.clone() }, "times"),
            (NewBulk { keys: keys(&[&key]), ..ticket() }, "allow"),
            (NewBulk { port: Some(7), ..ticket() }, "port"),
            (NewBulk { expires_seconds: Some(5), ..ticket() }, "expires_seconds"),
        ] {
            assert!(
                matches!(wrong.partner(), Err(Refusal::Invalid { field: named, .. }) if named == field),
                "{wrong:?}"
            );
        }
        assert!(matches!(ticket().partner(), Err(Refusal::Source(_))));
    }
}
