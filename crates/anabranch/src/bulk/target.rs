//! Where to send, and whom to receive from, as users write it.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::str::FromStr;

use anabranch_hercules::wire::ticket::{Ticket, TicketError};
pub(crate) use anabranch_swarm::bulk::is_ticket;
use anabranch_transport::{NodeId, NodeIdError};

use crate::address::{PeerAddress, PeerAddressError};
use crate::exit::Failure;

/// Bytes of a file of keys: a hundred thousand of them, with remarks.
const ALLOW_FILE_BYTES_MAX: u64 = 16 << 20;

/// Whom to send to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// Who printed it.
    Ticket(Box<Ticket>),
    /// A standing receiver.
    Host {
        /// What it has to prove, if the user knows.
        key: Option<NodeId>,
        /// Where it is.
        address: PeerAddress,
        /// As the user wrote it.
        text: String,
    },
}

/// Why a text is neither.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    /// It begins like a ticket.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// No address, and no name.
    #[error(transparent)]
    Address(#[from] PeerAddressError),
    /// What is in front of the `@`.
    #[error(transparent)]
    Key(#[from] NodeIdError),
    /// Nobody is there.
    #[error("`{0}`: port 0 cannot be sent to; give the receiver's port")]
    NoPort(String),
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if is_ticket(text) {
            return Ok(Self::Ticket(Box::new(text.parse()?)));
        }
        let (key, address) = match text.split_once('@') {
            Some((key, address)) => (Some(key.parse()?), address),
            None => (None, text),
        };
        let address: PeerAddress = address.parse()?;
        let port = match &address {
            PeerAddress::Endpoint(endpoint) => endpoint.socket_addr().port(),
            PeerAddress::Keyed(_, address) => address.host.port(),
            PeerAddress::Name(_, port) => *port,
        };
        if port == 0 {
            return Err(TargetError::NoPort(text.to_owned()));
        }
        Ok(Self::Host { key, address, text: text.to_owned() })
    }
}

impl fmt::Display for Target {
    /// Without the ticket's secret: logs are read by others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ticket(ticket) => match ticket.addresses.first() {
                Some(address) => write!(f, "{address}"),
                None => f.write_str("the ticket's maker"),
            },
            // The key is longer than everything else.
            Self::Host { text, .. } => f.write_str(text.rsplit('@').next().unwrap_or(text)),
        }
    }
}

/// Who may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// This key.
    Key(NodeId),
    /// Those in this file, a line each.
    File(PathBuf),
}

impl FromStr for Allowed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(key) => Ok(Self::Key(key)),
            Err(_) if text.is_empty() => Err("it is empty: give a key, or a file with keys".to_owned()),
            Err(_) => Ok(Self::File(PathBuf::from(text))),
        }
    }
}

/// All keys that may send.
pub(crate) fn allowed(allowed: &[Allowed]) -> Result<HashSet<NodeId>, Failure> {
    let mut keys = HashSet::new();
    for allowed in allowed {
        match allowed {
            Allowed::Key(key) => drop(keys.insert(*key)),
            Allowed::File(path) => keys.extend(read(path)?),
        }
    }
    Ok(keys)
}

fn read(path: &std::path::Path) -> Result<Vec<NodeId>, Failure> {
    let shown = path.display();
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(ALLOW_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)).map_err(|error| {
        Failure::input(format!(
            "`--allow {shown}` is no key, and no file that can be read: {error}; give the key that `anabranch keys own` \
             prints where it is sent from, or a file with one a line"
        ))
    })?;
    if bytes.len() as u64 > ALLOW_FILE_BYTES_MAX {
        return Err(Failure::input(format!(
            "{shown} is no list of keys: it has more than {ALLOW_FILE_BYTES_MAX} bytes"
        )));
    }
    let keys = parse(&String::from_utf8_lossy(&bytes)).map_err(|(line, text)| {
        Failure::input(format!("{shown}, line {line}: `{text}` is no key: write one a line, with remarks behind #"))
    })?;
    if keys.is_empty() {
        return Err(Failure::input(format!("{shown} has no key in it: nobody could send; write one a line")));
    }
    Ok(keys)
}

/// A key a line, maybe with an address in front as in a file of known keys; or the number of the line that is neither, and what it is.
fn parse(text: &str) -> Result<Vec<NodeId>, (usize, String)> {
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words = line.split('#').next().unwrap_or_default();
        let Some(word) = words.split_ascii_whitespace().last() else { continue };
        let is_one = words.split_ascii_whitespace().count() <= 2;
        match word.parse() {
            Ok(key) if is_one => keys.push(key),
            _ => return Err((number, line.chars().take(80).collect::<String>().escape_debug().to_string())),
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> String {
        "a".repeat(51) + "q"
    }

    #[test]
    fn targets_are_tickets_addresses_and_names() {
        for text in ["192.0.2.7:6900", "[1-ff00:0:110,10.0.0.1]:80", "mill.example:6900", "bulk.example:6900"] {
            assert!(matches!(text.parse(), Ok(Target::Host { key: None, .. })), "{text}");
        }
        let keyed: Target = format!("{}@192.0.2.7:6900", key()).parse().unwrap();
        assert!(matches!(&keyed, Target::Host { key: Some(_), .. }) && keyed.to_string() == "192.0.2.7:6900");
        let error = |text: &str| text.parse::<Target>().unwrap_err().to_string();
        assert!(error("bulk1-AAAA").contains("mistyped") && error("bulk9-AAAA").contains("another version"));
        assert!(error("short@192.0.2.7:1").contains("no node key") && error("192.0.2.7:0").contains("port 0"));
        assert!(error("192.0.2.7").contains("192.0.2.7"));
    }

    #[test]
    fn files_of_keys_have_one_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("allow");
        std::fs::write(&path, format!("# us\n{}\n\n192.0.2.7:1 {} # the mill", key(), "b".repeat(51) + "q")).unwrap();
        let keys = allowed(&[Allowed::File(path.clone()), key().parse().unwrap()]).unwrap();
        assert_eq!(keys.len(), 2);
        for (text, needle) in [("", "no key in it"), ("#", "no key in it"), ("a\nb", "line 1: `a`")] {
            std::fs::write(&path, text).unwrap();
            let error = allowed(&[Allowed::File(path.clone())]).unwrap_err().to_string();
            assert!(error.contains(needle), "{error}");
        }
        let error = allowed(&[Allowed::File("nowhere".into())]).unwrap_err().to_string();
        assert!(error.contains("`--allow nowhere` is no key"), "{error}");
    }

    proptest! {
        #[test]
        fn any_file_of_keys_is_read_or_refused_by_its_line(text in "([a-z2-7]{52}|#|\\PC| |\n){0,30}") {
            match parse(&text) {
                Ok(keys) => prop_assert!(keys.len() <= text.lines().count()),
                Err((line, _)) => prop_assert!((1..=text.lines().count()).contains(&line)),
            }
        }

        #[test]
        fn any_target_is_read_or_refused(text in "(bulk[0-9]-)?\\PC{0,40}") {
            let _ = text.parse::<Target>();
        }
    }
}
