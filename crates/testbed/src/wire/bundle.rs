//! Two hosts with several uplinks each.

use std::sync::atomic::Ordering;

use super::{Cable, Counts, Shape};
use crate::Result;
use crate::net::Namespace;

/// Version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Two namespaces and wires between them, each a network of its own: what leaves by one cannot arrive over another.
///
/// Behind the left end, which forwards, is a server with one address and a link that limits nothing: the right end has a route to
/// it over every wire, the first of which is the system's choice.
pub struct Bundle {
    /// One end: a host at [`Bundle::left`] of every wire.
    pub left_end: Namespace,
    /// The other.
    pub right_end: Namespace,
    /// The host at [`Bundle::SERVER`].
    pub server: Namespace,
    cables: Vec<Cable>,
}

impl Bundle {
    /// The server's address, to which every wire leads.
    pub const SERVER: &str = "10.90.0.1";

    const GATEWAY: &str = "10.90.0.254";
    const SERVER_NETWORK: &str = "10.90.0.0/24";

    /// Makes both namespaces and a wire of every shape, device [`Self::device`] at either end.
    ///
    /// # Errors
    /// When this process may not make namespaces or TUN devices.
    pub fn new(shapes: &[Shape]) -> Result<Self> {
        let (left_end, right_end, server) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
        left_end.link("server", &server)?;
        for (end, address) in [(&left_end, Self::GATEWAY), (&server, Self::SERVER)] {
            end.device_up("server", &format!("{address}/24"), Self::SERVER_NETWORK, 1500)?;
        }
        server.route("default", "server", Some(Self::GATEWAY), 0)?;
        left_end.set("net.ipv4.ip_forward", "1")?;
        // What the server sends comes back by the wire that it was asked over, whatever the best route is (RFC 3704 §2.3).
        right_end.set("net.ipv4.conf.all.rp_filter", "0")?;
        right_end.set("net.ipv4.conf.default.rp_filter", "0")?;
        let mut cables = Vec::new();
        for (wire, shape) in shapes.iter().enumerate() {
            let device = Self::device(wire);
            cables.push(Cable::new([&left_end, &right_end], &device, *shape, None)?);
            for (end, host) in [(&left_end, 1), (&right_end, 2)] {
                end.device_up(&device, &v4(wire, host), &format!("10.{}.0.0/24", 99 + wire), shape.mtu)?;
                end.add_address(&device, &format!("{}/64", v6(wire, host)))?;
                end.route(&format!("fd99:{wire}::/64"), &device, None, 0)?;
            }
            let (gateway, metric) = (Self::left(wire, Family::V4), 100 * (wire as u32 + 1));
            right_end.route(Self::SERVER_NETWORK, &device, Some(&gateway), metric)?;
        }
        Ok(Self { left_end, right_end, server, cables })
    }

    /// Name of a wire's devices.
    pub fn device(wire: usize) -> String {
        format!("wire{wire}")
    }

    /// The left end's address on a wire.
    pub fn left(wire: usize, family: Family) -> String {
        address(wire, 1, family)
    }

    /// The right end's.
    pub fn right(wire: usize, family: Family) -> String {
        address(wire, 2, family)
    }

    /// Cuts a wire somewhere in its middle, or mends it: neither end notices, but nothing arrives.
    pub fn cut(&self, wire: usize, cut: bool) {
        self.cables[wire].shared.cut.store(cut, Ordering::Relaxed);
    }

    /// What passed over a wire so far, left to right and right to left.
    pub fn counts(&self, wire: usize) -> [Counts; 2] {
        self.cables[wire].counts()
    }
}

fn address(wire: usize, host: u8, family: Family) -> String {
    match family {
        Family::V4 => v4(wire, host).trim_end_matches("/24").to_owned(),
        Family::V6 => v6(wire, host),
    }
}

fn v4(wire: usize, host: u8) -> String {
    format!("10.{}.0.{host}/24", 99 + wire)
}

fn v6(wire: usize, host: u8) -> String {
    format!("fd99:{wire}::{host}")
}
