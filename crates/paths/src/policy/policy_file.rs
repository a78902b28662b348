//! Policy files: JPAN's JSON form of path policies (JPAN, "Path Policy Language").

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use super::json::Json;
use super::text::PolicyError;
use super::{Acl, PathFilter, Preference};
use crate::IsdAs;

/// Largest policy file that is read; what people write has a few KiB.
pub const POLICY_FILE_BYTES_MAX: usize = 1024 * 1024;

/// Filters for paths by their destination.
///
/// `destinations` is searched in order for the first pattern that the destination matches, and names one of `filters`;
/// `defaults` has what filters leave out. Keys without a meaning are refused, where JPAN only warns of them: a requirement
/// that is overlooked would let packets go where they must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFile {
    destinations: Vec<(Destination, usize)>,
    filters: Vec<PathFilter>,
}

/// `0`, `1`, `1-ff00:0:110`, `1-ff00:0:110,10.0.0.2`, `1-ff00:0:110,10.0.0.2:80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Destination {
    /// Zero in either half stands for any.
    isd_as: IsdAs,
    ip: Option<IpAddr>,
    port: Option<u16>,
}

/// Why a text is no policy file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyFileError {
    /// Too long.
    #[error("the policy file has more than {POLICY_FILE_BYTES_MAX} bytes")]
    TooLong,
    /// Not JSON, with line and column.
    #[error("the policy file is not well: {0}")]
    Json(String),
    /// Something else than should stand there.
    #[error("policy file, {place}: {wanted} should stand here")]
    Kind {
        /// The keys that lead there.
        place: String,
        /// What should.
        wanted: &'static str,
    },
    /// A number that does not fit.
    #[error("policy file, {place}: {number} is more than {limit}, the most that can be asked for")]
    TooLarge {
        /// The keys that lead there.
        place: String,
        /// What stands there.
        number: u64,
        /// What may.
        limit: u64,
    },
    /// A key without meaning.
    #[error("policy file, {place}: `{key}` has no meaning here; choose from {choice}")]
    UnknownKey {
        /// The keys that lead there.
        place: String,
        /// The key.
        key: String,
        /// Those with a meaning.
        choice: &'static str,
    },
    /// An ACL, sequence or ordering that is wrong.
    #[error("policy file, {place}: {source}")]
    Policy {
        /// The keys that lead there.
        place: String,
        /// What is wrong.
        source: PolicyError,
    },
    /// A pattern that is none.
    #[error("policy file, destinations: `{0}` is no destination: write ISD, ISD-AS, ISD-AS,IP or ISD-AS,IP:port")]
    Destination(String),
    /// A name that no filter has.
    #[error("policy file, destinations.{destination}: there is no filter `{name}`")]
    NoFilter {
        /// The pattern.
        destination: String,
        /// The name.
        name: String,
    },
    /// Destinations that nothing is said of, or that are never looked at.
    #[error("policy file, destinations: the last one, and no other, must be \"0\", which matches every destination")]
    Default,
}

const FILE_KEYS: &str = "destinations, defaults, filters";
const DEFAULTS_KEYS: &str = "min_mtu, min_meta_bandwidth, min_validity_sec, ordering";
const FILTER_KEYS: &str = "acl, sequence, min_mtu, min_meta_bandwidth, min_validity_sec, ordering";

impl PolicyFile {
    /// The filter for paths to the host `host` of `isd_as`; without a host, entries for single hosts are passed over.
    pub fn filter(&self, isd_as: IsdAs, host: Option<SocketAddr>) -> &PathFilter {
        let found = self.destinations.iter().find(|(destination, _)| destination.matches(isd_as, host));
        // The last destination matches everything; a file is not read without it.
        let (_, filter) = found.unwrap_or(&self.destinations[self.destinations.len() - 1]);
        &self.filters[*filter]
    }
}

impl FromStr for PolicyFile {
    type Err = PolicyFileError;

    fn from_str(text: &str) -> Result<Self, PolicyFileError> {
        if text.len() > POLICY_FILE_BYTES_MAX {
            return Err(PolicyFileError::TooLong);
        }
        // serde_json bounds the depth (128 levels), and its errors name line and column.
        let json: Json = serde_json::from_str(text).map_err(|error| PolicyFileError::Json(error.to_string()))?;
        let mut parts = HashMap::new();
        for (key, value) in object("the beginning", &json)? {
            if !FILE_KEYS.split(", ").any(|known| known == key) {
                return Err(unknown("the beginning", key, FILE_KEYS));
            }
            parts.insert(key.as_str(), value);
        }
        let mut defaults = PathFilter::default();
        if let Some(json) = parts.get("defaults") {
            for (key, value) in object("defaults", json)? {
                let place = format!("defaults.{key}");
                if !set_requirement(&mut defaults, &place, key, value)? {
                    return Err(unknown("defaults", key, DEFAULTS_KEYS));
                }
            }
        }
        let part = |key| parts.get(key).copied().ok_or_else(|| kind(key, "an object"));
        let mut names = HashMap::new();
        let mut filters = Vec::new();
        for (name, json) in object("filters", part("filters")?)? {
            names.insert(name.as_str(), filters.len());
            filters.push(parse_filter(&defaults, &format!("filters.{name}"), json)?);
        }
        let mut destinations = Vec::new();
        for (pattern, name) in object("destinations", part("destinations")?)? {
            let name = string(&format!("destinations.{pattern}"), name)?;
            let filter = names
                .get(name)
                .ok_or_else(|| PolicyFileError::NoFilter { destination: pattern.clone(), name: name.to_owned() })?;
            let destination = pattern.parse().map_err(|()| PolicyFileError::Destination(pattern.clone()))?;
            destinations.push((destination, *filter));
        }
        let everything = destinations.iter().position(|(destination, _)| *destination == Destination::ANY);
        if everything.is_none_or(|place| place + 1 != destinations.len()) {
            return Err(PolicyFileError::Default);
        }
        Ok(Self { destinations, filters })
    }
}

fn parse_filter(defaults: &PathFilter, place: &str, json: &Json) -> Result<PathFilter, PolicyFileError> {
    let mut filter = defaults.clone();
    for (key, value) in object(place, json)? {
        let here = format!("{place}.{key}");
        match key.as_str() {
            "acl" => {
                let Json::List(items) = value else { return Err(kind(&here, "a list of entries such as \"+ 1\"")) };
                let mut texts = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    texts.push(string(&format!("{here}[{index}]"), item)?);
                }
                filter.acl = Some(Acl::from_entries(texts).map_err(|(index, source)| PolicyFileError::Policy {
                    place: format!("{here}[{index}]"),
                    source,
                })?);
            }
            "sequence" => filter.sequence = Some(string(&here, value)?.parse().map_err(policy(&here))?),
            _ if set_requirement(&mut filter, &here, key, value)? => {}
            _ => return Err(unknown(place, key, FILTER_KEYS)),
        }
    }
    Ok(filter)
}

/// Sets what both defaults and filters have; answers whether `key` is such a thing.
fn set_requirement(filter: &mut PathFilter, place: &str, key: &str, value: &Json) -> Result<bool, PolicyFileError> {
    match key {
        "min_mtu" => {
            let number = number(place, value)?;
            filter.mtu_bytes_min = number.try_into().map_err(|_| PolicyFileError::TooLarge {
                place: place.to_owned(),
                number,
                limit: u16::MAX.into(),
            })?;
        }
        "min_meta_bandwidth" => filter.bandwidth_bytes_min = number(place, value)?,
        "min_validity_sec" => filter.validity_min = Duration::from_secs(number(place, value)?),
        "ordering" => {
            filter.preference = Some(Preference::from_ordering(string(place, value)?).map_err(policy(place))?);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn object<'a>(place: &str, json: &'a Json) -> Result<&'a [(String, Json)], PolicyFileError> {
    if let Json::Object(entries) = json { Ok(entries) } else { Err(kind(place, "an object")) }
}

fn string<'a>(place: &str, json: &'a Json) -> Result<&'a str, PolicyFileError> {
    if let Json::Text(text) = json { Ok(text) } else { Err(kind(place, "a string")) }
}

fn number(place: &str, json: &Json) -> Result<u64, PolicyFileError> {
    if let Json::Number(number) = json { Ok(*number) } else { Err(kind(place, "a whole number from zero up")) }
}

fn kind(place: &str, wanted: &'static str) -> PolicyFileError {
    PolicyFileError::Kind { place: place.to_owned(), wanted }
}

fn unknown(place: &str, key: &str, choice: &'static str) -> PolicyFileError {
    PolicyFileError::UnknownKey { place: place.to_owned(), key: key.to_owned(), choice }
}

fn policy(place: &str) -> impl FnOnce(PolicyError) -> PolicyFileError + '_ {
    move |source| PolicyFileError::Policy { place: place.to_owned(), source }
}

impl Destination {
    const ANY: Self = Self { isd_as: IsdAs::from_u64(0), ip: None, port: None };

    fn matches(&self, isd_as: IsdAs, host: Option<SocketAddr>) -> bool {
        let fits = |wanted: u64, found: u64| wanted == 0 || wanted == found;
        fits(self.isd_as.isd().into(), isd_as.isd().into())
            && fits(self.isd_as.asn(), isd_as.asn())
            && self.ip.is_none_or(|ip| host.is_some_and(|host| host.ip().to_canonical() == ip))
            && self.port.is_none_or(|port| host.is_some_and(|host| host.port() == port))
    }
}

impl FromStr for Destination {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (isd_as, host) = match text.split_once(',') {
            Some((isd_as, host)) => (isd_as, Some(host)),
            None => (text, None),
        };
        if !isd_as.contains('-') {
            let isd_as = format!("{isd_as}-0").parse().map_err(drop)?;
            return if host.is_none() { Ok(Self { isd_as, ip: None, port: None }) } else { Err(()) };
        }
        let isd_as = isd_as.parse().map_err(drop)?;
        let Some(host) = host else { return Ok(Self { isd_as, ip: None, port: None }) };
        if let Ok(host) = host.parse::<SocketAddr>() {
            // Port zero stands for any, as zero does everywhere else.
            let port = Some(host.port()).filter(|port| *port != 0);
            return Ok(Self { isd_as, ip: Some(host.ip().to_canonical()), port });
        }
        let ip = host.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(host);
        Ok(Self { isd_as, ip: Some(ip.parse::<IpAddr>().map_err(drop)?.to_canonical()), port: None })
    }
}

#[cfg(test)]
#[path = "policy_file_tests.rs"]
mod tests;
