//! What a content asks of the session that it is in.

use std::rc::Rc;

use anabranch_content::info::InfoHashes;
use anabranch_paths::Host;

use super::torrent::TorrentHandle;
use crate::events::ContentId;
use crate::resources::Resources;

/// The contents of a session, as each of them and those who accept peers see it.
pub(crate) trait Registry {
    /// What all contents share.
    fn resources(&self) -> &Rc<Resources>;

    /// The content that a peer asks for by this hash, if it may have it.
    fn asked_for(&self, hash: &[u8; 20]) -> Option<TorrentHandle>;

    /// The hash that a caller's word stands for, if peers may have that content (see `mse::content_key`).
    fn meant_by(&self, content_key: &[u8; 20]) -> Option<[u8; 20]>;

    /// A content turned out to have these hashes; `false` where one of them is another's.
    fn take_hashes(&self, id: ContentId, hashes: &InfoHashes) -> bool;

    /// Whether there is a place for one more connection, from `host`; somebody of another content may have to give way.
    fn make_room(&self, host: Host) -> bool;
}
