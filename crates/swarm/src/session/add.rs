//! Contents come.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::picker::PieceOrder;
use anabranch_bittorrent::reach::may_link_to_peer;
use anabranch_bittorrent::torrent::{Torrent, TorrentConfig};
use anabranch_bittorrent::tracker::TrackerUrl;
use anabranch_content::info::InfoHashes;
use anabranch_content::magnet::Magnet;
use anabranch_content::metainfo::Metainfo;
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_ppspp::link::Link;
use anabranch_transport::NodeId;

use crate::bittorrent::torrent::{NewTorrent, TorrentDriver, TorrentHandle, lifecycle, open};
use crate::bittorrent::{announce, dht, dial, paths_driver, web_seeds};
use crate::config::{AddError, AddOptions, Encryption};
use crate::events::{ContentId, EventKind};
use crate::hercules as bulk;
use crate::net::own_addresses::are_at_home;
use crate::ppspp::{self, Hashed, LiveShare};
use crate::resources::Resources;
use crate::session::Contents;
use crate::transfer::Lifecycle;

/// What to add.
#[derive(Clone, Debug)]
pub enum Source {
    /// A torrent file.
    Metainfo(Box<Metainfo>),
    /// A magnet link; the metadata comes from peers.
    Magnet(Box<Magnet>),
    /// A link of PPSPP.
    Ppspp(Box<Link>),
    /// A file that is shared by PPSPP, with its tree. Its folder is that of the options.
    PpsppFile(Box<Hashed>),
    /// A bulk transfer.
    Bulk(Box<bulk::Task>),
    /// A live stream of which we are the source; it is given its bytes by [`Contents::push_live`].
    Live(Box<LiveShare>),
}

impl Contents {
    /// Adds a content and begins with it.
    pub fn add(&self, source: Source, options: AddOptions) -> Result<ContentId, AddError> {
        let now = Instant::now();
        let resources = &self.resources;
        let source = match source {
            Source::Ppspp(link) => return self.add_ppspp(*link, (None, None), options),
            Source::PpsppFile(hashed) => return self.add_ppspp(hashed.link.clone(), (Some(hashed), None), options),
            Source::Live(share) => return self.add_ppspp(share.link.clone(), (None, Some(*share)), options),
            Source::Bulk(task) => {
                let id = self.next_id();
                self.insert(id, Rc::new(bulk::managed::begin(id, *task, options, resources)));
                return Ok(id);
            }
            source => source,
        };
        let (hashes, mut tiers, (mut peers, unfit)) = match &source {
            Source::Metainfo(metainfo) => (metainfo.info.hashes, metainfo.trackers.clone(), Default::default()),
            Source::Magnet(magnet) => (magnet.hashes, magnet_tiers(magnet), magnet_peers(magnet, &resources.listening)),
            Source::Ppspp(_) | Source::PpsppFile(_) | Source::Bulk(_) | Source::Live(_) => Default::default(),
        };
        // BEP 27: what is private has nothing to do with the distributed hash table.
        let (nodes, is_private) = match &source {
            Source::Metainfo(metainfo) => (metainfo.nodes.clone(), metainfo.info.private),
            _ => Default::default(),
        };
        // What the user says of a host goes before what a link says, which holds for the link's content alone.
        let keys = magnet_keys(&source).into_iter().chain(options.keys.clone()).collect();
        if let Some(torrent) = hashes.wire_hashes().find_map(|hash| self.of_hash(&hash)) {
            let name = source.name();
            let is_leaving = torrent.borrow().is_leaving;
            return Err(if is_leaving { AddError::Leaving(name) } else { AddError::Duplicate(name) });
        }
        let id = self.next_id();
        let added = options.trackers.iter().filter(|url| !tiers.iter().flatten().any(|known| known == *url));
        let added: Vec<String> = added.cloned().collect();
        if !added.is_empty() {
            tiers.push(added);
        }
        let named = options.trackers.iter().filter_map(|url| url.parse().ok()).collect();
        peers.extend(&options.peers);
        let mut core = Torrent::new(hashes, torrent_config(resources, &options, id), now);
        if let Some(secret) = resources.identity_secret {
            core.set_identity_secret(secret);
        }
        if let Some(scion) = &resources.config.scion {
            core.set_node_key(*scion.identity.node_id().as_bytes());
        }
        let web_seeds = match &source {
            Source::Metainfo(metainfo) => (metainfo.web_seeds.clone(), metainfo.http_seeds.clone()),
            Source::Magnet(magnet) => (magnet.web_seeds.clone(), Vec::new()),
            Source::Ppspp(_) | Source::PpsppFile(_) | Source::Bulk(_) | Source::Live(_) => Default::default(),
        };
        let named_web_seeds = options.web_seeds.clone();
        let layers_at_hand = matches!(source, Source::Metainfo(_));
        let unfit: Vec<_> = unfit.into_iter().filter(|address| !options.peers.contains(address)).collect();
        let scratch = Rc::clone(&self.scratch);
        let new = NewTorrent { id, hashes, core, keys, options, layers_at_hand, scratch };
        let torrent = TorrentHandle::new(TorrentDriver::new(Rc::clone(resources), self.downgrade(), new));
        self.insert_torrent(id, &hashes, torrent.clone());
        let mut state = torrent.borrow_mut();
        unfit.into_iter().for_each(|address| state.tell(EventKind::PeerUnfit { address }));
        peers.into_iter().for_each(|peer| state.name_peer(peer));
        if let Some(reason) = resources.relay_failure.borrow().clone() {
            state.tell(EventKind::RelayFailed { reason });
        }
        state.spawn(lifecycle::keep_time(torrent.clone()));
        state.spawn(dial::dial(torrent.clone()));
        state.spawn(paths_driver::drive(torrent.clone()));
        if let (Source::Magnet(_), Some(folder)) = (&source, resources.config.metadata_dir.clone()) {
            state.is_remembering = true;
            let remembering = lifecycle::remember(torrent.clone(), folder);
            state.spawn(open::guarded(torrent.clone(), remembering));
        }
        if let Source::Metainfo(metainfo) = source {
            state.metadata_known = true;
            state.core.expect_content(Arc::clone(&metainfo.info));
            let opening = open::open(torrent.clone(), metainfo.info, metainfo.piece_layers);
            state.spawn(open::guarded(torrent.clone(), opening));
        }
        web_seeds::begin(&torrent, &mut state, &named_web_seeds, (&web_seeds.0, &web_seeds.1));
        if let Some(node) = resources.dht.clone().filter(|_| !is_private) {
            state.spawn(dht::find(torrent.clone(), node, nodes));
        }
        let urls = parse_trackers(&state, &tiers);
        state.trackers_left = urls.iter().map(Vec::len).sum();
        if urls.iter().any(|tier| !tier.is_empty()) {
            state.is_announcing = true;
            state.spawn(announce::announce(torrent.clone(), urls, named));
        }
        Ok(id)
    }
}

impl Contents {
    fn add_ppspp(
        &self,
        link: Link,
        ours: (Option<Box<Hashed>>, Option<LiveShare>),
        options: AddOptions,
    ) -> Result<ContentId, AddError> {
        if let Some(there) = self.hub.directory().of_swarm(link.params.swarm_id()) {
            let name = link.name.clone().unwrap_or_else(|| "this content".to_owned());
            let is_leaving = self.get(there).is_some_and(|content| content.lifecycle() == Lifecycle::Leaving);
            return Err(if is_leaving { AddError::Leaving(name) } else { AddError::Duplicate(name) });
        }
        let resources = &self.resources;
        let opened =
            self.hub.open(&resources.listening, resources.scion.as_deref(), resources.named_uplinks().cloned());
        let opened = opened.map_err(AddError::Socket)?;
        for (at, socket) in opened.into_iter().enumerate() {
            let filter = Arc::clone(&resources.config.filter);
            self.serving.borrow_mut().spawn_local(ppspp::serve(Rc::clone(&self.hub), at, socket, filter));
        }
        if let (Some(_), Some(identity)) = (&link.secure, &resources.config.secure_identity)
            && self.hub.open_secure(identity, link.params.chunk_len()).map_err(AddError::Socket)?
        {
            self.serving.borrow_mut().spawn_local(ppspp::keep_secure_time(Rc::clone(&self.hub)));
        }
        let id = self.next_id();
        let content = ppspp::begin(id, link, ours, options, (resources, &self.hub));
        self.insert(id, Rc::new(content));
        Ok(id)
    }
}

fn torrent_config(resources: &Resources, options: &AddOptions, id: ContentId) -> TorrentConfig {
    let config = &resources.config;
    TorrentConfig {
        peer_id: resources.peer_id,
        listen_port: resources.listen_port(),
        scion_port: resources.scion.as_ref().map(|net| net.endpoint.local().socket_addr().port()),
        dht_port: resources.dht_port(),
        dht_scion_port: resources.dht.as_ref().and_then(|dht| dht.scion_port()),
        client: format!("Anabranch {}", env!("CARGO_PKG_VERSION")),
        order: if options.sequential { PieceOrder::Sequential } else { PieceOrder::RarestFirst },
        strategy: config.strategy,
        open_bytes_max: config.buffer_bytes,
        choker: config.choker,
        pex: config.pex,
        holepunch: resources.utp.may_meet(),
        prefers_encryption: matches!(config.encryption, Encryption::Prefer | Encryption::Require),
        super_seed: options.super_seed,
        seed: config.seed ^ id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

impl Source {
    fn name(&self) -> String {
        match self {
            Self::Metainfo(metainfo) => metainfo.info.name.clone(),
            Self::Magnet(magnet) => magnet.name.clone().unwrap_or_else(|| "this content".to_owned()),
            Self::Ppspp(link) => link.name.clone().unwrap_or_else(|| "this content".to_owned()),
            Self::PpsppFile(hashed) => hashed.link.name.clone().unwrap_or_else(|| "this content".to_owned()),
            Self::Live(share) => share.link.name.clone().unwrap_or_else(|| "this content".to_owned()),
            Self::Bulk(_) => "this content".to_owned(),
        }
    }

    /// Its identity.
    pub fn hashes(&self) -> InfoHashes {
        match self {
            Self::Metainfo(metainfo) => metainfo.info.hashes,
            Self::Magnet(magnet) => magnet.hashes,
            Self::Ppspp(link) => ppspp::hashes(link),
            Self::PpsppFile(hashed) => ppspp::hashes(&hashed.link),
            Self::Live(share) => ppspp::hashes(&share.link),
            Self::Bulk(_) => InfoHashes::default(),
        }
    }
}

fn magnet_tiers(magnet: &Magnet) -> Vec<Vec<String>> {
    magnet.trackers.iter().map(|url| vec![url.clone()]).collect()
}

/// The peers that a link names: those that it may name to us, who listen at `listening`, and the others.
pub(super) fn magnet_peers(magnet: &Magnet, listening: &[SocketAddr]) -> (Vec<Endpoint>, Vec<Endpoint>) {
    // Host names in x.pe would make a link that one opens look names up; addresses only.
    let named = magnet.peers.iter().filter_map(|peer| parse_peer(peer)).map(|(address, _)| address);
    named.partition(|peer| may_link_to_peer(peer, magnet.hashes.wire_hashes(), are_at_home(listening)))
}

/// The keys that a link's peers have to prove.
fn magnet_keys(source: &Source) -> Vec<(ScionAddr, NodeId)> {
    let Source::Magnet(magnet) = source else { return Vec::new() };
    let named = magnet.peers.iter().filter_map(|peer| parse_peer(peer));
    named.filter_map(|(address, key)| address.as_scion().zip(key)).collect()
}

/// A peer as links name it: an address, that of a host of SCION maybe with the key that it proves in front, `KEY@[ISD-AS,host]:port`.
pub fn parse_peer(text: &str) -> Option<(Endpoint, Option<NodeId>)> {
    match text.split_once('@') {
        None => Some((text.parse().ok()?, None)),
        Some((key, address)) => Some((Endpoint::Scion(address.parse().ok()?), Some(key.parse().ok()?))),
    }
}

/// Tracker URLs that can be used; the others are told of.
fn parse_trackers(torrent: &TorrentDriver, tiers: &[Vec<String>]) -> Vec<Vec<TrackerUrl>> {
    let parse = |url: &String| match url.parse() {
        Ok(parsed) => Some(parsed),
        Err(error) => {
            let error: anabranch_bittorrent::tracker::UrlError = error;
            torrent.tell(EventKind::TrackerFailed { url: url.clone(), reason: error.to_string() });
            None
        }
    };
    tiers.iter().map(|tier| tier.iter().filter_map(parse).collect()).collect()
}
