//! Frames past the kernel's network layers: AF_XDP for one UDP socket.
//!
//! A [`Port`] is an interface with a small program on it, which takes the datagrams to one socket's address as frames and
//! leaves everything else alone. Frames lie in memory that is shared with the kernel; [`Port::receive`] lends them, and
//! [`Datagram::parse`] reads them. To send, [`Port::hop`] asks the kernel for route and neighbour and makes a
//! [`FrameTemplate`] of them; [`Port::send`] hands frames over that the caller has written.
//!
//! Beside every port the system's own socket stays: for what the port does not take, for destinations by another way, and for
//! neighbours that are not resolved yet. A firewall's rules for UDP do not see what goes past the kernel.
//!
//! Pure parts: the program's code (`program`), frames ([`Datagram`], [`FrameTemplate`]), messages of rtnetlink (`netlink`). System
//! calls and shared memory are in `sys`, and nothing is unsafe beside it. Linux only.
//!
//! ```no_run
//! use anabranch_xdp::{Datagram, Port};
//!
//! let port = Port::attach("eth0", "192.0.2.1:7000".parse()?)?;
//! port.receive(0, 64, |frame| {
//!     if let Ok(datagram) = Datagram::parse(frame, port.interface().index) {
//!         println!("{} bytes from {}", datagram.payload.len(), datagram.from);
//!     }
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod capabilities;
mod error;
mod frame;
mod kernel;
mod measure;
mod netlink;
mod port;
mod program;
#[allow(unsafe_code)]
mod sys;

pub use capabilities::Capability;
pub use error::Error;
pub use frame::{Datagram, FrameError, FrameTemplate, IPV4_HEADERS_LEN, IPV6_HEADERS_LEN, Mac};
pub use kernel::Interface;
pub use measure::{Declined, Measurement};
pub use port::{Hop, Mode, NEWS_EVERY, Port, QUEUES_MAX};
pub use sys::Poll;
