//! Hop predicates: which ASes and interfaces an entry of a policy is about.

use std::fmt;

use super::text::{Cursor, PolicyError, PolicyErrorKind};
use crate::{Hop, Interface, IsdAs};

/// A pattern for hops: `0`, `1`, `1-ff00:0:133`, `1-ff00:0:133#2`, `1-ff00:0:133#2,1`. Zero stands for anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct HopPredicate {
    /// ISD and AS, each zero for any.
    isd_as: IsdAs,
    interfaces: Interfaces,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Interfaces {
    /// `#IF`: it comes in or goes out by this one.
    Either(u16),
    /// `#IF,IF`: it comes in by the first and goes out by the second.
    Both { ingress: u16, egress: u16 },
}

impl HopPredicate {
    /// Everything.
    pub(super) const ANY: Self = Self { isd_as: IsdAs::from_u64(0), interfaces: Interfaces::Either(0) };

    /// Whether it is about an AS that is passed so.
    pub(super) fn matches_hop(&self, hop: Hop) -> bool {
        let by = match self.interfaces {
            Interfaces::Either(id) => fits(id, hop.ingress) || fits(id, hop.egress),
            Interfaces::Both { ingress, egress } => fits(ingress, hop.ingress) && fits(egress, hop.egress),
        };
        by && self.matches_as(hop.isd_as)
    }

    /// Whether it is about an interface that packets come in by (`ingress`) or go out by.
    pub(super) fn matches_interface(&self, interface: Interface, ingress: bool) -> bool {
        let id = match self.interfaces {
            Interfaces::Either(id) => id,
            Interfaces::Both { ingress: id, .. } if ingress => id,
            Interfaces::Both { egress: id, .. } => id,
        };
        fits(id, interface.id) && self.matches_as(interface.isd_as)
    }

    /// Whether it is about everything.
    pub(super) fn matches_all(&self) -> bool {
        let open = matches!(self.interfaces, Interfaces::Either(0) | Interfaces::Both { ingress: 0, egress: 0 });
        open && self.isd_as == IsdAs::from_u64(0)
    }

    fn matches_as(&self, isd_as: IsdAs) -> bool {
        let fits = |wanted: u64, found: u64| wanted == 0 || wanted == found;
        fits(self.isd_as.isd().into(), isd_as.isd().into()) && fits(self.isd_as.asn(), isd_as.asn())
    }

    /// Interfaces that are named although the AS is not: of no use, since each AS has its own numbers.
    pub(super) fn interface_of_any_as(&self) -> Option<u16> {
        let named = match self.interfaces {
            Interfaces::Either(id) => id,
            Interfaces::Both { ingress: 0, egress } => egress,
            Interfaces::Both { ingress, .. } => ingress,
        };
        (self.isd_as.asn() == 0 && named != 0).then_some(named)
    }

    /// Whether `c` is taken for a part of a predicate; letters that make it wrong are, so that errors show whole words.
    pub(super) fn is_part(c: char) -> bool {
        c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '#' | ',')
    }

    /// Takes a predicate; the place is at its beginning.
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, PolicyError> {
        let start = cursor.at();
        let word = cursor.take_while(Self::is_part);
        let (isd_as_word, interfaces_word) = match word.split_once('#') {
            Some((isd_as, interfaces)) => (isd_as, Some(interfaces)),
            None => (word, None),
        };
        let (isd_word, asn_word) = match isd_as_word.split_once('-') {
            Some((isd, asn)) => (isd, Some(asn)),
            None => (isd_as_word, None),
        };
        let isd = Cursor::number(isd_word).ok_or_else(|| {
            let shown = if isd_word.is_empty() { word } else { isd_word };
            cursor.word_error(start, PolicyErrorKind::Isd, shown)
        })?;
        let isd_as = match asn_word {
            None => IsdAs::new(isd, 0),
            // The AS's own parser judges its number, in either notation.
            Some(asn) => format!("{isd}-{asn}").parse().ok(),
        };
        let isd_as = isd_as.ok_or_else(|| {
            cursor.word_error(start + isd_word.len() + 1, PolicyErrorKind::Asn, asn_word.unwrap_or_default())
        })?;
        let Some(interfaces_word) = interfaces_word else {
            return Ok(Self { isd_as, interfaces: Interfaces::Either(0) });
        };
        let at = start + isd_as_word.len() + 1;
        if asn_word.is_none() {
            // Path policy language, "Hop Predicate": only tail elements may be left out.
            return Err(cursor.word_error(at - 1, PolicyErrorKind::InterfaceWithoutAs, interfaces_word));
        }
        let number = |at, word: &str| {
            Cursor::number(word).ok_or_else(|| cursor.word_error(at, PolicyErrorKind::Interface, word))
        };
        let interfaces = match interfaces_word.split_once(',') {
            None => Interfaces::Either(number(at, interfaces_word)?),
            Some((ingress, egress)) => {
                Interfaces::Both { ingress: number(at, ingress)?, egress: number(at + ingress.len() + 1, egress)? }
            }
        };
        Ok(Self { isd_as, interfaces })
    }
}

fn fits(wanted: u16, found: u16) -> bool {
    wanted == 0 || wanted == found
}

impl fmt::Display for HopPredicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.isd_as.asn(), self.interfaces) {
            (0, Interfaces::Either(0)) => write!(f, "{}", self.isd_as.isd()),
            (_, Interfaces::Either(0)) => write!(f, "{}", self.isd_as),
            (_, Interfaces::Either(id)) => write!(f, "{}#{id}", self.isd_as),
            (_, Interfaces::Both { ingress, egress }) => write!(f, "{}#{ingress},{egress}", self.isd_as),
        }
    }
}
