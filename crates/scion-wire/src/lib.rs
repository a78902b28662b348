//! SCION's packets: headers, hop fields and their MACs, SCMP, segments and what they combine to. Pure.
//!
//! Everything that comes from the network is read through a view that is checked once, by its only constructor, and has
//! accessors that cannot fail after it: [`Packet`] and [`Header`] over a received buffer, [`PacketMut`] for the router's
//! updates in place, [`StandardPath`] for the path in either. Nothing of this allocates. Senders write a header once, as
//! a [`HeaderTemplate`], and pay per packet for two lengths and a checksum.
//!
//! What is left to others: which paths exist (the segments' half of this crate combines them), where an interface leads
//! (the router), and every system call.
//!
//! ```
//! use anabranch_scion_wire::{Address, HeaderFields, HeaderTemplate, Packet, PathRef, Ports, checksum, udp};
//!
//! let local: Address = Address::new("1-ff00:0:110".parse()?, "10.0.0.1".parse::<std::net::IpAddr>()?);
//! let remote = Address::new("1-ff00:0:110".parse()?, "10.0.0.2".parse::<std::net::IpAddr>()?);
//! let fields = HeaderFields { source: local, destination: remote, path: PathRef::Empty, flow_id: 1, traffic_class: 0 };
//! let template = HeaderTemplate::new(&fields, Ports { source: 31000, destination: 31001 })?;
//!
//! let mut packet = [0; 1200];
//! let payload = b"hello";
//! let header_len = template.write(payload.len(), checksum::sum(payload), &mut packet)?;
//! packet[header_len..][..payload.len()].copy_from_slice(payload);
//!
//! let received = Packet::parse(&packet[..header_len + payload.len()])?;
//! let datagram = udp::Datagram::parse(&received)?;
//! assert_eq!((datagram.source_port(), datagram.payload()), (31000, payload.as_slice()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod address;
#[cfg(test)]
mod arbitrary;
pub mod checksum;
pub mod combine;
pub mod mac;
mod packet;
mod path;
pub mod proto;
pub mod scmp;
pub mod segment;
mod template;
pub mod udp;

pub use address::{Address, HostAddr, Service};
pub use packet::{HEADER_LEN_MAX, Header, HeaderFields, Packet, PacketError, PacketMut, PathMut, Protocol, Upper};
pub use path::{
    DataplanePath, EXP_TIME_UNIT, HOPS_MAX, HopField, HopMac, InfoField, Interfaces, OneHopPath, OneHopPathMut,
    OtherPath, PATH_LEN_MAX, PathError, PathMeta, PathRef, PathSegment, SEGMENTS_MAX, StandardPath, StandardPathMut,
};
pub use template::{HeaderTemplate, Ports};
