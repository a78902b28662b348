//! Contents come: by torrent file, magnet link, link of PPSPP, ticket, or a path to share, to send or to broadcast.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_content::hex;
use anabranch_content::info::InfoHashes;
use anabranch_content::magnet::Magnet;
use anabranch_content::metainfo::{Metainfo, NameRules, is_web_seed};
use anabranch_ppspp::link::Link;
use anabranch_swarm::Download;

use super::broadcast::NewBroadcast;
use super::bulk::NewBulk;
use super::{CONTENTS_MAX, Content, Engine, Refusal, unix_now};
use crate::library::{About, Entry, Origin, Totals, is_name};
use crate::store::Change;

/// Tags of a content; trackers and peers that are named for it.
const TAGS_MAX: usize = 64;
const TRACKERS_MAX: usize = 100;
const PEERS_MAX: usize = 100;
/// Addresses of its own that a content goes without.
const WITHOUT_MAX: usize = 400;
/// How long somebody who adds what is just being removed waits for that, and how often it is looked.
const GONE_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// Bytes of a torrent file that is fetched: as many as may be sent.
pub(super) const FETCH_BYTES_MAX: usize = 32 << 20;
/// Bytes of what its user calls a content.
const TITLE_BYTES_MAX: usize = 512;
/// Bytes of a tracker's address.
const URL_BYTES_MAX: usize = 2048;

/// What is to be added.
pub(crate) enum NewSource {
    /// The bytes of a torrent file.
    Torrent(Vec<u8>),
    /// A magnet link or a link of PPSPP.
    Link(String),
    /// An address that a torrent file is fetched from.
    Url(String),
    /// A file or folder to share.
    Path(PathBuf),
    /// A bulk transfer.
    Bulk(NewBulk),
    /// A live stream whose source is here.
    Broadcast(NewBroadcast),
}

/// A content to be added, and how to treat it.
pub(crate) struct NewContent {
    /// What it is.
    pub(crate) source: NewSource,
    /// Where its files go.
    pub(crate) dir: Option<PathBuf>,
    /// Whether it waits; where nobody says, as the settings do.
    pub(crate) paused: Option<bool>,
    /// It goes before all that wait.
    pub(crate) to_front: bool,
    /// How to treat it; whatever else is in there is not looked at.
    pub(crate) options: Entry,
}

impl NewContent {
    /// With nothing said about it.
    pub(crate) fn new(source: NewSource) -> Self {
        let options = Entry::new(0, Origin::Torrent, String::new(), PathBuf::new());
        Self { source, dir: None, paused: None, to_front: false, options }
    }
}

/// What is known of a source before it is at work.
pub(super) struct Described {
    pub(super) origin: Origin,
    pub(super) hashes: Vec<String>,
    pub(super) name: String,
    pub(super) size: Option<u64>,
    pub(super) torrent: Option<Vec<u8>>,
    pub(super) about: Option<Arc<About>>,
}

impl Described {
    /// What nobody else may have.
    fn names(&self) -> Vec<String> {
        let path = match &self.origin {
            Origin::Path { path, .. } => Some(path.to_string_lossy().into_owned()),
            Origin::Bulk(bulk) => bulk.ticket().map(str::to_owned),
            _ => None,
        };
        self.hashes.iter().cloned().chain(path).collect()
    }
}

/// Names that nobody else may add under, as long as this lives.
struct Adding<'a> {
    engine: &'a Engine,
    names: Vec<String>,
}

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        let mut state = self.engine.state.borrow_mut();
        for name in &self.names {
            state.adding.remove(name);
        }
    }
}

impl Engine {
    /// Adds a content. It is kept when this is done, and put to work when it is its turn.
    pub(crate) async fn add(&self, new: NewContent) -> Result<u64, Refusal> {
        let NewContent { source, dir, paused, to_front, options } = new;
        check(&options)?;
        let described = match source {
            NewSource::Torrent(bytes) => torrent(bytes).await?,
            NewSource::Link(text) => link(&text)?,
            NewSource::Url(url) => match self.fetch(&url).await? {
                Download::Bytes(bytes) => torrent(bytes).await?,
                Download::Magnet(text) => link(&text)?,
            },
            NewSource::Path(path) => self.path(path)?,
            NewSource::Bulk(bulk) => {
                Self::check_apart(&options, false)?;
                self.describe_bulk(bulk)?
            }
            NewSource::Broadcast(broadcast) => {
                Self::check_apart(&options, true)?;
                self.describe_broadcast(broadcast).await?
            }
        };
        let is_apart = matches!(described.origin, Origin::Bulk(_) | Origin::Live(_) | Origin::Broadcast(_));
        let dir = match (&described.origin, dir) {
            (Origin::Bulk(bulk), None) if bulk.send.is_some() => {
                bulk.send.as_deref().and_then(Path::parent).map(PathBuf::from).unwrap_or_default()
            }
            (Origin::Bulk(bulk), Some(_)) if bulk.send.is_some() => {
                return Err(Refusal::Invalid { field: "dir", must: "left out: what is sent stays where it is".into() });
            }
            (Origin::Path { path, .. }, None) => path.parent().map(PathBuf::from).unwrap_or_default(),
            (Origin::Path { .. }, Some(_)) => {
                return Err(Refusal::Invalid {
                    field: "dir",
                    must: "left out: what is shared stays where it is".into(),
                });
            }
            (Origin::Broadcast(_), Some(_)) => {
                return Err(Refusal::Invalid {
                    field: "dir",
                    must: "left out: nothing of a live stream is kept".into(),
                });
            }
            (_, dir) => {
                let settings = self.settings();
                let of_category = options.category.as_ref().and_then(|name| settings.categories.get(name).cloned());
                self.folders().admit(&dir.or(of_category.flatten()).unwrap_or(settings.dir))?
            }
        };
        self.wait_gone(&described.hashes).await;
        // What is shared from its place is there.
        let incomplete = self.with_settings(|settings| settings.incomplete_dir.clone());
        let incomplete = incomplete.filter(|_| !is_apart && !matches!(described.origin, Origin::Path { .. }));
        let names = described.names();
        while names.iter().any(|name| self.state().adding.contains(name)) {
            // What becomes of that decides.
            tokio::time::sleep(POLL).await;
        }
        let _adding = self.reserve(&described, names)?;
        let (id, next) = self.next_id();
        let first = || self.state().contents.values().map(|content| content.entry.rank).min().unwrap_or(0) - 1;
        let entry = Entry {
            id,
            origin: described.origin,
            hashes: described.hashes,
            name: described.name,
            final_dir: incomplete.as_ref().map(|_| dir.clone()),
            dir: incomplete.unwrap_or(dir),
            size: described.size,
            about: described.about,
            added: unix_now(),
            paused: paused.unwrap_or_else(|| self.with_settings(|settings| settings.add_paused)),
            rank: if to_front { first() } else { 0 },
            // A bulk transfer waits for others for most of its time, a live stream for nobody: they take no place in the queue.
            forced: options.forced || is_apart,
            ..options
        };
        let batch = vec![next, (Entry::key(id), Some(entry.to_json()))];
        let torrents = described.torrent.map(|bytes| (id, bytes)).into_iter().collect();
        // Others may be added meanwhile, and are kept with it at once.
        self.store.write(Change { batch, torrents, gone: Vec::new() }).await?;
        self.state.borrow_mut().insert(Content::new(entry, Totals::default()));
        self.announce(id);
        self.changed.notify_one();
        Ok(id)
    }

    /// Sees to it that what is to be added is not there, and is not added by others meanwhile.
    fn reserve(&self, described: &Described, names: Vec<String>) -> Result<Adding<'_>, Refusal> {
        let mut state = self.state.borrow_mut();
        if let Some(there) = described.hashes.iter().find_map(|hash| state.by_hash.get(hash)) {
            return Err(Refusal::Duplicate(described.name.clone(), *there));
        }
        let same_path = |content: &&Content| match (&content.entry.origin, &described.origin) {
            (Origin::Bulk(one), Origin::Bulk(other)) => one.is_same(other),
            (one, other) => one == other,
        };
        if let Some(there) = state.contents.values().filter(|_| described.hashes.is_empty()).find(same_path) {
            return Err(Refusal::Duplicate(described.name.clone(), there.entry.id));
        }
        if state.contents.len() + state.adding.len() >= CONTENTS_MAX {
            return Err(Refusal::Full);
        }
        state.adding.extend(names.iter().cloned());
        Ok(Adding { engine: self, names })
    }

    /// Waits until those of these hashes are gone that are on their way out.
    async fn wait_gone(&self, hashes: &[String]) {
        let began = Instant::now();
        let is_going = || {
            let state = self.state();
            let content = hashes.iter().find_map(|hash| state.contents.get(state.by_hash.get(hash)?));
            content.is_some_and(|content| content.entry.going.is_some())
        };
        while is_going() && began.elapsed() < GONE_MAX {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Fetches a torrent file: from the Internet, or from a host of the local network that the user named.
    async fn fetch(&self, url: &str) -> Result<Download, Refusal> {
        let hosts = self.common.borrow().fetch_hosts.clone();
        let _place = self.fetching.acquire().await.map_err(|error| Refusal::Conflict(error.to_string()))?;
        Ok(self.handle.download(url, FETCH_BYTES_MAX, &hosts).await?)
    }

    /// A path to share.
    fn path(&self, path: PathBuf) -> Result<Described, Refusal> {
        let path = self.folders().admit_existing(&path)?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let Some(name) = name else {
            return Err(Refusal::Invalid { field: "path", must: "a file or a folder that has a name".into() });
        };
        let origin = Origin::Path { path, seal: None };
        Ok(Described { origin, hashes: Vec::new(), name, size: None, torrent: None, about: None })
    }
}

/// Whether options can be taken.
pub(crate) fn check(options: &Entry) -> Result<(), Refusal> {
    let refuse = |field, must: String| Err(Refusal::Invalid { field, must });
    let plain = "a name of at most 128 bytes without commas and line breaks";
    if options.category.as_deref().is_some_and(|name| !is_name(name)) {
        return refuse("category", plain.into());
    }
    let tags: &BTreeSet<String> = &options.tags;
    if tags.len() > TAGS_MAX || !tags.iter().all(|tag| is_name(tag)) {
        return refuse("tags", format!("at most {TAGS_MAX}, each {plain}"));
    }
    let is_url = |url: &String| {
        url.len() <= URL_BYTES_MAX && ["http://", "https://", "udp://"].iter().any(|scheme| url.starts_with(scheme))
    };
    if options.trackers.len() > TRACKERS_MAX || !options.trackers.iter().all(is_url) {
        return refuse("trackers", format!("at most {TRACKERS_MAX} addresses of trackers (http, https, udp)"));
    }
    let is_server = |url: &String| url.len() <= URL_BYTES_MAX && is_web_seed(url);
    if options.web_seeds.len() > TRACKERS_MAX || !options.web_seeds.iter().all(is_server) {
        return refuse("web_seeds", format!("at most {TRACKERS_MAX} addresses of HTTP servers"));
    }
    if options.without.len() > WITHOUT_MAX || options.without.iter().any(|url| url.len() > URL_BYTES_MAX) {
        return refuse("without", format!("at most {WITHOUT_MAX} addresses"));
    }
    let is_title =
        |title: &String| !title.is_empty() && title.len() <= TITLE_BYTES_MAX && !title.chars().any(char::is_control);
    if !options.title.as_ref().is_none_or(is_title) {
        return refuse("name", format!("a name of at most {TITLE_BYTES_MAX} bytes in one line"));
    }
    let is_peer = |peer: &String| anabranch_swarm::parse_peer(peer).is_some();
    if options.peers.len() > PEERS_MAX || !options.peers.iter().all(is_peer) {
        return refuse("peers", format!("at most {PEERS_MAX} addresses with ports"));
    }
    Ok(())
}

/// Names of a torrent, v1 first; of v2 also the short one that peers use.
pub(super) fn names(hashes: &InfoHashes) -> Vec<String> {
    let v1 = hashes.v1.map(|hash| hex::encode(&hash));
    let v2 = hashes.v2.map(|hash| hex::encode(&hash));
    let short = hashes.v2_truncated().map(|hash| hex::encode(&hash));
    v1.into_iter().chain(v2).chain(short).collect()
}

async fn torrent(bytes: Vec<u8>) -> Result<Described, Refusal> {
    let parse = move || Metainfo::parse_for(&bytes, &NameRules::EXACT).map(|metainfo| (metainfo, bytes));
    let parsed = tokio::task::spawn_blocking(parse).await;
    let (metainfo, bytes) = parsed.map_err(|error| Refusal::Conflict(error.to_string()))??;
    Ok(Described {
        origin: Origin::Torrent,
        hashes: names(&metainfo.info.hashes),
        name: metainfo.info.name.clone(),
        size: Some(metainfo.info.content_size()),
        about: Some(Arc::new(About::of(&metainfo))),
        torrent: Some(bytes),
    })
}

fn link(text: &str) -> Result<Described, Refusal> {
    let text = text.trim();
    let begins = |prefix: &str| text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
    if begins("magnet:") {
        let magnet: Magnet =
            text.parse().map_err(|error: anabranch_content::magnet::MagnetError| Refusal::Source(error.to_string()))?;
        let hashes = names(&magnet.hashes);
        let name = magnet.name.clone().or_else(|| hashes.first().cloned()).unwrap_or_default();
        let origin = Origin::Magnet(text.to_owned());
        return Ok(Described { origin, hashes, name, size: None, torrent: None, about: None });
    }
    if begins("ppspp:") || begins("tswift:") {
        let link: Link =
            text.parse().map_err(|error: anabranch_ppspp::link::LinkError| Refusal::Source(error.to_string()))?;
        let is_live = link.params.integrity().is_signed();
        let id = hex::encode(link.params.swarm_id());
        let name = link.name.clone().unwrap_or_else(|| id.clone());
        let size = link.content_len;
        let origin = if is_live { Origin::Live(text.to_owned()) } else { Origin::Link(text.to_owned()) };
        return Ok(Described { origin, hashes: vec![id], name, size, torrent: None, about: None });
    }
    let shown: String = text.chars().take(60).collect();
    let message =
        format!("`{shown}` is no magnet link and no link of PPSPP: copy it again, whole, or send a torrent file");
    Err(Refusal::Source(message))
}
