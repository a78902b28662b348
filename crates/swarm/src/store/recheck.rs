//! Pieces that were good once and are in doubt, or lay on disk before their hashes were known: they are hashed where they lie.
//! Everything here blocks, and answers with what is good; what that means for a transfer is its driver's to say.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::metainfo::PieceLayers;
use anabranch_content::storage::{ResumeStore, Stamp, Storage, StorageError};
use anabranch_content::verify;

/// Hashes `pieces`, after writing them once more where `rewrite` says so, and records those that are good, which it answers.
/// `None` where `cancel` was set first: nothing is known then.
pub(crate) fn hash_again(
    resume: &ResumeStore,
    layers: &PieceLayers,
    pieces: &[u32],
    rewrite: bool,
    cancel: &AtomicBool,
) -> Option<Bitfield> {
    let storage = resume.storage();
    if rewrite {
        // One that cannot be read or written is told by its hash.
        pieces.iter().for_each(|piece| drop(resume.rewrite(*piece)));
    }
    let good = verify::verify_pieces(storage, layers, pieces, cancel, |_, _| {}).ok()?;
    // One that is not recorded is hashed again at the next start.
    pieces.iter().filter(|piece| good.get(**piece)).for_each(|piece| drop(resume.verified(*piece)));
    Some(good)
}

/// Whether the files that `piece` lies in are what they were when they were verified; if they look otherwise, those of their pieces
/// decide that count as good (`have`): of a file that is not wanted any more there may be few.
pub(crate) fn is_restored(storage: &Storage, layers: &PieceLayers, have: &Bitfield, piece: u32) -> bool {
    let info = storage.info();
    info.files_of_piece(piece).filter(|(_, entry)| entry.is_regular()).all(|(file, _)| {
        if !storage.is_seal_broken(file) {
            return true;
        }
        let before = storage.stamp(file);
        let counted: Vec<u32> = info.pieces_of_file(file).filter(|piece| have.get(*piece)).collect();
        let good = verify::verify_pieces(storage, layers, &counted, &false.into(), |_, _| {});
        let is_whole = good.is_ok_and(|good| counted.iter().all(|piece| good.get(*piece)));
        if is_whole && before == storage.stamp(file) {
            storage.seal(file);
        }
        is_whole
    })
}

/// Looks at a file that changed: its good pieces as `good_of` finds them, `None` where it cannot be read, and how it looked before it
/// was hashed. Where it looks otherwise by now, neither is worth anything.
pub(crate) fn look_again(storage: &Storage, file: usize, good_of: GoodOf) -> (Option<Bitfield>, Option<Stamp>) {
    storage.forget_file(file);
    // Before it is hashed: a change after that is noticed.
    storage.seal(file);
    let seen = storage.stamp(file);
    (good_of(storage, storage.info().pieces_of_file(file)), seen)
}

/// Hashes pieces and answers the good ones; `None` where they cannot be read.
pub(crate) type GoodOf = Box<dyn FnOnce(&Storage, Range<u32>) -> Option<Bitfield> + Send>;

/// The good ones of `pieces`, whose hashes came after what lies on disk. `None` where `cancel` was set first.
pub(crate) fn good_of(
    storage: &Storage,
    layers: &PieceLayers,
    pieces: Range<u32>,
    cancel: &AtomicBool,
) -> Option<Bitfield> {
    let pieces: Vec<u32> = pieces.collect();
    verify::verify_pieces(storage, layers, &pieces, cancel, |_, _| {}).ok()
}

/// The file of `pieces` lay there before its hashes were known, and now `good` is known: it is taken over if any of it is the
/// content, or left alone, and what is good is recorded.
pub(crate) fn take_over(resume: &ResumeStore, good: &Bitfield, pieces: Range<u32>) -> Result<(), StorageError> {
    let info = resume.storage().info();
    let strangers = resume.strangers().iter().copied();
    let files: Vec<usize> = strangers.filter(|file| info.pieces_of_file(*file) == pieces).collect();
    resume.storage().judge(&files, good, |_| true)?;
    resume.note_foreign()?;
    pieces.filter(|piece| good.get(*piece)).try_for_each(|piece| resume.verified(piece))
}
