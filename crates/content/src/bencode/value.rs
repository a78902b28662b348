//! Views of a parsed buffer.

use std::ops::{BitOrAssign, Range};

/// A parsed buffer: the bytes and one token a value, in the order of the bytes.
#[derive(Clone, Debug)]
pub struct Tree<'a> {
    bytes: &'a [u8],
    tokens: Vec<Token>,
}

/// One value of a [`Tree`]; as cheap to copy as a reference.
#[derive(Clone, Copy)]
pub struct Value<'t> {
    bytes: &'t [u8],
    tokens: &'t [Token],
    index: usize,
}

/// Something that reads, but that a canonical encoder would not have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {at}")]
pub struct Finding {
    /// What is not canonical.
    pub kind: FindingKind,
    /// Where, in bytes from the front of the buffer.
    pub at: usize,
}

/// What is not canonical.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FindingKind {
    /// BEP 3: "All encodings with a leading zero, such as i03e, are invalid". String lengths too.
    #[error("a number with a leading zero")]
    LeadingZero,
    /// BEP 3: "i-0e is invalid".
    #[error("a negative zero")]
    NegativeZero,
    /// BEP 3: "Keys must be strings and appear in sorted order".
    #[error("a dictionary key out of order")]
    UnsortedKey,
    /// A key for the second time: readers disagree about which one counts.
    #[error("a dictionary key that is there twice")]
    DuplicateKey,
}

impl<'a> Tree<'a> {
    pub(super) fn new(bytes: &'a [u8], tokens: Vec<Token>) -> Self {
        Self { bytes, tokens }
    }

    /// The outermost value.
    pub fn root(&self) -> Value<'_> {
        Value { bytes: self.bytes, tokens: &self.tokens, index: 0 }
    }
}

impl<'t> Value<'t> {
    /// Where the value stands in the buffer.
    pub fn span(&self) -> Range<usize> {
        self.token().start as usize..self.token().end as usize
    }

    /// The original bytes of the value, its header and end included.
    pub fn source(&self) -> &'t [u8] {
        &self.bytes[self.span()]
    }

    /// The integer, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        if self.token().kind != Kind::Int {
            return None;
        }
        let text = &self.source()[1..self.source().len() - 1];
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    /// The integer, if it is one and not negative.
    pub fn as_uint(&self) -> Option<u64> {
        self.as_int().and_then(|value| u64::try_from(value).ok())
    }

    /// The bytes of a string.
    pub fn as_bytes(&self) -> Option<&'t [u8]> {
        (self.token().kind == Kind::Bytes).then(|| self.token().payload(self.bytes))
    }

    /// A string that is UTF-8.
    pub fn as_str(&self) -> Option<&'t str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    /// The items of a list.
    pub fn as_list(&self) -> Option<impl Iterator<Item = Value<'t>> + use<'t>> {
        (self.token().kind == Kind::List).then(|| self.children())
    }

    /// The entries of a dictionary, in the order of the bytes.
    pub fn as_dict(&self) -> Option<impl Iterator<Item = (&'t [u8], Value<'t>)> + use<'t>> {
        if self.token().kind != Kind::Dict {
            return None;
        }
        let mut children = self.children();
        Some(std::iter::from_fn(move || {
            let key = children.next()?.as_bytes()?;
            Some((key, children.next()?))
        }))
    }

    /// Whether it is a dictionary.
    pub fn is_dict(&self) -> bool {
        self.token().kind == Kind::Dict
    }

    /// Whether it is a list.
    pub fn is_list(&self) -> bool {
        self.token().kind == Kind::List
    }

    /// The value of `key` in a dictionary, the first where it is there twice. Reads the keys one by one.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Value<'t>> {
        let key = key.as_ref();
        self.as_dict()?.find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// What is not canonical in this value and everything inside it.
    pub fn findings(&self) -> impl Iterator<Item = Finding> + use<'t> {
        let tokens = &self.tokens[self.index..self.token().next as usize];
        // A key carries what is wrong with its order, so this value's own key is not asked.
        tokens.iter().flat_map(|token| {
            let kinds = [
                (Flags::LEADING_ZERO, FindingKind::LeadingZero),
                (Flags::NEGATIVE_ZERO, FindingKind::NegativeZero),
                (Flags::UNSORTED, FindingKind::UnsortedKey),
                (Flags::DUPLICATE, FindingKind::DuplicateKey),
            ];
            let at = token.start as usize;
            kinds.into_iter().filter(|(flag, _)| token.flags.0 & flag.0 != 0).map(move |(_, kind)| Finding { kind, at })
        })
    }

    fn token(&self) -> &'t Token {
        &self.tokens[self.index]
    }

    fn children(&self) -> impl Iterator<Item = Value<'t>> + use<'t> {
        let (bytes, tokens, end) = (self.bytes, self.tokens, self.token().next as usize);
        let mut index = self.index + 1;
        std::iter::from_fn(move || {
            let child = (index < end).then_some(Value { bytes, tokens, index })?;
            index = child.token().next as usize;
            Some(child)
        })
    }
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at bytes {:?}", self.token().kind, self.span())
    }
}

/// One value in 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    /// First byte of the value, and the byte after its last.
    pub start: u32,
    pub end: u32,
    /// The token after this value and everything inside it.
    pub next: u32,
    pub kind: Kind,
    /// Bytes before the payload.
    pub header: u8,
    pub flags: Flags,
}

impl Token {
    pub(super) fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start as usize + usize::from(self.header)..self.end as usize]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int,
    Bytes,
    List,
    Dict,
}

/// Findings about one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags(u8);

impl Flags {
    pub(super) const NONE: Self = Self(0);
    pub(super) const LEADING_ZERO: Self = Self(1);
    pub(super) const NEGATIVE_ZERO: Self = Self(2);
    pub(super) const UNSORTED: Self = Self(4);
    pub(super) const DUPLICATE: Self = Self(8);
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}
