//! KRPC: what a datagram says (BEP 5, with BEP 32, 33, 42, 43, 44 and 51).
//!
//! One datagram is one bencoded dictionary. [`Message::parse`] borrows from it and keeps what has a meaning here; [`Message::encode`] is
//! its inverse. A message that cannot be read is a [`WireError`]; one that is wrong in what it asks is a [`Refusal`], which the asker is
//! told.

mod answer;
mod query;
#[cfg(test)]
mod tests;

use anabranch_content::bencode::{self, DictBuilder, Limits, ListBuilder, Value};
use anabranch_paths::Endpoint;

pub use answer::{Answer, CONTACTS_MAX, SAMPLES_MAX, Samples, VALUES_MAX};
pub use query::{Ask, MutableItem, Query, Refusal, Want};

use crate::family::{pack_address, unpack_own_address};

/// Bytes of a datagram that is looked at: what fits in a packet of Ethernet is all that anybody sends.
pub const DATAGRAM_LEN_MAX: usize = 2048;
/// Bytes of a query's number that are sent back: the custom is two.
pub const TRANSACTION_LEN_MAX: usize = 32;
/// Bytes of a token that are kept to be shown again: the custom is four to twenty.
pub const TOKEN_LEN_MAX: usize = 64;
/// Bytes of an error's text that are kept.
const ERROR_TEXT_LEN_MAX: usize = 128;
/// Containers in a message are three deep, but for an item's value, which may be anything (BEP 44).
const LIMITS: Limits = Limits { bytes: DATAGRAM_LEN_MAX, depth: 16, tokens: 512 };

/// What a datagram says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The number that pairs answers with queries.
    pub transaction: &'a [u8],
    /// The sender's program, by custom four bytes.
    pub version: Option<&'a [u8]>,
    /// Where the sender sees the receiver (BEP 42, "ip").
    pub your_address: Option<Endpoint>,
    /// The sender answers no queries (BEP 43, "ro").
    pub read_only: bool,
    /// What it is.
    pub body: Body<'a>,
}

/// What a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// It asks.
    Query(Query<'a>),
    /// It answers.
    Answer(Box<Answer<'a>>),
    /// It answers that it will not.
    Error {
        /// What kind (BEP 5, BEP 44).
        code: i64,
        /// For people.
        text: &'a [u8],
    },
}

/// A datagram is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It is no bencode, or too much of it.
    #[error(transparent)]
    Bencode(#[from] bencode::Error),
    /// What every message has is not there.
    #[error("it has no `{0}`")]
    Lacks(&'static str),
    /// It is neither a query nor an answer nor an error.
    #[error("its kind is unknown")]
    Kind,
}

/// What was read: a query may be wrong and still have an asker who can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<'t> {
    /// It can be used.
    Message(Message<'t>),
    /// A query that is wrong.
    Refused {
        /// Its number.
        transaction: &'t [u8],
        /// What is wrong.
        refusal: Refusal,
    },
}

/// Whether a datagram can be KRPC: a dictionary. Nothing else that arrives at a port of BitTorrent begins so.
pub fn is_krpc(datagram: &[u8]) -> bool {
    datagram.first() == Some(&b'd')
}

/// Reads a datagram, and gives what it says to `then`: it is borrowed from the datagram.
///
/// # Errors
/// Where it says nothing.
pub fn parse<R>(datagram: &[u8], then: impl FnOnce(Parsed<'_>) -> R) -> Result<R, WireError> {
    let tree = bencode::parse(datagram, &LIMITS)?;
    let root = tree.root();
    let transaction = bytes(root, "t").ok_or(WireError::Lacks("t"))?;
    if transaction.len() > TRANSACTION_LEN_MAX {
        return Err(WireError::Lacks("t"));
    }
    let read_only = root.get("ro").and_then(|ro| ro.as_int()) == Some(1);
    let body = match bytes(root, "y").ok_or(WireError::Lacks("y"))? {
        b"q" => match Query::parse(root) {
            Ok(query) => Body::Query(query),
            Err(refusal) => return Ok(then(Parsed::Refused { transaction, refusal })),
        },
        b"r" => Body::Answer(Box::new(Answer::parse(root.get("r").ok_or(WireError::Lacks("r"))?)?)),
        b"e" => {
            let mut said = root.get("e").and_then(|error| error.as_list()).ok_or(WireError::Lacks("e"))?;
            let code = said.next().and_then(|code| code.as_int()).ok_or(WireError::Lacks("e"))?;
            let text = said.next().and_then(|text| text.as_bytes()).unwrap_or_default();
            Body::Error { code, text: &text[..text.len().min(ERROR_TEXT_LEN_MAX)] }
        }
        _ => return Err(WireError::Kind),
    };
    let message = Message {
        transaction,
        version: bytes(root, "v"),
        your_address: bytes(root, "ip").and_then(unpack_own_address),
        read_only,
        body,
    };
    Ok(then(Parsed::Message(message)))
}

impl<'a> Message<'a> {
    /// A query.
    pub fn query(transaction: &'a [u8], query: Query<'a>) -> Self {
        Self { transaction, version: None, your_address: None, read_only: false, body: Body::Query(query) }
    }

    /// The datagram.
    pub fn encode(&self) -> Vec<u8> {
        let mut root = DictBuilder::new();
        root.bytes("t", self.transaction);
        if let Some(version) = self.version {
            root.bytes("v", version);
        }
        if let Some(address) = &self.your_address {
            let mut packed = Vec::new();
            pack_address(address, &mut packed);
            root.bytes("ip", packed);
        }
        if self.read_only {
            root.int("ro", 1);
        }
        match &self.body {
            Body::Query(query) => {
                root.bytes("y", "q").bytes("q", query.ask.method());
                root.dict("a", &query.arguments());
            }
            Body::Answer(answer) => {
                root.bytes("y", "r").dict("r", &answer.dictionary());
            }
            Body::Error { code, text } => {
                root.bytes("y", "e").list("e", ListBuilder::new().int(*code).bytes(text));
            }
        }
        root.encode()
    }
}

fn bytes<'t>(dict: Value<'t>, key: &str) -> Option<&'t [u8]> {
    dict.get(key).and_then(|value| value.as_bytes())
}

fn int(dict: Value<'_>, key: &str) -> Option<i64> {
    dict.get(key).and_then(|value| value.as_int())
}
