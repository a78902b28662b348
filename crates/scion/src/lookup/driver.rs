//! The manager's core, joined to clocks and sockets: one task, and handles to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anabranch_paths::{Interface, IsdAs, ScionPath};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::manager::{Change, EXPIRY_MARGIN, Lookup, PathManager, Snapshot};
use super::{LocalAs, LookupError, Source};

/// Requests that wait for the task, which never waits for anything itself.
const REQUESTS_MAX: usize = 64;

/// Paths to any destination, kept fresh by a task of their own. Clones share it; it ends with the last of them.
#[derive(Clone)]
pub struct PathLookup {
    local: Arc<LocalAs>,
    source: Arc<Source>,
    requests: mpsc::Sender<Request>,
}

enum Request {
    Watch { destination: IsdAs, answer: oneshot::Sender<Result<watch::Receiver<Snapshot>, LookupError>> },
    InterfaceDown { interface: Interface },
    Seek { destination: IsdAs },
}

impl PathLookup {
    /// Learns about the host's AS and starts the task on the current runtime.
    pub async fn start(source: Source) -> Result<Self, LookupError> {
        let local = Arc::new(source.local_as().await?);
        let source = Arc::new(source);
        let (requests, inbox) = mpsc::channel(REQUESTS_MAX);
        let manager = PathManager::new(local.isd_as, local.mtu, fastrand::u64(..));
        let task = Task {
            source: source.clone(),
            local: local.isd_as,
            manager,
            watches: HashMap::new(),
            lookups: JoinSet::new(),
        };
        tokio::spawn(task.run(inbox));
        Ok(Self { local, source, requests })
    }

    /// The host's AS.
    pub fn local_as(&self) -> &LocalAs {
        &self.local
    }

    /// The unexpired paths to `destination`, fewest links first, at least one; waits for a lookup only if there are none.
    pub async fn paths(&self, destination: IsdAs) -> Result<Arc<[Arc<ScionPath>]>, LookupError> {
        let mut snapshots = self.snapshots(destination).await?;
        let settled = |snapshot: &Snapshot| !snapshot.paths.is_empty() || snapshot.failure.is_some();
        let snapshot = snapshots.wait_for(settled).await.map_err(|_| LookupError::Ended)?;
        match &snapshot.failure {
            Some(failure) if snapshot.paths.is_empty() => Err(failure.clone()),
            _ => Ok(snapshot.paths.clone()),
        }
    }

    /// The paths to `destination` as the network has them now, at least one: nobody's cache is asked.
    pub async fn paths_afresh(&self, destination: IsdAs) -> Result<Arc<[Arc<ScionPath>]>, LookupError> {
        let source_isd_as = self.local.isd_as;
        if destination == source_isd_as || destination.isd() == 0 || destination.asn() == 0 {
            return self.paths(destination).await;
        }
        let found = self.source.paths(source_isd_as, destination, true).await?;
        let margin = SystemTime::now() + EXPIRY_MARGIN;
        let live: Arc<[_]> = found.into_iter().filter(|path| path.expiry > margin).map(Arc::new).collect();
        if live.is_empty() { Err(LookupError::NoPath { source_isd_as, destination }) } else { Ok(live) }
    }

    /// The paths to `destination`, kept fresh as long as the watch lives.
    pub async fn watch(&self, destination: IsdAs) -> Result<PathWatch, LookupError> {
        Ok(PathWatch { snapshots: self.snapshots(destination).await?, seen: Snapshot::default() })
    }

    /// Says that an interface is down: the daemon is told, and the paths of all who watch are looked up again.
    pub async fn interface_down(&self, interface: Interface) {
        // If the task has ended, nobody waits for paths either.
        let _ = self.requests.send(Request::InterfaceDown { interface }).await;
    }

    /// Says that somebody uses a path to `destination` that is not among ours: it is looked for soon, however often this is said.
    pub async fn seek(&self, destination: IsdAs) {
        // As above.
        let _ = self.requests.send(Request::Seek { destination }).await;
    }

    async fn snapshots(&self, destination: IsdAs) -> Result<watch::Receiver<Snapshot>, LookupError> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(Request::Watch { destination, answer }).await.map_err(|_| LookupError::Ended)?;
        answered.await.map_err(|_| LookupError::Ended)?
    }
}

/// The paths to one destination as they change.
pub struct PathWatch {
    snapshots: watch::Receiver<Snapshot>,
    seen: Snapshot,
}

impl PathWatch {
    /// What is known now.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshots.borrow().clone()
    }

    /// Waits until something is different from what the last call told of: at first, until there are paths.
    pub async fn changed(&mut self) -> Result<Change, LookupError> {
        loop {
            let snapshot = self.snapshots.borrow_and_update().clone();
            let change = snapshot.change_since(&self.seen);
            self.seen = snapshot;
            if !change.is_empty() {
                return Ok(change);
            }
            self.snapshots.changed().await.map_err(|_| LookupError::Ended)?;
        }
    }
}

struct Task {
    source: Arc<Source>,
    local: IsdAs,
    manager: PathManager,
    /// Somebody holds a receiver of each, or did lately.
    watches: HashMap<IsdAs, watch::Sender<Snapshot>>,
    lookups: JoinSet<(IsdAs, Result<Vec<ScionPath>, LookupError>)>,
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<Request>) {
        loop {
            let deadline = self.turn();
            let sleep = async {
                match deadline {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                request = inbox.recv() => match request {
                    Some(request) => self.on_request(request),
                    // Nobody can ask any more; who still watches holds no handle, and is told by the channel's end.
                    None => return,
                },
                Some(done) = self.lookups.join_next() => {
                    // A lookup that panicked is a fault of this program and has been reported by the runtime.
                    let Ok((destination, reply)) = done else { continue };
                    self.manager.on_reply(destination, reply, Instant::now(), SystemTime::now());
                }
                () = sleep => {}
            }
        }
    }

    /// Does what is due, tells of what has changed, and says when to come back.
    fn turn(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let manager = &mut self.manager;
        self.watches.retain(|&destination, watch| {
            let is_watched = watch.receiver_count() > 0;
            if !is_watched {
                manager.set_watched(destination, false, now);
            }
            is_watched
        });
        manager.on_deadline(now);
        while let Some(Lookup { destination, refresh }) = manager.poll_lookup(now) {
            let (source, local) = (self.source.clone(), self.local);
            self.lookups.spawn(async move { (destination, source.paths(local, destination, refresh).await) });
        }
        while let Some(destination) = manager.poll_changed() {
            if let (Some(watch), Some(snapshot)) = (self.watches.get(&destination), manager.snapshot(destination)) {
                watch.send_replace(snapshot);
            }
        }
        manager.deadline()
    }

    fn on_request(&mut self, request: Request) {
        let now = Instant::now();
        match request {
            Request::Watch { destination, answer } => {
                let snapshot = self.manager.request(destination, now);
                let receiver = snapshot.map(|snapshot| {
                    self.manager.set_watched(destination, true, now);
                    let watch = self.watches.entry(destination).or_insert_with(|| watch::channel(snapshot).0);
                    watch.subscribe()
                });
                // Whoever asked may have gone; the next turn sees that nobody watches.
                let _ = answer.send(receiver);
            }
            Request::Seek { destination } => self.manager.seek(destination, now),
            Request::InterfaceDown { interface } => {
                let source = self.source.clone();
                // The daemon drops paths over it if it believes so; if it does not answer, nothing is lost.
                tokio::spawn(async move { source.notify_interface_down(interface).await });
                self.watches.keys().for_each(|&destination| self.manager.refresh_now(destination, now));
            }
        }
    }
}
