//! What is kept of a live stream whose source is here, beside what is kept of every content.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::entry::{path_from, path_json};

/// A live stream whose source is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broadcast {
    /// What it is signed with: a PKCS#8 document. A secret.
    pub key: Vec<u8>,
    /// The file or pipe that it is read from; `None`: programs send it.
    pub input: Option<PathBuf>,
    /// Bytes a second; `None`: as the input's own clock says, or as it comes.
    pub rate: Option<u64>,
    /// Copies of it that are sent from here at most, on average.
    pub copies: u64,
    /// It goes inside QUIC alone.
    pub secure: bool,
    /// The keys that may watch it, where not everybody may.
    pub allowed: Option<BTreeSet<String>>,
    /// How often it was begun: see [`Broadcast::first_chunk`].
    pub runs: u64,
    /// The ports at which viewers come, over IP and over SCION, so that its link stays as it is; none: any.
    pub ports: (Vec<u16>, Option<u16>),
}

/// Streams that are counted from further down each time ...
const RUNS: u64 = 256;
/// ... by so many chunks, which are a gigabyte.
const RUN_CHUNKS: u64 = 1 << 20;

impl Broadcast {
    /// The number of its first chunk in this run: lower than in the one before, so that whoever watched that knows it for another, and
    /// does not take what comes for what is missing of that.
    pub(crate) fn first_chunk(&self) -> u64 {
        (RUNS - self.runs % RUNS) * RUN_CHUNKS
    }

    /// What may be shown of it to everybody who may look: no secret.
    pub(crate) fn shown(&self) -> Value {
        json!({
            "input": self.input.as_deref().map(|input| input.to_string_lossy()),
            "rate": self.rate,
            "copies": self.copies,
            "secure": self.secure,
            "allow": self.allowed,
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "key": self.key,
            "input": self.input.as_deref().map(path_json),
            "rate": self.rate,
            "copies": self.copies,
            "secure": self.secure,
            "allowed": self.allowed,
            "runs": self.runs,
            "ports": self.ports.0,
            "scion_port": self.ports.1,
        })
    }

    /// `None` where it was not written by us.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let small = |value: &Value| u16::try_from(value.as_u64()?).ok();
        let key = value["key"].as_array()?.iter().map(|byte| u8::try_from(byte.as_u64()?).ok());
        let input = match &value["input"] {
            Value::Null => None,
            path => Some(path_from(path)?),
        };
        let allowed = match &value["allowed"] {
            Value::Null => None,
            keys => Some(keys.as_array()?.iter().map(|key| key.as_str().map(str::to_owned)).collect::<Option<_>>()?),
        };
        Some(Self {
            key: key.collect::<Option<_>>()?,
            input,
            rate: value["rate"].as_u64(),
            copies: value["copies"].as_u64()?,
            secure: value["secure"].as_bool()?,
            allowed,
            runs: value["runs"].as_u64()?,
            ports: (value["ports"].as_array()?.iter().map(small).collect::<Option<_>>()?, small(&value["scion_port"])),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_back_as_it_was_and_shown_without_its_key() {
        let plain = Broadcast {
            key: vec![201, 202, 203],
            input: None,
            rate: None,
            copies: 3,
            secure: false,
            allowed: None,
            runs: 0,
            ports: (Vec::new(), None),
        };
        let full = Broadcast {
            input: Some("/a/film".into()),
            rate: Some(500_000),
            secure: true,
            allowed: Some(["a".to_owned(), "b".to_owned()].into()),
            runs: 9,
            ports: (vec![7, 65_535], Some(9)),
            ..plain.clone()
        };
        let first = |runs| Broadcast { runs, ..plain.clone() }.first_chunk();
        for runs in 0..RUNS - 1 {
            assert_eq!(first(runs) - first(runs + 1), RUN_CHUNKS);
        }
        assert!(first(RUNS - 1) > 0 && first(RUNS) == first(0) && first(0) < u64::from(u32::MAX) / 8);
        for broadcast in [plain, full] {
            assert_eq!(Broadcast::from_json(&broadcast.to_json()), Some(broadcast.clone()));
            assert!(!broadcast.shown().to_string().contains("20"));
        }
        for strange in [
            json!({}),
            json!({ "key": [256], "copies": 3, "secure": false, "ports": [] }),
            json!({ "key": [], "copies": 3, "secure": false, "ports": [65_536] }),
        ] {
            assert_eq!(Broadcast::from_json(&strange), None, "{strange}");
        }
    }
}
