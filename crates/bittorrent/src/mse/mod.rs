//! Message stream encryption (MSE, "protocol encryption"): a greeting before the handshake, after which a stream looks like noise.
//!
//! It hides that a stream is BitTorrent from who looks at its bytes, and its content from who does not try hard. It proves
//! nobody's identity. Many clients take it by default, and some nothing else. The specification is Vuze's "Message Stream
//! Encryption"; where it leaves a choice, libtorrent's and Transmission's is followed.
//!
//! [`Initiator`] and [`Responder`] take bytes in any portions and append their answers; in the end both know the content and the
//! [`Method`] for what follows, and have the [`Ciphers`] for it. Left to the driver: time, random bytes, and the index of contents by
//! [`content_key`], so that a stranger costs two powers and one look-up, however many contents there are. Until a stranger has named
//! a content that is here, it is sent nothing but noise.
//!
//! ```
//! use anabranch_bittorrent::mse::{self, Initiator, Methods, Responder};
//!
//! let info_hash = [7; 20];
//! let (mut to_caller, mut to_called) = (Vec::new(), Vec::new());
//! let mut caller = Initiator::new(info_hash, Methods::BOTH, b"hello", [1; 32], &mut to_called);
//! let mut called = Responder::new(Methods::BOTH, [2; 32]);
//! let mut heard = None;
//! while heard.is_none() {
//!     let find = |key: &[u8; 20]| (*key == mse::content_key(&info_hash)).then_some(info_hash);
//!     heard = called.received(&std::mem::take(&mut to_called), find, &mut to_caller)?;
//!     caller.received(&std::mem::take(&mut to_caller), &mut to_called)?;
//! }
//! assert_eq!(heard.unwrap().early, b"hello");
//! # Ok::<(), mse::MseError>(())
//! ```

mod dh;
mod exchange;
mod initiator;
mod rc4;
mod responder;
#[cfg(test)]
mod tests;

use anabranch_content::hash::sha1;
use thiserror::Error;

use crate::InfoHash;

pub use initiator::Initiator;
pub use rc4::Rc4;
pub use responder::Responder;

/// Padding before and after keys at most ("PadA", "PadB", "PadC", "PadD").
pub const PADDING_LEN_MAX: usize = 512;
/// What a caller may send before it is answered ("IA"): a handshake and the first extended messages. The field would hold 64 KiB,
/// which nobody sends, and a stranger would have us keep.
pub const INITIAL_LEN_MAX: usize = 4096;
/// Bytes that decide whether a caller greets in the clear or encrypts: from 20 on no greeting is like a key.
pub const KEY_LEN: usize = dh::KEY_LEN;

/// What becomes of the stream after the greeting ("crypto_select").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// It goes on in the clear.
    Plaintext,
    /// It is encrypted to its end.
    Rc4,
}

/// Methods that one end takes, and which of them it likes best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Methods {
    bits: u32,
    preferred: Method,
}

impl Methods {
    /// Nothing but RC4.
    pub const RC4: Self = Self { bits: Method::Rc4.bit(), preferred: Method::Rc4 };
    /// Either; what is in the clear costs nothing.
    pub const BOTH: Self = Self { bits: Method::Rc4.bit() | Method::Plaintext.bit(), preferred: Method::Plaintext };
    /// Either; rather RC4.
    pub const RATHER_RC4: Self = Self { preferred: Method::Rc4, ..Self::BOTH };

    /// The best of those that are offered, if any is.
    fn choose(self, offered: u32) -> Option<Method> {
        let other = match self.preferred {
            Method::Plaintext => Method::Rc4,
            Method::Rc4 => Method::Plaintext,
        };
        [self.preferred, other].into_iter().find(|method| self.bits & offered & method.bit() != 0)
    }
}

impl Method {
    const fn bit(self) -> u32 {
        match self {
            Self::Plaintext => 0x01,
            Self::Rc4 => 0x02,
        }
    }
}

/// The two directions of a stream that is encrypted, as far as the greeting has brought them.
#[derive(Clone, Debug)]
pub struct Ciphers {
    /// For what comes.
    pub receive: Rc4,
    /// For what goes.
    pub send: Rc4,
}

/// What a greeting came to.
#[derive(Clone, Debug)]
pub struct Agreed {
    /// The content that it is about.
    pub info_hash: InfoHash,
    /// For the rest of the stream; `None`: it goes on in the clear ([`Method::Plaintext`]).
    pub ciphers: Option<Ciphers>,
    /// What came behind the greeting, decrypted.
    pub early: Vec<u8>,
}

impl Agreed {
    /// How the stream goes on.
    pub fn method(&self) -> Method {
        if self.ciphers.is_some() { Method::Rc4 } else { Method::Plaintext }
    }
}

/// Why there is no agreement: the other end is to blame, except for [`MseError::UnknownContent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MseError {
    /// Its key is one with which anybody could read along.
    #[error("its key is none")]
    BadKey,
    /// Where its greeting should end there is something else.
    #[error("it speaks neither BitTorrent nor message stream encryption, or means another content")]
    OutOfSync,
    /// It asks for a content that is not here.
    #[error("it asked for a content that is not here")]
    UnknownContent,
    /// The eight zeros are none.
    #[error("its verification constant is wrong")]
    BadConstant,
    /// Padding is longer than [`PADDING_LEN_MAX`].
    #[error("its padding has {0} bytes, more than {PADDING_LEN_MAX}")]
    Padding(usize),
    /// What it sends ahead is longer than [`INITIAL_LEN_MAX`].
    #[error("it sends {0} bytes ahead, more than {INITIAL_LEN_MAX}")]
    Initial(usize),
    /// It offers or chooses nothing that we take: with `--encryption require`, only what is encrypted to its end.
    #[error("it would have the stream go on by methods {0:#x}, of which we take none")]
    Methods(u32),
}

/// What a caller's word for a content is looked up by: HASH('req2', SKEY).
pub fn content_key(info_hash: &InfoHash) -> [u8; 20] {
    hash(b"req2", &[info_hash])
}

fn hash(name: &[u8; 4], parts: &[&[u8]]) -> [u8; 20] {
    let mut message = name.to_vec();
    parts.iter().for_each(|part| message.extend_from_slice(part));
    sha1(&message)
}
