//! Items that anybody may keep in the table (BEP 44): what proves them, and those that are kept here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anabranch_content::bencode::DictBuilder;
use anabranch_content::hash::sha1;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::id::NodeId;
use crate::wire::{MutableItem, Refusal};

/// Bytes of an item's value, encoded (BEP 44).
pub const ITEM_LEN_MAX: usize = 1000;
/// Bytes of a salt (BEP 44).
pub const SALT_LEN_MAX: usize = 64;
/// Items that are kept: half a megabyte.
pub const ITEMS_MAX: usize = 512;
/// Items that one host may have kept.
const ITEMS_OF_HOST_MAX: usize = 32;
/// BEP 44: "nodes may expire items after 2 hours".
const EXPIRES_AFTER: Duration = Duration::from_secs(2 * 3600);

/// An item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Bencode, at most [`ITEM_LEN_MAX`] bytes.
    pub value: Vec<u8>,
    /// Who may change it; `None`: nobody.
    pub owner: Option<Owner>,
}

/// Who may change an item, and proof of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// A key of Ed25519.
    pub key: [u8; 32],
    /// Tells items of one owner apart.
    pub salt: Vec<u8>,
    /// Counts the changes.
    pub seq: i64,
    /// Over all of it.
    pub signature: [u8; 64],
}

impl Item {
    /// An item that nobody can change.
    ///
    /// # Errors
    /// Where the value is too long.
    pub fn immutable(value: Vec<u8>) -> Result<Self, Refusal> {
        if value.len() > ITEM_LEN_MAX { Err(Refusal::TooBig) } else { Ok(Self { value, owner: None }) }
    }

    /// An item of whoever has the `seed` of an Ed25519 key.
    ///
    /// # Errors
    /// Where the value or the salt is too long.
    pub fn signed(seed: &[u8; 32], salt: &[u8], seq: i64, value: Vec<u8>) -> Result<Self, Refusal> {
        if value.len() > ITEM_LEN_MAX {
            return Err(Refusal::TooBig);
        }
        if salt.len() > SALT_LEN_MAX {
            return Err(Refusal::Salt);
        }
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| Refusal::Protocol("k"))?;
        let key = pair.public_key().as_ref().try_into().map_err(|_| Refusal::Protocol("k"))?;
        let signed = pair.sign(&signed_bytes(salt, seq, &value));
        let signature = signed.as_ref().try_into().map_err(|_| Refusal::Protocol("sig"))?;
        Ok(Self { value, owner: Some(Owner { key, salt: salt.to_vec(), seq, signature }) })
    }

    /// Where it is kept: the hash of the value, or of key and salt.
    pub fn target(&self) -> NodeId {
        match &self.owner {
            None => NodeId(sha1(&self.value)),
            Some(owner) => mutable_target(&owner.key, &owner.salt),
        }
    }

    /// Whether it is an item at all: its owner's signature.
    ///
    /// # Errors
    /// Where it is not.
    pub fn verify(&self) -> Result<(), Refusal> {
        let Some(owner) = &self.owner else { return Ok(()) };
        let key = UnparsedPublicKey::new(&ED25519, owner.key);
        let message = signed_bytes(&owner.salt, owner.seq, &self.value);
        key.verify(&message, &owner.signature).map_err(|_| Refusal::Signature)
    }

    /// As it came.
    pub(crate) fn received(value: &[u8], mutable: Option<&MutableItem<'_>>) -> Self {
        let owner = mutable.map(|item| Owner {
            key: *item.key,
            salt: item.salt.to_vec(),
            seq: item.seq,
            signature: *item.signature,
        });
        Self { value: value.to_vec(), owner }
    }

    fn seq(&self) -> Option<i64> {
        self.owner.as_ref().map(|owner| owner.seq)
    }
}

/// Where the items of a key are kept.
pub fn mutable_target(key: &[u8; 32], salt: &[u8]) -> NodeId {
    NodeId(sha1(&[&key[..], salt].concat()))
}

/// BEP 44: the salt, if there is one, the number and the value, as they would stand in a dictionary without its ends.
fn signed_bytes(salt: &[u8], seq: i64, value: &[u8]) -> Vec<u8> {
    let mut dict = DictBuilder::new();
    if !salt.is_empty() {
        dict.bytes("salt", salt);
    }
    let encoded = dict.int("seq", seq).raw("v", value).encode();
    encoded[1..encoded.len() - 1].to_vec()
}

/// The items that are kept here.
#[derive(Debug, Default)]
pub(crate) struct Items {
    items: HashMap<NodeId, StoredItem>,
}

#[derive(Debug)]
struct StoredItem {
    item: Item,
    host: anabranch_paths::Host,
    until: Instant,
}

impl Items {
    /// What is kept under `target`.
    pub(crate) fn get(&self, target: &NodeId, now: Instant) -> Option<&Item> {
        self.items.get(target).filter(|kept| kept.until > now).map(|kept| &kept.item)
    }

    /// Keeps an item that `host` brings.
    pub(crate) fn put(
        &mut self,
        item: Item,
        cas: Option<i64>,
        host: anabranch_paths::Host,
        now: Instant,
    ) -> Result<(), Refusal> {
        let target = item.target();
        let held = self.get(&target, now);
        if let (Some(held), Some(seq)) = (held.and_then(Item::seq), item.seq()) {
            if cas.is_some_and(|cas| cas != held) {
                return Err(Refusal::Cas);
            }
            if seq < held {
                return Err(Refusal::Old);
            }
        }
        // Signatures cost most: what can be refused without is refused before.
        if held.is_none() {
            self.make_room(host, now)?;
        }
        item.verify()?;
        self.items.insert(target, StoredItem { item, host, until: now + EXPIRES_AFTER });
        Ok(())
    }

    fn make_room(&mut self, host: anabranch_paths::Host, now: Instant) -> Result<(), Refusal> {
        self.expire(now);
        let of_host = self.items.values().filter(|kept| kept.host == host).count();
        if of_host >= ITEMS_OF_HOST_MAX {
            return Err(Refusal::Full);
        }
        if self.items.len() >= ITEMS_MAX {
            let oldest =
                self.items.iter().min_by_key(|(target, kept)| (kept.until, **target)).map(|(target, _)| *target);
            oldest.map(|target| self.items.remove(&target));
        }
        Ok(())
    }

    /// Lets go what nobody brought again for long.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.items.retain(|_, kept| kept.until > now);
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u32) -> anabranch_paths::Host {
        anabranch_paths::Host::of(&std::net::SocketAddr::from((std::net::Ipv4Addr::from_bits(number), 1)).into())
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn items_of_the_specification_prove_themselves() {
        // BEP 44, test vectors 1 to 3.
        let key = unhex("77ff84905a91936367c01360803104f92432fcd904a43511876df5cdf3e7e548").try_into().unwrap();
        let plain = Owner {
            key,
            salt: Vec::new(),
            seq: 1,
            signature: unhex(
                "305ac8aeb6c9c151fa120f120ea2cfb923564e11552d06a5d856091e5e853cff\
                 1260d3f39e4999684aa92eb73ffd136e6f4f3ecbfda0ce53a1608ecd7ae21f01",
            )
            .try_into()
            .unwrap(),
        };
        let item = Item { value: b"12:Hello World!".to_vec(), owner: Some(plain.clone()) };
        assert_eq!(item.verify(), Ok(()));
        assert_eq!(item.target().0.to_vec(), unhex("4a533d47ec9c7d95b1ad75f576cffc641853b750"));
        let salted = Owner {
            salt: b"foobar".to_vec(),
            signature: unhex(
                "6834284b6b24c3204eb2fea824d82f88883a3d95e8b4a21b8c0ded553d17d17d\
                 df9a8a7104b1258f30bed3787e6cb896fca78c58f8e03b5f18f14951a87d9a08",
            )
            .try_into()
            .unwrap(),
            ..plain.clone()
        };
        let item = Item { value: b"12:Hello World!".to_vec(), owner: Some(salted) };
        assert_eq!(item.verify(), Ok(()));
        assert_eq!(item.target().0.to_vec(), unhex("411eba73b6f087ca51a3795d9c8c938d365e32c1"));
        let other = Item { value: b"12:Hello World?".to_vec(), ..item };
        assert_eq!(other.verify(), Err(Refusal::Signature));
        let fixed = Item::immutable(b"12:Hello World!".to_vec()).unwrap();
        assert_eq!(fixed.target().0.to_vec(), unhex("e5f96f6f38320f0f33959cb4d3d656452117aadb"));
        assert_eq!(fixed.verify(), Ok(()));
    }

    #[test]
    fn an_item_changes_forwards_and_only_from_what_its_owner_saw() {
        let (mut items, now) = (Items::default(), Instant::now());
        let item = |seq| Item::signed(&[7; 32], b"salt", seq, b"1:a".to_vec()).unwrap();
        assert_eq!(items.put(item(3), None, host(1), now), Ok(()));
        assert_eq!(items.put(item(2), None, host(1), now), Err(Refusal::Old));
        assert_eq!(items.put(item(4), Some(2), host(1), now), Err(Refusal::Cas));
        assert_eq!(items.put(item(4), Some(3), host(1), now), Ok(()));
        let target = item(4).target();
        assert_eq!(items.get(&target, now), Some(&item(4)));
        assert_eq!(items.get(&target, now + EXPIRES_AFTER - Duration::from_secs(1)), Some(&item(4)));
        assert_eq!(items.get(&target, now + EXPIRES_AFTER), None);
        let mut forged = item(5);
        forged.value = b"1:b".to_vec();
        assert_eq!(items.put(forged, None, host(1), now), Err(Refusal::Signature));
    }

    #[test]
    fn items_are_bounded_in_all_and_of_a_host() {
        let (mut items, now) = (Items::default(), Instant::now());
        let item = |number: usize| Item::immutable(format!("i{number}e").into_bytes()).unwrap();
        for number in 0..ITEMS_OF_HOST_MAX {
            assert_eq!(items.put(item(number), None, host(1), now), Ok(()));
        }
        assert_eq!(items.put(item(ITEMS_OF_HOST_MAX), None, host(1), now), Err(Refusal::Full));
        for number in ITEMS_OF_HOST_MAX..2 * ITEMS_MAX {
            let later = now + Duration::from_secs(number as u64);
            assert_eq!(items.put(item(number), None, host(2 + number as u32 / 16), later), Ok(()));
        }
        assert_eq!(items.len(), ITEMS_MAX);
        assert_eq!(Item::immutable(vec![b'i'; ITEM_LEN_MAX + 1]), Err(Refusal::TooBig));
        assert!(Item::immutable(vec![b'i'; ITEM_LEN_MAX]).is_ok());
        assert_eq!(Item::signed(&[7; 32], &[0; SALT_LEN_MAX + 1], 1, Vec::new()), Err(Refusal::Salt));
    }
}
