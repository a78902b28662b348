//! TOML and YAML as one tree whose every node knows its line: topologies are read from it, and other files of this kind.

use std::collections::HashSet;

use saphyr_parser::{Event, Parser};
use toml::de::{DeTable, DeValue};

use super::error::{TopologyError, TopologyErrorKind};
use super::limits::{DEPTH_MAX, NODES_MAX};

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct Node {
    /// Line, from 1.
    pub line: usize,
    /// What it is.
    pub value: Value,
}

/// What both languages have; whether a scalar is a number is for its reader to say.
#[derive(Clone, Debug)]
pub enum Value {
    /// A text, number or flag.
    Scalar(String),
    /// Values in their order.
    List(Vec<Node>),
    /// Keys and values in the order of the file.
    Table(Vec<(String, Node)>),
}

/// What is wrong, and its line; the file's name is added at the end.
pub type Located<T> = Result<T, (usize, TopologyErrorKind)>;

impl Node {
    fn what(&self) -> String {
        match &self.value {
            Value::Scalar(text) => text.clone(),
            Value::List(_) => "[...]".into(),
            Value::Table(_) => "{...}".into(),
        }
    }

    /// This node is no value for `key`.
    pub fn bad(&self, key: &str, expected: &'static str) -> (usize, TopologyErrorKind) {
        (self.line, TopologyErrorKind::BadValue { key: key.into(), value: self.what(), expected })
    }

    /// The scalar's text.
    pub fn scalar(&self, key: &str, expected: &'static str) -> Located<&str> {
        match &self.value {
            Value::Scalar(text) => Ok(text),
            _ => Err(self.bad(key, expected)),
        }
    }

    /// The scalar, read by `read`.
    pub fn read<T>(&self, key: &str, expected: &'static str, read: impl FnOnce(&str) -> Option<T>) -> Located<T> {
        read(self.scalar(key, expected)?).ok_or_else(|| self.bad(key, expected))
    }

    /// The items of a list.
    pub fn list(&self, key: &str, expected: &'static str) -> Located<&[Node]> {
        match &self.value {
            Value::List(items) => Ok(items),
            _ => Err(self.bad(key, expected)),
        }
    }

    /// The keys and values of a table.
    pub fn table(&self, key: &str, expected: &'static str) -> Located<&[(String, Node)]> {
        match &self.value {
            Value::Table(entries) => Ok(entries),
            _ => Err(self.bad(key, expected)),
        }
    }
}

/// A table whose every key must be read: a key that nobody reads is a typing error.
pub struct Fields<'a> {
    place: &'static str,
    /// Line of the table.
    pub line: usize,
    entries: &'a [(String, Node)],
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The fields of `node`, which is called `place` in errors.
    pub fn new(node: &'a Node, place: &'static str) -> Located<Self> {
        let entries = match &node.value {
            // In YAML, a key with nothing after it.
            Value::Scalar(text) if text.is_empty() || text == "~" => &[],
            _ => node.table(place, "a table of keys and values")?,
        };
        Ok(Self { place, line: node.line, entries, known: Vec::new() })
    }

    /// The value of a key, if it is there.
    pub fn get(&mut self, key: &'static str) -> Option<&'a Node> {
        self.known.push(key);
        self.entries.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// The value of a key that has no default.
    pub fn need(&mut self, key: &'static str, example: &'static str) -> Located<&'a Node> {
        self.get(key).ok_or((self.line, TopologyErrorKind::Missing { key, place: self.place, example }))
    }

    /// Whether every key was read.
    pub fn finish(self) -> Located<()> {
        match self.entries.iter().find(|(name, _)| !self.known.contains(&name.as_str())) {
            None => Ok(()),
            Some((key, node)) => {
                let known = self.known.join(", ");
                Err((node.line, TopologyErrorKind::UnknownKey { key: key.clone(), place: self.place, known }))
            }
        }
    }
}

/// Reads TOML.
pub fn from_toml(text: &str) -> Located<Node> {
    let lines = Lines::new(text);
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| lines.of(span.start));
        (line, TopologyErrorKind::Syntax(error.message().to_owned()))
    })?;
    toml_table(table.get_ref(), 1, &lines, 0)
}

fn toml_table(table: &DeTable<'_>, line: usize, lines: &Lines, depth: usize) -> Located<Node> {
    // The map sorts by key; the file's order decides numbers and addresses.
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let entries = entries.into_iter().map(|(key, value)| {
        let line = lines.of(key.span().start);
        Ok((key.get_ref().to_string(), toml_value(value.get_ref(), line, lines, depth + 1)?))
    });
    Ok(Node { line, value: Value::Table(entries.collect::<Located<_>>()?) })
}

fn toml_value(value: &DeValue<'_>, line: usize, lines: &Lines, depth: usize) -> Located<Node> {
    if depth > DEPTH_MAX {
        return Err((line, TopologyErrorKind::TooDeep));
    }
    let value = match value {
        DeValue::String(text) => Value::Scalar(text.to_string()),
        DeValue::Integer(number) => Value::Scalar(number.to_string()),
        DeValue::Float(number) => Value::Scalar(number.to_string()),
        DeValue::Boolean(flag) => Value::Scalar(flag.to_string()),
        DeValue::Datetime(time) => Value::Scalar(time.to_string()),
        DeValue::Array(items) => {
            let items =
                items.iter().map(|item| toml_value(item.get_ref(), lines.of(item.span().start), lines, depth + 1));
            Value::List(items.collect::<Located<_>>()?)
        }
        DeValue::Table(table) => return toml_table(table, line, lines, depth),
    };
    Ok(Node { line, value })
}

/// Where lines start.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    fn of(&self, offset: usize) -> usize {
        self.0.partition_point(|end| *end < offset) + 1
    }
}

/// Reads the first document of a YAML file.
pub(super) fn from_yaml(text: &str) -> Located<Node> {
    let mut parser = Parser::new_from_str(text);
    let mut open: Vec<Open> = Vec::new();
    let mut nodes = 0;
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| {
            (error.marker().line(), TopologyErrorKind::Syntax(format!("{}: correct the YAML here", error.info())))
        })?;
        let line = span.start.line();
        nodes += 1;
        if nodes > NODES_MAX {
            return Err((line, TopologyErrorKind::TooMany { what: "values in the file", max: NODES_MAX }));
        }
        let done = match event {
            Event::Scalar(text, ..) => Some(Node { line, value: Value::Scalar(text.into_owned()) }),
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() == DEPTH_MAX => {
                return Err((line, TopologyErrorKind::TooDeep));
            }
            Event::SequenceStart(..) => {
                open.push(Open::List(line, Vec::new()));
                None
            }
            Event::MappingStart(..) => {
                open.push(Open::Table(line, Vec::new(), None));
                None
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(Open::close).transpose()?,
            Event::Alias(_) => {
                return Err((
                    line,
                    TopologyErrorKind::Syntax("aliases (*name) are not read: write the value out".into()),
                ));
            }
            Event::StreamEnd => break,
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => None,
        };
        let Some(node) = done else { continue };
        match open.last_mut() {
            None => return Ok(node),
            Some(parent) => parent.add(node)?,
        }
    }
    Err((1, TopologyErrorKind::NoAs))
}

/// A list or table whose end is not reached yet.
enum Open {
    List(usize, Vec<Node>),
    Table(usize, Vec<(String, Node)>, Option<(usize, String)>),
}

impl Open {
    fn add(&mut self, node: Node) -> Located<()> {
        match self {
            Self::List(_, items) => items.push(node),
            Self::Table(_, entries, key) => match key.take() {
                None => {
                    let Value::Scalar(text) = node.value else {
                        return Err((
                            node.line,
                            TopologyErrorKind::Syntax("a key must be a plain word: write `key: value`".into()),
                        ));
                    };
                    *key = Some((node.line, text));
                }
                Some((line, key)) => entries.push((key, Node { line, ..node })),
            },
        }
        Ok(())
    }

    fn close(self) -> Located<Node> {
        match self {
            Self::List(line, items) => Ok(Node { line, value: Value::List(items) }),
            Self::Table(line, entries, _) => {
                let mut seen = HashSet::new();
                match entries.iter().find(|(key, _)| !seen.insert(key)) {
                    Some((key, node)) => Err((node.line, TopologyErrorKind::Twice(key.clone()))),
                    None => Ok(Node { line, value: Value::Table(entries) }),
                }
            }
        }
    }
}

/// The error, in the file.
pub(super) fn locate(file: &str, (line, kind): (usize, TopologyErrorKind)) -> TopologyError {
    TopologyError { file: file.to_owned(), line: line.max(1), kind }
}
