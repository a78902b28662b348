//! Ports that a router opens for us, so that peers beyond it can call.
//!
//! Homes and mobile networks stand behind routers that translate addresses: who is called there has to ask the router first. Three
//! protocols are in use, and a [`Mapper`] asks one router by each of them until one works: PCP (RFC 6887), NAT-PMP (RFC 6886), and
//! the Internet Gateway Device of UPnP. It renews what it was given, asks anew when the router has forgotten, and gives back in the end.
//!
//! The router is a stranger as any other: what it answers is read within limits, counts only where it answers what was asked, and
//! leads nowhere but to the router's own address.
//!
//! It has no socket and no clock. Its caller sends what [`Mapper::poll_action`] answers, and tells what came of that, and the time:
//!
//! ```
//! use std::net::Ipv4Addr;
//! use std::time::Instant;
//! use anabranch_portmap::{Action, Config, Mapper, Port, Protocol};
//!
//! let config = Config {
//!     gateway: Ipv4Addr::new(192, 168, 1, 1),
//!     local: Ipv4Addr::new(192, 168, 1, 2),
//!     ports: vec![Port { protocol: Protocol::Tcp, number: 6881 }],
//!     seed: 7,
//! };
//! let mut mapper = Mapper::new(config, Instant::now());
//! mapper.on_time(Instant::now());
//! let Some(Action::Datagram { port, .. }) = mapper.poll_action() else { panic!("PCP goes first") };
//! assert_eq!(port, 5351);
//! ```
//!
//! | module | what it is for |
//! | --- | --- |
//! | `mapper` | one router: which protocol, what next, when |
//! | `upnp` | the part of it that takes several steps over HTTP |
//! | `pcp`, `natpmp`, `ssdp`, `igd` | what stands on the wire |
//! | `epoch` | whether the router began anew |
//! | `xml` | the text of elements, and no more of XML |

#![forbid(unsafe_code)]

mod epoch;
mod igd;
mod mapper;
mod natpmp;
mod pcp;
mod ssdp;
mod upnp;
mod xml;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

pub use mapper::Mapper;

/// Longest datagram that is read of a router (RFC 6887 §7: 1100; descriptions of UPnP are told of in one).
pub const DATAGRAM_LEN_MAX: usize = 1500;
/// Longest answer over HTTP that is read of a router: descriptions of devices are some 5 KiB, of large ones 20.
pub const BODY_LEN_MAX: usize = 128 << 10;
/// Ports that one router is asked for.
pub const PORTS_MAX: usize = 8;

/// What a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl Protocol {
    /// As IP numbers it.
    fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// A port of ours that others should reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// What for.
    pub protocol: Protocol,
    /// Its number here.
    pub number: u16,
}

/// How a router is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// RFC 6887.
    Pcp,
    /// RFC 6886.
    NatPmp,
    /// Universal Plug and Play, Internet Gateway Device.
    Upnp,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pcp => "PCP",
            Self::NatPmp => "NAT-PMP",
            Self::Upnp => "UPnP",
        })
    }
}

/// Whom to ask, and what for.
#[derive(Clone, Debug)]
pub struct Config {
    /// The router.
    pub gateway: Ipv4Addr,
    /// Our address in its network.
    pub local: Ipv4Addr,
    /// What is to be opened: the first [`PORTS_MAX`] count.
    pub ports: Vec<Port>,
    /// Decides every number that others must not guess.
    pub seed: u64,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this to the router's UDP port; answers are [`Mapper::on_datagram`]'s, if they come from the router.
    Datagram {
        /// Which.
        port: u16,
        /// What.
        bytes: Vec<u8>,
    },
    /// Ask the router over HTTP/1.1, and tell [`Mapper::on_http`] what it answered, or that it did not.
    Http(HttpRequest),
}

/// A request to the router over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// Its number.
    pub id: u64,
    /// The router's TCP port.
    pub port: u16,
    /// What stands in the request line.
    pub target: String,
    /// The header `SOAPAction` and the body of a POST; `None`: a GET.
    pub soap: Option<(String, String)>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A port of ours is reached at another address from now on.
    Mapped {
        /// Ours.
        port: Port,
        /// Where the router says that it is reached.
        external: SocketAddrV4,
        /// How the router was asked.
        method: Method,
    },
    /// It is reached there no more.
    Lost {
        /// Ours.
        port: Port,
    },
    /// The router opens nothing; it is asked again later. Told once, until something was opened.
    Failed(Failure),
}

/// Why a router opens nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub Vec<(Method, Refusal)>);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (method, refusal)) in self.0.iter().enumerate() {
            write!(f, "{}{method}: {refusal}", if at > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Why one method came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing came.
    #[error("no answer")]
    Silent,
    /// Nobody listens at its port, or it speaks another version.
    #[error("not offered")]
    Unsupported,
    /// It says no, in its protocol's numbers.
    #[error("refused with code {0}")]
    Code(u16),
    /// It answers what was not asked.
    #[error("the answer makes no sense: {0}")]
    Nonsense(&'static str),
    /// It names another address than its own.
    #[error("it names another address than its own")]
    Elsewhere,
    /// Another status of HTTP.
    #[error("HTTP status {0}")]
    Status(u16),
}
