//! The control plane: from a topology to paths that routers accept.
//!
//! Real networks flood beacons; here all ASes of a topology are known, so what beacons would find is computed at once,
//! within the same bounds, when somebody first asks. Segments are sealed afresh for every answer, with keys that all come
//! from one secret and times that follow the clock alone: two processes that run parts of one network agree without a
//! word between them. A segment is renewed long before it ends; [`ControlPlane`] needs no timer for it.
//!
//! [`services`] puts a daemon and a control service in front of it for each AS, as SCION applications expect them.
//!
//! Signatures are left empty: there is no control-plane PKI here, and end hosts leave signatures to their AS.
//!
//! A link that goes down disappears from answers [after a moment](Options::notice_down_after), with everything that
//! beaconing would no longer find, and comes back at once when it is up. Until then, and for paths already in use, the
//! routers' SCMP errors tell. An application may tell its daemon too (`NotifyInterfaceDown`): that daemon leaves out
//! paths over the interface for [ten seconds](limits::NOTIFIED_DOWN).

mod beaconing;
mod keys;
pub mod limits;
mod lookup;
mod sealing;
pub mod services;
#[cfg(test)]
mod tests;

pub use keys::{Keys, SECRET_LEN};
pub use lookup::{ControlPlane, LookupError, Options};
