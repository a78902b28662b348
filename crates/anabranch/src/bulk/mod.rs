//! What `send` and `receive` have in common.
//!
//! | module | what it does |
//! | --- | --- |
//! | `target` | tickets, addresses and keys as users write them |
//! | `options` | this node's key, and how a transfer goes, as the flags say |
//! | `invitation` | the ticket that is printed |
//! | `known` | keys that receivers were met with |
//! | `peer` | one other end: what is known of it, and how it ended |
//! | `watch` | events to lines and JSON; when it is over |
//! | `stream` | standard input and standard output |
//! | `receipts` | receipts in a file |

pub(crate) mod invitation;
pub(crate) mod known;
pub(crate) mod options;
pub(crate) mod peer;
pub(crate) mod receipts;
pub(crate) mod stream;
pub(crate) mod target;
pub(crate) mod watch;
