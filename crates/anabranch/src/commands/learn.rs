//! What magnet links name: what `show` and `get --list` have in common.
//!
//! Peers are asked, as `get` would ask them, unless an earlier run kept the metadata. Files are neither looked at nor made.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anabranch_content::metainfo::Metainfo;
use anabranch_paths::Endpoint;
use anabranch_swarm::{
    AddOptions, Aim, ContentId, Data, EventKind, Events, Session, SessionConfig, Source as SwarmSource,
};
use serde_json::Map;

use crate::cli::{FindFlags, SessionFlags};
use crate::exit::{Code, Failure};
use crate::output::Chatter;
use crate::patience::Rules;
use crate::runtime::{self, unless_interrupted};
use crate::session;
use crate::settings;
use crate::source::Source;
use crate::watch::{Content, Watch};

/// How long peers are asked for Merkle hashes, once the metadata is known: three times what one may take to answer.
const HASHES_MAX: Duration = Duration::from_secs(30);

/// How to ask.
pub(crate) struct Question<'a> {
    /// Whom, and by which way.
    pub session: &'a SessionFlags,
    /// Where else, and for how long.
    pub find: &'a FindFlags,
    /// Whether the Merkle hashes are wanted that a torrent file carries.
    pub with_hashes: bool,
}

/// The torrents of `sources`; `None` when interrupted.
pub(crate) fn learn(
    sources: Vec<Source>,
    question: &Question<'_>,
    chatter: Chatter,
) -> Result<Option<Vec<Metainfo>>, Failure> {
    if let Some(link) = sources.iter().find(|source| matches!(source, Source::Ppspp(_))) {
        return Err(Failure::usage(format!(
            "{} is a link of PPSPP: it has no torrent that could be listed or saved; `play` shows the files of a folder",
            link.name()
        )));
    }
    if sources.iter().all(|source| matches!(source, Source::Torrent(_))) {
        return Ok(Some(sources.into_iter().filter_map(torrent).collect()));
    }
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let find = question.find;
        let config = SessionConfig {
            metadata_dir: find.state_dir.clone().or_else(settings::cache_folder),
            ..SessionConfig::default()
        };
        let fetching = session::fetching(question.session, config, &sources, chatter);
        let Some((session, events, peers)) = unless_interrupted(&interrupted, fetching).await? else {
            return Ok(None);
        };
        let mut watch = Watch::new(question.session, chatter)?;
        let learnt = tokio::select! {
            learnt = ask(&session, events, sources, &peers, question, (&mut watch, chatter)) => learnt.map(Some),
            () = interrupted.notified() => Ok(None),
        };
        watch.close();
        session.shutdown().await;
        learnt
    })
}

fn torrent(source: Source) -> Option<Metainfo> {
    match source {
        Source::Torrent(metainfo) => Some(*metainfo),
        Source::Magnet(_) | Source::Ppspp(_) => None,
    }
}

async fn ask(
    session: &Session,
    mut events: Events,
    sources: Vec<Source>,
    peers: &[Endpoint],
    question: &Question<'_>,
    (watch, chatter): (&mut Watch, Chatter),
) -> Result<Vec<Metainfo>, Failure> {
    let rules = rules(question.session, question.find, chatter);
    let mut asked = BTreeMap::new();
    let mut learnt: Vec<Option<Metainfo>> = Vec::new();
    for source in sources {
        if let Source::Magnet(_) = source {
            let content = Content::new(source.name(), source.id(), Map::new());
            let options = AddOptions {
                aim: Aim::Metadata,
                peers: peers.to_vec(),
                keys: session::keys(question.session),
                trackers: question.find.tracker.clone(),
                ..AddOptions::default()
            };
            let id = add(session, SwarmSource::from(source.clone()), options)?;
            watch.contents.insert(id, content);
            asked.insert(id, (learnt.len(), source.clone()));
        }
        learnt.push(torrent(source));
    }
    let mut known_since: BTreeMap<ContentId, Instant> = BTreeMap::new();
    let mut ticks = watch.ticks();
    loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => {
                watch.on_event(session, &event)?;
                if let EventKind::Metadata { .. } = event.kind {
                    known_since.insert(event.content, Instant::now());
                }
            }
            _ = ticks.tick() => {
                watch.tick(session)?;
                watch.look_for_sources(session, &rules)?;
            }
        }
        for (id, since) in known_since.clone() {
            let whole = session.metainfo(id);
            let content = watch.contents.get(&id);
            let is_given_up = content.is_some_and(|content| content.failed.is_some());
            if question.with_hashes && whole.is_none() && (is_given_up || since.elapsed() >= HASHES_MAX) {
                return Err(no_hashes(content.map_or("", |content| &content.name)));
            }
            let bare = || session.info(id).filter(|_| !question.with_hashes).map(Metainfo::new);
            if let (Some(found), Some((at, source))) = (whole.or_else(bare), asked.get(&id)) {
                learnt[*at] = Some(source.complete(found));
                known_since.remove(&id);
                watch.contents.remove(&id);
                // It goes whoever waits for that.
                drop(session.remove(id, Data::Keep));
            }
        }
        if learnt.iter().all(Option::is_some) {
            return Ok(learnt.into_iter().flatten().collect());
        }
        if let Some(failure) = watch.failure() {
            return Err(failure);
        }
    }
}

/// Adds a content to a session.
pub(crate) fn add(session: &Session, source: SwarmSource, options: AddOptions) -> Result<ContentId, Failure> {
    session.add(source, options).map_err(|error| Failure::input(format!("{error}; name each content once")))
}

/// Nobody sent what a torrent file of version 2 has beside the metadata.
pub(crate) fn no_hashes(name: &str) -> Failure {
    let message = format!(
        "the torrent of {name} cannot be saved: no peer sent all of its hashes (BEP 52); try again while a peer is there that \
         speaks version 2, or leave --save-torrent out"
    );
    Failure::new(Code::Network, message)
}

/// What the flags say about waiting for sources.
pub(crate) fn rules(session: &SessionFlags, find: &FindFlags, chatter: Chatter) -> Rules {
    let listen = &session.listen;
    Rules {
        give_up: find.give_up,
        // Where we listen is printed, or was given.
        is_known: !listen.is_empty() || session.json || chatter.verbose,
        awaits_callers: listen.iter().any(|address| address.socket_addr().port() != 0),
    }
}
