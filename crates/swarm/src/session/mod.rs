//! A session: many contents, one set of listeners, buffers, disk threads and limits.
//!
//! Everything but the disk threads runs on the thread that calls [`Session::start`], inside a tokio `LocalSet`: one thread
//! moves gigabytes per second, and nothing needs a lock.
//!
//! Who owns what: the session owns its [`Contents`] and the tasks that serve all of them; a content owns its tasks, connections
//! and files, and ends with them; what contents share ([`Resources`](crate::resources)) knows none of them. From a content to
//! its session leads a weak reference alone. So whatever is let go is gone: tasks, threads, sockets, descriptors and memory.
//!
//! | module | what it does |
//! | --- | --- |
//! | `add`, `remove` | contents come and go |
//! | `contents` | which there are, and how they fare |
//! | `control` | what an owner may ask of one |
//! | `download` | torrent files from where they are published |
//! | `handle` | the same, from other threads |
//! | `live` | a live stream is fed, and read |
//! | `local_discovery` | peers in the same network find each other |
//! | `port_mapping` | routers are asked to open our ports |
//! | `read` | a content is read while it arrives |
//! | `housekeeping` | what is done for all of them |

mod add;
mod contents;
mod control;
mod download;
mod handle;
mod housekeeping;
mod live;
mod local_discovery;
mod port_mapping;
mod read;
mod remove;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::rc::Rc;

use tokio::task::JoinSet;

pub use add::{Source, parse_peer};
pub use contents::Contents;
pub use handle::Handle;
pub use live::{LiveRead, LiveReader};
pub use read::{ReadError, Reader};
pub use remove::Data;

use crate::bittorrent::dial;
use crate::config::{SessionConfig, SessionError};
use crate::events::Events;
use crate::limits::keep_pace;
use crate::resources::{Opened, Resources};

/// A running session: its [`Contents`], and the tasks that serve them.
///
/// Dropping it abandons transfers: connections are closed, and listeners, threads and memory are gone as soon as its tasks run
/// again; what the disk threads have is still written. [`Session::shutdown`] leaves politely.
pub struct Session {
    contents: Rc<Contents>,
    handle: Handle,
    /// Tasks that no content ends. They end with the session.
    _tasks: JoinSet<()>,
}

impl Deref for Session {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        &self.contents
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.contents.leaving.borrow_mut().abort_all();
        self.contents.deleting.borrow_mut().abort_all();
        self.contents.serving.borrow_mut().abort_all();
        self.contents.list().into_iter().filter_map(|id| self.contents.get(id)).for_each(|content| content.abandon());
    }
}

impl Session {
    /// Starts listening and the disk threads. Must run inside a tokio `LocalSet`. What is answered beside the session tells all that
    /// happens to its contents.
    pub fn start(config: SessionConfig) -> Result<(Self, Events), SessionError> {
        let (resources, Opened { listeners, replies }) = Resources::open(config)?;
        let events = resources.events.subscribe();
        let contents = Contents::new(resources);
        let resources = &contents.resources;
        let mut tasks = JoinSet::new();
        for listener in listeners {
            tasks.spawn_local(dial::accept(contents.clone(), listener));
        }
        resources.utp.serve(&mut tasks);
        if let Some(relayed) = resources.utp.relayed().cloned() {
            let contents = Rc::clone(&contents);
            tasks.spawn_local(async move { relayed.keep_relay(|error| contents.relay_failed(error)).await });
        }
        if let Some(net) = &resources.scion {
            tasks.spawn_local(Rc::clone(net).listen());
        }
        if let Some(dht) = &resources.dht {
            dht.serve(&mut tasks);
        }
        if resources.config.local_discovery {
            tasks.spawn_local(local_discovery::discover(Rc::clone(&contents)));
        }
        if resources.config.port_mapping {
            tasks.spawn_local(port_mapping::keep_open(Rc::clone(&contents)));
        }
        tasks.spawn_local(housekeeping::serve_disk(Rc::clone(&contents), replies));
        for line in [&resources.down, &resources.up] {
            tasks.spawn_local(keep_pace(Rc::clone(line)));
        }
        tasks.spawn_local(housekeeping::housekeeping(Rc::clone(&contents)));
        let (handle, commands) = handle::new(&contents);
        tasks.spawn_local(handle::serve(Rc::clone(&contents), commands));
        Ok((Self { contents, handle, _tasks: tasks }, events))
    }

    /// The session, to be asked from any thread.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Leaves: connections are closed, trackers told, and what was received is on disk and recorded when this returns.
    ///
    /// Takes a few seconds at most, whatever trackers and disks do.
    pub async fn shutdown(self) {
        self.contents.remove_all("we are leaving").await;
        if let Some(dht) = &self.contents.resources.dht {
            dht.keep();
        }
        self.contents.resources.ports.close().await;
        self.contents.resources.utp.close().await;
        if let Some(net) = &self.contents.resources.scion {
            net.endpoint.close().await;
        }
    }
}
