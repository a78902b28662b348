//! What a content asks of the session that it is in.

use anabranch_content::info::InfoHashes;
use anabranch_paths::Host;

use crate::events::ContentId;

/// The contents of a session, as each of them sees it.
pub(crate) trait Registry {
    /// A content turned out to have these hashes; `false` where one of them is another's.
    fn take_hashes(&self, id: ContentId, hashes: &InfoHashes) -> bool;

    /// Whether there is a place for one more connection, from `host`; somebody of another content may have to give way.
    fn make_room(&self, host: Host) -> bool;
}
