//! What a query asks.

use anabranch_content::bencode::{DictBuilder, ListBuilder, Value};

use super::{bytes, int};
use crate::family::Family;
use crate::id::NodeId;
use crate::items::{ITEM_LEN_MAX, SALT_LEN_MAX};

/// A query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// Who asks.
    pub id: NodeId,
    /// Nodes of which networks are wanted (BEP 32); `None`: of the network that the query came over.
    pub want: Option<Want>,
    /// What for.
    pub ask: Ask<'a>,
}

/// Nodes of which networks are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want([bool; 3]);

impl Want {
    /// Of these.
    pub fn of(families: impl IntoIterator<Item = Family>) -> Self {
        let mut want = Self::default();
        families.into_iter().for_each(|family| want.0[family.index()] = true);
        want
    }

    /// Whether of this one.
    pub fn has(self, family: Family) -> bool {
        self.0[family.index()]
    }

    fn parse(value: Value<'_>) -> Option<Self> {
        let said: Vec<&[u8]> = value.as_list()?.take(8).filter_map(|one| one.as_bytes()).collect();
        Some(Self::of(Family::ALL.into_iter().filter(|family| said.contains(&family.want()))))
    }

    fn list(self) -> ListBuilder {
        let mut list = ListBuilder::new();
        Family::ALL.into_iter().filter(|family| self.has(*family)).for_each(|family| {
            list.bytes(family.want());
        });
        list
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// Are you there (BEP 5)?
    Ping,
    /// Who is nearest to this name (BEP 5)?
    FindNode {
        /// The name.
        target: NodeId,
    },
    /// Who has this content (BEP 5)?
    GetPeers {
        /// Its info-hash.
        info_hash: NodeId,
        /// Seeds are of no use to the asker (BEP 33).
        no_seeds: bool,
        /// How many there are is asked for too (BEP 33).
        scrape: bool,
    },
    /// The asker has this content (BEP 5).
    AnnouncePeer {
        /// Its info-hash.
        info_hash: NodeId,
        /// The port that peers reach it by; `None`: that of the query.
        port: Option<u16>,
        /// All of it (BEP 33).
        seed: bool,
        /// What [`Ask::GetPeers`] was answered with.
        token: &'a [u8],
    },
    /// What is kept under this target (BEP 44)?
    Get {
        /// The target.
        target: NodeId,
        /// An item that changes is of no use unless it is newer than this.
        seq: Option<i64>,
    },
    /// Keep this (BEP 44).
    Put {
        /// What [`Ask::Get`] was answered with.
        token: &'a [u8],
        /// The value: bencode.
        value: &'a [u8],
        /// Who may change it, and how; `None`: nobody may.
        mutable: Option<MutableItem<'a>>,
        /// Only where the item that is kept has this number.
        cas: Option<i64>,
    },
    /// Which info-hashes are known there (BEP 51)?
    SampleInfohashes {
        /// And who is nearest to this name?
        target: NodeId,
    },
}

/// What is said of an item that its owner may change (BEP 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MutableItem<'a> {
    /// The owner's key, of Ed25519.
    pub key: &'a [u8; 32],
    /// Tells items of one owner apart.
    pub salt: &'a [u8],
    /// Counts the changes.
    pub seq: i64,
    /// Over the above and the value.
    pub signature: &'a [u8; 64],
}

/// Why a query is not answered as it asks (BEP 5, "errors"; BEP 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Something that it needs is missing or wrong.
    #[error("invalid {0}")]
    Protocol(&'static str),
    /// No such method.
    #[error("Method Unknown")]
    Unknown,
    /// The token is not one of ours for this address, or too old.
    #[error("invalid token")]
    Token,
    /// BEP 44: "message (v field) too big".
    #[error("message (v field) too big")]
    TooBig,
    /// BEP 44: "invalid signature".
    #[error("invalid signature")]
    Signature,
    /// BEP 44: "salt too big".
    #[error("salt (salt field) too big")]
    Salt,
    /// BEP 44: "the CAS hash mismatched".
    #[error("the CAS number mismatched, re-read value and try again")]
    Cas,
    /// BEP 44: "sequence number less than current".
    #[error("sequence number less than current")]
    Old,
    /// There is no room.
    #[error("no room")]
    Full,
}

impl Refusal {
    /// Its number.
    pub fn code(self) -> i64 {
        match self {
            Self::Full => 202,
            Self::Protocol(_) | Self::Token => 203,
            Self::Unknown => 204,
            Self::TooBig => 205,
            Self::Signature => 206,
            Self::Salt => 207,
            Self::Cas => 301,
            Self::Old => 302,
        }
    }
}

impl<'a> Query<'a> {
    pub(super) fn parse(root: Value<'a>) -> Result<Self, Refusal> {
        let method = bytes(root, "q").ok_or(Refusal::Protocol("q"))?;
        let arguments = root.get("a").filter(|arguments| arguments.is_dict()).ok_or(Refusal::Protocol("a"))?;
        let id = name(arguments, "id")?;
        let ask = match method {
            b"ping" => Ask::Ping,
            b"find_node" => Ask::FindNode { target: name(arguments, "target")? },
            b"get_peers" => Ask::GetPeers {
                info_hash: name(arguments, "info_hash")?,
                no_seeds: int(arguments, "noseed") == Some(1),
                scrape: int(arguments, "scrape") == Some(1),
            },
            b"announce_peer" => Ask::AnnouncePeer {
                info_hash: name(arguments, "info_hash")?,
                port: port(arguments)?,
                seed: int(arguments, "seed") == Some(1),
                token: bytes(arguments, "token").ok_or(Refusal::Protocol("token"))?,
            },
            b"get" => Ask::Get { target: name(arguments, "target")?, seq: int(arguments, "seq") },
            b"put" => Self::parse_put(arguments)?,
            b"sample_infohashes" => Ask::SampleInfohashes { target: name(arguments, "target")? },
            _ => return Err(Refusal::Unknown),
        };
        Ok(Self { id, want: arguments.get("want").and_then(Want::parse), ask })
    }

    fn parse_put(arguments: Value<'a>) -> Result<Ask<'a>, Refusal> {
        let value = arguments.get("v").ok_or(Refusal::Protocol("v"))?.source();
        let token = bytes(arguments, "token").ok_or(Refusal::Protocol("token"))?;
        if value.len() > ITEM_LEN_MAX {
            return Err(Refusal::TooBig);
        }
        let mutable = match bytes(arguments, "k") {
            None => None,
            Some(key) => {
                let salt = bytes(arguments, "salt").unwrap_or_default();
                if salt.len() > SALT_LEN_MAX {
                    return Err(Refusal::Salt);
                }
                Some(MutableItem {
                    key: key.try_into().map_err(|_| Refusal::Protocol("k"))?,
                    salt,
                    seq: int(arguments, "seq").filter(|seq| *seq >= 0).ok_or(Refusal::Protocol("seq"))?,
                    signature: bytes(arguments, "sig")
                        .and_then(|signature| signature.try_into().ok())
                        .ok_or(Refusal::Protocol("sig"))?,
                })
            }
        };
        Ok(Ask::Put { token, value, mutable, cas: int(arguments, "cas") })
    }

    pub(super) fn arguments(&self) -> DictBuilder {
        let mut arguments = DictBuilder::new();
        arguments.bytes("id", self.id.0);
        if let Some(want) = self.want {
            arguments.list("want", &want.list());
        }
        match &self.ask {
            Ask::Ping => {}
            Ask::FindNode { target } | Ask::SampleInfohashes { target } => {
                arguments.bytes("target", target.0);
            }
            Ask::GetPeers { info_hash, no_seeds, scrape } => {
                arguments.bytes("info_hash", info_hash.0);
                for (key, _) in [("noseed", no_seeds), ("scrape", scrape)].iter().filter(|(_, is_set)| **is_set) {
                    arguments.int(key, 1);
                }
            }
            Ask::AnnouncePeer { info_hash, port, seed, token } => {
                arguments.bytes("info_hash", info_hash.0).bytes("token", token);
                arguments.int("seed", i64::from(*seed)).int("implied_port", i64::from(port.is_none()));
                // BEP 5: "port" is there in any case; who does not know "implied_port" takes it.
                arguments.int("port", i64::from(port.unwrap_or(1)));
            }
            Ask::Get { target, seq } => {
                arguments.bytes("target", target.0);
                if let Some(seq) = seq {
                    arguments.int("seq", *seq);
                }
            }
            Ask::Put { token, value, mutable, cas } => {
                arguments.bytes("token", token).raw("v", value);
                if let Some(item) = mutable {
                    arguments.bytes("k", item.key).int("seq", item.seq).bytes("sig", item.signature);
                    if !item.salt.is_empty() {
                        arguments.bytes("salt", item.salt);
                    }
                }
                if let Some(cas) = cas {
                    arguments.int("cas", *cas);
                }
            }
        }
        arguments
    }
}

impl Ask<'_> {
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::FindNode { .. } => "find_node",
            Self::GetPeers { .. } => "get_peers",
            Self::AnnouncePeer { .. } => "announce_peer",
            Self::Get { .. } => "get",
            Self::Put { .. } => "put",
            Self::SampleInfohashes { .. } => "sample_infohashes",
        }
    }
}

fn name(arguments: Value<'_>, key: &'static str) -> Result<NodeId, Refusal> {
    bytes(arguments, key).and_then(NodeId::from_slice).ok_or(Refusal::Protocol(key))
}

/// BEP 5, "implied_port": "if it is present and non-zero, the port argument should be ignored".
fn port(arguments: Value<'_>) -> Result<Option<u16>, Refusal> {
    if int(arguments, "implied_port").is_some_and(|implied| implied != 0) {
        return Ok(None);
    }
    let port = int(arguments, "port").and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
    port.map(Some).ok_or(Refusal::Protocol("port"))
}
