//! Two hosts with several uplinks each.

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
/// The left end has an address more that belongs to no wire, like a server behind one fat link: the right end has a route to it
/// over every wire, the first of which is the system's choice.
pub struct Bundle {
    /// One end: a host at [`Bundle::left`] of every wire, and at [`Bundle::SERVER`].
    pub left_end: Namespace,
    /// The other.
    pub right_end: Namespace,
    cables: Vec<Cable>,
}

impl Bundle {
    /// The left end's address that every wire leads to.
    pub const SERVER: &str = "10.90.0.1";

    /// Makes both namespaces and a wire of every shape, device [`Self::device`] at either end.
    ///
    /// # Errors
    /// When this process may not make namespaces or TUN devices.
    pub fn new(shapes: &[Shape]) -> Result<Self> {
        let (left_end, right_end) = (Namespace::new()?, Namespace::new()?);
        left_end.add_address("lo", &format!("{}/32", Self::SERVER))?;
        let mut cables = Vec::new();
        for (wire, shape) in shapes.iter().enumerate() {
            let device = Self::device(wire);
            cables.push(Cable::new([&left_end, &right_end], &device, *shape)?);
            for (end, host) in [(&left_end, 1), (&right_end, 2)] {
                end.device_up(&device, &v4(wire, host), &format!("10.{}.0.0/24", 99 + wire), shape.mtu)?;
                end.add_address(&device, &format!("{}/64", v6(wire, host)))?;
                end.route(&format!("fd99:{wire}::/64"), &device, 0)?;
            }
            right_end.route(Self::SERVER, &device, 100 * (wire as u32 + 1))?;
        }
        Ok(Self { left_end, right_end, cables })
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
