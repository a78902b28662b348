//! A session with its signals, events and progress: what `get` and `share` have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anabranch_bittorrent::choker::{self, Slots};
use anabranch_content::info::Version;
use anabranch_daemon::Discovery;
use anabranch_paths::manager::PathCondition;
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_swarm::{
    BUFFER_BYTES_DEFAULT, ContentId, Data, DhtConfig, Event, EventKind, Events, FailureKind, Leave, PathProgress,
    PathsConfig, Progress, Session, SessionConfig, SessionError, parse_peer,
};
use anabranch_transport::{Identity, NodeId};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::address::PeerAddress;
use crate::bulk::options;
use crate::cli::{NodeName, SessionFlags, Switch};
use crate::exit::{Code, Failure};
use crate::guard::{self, Bans};
use crate::output::{self, Chatter};
use crate::path_log::{PATH_LOG_EVERY, PathLog};
use crate::patience::{Patience, Rules, Verdict};
use crate::seeding::Seeding;
use crate::source::Source;
use crate::status::StatusLines;
use crate::units::Size;
use crate::{clients, events, scion, settings, system, units};

/// The port that BitTorrent peers expect first.
const LISTEN_PORT: u16 = 6881;
/// Nodes of the distributed hash table that anybody may begin from, as other clients do.
const PUBLIC_NODES: [(&str, u16); 3] =
    [("dht.libtorrent.org", 25401), ("router.bittorrent.com", 6881), ("dht.transmissionbt.com", 6881)];
/// The file that keeps its nodes from run to run.
const NODES_FILE: &str = "dht-nodes";
/// Paths to one peer where nobody says: what most hosts with several ways have.
const PATHS_WISHED: usize = 4;
/// Signals that come so soon after the first ask for the same: a terminal that is closed sends SIGHUP to all that ran in it, and its
/// shell does so too; `timeout` and other programs pass on what has reached everybody already.
const SAME_REQUEST: Duration = Duration::from_millis(300);
/// How often progress is told in JSON.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// How often progress is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(250);
/// Contents with a line of their own; the others share one.
const LINES_MAX: usize = 8;
/// Paths of a content with a line of their own.
const PATH_LINES_MAX: usize = 16;
/// Threads for what blocks: opening files, checking, looking up names. Each costs memory, and disks gain nothing from more.
const BLOCKING_THREADS_MAX: usize = 8;

/// Runs `work` on a runtime of one thread. What still blocks when it is done is not waited for.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
        .map_err(Failure::runtime)?;
    let done = LocalSet::new().block_on(&runtime, work);
    runtime.shutdown_background();
    done
}

/// Runs `work` beside the runtime. Where the user or the system asks to end, `cancel` is set, and the work's own end is waited for: it
/// ends what it started, which takes a moment.
pub(crate) fn cancellable(
    cancel: &AtomicBool,
    work: impl FnOnce() -> Result<Code, Failure> + Send + 'static,
) -> Result<Code, Failure> {
    block_on(async {
        let interrupted = interrupts()?;
        let mut work = tokio::task::spawn_blocking(work);
        let done = tokio::select! {
            done = &mut work => done,
            () = interrupted.notified() => {
                cancel.store(true, Ordering::Relaxed);
                work.await
            }
        };
        done.map_err(|error| Failure::new(Code::Failed, error))?
    })
}

/// Says when the user or the system asks to end. A second time ends the program at once. A signal that whoever started the
/// program had it ignore (`nohup`; a shell's `&` for Ctrl-C) stays ignored.
pub(crate) fn interrupts() -> Result<Rc<Notify>, Failure> {
    interrupts_of(&[SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()])
}

/// The same where a hang-up is no request to end.
pub(crate) fn interrupts_but_hangups() -> Result<Rc<Notify>, Failure> {
    interrupts_of(&[SignalKind::interrupt(), SignalKind::terminate()])
}

fn interrupts_of(kinds: &[SignalKind]) -> Result<Rc<Notify>, Failure> {
    let heeded = kinds.iter().copied().filter(|kind| !system::is_ignored(kind.as_raw_value()));
    let mut signals = heeded.map(|kind| signal(kind).map_err(Failure::runtime)).collect::<Result<Vec<_>, _>>()?;
    let asked = Rc::new(Notify::new());
    let told = Rc::clone(&asked);
    tokio::task::spawn_local(async move {
        next_signal(&mut signals).await;
        told.notify_one();
        tokio::time::sleep(SAME_REQUEST).await;
        drop_signals(&mut signals).await;
        next_signal(&mut signals).await;
        std::process::exit(Code::Interrupted as i32);
    });
    Ok(asked)
}

async fn next_signal(signals: &mut [tokio::signal::unix::Signal]) {
    std::future::poll_fn(|context| {
        let any = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
        if any { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Forgets those that came meanwhile.
async fn drop_signals(signals: &mut [tokio::signal::unix::Signal]) {
    std::future::poll_fn(|context| {
        for signal in &mut *signals {
            while signal.poll_recv(context).is_ready() {}
        }
        std::task::Poll::Ready(())
    })
    .await;
}

/// Memory, by what it is for.
pub(crate) struct Memory {
    /// Pieces under way.
    pub pieces_bytes: u64,
    /// What peers may fill over QUIC.
    pub quic_bytes: u64,
}

/// How `--memory` is divided: what pieces cannot do without is theirs, and of the rest QUIC has half where it is used.
pub(crate) fn memory(flags: &SessionFlags, quic: bool) -> Memory {
    let Some(Size(bytes)) = flags.memory else {
        return Memory { pieces_bytes: BUFFER_BYTES_DEFAULT, quic_bytes: BUFFER_BYTES_DEFAULT };
    };
    let quic_bytes = if quic { (bytes / 2).min(bytes.saturating_sub(units::MEMORY_MIN)) } else { 0 };
    Memory { pieces_bytes: bytes - quic_bytes, quic_bytes }
}

/// A session that fetches `sources` as the flags say, and the peers that the flags name.
pub(crate) async fn fetching(
    flags: &SessionFlags,
    first: SessionConfig,
    sources: &[Source],
    chatter: Chatter,
) -> Result<(Session, Events, Vec<Endpoint>), Failure> {
    let links = sources.iter().flat_map(Source::peers);
    let is_plain = |source: &&Source| matches!(source, Source::Ppspp(link) if link.secure.is_none());
    if let Some(plain) = sources.iter().find(is_plain) {
        let remedy = format!("the link of {} is not secure; ask who shares it to do so with --secure", plain.name());
        guard::check_plain_ppspp(flags, &remedy)?;
    }
    let first = SessionConfig {
        keeps_ports_for_ppspp: sources.iter().any(|source| matches!(source, Source::Ppspp(_))),
        secure_identity: secure_identity(flags, sources, chatter)?,
        ..first
    };
    let named = links.filter_map(|peer| parse_peer(peer)).map(|(address, _)| address);
    let mut scion = scion::config(flags, named, chatter).await?;
    let peers = peers(flags, scion.is_some()).await?;
    scion::remember(scion.as_mut(), flags, &peers, chatter)?;
    let mut config = session_config(flags, SessionConfig { scion, ..first }, chatter)?;
    if sources.is_empty() && flags.guard.allow.is_empty() {
        // Contents will come, and links among them may be secure.
        config.secure_identity = Some(options::identity(flags.scion.key.as_deref(), chatter)?);
    }
    if !sources.is_empty() && sources.iter().all(|source| matches!(source, Source::Ppspp(_))) {
        discover_nobody(&mut config);
    }
    let (session, events) = start(flags, config, chatter)?;
    Ok((session, events, peers))
}

/// The key that the peers of secure links know us by, where there are such links.
fn secure_identity(flags: &SessionFlags, sources: &[Source], chatter: Chatter) -> Result<Option<Identity>, Failure> {
    let is_secure = |source: &&Source| matches!(source, Source::Ppspp(link) if link.secure.is_some());
    let count = sources.iter().filter(is_secure).count();
    if count == 0 {
        return Ok(None);
    }
    if count < sources.len() && !flags.guard.allow.is_empty() {
        return Err(Failure::usage(
            "`--allow` holds for secure links of PPSPP over IP too, and for torrents over SCION alone: fetch them apart",
        ));
    }
    options::identity(flags.scion.key.as_deref(), chatter).map(Some)
}

/// The session's choices, as the flags say. What is not among `SessionFlags` stays as in `first`.
pub(crate) fn session_config(
    flags: &SessionFlags,
    first: SessionConfig,
    chatter: Chatter,
) -> Result<SessionConfig, Failure> {
    let rate = |rate: Option<units::Rate>| rate.map(|rate| rate.0);
    let connections_max = flags.max_peers as usize;
    let chosen_max = flags.multipath.max_connections.map(|count| count as usize);
    let slots = flags.upload_slots.map(|slots| slots as usize).or(chosen_max);
    let mut config = SessionConfig {
        connections_max,
        torrent_connections_max: first.torrent_connections_max.min(connections_max),
        limit_down: rate(flags.limit_down),
        limit_up: rate(flags.limit_up),
        peer_limit_down: rate(flags.peer_limit_down),
        peer_limit_up: rate(flags.peer_limit_up),
        buffer_bytes: memory(flags, first.scion.is_some()).pieces_bytes,
        choker: choker::Config {
            slots: slots.map_or(Slots::Auto, Slots::Fixed),
            upload_limit_bytes: rate(flags.limit_up),
            ..first.choker
        },
        pex: !flags.no_pex,
        encryption: flags.encryption,
        utp: flags.utp,
        web_seeds: flags.web_seeds,
        paths: PathsConfig {
            wished: flags.multipath.paths_per_peer.map_or(PATHS_WISHED, |paths| paths as usize),
            granted: flags.multipath.paths_per_peer.map_or(first.paths.granted, |paths| paths as usize),
            connections: chosen_max.unwrap_or(first.paths.connections),
            selector: flags.multipath.selector,
            interfaces: flags.multipath.interface.clone(),
        },
        ..first
    };
    guard::apply(flags, &mut config, chatter)?;
    discover(flags, &mut config);
    Ok(config)
}

/// Says how peers are found without trackers, and whether routers let them in. Whoever admits keys alone has nothing to do with strangers who are found so, and what would
/// go past a proxy is off.
fn discover(flags: &SessionFlags, config: &mut SessionConfig) {
    let discovery = &flags.discovery;
    let proxy = flags.guard.proxy.as_ref();
    if proxy.is_some_and(|proxy| !proxy.may_relay_udp()) || !flags.guard.allow.is_empty() {
        return;
    }
    let name = |node: &NodeName| (node.0.clone(), node.1);
    // Who names nodes has them asked instead.
    let public = if discovery.dht_node.is_empty() { &PUBLIC_NODES[..] } else { &[] };
    config.dht = (discovery.dht == Switch::On).then(|| DhtConfig {
        nodes: discovery.dht_node.iter().map(name).collect(),
        public_nodes: public.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect(),
        // Behind a proxy nobody is to know us again from elsewhere.
        file: proxy
            .is_none()
            .then(|| config.state_dir.clone().or_else(settings::state_folder))
            .flatten()
            .map(|folder| folder.join(NODES_FILE)),
    });
    config.local_discovery = discovery.lsd == Switch::On && proxy.is_none();
    config.port_mapping = flags.port_mapping && proxy.is_none();
}

/// How peers are found without trackers, for those who ask.
pub(crate) fn discovery(flags: &SessionFlags) -> Discovery {
    let mut config = SessionConfig::default();
    discover(flags, &mut config);
    Discovery { dht: config.dht.is_some(), pex: !flags.no_pex, local: config.local_discovery }
}

/// No content of the session is BitTorrent's.
pub(crate) fn discover_nobody(config: &mut SessionConfig) {
    config.dht = None;
    config.local_discovery = false;
    config.port_mapping = false;
}

/// The keys that the flags' peers have to prove.
pub(crate) fn keys(flags: &SessionFlags) -> Vec<(ScionAddr, NodeId)> {
    let keyed = |peer: &PeerAddress| match peer {
        PeerAddress::Keyed(key, address) => Some((*address, *key)),
        PeerAddress::Endpoint(_) | PeerAddress::Name(..) => None,
    };
    flags.peer.iter().filter_map(keyed).collect()
}

/// The peers that the flags name.
pub(crate) async fn peers(flags: &SessionFlags, scion: bool) -> Result<Vec<Endpoint>, Failure> {
    let (mut peers, leave) = (Vec::new(), Leave::by(&flags.multipath.interface));
    for peer in &flags.peer {
        peers.extend(peer.resolve(scion, &leave).await?);
    }
    match peers.iter().find(|peer| peer.socket_addr().port() == 0) {
        Some(peer) => Err(Failure::usage(format!("`--peer {peer}`: port 0 cannot be dialled; give the peer's port"))),
        None => Ok(peers),
    }
}

/// Starts a session that listens where the flags say, and tells where that is.
pub(crate) fn start(
    flags: &SessionFlags,
    config: SessionConfig,
    chatter: Chatter,
) -> Result<(Session, Events), Failure> {
    system::raise_open_files_limit();
    let with = |listen: Vec<SocketAddr>| Session::start(SessionConfig { listen, ..config.clone() });
    let is_secure = config.secure_identity.is_some();
    let stays_shut = flags.guard.proxy.is_some() || (!flags.guard.allow.is_empty() && !is_secure);
    let started = if flags.listen.is_empty() && !stays_shut {
        start_anywhere(&with, chatter)
    } else {
        with(flags.listen.iter().filter_map(Endpoint::as_ip).collect())
    };
    let started = started.map_err(|error| match error {
        SessionError::Listen { address, source } => listen_failure(address, &source),
        error @ SessionError::Interfaces(_) => Failure::new(Code::Usage, error),
        error @ SessionError::Scion { .. } => Failure::new(Code::Network, error),
        SessionError::Threads(error) => Failure::runtime(error),
    })?;
    let scion = started.0.scion_address().map(Endpoint::Scion);
    for address in started.0.listening().iter().copied().map(Endpoint::from).chain(scion) {
        if flags.json {
            let port = address.socket_addr().port();
            output::json_event("listening", json!({ "address": address.to_string(), "port": port }))?;
        } else if chatter.verbose {
            chatter.note(format_args!("listening on {address}"));
        }
    }
    Ok(started)
}

/// Both families on the usual port; where that is taken, on any; where there is no IPv6, on IPv4.
fn start_anywhere<T>(
    with: &impl Fn(Vec<SocketAddr>) -> Result<T, SessionError>,
    chatter: Chatter,
) -> Result<T, SessionError> {
    let taken = |error: &SessionError| matches!(error, SessionError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse);
    let both = |port| match with(vec![(Ipv6Addr::UNSPECIFIED, port).into()]) {
        Err(error) if !taken(&error) => with(vec![(Ipv4Addr::UNSPECIFIED, port).into()]),
        tried => tried,
    };
    match both(LISTEN_PORT) {
        Err(error) if taken(&error) => {
            if chatter.verbose {
                chatter.note(format_args!("port {LISTEN_PORT} is taken: listening on another"));
            }
            both(0)
        }
        tried => tried,
    }
}

/// An address cannot be listened on.
pub(crate) fn listen_failure(address: SocketAddr, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => "another program has it: give another port, or 0 for any",
        io::ErrorKind::AddrNotAvailable => "give an address of this machine",
        io::ErrorKind::PermissionDenied => "give a port above 1023",
        _ => "give another address with --listen",
    };
    Failure::new(Code::Network, format!("cannot listen on {address}: {error}; {remedy}"))
}

/// One content that is watched.
#[derive(Debug)]
pub(crate) struct Content {
    /// As users know it.
    pub name: String,
    /// As events name it.
    pub hash: String,
    /// Fields that its `started` event has beside the usual ones.
    pub extra: Map<String, Value>,
    /// When its transfer began.
    pub started: Option<Instant>,
    /// Everything wanted is there.
    pub finished: bool,
    /// It cannot be gone on with, and why.
    pub failed: Option<(FailureKind, String)>,
    /// How it is shared, since there is all of it that is wanted.
    pub seeding: Option<Seeding>,
    /// It is not shared any longer, as the user wished.
    pub stopped: bool,
    /// What the command says of it below its progress line.
    pub remark: Option<String>,
    is_live: bool,
    checking: Option<(u64, u64)>,
    told: Option<Value>,
    patience: Patience,
}

impl Content {
    /// A content that was just added.
    pub(crate) fn new(name: String, hash: String, extra: Map<String, Value>) -> Self {
        let patience = Patience::default();
        Self {
            name,
            hash,
            extra,
            started: None,
            finished: false,
            failed: None,
            seeding: None,
            stopped: false,
            remark: None,
            is_live: false,
            checking: None,
            told: None,
            patience,
        }
    }

    /// A live stream that was just added.
    pub(crate) fn live(name: String, hash: String, extra: Map<String, Value>) -> Self {
        Self { is_live: true, ..Self::new(name, hash, extra) }
    }

    /// Nothing more is to be done for it.
    pub(crate) fn is_over(&self) -> bool {
        self.finished || self.failed.is_some()
    }
}

/// Turns events and progress into lines.
pub(crate) struct Watch {
    /// What is watched.
    pub contents: BTreeMap<ContentId, Content>,
    chatter: Chatter,
    json: bool,
    lines: Option<StatusLines>,
    /// Trackers that failed: told once, until they answer.
    failing: BTreeSet<(ContentId, String)>,
    /// Programs that were told of as reading no hybrid torrents.
    hinted: BTreeSet<(ContentId, String)>,
    explain: bool,
    path_log: Option<PathLog>,
    bans: Option<Bans>,
    /// When progress was last drawn or told.
    told: Option<Instant>,
    /// The command goes on with what is left of a content that it shares.
    shares_on: bool,
}

impl Watch {
    /// Watches nothing yet.
    pub(crate) fn new(flags: &SessionFlags, chatter: Chatter) -> Result<Self, Failure> {
        let json = flags.json;
        let lines = (chatter.draws() && !json).then(StatusLines::default);
        Ok(Self {
            contents: BTreeMap::new(),
            chatter,
            json,
            lines,
            failing: BTreeSet::new(),
            hinted: BTreeSet::new(),
            explain: flags.multipath.explain,
            path_log: flags.multipath.path_log.as_deref().map(PathLog::create).transpose()?,
            bans: Bans::open(flags)?,
            told: None,
            shares_on: false,
        })
    }

    /// Watches for a command that goes on with what is left of a content that it shares.
    pub(crate) fn sharing(flags: &SessionFlags, chatter: Chatter) -> Result<Self, Failure> {
        Ok(Self { shares_on: true, ..Self::new(flags, chatter)? })
    }

    /// When to call [`Watch::tick`].
    pub(crate) fn ticks(&self) -> tokio::time::Interval {
        let every = if self.path_log.is_some() { PATH_LOG_EVERY } else { self.told_every() };
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks
    }

    /// Between two progress events, or two drawings.
    fn told_every(&self) -> Duration {
        if self.lines.is_some() { DRAW_EVERY } else { PROGRESS_EVERY }
    }

    /// Says something to people.
    pub(crate) fn note(&mut self, text: impl std::fmt::Display) {
        if let Some(lines) = &mut self.lines {
            lines.clear();
        }
        self.chatter.note(text);
    }

    /// Tells programs of a content by an event, or people in words.
    pub(crate) fn report(&mut self, id: ContentId, event: &str, fields: Value, text: &str) -> Result<(), Failure> {
        self.tell(id, event, fields)?;
        if !self.json {
            let name = self.contents.get(&id).map_or(String::new(), |content| content.name.clone());
            self.note(format_args!("{name}: {text}"));
        }
        Ok(())
    }

    /// Prints an event of a content.
    pub(crate) fn tell(&self, id: ContentId, event: &str, fields: Value) -> Result<(), Failure> {
        if !self.json {
            return Ok(());
        }
        let mut all = Map::new();
        if let Some(content) = self.contents.get(&id) {
            all.insert("torrent".into(), content.hash.as_str().into());
            all.insert("name".into(), content.name.as_str().into());
        }
        if let Value::Object(fields) = fields {
            all.extend(fields);
        }
        output::json_event(event, Value::Object(all))
    }

    /// Something happened.
    pub(crate) fn on_event(&mut self, session: &Session, event: &Event) -> Result<(), Failure> {
        let id = event.content;
        let now = Instant::now();
        // What had it removed says why.
        if matches!(event.kind, EventKind::Removed) {
            return Ok(());
        }
        let Some(content) = self.contents.get_mut(&id) else { return Ok(()) };
        let (name, mut fields) = events::json(&event.kind);
        match &event.kind {
            EventKind::Metadata { name, .. } => content.name.clone_from(name),
            EventKind::Checking { bytes_done, bytes_total } => content.checking = Some((*bytes_done, *bytes_total)),
            EventKind::Started { .. } => {
                content.started = Some(now);
                content.checking = None;
                // It may be called otherwise where it goes.
                session.info(id).iter().for_each(|info| content.name.clone_from(&info.name));
                if let Value::Object(fields) = &mut fields {
                    fields.extend(content.extra.clone());
                }
            }
            EventKind::Paused { reason, .. } => content.patience.paused(Some(reason.clone())),
            EventKind::Resumed => content.patience.paused(None),
            EventKind::Failed { kind, reason } => content.failed = Some((*kind, reason.clone())),
            EventKind::Tracker { url, .. } => {
                self.failing.remove(&(id, url.clone()));
            }
            EventKind::PeerBanned { address, reason } => {
                if let Some(bans) = &mut self.bans {
                    bans.add(address, reason)?;
                }
            }
            EventKind::Finished => return self.on_finished(session, id, now),
            _ => {}
        }
        let known = match &event.kind {
            // What the proxy does not do concerns all trackers, and is said once.
            EventKind::TrackerFailed { url, reason } => {
                let cause = if reason.starts_with("the proxy ") { reason } else { url };
                !self.failing.insert((id, cause.clone()))
            }
            _ => false,
        };
        self.tell(id, name, fields)?;
        if let EventKind::PeerConnected { address, peer_id, .. } = &event.kind {
            self.hint(session, id, &address.to_string(), peer_id)?;
        }
        if self.explain {
            for line in events::explanation(&event.kind) {
                self.note(line);
            }
        }
        let said = |always: bool| !self.json && (always && !known || self.chatter.verbose);
        let is_last = matches!(event.kind, EventKind::Failed { kind, .. } if self.ends_by(id, kind));
        if let Some((_, text)) = events::note(&event.kind).filter(|(always, _)| said(*always) && !is_last) {
            let label = self.contents.get(&id).map_or(String::new(), |content| content.name.clone());
            self.note(format_args!("{label}: {text}"));
        }
        Ok(())
    }

    /// Whether the command ends by this failure of a content, so that its last word says it: there is nothing else.
    fn ends_by(&self, id: ContentId, kind: FailureKind) -> bool {
        let goes_on = || self.contents.get(&id).is_some_and(|content| content.seeding.is_some());
        self.contents.len() == 1 && !(self.shares_on && kind != FailureKind::Internal && goes_on())
    }

    /// Whether people are told of what fails when it does, so that the command's last word need not repeat it: other contents go on,
    /// or, by the caller's word, this one.
    pub(crate) fn tells_at_once(&self, goes_on: bool) -> bool {
        (goes_on || self.contents.len() > 1) && !self.json && !self.chatter.quiet
    }

    /// The last word about the contents that failed, if any did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let failed = self.contents.values().filter_map(|content| Some((&content.name, content.failed.as_ref()?)));
        let failed: Vec<_> = failed.collect();
        let (first, (kind, reason)) = failed.first()?;
        let several = format!("{} of {} contents failed", failed.len(), self.contents.len());
        let is_told = self.tells_at_once(false);
        let message = match failed.len() {
            1 if is_told => format!("{first} failed: see above"),
            1 => format!("{first}: {reason}"),
            _ if is_told => format!("{several}: see above"),
            _ => several,
        };
        let mut failure = Failure::new((*kind).into(), message);
        if failed.len() > 1 && !is_told {
            failure.details = failed.iter().map(|(name, (_, reason))| format!("{name}: {reason}")).collect();
        }
        Some(failure)
    }

    /// Says once why a peer that cannot read hybrid torrents gets nothing of one.
    fn hint(&mut self, session: &Session, id: ContentId, peer: &str, peer_id: &[u8; 20]) -> Result<(), Failure> {
        let is_hybrid = || session.info(id).is_some_and(|info| info.version == Version::Hybrid);
        let Some(client) = clients::without_hybrid(peer_id).filter(|_| is_hybrid()) else { return Ok(()) };
        if !self.hinted.insert((id, client.clone())) {
            return Ok(());
        }
        let message =
            format!("{peer} runs {client}, which reads no hybrid torrents: share with --version 1 for such clients");
        self.report(id, "hint", json!({ "message": message, "peer": peer }), &message)
    }

    fn on_finished(&mut self, session: &Session, id: ContentId, now: Instant) -> Result<(), Failure> {
        let Some(content) = self.contents.get_mut(&id) else { return Ok(()) };
        if std::mem::replace(&mut content.finished, true) {
            return Ok(());
        }
        content.seeding = Some(Seeding::new(now));
        let took = content.started.map_or(Duration::ZERO, |started| now.saturating_duration_since(started));
        let Some(progress) = session.progress(id) else { return Ok(()) };
        let stats = &progress.stats;
        let text = if stats.downloaded_bytes == 0 {
            format!("{}: complete, {}", content.name, units::bytes(progress.bytes_done))
        } else {
            let rate = stats.downloaded_bytes as f64 / took.as_secs_f64().max(0.001);
            format!(
                "{}: complete, {} received in {:.1} s, {}; {} sent",
                content.name,
                units::bytes(stats.downloaded_bytes),
                took.as_secs_f64(),
                units::rate(rate as u64),
                units::bytes(stats.uploaded_bytes),
            )
        };
        self.tell(id, "progress", events::progress(&progress, &session.paths(id)))?;
        let fields = json!({
            "bytes_total": progress.bytes_total,
            "downloaded": stats.downloaded_bytes,
            "uploaded": stats.uploaded_bytes,
            "wasted": stats.wasted_bytes,
            "seconds": took.as_secs_f64(),
        });
        self.tell(id, "finished", fields)?;
        if !self.json {
            self.note(text);
        }
        Ok(())
    }

    /// Looks whether contents that are not complete have sources: says what is waited for, and gives up those for which
    /// nothing more will come.
    pub(crate) fn look_for_sources(&mut self, session: &Session, rules: &Rules) -> Result<(), Failure> {
        let now = Instant::now();
        let ids: Vec<ContentId> = self.contents.keys().copied().collect();
        for id in ids {
            let Some(content) = self.contents.get_mut(&id).filter(|content| !content.is_over()) else { continue };
            let (Some(sources), Some(progress)) = (session.sources(id), session.progress(id)) else { continue };
            match content.patience.look(&sources, &progress, rules, now) {
                Verdict::Wait => {}
                Verdict::Tell(reason) => self.report(id, "waiting", json!({ "reason": reason }), &reason)?,
                Verdict::GiveUp(kind, reason) => {
                    content.failed = Some((kind, reason.clone()));
                    let text = format!("error: {reason}");
                    let (_, fields) = events::json(&EventKind::Failed { kind, reason });
                    match self.tells_at_once(false) {
                        true => self.report(id, "error", fields, &text)?,
                        false => self.tell(id, "error", fields)?,
                    }
                    // It goes whoever waits for that.
                    drop(session.remove(id, Data::Keep));
                }
            }
        }
        Ok(())
    }

    /// Tells how things are.
    pub(crate) fn tick(&mut self, session: &Session) -> Result<(), Failure> {
        let now = Instant::now();
        self.log_paths(session, now)?;
        // Timers are as exact as they are: half an interval early is on time.
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < self.told_every() - PATH_LOG_EVERY / 2) {
            return Ok(());
        }
        self.told = Some(now);
        if self.json {
            return self.tell_progress(session);
        }
        let Some(lines) = &mut self.lines else { return Ok(()) };
        let mut shown = Vec::new();
        let (mut others, mut down, mut up, mut peers) = (0, 0, 0, 0);
        for (id, content) in self.contents.iter().filter(|(_, content)| !content.stopped) {
            let Some(progress) = session.progress(*id) else { continue };
            if shown.len() < LINES_MAX && (!content.finished || self.contents.len() <= LINES_MAX) {
                let paths = session.paths(*id);
                shown.push(status(content, &progress, &paths));
                shown.extend(content.remark.clone());
                shown.extend(path_lines(&paths));
            } else {
                others += 1;
                down += progress.stats.download_rate_bytes;
                up += progress.stats.upload_rate_bytes;
                peers += progress.stats.peers;
            }
        }
        if others > 0 {
            shown.push(format!("{others} more  down {}  up {}  {peers} peers", units::rate(down), units::rate(up)));
        }
        lines.draw(&shown);
        Ok(())
    }

    /// A `progress` event for each content; contents at rest are told of once.
    fn tell_progress(&mut self, session: &Session) -> Result<(), Failure> {
        let ids: Vec<ContentId> = self.contents.keys().copied().collect();
        for id in ids {
            let Some(progress) = session.progress(id) else { continue };
            let fields = events::progress(&progress, &session.paths(id));
            let at_rest = self
                .contents
                .get(&id)
                .is_some_and(|content| content.finished && content.told.as_ref() == Some(&fields));
            if at_rest {
                continue;
            }
            self.tell(id, "progress", fields.clone())?;
            if let Some(content) = self.contents.get_mut(&id) {
                content.told = Some(fields);
            }
        }
        Ok(())
    }

    fn log_paths(&mut self, session: &Session, now: Instant) -> Result<(), Failure> {
        let Some(log) = self.path_log.as_mut().filter(|log| log.is_due(now)) else { return Ok(()) };
        let contents: Vec<(&str, Vec<PathProgress>)> =
            self.contents.iter().map(|(id, content)| (content.hash.as_str(), session.paths(*id))).collect();
        log.write(&contents, now)
    }

    /// Takes the progress lines away, until they are drawn again.
    pub(crate) fn clear(&mut self) {
        self.lines.iter_mut().for_each(StatusLines::clear);
    }

    /// Takes the progress lines away for good.
    pub(crate) fn close(&mut self) {
        self.clear();
        self.lines = None;
    }
}

/// A line for each path, where there is a choice of them.
fn path_lines(paths: &[PathProgress]) -> Vec<String> {
    let shown = || paths.iter().filter(|path| path.is_one_of_many).filter(|path| path.condition != PathCondition::Gone);
    if shown().count() < 2 {
        return Vec::new();
    }
    let total: u64 = paths.iter().map(|path| path.download_rate_bytes + path.upload_rate_bytes).sum();
    let line = |path: &PathProgress| {
        let share = units::percent(path.download_rate_bytes + path.upload_rate_bytes, total.max(1));
        let rtt = path.rtt.map_or("-".to_owned(), |rtt| format!("{:.1} ms", rtt.as_secs_f64() * 1e3));
        format!(
            "  {}  {:7}  down {:>11}  up {:>11}  {share:5.1} %  RTT {rtt:>9}  lost {:<6}  {}",
            path.path.id(),
            path.condition.to_string(),
            units::rate(path.download_rate_bytes),
            units::rate(path.upload_rate_bytes),
            path.lost_packets,
            path.path,
        )
    };
    shown().take(PATH_LINES_MAX).map(line).collect()
}

/// The progress line of one content.
fn status(content: &Content, progress: &Progress, paths: &[PathProgress]) -> String {
    let stats = &progress.stats;
    let open = paths.iter().filter(|path| path.condition != PathCondition::Gone).count();
    let traffic = format!(
        "down {:>10}  up {:>10}  {}, {}",
        units::rate(stats.download_rate_bytes),
        units::rate(stats.upload_rate_bytes),
        units::count(stats.peers as usize, "peer"),
        units::count(open, "path"),
    );
    let (name, paused) = (&content.name, if progress.paused { "  paused" } else { "" });
    if let Some((done, total)) = content.checking {
        return format!("verifying {:5.1} %  {name}", units::percent(done, total));
    }
    match progress.bytes_total {
        None if content.is_live => format!("live  {}  {traffic}  {name}", units::bytes(progress.bytes_done)),
        None => format!("metadata  {traffic}  {name}"),
        Some(total) => {
            let percent = units::percent(progress.bytes_done, total);
            let left = total.saturating_sub(progress.bytes_done);
            let eta = match stats.download_rate_bytes {
                _ if left == 0 => String::new(),
                0 => "  ETA -".to_owned(),
                rate => format!("  ETA {}", units::duration(Duration::from_secs(left / rate))),
            };
            let amount = format!("{} of {}", units::bytes(progress.bytes_done), units::bytes(total));
            format!("{percent:5.1} %  {amount}  {traffic}{eta}{paused}  {name}")
        }
    }
}
