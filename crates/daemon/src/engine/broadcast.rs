//! Live streams whose source is here: how they are described when they come, where viewers find them, and how they end.
//!
//! The key that one is signed with is made when it is added, and kept: it makes the link, which stays the same over restarts. So do the
//! ports in it, where they are free.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_content::hex;
use anabranch_ppspp::link::{Link, SecureLink};
use anabranch_ppspp::pace::{PROBE_LEN, is_transport_stream};
use anabranch_ppspp::pem;
use anabranch_ppspp::sign::{SignatureAlgorithm, SigningKey};
use anabranch_swarm::ppspp::{COPIES_MAX_DEFAULT, LiveShare, Ports};
use anabranch_swarm::{ContentId, NodeId};
use serde_json::json;

use super::add::Described;
use super::bulk::{Reach, invalid, keys};
use super::{Engine, Refusal};
use crate::library::{Broadcast, Entry, Origin};

/// Live streams whose source is here: each keeps 32 MiB of itself in memory, for viewers who come late.
const BROADCASTS_MAX: usize = 16;
/// Bytes of what viewers see one called.
const NAME_BYTES_MAX: usize = 255;
/// What they see it called where nobody says: players go by the ending.
const NAME_DEFAULT: &str = "live.ts";
/// Least bytes a second.
const RATE_MIN: u64 = 1000;
/// Copies that may be sent from here.
const COPIES: std::ops::RangeInclusive<u64> = 2..=256;
/// After the end, those who lack some of it have so long to get it.
const LINGER_MAX: Duration = Duration::from_secs(10);
const LINGER_LOOK: Duration = Duration::from_millis(100);

/// A live stream to be added.
#[derive(Clone, Default)]
pub(crate) struct NewBroadcast {
    /// What viewers see it called.
    pub(crate) name: Option<String>,
    /// The file or pipe that it is read from; `None`: programs send it.
    pub(crate) input: Option<PathBuf>,
    /// What it is signed with, in PEM; `None`: a key is made.
    pub(crate) key: Option<String>,
    /// Bytes a second.
    pub(crate) rate: Option<u64>,
    /// Copies that are sent from here at most, on average.
    pub(crate) copies: Option<u64>,
    /// It goes inside QUIC alone.
    pub(crate) secure: bool,
    /// The keys that may watch it.
    pub(crate) keys: Option<BTreeSet<String>>,
}

impl Engine {
    /// What is known of a live stream before it is at work.
    pub(super) async fn describe_broadcast(&self, new: NewBroadcast) -> Result<Described, Refusal> {
        if new.keys.is_some() && !new.secure {
            return Err(invalid("allow", "left out, or `secure` be true: keys are proven inside QUIC alone"));
        }
        if new.rate.is_some_and(|rate| rate < RATE_MIN) {
            return Err(invalid("rate", format!("{RATE_MIN} bytes a second at least")));
        }
        let copies = new.copies.unwrap_or(COPIES_MAX_DEFAULT);
        if !COPIES.contains(&copies) {
            return Err(invalid("copies", format!("from {} to {}", COPIES.start(), COPIES.end())));
        }
        let allowed = new.keys.as_ref().map(keys).transpose()?;
        if self.state().contents.values().filter(|content| content.entry.broadcast().is_some()).count()
            >= BROADCASTS_MAX
        {
            let message = format!("the library holds {BROADCASTS_MAX} sources of live streams: remove some");
            return Err(Refusal::Conflict(message));
        }
        let input = new.input.map(|path| self.folders().admit_existing(&path)).transpose()?;
        if let Some(path) = input.clone() {
            let looked = tokio::task::spawn_blocking(move || look_at(&path, new.rate.is_some())).await;
            looked.map_err(|error| Refusal::Conflict(error.to_string()))??;
        }
        let of_input = || input.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let name = new.name.or_else(of_input).unwrap_or_else(|| NAME_DEFAULT.to_owned());
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(invalid("name", format!("a name of 1 to {NAME_BYTES_MAX} bytes in one line")));
        }
        let no_randomness = || Refusal::Conflict("the system has no randomness to make a key of".into());
        let key = match &new.key {
            Some(text) => pem::decode(text),
            None => Some(SigningKey::generate(SignatureAlgorithm::EcdsaP256Sha256).ok_or_else(no_randomness)?),
        };
        let read = key.and_then(|key| SigningKey::from_any_pkcs8(&key).ok().map(|read| (key, read)));
        let (key, public) = read.ok_or_else(|| {
            invalid(
                "key",
                "a PKCS#8 document in PEM of ECDSA with P-256 or P-384, or of RSA, as `openssl genpkey` writes them",
            )
        })?;
        let id = hex::encode(public.public().swarm_id());
        let (rate, secure, ports) = (new.rate, new.secure, (Vec::new(), None));
        let origin =
            Origin::Broadcast(Box::new(Broadcast { key, input, rate, copies, secure, allowed, runs: 0, ports }));
        Ok(Described { origin, hashes: vec![id], name, size: None, torrent: None, about: None })
    }

    /// Has the ports that links name be ours again. Before any content is in the session.
    pub(super) async fn prefer_ports(&self) {
        let kept = {
            let state = self.state();
            let mut kept = state.contents.values().filter_map(|content| content.entry.broadcast());
            kept.find(|broadcast| broadcast.ports != (Vec::new(), None)).map(|broadcast| broadcast.ports.clone())
        };
        if let Some((ip, scion)) = kept {
            // A session that ended needs no ports.
            let _ = self.handle.prefer_ppspp_ports(Ports { ip, scion }).await;
        }
    }

    /// A live stream is about to be begun once more.
    pub(super) async fn count_run(&self, id: u64) {
        let count = |entry: &mut Entry| {
            if let Origin::Broadcast(broadcast) = &mut entry.origin {
                broadcast.runs += 1;
            }
        };
        self.settle(id, count).await;
    }

    /// A live stream is in the session: from now on viewers find it by its link.
    pub(super) async fn on_air(&self, id: u64, mut link: Link) {
        let Ok((addresses, Ports { ip, scion })) = self.handle.ppspp_reach().await else { return };
        let Ok(entry) = self.entry(id) else { return };
        // Kept before it is told: the link has them.
        if entry.broadcast().is_some_and(|broadcast| broadcast.ports != (ip.clone(), scion)) {
            let settled = |entry: &mut Entry| {
                if let Origin::Broadcast(broadcast) = &mut entry.origin {
                    broadcast.ports = (ip.clone(), scion);
                }
            };
            self.settle(id, settled).await;
        }
        link.trackers = self.common.borrow().trackers.iter().chain(&entry.trackers).cloned().collect();
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        link.peers.clone_from(&addresses);
        let key = link.secure.as_ref().map(|secure| secure.key.clone());
        let reach = Reach { ticket: None, link: Some(link.to_string()), addresses, key };
        self.with(id, |content| content.live.reach = Some(reach));
        self.feed.tell("reachable", &json!({ "id": id }));
        if entry.is_complete() {
            // It is sent once more.
            self.learn(id, |entry| entry.completed = None);
        }
        self.announce(id);
    }

    /// Signs the end of a stream, and waits until those who watch have it.
    pub(super) async fn end_broadcast(&self, session: ContentId) {
        if self.handle.end_live(session).await.is_err() {
            return;
        }
        let until = Instant::now() + LINGER_MAX;
        while Instant::now() < until
            && let Ok(Some(state)) = self.handle.live_state(session).await
            && state.lacking_peers > 0
        {
            tokio::time::sleep(LINGER_LOOK).await;
        }
    }

    /// What a stream is read from came to its end, and so does the stream: it may be begun anew.
    pub(super) async fn broadcast_is_over(&self, id: u64, session: ContentId) {
        self.end_broadcast(session).await;
        let why = "its input was sent to the end: have it go on, and it is sent once more";
        self.learn(id, |entry| entry.completed = Some(super::unix_now()));
        self.settle(id, |entry| (entry.paused, entry.paused_because) = (true, Some(why.to_owned()))).await;
        self.with(id, |content| (content.live.waits, content.live.reopen) = (None, true));
        self.note(id, why.to_owned());
        self.changed.notify_one();
    }
}

/// What goes into the session; `own` is the key that the daemon proves to have.
pub(super) fn share(entry: &Entry, broadcast: &Broadcast, own: Option<NodeId>) -> Result<LiveShare, String> {
    let damaged = |_| "the key that it is signed with is damaged: remove it, and add it again".to_owned();
    let key = SigningKey::from_any_pkcs8(&broadcast.key).map_err(damaged)?;
    let mut share = LiveShare::new(key, Some(entry.name.clone())).map_err(|error| error.to_string())?;
    (share.copies_max, share.begins_at) = (broadcast.copies, broadcast.first_chunk());
    if broadcast.secure {
        let own = own.ok_or_else(|| {
            "the daemon has no key for secure streams, as it deals with those of --allow alone: start it without"
                .to_owned()
        })?;
        share.link.secure = Some(SecureLink { key: own.to_string(), is_private: broadcast.allowed.is_some() });
    }
    Ok(share)
}

/// Whether something of this machine can be broadcast. Blocks.
fn look_at(path: &Path, has_rate: bool) -> Result<(), Refusal> {
    let shown = path.display();
    let failed = |error: std::io::Error| Refusal::Source(format!("cannot read {shown}: {error}"));
    let metadata = path.metadata().map_err(failed)?;
    if metadata.file_type().is_fifo() {
        return Ok(());
    }
    if !metadata.is_file() {
        return Err(invalid("input", "a file or a pipe"));
    }
    let mut head = Vec::new();
    File::open(path).and_then(|file| file.take(PROBE_LEN as u64).read_to_end(&mut head)).map_err(failed)?;
    if head.is_empty() {
        return Err(invalid("input", "a file with something in it"));
    }
    if !has_rate && !is_transport_stream(&head) {
        let must = "given, in bytes a second: the input is no MPEG transport stream, whose clock would tell it";
        return Err(invalid("rate", must));
    }
    Ok(())
}
