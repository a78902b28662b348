//! The JSON events of `anabranch get` and `anabranch share`, one a line.

use anabranch_paths::{Interface, PathId};
use serde_json::Value;

use super::{LogError, quote};

/// Bytes of one event. A `paths` event has a few hundred bytes for each of some hundred candidates.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// What a program said.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It listens.
    Listening {
        /// Where, as `--peer` takes it.
        address: String,
    },
    /// Content is ready to be shared or fetched.
    Started,
    /// Paths were chosen.
    Paths(Decision),
    /// A path's connection changed.
    Path(Change),
    /// How far it is.
    Progress {
        /// Bytes that are there and verified.
        bytes_done: u64,
        /// Bytes in all, once known.
        bytes_total: Option<u64>,
    },
    /// Everything is there and verified.
    Finished {
        /// Bytes of content received, those for nothing included.
        downloaded: u64,
        /// Bytes received for nothing.
        wasted: u64,
    },
    /// It cannot go on.
    Failed {
        /// Why.
        message: String,
    },
    /// Something that no report is about.
    Other,
}

/// What becomes of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// It carries content.
    Chosen,
    /// It waits.
    Standby,
    /// It is not used.
    Left,
}

/// Who said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The program that shares.
    Uploader,
    /// The program that fetches.
    Downloader,
}

/// A choice of paths to one peer. Ids and interfaces are as the downloader names them, whoever chose.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Who tells of it.
    pub by: Side,
    /// When, in seconds since 1970.
    pub time: f64,
    /// The peer.
    pub peer: String,
    /// The selector's name; `None` where the other side chose.
    pub selector: Option<String>,
    /// What made it choose.
    pub why: String,
    /// What there was to choose from.
    pub candidates: Vec<Candidate>,
}

/// A path that there was to choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub path: String,
    /// What it passes, in order; empty over IP.
    pub interfaces: Vec<Interface>,
    /// ASes on it; unknown over IP.
    pub hops: Option<u64>,
    /// Bytes of the largest packet.
    pub mtu: Option<u64>,
    /// One-way latency as its ASes claim it.
    pub latency_ms: Option<f64>,
    /// What became of it.
    pub choice: Choice,
    /// Why.
    pub reason: String,
}

/// A change of one path's connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// When, in seconds since 1970.
    pub time: f64,
    /// The peer.
    pub peer: String,
    /// The path's id.
    pub path: String,
    /// What it is now: `active`, `standby`, `down` or `gone`.
    pub state: String,
    /// Why.
    pub reason: String,
}

/// Reads the events of one program, which are named in errors.
#[derive(Debug)]
pub struct EventReader {
    name: String,
    by: Side,
    line: usize,
}

impl EventReader {
    /// A reader at the first line of `name`.
    pub fn new(name: &str, by: Side) -> Self {
        Self { name: name.to_owned(), by, line: 0 }
    }

    /// The event of the next line.
    pub fn read(&mut self, line: &str) -> Result<Event, LogError> {
        self.line += 1;
        parse(line, self.by).map_err(|problem| LogError::malformed(&self.name, self.line, problem))
    }
}

fn parse(line: &str, by: Side) -> Result<Event, String> {
    if line.len() > EVENT_BYTES_MAX {
        return Err(format!("longer than {EVENT_BYTES_MAX} bytes"));
    }
    let event: Value = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}: {}", quote(line)))?;
    Ok(match text(&event, "event")?.as_str() {
        "listening" => Event::Listening { address: text(&event, "address")? },
        "started" => Event::Started,
        "progress" => {
            Event::Progress { bytes_done: count(&event, "bytes_done")?, bytes_total: event["bytes_total"].as_u64() }
        }
        "finished" => Event::Finished { downloaded: count(&event, "downloaded")?, wasted: count(&event, "wasted")? },
        "error" => Event::Failed { message: text(&event, "message")? },
        "paths" => Event::Paths(decision(&event, by)?),
        "path" => Event::Path(Change {
            time: number(&event, "time")?,
            peer: text(&event, "peer")?,
            path: text(&event, "path")?,
            state: text(&event, "state")?,
            reason: text(&event, "reason")?,
        }),
        _ => Event::Other,
    })
}

fn decision(event: &Value, by: Side) -> Result<Decision, String> {
    let candidates = event["candidates"].as_array().ok_or_else(|| missing(event, "candidates"))?;
    Ok(Decision {
        by,
        time: number(event, "time")?,
        peer: text(event, "peer")?,
        selector: event["selector"].as_str().map(str::to_owned),
        why: text(event, "why")?,
        candidates: candidates.iter().map(|value| candidate(value, by)).collect::<Result<_, _>>()?,
    })
}

fn candidate(value: &Value, by: Side) -> Result<Candidate, String> {
    let interfaces = value["interfaces"].as_array().ok_or_else(|| missing(value, "interfaces"))?;
    let mut interfaces: Vec<Interface> = interfaces.iter().map(interface).collect::<Result<_, _>>()?;
    let mut path = text(value, "path")?;
    if by == Side::Uploader {
        // The same way has another id from its other end.
        interfaces.reverse();
        if let [first, .., last] = &interfaces[..] {
            path = format!("{:#}", PathId::of_scion(first.isd_as, last.isd_as, &interfaces));
        }
    }
    let choice = match text(value, "choice")?.as_str() {
        "chosen" => Choice::Chosen,
        "standby" => Choice::Standby,
        "left" => Choice::Left,
        other => return Err(format!("`{}` is no choice", quote(other))),
    };
    Ok(Candidate {
        path,
        interfaces,
        hops: value["hops"].as_u64(),
        mtu: value["mtu"].as_u64(),
        latency_ms: value["latency_ms"].as_f64(),
        choice,
        reason: text(value, "reason")?,
    })
}

fn interface(value: &Value) -> Result<Interface, String> {
    let parsed = value.as_str().and_then(|text| {
        let (isd_as, id) = text.split_once('#')?;
        Some(Interface { isd_as: isd_as.parse().ok()?, id: id.parse().ok()? })
    });
    parsed.ok_or_else(|| format!("`{}` is no interface", quote(&value.to_string())))
}

fn text(value: &Value, key: &str) -> Result<String, String> {
    value[key].as_str().map(str::to_owned).ok_or_else(|| missing(value, key))
}

fn count(value: &Value, key: &str) -> Result<u64, String> {
    value[key].as_u64().ok_or_else(|| missing(value, key))
}

fn number(value: &Value, key: &str) -> Result<f64, String> {
    value[key].as_f64().ok_or_else(|| missing(value, key))
}

fn missing(value: &Value, key: &str) -> String {
    match value["event"].as_str() {
        Some(event) => format!("the event `{}` has no proper `{key}`", quote(event)),
        None => format!("no proper `{key}` in {}", quote(&value.to_string())),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATHS: &str = r##"{"event":"paths","time":1700000000.5,"peer":"[1-1,10.0.0.1]:7","selector":"disjoint","why":"start",
        "candidates":[{"path":"abc","interfaces":["1-2#1","1-1#2"],"hops":2,"mtu":1472,"latency_ms":null,"choice":"chosen",
        "reason":"fewest <hops>"}]}"##;

    fn read(text: &str) -> Result<Event, LogError> {
        EventReader::new("get", Side::Downloader).read(text)
    }

    #[test]
    fn events_are_read() {
        let Event::Paths(decision) = read(PATHS).unwrap() else { panic!() };
        assert_eq!((decision.selector.as_deref(), decision.candidates.len()), (Some("disjoint"), 1));
        let candidate = &decision.candidates[0];
        assert_eq!((candidate.interfaces.len(), candidate.latency_ms, candidate.mtu), (2, None, Some(1472)));
        assert_eq!(candidate.choice, Choice::Chosen);
        let path = r#"{"event":"path","time":1.0,"peer":"a","path":"p","state":"down","reason":"timeout"}"#;
        assert!(matches!(read(path).unwrap(), Event::Path(change) if change.state == "down"));
        let progress = r#"{"event":"progress","time":1,"bytes_done":7,"bytes_total":null,"paths":[]}"#;
        assert_eq!(read(progress).unwrap(), Event::Progress { bytes_done: 7, bytes_total: None });
        assert_eq!(read(r#"{"event":"piece","piece":7}"#).unwrap(), Event::Other);
    }

    #[test]
    fn paths_of_the_uploader_are_named_as_the_downloader_does() {
        let read = |text: &str, by| match EventReader::new("x", by).read(text).unwrap() {
            Event::Paths(decision) => decision.candidates[0].clone(),
            other => panic!("{other:?}"),
        };
        let back = PATHS.replace(r##"["1-2#1","1-1#2"]"##, r##"["1-1#2","1-2#1"]"##);
        let id =
            PathId::of_scion("1-2".parse().unwrap(), "1-1".parse().unwrap(), &read(PATHS, Side::Downloader).interfaces);
        let seen = read(&back, Side::Uploader);
        assert_eq!((seen.path, seen.interfaces), (format!("{id:#}"), read(PATHS, Side::Downloader).interfaces));
    }

    #[test]
    fn errors_name_program_line_and_key() {
        let mut reader = EventReader::new("share", Side::Uploader);
        reader.read(r#"{"event":"piece"}"#).unwrap();
        let error = reader.read(&PATHS.replace("\"reason\"", "\"season\"")).unwrap_err().to_string();
        assert!(error.starts_with("share, line 2: no proper `reason` in "), "{error}");
        for (text, says) in [
            ("{", "no JSON"),
            ("{}", "no proper `event`"),
            (r#"{"event":"progress"}"#, "the event `progress` has no proper `bytes_done`"),
            (&PATHS.replace("1-2#1", "1-2"), "`\"1-2\"` is no interface"),
            (&PATHS.replace("chosen", "taken"), "`taken` is no choice"),
            (&" ".repeat(EVENT_BYTES_MAX + 1), "longer than"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in "\\PC{0,200}", cut in 0..PATHS.len()) {
            drop(read(&text));
            drop(read(&PATHS[..cut]));
        }
    }
}
