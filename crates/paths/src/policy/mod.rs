//! Path policies, as users of SCION write them: which paths may be used, and which of them first.
//!
//! An [`Acl`] and a [`Sequence`] are those of scionproto's path policy language, a [`Preference`] is that of the
//! `--preference` flag of SCION applications, and a [`PolicyFile`] is JPAN's JSON form, which has all of them for
//! each destination. A [`PathFilter`] is what they come down to.

mod acl;
mod filter;
mod hop;
mod json;
mod policy_file;
mod preference;
mod sequence;
mod text;

pub use acl::{ACL_ENTRIES_MAX, Acl};
pub use filter::PathFilter;
pub use policy_file::{POLICY_FILE_BYTES_MAX, PolicyFile, PolicyFileError};
pub use preference::Preference;
pub use sequence::{SEQUENCE_DEPTH_MAX, SEQUENCE_HOPS_MAX, Sequence};
pub use text::{PolicyError, PolicyErrorKind, TEXT_BYTES_MAX};
