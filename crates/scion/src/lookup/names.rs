//! Host names: hosts files first (those that `SCION_HOSTS_FILES` names, as JPAN has it, else `/etc/scion/hosts`), then TXT records of the form `scion=1-ff00:0:110,10.0.0.1` in the DNS.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anabranch_paths::{Endpoint, EndpointError, IsdAs, ScionAddr};

use super::dns;

/// Names hosts files, separated by `;`.
pub const HOSTS_VARIABLE: &str = "SCION_HOSTS_FILES";
/// Where a SCION hosts file is otherwise.
pub const HOSTS_PATH_DEFAULT: &str = "/etc/scion/hosts";
/// Where the system names its DNS servers.
const RESOLV_CONF_PATH: &str = "/etc/resolv.conf";
/// Bytes of a hosts file.
pub const HOSTS_BYTES_MAX: u64 = 4 << 20;
/// Addresses of one name.
pub const ADDRESSES_MAX: usize = 64;
/// What a TXT record starts with.
const TXT_PREFIX: &str = "scion=";

/// A host of an AS: `1-ff00:0:110,10.0.0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScionHost {
    /// The AS.
    pub isd_as: IsdAs,
    /// The host in it.
    pub ip: IpAddr,
}

impl fmt::Display for ScionHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.isd_as, self.ip)
    }
}

impl FromStr for ScionHost {
    type Err = NameError;

    /// With brackets round the IP address or without.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let parsed = text.trim().split_once(',').and_then(|(isd_as, host)| {
            let host = host.trim();
            let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            let isd_as: IsdAs = isd_as.trim().parse().ok()?;
            let is_single = isd_as.isd() != 0 && isd_as.asn() != 0;
            Some(Self { isd_as, ip: bare.parse().ok()? }).filter(|_| is_single)
        });
        parsed.ok_or_else(|| NameError::NotAHost(shortened(text)))
    }
}

/// Why a name leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Neither the file nor the DNS knows it.
    #[error(
        "`{name}` is in neither {hosts} nor the DNS (no TXT record `scion=ISD-AS,IP`): add it, or write the address"
    )]
    Unknown {
        /// The name.
        name: String,
        /// The hosts file.
        hosts: String,
    },
    /// No name at all.
    #[error("`{0}` is no host name: write letters, digits, hyphens and dots")]
    NotAName(String),
    /// No address of a host.
    #[error("`{0}` is no SCION host: write ISD-AS,IP as in 1-ff00:0:110,10.0.0.1")]
    NotAHost(String),
    /// No address, and no name with a port.
    #[error(transparent)]
    Endpoint(EndpointError),
    /// The hosts file has a line that is none.
    #[error("{path}, line {line}: {reason}")]
    HostsLine {
        /// The file.
        path: String,
        /// From 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The hosts file cannot be read.
    #[error("{path}: {reason}")]
    Hosts {
        /// The file.
        path: String,
        /// What the system says.
        reason: String,
    },
    /// No DNS server answers.
    #[error("`{name}` is not in {hosts}, and no DNS server answers ({reason}): add it there, or write the address")]
    Dns {
        /// The name.
        name: String,
        /// The hosts file.
        hosts: String,
        /// What went wrong last.
        reason: String,
    },
}

/// Where names are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The hosts files; those that are not there are empty ones.
    pub hosts: Vec<PathBuf>,
    /// DNS servers, asked in turn.
    pub dns: Vec<SocketAddr>,
}

impl Names {
    /// As the system is set up.
    pub fn system() -> Self {
        let resolv_conf = std::fs::read_to_string(RESOLV_CONF_PATH).unwrap_or_default();
        let named = std::env::var(HOSTS_VARIABLE).unwrap_or_default();
        let named: Vec<PathBuf> = named.split(';').filter(|path| !path.is_empty()).map(PathBuf::from).collect();
        let hosts = if named.is_empty() { vec![HOSTS_PATH_DEFAULT.into()] } else { named };
        Self { hosts, dns: dns::servers(&resolv_conf) }
    }

    /// The hosts that `name` stands for, at least one: those of the file if it has any, else those of the DNS.
    pub async fn resolve(&self, name: &str) -> Result<Vec<ScionHost>, NameError> {
        let name = name.strip_suffix('.').unwrap_or(name);
        if !is_name(name) {
            return Err(NameError::NotAName(shortened(name)));
        }
        for file in &self.hosts {
            let listed = listed(file, name)?;
            if !listed.is_empty() {
                return Ok(listed);
            }
        }
        let hosts = || self.hosts.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" or ");
        let texts = dns::txt(name, &self.dns).await.map_err(|error| NameError::Dns {
            name: name.to_owned(),
            hosts: hosts(),
            reason: error.to_string(),
        })?;
        let found = hosts_of_txt(&texts);
        if found.is_empty() {
            return Err(NameError::Unknown { name: name.to_owned(), hosts: hosts() });
        }
        Ok(found)
    }

    /// What a user wrote for a peer: an address of any form, or a name and a port (`host.example:6881`).
    pub async fn endpoints(&self, text: &str) -> Result<Vec<Endpoint>, NameError> {
        let no_address = match text.parse() {
            Ok(endpoint) => return Ok(vec![endpoint]),
            Err(error) => NameError::Endpoint(error),
        };
        let name = text.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse::<u16>().ok()?)));
        let Some((name, port)) = name.filter(|(name, _)| is_name(name)) else { return Err(no_address) };
        let hosts = self.resolve(name).await?;
        Ok(hosts.iter().map(|host| ScionAddr::new(host.isd_as, SocketAddr::new(host.ip, port)).into()).collect())
    }
}

/// The addresses of `name` in one hosts file.
fn listed(file: &Path, name: &str) -> Result<Vec<ScionHost>, NameError> {
    let path = || file.display().to_string();
    let failed = |reason: String| NameError::Hosts { path: path(), reason };
    match std::fs::metadata(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error.to_string())),
        Ok(found) if found.len() > HOSTS_BYTES_MAX => return Err(failed(format!("above {HOSTS_BYTES_MAX} bytes"))),
        Ok(_) => {}
    }
    let text = std::fs::read(file).map_err(|error| failed(error.to_string()))?;
    parse_hosts(&String::from_utf8_lossy(&text), name).map_err(|(line, reason)| NameError::HostsLine {
        path: path(),
        line,
        reason,
    })
}

/// The addresses of `name` in a hosts file, or the line (from 1) that is wrong and why. Only lines that name it are judged.
pub fn parse_hosts(text: &str, name: &str) -> Result<Vec<ScionHost>, (usize, String)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or_default();
        let mut words = content.split_whitespace();
        let Some(address) = words.next() else { continue };
        if !words.any(|alias| alias.eq_ignore_ascii_case(name)) {
            continue;
        }
        let host = address.parse().map_err(|error: NameError| (number + 1, error.to_string()))?;
        if found.len() < ADDRESSES_MAX && !found.contains(&host) {
            found.push(host);
        }
    }
    Ok(found)
}

/// The addresses in TXT records; records of others are left alone, as are ours that say nothing.
pub fn hosts_of_txt(texts: &[Vec<u8>]) -> Vec<ScionHost> {
    let mut found: Vec<ScionHost> = Vec::new();
    for text in texts {
        let address = std::str::from_utf8(text).ok().and_then(|text| text.trim().strip_prefix(TXT_PREFIX));
        match address.and_then(|address| address.parse().ok()) {
            Some(host) if found.len() < ADDRESSES_MAX && !found.contains(&host) => found.push(host),
            _ => {}
        }
    }
    found
}

/// RFC 1123 §2.1, and underscores, which labs use. What is an IP address is no name.
fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    text.len() <= 253 && text.split('.').all(label) && text.bytes().any(|b| b.is_ascii_alphabetic())
}

fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}
