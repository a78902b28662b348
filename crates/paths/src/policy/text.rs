//! Reading policies: a place in a text, and what is wrong there.

/// Longest ACL, sequence or preference that is read: far more than anybody writes, little enough to read in no time.
pub const TEXT_BYTES_MAX: usize = 16 * 1024;
/// Longest part of a text that an error repeats, and longest word of it.
const SHOWN_CHARS_MAX: usize = 160;
const WORD_CHARS_MAX: usize = 60;

/// Why a text is no policy, and where in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{text}`, column {column}: {kind}")]
pub struct PolicyError {
    /// What the text should have been.
    pub what: &'static str,
    /// The text, shortened where it is long.
    pub text: String,
    /// Where in it, in characters from 1.
    pub column: usize,
    /// What is wrong there.
    pub kind: PolicyErrorKind,
}

/// What is wrong at a place of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyErrorKind {
    /// Not the number of an isolation domain.
    #[error("`{0}` is no ISD: write a number up to 65535, or 0 for any")]
    Isd(String),
    /// Not the number of an AS.
    #[error("`{0}` is no AS: write it as in ff00:0:110 or 559, or 0 for any")]
    Asn(String),
    /// Not the number of an interface.
    #[error("`{0}` is no interface: write a number up to 65535, or 0 for any")]
    Interface(String),
    /// Interfaces of no AS.
    #[error("interfaces are numbered by their AS: write ISD-AS#{0}, as in 1-ff00:0:110#{0}")]
    InterfaceWithoutAs(String),
    /// Interfaces of any AS.
    #[error("interface {0} means something else in every AS: name the AS, or leave the interface out")]
    InterfaceOfAnyAs(u16),
    /// A character that has no meaning here.
    #[error("`{0}` has no place here: {1}")]
    Unexpected(char, &'static str),
    /// The text ends too early.
    #[error("it ends where {0} should follow")]
    Ends(&'static str),
    /// A parenthesis that nothing closes.
    #[error("this parenthesis is never closed")]
    Unclosed,
    /// An ACL that leaves something undecided.
    #[error("it does not say what becomes of all other interfaces: end it with `+` (allowed) or `-` (denied)")]
    NoDefault,
    /// Entries that are never looked at.
    #[error("the entry before decides everything: what follows is never looked at")]
    Unreachable,
    /// Not something to order paths by.
    #[error("`{0}` is nothing that paths can be ordered by: choose from {1}")]
    Criterion(String, &'static str),
    /// Too long.
    #[error("it is too long: the limit is {0} bytes")]
    TooLong(usize),
    /// Too many hops or entries.
    #[error("it has too many {what}: the limit is {limit}")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many may be.
        limit: usize,
    },
}

/// A place in a text that is being read.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    what: &'static str,
    text: &'a str,
    /// Byte offset, always at the beginning of a character.
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the beginning of `text`, which should be `what`.
    pub(super) fn new(what: &'static str, text: &'a str) -> Result<Self, PolicyError> {
        let cursor = Self { what, text, at: 0 };
        if text.len() > TEXT_BYTES_MAX {
            Err(cursor.error(0, PolicyErrorKind::TooLong(TEXT_BYTES_MAX)))
        } else {
            Ok(cursor)
        }
    }

    /// The byte offset, for errors that are noticed later.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next character.
    pub(super) fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    /// Takes the next character if it is `wanted`.
    pub(super) fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    /// Takes white space.
    pub(super) fn skip_space(&mut self) {
        self.take_while(char::is_whitespace);
    }

    /// Takes all characters that are `wanted`.
    pub(super) fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let taken = &rest[..rest.find(|c| !wanted(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    /// The error `kind` at the byte offset `at`.
    pub(super) fn error(&self, at: usize, kind: PolicyErrorKind) -> PolicyError {
        let text = shortened(self.text, SHOWN_CHARS_MAX);
        let before = self.text.get(..at).unwrap_or(self.text);
        PolicyError { what: self.what, text, column: before.chars().count() + 1, kind }
    }

    /// The error at `at` that is about the word there.
    pub(super) fn word_error(
        &self,
        at: usize,
        kind: impl FnOnce(String) -> PolicyErrorKind,
        word: &str,
    ) -> PolicyError {
        self.error(at, kind(shortened(word, WORD_CHARS_MAX)))
    }

    /// Takes a number up to 65535, of digits alone.
    pub(super) fn number(word: &str) -> Option<u16> {
        word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten()
    }
}

fn shortened(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
