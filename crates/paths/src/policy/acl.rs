//! Access control lists: which interfaces a path may pass.

use std::fmt;
use std::str::FromStr;

use super::hop::HopPredicate;
use super::text::{Cursor, PolicyError, PolicyErrorKind};
use crate::ScionPath;

/// Most entries of one list: every path is held against all of them.
pub const ACL_ENTRIES_MAX: usize = 1024;

const WHAT: &str = "the ACL";

/// Which interfaces a path may pass: `+ 1-ff00:0:133 - 1 +`. The first entry that matches an interface decides on it, and
/// one denied interface denies the path. The last entry matches everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acl(Vec<Entry>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    allow: bool,
    predicate: HopPredicate,
}

impl Acl {
    /// Whether every interface of `path` is allowed.
    pub fn allows(&self, path: &ScionPath) -> bool {
        // Interfaces come in pairs: out of one AS, into the next one.
        path.interfaces.iter().enumerate().all(|(place, interface)| {
            let ingress = place % 2 == 1;
            // The last entry matches everything; a list cannot be made without it.
            let decides = self.0.iter().find(|entry| entry.predicate.matches_interface(*interface, ingress));
            decides.is_some_and(|entry| entry.allow)
        })
    }

    /// From one text for each entry, as policy files have them; the error says which of them is wrong.
    pub(super) fn from_entries<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, (usize, PolicyError)> {
        let mut acl = Self(Vec::new());
        let mut end = (0, Cursor::new(WHAT, "").map_err(|error| (0, error))?);
        for (index, text) in texts.into_iter().enumerate() {
            let mut cursor = Cursor::new(WHAT, text).map_err(|error| (index, error))?;
            acl.parse_entry(&mut cursor).map_err(|error| (index, error))?;
            if let Some(more) = cursor.peek() {
                let kind = PolicyErrorKind::Unexpected(more, "one entry is `+` or `-` and at most one hop predicate");
                return Err((index, cursor.error(cursor.at(), kind)));
            }
            end = (index, cursor);
        }
        let (last, cursor) = end;
        acl.ending(&cursor).map_err(|error| (last, error))
    }

    /// Takes an entry and the space around it.
    fn parse_entry(&mut self, cursor: &mut Cursor<'_>) -> Result<(), PolicyError> {
        const ACTION: &str = "an entry starts with `+` (allow) or `-` (deny)";
        cursor.skip_space();
        let start = cursor.at();
        let allow = match cursor.peek() {
            Some(action @ ('+' | '-')) => cursor.eat(action) && action == '+',
            Some(other) => return Err(cursor.error(start, PolicyErrorKind::Unexpected(other, ACTION))),
            None => return Err(cursor.error(start, PolicyErrorKind::Ends("`+` or `-`"))),
        };
        if self.0.last().is_some_and(|entry| entry.predicate.matches_all()) {
            return Err(cursor.error(start, PolicyErrorKind::Unreachable));
        }
        if self.0.len() >= ACL_ENTRIES_MAX {
            return Err(cursor.error(start, PolicyErrorKind::TooMany { what: "entries", limit: ACL_ENTRIES_MAX }));
        }
        cursor.skip_space();
        let at = cursor.at();
        let predicate = match cursor.peek() {
            Some(c) if c != '-' && HopPredicate::is_part(c) => HopPredicate::parse(cursor)?,
            _ => HopPredicate::ANY,
        };
        if let Some(interface) = predicate.interface_of_any_as() {
            return Err(cursor.error(at, PolicyErrorKind::InterfaceOfAnyAs(interface)));
        }
        self.0.push(Entry { allow, predicate });
        cursor.skip_space();
        Ok(())
    }

    /// Checks that nothing is left undecided. Path policy language, "ACL": every ACL ends with a blanket accept or deny.
    fn ending(self, cursor: &Cursor<'_>) -> Result<Self, PolicyError> {
        if self.0.last().is_some_and(|entry| entry.predicate.matches_all()) {
            return Ok(self);
        }
        Err(cursor.error(cursor.at(), PolicyErrorKind::NoDefault))
    }
}

impl FromStr for Acl {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let mut acl = Self(Vec::new());
        let mut cursor = Cursor::new(WHAT, text)?;
        while acl.0.is_empty() || cursor.peek().is_some() {
            acl.parse_entry(&mut cursor)?;
        }
        acl.ending(&cursor)
    }
}

impl fmt::Display for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, entry) in self.0.iter().enumerate() {
            let (space, action) = (if place == 0 { "" } else { " " }, if entry.allow { '+' } else { '-' });
            match entry.predicate {
                HopPredicate::ANY => write!(f, "{space}{action}")?,
                predicate => write!(f, "{space}{action} {predicate}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "acl_tests.rs"]
mod tests;
