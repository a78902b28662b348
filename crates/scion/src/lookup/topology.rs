//! `topology.json`, the reference implementation's description of one AS: what a host without a daemon needs of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;

use anabranch_paths::IsdAs;
use serde_json::{Map, Value};

use super::convert::underlay_from;
use super::{LocalAs, PORT_RANGE_DEFAULT};

/// Where the reference implementation keeps it.
pub const TOPOLOGY_PATH_DEFAULT: &str = "/etc/scion/topology.json";
/// Bytes of the file. One with a thousand interfaces takes half a MiB.
pub const TOPOLOGY_BYTES_MAX: u64 = 4 << 20;
/// Control services that are asked in turn.
pub const CONTROL_SERVICES_MAX: usize = 16;

/// An AS, and who answers lookups in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The AS, with its routers.
    pub local: LocalAs,
    /// Its control services, in the order of their names; at least one.
    pub control_services: Vec<SocketAddr>,
}

/// Why a file is no topology: what stands where, and what should.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// Its name.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// Too large to be one.
    #[error("{path} exceeds {TOPOLOGY_BYTES_MAX} bytes: is it a topology.json?")]
    TooLarge {
        /// Its name.
        path: String,
    },
    /// No JSON; names line and column.
    #[error("no JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A value that should not be, or is missing.
    #[error("at {place}: {value} should be {expected}")]
    Value {
        /// The keys that lead to it, with dots between.
        place: String,
        /// What stands there, cut short.
        value: String,
        /// What should.
        expected: &'static str,
    },
}

impl Topology {
    /// From the file at `path`.
    pub fn read(path: &Path) -> Result<Self, TopologyError> {
        let name = || path.display().to_string();
        let read = |source| TopologyError::Read { path: name(), source };
        if std::fs::metadata(path).map_err(read)?.len() > TOPOLOGY_BYTES_MAX {
            return Err(TopologyError::TooLarge { path: name() });
        }
        Self::parse(&std::fs::read(path).map_err(read)?)
    }

    /// From the file's contents.
    pub fn parse(json: &[u8]) -> Result<Self, TopologyError> {
        let root: Value = serde_json::from_slice(json)?;
        let root = At { place: String::new(), value: Some(&root) };
        let isd_as = root.get("isd_as").checked("an ISD-AS such as \"1-ff00:0:110\"", |value| {
            value.as_str()?.parse().ok().filter(|isd_as: &IsdAs| isd_as.isd() != 0 && isd_as.asn() != 0)
        })?;
        let mtu = root.get("mtu").checked("a number of bytes from 1 to 65535", |value| {
            value.as_u64()?.try_into().ok().filter(|mtu| *mtu != 0)
        })?;
        let attributes = root.get("attributes");
        let is_core = attributes.value.is_some()
            && attributes.checked("a list such as [\"core\"]", |value| {
                Some(value.as_array()?.iter().any(|attribute| attribute == "core"))
            })?;
        let local =
            LocalAs { isd_as, is_core, mtu, ports: ports(&root.get("dispatched_ports"))?, interfaces: routers(&root)? };
        let services = root.get("control_service");
        let mut control_services = Vec::new();
        for service in services.entries()?.into_iter().take(CONTROL_SERVICES_MAX) {
            control_services.push(service.get("addr").address()?);
        }
        if control_services.is_empty() {
            return Err(services.error("at least one service with an `addr`: somebody has to be asked for paths"));
        }
        Ok(Self { local, control_services })
    }
}

/// Whose hosts can be reached without a dispatcher.
fn ports(at: &At) -> Result<RangeInclusive<u16>, TopologyError> {
    const EXPECTED: &str = "a port range such as \"31000-32767\", \"all\" or \"-\"";
    if at.value.is_none() {
        return Ok(PORT_RANGE_DEFAULT);
    }
    at.checked(EXPECTED, |value| match value.as_str()? {
        "all" => Some(1..=u16::MAX),
        // None: any port will do for what stays inside the AS.
        "-" | "" => Some(PORT_RANGE_DEFAULT),
        range => {
            let (first, last) = range.split_once('-')?;
            let range = first.trim().parse().ok()?..=last.trim().parse().ok()?;
            (!range.is_empty() && *range.start() != 0).then_some(range)
        }
    })
}

/// The internal address of the router that has each interface.
fn routers(root: &At) -> Result<BTreeMap<u16, SocketAddr>, TopologyError> {
    let mut interfaces = BTreeMap::new();
    for router in root.get("border_routers").entries()? {
        let address = router.get("internal_addr").address()?;
        for interface in router.get("interfaces").entries()? {
            let id = interface.place.rsplit('.').next().and_then(|id| id.parse().ok()).filter(|id| *id != 0);
            let id = id.ok_or_else(|| interface.error("under a number from 1 to 65535"))?;
            if interfaces.insert(id, address).is_some() {
                return Err(interface.error("the only interface with this number"));
            }
        }
    }
    Ok(interfaces)
}

/// A value and the keys that lead to it.
struct At<'a> {
    place: String,
    value: Option<&'a Value>,
}

impl<'a> At<'a> {
    fn get(&self, key: &str) -> At<'a> {
        let place = if self.place.is_empty() { key.to_owned() } else { format!("{}.{key}", self.place) };
        At { place, value: self.value.and_then(|value| value.get(key)) }
    }

    /// The members of an object; none if there is no such object.
    fn entries(&self) -> Result<Vec<At<'a>>, TopologyError> {
        let Some(value) = self.value else { return Ok(Vec::new()) };
        let members: &Map<String, Value> = value.as_object().ok_or_else(|| self.error("an object"))?;
        Ok(members.keys().map(|key| self.get(key)).collect())
    }

    fn checked<T>(&self, expected: &'static str, check: impl Fn(&Value) -> Option<T>) -> Result<T, TopologyError> {
        self.value.and_then(check).ok_or_else(|| self.error(expected))
    }

    fn address(&self) -> Result<SocketAddr, TopologyError> {
        self.checked("an address such as \"10.0.0.1:30042\" or \"[fd00::1]:30042\"", |value| {
            underlay_from(value.as_str()?)
        })
    }

    fn error(&self, expected: &'static str) -> TopologyError {
        let value = self.value.map_or("nothing".to_owned(), |value| {
            let text = value.to_string();
            if text.chars().count() <= 60 { text } else { text.chars().take(60).chain("...".chars()).collect() }
        });
        TopologyError::Value { place: self.place.clone(), value, expected }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALID: &str = r#"{
        "isd_as": "1-ff00:0:110", "mtu": 1400, "dispatched_ports": "31000-32767", "attributes": ["core"],
        "border_routers": {
            "br1": {"internal_addr": "10.0.0.1:30042", "interfaces": {
                "1": {"underlay": {"local": "192.0.2.1:50000", "remote": "192.0.2.2:50000"}, "isd_as": "1-ff00:0:111",
                      "link_to": "child", "mtu": 1472},
                "41": {"isd_as": "1-ff00:0:112", "link_to": "child", "mtu": 1472}}},
            "br2": {"internal_addr": "[fd00::2]:30042", "interfaces": {"2": {}}}
        },
        "control_service": {"cs1": {"addr": "10.0.0.9:30252"}}
    }"#;

    #[test]
    fn a_topology_is_read() {
        let topology = Topology::parse(VALID.as_bytes()).unwrap();
        assert_eq!(topology.control_services, ["10.0.0.9:30252".parse().unwrap()]);
        let LocalAs { isd_as, is_core, mtu, ports, interfaces } = topology.local;
        assert_eq!((isd_as.to_string().as_str(), is_core, mtu, ports), ("1-ff00:0:110", true, 1400, 31000..=32767));
        let routers: Vec<String> = interfaces.iter().map(|(id, address)| format!("{id} {address}")).collect();
        assert_eq!(routers, ["1 10.0.0.1:30042", "2 [fd00::2]:30042", "41 10.0.0.1:30042"]);
    }

    #[test]
    fn errors_name_the_place_and_the_remedy() {
        let error = |from: &str, to: &str| {
            assert!(VALID.contains(from), "{from}");
            Topology::parse(VALID.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
        };
        assert_eq!(error("1-ff00:0:110", "1-0"), r#"at isd_as: "1-0" should be an ISD-AS such as "1-ff00:0:110""#);
        assert!(error("1400", "65536").starts_with("at mtu: 65536 should be"));
        assert!(error("31000-32767", "32767-31000").starts_with("at dispatched_ports"));
        assert!(
            error("10.0.0.1:30042", "br.example:30042").starts_with(r#"at border_routers.br1.internal_addr: "br."#)
        );
        assert!(error(r#""41""#, r#""65536""#).starts_with("at border_routers.br1.interfaces.65536: {"));
        assert!(error(r#""2": {}"#, r#""41": {}"#).contains("the only interface"));
        assert!(error(r#""addr""#, r#""address""#).starts_with("at control_service.cs1.addr: nothing should be"));
        assert!(error("control_service", "x").starts_with("at control_service: nothing should be at least one"));
        assert!(error(r#"["core"]"#, "5").starts_with("at attributes: 5"));
        assert!(error("{", "").contains("line 2 column"));
    }

    #[test]
    fn files_are_limited() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), VALID).unwrap();
        assert!(Topology::read(file.path()).is_ok());
        file.as_file().set_len(TOPOLOGY_BYTES_MAX + 1).unwrap();
        assert!(matches!(Topology::read(file.path()), Err(TopologyError::TooLarge { .. })));
        assert!(matches!(Topology::read(Path::new("/nowhere")), Err(TopologyError::Read { .. })));
    }

    #[test]
    fn port_ranges_have_three_forms() {
        let ports = |text: &str| Topology::parse(VALID.replace("31000-32767", text).as_bytes()).map(|t| t.local.ports);
        assert_eq!(ports("all").unwrap(), 1..=65535);
        assert_eq!(ports("-").unwrap(), PORT_RANGE_DEFAULT);
        assert_eq!(ports("1024-65535").unwrap(), 1024..=65535);
        assert!(ports("0-5").is_err());
    }

    proptest! {
        #[test]
        fn changed_bytes_never_panic(at in 0..VALID.len(), with: u8, cut in 0..VALID.len()) {
            let mut bytes = VALID.as_bytes().to_vec();
            bytes[at] = with;
            let _ = Topology::parse(&bytes);
            let _ = Topology::parse(&bytes[..cut]);
        }
    }
}
