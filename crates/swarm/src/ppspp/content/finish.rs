//! Everything is there: looked at once more, forced to the disk and recorded first, told then. And all of it again, as its owner asks.

use std::sync::Arc;
use std::time::Duration;

use anabranch_content::storage::{ResumeStore, Storage};
use anabranch_ppspp::merkle::Tree;

use super::check::{checking, good_pieces};
use super::{Content, Handle, guarded};
use crate::events::{EventKind, PauseCause};
use crate::ppspp::nodes::Nodes;
use crate::store::open::blocking;
use crate::transfer::ControlError;
use crate::transfer::files::FILES_POLL;

/// How often storage is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// The core has every chunk.
pub(crate) fn finished(content: &mut Content) {
    if let Some(this) = content.this() {
        content.spawn(guarded(this.clone(), finish(this)));
    }
}

async fn finish(content: Handle) {
    let resume = content.borrow().resume.clone();
    let mut told = false;
    while let Some(resume) = resume.clone() {
        let finishing = Arc::clone(&resume);
        let changed = match blocking(move || finishing.finish()).await {
            Ok(changed) if changed.is_empty() => break,
            Ok(changed) => changed,
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    content.borrow().tell(EventKind::Paused { cause: PauseCause::Storage, reason: error.to_string() });
                }
                tokio::time::sleep(RETRY).await;
                if content.borrow().stopping {
                    return;
                }
                continue;
            }
        };
        // Somebody wrote to the file: what is not the content's any more is fetched again.
        if hash_again(&content, changed).await > 0 || content.borrow().stopping {
            return;
        }
    }
    let mut state = content.borrow_mut();
    if told {
        state.tell(EventKind::Resumed);
    }
    if !state.stopping && !std::mem::replace(&mut state.is_finished, true) {
        state.announce.notify_one();
        state.tell(EventKind::Finished);
    }
}

/// Hashes pieces again where they lie; answers how many are lost.
async fn hash_again(content: &Handle, pieces: Vec<u32>) -> usize {
    let Some((resume, storage)) = files(content) else { return 0 };
    let Some(tree) = tree_again(content) else { return 0 };
    let (cancel, front) = (Arc::clone(&content.borrow().cancel), content.borrow().front());
    let (checked, stored) = (pieces.clone(), Arc::clone(&storage));
    let good = checking(content, move |progress| good_pieces((&stored, front), &tree, &checked, &cancel, progress));
    let good = good.await;
    if content.borrow().stopping {
        return 0;
    }
    let lost: Vec<u32> = pieces.iter().copied().filter(|piece| !good.get(*piece)).collect();
    if let Some(resume) = resume {
        for piece in &pieces {
            // One that is not recorded is hashed again at the next start.
            let _ = if good.get(*piece) { resume.verified(*piece) } else { resume.failed(*piece) };
        }
    }
    let mut state = content.borrow_mut();
    pieces.iter().filter(|piece| good.get(**piece)).for_each(|piece| _ = state.have.set(*piece));
    state.lose(&lost);
    lost.len()
}

fn files(content: &Handle) -> Option<(Option<Arc<ResumeStore>>, Arc<Storage>)> {
    let state = content.borrow();
    Some((state.resume.clone(), state.storage.clone()?))
}

/// The tree, for another thread.
pub(crate) fn tree_again(content: &Handle) -> Option<Tree<Nodes>> {
    let state = content.borrow();
    let tree = state.core.tree();
    let nodes = tree.nodes().again().ok()?;
    Some(Tree::with_root(tree.hash(), tree.root()?, tree.chunk_count(), nodes))
}

/// All pieces are hashed anew, whatever is recorded.
pub(crate) async fn check_all(content: Handle) -> Result<(), ControlError> {
    let id = content.borrow().id;
    while content.borrow().is_busy() {
        if content.borrow().stopping {
            return Err(ControlError::Leaving(id));
        }
        tokio::time::sleep(FILES_POLL).await;
    }
    let Some((resume, storage)) = files(&content) else { return Err(ControlError::NotOpen(id)) };
    let known = Arc::clone(&storage);
    blocking(move || match resume {
        Some(resume) => resume.take_as_found(),
        None => {
            // Before they are hashed: a change after that is noticed.
            known.seal_all();
            Ok(())
        }
    })
    .await?;
    let pieces = storage.info().geometry.piece_count();
    hash_again(&content, (0..pieces).collect()).await;
    if content.borrow().stopping {
        return Err(ControlError::Leaving(id));
    }
    let mut state = content.borrow_mut();
    state.tell_core_what_is_here();
    let (pieces_have, pieces_total) = (state.have.count(), state.have.len());
    state.tell(EventKind::Checked { pieces_have, pieces_total });
    Ok(())
}
