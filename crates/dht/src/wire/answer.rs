//! What an answer tells.

use anabranch_content::bencode::{DictBuilder, ListBuilder, Value};
use anabranch_paths::Endpoint;

use super::{TOKEN_LEN_MAX, WireError, bytes, int};
use crate::bloom::{BLOOM_LEN, Bloom};
use crate::family::{Contact, Family, pack_address, pack_contact, unpack_address, unpack_contacts};
use crate::id::{ID_LEN, NodeId};
use crate::items::ITEM_LEN_MAX;

/// Nodes of one network that are taken from an answer: twice what BEP 5 has anybody tell.
pub const CONTACTS_MAX: usize = 16;
/// Peers that are taken from an answer: what fits in a packet.
pub const VALUES_MAX: usize = 200;
/// Info-hashes that are taken from an answer (BEP 51): what fits in a packet.
pub const SAMPLES_MAX: usize = 64;

/// An answer, to whatever: what was not asked for is left by who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Who answers.
    pub id: NodeId,
    /// Nodes near what was asked for.
    pub nodes: Vec<Contact>,
    /// Whose list of nodes is there though it is empty: BEP 5 has it in answers, and rtorrent takes one without it for broken.
    pub lists: Option<Family>,
    /// Peers of the content.
    pub values: Vec<Endpoint>,
    /// Shows later that the asker is where it was (BEP 5).
    pub token: Option<&'a [u8]>,
    /// Who has all of the content, and who not (BEP 33).
    pub scrape: Option<Box<(Bloom, Bloom)>>,
    /// What is kept under the target (BEP 44).
    pub item: Option<&'a [u8]>,
    /// Who may change it: key and signature.
    pub item_key: Option<(&'a [u8; 32], &'a [u8; 64])>,
    /// The item's number.
    pub seq: Option<i64>,
    /// Info-hashes that are known there (BEP 51).
    pub samples: Option<Samples>,
}

/// Some of the info-hashes that a node knows (BEP 51).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Some of them.
    pub hashes: Vec<NodeId>,
    /// How many it knows.
    pub total: u32,
    /// In seconds: before that it tells no others.
    pub interval: u32,
}

impl<'a> Answer<'a> {
    /// An answer that says nothing beyond who answers.
    pub fn new(id: NodeId) -> Self {
        Self {
            id,
            nodes: Vec::new(),
            lists: None,
            values: Vec::new(),
            token: None,
            scrape: None,
            item: None,
            item_key: None,
            seq: None,
            samples: None,
        }
    }

    pub(super) fn parse(dict: Value<'a>) -> Result<Self, WireError> {
        let id = bytes(dict, "id").and_then(NodeId::from_slice).ok_or(WireError::Lacks("id"))?;
        let mut nodes = Vec::new();
        for family in Family::ALL {
            let packed = bytes(dict, family.nodes_key()).unwrap_or_default();
            nodes.extend(unpack_contacts(family, packed).take(CONTACTS_MAX));
        }
        let bloom =
            |key| bytes(dict, key).and_then(|bits| <&[u8; BLOOM_LEN]>::try_from(bits).ok()).map(Bloom::from_bits);
        let scrape = bloom("BFsd").zip(bloom("BFpe")).map(Box::new);
        let key = bytes(dict, "k").and_then(|key| key.try_into().ok());
        let signature = bytes(dict, "sig").and_then(|signature| signature.try_into().ok());
        Ok(Self {
            id,
            nodes,
            lists: None,
            values: values(dict),
            token: bytes(dict, "token").filter(|token| token.len() <= TOKEN_LEN_MAX),
            scrape,
            item: dict.get("v").map(|value| value.source()).filter(|value| value.len() <= ITEM_LEN_MAX),
            item_key: key.zip(signature),
            seq: int(dict, "seq"),
            samples: samples(dict),
        })
    }

    pub(super) fn dictionary(&self) -> DictBuilder {
        let mut dict = DictBuilder::new();
        dict.bytes("id", self.id.0);
        for family in Family::ALL {
            let mut packed = Vec::new();
            let of_family = self.nodes.iter().filter(|contact| Family::of(&contact.address) == family);
            of_family.for_each(|contact| pack_contact(contact, &mut packed));
            if !packed.is_empty() || self.lists == Some(family) {
                dict.bytes(family.nodes_key(), packed);
            }
        }
        let (mut ip, mut scion) = (ListBuilder::new(), Vec::new());
        for value in &self.values {
            let mut packed = Vec::new();
            pack_address(value, &mut packed);
            match value {
                Endpoint::Ip(_) => drop(ip.bytes(packed)),
                Endpoint::Scion(_) => scion.extend(packed),
            }
        }
        if !ip.is_empty() {
            dict.list("values", &ip);
        }
        if !scion.is_empty() {
            dict.bytes("values_scion", scion);
        }
        if let Some(token) = self.token {
            dict.bytes("token", token);
        }
        if let Some(scrape) = &self.scrape {
            dict.bytes("BFsd", scrape.0.bits()).bytes("BFpe", scrape.1.bits());
        }
        if let Some(item) = self.item {
            dict.raw("v", item);
        }
        if let Some((key, signature)) = self.item_key {
            dict.bytes("k", key).bytes("sig", signature);
        }
        if let Some(seq) = self.seq {
            dict.int("seq", seq);
        }
        if let Some(samples) = &self.samples {
            let hashes: Vec<u8> = samples.hashes.iter().flat_map(|hash| hash.0).collect();
            dict.bytes("samples", hashes).int("num", i64::from(samples.total));
            dict.int("interval", i64::from(samples.interval));
        }
        dict
    }
}

/// BEP 5 and BEP 32 have one list for both families; addresses of SCION stand in a string of their own.
fn values(dict: Value<'_>) -> Vec<Endpoint> {
    let listed = dict.get("values").and_then(|values| values.as_list()).into_iter().flatten();
    let ip = listed.take(VALUES_MAX).filter_map(|value| {
        let packed = value.as_bytes()?;
        unpack_address(if packed.len() == 6 { Family::V4 } else { Family::V6 }, packed)
    });
    let scion = anabranch_paths::compact::unpack_scion(bytes(dict, "values_scion").unwrap_or_default());
    let scion = scion.map(Endpoint::from).filter(anabranch_paths::compact::is_dialable);
    ip.chain(scion).take(VALUES_MAX).collect()
}

fn samples(dict: Value<'_>) -> Option<Samples> {
    let (hashes, _) = bytes(dict, "samples")?.as_chunks::<ID_LEN>();
    let number = |key| int(dict, key).and_then(|number| u32::try_from(number).ok());
    Some(Samples {
        hashes: hashes.iter().take(SAMPLES_MAX).map(|hash| NodeId(*hash)).collect(),
        total: number("num").unwrap_or(0),
        interval: number("interval").unwrap_or(0),
    })
}
