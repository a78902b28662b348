//! Keys that receivers were met with: who has another one the next time is not dealt with.

use std::path::PathBuf;

use anabranch_paths::Endpoint;
use anabranch_transport::NodeId;
use anabranch_transport::known_keys::{KnownKeys, KnownKeysError};

use crate::cli::BulkFlags;
use crate::exit::{Code, Failure};
use crate::output::Chatter;
use crate::settings;

/// The file of known keys, where there is one to be had.
pub(crate) struct Known(Option<KnownKeys>);

impl Known {
    /// As the flags say; one that nobody named may be missing.
    pub(crate) fn open(flags: &BulkFlags, chatter: Chatter) -> Result<Self, Failure> {
        let given: Option<&PathBuf> = flags.known_keys.as_ref();
        let Some(path) = given.cloned().or_else(settings::known_keys_file) else { return Ok(Self(None)) };
        let keys = KnownKeys::new(path);
        match keys.check() {
            Ok(()) => Ok(Self(Some(keys))),
            Err(error @ KnownKeysError::Io { .. }) if given.is_none() => {
                chatter.note(format_args!("nobody is known by an earlier key: {error}"));
                Ok(Self(None))
            }
            Err(error @ KnownKeysError::Io { .. }) => Err(Failure::new(Code::Storage, error)),
            Err(error) => Err(Failure::input(error)),
        }
    }

    /// What one of these addresses was met with.
    pub(crate) fn find(&self, addresses: &[Endpoint]) -> Option<NodeId> {
        let list = self.0.as_ref()?.list().ok()?;
        list.into_iter().find(|known| addresses.contains(&known.address)).map(|known| known.key)
    }

    /// What the file says of a key that is not the one that one of these addresses was met with.
    pub(crate) fn changed(&self, addresses: &[Endpoint], found: NodeId) -> Option<String> {
        let list = self.0.as_ref()?.list().ok()?;
        let known = list.into_iter().find(|known| addresses.contains(&known.address))?;
        self.meet(known.address, found).err()
    }

    /// `address` proved `key`: what is to be said about that, if it is new; or why it is not to be dealt with.
    pub(crate) fn meet(&self, address: Endpoint, key: NodeId) -> Result<Option<String>, String> {
        let Some(keys) = &self.0 else { return Ok(None) };
        match keys.meet(address, key) {
            Ok(true) => Ok(Some(format!("met for the first time, and remembered in {}", keys.path().display()))),
            Ok(false) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}
