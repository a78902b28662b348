//! The networks that nodes are in, each with a table of its own (BEP 32), and how nodes are packed there.

use anabranch_paths::compact::{self, is_dialable};
use anabranch_paths::{Endpoint, IsdAs, ScionAddr};

use crate::id::{ID_LEN, NodeId};

/// A network that nodes are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6 (BEP 32).
    V6,
    /// SCION: our own extension.
    Scion,
}

/// A node as others tell of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Contact {
    /// Its name.
    pub id: NodeId,
    /// Where it is.
    pub address: Endpoint,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::V4, Self::V6, Self::Scion];

    /// Of an address.
    pub fn of(address: &Endpoint) -> Self {
        match address {
            Endpoint::Scion(_) => Self::Scion,
            Endpoint::Ip(address) if address.ip().to_canonical().is_ipv4() => Self::V4,
            Endpoint::Ip(_) => Self::V6,
        }
    }

    /// The key of an answer's nodes.
    pub(crate) fn nodes_key(self) -> &'static str {
        match self {
            Self::V4 => "nodes",
            Self::V6 => "nodes6",
            Self::Scion => "nodes_scion",
        }
    }

    /// What a query says that wants such nodes (BEP 32, "want").
    pub(crate) fn want(self) -> &'static [u8] {
        match self {
            Self::V4 => b"n4",
            Self::V6 => b"n6",
            Self::Scion => b"ns",
        }
    }

    /// The place of this one in lists of all.
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// Appends a node in its packed form: the name, and the address.
pub(crate) fn pack_contact(contact: &Contact, out: &mut Vec<u8>) {
    out.extend_from_slice(&contact.id.0);
    pack_address(&contact.address, out);
}

/// Appends an address in its packed form.
pub(crate) fn pack_address(address: &Endpoint, out: &mut Vec<u8>) {
    match address {
        Endpoint::Ip(address) => compact::pack(*address, out),
        Endpoint::Scion(address) => compact::pack_scion(address, out),
    }
}

/// The nodes in `bytes`, up to the first that is cut short; those that nobody can be at are left out.
pub(crate) fn unpack_contacts(family: Family, mut bytes: &[u8]) -> impl Iterator<Item = Contact> + '_ {
    let all = std::iter::from_fn(move || {
        let (id, mut rest) = bytes.split_first_chunk::<ID_LEN>()?;
        let address = take_address(family, &mut rest)?;
        bytes = rest;
        Some(Contact { id: NodeId(*id), address })
    });
    all.filter(move |contact| is_dialable(&contact.address) && Family::of(&contact.address) == family)
}

/// The address that `bytes` are, whole, if anybody can be at it.
pub(crate) fn unpack_address(family: Family, mut bytes: &[u8]) -> Option<Endpoint> {
    let address = take_address(family, &mut bytes)?;
    (bytes.is_empty() && is_dialable(&address) && Family::of(&address) == family).then_some(address)
}

fn take_address(family: Family, bytes: &mut &[u8]) -> Option<Endpoint> {
    match family {
        Family::V4 => {
            let (unit, rest) = bytes.split_at_checked(compact::V4_LEN)?;
            *bytes = rest;
            compact::unpack_v4(unit).next().map(Endpoint::from)
        }
        Family::V6 => {
            let (unit, rest) = bytes.split_at_checked(compact::V6_LEN)?;
            *bytes = rest;
            compact::unpack_v6(unit).next().map(Endpoint::from)
        }
        Family::Scion => compact::take_scion(bytes).map(Endpoint::from),
    }
}

/// An address as BEP 42's `ip` packs it: without more than tells whose it is.
pub(crate) fn unpack_own_address(bytes: &[u8]) -> Option<Endpoint> {
    let family = match bytes.len() {
        compact::V4_LEN => Family::V4,
        compact::V6_LEN => Family::V6,
        _ => Family::Scion,
    };
    let address = take_address(family, &mut { bytes })?;
    let in_one_as = |scion: ScionAddr| scion.isd_as != IsdAs::from_u64(0);
    address.as_scion().is_none_or(in_one_as).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_each_network_read_back_and_ragged_ends_are_left() {
        for (family, addresses) in [
            (Family::V4, ["192.0.2.1:1", "198.51.100.7:6881"]),
            (Family::V6, ["[2001:db8::1]:1", "[2001:db8::2]:6881"]),
            (Family::Scion, ["[1-ff00:0:110,10.0.0.1]:1", "[2-64512,2001:db8::2]:6881"]),
        ] {
            let contacts: Vec<Contact> =
                addresses.map(|text| Contact { id: NodeId([3; ID_LEN]), address: text.parse().unwrap() }).into();
            let mut bytes = Vec::new();
            contacts.iter().for_each(|contact| pack_contact(contact, &mut bytes));
            assert_eq!(unpack_contacts(family, &bytes).collect::<Vec<_>>(), contacts);
            assert_eq!(unpack_contacts(family, &bytes[..bytes.len() - 1]).collect::<Vec<_>>(), contacts[..1]);
            let mut address = Vec::new();
            pack_address(&contacts[1].address, &mut address);
            assert_eq!(unpack_address(family, &address), Some(contacts[1].address));
            assert_eq!(unpack_own_address(&address), Some(contacts[1].address));
            address.push(0);
            assert_eq!(unpack_address(family, &address), None);
            assert_eq!(Family::of(&contacts[0].address), family);
        }
    }

    #[test]
    fn nobody_is_at_port_zero_or_at_a_wildcard() {
        let mut bytes = vec![0; 26];
        assert_eq!(unpack_contacts(Family::V4, &bytes).count(), 0);
        bytes[20..].copy_from_slice(&[192, 0, 2, 1, 0, 0]);
        assert_eq!(unpack_contacts(Family::V4, &bytes).count(), 0);
        // IPv4 in an address of IPv6 is no node of IPv6.
        let mut mapped = vec![0; 20 + 10];
        mapped.extend([0xff, 0xff, 192, 0, 2, 1, 0x1a, 0xe1]);
        assert_eq!(unpack_contacts(Family::V6, &mapped).count(), 0);
    }
}
