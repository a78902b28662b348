//! Where peers come in and where we leave: listeners' admission, network interfaces, ports that routers open, the SCION socket. No content is known here.

pub(crate) mod admission;
pub(crate) mod conn_handle;
pub(crate) mod leave;
pub(crate) mod multicast;
pub(crate) mod own_addresses;
pub(crate) mod ports;
pub(crate) mod race;
pub(crate) mod scion;
pub(crate) mod uplinks;
pub(crate) mod utp;
