//! How a router of UPnP is asked where its description is (UPnP Device Architecture 1.1, §1.3), and where one may be.
//!
//! The search goes to the router alone, not to the whole network: §1.3.2 has devices answer that.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::Refusal;

/// Where devices listen.
pub(crate) const PORT: u16 = 1900;
/// Longest place that is believed.
const TARGET_LEN_MAX: usize = 1024;
const HTTP: &str = "http://";

/// The search. Devices of version 2 answer to 1, too.
pub(crate) fn search(gateway: Ipv4Addr) -> Vec<u8> {
    format!(
        "M-SEARCH * HTTP/1.1\r\nHOST: {gateway}:{PORT}\r\nMAN: \"ssdp:discover\"\r\nMX: 1\r\n\
         ST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\n\r\n"
    )
    .into_bytes()
}

/// Somewhere at the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub port: u16,
    /// What stands in the request line.
    pub target: String,
}

/// Where the description is that the answer to a search tells of; `None` where it is no such answer.
pub(crate) fn parse(datagram: &[u8], gateway: Ipv4Addr) -> Option<Result<Place, Refusal>> {
    let text = std::str::from_utf8(datagram).ok()?;
    let mut lines = text.lines();
    let status = lines.next()?;
    if !status.starts_with("HTTP/1.") || status.split_ascii_whitespace().nth(1) != Some("200") {
        return None;
    }
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    let (_, place) = fields.find(|(name, _)| name.trim().eq_ignore_ascii_case("location"))?;
    Some(Place::of(place.trim(), gateway))
}

impl Place {
    /// What `url` names, if that is at the router's own address: a router has no business with anybody else's, and must not send us there.
    pub(crate) fn of(url: &str, gateway: Ipv4Addr) -> Result<Self, Refusal> {
        let is_http = url.get(..HTTP.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(HTTP));
        let rest = if is_http { &url[HTTP.len()..] } else { return Err(Refusal::Elsewhere) };
        let path_at = rest.find('/').unwrap_or(rest.len());
        let (host, target) = rest.split_at(path_at);
        let address = match host.parse::<SocketAddrV4>() {
            Ok(address) => address,
            Err(_) => SocketAddrV4::new(host.parse().map_err(|_| Refusal::Elsewhere)?, 80),
        };
        if *address.ip() != gateway || address.port() == 0 {
            return Err(Refusal::Elsewhere);
        }
        Self { port: address.port(), target: if target.is_empty() { "/".to_owned() } else { target.to_owned() } }
            .checked()
    }

    /// What `reference` names, seen from here.
    pub(crate) fn join(&self, reference: &str, gateway: Ipv4Addr) -> Result<Self, Refusal> {
        if reference.contains("://") {
            return Self::of(reference, gateway);
        }
        let target = if reference.starts_with('/') {
            reference.to_owned()
        } else {
            let folder = self.target.rfind('/').map_or("/", |end| &self.target[..=end]);
            format!("{folder}{reference}")
        };
        Self { port: self.port, target }.checked()
    }

    fn checked(self) -> Result<Self, Refusal> {
        let fits = self.target.len() <= TARGET_LEN_MAX && self.target.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(self) } else { Err(Refusal::Nonsense("an address that cannot be asked for")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 1);

    fn place(port: u16, target: &str) -> Place {
        Place { port, target: target.to_owned() }
    }

    #[test]
    fn an_answer_tells_where_the_description_is() {
        let answer =
            b"HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\nLocation:http://192.168.1.1:5555/rootDesc.xml\r\n\r\n";
        assert_eq!(parse(answer, GATEWAY), Some(Ok(place(5555, "/rootDesc.xml"))));
        let other: [&[u8]; 4] = [
            b"HTTP/1.1 404 No\r\nLocation: http://192.168.1.1/\r\n",
            b"NOTIFY * HTTP/1.1\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b"\xff",
        ];
        for other in other {
            assert_eq!(parse(other, GATEWAY), None);
        }
    }

    #[test]
    fn nothing_but_the_router_itself_is_asked() {
        for (url, port, target) in
            [("http://192.168.1.1", 80, "/"), ("HTTP://192.168.1.1:49152/a/b?c=d", 49152, "/a/b?c=d")]
        {
            assert_eq!(Place::of(url, GATEWAY), Ok(place(port, target)), "{url}");
        }
        for url in [
            "http://192.168.1.2/",
            "http://127.0.0.1:8080/",
            "http://169.254.169.254/latest",
            "http://router.lan/",
            "http://192.168.1.1@10.0.0.1/",
            "http://192.168.1.1:0/",
            "http://[::ffff:192.168.1.1]/",
            "http://192.168.1.1.example.org/",
            "https://192.168.1.1/",
            "file:///etc/passwd",
            "//192.168.1.1/",
            "",
        ] {
            assert_eq!(Place::of(url, GATEWAY), Err(Refusal::Elsewhere), "{url}");
        }
        let here = place(5000, "/upnp/desc.xml");
        assert_eq!(here.join("/ctl", GATEWAY), Ok(place(5000, "/ctl")));
        assert_eq!(here.join("ctl", GATEWAY), Ok(place(5000, "/upnp/ctl")));
        assert_eq!(here.join("http://192.168.1.1:80/ctl", GATEWAY), Ok(place(80, "/ctl")));
        assert_eq!(here.join("http://10.0.0.1/ctl", GATEWAY), Err(Refusal::Elsewhere));
        for bad in ["/a b", "/a\r\nX: y", "/ü", &"/a".repeat(600)] {
            assert!(matches!(here.join(bad, GATEWAY), Err(Refusal::Nonsense(_))), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_believed_makes_a_request_line(url in "(http://192\\.168\\.1\\.1)?\\PC{0,60}", datagram: Vec<u8>) {
            let _ = parse(&datagram, GATEWAY);
            for place in [Place::of(&url, GATEWAY), place(80, "/d").join(&url, GATEWAY)].into_iter().flatten() {
                prop_assert!(place.target.starts_with('/') && place.target.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
