//! What was learned of contents, and what moved for them, goes to the disk: all that came together at once, in the background. Nobody
//! waits for it, for a content whose news got lost with the program has the same news the next time.

use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use super::tick::totals;
use super::{Content, Engine};
use crate::library::Entry;
use crate::store::Change;

/// What is learned within this time is kept together.
const TOGETHER: Duration = Duration::from_millis(200);
/// Contents that are kept at once: whoever asks for something else meanwhile waits for no more.
const KEPT_MAX: usize = 1000;

impl Content {
    /// Its entry was changed by its user, and kept. What was learned meanwhile holds, and is kept later.
    pub(super) fn take(&mut self, entry: Entry) {
        let before = std::mem::replace(&mut self.entry, entry);
        if self.live.is_learned {
            let entry = &mut self.entry;
            (entry.hashes, entry.name, entry.about) = (before.hashes, before.name, before.about);
            (entry.size, entry.done, entry.completed) = (before.size, before.done, before.completed);
        }
    }
}

impl Engine {
    /// Takes in what was learned of a content: its names, its size, what of it is there, what its torrent says. It is kept later.
    pub(super) fn learn(&self, id: u64, change: impl FnOnce(&mut Entry)) {
        {
            let mut state = self.state.borrow_mut();
            let Some(content) = state.contents.get(&id).filter(|content| content.entry.going.is_none()) else { return };
            let before = content.entry.clone();
            let learned = state.change(id, |content| {
                change(&mut content.entry);
                (content.entry != before).then(|| {
                    content.live.is_learned = true;
                    content.entry.clone()
                })
            });
            let Some(entry) = learned.flatten() else { return };
            state.index(&entry);
        }
        self.announce(id);
        // Who has something left to fetch may have to wait for others, or the other way round.
        self.changed.notify_one();
        self.learned.notify_one();
    }

    /// The same of where a content's files are, which is on the disk when this is done. What cannot be kept holds for this run.
    pub(super) async fn settle(&self, id: u64, change: impl Fn(&mut Entry)) {
        let kept = self
            .update(&[id], |entry| {
                change(entry);
                Ok(())
            })
            .await;
        if kept.is_err() {
            self.with(id, |content| change(&mut content.entry));
        }
    }

    /// Keeps what is learned. Never ends.
    pub(crate) async fn keep_learned(self: Rc<Self>) {
        loop {
            self.learned.notified().await;
            tokio::time::sleep(TOGETHER).await;
            self.keep(|content| content.live.is_learned).await;
        }
    }

    /// Keeps all that is not kept yet.
    pub(crate) async fn keep_totals(&self) {
        self.keep(|content| content.live.is_learned || content.live.is_unkept).await;
    }

    /// Keeps what is new of those contents, a part after the other, and tells of those that it is known of now that they are complete.
    async fn keep(&self, is_meant: impl Fn(&Content) -> bool) {
        let ids: Vec<u64> = {
            let state = self.state();
            state.contents.values().filter(|content| is_meant(content)).map(|content| content.entry.id).collect()
        };
        for ids in ids.chunks(KEPT_MAX) {
            let _turn = self.writing.lock().await;
            let batch: Vec<_> = {
                let mut state = self.state.borrow_mut();
                let mut batch = Vec::new();
                // Those that were removed meanwhile are not brought back.
                for id in ids {
                    batch.extend(state.contents.get_mut(id).into_iter().flat_map(values));
                }
                batch
            };
            if self.store.write(Change { batch, ..Change::default() }).await.is_err() {
                // A disk that is full has them kept the next time.
                let mut state = self.state.borrow_mut();
                for id in ids {
                    state.change(*id, |content| (content.live.is_learned, content.live.is_unkept) = (true, true));
                }
            }
        }
        let finished = std::mem::take(&mut self.state.borrow_mut().finished);
        for id in finished {
            self.tell_complete(id).await;
        }
    }
}

/// What is new of a content.
fn values(content: &mut Content) -> Vec<(String, Option<Value>)> {
    let (id, live) = (content.entry.id, &mut content.live);
    let (learned, unkept) = (std::mem::take(&mut live.is_learned), std::mem::take(&mut live.is_unkept));
    let entry = learned.then(|| (Entry::key(id), Some(content.entry.to_json())));
    let totals = unkept.then(|| (Entry::totals_key(id), Some(totals(content).to_json())));
    entry.into_iter().chain(totals).collect()
}
