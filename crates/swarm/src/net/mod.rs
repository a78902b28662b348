//! Where peers come in and where we leave: listeners' admission, network interfaces, the SCION socket. No content is known here.

pub mod admission;
pub mod conn_handle;
pub mod scion;
pub mod uplinks;
pub mod utp;
