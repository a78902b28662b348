//! What is kept of tables from run to run: names of ours, and nodes that were good.
//!
//! Nothing in it is trusted: nodes are asked before they count, and a name is used only where our address may have it. So all that a
//! forged one costs are some queries in vain; the checksum is against files cut short.
//!
//! ```text
//! ABDHT1, then the bencoded list of places, each {id, family, nodes}, then CRC-32C of both, 4 bytes, big-endian
//! ```

use anabranch_content::bencode::{self, DictBuilder, Limits, ListBuilder};

use crate::family::{Contact, Family, pack_contact, unpack_contacts};
use crate::id::{NodeId, crc32c};
use crate::node::HOMES_MAX;

/// Nodes that are kept of one place.
pub const CONTACTS_MAX: usize = 200;
/// Bytes of all: no more is read.
pub const SNAPSHOT_LEN_MAX: usize = 512 * 1024;
const MAGIC: &[u8] = b"ABDHT1";
const CRC_LEN: usize = 4;
const LIMITS: Limits = Limits { bytes: SNAPSHOT_LEN_MAX, depth: 3, tokens: 16 * HOMES_MAX };

/// What is kept of one place in a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Our name there.
    pub id: Option<NodeId>,
    /// Nodes.
    pub contacts: Vec<Contact>,
}

/// Why bytes are no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no table of nodes, or was cut short")]
pub struct SnapshotError;

/// The bytes to keep.
pub fn encode(places: &[(Family, Saved)]) -> Vec<u8> {
    let mut list = ListBuilder::new();
    for (family, saved) in places.iter().take(HOMES_MAX) {
        let mut nodes = Vec::new();
        let contacts = saved.contacts.iter().filter(|contact| Family::of(&contact.address) == *family);
        contacts.take(CONTACTS_MAX).for_each(|contact| pack_contact(contact, &mut nodes));
        let mut place = DictBuilder::new();
        place.int("family", family.index() as i64).bytes("nodes", nodes);
        if let Some(id) = saved.id {
            place.bytes("id", id.0);
        }
        list.dict(&place);
    }
    let mut bytes = [MAGIC, &list.encode()].concat();
    bytes.extend(crc32c(&bytes).to_be_bytes());
    bytes
}

/// What was kept.
///
/// # Errors
/// Where it is not what [`encode`] wrote.
pub fn decode(bytes: &[u8]) -> Result<Vec<(Family, Saved)>, SnapshotError> {
    let (rest, crc) = bytes.split_last_chunk::<CRC_LEN>().ok_or(SnapshotError)?;
    let list = rest.strip_prefix(MAGIC).ok_or(SnapshotError)?;
    if bytes.len() > SNAPSHOT_LEN_MAX || crc32c(rest) != u32::from_be_bytes(*crc) {
        return Err(SnapshotError);
    }
    let tree = bencode::parse(list, &LIMITS).map_err(|_| SnapshotError)?;
    let places = tree.root().as_list().ok_or(SnapshotError)?.take(HOMES_MAX);
    let place = |place: bencode::Value<'_>| {
        let number = place.get("family").and_then(|family| family.as_int())?;
        let family = Family::ALL.into_iter().find(|family| family.index() as i64 == number)?;
        let nodes = place.get("nodes").and_then(|nodes| nodes.as_bytes())?;
        let id = place.get("id").and_then(|id| id.as_bytes()).and_then(NodeId::from_slice);
        Some((family, Saved { id, contacts: unpack_contacts(family, nodes).take(CONTACTS_MAX).collect() }))
    };
    Ok(places.filter_map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn places() -> Vec<(Family, Saved)> {
        let of = |text: &str| Contact { id: NodeId([7; 20]), address: text.parse().unwrap() };
        vec![
            (Family::V4, Saved { id: Some(NodeId([1; 20])), contacts: vec![of("192.0.2.1:1"), of("192.0.2.2:1")] }),
            (Family::V6, Saved::default()),
            (Family::Scion, Saved { id: None, contacts: vec![of("[1-ff00:0:110,10.0.0.1]:1")] }),
        ]
    }

    #[test]
    fn what_is_kept_comes_back_and_what_is_cut_short_does_not() {
        let bytes = encode(&places());
        assert_eq!(decode(&bytes), Ok(places()));
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), Err(SnapshotError), "{len}");
            let mut other = bytes.clone();
            other[len] ^= 1;
            assert_eq!(decode(&other), Err(SnapshotError), "{len}");
        }
    }

    #[test]
    fn so_many_nodes_are_kept() {
        let contact = |number: u32| Contact {
            id: NodeId([7; 20]),
            address: std::net::SocketAddr::from((std::net::Ipv4Addr::from_bits(number + 1), 1)).into(),
        };
        let saved = Saved { id: None, contacts: (0..1000).map(contact).collect() };
        let kept = decode(&encode(&vec![(Family::V4, saved); HOMES_MAX + 1])).unwrap();
        assert_eq!((kept.len(), kept[0].1.contacts.len()), (HOMES_MAX, CONTACTS_MAX));
    }

    proptest! {
        #[test]
        fn anything_can_stand_in_the_file(bytes: Vec<u8>) {
            prop_assert!(decode(&bytes).is_err());
            // With the right checksum, too.
            let mut forged = [MAGIC, &bytes].concat();
            forged.extend(crc32c(&forged).to_be_bytes());
            if let Ok(places) = decode(&forged) {
                prop_assert!(places.len() <= HOMES_MAX);
            }
        }
    }
}
