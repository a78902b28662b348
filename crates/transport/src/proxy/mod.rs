//! Connections through a proxy: SOCKS5, or HTTP's CONNECT.
//!
//! Whoever has a proxy wants nothing to go past it. What is TCP goes through; names go through as they are, so that this machine's
//! name server never hears them. Datagrams have a way where the proxy relays them ([`UdpRelay`]); else their callers leave it.

mod udp;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_socks::tcp::Socks5Stream;

pub(crate) use udp::Association;
pub use udp::{HEADER_LEN_MAX as UDP_HEADER_LEN_MAX, Source as UdpSource, UdpRelay, UdpTarget, parse as parse_relayed};

/// Longest head of a proxy's answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest name or password (RFC 1929 §2).
const CREDENTIAL_BYTES_MAX: usize = 255;
/// Longest host name (RFC 1035 §2.3.4).
const HOST_BYTES_MAX: usize = 255;
/// Where HTTP's proxies, and those of SOCKS, are by custom (RFC 1928 §3).
const PORTS: [(Kind, u16); 2] = [(Kind::Http, 8080), (Kind::Socks5, 1080)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// RFC 1928.
    Socks5,
    /// RFC 9110 §9.3.6.
    Http,
}

/// A proxy, and how to be admitted by it.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    kind: Kind,
    host: String,
    port: u16,
    /// User and password.
    credentials: Option<(String, String)>,
}

/// Where a connection through a proxy leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// An address.
    Address(SocketAddr),
    /// A host's name and port: the proxy looks it up.
    Name(&'a str, u16),
}

/// Why a text names no proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// Another scheme, or none.
    #[error(
        "`{0}` is no proxy: write socks5://HOST:PORT or http://HOST:PORT, with USER:PASSWORD@ before the host where the proxy asks for them"
    )]
    Form(String),
    /// No host, or no port.
    #[error("`{0}` names no host and port to connect to")]
    Host(String),
    /// A user or password that cannot be sent.
    #[error(
        "the proxy's user and password take 1 to {CREDENTIAL_BYTES_MAX} bytes each; write special characters as %xx"
    )]
    Credentials,
}

impl FromStr for Proxy {
    type Err = ProxyError;

    fn from_str(text: &str) -> Result<Self, ProxyError> {
        // The password is nobody's business.
        let shown = || text.rsplit_once('@').map_or(text, |(_, host)| host).chars().take(80).collect::<String>();
        let (scheme, rest) = text.split_once("://").ok_or_else(|| ProxyError::Form(shown()))?;
        let kind = match scheme.to_ascii_lowercase().as_str() {
            "socks5" | "socks5h" => Kind::Socks5,
            "http" => Kind::Http,
            _ => return Err(ProxyError::Form(shown())),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (credentials, address) = match rest.rsplit_once('@') {
            Some((credentials, address)) => (Some(parse_credentials(credentials)?), address),
            None => (None, rest),
        };
        let (host, port) = parse_address(address, kind).ok_or_else(|| ProxyError::Host(shown()))?;
        Ok(Self { kind, host, port, credentials })
    }
}

fn parse_credentials(text: &str) -> Result<(String, String), ProxyError> {
    let (user, password) = text.split_once(':').ok_or(ProxyError::Credentials)?;
    let decode = |text: &str| {
        let mut bytes = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            bytes.push(if byte == b'%' { (digit()? << 4 | digit()?) as u8 } else { byte });
        }
        String::from_utf8(bytes).ok().filter(|text| (1..=CREDENTIAL_BYTES_MAX).contains(&text.len()))
    };
    decode(user).zip(decode(password)).ok_or(ProxyError::Credentials)
}

fn parse_address(text: &str, kind: Kind) -> Option<(String, u16)> {
    let usual = PORTS.into_iter().find(|(other, _)| *other == kind).map(|(_, port)| port);
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some(digits) => digits.parse().ok().filter(|port| *port != 0)?,
        None => usual?,
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    ((1..=HOST_BYTES_MAX).contains(&host.len()) && host.bytes().all(fits)).then(|| (host.to_owned(), port))
}

impl fmt::Display for Proxy {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.kind == Kind::Socks5 { "socks5" } else { "http" };
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}://{open}{}{close}:{}", self.host, self.port)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

impl Proxy {
    /// Opens a connection through the proxy. The caller bounds the time.
    ///
    /// # Errors
    /// Where the proxy cannot be reached, or does not go there; the error names the proxy.
    pub async fn connect(&self, target: Target<'_>) -> io::Result<TcpStream> {
        let failed = |error: &dyn fmt::Display| io::Error::other(format!("the proxy {self}: {error}"));
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let mut stream = stream.map_err(|error| failed(&format_args!("it cannot be reached: {error}")))?;
        match self.kind {
            Kind::Socks5 => self.connect_socks(stream, target).await.map_err(|error| failed(&error)),
            Kind::Http => {
                self.connect_http(&mut stream, target).await.map_err(|error| failed(&error))?;
                Ok(stream)
            }
        }
    }

    async fn connect_socks(&self, stream: TcpStream, target: Target<'_>) -> Result<TcpStream, tokio_socks::Error> {
        let target = match target {
            Target::Address(address) => tokio_socks::TargetAddr::Ip(address),
            Target::Name(host, port) => tokio_socks::TargetAddr::Domain(host.into(), port),
        };
        let connected = match &self.credentials {
            Some((user, password)) => {
                Socks5Stream::connect_with_password_and_socket(stream, target, user, password).await?
            }
            None => Socks5Stream::connect_with_socket(stream, target).await?,
        };
        Ok(connected.into_inner())
    }

    /// RFC 9110 §9.3.6: behind the head of a successful answer, the stream is the target's.
    async fn connect_http(&self, stream: &mut TcpStream, target: Target<'_>) -> io::Result<()> {
        stream.write_all(self.connect_head(target).as_bytes()).await?;
        let mut head = Vec::new();
        // Byte by byte, so that nothing of what follows the head is taken.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= HEAD_BYTES_MAX {
                return Err(io::Error::other("its answer is no HTTP head"));
            }
            head.push(stream.read_u8().await?);
        }
        match status(&head) {
            Some(200..=299) => Ok(()),
            Some(407) => {
                Err(io::Error::other("it wants a user and a password, or others: write http://USER:PASSWORD@HOST:PORT"))
            }
            Some(status) => Err(io::Error::other(format!("it refuses with HTTP status {status}"))),
            None => Err(io::Error::other("its answer is no HTTP")),
        }
    }

    fn connect_head(&self, target: Target<'_>) -> String {
        let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some((user, password)) = &self.credentials {
            // RFC 7617.
            head += &format!("Proxy-Authorization: Basic {}\r\n", base64(format!("{user}:{password}").as_bytes()));
        }
        head + "\r\n"
    }

    /// Whether a target's host is one that only the proxy's own machine or network has. Names that the proxy looks up cannot be
    /// judged otherwise.
    pub fn is_local_name(host: &str) -> bool {
        const LOCAL: [&str; 6] = ["localhost", "local", "internal", "lan", "home.arpa", "intranet"];
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let is_below =
            |domain: &str| host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
        host.parse::<IpAddr>().is_err() && (!host.contains('.') || LOCAL.into_iter().any(is_below))
    }
}

/// The status code of an answer (RFC 9112 §4).
fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let rest = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "))?;
    let digits = rest.get(..3).filter(|_| rest.get(3).is_none_or(|byte| *byte == b' '))?;
    digits.iter().try_fold(0, |value: u16, digit| digit.is_ascii_digit().then(|| value * 10 + u16::from(digit - b'0')))
}

/// RFC 4648 §4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().enumerate().fold(0u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        for at in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::net::TcpListener;

    #[test]
    fn proxies_are_read_and_shown_without_their_password() {
        for (text, shown) in [
            ("socks5://127.0.0.1:9050", "socks5://127.0.0.1:9050"),
            ("SOCKS5H://proxy.example", "socks5://proxy.example:1080"),
            ("http://user:p%40ss@[2001:db8::1]:3128/", "http://[2001:db8::1]:3128"),
            ("http://proxy", "http://proxy:8080"),
        ] {
            let proxy: Proxy = text.parse().unwrap();
            assert_eq!((proxy.to_string(), format!("{proxy:?}")), (shown.to_owned(), format!("Proxy({shown})")));
        }
        let proxy: Proxy = "http://user:p%40ss@h:1".parse().unwrap();
        assert_eq!(proxy.credentials, Some(("user".into(), "p@ss".into())));
        let head = proxy.connect_head(Target::Name("t.example", 80));
        assert_eq!(
            head,
            "CONNECT t.example:80 HTTP/1.1\r\nHost: t.example:80\r\nProxy-Authorization: Basic dXNlcjpwQHNz\r\n\r\n"
        );
        for bad in [
            "127.0.0.1:9050",
            "https://h:1",
            "socks4://h:1",
            "socks5://",
            "socks5://h:0",
            "http://u@h:1",
            "http://a b:1",
            "http://[::1",
            "http://u:%zz@h:1",
        ] {
            let error = bad.parse::<Proxy>().unwrap_err().to_string();
            assert!(!error.contains("u@") && !error.contains("%zz"), "{error}");
        }
    }

    #[test]
    fn base64_has_the_vectors_of_its_specification() {
        // RFC 4648 §10.
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn names_of_the_own_network_are_known() {
        for near in [
            "localhost",
            "LocalHost.",
            "a.localhost",
            "printer",
            "nas.local",
            "db.internal",
            "router.lan",
            "x.home.arpa",
        ] {
            assert!(Proxy::is_local_name(near), "{near}");
        }
        for far in ["tracker.example", "notlocal.example", "xlocal.org", "192.0.2.1", "2001:db8::1"] {
            assert!(!Proxy::is_local_name(far), "{far}");
        }
    }

    #[tokio::test]
    async fn nothing_behind_the_head_is_lost_and_refusals_are_told() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy: Proxy = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let answer = async |text: &'static [u8]| {
            let serving = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 512];
                let _ = stream.read(&mut request).await;
                stream.write_all(text).await.unwrap();
            };
            tokio::join!(proxy.connect(Target::Address(([192, 0, 2, 1], 80).into())), serving).0
        };
        let mut stream = answer(b"HTTP/1.1 200 Connection established\r\nX: y\r\n\r\nbytes").await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"bytes");
        for (text, needle) in [
            (&b"HTTP/1.1 403 No\r\n\r\n"[..], "status 403"),
            (b"HTTP/1.0 407 Who\r\n\r\n", "USER:PASSWORD"),
            (b"SSH-2.0-x\r\n\r\n", "no HTTP"),
            (b"HTTP/1.1 20", "the proxy http://127.0.0.1"),
        ] {
            let error = answer(text).await.unwrap_err().to_string();
            assert!(error.contains(needle), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(socks5|http)://\\PC{0,40}|\\PC{0,40}") {
            if let Ok(proxy) = text.parse::<Proxy>() {
                let again = proxy.to_string().parse::<Proxy>();
                prop_assert_eq!(again, Ok(Proxy { credentials: None, ..proxy }));
            }
        }

        #[test]
        fn any_head_has_a_status_or_none(head: Vec<u8>) {
            let _ = status(&head);
        }
    }
}
