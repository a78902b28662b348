//! The task of a managed transfer: it begins the driver, follows it, and begins it again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use anabranch_transport::NodeId;
use tokio::sync::mpsc;

use super::super::content::{Destinations, Source};
use super::super::events::{Events, Handle};
use super::super::files::{FileSource, Folder, FolderOptions, Scan};
use super::super::invitation::{UselessTicket, check_ticket};
use super::super::options::{Admission, Dial, Options, Peers};
use super::super::start::{receive, send};
use super::state::{Ended, ManagedTransfer, State};
use super::task::{Job, Partner};
use crate::events::{EventKind, FailureKind, News};
use crate::net::scion::ScionConfig;
use crate::store::open::blocking;

/// Pause before it is begun again, where the other end cut it short.
const AGAIN: Duration = Duration::from_secs(2);
/// What the driver's other threads may still hold when its last event came is theirs for so long: the place of what is received.
const SETTLING: Duration = Duration::from_millis(200);
/// Notes of the threads that write which wait to be told; those beyond are left out.
const NOTES_MAX: usize = 16;
/// Names that are others here which are told one by one.
const NAMED_MAX: usize = 10;

/// The task's life.
pub(super) async fn run(transfer: ManagedTransfer) {
    if transfer.0.borrow().task.is_over {
        let mut state = transfer.0.borrow_mut();
        state.is_over = true;
        let why = state.why_over().to_owned();
        state.news(News::Over(why));
        return;
    }
    loop {
        transfer.until(|state| !state.is_held || state.is_leaving).await;
        if transfer.0.borrow().is_leaving {
            return;
        }
        let ended = once(&transfer).await;
        transfer.0.borrow_mut().ended();
        match ended {
            Ended::Asked => {}
            Ended::Cut(reason) => {
                transfer.0.borrow_mut().waits_for(Some(format!("{reason}; it is tried again")));
                tokio::select! {
                    () = tokio::time::sleep(AGAIN) => {}
                    () = transfer.until(State::is_asked_to_rest) => {}
                }
            }
            Ended::Over(why) => {
                let mut state = transfer.0.borrow_mut();
                state.is_over = true;
                state.waits_for(None);
                return state.news(News::Over(why));
            }
            Ended::Failed(kind, reason) => {
                let mut state = transfer.0.borrow_mut();
                state.has_failed = true;
                return state.tell(EventKind::Failed { kind, reason });
            }
        }
    }
}

impl ManagedTransfer {
    /// Waits until it is so. One task waits at a time.
    async fn until(&self, is_so: impl Fn(&State) -> bool) {
        let changed = std::rc::Rc::clone(&self.0.borrow().changed);
        while !is_so(&self.0.borrow()) {
            changed.notified().await;
        }
    }
}

/// One run of the driver.
async fn once(transfer: &ManagedTransfer) -> Ended {
    {
        let mut state = transfer.0.borrow_mut();
        (state.is_running, state.cancel) = (true, Arc::default());
    }
    let (notes, mut told) = mpsc::channel(NOTES_MAX);
    let begun = tokio::select! {
        begun = start(transfer, notes) => begun,
        () = transfer.until(State::is_asked_to_rest) => return Ended::Asked,
    };
    let (handle, mut events, key) = match begun {
        Ok(begun) => begun,
        Err(ended) => return ended,
    };
    {
        let mut state = transfer.0.borrow_mut();
        state.driver = Some(handle.clone());
        let bytes_total = state.size;
        state.news(News::Begun { bytes_total });
        let waits = state.what_it_waits_for();
        state.waits_for(waits);
    }
    let (mut is_asked, mut ended) = (false, None);
    loop {
        let event = tokio::select! {
            biased;
            () = transfer.until(State::is_asked_to_rest), if !is_asked => {
                is_asked = true;
                handle.cancel();
                continue;
            }
            Some(note) = told.recv() => {
                transfer.0.borrow().news(News::Note(note));
                continue;
            }
            event = events.recv() => event,
        };
        let Some(event) = event else { break };
        if let Some(end) = transfer.0.borrow_mut().heed(event, key) {
            ended.get_or_insert(end);
            handle.cancel();
        }
    }
    if !transfer.0.borrow().sends() {
        tokio::time::sleep(SETTLING).await;
    }
    match (ended, is_asked) {
        (Some(ended), _) => ended,
        (None, true) => Ended::Asked,
        (None, false) => transfer.0.borrow().verdict(),
    }
}

/// Begins the driver, and answers what holds it, what it tells, and this end's key.
async fn start(transfer: &ManagedTransfer, notes: mpsc::Sender<String>) -> Result<(Handle, Events, NodeId), Ended> {
    let failed = |kind, reason: String| Ended::Failed(kind, reason);
    let (job, cancel) = {
        let state = transfer.0.borrow();
        (state.task.job.clone(), Arc::clone(&state.cancel))
    };
    let source = match job {
        Job::Send(paths) => {
            let notes = notes.clone();
            let source = blocking(move || scan(&paths, &cancel, &notes)).await;
            Some(source.map_err(|reason| failed(FailureKind::Content, reason))?)
        }
        Job::Receive => None,
    };
    let mut state = transfer.0.borrow_mut();
    state.size = source.as_ref().map(|source| source.content_len());
    let options = options(&state).map_err(|reason| failed(FailureKind::Sources, reason))?;
    let key = options.identity.node_id();
    let peers = peers(&state, key).map_err(|reason| failed(FailureKind::Sources, reason))?;
    let begun = match source {
        Some(source) => send(options, peers, source),
        None => receive(options, peers, destinations(&state, notes)),
    };
    let (handle, events) = begun.map_err(|error| failed(FailureKind::Sources, error.to_string()))?;
    Ok((handle, events, key))
}

/// Looks through what is sent. Blocks.
fn scan(
    paths: &[std::path::PathBuf],
    cancel: &AtomicBool,
    notes: &mpsc::Sender<String>,
) -> Result<Arc<dyn Source>, String> {
    let scan = Scan::of(paths, None, cancel).map_err(|error| error.to_string())?;
    let (skipped, count) = scan.skipped();
    for (path, why) in skipped.iter().take(NAMED_MAX) {
        // Nobody has to hear of it.
        let _ = notes.try_send(format!("left out: {} {why}", path.display()));
    }
    if count > NAMED_MAX {
        let _ = notes.try_send(format!("left out: {} more, that are no files or lead out", count - NAMED_MAX));
    }
    if scan.entries() == 0 {
        return Err("there is nothing to send".to_owned());
    }
    Ok(Arc::new(FileSource::new(scan).map_err(|error| error.to_string())?))
}

/// Where what comes in goes.
fn destinations(state: &State, notes: mpsc::Sender<String>) -> Arc<dyn Destinations> {
    let options = FolderOptions { overwrite: state.options.overwrite, preallocate: state.resources.config.preallocate };
    Arc::new(Folder::new(&state.options.dir, options, move |renamed, count| {
        for (written, path) in renamed.iter().take(NAMED_MAX) {
            let _ = notes.try_send(format!("{} is called {} here", written.display(), path.display()));
        }
        if count > NAMED_MAX {
            let _ = notes.try_send(format!("{} more are called otherwise here", count - NAMED_MAX));
        }
    }))
}

/// How the transfer goes: as the session does.
fn options(state: &State) -> Result<Options, String> {
    let config = &state.resources.config;
    if config.proxy.is_some() {
        return Err("everything of this session goes through a proxy, and bulk transfers go through none".to_owned());
    }
    let Some(identity) = config.secure_identity.clone() else {
        return Err("this session has no key to show to the other end: begin it without --allow".to_owned());
    };
    let mut addresses: Vec<IpAddr> = state.resources.listening.iter().map(SocketAddr::ip).collect();
    if addresses.contains(&Ipv6Addr::UNSPECIFIED.into()) {
        // Connections of both families come in there, datagrams of one.
        addresses.push(Ipv4Addr::UNSPECIFIED.into());
    }
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() && config.scion.is_none() {
        return Err("this session listens nowhere: begin it with --listen".to_owned());
    }
    let (port, scion_port) = match state.listens() {
        true => state.task.ports,
        false => (0, 0),
    };
    let port = match addresses.first() {
        // All addresses have one, so that it can be had again.
        Some(address) if port == 0 && state.listens() => {
            free_port(*address).map_err(|error| format!("cannot listen at {address}: {error}"))?
        }
        _ => port,
    };
    let scion = config.scion.clone().map(|mut scion: ScionConfig| {
        scion.local.host.set_port(scion_port);
        scion
    });
    let (limit_down, limit_up) = state.limits_now();
    Ok(Options {
        listen: Some(addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect()),
        scion,
        paths: config.paths.clone(),
        limit_down,
        limit_up,
        ..Options::new(identity)
    })
}

/// A port that nobody has over UDP.
fn free_port(address: IpAddr) -> std::io::Result<u16> {
    Ok(UdpSocket::bind((address, 0))?.local_addr()?.port())
}

fn peers(state: &State, key: NodeId) -> Result<Peers, String> {
    match &state.task.partner {
        Partner::Ticket(ticket) => match check_ticket(ticket, state.sends(), SystemTime::now()) {
            Ok(()) => Ok(Peers::Dial(vec![Dial::from(ticket)])),
            Err(UselessTicket::Expired(_)) => Err("the ticket expired: ask for a new one".to_owned()),
            Err(UselessTicket::ForSending) => Err("this ticket is one for sending".to_owned()),
            Err(UselessTicket::ForReceiving) => Err("this ticket is one for receiving".to_owned()),
        },
        Partner::Allowed(keys) => Ok(Peers::Listen(Admission { keys: keys.clone(), ..Admission::default() })),
        Partner::Invited { .. } => {
            let invitation = state.invitation(key);
            Ok(Peers::Listen(invitation.map(|invitation| invitation.admission()).unwrap_or_default()))
        }
    }
}
