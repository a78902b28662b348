//! When a content's path manager is shown what there is to see: when something happened (the network's news, a connection that opened or
//! ended, a peer's wish), and when the manager asks for it.

use std::time::{Duration, Instant};

use anabranch_paths::manager::PathManager;
use anabranch_scion::socket::ScmpEvent;
use tokio::sync::Notify;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// Looks that somebody asked for take a part of the time no larger than one in so many, ...
const LOOK_SHARE: u32 = 50;
/// ... unless they would be further apart than this.
const LOOKS_APART_MAX: Duration = Duration::from_millis(250);

/// A content, as the task sees it that looks after its paths.
pub(crate) trait PathsDriver {
    /// Calls `ask` with the manager.
    fn ask_manager<T>(&self, ask: impl FnOnce(&PathManager) -> T) -> T;
    /// The network says, and confirmed, that something on the way is down.
    fn on_scmp(&self, event: &ScmpEvent, now: Instant);
    /// The content ends, and its paths need nobody.
    fn is_stopping(&self) -> bool;
    /// One look at everything, and what follows from it.
    fn look(&self, now: Instant);
}

/// Looks after a content's paths until it ends, or the network. Whoever notifies `wake` asks for a look, and has it `apart` from
/// the one before, or further where looks take long: what happens to many connections at once is one thing to look at. The network's
/// word that a path is down does not wait.
pub(crate) async fn drive(
    content: impl PathsDriver,
    wake: &Notify,
    mut news: Option<Receiver<ScmpEvent>>,
    apart: Duration,
) {
    let mut not_before: Option<Instant> = None;
    loop {
        let next_look = content.ask_manager(|manager| manager.next_look(Instant::now()));
        let asked = async {
            wake.notified().await;
            if let Some(at) = not_before {
                tokio::time::sleep_until(at.into()).await;
            }
        };
        let pause = async {
            match next_look {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let next = async {
            match &mut news {
                Some(news) => news.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = asked => {}
            () = pause => {}
            event = next => match event {
                Ok(event) => content.on_scmp(&event, Instant::now()),
                // What was missed shows in silence.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
        if content.is_stopping() {
            return;
        }
        let now = Instant::now();
        content.look(now);
        let longer = (now.elapsed() * LOOK_SHARE).min(LOOKS_APART_MAX);
        not_before = (!apart.is_zero()).then(|| now + apart.max(longer));
    }
}
