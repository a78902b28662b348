//! Why datagrams do not leave, and what to do about it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anabranch_paths::ScionAddr;
use anabranch_scion::socket::BindError;
use anabranch_scion_wire::{PacketError, PathError as WirePathError};

/// Why no path can be made, or no socket bound.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The path's bytes are no path.
    #[error("the path to {remote} that was looked up is malformed: {source}: look it up again")]
    Malformed {
        /// Where it should lead.
        remote: ScionAddr,
        /// What is wrong.
        source: WirePathError,
    },
    /// Path and addresses fit into no header.
    #[error("the path to {remote} does not fit into a packet: {source}: choose another one")]
    Header {
        /// Where it should lead.
        remote: ScionAddr,
        /// What is wrong.
        source: PacketError,
    },
    /// It starts or ends elsewhere.
    #[error("the path {path} does not lead from {local} to {remote}: look one up between these two")]
    Elsewhere {
        /// From and to where the path leads.
        path: String,
        /// Where we are.
        local: ScionAddr,
        /// Where packets shall go.
        remote: ScionAddr,
    },
    /// A packet that cannot be answered.
    #[error("cannot answer the packet from {from}: {reason}")]
    NoWayBack {
        /// Who handed it over.
        from: SocketAddr,
        /// Why.
        reason: &'static str,
    },
    /// A path to another AS without a router to hand packets to.
    #[error("the path to {0} names no border router: look it up again")]
    NoNextHop(ScionAddr),
    /// Its MTU leaves nothing for data.
    #[error("the path {path} takes packets of {mtu} bytes, and its headers have {header_len}: choose another one")]
    TooNarrow {
        /// Which.
        path: String,
        /// What it takes.
        mtu: u16,
        /// What the headers take of that.
        header_len: usize,
    },
    /// IP over a socket of SCION, or the other way, or a path of SCION that starts at another socket.
    #[error("the path {path} does not start at the socket at {local}: make it from that socket's address")]
    OtherNetwork {
        /// Which.
        path: String,
        /// Where the socket is.
        local: String,
    },
    /// [`super::PATHS_MAX`] is reached.
    #[error("the socket has {} paths already: remove some", super::PATHS_MAX)]
    TooMany,
    /// No socket of SCION at this address.
    #[error(transparent)]
    BindScion(#[from] BindError),
    /// The system.
    #[error("cannot bind {address}: {source}: choose an address of this machine and a free port")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// Why nothing of a batch has left.
#[derive(Debug)]
pub struct SendError {
    /// What kind of trouble.
    pub kind: SendErrorKind,
    /// The path in question, as it prints.
    pub path: Arc<str>,
    /// What the system said.
    pub source: Option<io::Error>,
}

/// Kinds of trouble on sending, by what to do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// The kernel's buffer is full: wait until the socket is writable. Always an I/O error of the kind `WouldBlock`.
    WouldBlock,
    /// The first packet is longer than the path claims, or than the device takes (`EMSGSIZE`).
    TooLong {
        /// The packet's length, in bytes.
        len: usize,
        /// What is claimed.
        max: u16,
    },
    /// There is no way to there now (`ENETUNREACH`, `EHOSTUNREACH`).
    Unreachable,
    /// The device's queue is full (`ENOBUFS`, `ENOMEM`, or AF_XDP's rings): nothing tells when it has room.
    NoBuffers,
    /// The interface or the source address is gone (`ENODEV`, `ENXIO`, `EADDRNOTAVAIL`, `ENETDOWN`, or `EINVAL` of one packet).
    InterfaceGone,
    /// A rule of this machine forbids it (`EPERM`, `EACCES`).
    Forbidden,
    /// Anything else.
    Other,
}

impl SendError {
    pub(super) fn too_long(path: &Arc<str>, len: usize, max: u16) -> Self {
        Self { kind: SendErrorKind::TooLong { len, max }, path: path.clone(), source: None }
    }

    /// The rings of an interface that is used past the kernel are full.
    pub(super) fn no_buffers(path: &Arc<str>) -> Self {
        Self { kind: SendErrorKind::NoBuffers, path: path.clone(), source: None }
    }

    /// What the system said of a packet of `len` bytes on a path that claims `max`.
    pub(super) fn of_system(path: &Arc<str>, error: io::Error, len: usize, max: u16) -> Self {
        let kind = match error.raw_os_error() {
            _ if error.kind() == io::ErrorKind::WouldBlock => SendErrorKind::WouldBlock,
            Some(libc::EMSGSIZE) => SendErrorKind::TooLong { len, max },
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => SendErrorKind::Unreachable,
            Some(libc::ENOBUFS | libc::ENOMEM) => SendErrorKind::NoBuffers,
            // Linux answers EINVAL where the source address is none of this machine's.
            Some(libc::ENODEV | libc::ENXIO | libc::EADDRNOTAVAIL | libc::ENETDOWN | libc::EINVAL) => {
                SendErrorKind::InterfaceGone
            }
            Some(libc::EPERM | libc::EACCES) => SendErrorKind::Forbidden,
            _ => SendErrorKind::Other,
        };
        Self { kind, path: path.clone(), source: Some(error) }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot send over {}: ", self.path)?;
        match self.kind {
            SendErrorKind::WouldBlock => write!(f, "the system's buffer is full: wait until the socket is writable")?,
            SendErrorKind::TooLong { len, max } => {
                write!(f, "a packet of {len} bytes is too long")?;
                match self.source {
                    None => write!(f, ": the path takes {max}")?,
                    Some(_) => write!(f, " for the first link: search the path's MTU, or send shorter ones")?,
                }
            }
            SendErrorKind::Unreachable => write!(f, "no route leads there now: try again, or take another path")?,
            SendErrorKind::NoBuffers => {
                write!(f, "the device's queue is full: send more slowly, and this again later")?
            }
            SendErrorKind::InterfaceGone => {
                write!(f, "the interface or its address is gone: take another path until it is back")?;
            }
            SendErrorKind::Forbidden => write!(f, "a rule of this machine forbids it: look at its firewall")?,
            SendErrorKind::Other => {}
        }
        match &self.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<SendError> for io::Error {
    fn from(error: SendError) -> Self {
        let kind = match error.kind {
            SendErrorKind::WouldBlock => io::ErrorKind::WouldBlock,
            SendErrorKind::TooLong { .. } => io::ErrorKind::InvalidInput,
            _ => error.source.as_ref().map_or(io::ErrorKind::Other, io::Error::kind),
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_name_the_path_and_what_to_do() {
        let path: Arc<str> = "uplink (192.0.2.1) > 192.0.2.2:7".into();
        for (number, kind, remedy) in [
            (libc::EAGAIN, SendErrorKind::WouldBlock, "wait until the socket is writable"),
            (libc::EMSGSIZE, SendErrorKind::TooLong { len: 1501, max: 9000 }, "search the path's MTU"),
            (libc::ENETUNREACH, SendErrorKind::Unreachable, "take another path"),
            (libc::EHOSTUNREACH, SendErrorKind::Unreachable, "take another path"),
            (libc::ENOBUFS, SendErrorKind::NoBuffers, "send more slowly"),
            (libc::ENODEV, SendErrorKind::InterfaceGone, "take another path until it is back"),
            (libc::EINVAL, SendErrorKind::InterfaceGone, "take another path until it is back"),
            (libc::EPERM, SendErrorKind::Forbidden, "firewall"),
            (libc::EIO, SendErrorKind::Other, ""),
        ] {
            let error = SendError::of_system(&path, io::Error::from_raw_os_error(number), 1501, 9000);
            assert_eq!(error.kind, kind);
            let text = error.to_string();
            assert!(text.contains(&*path) && text.contains(remedy) && text.contains("os error"), "{text}");
            assert_eq!(kind.is_passing(), !matches!(number, libc::EMSGSIZE | libc::EPERM | libc::EIO));
            let is_blocked = io::Error::from(error).kind() == io::ErrorKind::WouldBlock;
            assert_eq!(is_blocked, number == libc::EAGAIN);
        }
        let error = SendError::too_long(&path, 9001, 9000);
        assert!(error.to_string().ends_with("a packet of 9001 bytes is too long: the path takes 9000"), "{error}");
    }
}
