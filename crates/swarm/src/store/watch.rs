//! Files that were verified and may be edited by anybody since: they are looked at now and then, and one that changed is looked at
//! until it is the content again. Whoever edits a file may put it back, and a new time alone changes nothing.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::Info;
use anabranch_content::storage::{ErrorKind, Storage};

use super::open::blocking;
use super::recheck::{self, GoodOf};

/// First and longest wait between two looks at a file that is not the content any more.
const WATCH_FIRST: Duration = Duration::from_secs(2);
const WATCH_LAST: Duration = Duration::from_secs(60);

/// A content with files that may change, as who drives it knows it.
pub(crate) trait Watched {
    /// Its files; `None` where they are not open, or where it ends.
    fn watched_files(&self) -> Option<Arc<Storage>>;
    /// What hashes its pieces, on another thread.
    fn hasher(&self) -> GoodOf;
    /// These pieces turned out to be good after all.
    fn regain(&self, good: &Bitfield);
    /// Whether all of these pieces count as good.
    fn has_all(&self, pieces: Range<u32>) -> bool;
    /// All of a file is good again.
    fn restored(&self, file: usize);
    /// Something stands in a file's place that may not be read.
    fn tell_shut_out(&self, reason: String);
}

/// Looks at a file in doubt, whose pieces do not count as good, now and until all of them do.
pub(crate) async fn keep_watch(content: impl Watched, file: usize) {
    let (mut wait, mut is_told) = (WATCH_FIRST, false);
    while let Some(storage) = content.watched_files() {
        let (looking, hasher) = (Arc::clone(&storage), content.hasher());
        let (good, seen) = blocking(move || recheck::look_again(&looking, file, hasher)).await;
        if content.watched_files().is_none() {
            return;
        }
        if let Some(good) = good.filter(|_| seen == storage.stamp(file)) {
            content.regain(&good);
        }
        if seen.is_some() && is_shut_out(&storage, file) && !std::mem::replace(&mut is_told, true) {
            // The sandbox was told of the file that there was.
            let path = storage.file_path(file);
            content.tell_shut_out(format!(
                "{} is another file now, and may not be read: start the command again to share it",
                path.display()
            ));
        }
        let pieces = storage.info().pieces_of_file(file);
        // Whoever moves or deletes the files waits until nobody has them: they are not held through the waits below.
        drop(storage);
        loop {
            let Some(now) = content.watched_files().map(|storage| storage.stamp(file)) else { return };
            // The piece that it shares with its neighbour may be good since that is.
            if content.has_all(pieces.clone()) {
                return content.restored(file);
            }
            if now != seen {
                break;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WATCH_LAST);
        }
    }
}

fn is_shut_out(storage: &Storage, file: usize) -> bool {
    storage.check_file(file).is_err_and(|error| error.kind == ErrorKind::PermissionDenied)
}

/// What is told of files, at least one, that changed while they were shared.
pub(crate) fn changed_words(info: &Info, files: &[usize]) -> String {
    let first = files.first().map_or_else(Default::default, |file| info.files[*file].path.display().to_string());
    let (others, them) = match files.len() {
        0 | 1 => (String::new(), "it was"),
        2 => (" and 1 other file".to_owned(), "they were"),
        count => (format!(" and {} other files", count - 1), "they were"),
    };
    format!("{first}{others} changed while {them} shared: what is not the content any more is not offered")
}

/// The files from the one of this index on that are not what was verified any more, as far as `looks` of them go; and where to go
/// on, if there are more.
pub(crate) fn changed_files(storage: &Storage, from: usize, looks: &mut usize) -> (Vec<usize>, Option<usize>) {
    let info = storage.info();
    let mut changed = Vec::new();
    for file in from..info.files.len() {
        if *looks == 0 {
            return (changed, Some(file));
        }
        *looks -= 1;
        if !info.pieces_of_file(file).is_empty() && storage.is_seal_broken(file) {
            changed.push(file);
        }
    }
    (changed, None)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use anabranch_content::storage::StorageOptions;
    use tokio::task::LocalSet;

    use super::*;

    /// A content of one file that is not what it was, and what became of that.
    struct InDoubt {
        storage: RefCell<Option<Arc<Storage>>>,
        is_good: Cell<bool>,
        looks: Cell<usize>,
        restored: Cell<bool>,
    }

    impl Watched for Rc<InDoubt> {
        fn watched_files(&self) -> Option<Arc<Storage>> {
            self.storage.borrow().clone()
        }

        fn hasher(&self) -> GoodOf {
            Box::new(|storage, _| Some(Bitfield::new(storage.info().geometry.piece_count())))
        }

        fn regain(&self, _: &Bitfield) {}

        fn has_all(&self, _: Range<u32>) -> bool {
            self.looks.set(self.looks.get() + 1);
            self.is_good.get()
        }

        fn restored(&self, _: usize) {
            self.restored.set(true);
        }

        fn tell_shut_out(&self, reason: String) {
            panic!("{reason}");
        }
    }

    fn in_doubt(dir: &std::path::Path) -> Rc<InDoubt> {
        let mut rng = fastrand::Rng::with_seed(1);
        let (info, _) = crate::store::tests::content(&mut rng, &[1000], 1024, 1024);
        std::fs::create_dir(dir.join("content")).unwrap();
        std::fs::write(dir.join("content/0"), "edited").unwrap();
        let storage = Storage::open(info, dir, StorageOptions::default()).unwrap();
        Rc::new(InDoubt {
            storage: RefCell::new(Some(Arc::new(storage))),
            is_good: Cell::new(false),
            looks: Cell::new(0),
            restored: Cell::new(false),
        })
    }

    /// Until so many looks are done: whoever watches sleeps then.
    async fn looks(content: &InDoubt, count: usize) {
        while content.looks.get() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn whoever_waits_for_a_file_to_be_put_back_does_not_hold_it_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        run(async {
            let content = in_doubt(dir.path());
            let watching = tokio::task::spawn_local(keep_watch(Rc::clone(&content), 0));
            looks(&content, 1).await;
            assert_eq!(content.storage.borrow().as_ref().map(Arc::strong_count), Some(1));
            content.is_good.set(true);
            tokio::time::pause();
            watching.await.unwrap();
            assert!(content.restored.get());
        });
    }

    #[test]
    fn a_file_whose_content_goes_is_not_watched_any_more() {
        let dir = tempfile::tempdir().unwrap();
        run(async {
            let content = in_doubt(dir.path());
            let watching = tokio::task::spawn_local(keep_watch(Rc::clone(&content), 0));
            looks(&content, 1).await;
            content.storage.take();
            tokio::time::pause();
            watching.await.unwrap();
            assert!(!content.restored.get());
        });
    }
}
