//! The keys that ASes seal hop fields with.

use std::collections::HashMap;

use anabranch_paths::IsdAs;
use anabranch_scion_wire::mac::HopKey;
use sha2::{Digest, Sha256};

use crate::topology::Topology;

/// Bytes of a network's secret.
pub const SECRET_LEN: usize = 32;
/// Bytes of a forwarding key.
pub(super) const FORWARDING_KEY_LEN: usize = 16;

/// One forwarding key for each AS of a network.
///
/// All of them come from one secret: processes that run parts of a network and share the secret agree on every hop field
/// without a word between them.
#[derive(Clone)]
pub struct Keys {
    by_as: HashMap<IsdAs, ([u8; FORWARDING_KEY_LEN], HopKey)>,
}

impl Keys {
    /// The keys of all ASes of `topology`.
    pub fn new(topology: &Topology, secret: &[u8; SECRET_LEN]) -> Self {
        let by_as = topology.ases().iter().map(|each| {
            let key = forwarding_key(secret, each.isd_as);
            (each.isd_as, (key, HopKey::new(&key)))
        });
        Self { by_as: by_as.collect() }
    }

    /// The key of an AS of the topology, ready to seal.
    pub fn sealing(&self, isd_as: IsdAs) -> Option<&HopKey> {
        self.by_as.get(&isd_as).map(|(_, key)| key)
    }

    /// The same as its routers are given it.
    pub fn forwarding(&self, isd_as: IsdAs) -> Option<[u8; FORWARDING_KEY_LEN]> {
        self.by_as.get(&isd_as).map(|(key, _)| *key)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys of {} ASes", self.by_as.len())
    }
}

/// An AS's own key: nobody gets from it to the secret or to another AS's.
fn forwarding_key(secret: &[u8; SECRET_LEN], isd_as: IsdAs) -> [u8; FORWARDING_KEY_LEN] {
    let hash = Sha256::new().chain_update(secret).chain_update(isd_as.to_u64().to_be_bytes()).finalize();
    let mut key = [0; FORWARDING_KEY_LEN];
    key.copy_from_slice(&hash[..FORWARDING_KEY_LEN]);
    key
}
