//! With whom a secure content deals: whose keys it admits, and who has to prove one.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use anabranch_paths::Endpoint;
use anabranch_ppspp::link::SecureLink;
use anabranch_transport::NodeId;

use super::path_table::PathAddress;
use crate::config::AddOptions;
use crate::resources::Resources;

/// With whom a secure content deals.
#[derive(Debug)]
pub(crate) struct Audience {
    /// The key of whoever the link names.
    pub key: NodeId,
    /// Whose keys are admitted; `None`: everybody's.
    admitted: Option<HashSet<NodeId>>,
}

impl Audience {
    /// That of a content of such a link. Whoever shares it lets in those whom the user allows; whoever fetches it, the link's maker too, and
    /// of a private one nobody else.
    pub(super) fn of(
        link: &SecureLink,
        options: &AddOptions,
        resources: &Resources,
        is_ours: bool,
    ) -> Result<Self, &'static str> {
        let key: NodeId = link
            .key
            .parse()
            .map_err(|_| "the link's key is none that anybody can prove: copy the link again, whole")?;
        let own =
            resources.config.secure_identity.as_ref().ok_or("this session has no key to prove to the link's peers")?;
        let allowed =
            options.allowed.as_ref().or(resources.config.scion.as_ref().and_then(|scion| scion.allowed.as_ref()));
        let is_closed = allowed.is_some() || (link.is_private && !is_ours);
        let others = allowed.into_iter().flatten().copied();
        let admitted = is_closed.then(|| others.chain([key, own.node_id()]).collect());
        Ok(Self { key, admitted })
    }

    /// Whether it deals with whoever has this key.
    pub(super) fn admits(&self, key: &NodeId) -> bool {
        self.admitted.as_ref().is_none_or(|admitted| admitted.contains(key))
    }
}

/// What a secure content knows of its peers.
pub(super) struct SecureContent {
    /// With whom it deals.
    pub audience: Rc<Audience>,
    /// Those that the link names, who have its key.
    pub pinned: HashSet<Endpoint>,
    /// Ways whose other end has not proven a key yet.
    pub calling: HashSet<PathAddress>,
    /// Why channels are about to end, and whether that is final.
    pub reasons: HashMap<PathAddress, (String, bool)>,
}

impl SecureContent {
    /// Of a content that knows nobody yet.
    pub(super) fn new(audience: Audience, pinned: HashSet<Endpoint>) -> Self {
        Self { audience: Rc::new(audience), pinned, calling: HashSet::new(), reasons: HashMap::new() }
    }
}
