//! A session from other threads.
//!
//! A [`Handle`] sends commands to the session's thread, which carries them out one after the other and answers each. A command that
//! takes long (a check, a move, a removal) is begun in its turn and answered when it is done; others go on meanwhile. Whoever
//! drops the answer gives up hearing of it, not what it asked for.

use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::torrent::PeerStats;
use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::Info;
use anabranch_content::metainfo::Metainfo;
use anabranch_paths::Endpoint;
use anabranch_transport::NodeId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::config::{AddOptions, FileFilter};
use crate::events::{ContentId, EventHub, Events};
use crate::ppspp::Ports;
use crate::session::{Contents, Data, Source};
use crate::transfer::LiveState;
use crate::transfer::PathProgress;
use crate::transfer::Sources;
use crate::transfer::{ControlError, FilePriorities, Progress, Removed};

/// Commands that wait for the session's thread; whoever sends more waits.
const COMMANDS_MAX: usize = 64;

/// What a command comes to: answered at once, or by a future.
type Pending = Option<Pin<Box<dyn Future<Output = ()>>>>;
/// Carried out on the session's thread.
pub(super) type Command = Box<dyn FnOnce(&Contents) -> Pending + Send>;

/// A session, to be asked from any thread. Clones are one. It does not keep the session: once that is gone, every answer is
/// [`ControlError::Gone`].
#[derive(Clone)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    events: EventHub,
}

pub(super) fn new(contents: &Contents) -> (Handle, mpsc::Receiver<Command>) {
    let (commands, received) = mpsc::channel(COMMANDS_MAX);
    (Handle { commands, events: contents.resources.events.clone() }, received)
}

/// Carries commands out until the session ends.
pub(super) async fn serve(contents: Rc<Contents>, mut commands: mpsc::Receiver<Command>) {
    let mut pending = JoinSet::new();
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => {
                    if let Some(answering) = command(&contents) {
                        pending.spawn_local(answering);
                    }
                }
                // The session has a handle itself, so this is not reached while it lives.
                None => return,
            },
            Some(_) = pending.join_next() => {}
        }
    }
}

impl Handle {
    /// What is told from now on, of all contents. As many may listen as want to.
    pub fn subscribe(&self) -> Events {
        self.events.subscribe()
    }

    /// See [`Contents::add`].
    pub async fn add(&self, source: Source, options: AddOptions) -> Result<ContentId, ControlError> {
        Ok(self.ask(move |contents| contents.add(source, options)).await??)
    }

    /// See [`Contents::remove`].
    pub async fn remove(&self, id: ContentId, data: Data) -> Result<Removed, ControlError> {
        self.ask_long(move |contents| contents.remove(id, data)).await
    }

    /// The contents there are, in the order in which they came; those that are being removed are among them.
    pub async fn list(&self) -> Result<Vec<ContentId>, ControlError> {
        self.ask(Contents::list).await
    }

    /// See [`Contents::progress`].
    pub async fn progress(&self, id: ContentId) -> Result<Progress, ControlError> {
        self.ask(move |contents| contents.progress(id)).await?.ok_or(ControlError::Unknown(id))
    }

    /// See [`Contents::progress_of`].
    pub async fn progress_of(&self, ids: Vec<ContentId>) -> Result<Vec<(ContentId, Progress)>, ControlError> {
        self.ask(move |contents| contents.progress_of(&ids)).await
    }

    /// See [`Contents::have`].
    pub async fn have(&self, id: ContentId) -> Result<Option<Bitfield>, ControlError> {
        self.ask_of(id, move |contents| contents.have(id)).await
    }

    /// See [`Contents::peers`].
    pub async fn peers(&self, id: ContentId) -> Result<Vec<PeerStats>, ControlError> {
        self.ask_of(id, move |contents| contents.peers(id)).await
    }

    /// See [`Contents::paths`].
    pub async fn paths(&self, id: ContentId) -> Result<Vec<PathProgress>, ControlError> {
        self.ask_of(id, move |contents| contents.paths(id)).await
    }

    /// See [`Contents::info`].
    pub async fn info(&self, id: ContentId) -> Result<Option<Arc<Info>>, ControlError> {
        self.ask_of(id, move |contents| contents.info(id)).await
    }

    /// See [`Contents::sources`].
    pub async fn sources(&self, id: ContentId) -> Result<Sources, ControlError> {
        self.ask(move |contents| contents.sources(id)).await?.ok_or(ControlError::Unknown(id))
    }

    /// See [`Contents::metainfo`].
    pub async fn metainfo(&self, id: ContentId) -> Result<Option<Metainfo>, ControlError> {
        self.ask_of(id, move |contents| contents.metainfo(id)).await
    }

    /// See [`Contents::choose`].
    pub async fn choose(&self, id: ContentId, files: Option<FileFilter>) -> Result<(), ControlError> {
        self.ask_of(id, move |contents| contents.choose(id, files)).await
    }

    /// See [`Contents::set_deadline`].
    pub async fn set_deadline(&self, id: ContentId, piece: u32, at: Option<Instant>) -> Result<(), ControlError> {
        self.ask_of(id, move |contents| contents.set_deadline(id, piece, at)).await
    }

    /// See [`Contents::pause`].
    pub async fn pause(&self, id: ContentId) -> Result<(), ControlError> {
        self.ask(move |contents| contents.pause(id)).await?
    }

    /// See [`Contents::resume`].
    pub async fn resume(&self, id: ContentId) -> Result<(), ControlError> {
        self.ask(move |contents| contents.resume(id)).await?
    }

    /// See [`Contents::recheck`].
    pub async fn recheck(&self, id: ContentId) -> Result<(), ControlError> {
        self.ask_long(move |contents| contents.recheck(id)).await
    }

    /// See [`Contents::move_to`].
    pub async fn move_to(&self, id: ContentId, dir: PathBuf) -> Result<(), ControlError> {
        self.ask_long(move |contents| contents.move_to(id, dir)).await
    }

    /// See [`Contents::set_files`].
    pub async fn set_files(&self, id: ContentId, files: FilePriorities) -> Result<(), ControlError> {
        self.ask_long(move |contents| contents.set_files(id, files)).await
    }

    /// See [`Contents::set_limits`].
    pub async fn set_limits(&self, id: ContentId, down: Option<u64>, up: Option<u64>) -> Result<(), ControlError> {
        self.ask(move |contents| contents.set_limits(id, down, up)).await?
    }

    /// See [`Contents::set_session_limits`].
    pub async fn set_session_limits(&self, down: Option<u64>, up: Option<u64>) -> Result<(), ControlError> {
        self.ask(move |contents| contents.set_session_limits(down, up)).await
    }

    /// See [`Contents::reannounce`].
    pub async fn reannounce(&self, id: ContentId) -> Result<(), ControlError> {
        self.ask(move |contents| contents.reannounce(id)).await?
    }

    /// See [`Contents::push_live`]. Whoever has much to give waits until the session takes it.
    pub async fn push_live(&self, id: ContentId, bytes: Vec<u8>) -> Result<(), ControlError> {
        self.ask_of(id, move |contents| contents.push_live(id, &bytes)).await
    }

    /// See [`Contents::end_live`].
    pub async fn end_live(&self, id: ContentId) -> Result<(), ControlError> {
        self.ask_of(id, move |contents| contents.end_live(id)).await
    }

    /// See [`Contents::live_state`].
    pub async fn live_state(&self, id: ContentId) -> Result<Option<LiveState>, ControlError> {
        self.ask_of(id, move |contents| contents.live_state(id)).await
    }

    /// See [`Contents::ppspp_addresses`] and [`Contents::ppspp_ports`].
    pub async fn ppspp_reach(&self) -> Result<(Vec<Endpoint>, Ports), ControlError> {
        self.ask(|contents| (contents.ppspp_addresses(), contents.ppspp_ports())).await
    }

    /// See [`Contents::prefer_ppspp_ports`].
    pub async fn prefer_ppspp_ports(&self, ports: Ports) -> Result<(), ControlError> {
        self.ask(move |contents| contents.prefer_ppspp_ports(ports)).await
    }

    /// See [`Contents::secure_node_id`].
    pub async fn secure_node_id(&self) -> Result<Option<NodeId>, ControlError> {
        self.ask(|contents| contents.secure_node_id()).await
    }

    /// See [`Contents::add_peers`].
    pub async fn add_peers(&self, id: ContentId, peers: Vec<Endpoint>) -> Result<(), ControlError> {
        self.ask(move |contents| contents.add_peers(id, &peers)).await?
    }

    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Contents) -> T + Send + 'static,
    ) -> Result<T, ControlError> {
        let (answer, answered) = oneshot::channel();
        self.send(Box::new(move |contents| {
            // Whoever asked may be gone.
            let _ = answer.send(ask(contents));
            None
        }))
        .await?;
        answered.await.map_err(|_| ControlError::Gone)
    }

    /// The same of a content that has to be there.
    async fn ask_of<T: Send + 'static>(
        &self,
        id: ContentId,
        ask: impl FnOnce(&Contents) -> T + Send + 'static,
    ) -> Result<T, ControlError> {
        let answer = self.ask(move |contents| contents.has(id).then(|| ask(contents)));
        answer.await?.ok_or(ControlError::Unknown(id))
    }

    /// The same where the answer takes its time.
    async fn ask_long<T: Send + 'static, F: Future<Output = Result<T, ControlError>> + 'static>(
        &self,
        ask: impl FnOnce(&Contents) -> F + Send + 'static,
    ) -> Result<T, ControlError> {
        let (answer, answered) = oneshot::channel();
        self.send(Box::new(move |contents| {
            let asked = ask(contents);
            Some(Box::pin(async move {
                let _ = answer.send(asked.await);
            }))
        }))
        .await?;
        answered.await.unwrap_or(Err(ControlError::Gone))
    }

    pub(super) async fn send(&self, command: Command) -> Result<(), ControlError> {
        self.commands.send(command).await.map_err(|_| ControlError::Gone)
    }
}
