//! What goes on with a content's files, and how they are closed, or deleted, whichever protocol it speaks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anabranch_content::info::Info;
use anabranch_content::storage::{ResumeStore, Storage, StorageError};

use crate::store::open::blocking;

/// How often it is looked whether the disk threads are done with a content's files.
pub(crate) const FILES_POLL: Duration = Duration::from_millis(5);

/// What goes on with a content's files and lets nothing else be done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// All pieces are hashed.
    Recheck,
    /// They go to another folder.
    Move,
    /// Other files are chosen.
    Select,
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Recheck => "checked",
            Self::Move => "moved",
            Self::Select => "changed in its choice of files",
        })
    }
}

/// A content is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Where its files were to be deleted: what stands in their places and was left there, because it is not the content's alone.
    pub left: Vec<PathBuf>,
}

/// Contents that may have bytes in the same files: their folders, and what they are.
pub(crate) type Others = Vec<(PathBuf, Arc<Info>)>;

/// The record and the files of a content that gives them up, as far as they were open.
pub(crate) struct Files {
    /// The record of verified pieces; none where files are only read.
    pub resume: Option<Arc<ResumeStore>>,
    /// The files.
    pub storage: Option<Arc<Storage>>,
    /// What else is kept beside the record.
    pub beside: Vec<PathBuf>,
}

impl Files {
    /// Brings what is known to the disk, and gives the place back. Where everything is there and nothing has to be remembered, the
    /// record goes (`is_done_with`).
    pub(crate) async fn close(self, downloaded_bytes: u64, uploaded_bytes: u64, is_done_with: bool) {
        blocking(move || {
            // What could not be recorded is checked at the next start.
            if let Some(resume) = &self.resume {
                resume.set_totals(downloaded_bytes, uploaded_bytes);
                if is_done_with {
                    let _ = resume.delete();
                    self.delete_beside();
                } else {
                    let _ = resume.close(false);
                }
            }
            self.release();
        })
        .await;
    }

    /// Deletes the files and the record, once nobody has them open, but for what `others` have their bytes in; and gives the place
    /// back. What is left.
    pub(crate) async fn delete(self, others: Others) -> Result<Vec<PathBuf>, StorageError> {
        let (Some(resume), Some(storage)) = (&self.resume, &self.storage) else {
            // Nothing was opened, so nothing was made.
            self.release();
            return Ok(Vec::new());
        };
        // Jobs of the disk threads and checks hold them until they are done: what they write must not come after. The record has
        // the files to itself once.
        while Arc::strong_count(resume) > 1 || Arc::strong_count(storage) > 2 {
            tokio::time::sleep(FILES_POLL).await;
        }
        let resume = Arc::clone(resume);
        blocking(move || {
            let left = resume.delete_content(|path| is_of_any(&others, path));
            self.delete_beside();
            self.release();
            left
        })
        .await
    }

    /// Others may have the place at once, whatever still holds on to the content.
    pub(crate) fn release(&self) {
        self.storage.iter().for_each(|storage| storage.release());
    }

    fn delete_beside(&self) {
        // It may never have been made.
        self.beside.iter().for_each(|path| _ = std::fs::remove_file(path));
    }
}

/// Whether one of these contents has its bytes there.
fn is_of_any(contents: &[(PathBuf, Arc<Info>)], path: &std::path::Path) -> bool {
    let has = |(root, info): &(PathBuf, Arc<Info>)| {
        path.strip_prefix(root).is_ok_and(|below| info.files.iter().any(|entry| entry.path == below))
    };
    contents.iter().any(has)
}
