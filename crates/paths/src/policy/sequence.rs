//! Hop sequences: the ASes that a path passes, in order, as a regular expression over hop predicates.
//!
//! A sequence is compiled to its position automaton (Glushkov's): one state for each predicate, no empty transitions. With
//! at most 128 predicates a set of states is one `u128`, so a path of n hops is matched in n steps whatever the
//! expression is; nothing in it can make the matcher go back.

use std::fmt;
use std::str::FromStr;

use super::hop::HopPredicate;
use super::text::{Cursor, PolicyError, PolicyErrorKind};
use crate::{Hop, ScionPath};

/// Most hop predicates of one sequence: as many as a set of states has bits, and twice the hops that a path can have.
pub const SEQUENCE_HOPS_MAX: usize = u128::BITS as usize;
/// Parentheses within parentheses: each level is a call of the parser.
pub const SEQUENCE_DEPTH_MAX: usize = 32;

const WHAT: &str = "the sequence";
const OPERAND: &str = "a hop predicate such as 1-ff00:0:110#1, or a parenthesis";

/// The hops that a path may take, in order: `0* 1-ff00:0:110#1 0+ (2-ff00:0:210 | 2-ff00:0:220) 0?`.
///
/// Operators: `?` at most once, `+` at least once, `*` any number of times, `|` one or the other, and parentheses. `|` binds
/// closer than standing side by side does, as in scionproto: `0 1|2 0` has three hops. The empty sequence allows every path.
#[derive(Clone, Debug)]
pub struct Sequence {
    text: String,
    /// `None` for the empty sequence.
    automaton: Option<Automaton>,
}

/// A set of states: bit n stands for the n-th predicate of the text.
type States = u128;

#[derive(Clone, Debug)]
struct Automaton {
    states: Vec<State>,
    whole: Fragment,
}

#[derive(Clone, Debug)]
struct State {
    predicate: HopPredicate,
    /// The predicates that the next hop may match.
    follow: States,
}

/// A part of an expression.
#[derive(Clone, Copy, Debug)]
struct Fragment {
    /// Whether no hops at all match it.
    nullable: bool,
    /// The predicates that its first hop may match.
    first: States,
    /// The predicates that its last hop may match.
    last: States,
}

impl Sequence {
    /// Whether the hops of `path` match the whole sequence. Inside one AS a path has none.
    pub fn allows(&self, path: &ScionPath) -> bool {
        let Some(automaton) = &self.automaton else { return true };
        if path.interfaces.is_empty() { automaton.whole.nullable } else { automaton.matches(path.hops()) }
    }
}

impl Automaton {
    fn matches(&self, hops: impl Iterator<Item = Hop>) -> bool {
        let mut candidates = self.whole.first;
        let mut reached: States = 0;
        for hop in hops {
            (reached, candidates) = bits(candidates)
                .map(|state| (state, &self.states[state]))
                .filter(|(_, state)| state.predicate.matches_hop(hop))
                .fold((0, 0), |(reached, next), (index, state)| (reached | 1 << index, next | state.follow));
        }
        reached & self.whole.last != 0
    }
}

fn bits(mut states: States) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (states != 0).then(|| states.trailing_zeros() as usize)?;
        states &= states - 1;
        Some(lowest)
    })
}

/// Reads an expression and builds the automaton as it goes.
struct Parser<'a> {
    cursor: Cursor<'a>,
    states: Vec<State>,
    depth: usize,
}

impl Parser<'_> {
    /// One operand after the other.
    fn concatenation(&mut self) -> Result<Fragment, PolicyError> {
        let mut whole = self.alternation()?;
        while self.cursor.peek().is_some_and(|c| c != ')') {
            let next = self.alternation()?;
            self.link(whole.last, next.first);
            whole = Fragment {
                nullable: whole.nullable && next.nullable,
                first: whole.first | if whole.nullable { next.first } else { 0 },
                last: next.last | if next.nullable { whole.last } else { 0 },
            };
        }
        Ok(whole)
    }

    fn alternation(&mut self) -> Result<Fragment, PolicyError> {
        let mut either = self.repetition()?;
        while self.cursor.eat('|') {
            let or = self.repetition()?;
            either = Fragment {
                nullable: either.nullable || or.nullable,
                first: either.first | or.first,
                last: either.last | or.last,
            };
        }
        Ok(either)
    }

    fn repetition(&mut self) -> Result<Fragment, PolicyError> {
        let mut repeated = self.operand()?;
        loop {
            self.cursor.skip_space();
            match self.cursor.peek() {
                Some(operator @ ('?' | '+' | '*')) => {
                    self.cursor.eat(operator);
                    if operator != '?' {
                        self.link(repeated.last, repeated.first);
                    }
                    repeated.nullable |= operator != '+';
                }
                _ => return Ok(repeated),
            }
        }
    }

    fn operand(&mut self) -> Result<Fragment, PolicyError> {
        self.cursor.skip_space();
        let start = self.cursor.at();
        match self.cursor.peek() {
            None => Err(self.cursor.error(start, PolicyErrorKind::Ends(OPERAND))),
            Some('(') => {
                self.cursor.eat('(');
                self.depth += 1;
                if self.depth > SEQUENCE_DEPTH_MAX {
                    let kind = PolicyErrorKind::TooMany { what: "nested parentheses", limit: SEQUENCE_DEPTH_MAX };
                    return Err(self.cursor.error(start, kind));
                }
                let inner = self.concatenation()?;
                if !self.cursor.eat(')') {
                    return Err(self.cursor.error(start, PolicyErrorKind::Unclosed));
                }
                self.depth -= 1;
                Ok(inner)
            }
            Some(c) if HopPredicate::is_part(c) => {
                let predicate = HopPredicate::parse(&mut self.cursor)?;
                if self.states.len() >= SEQUENCE_HOPS_MAX {
                    let kind = PolicyErrorKind::TooMany { what: "hop predicates", limit: SEQUENCE_HOPS_MAX };
                    return Err(self.cursor.error(start, kind));
                }
                let state = 1 << self.states.len();
                self.states.push(State { predicate, follow: 0 });
                Ok(Fragment { nullable: false, first: state, last: state })
            }
            Some(other) => {
                let kind = PolicyErrorKind::Unexpected(other, "a hop predicate or a parenthesis comes first");
                Err(self.cursor.error(start, kind))
            }
        }
    }

    /// After each of `from`, each of `to` may follow.
    fn link(&mut self, from: States, to: States) {
        bits(from).for_each(|state| self.states[state].follow |= to);
    }
}

impl FromStr for Sequence {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let cursor = Cursor::new(WHAT, text)?;
        let text = text.trim().to_owned();
        if text.is_empty() {
            return Ok(Self { text, automaton: None });
        }
        let mut parser = Parser { cursor, states: Vec::new(), depth: 0 };
        let whole = parser.concatenation()?;
        if let Some(left) = parser.cursor.peek() {
            let kind = PolicyErrorKind::Unexpected(left, "no parenthesis is open");
            return Err(parser.cursor.error(parser.cursor.at(), kind));
        }
        Ok(Self { text, automaton: Some(Automaton { states: parser.states, whole }) })
    }
}

impl PartialEq for Sequence {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Sequence {}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

#[cfg(test)]
#[path = "sequence_tests.rs"]
mod tests;
