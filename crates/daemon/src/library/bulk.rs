//! What is kept of a bulk transfer beside what is kept of every content.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::entry::{path_from, path_json};

/// A bulk transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bulk {
    /// The file or folder that is sent; `None`: something is received.
    pub send: Option<PathBuf>,
    /// Who is at the other end.
    pub partner: Partner,
    /// What is received goes over other files that are there.
    pub overwrite: bool,
    /// The ports that it listens at, over IP and over SCION, so that others find it again; 0: any.
    pub ports: (u16, u16),
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Partner {
    /// Who made this ticket, which is a secret.
    Ticket(String),
    /// Who has the ticket that is made here.
    Invited {
        /// Its secret, in hex.
        secret: String,
        /// When it ends, in seconds since 1970.
        expires: u64,
        /// How many may still come.
        times: u16,
    },
    /// Who has one of these keys.
    Allowed(BTreeSet<String>),
}

impl Bulk {
    /// The ticket of who is called.
    pub(crate) fn ticket(&self) -> Option<&str> {
        match &self.partner {
            Partner::Ticket(ticket) => Some(ticket),
            _ => None,
        }
    }

    /// Whether the other is the same transfer, which makes no sense twice.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.ticket().is_some() && self.ticket() == other.ticket()
    }

    /// Whether one thing is moved, and then it is done.
    pub(crate) fn is_once(&self) -> bool {
        matches!(self.partner, Partner::Ticket(_) | Partner::Invited { times: 1, .. })
    }

    /// What may be shown of it to everybody who may look: no secret.
    pub(crate) fn shown(&self) -> Value {
        let (with, keys, expires, times) = match &self.partner {
            Partner::Ticket(_) => ("ticket", None, None, None),
            Partner::Invited { expires, times, .. } => ("holders", None, Some(*expires), Some(*times)),
            Partner::Allowed(keys) => ("keys", Some(keys), None, None),
        };
        json!({ "sends": self.send.is_some(), "with": with, "keys": keys, "expires": expires, "times": times })
    }

    pub(crate) fn to_json(&self) -> Value {
        let partner = match &self.partner {
            Partner::Ticket(ticket) => json!({ "ticket": ticket }),
            Partner::Invited { secret, expires, times } => {
                json!({ "secret": secret, "expires": expires, "times": times })
            }
            Partner::Allowed(keys) => json!({ "keys": keys }),
        };
        json!({
            "send": self.send.as_deref().map(path_json),
            "partner": partner,
            "overwrite": self.overwrite,
            "ports": [self.ports.0, self.ports.1],
        })
    }

    /// `None` where it was not written by us.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let partner = &value["partner"];
        let small = |value: &Value| u16::try_from(value.as_u64()?).ok();
        let partner = if let Some(ticket) = partner["ticket"].as_str() {
            Partner::Ticket(ticket.to_owned())
        } else if let Some(secret) = partner["secret"].as_str() {
            let (expires, times) = (partner["expires"].as_u64()?, small(&partner["times"])?);
            Partner::Invited { secret: secret.to_owned(), expires, times }
        } else {
            let keys = partner["keys"].as_array()?.iter().map(|key| key.as_str().map(str::to_owned));
            Partner::Allowed(keys.collect::<Option<_>>()?)
        };
        let send = match &value["send"] {
            Value::Null => None,
            path => Some(path_from(path)?),
        };
        let ports = (small(&value["ports"][0])?, small(&value["ports"][1])?);
        Some(Self { send, partner, overwrite: value["overwrite"].as_bool()?, ports })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_back_as_it_was_and_shown_without_its_secrets() {
        let partners = [
            Partner::Ticket("bulk1-secret".into()),
            Partner::Invited { secret: "secret".into(), expires: 5, times: 7 },
            Partner::Allowed(["a".to_owned(), "b".to_owned()].into()),
        ];
        for partner in partners {
            for send in [None, Some(PathBuf::from("/a"))] {
                let bulk = Bulk { send, partner: partner.clone(), overwrite: true, ports: (7, 65_535) };
                assert_eq!(Bulk::from_json(&bulk.to_json()), Some(bulk.clone()));
                assert!(!bulk.shown().to_string().contains("secret"));
                assert_eq!(bulk.is_same(&bulk), matches!(partner, Partner::Ticket(_)));
            }
        }
        for strange in
            [json!({}), json!({ "partner": { "keys": [1] } }), json!({ "partner": { "ticket": "x" }, "ports": [1] })]
        {
            assert_eq!(Bulk::from_json(&strange), None, "{strange}");
        }
    }
}
