//! A tracker's URL, checked once.
//!
//! Not a general URL parser: only what trackers use. Host names must be ASCII (an international one is written in its
//! `xn--` form), and no user name may stand before the host.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Longest URL accepted. Passkeys make them long, yet servers commonly stop at 8 KiB for the whole request head.
pub const URL_BYTES_MAX: usize = 2048;

/// How a tracker is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// BEP 3 in the clear.
    Http,
    /// BEP 3 over TLS.
    Https,
    /// BEP 15.
    Udp,
}

impl Scheme {
    /// The scheme as it stands in a URL.
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Udp => "udp",
        }
    }
}

/// Why a tracker URL is refused. Whoever wrote the torrent or the command line can mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Longer than [`URL_BYTES_MAX`].
    #[error("the tracker URL has {0} bytes, at most {URL_BYTES_MAX} are accepted")]
    Long(usize),
    /// Neither http, https nor udp.
    #[error("`{0}` is no tracker URL: it must begin with http://, https:// or udp://")]
    Scheme(String),
    /// The host is missing or has characters that no host name has.
    #[error("`{0}` has no usable host name (write international names in their xn-- form)")]
    Host(String),
    /// The port is no number from 1 to 65535, or is missing where the scheme has no default.
    #[error("`{0}` needs a port from 1 to 65535")]
    Port(String),
    /// `user@host`.
    #[error("`{0}` has a user name before the host, which trackers here do not take")]
    User(String),
}

/// A tracker's URL. Displays as it is used: lower-case scheme and host, unprintable bytes percent-encoded, no fragment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrackerUrl {
    scheme: Scheme,
    /// Without brackets.
    host: String,
    port: u16,
    /// Begins with `/`, or is empty.
    path: String,
    /// Without `?`.
    query: String,
}

impl TrackerUrl {
    /// How it is spoken to.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Host name or address, an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port, the scheme's default where the URL has none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The path as sent in a request: at least `/`.
    pub fn path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }

    /// The URL's own query without `?`; empty where there is none.
    pub fn query(&self) -> &str {
        &self.query
    }

    /// What follows the host, as in a request line. `/` when there is nothing.
    pub fn target(&self) -> String {
        let mark = if self.query.is_empty() { "" } else { "?" };
        format!("{}{mark}{}", self.path(), self.query)
    }

    /// Host and, unless it is the default, port: the value of a `Host` header (RFC 9110 §7.2).
    pub fn authority(&self) -> String {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        let host = &self.host;
        match default_port(self.scheme) {
            Some(port) if port == self.port => format!("{open}{host}{close}"),
            _ => format!("{open}{host}{close}:{}", self.port),
        }
    }

    /// Scheme, host and port: names the tracker without the keys that a path or query may hold.
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme.as_str(), self.authority())
    }

    /// What is at `path` below this, whose characters are ones of a path.
    pub fn below(&self, path: &str) -> TrackerUrl {
        TrackerUrl { path: format!("{}{path}", self.path()), ..self.clone() }
    }

    /// The same with `parameters`, which are encoded, behind the URL's own query.
    pub(crate) fn with_query(&self, parameters: &str) -> TrackerUrl {
        let and = if self.query.is_empty() { "" } else { "&" };
        TrackerUrl { query: format!("{}{and}{parameters}", self.query), ..self.clone() }
    }

    /// Where scrapes go, if the URL tells (BEP 48: the last path component begins with `announce`).
    pub fn scrape(&self) -> Option<TrackerUrl> {
        if self.scheme == Scheme::Udp {
            return Some(self.clone());
        }
        let cut = self.path.rfind('/')? + 1;
        let rest = self.path[cut..].strip_prefix("announce")?;
        Some(TrackerUrl { path: format!("{}scrape{rest}", &self.path[..cut]), ..self.clone() })
    }

    /// Where a redirect with this `Location` leads (RFC 3986 §5.2, without dot segments).
    pub fn join(&self, location: &str) -> Result<TrackerUrl, UrlError> {
        if location.contains("://") && !location.starts_with(['/', '?']) {
            return location.parse();
        }
        let scheme = self.scheme.as_str();
        if location.starts_with("//") {
            return format!("{scheme}:{location}").parse();
        }
        let folder = match location.as_bytes().first() {
            Some(b'/') => "",
            Some(b'?') => self.path(),
            _ => &self.path()[..=self.path().rfind('/').unwrap_or(0)],
        };
        format!("{scheme}://{}{folder}{location}", self.authority()).parse()
    }
}

impl fmt::Display for TrackerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.query.is_empty() { "" } else { "?" };
        write!(f, "{}://{}{}{mark}{}", self.scheme.as_str(), self.authority(), self.path, self.query)
    }
}

impl FromStr for TrackerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let text = text.trim();
        if text.len() > URL_BYTES_MAX {
            return Err(UrlError::Long(text.len()));
        }
        let wrong = |kind: fn(String) -> UrlError| kind(text.escape_debug().collect());
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong(UrlError::Scheme))?;
        let scheme = [Scheme::Http, Scheme::Https, Scheme::Udp]
            .into_iter()
            .find(|known| scheme.eq_ignore_ascii_case(known.as_str()))
            .ok_or_else(|| wrong(UrlError::Scheme))?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(wrong(UrlError::User));
        }
        let (host, port) = split_authority(authority).ok_or_else(|| wrong(UrlError::Host))?;
        let port = match port {
            Some(digits) => digits.parse().ok().filter(|port| *port != 0),
            None => default_port(scheme),
        };
        let port = port.ok_or_else(|| wrong(UrlError::Port))?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Ok(TrackerUrl { scheme, host, port, path: printable(path), query: printable(query) })
    }
}

/// BEP 15 names no default port, so a UDP tracker has to say its own.
fn default_port(scheme: Scheme) -> Option<u16> {
    match scheme {
        Scheme::Http => Some(80),
        Scheme::Https => Some(443),
        Scheme::Udp => None,
    }
}

/// Host in lower case, and the port's digits.
fn split_authority(authority: &str) -> Option<(String, Option<&str>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            let address: IpAddr = host.parse().ok()?;
            let port = if port.is_empty() { None } else { Some(port.strip_prefix(':')?) };
            return address.is_ipv6().then(|| (address.to_string(), port));
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    // RFC 1035 §2.3.4: a name has at most 255 bytes.
    let usable = !host.is_empty() && host.len() <= 255 && host.bytes().all(fits);
    usable.then(|| (host.to_ascii_lowercase(), port))
}

/// What cannot stand in a request line gets percent-encoded; `%xx` that is there stays.
fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}') {
            out.push(char::from(byte));
        } else {
            push_percent(&mut out, byte);
        }
    }
    out
}

/// `%xx`.
fn push_percent(out: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(DIGITS[usize::from(byte >> 4)]));
    out.push(char::from(DIGITS[usize::from(byte & 15)]));
}

/// Appends the bytes, percent-encoded but for RFC 3986's unreserved characters.
pub(super) fn push_escaped(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(*byte)),
            other => push_percent(out, *other),
        }
    }
}

/// Undoes percent-encoding. A `+` is a plus sign: hashes are no form data.
pub(super) fn percent_decode(value: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
        out.push(if byte == b'%' { (digit()? << 4 | digit()?) as u8 } else { byte });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn url(text: &str) -> TrackerUrl {
        text.parse().unwrap()
    }

    #[test]
    fn parts_are_found() {
        let parsed = url("HTTP://Tracker.Example:8080/a/announce?k=v#part");
        assert_eq!((parsed.scheme(), parsed.host(), parsed.port()), (Scheme::Http, "tracker.example", 8080));
        assert_eq!((parsed.path(), parsed.query()), ("/a/announce", "k=v"));
        assert_eq!(parsed.to_string(), "http://tracker.example:8080/a/announce?k=v");
    }

    #[test]
    fn defaults_and_ipv6() {
        assert_eq!(url("https://t.example/announce").port(), 443);
        assert_eq!(url("http://t.example").target(), "/");
        let v6 = url("udp://[2001:DB8::1]:6969");
        assert_eq!((v6.host(), v6.authority().as_str()), ("2001:db8::1", "[2001:db8::1]:6969"));
    }

    #[test]
    fn what_cannot_be_sent_is_encoded() {
        assert_eq!(url("http://t.example/ann ounce?näme=%20").target(), "/ann%20ounce?n%C3%A4me=%20");
    }

    #[test]
    fn faults_are_named() {
        let fault = |text: &str| text.parse::<TrackerUrl>().unwrap_err();
        assert!(matches!(fault("wss://t.example/"), UrlError::Scheme(_)));
        assert!(matches!(fault("tracker"), UrlError::Scheme(_)));
        assert!(matches!(fault("http:///announce"), UrlError::Host(_)));
        assert!(matches!(fault("http://[10.0.0.1]/"), UrlError::Host(_)));
        assert!(matches!(fault("http://a b/"), UrlError::Host(_)));
        assert!(matches!(fault("udp://t.example/announce"), UrlError::Port(_)));
        assert!(matches!(fault("http://t.example:0/"), UrlError::Port(_)));
        assert!(matches!(fault("http://t.example:65536/"), UrlError::Port(_)));
        assert!(matches!(fault("http://me:pw@t.example/"), UrlError::User(_)));
    }

    #[test]
    fn length_is_bounded() {
        let base = "http://t.example/";
        let at_limit = format!("{base}{}", "a".repeat(URL_BYTES_MAX - base.len()));
        assert!(at_limit.parse::<TrackerUrl>().is_ok());
        assert_eq!(format!("{at_limit}a").parse::<TrackerUrl>(), Err(UrlError::Long(URL_BYTES_MAX + 1)));
    }

    #[test]
    fn scrape_urls_follow_bep_48() {
        let scrape = |text: &str| url(text).scrape().map(|url| url.to_string());
        assert_eq!(scrape("http://t.example/announce").as_deref(), Some("http://t.example/scrape"));
        assert_eq!(scrape("http://t.example/x/announce.php?a").as_deref(), Some("http://t.example/x/scrape.php?a"));
        assert_eq!(scrape("http://t.example/a").as_deref(), None);
        assert_eq!(scrape("http://t.example/announce?x2%0644").as_deref(), Some("http://t.example/scrape?x2%0644"));
        assert_eq!(scrape("http://t.example/x/announce/y").as_deref(), None);
        assert_eq!(scrape("udp://t.example:1").as_deref(), Some("udp://t.example:1"));
    }

    #[test]
    fn redirects_are_resolved() {
        let base = url("http://t.example:81/a/announce?k");
        let join = |location: &str| base.join(location).unwrap().to_string();
        assert_eq!(join("https://u.example/b"), "https://u.example/b");
        assert_eq!(join("//u.example/b"), "http://u.example/b");
        assert_eq!(join("/b?next=http://x"), "http://t.example:81/b?next=http://x");
        assert_eq!(join("b"), "http://t.example:81/a/b");
        assert_eq!(join("?c"), "http://t.example:81/a/announce?c");
    }

    proptest! {
        #[test]
        fn never_panics_and_prints_what_parses(text in "(http|udp|HTTPS)://\\PC{0,40}|\\PC{0,60}") {
            if let Ok(parsed) = text.parse::<TrackerUrl>() {
                prop_assert_eq!(parsed.to_string().parse::<TrackerUrl>(), Ok(parsed.clone()));
                let _ = (parsed.target(), parsed.scrape());
                if let Ok(joined) = parsed.join(&text) {
                    let _ = joined.to_string();
                }
            }
        }
    }
}
