//! What an Internet Gateway Device says of itself, and what is asked of it (UPnP WANIPConnection:2, WANPPPConnection:1).

use std::net::Ipv4Addr;

use crate::ssdp::Place;
use crate::xml::{Token, Tokens, text_of, unescape};
use crate::{Port, Refusal};

/// Services of one device that may open ports: one for each way out.
const SERVICES_MAX: usize = 4;
/// What our mappings are called.
const DESCRIPTION: &str = "Anabranch";
/// "ConflictInMappingEntry": somebody else has the port outside.
pub(crate) const CONFLICT: u16 = 718;
/// "OnlyPermanentLeasesSupported".
pub(crate) const PERMANENT_ONLY: u16 = 725;

/// Which service opens ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Ip2,
    Ip1,
    Ppp1,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Ip2, Self::Ip1, Self::Ppp1];

    /// Its type, as devices and requests write it.
    fn urn(self) -> &'static str {
        match self {
            Self::Ip2 => "urn:schemas-upnp-org:service:WANIPConnection:2",
            Self::Ip1 => "urn:schemas-upnp-org:service:WANIPConnection:1",
            Self::Ppp1 => "urn:schemas-upnp-org:service:WANPPPConnection:1",
        }
    }
}

/// A service, and where it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    pub kind: Kind,
    pub place: Place,
}

/// The services of a description found at `at` that open ports, the likeliest first.
pub(crate) fn services(document: &str, at: &Place, gateway: Ipv4Addr) -> Result<Vec<Service>, Refusal> {
    // UPnP Device Architecture 1.0, §2.1: references are seen from there, where it is given.
    let base = match text_of(document, "URLBase").filter(|url| !url.is_empty()) {
        Some(url) => Place::of(&url, gateway)?,
        None => at.clone(),
    };
    let (mut found, mut refused) = (Vec::new(), None);
    let (mut within, mut kind, mut control) = ("", None, None);
    for token in Tokens::new(document) {
        match token {
            Token::Open("service") => (kind, control) = (None, None),
            Token::Open(name) => within = name,
            Token::Text(text) if within == "serviceType" => {
                kind = Kind::ALL.into_iter().find(|kind| kind.urn() == text.trim());
            }
            Token::Text(text) if within == "controlURL" => control = Some(unescape(text.trim())),
            Token::Text(_) => {}
            Token::Close("service") => {
                if let (Some(kind), Some(control)) = (kind.take(), control.take()) {
                    match base.join(&control, gateway) {
                        Ok(place) if found.len() < SERVICES_MAX => found.push(Service { kind, place }),
                        Ok(_) => {}
                        Err(refusal) => refused = Some(refusal),
                    }
                }
            }
            Token::Close(_) => within = "",
        }
    }
    found.sort_by_key(|service| service.kind);
    match refused {
        Some(refusal) if found.is_empty() => Err(refusal),
        None if found.is_empty() => Err(Refusal::Unsupported),
        _ => Ok(found),
    }
}

/// What is asked: the header `SOAPAction` and the body.
fn request(kind: Kind, action: &str, arguments: &[(&str, &str)]) -> (String, String) {
    let urn = kind.urn();
    let arguments: String = arguments.iter().map(|(name, value)| format!("<{name}>{value}</{name}>")).collect();
    let body = format!(
        "<?xml version=\"1.0\"?>\r\n<s:Envelope xmlns:s=\"http://schemas.xmlsoap.org/soap/envelope/\" \
         s:encodingStyle=\"http://schemas.xmlsoap.org/soap/encoding/\"><s:Body><u:{action} xmlns:u=\"{urn}\">{arguments}\
         </u:{action}></s:Body></s:Envelope>\r\n"
    );
    (format!("\"{urn}#{action}\""), body)
}

/// Which address has the router outside?
pub(crate) fn ask_address(kind: Kind) -> (String, String) {
    request(kind, "GetExternalIPAddress", &[])
}

/// Opens a port for so many seconds; 0: until it is given back.
pub(crate) fn ask_map(kind: Kind, (port, local): (Port, Ipv4Addr), external: u16, lifetime: u32) -> (String, String) {
    let arguments = [
        ("NewRemoteHost", ""),
        ("NewExternalPort", &external.to_string()),
        ("NewProtocol", &port.protocol.to_string()),
        ("NewInternalPort", &port.number.to_string()),
        ("NewInternalClient", &local.to_string()),
        ("NewEnabled", "1"),
        ("NewPortMappingDescription", DESCRIPTION),
        ("NewLeaseDuration", &lifetime.to_string()),
    ];
    request(kind, "AddPortMapping", &arguments)
}

/// Gives it back.
pub(crate) fn give_back(kind: Kind, port: Port, external: u16) -> (String, String) {
    let arguments = [
        ("NewRemoteHost", ""),
        ("NewExternalPort", &external.to_string()),
        ("NewProtocol", &port.protocol.to_string()),
    ];
    request(kind, "DeletePortMapping", &arguments)
}

/// Whether an answer says that it was done: its text, or why not.
pub(crate) fn answer(status: u16, body: &[u8]) -> Result<&str, Refusal> {
    let text = std::str::from_utf8(body).map_err(|_| Refusal::Nonsense("it is no text"));
    match status {
        200 => text,
        // What is wrong is told in the body, with this status.
        500 => {
            let code = text_of(text?, "errorCode").and_then(|code| code.parse().ok());
            Err(code.map_or(Refusal::Status(status), Refusal::Code))
        }
        _ => Err(Refusal::Status(status)),
    }
}

/// The address in the answer to [`ask_address`].
pub(crate) fn address(text: &str) -> Result<Ipv4Addr, Refusal> {
    let ip = text_of(text, "NewExternalIPAddress").and_then(|ip| ip.parse().ok());
    ip.ok_or(Refusal::Nonsense("no external address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;
    use proptest::prelude::*;

    const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 1);

    fn description(services: &[(&str, &str)], base: &str) -> String {
        let service = |(kind, control): &(&str, &str)| {
            format!(
                "<service>\n<serviceType>\n {kind}\n</serviceType><SCPDURL>/x</SCPDURL><controlURL>{control}</controlURL></service>"
            )
        };
        let services: String = services.iter().map(service).collect();
        format!(
            "<?xml version=\"1.0\"?><root xmlns=\"urn:schemas-upnp-org:device-1-0\">{base}<device><serviceList>{services}</serviceList></device></root>"
        )
    }

    fn found(document: &str) -> Result<Vec<Service>, Refusal> {
        services(document, &Place { port: 5000, target: "/d/desc.xml".into() }, GATEWAY)
    }

    fn service(kind: Kind, port: u16, target: &str) -> Service {
        Service { kind, place: Place { port, target: target.into() } }
    }

    #[test]
    fn services_that_open_ports_are_found_the_likeliest_first() {
        let all = description(
            &[
                ("urn:schemas-upnp-org:service:Layer3Forwarding:1", "/ctl/L3F"),
                ("urn:schemas-upnp-org:service:WANPPPConnection:1", "/ppp?a=1&amp;b"),
                ("urn:schemas-upnp-org:service:WANIPConnection:2", "ip"),
            ],
            "",
        );
        assert_eq!(found(&all), Ok(vec![service(Kind::Ip2, 5000, "/d/ip"), service(Kind::Ppp1, 5000, "/ppp?a=1&b")]));
        let based = description(&[(Kind::Ip1.urn(), "/ip")], "<URLBase>http://192.168.1.1:80</URLBase>");
        assert_eq!(found(&based), Ok(vec![service(Kind::Ip1, 80, "/ip")]));
    }

    #[test]
    fn a_description_leads_nowhere_else() {
        let away = description(&[(Kind::Ip1.urn(), "http://10.0.0.1/admin")], "");
        assert_eq!(found(&away), Err(Refusal::Elsewhere));
        let based = description(&[(Kind::Ip1.urn(), "/ip")], "<URLBase>http://127.0.0.1:631/</URLBase>");
        assert_eq!(found(&based), Err(Refusal::Elsewhere));
        assert_eq!(found("<root/>"), Err(Refusal::Unsupported));
        let many = description(&[(Kind::Ip1.urn(), "/ip"); 50], "");
        assert_eq!(found(&many).unwrap().len(), SERVICES_MAX);
    }

    #[test]
    fn requests_name_the_action_and_answers_say_what_came_of_it() {
        let port = Port { protocol: Protocol::Udp, number: 6881 };
        let (action, body) = ask_map(Kind::Ip1, (port, Ipv4Addr::new(192, 168, 1, 2)), 7000, 3600);
        assert_eq!(action, "\"urn:schemas-upnp-org:service:WANIPConnection:1#AddPortMapping\"");
        for (name, value) in [
            ("NewExternalPort", "7000"),
            ("NewInternalPort", "6881"),
            ("NewProtocol", "UDP"),
            ("NewInternalClient", "192.168.1.2"),
        ] {
            assert_eq!(text_of(&body, name).as_deref(), Some(value));
        }
        let fault = b"<s:Envelope><s:Body><s:Fault><detail><UPnPError><errorCode>718</errorCode></UPnPError></detail></s:Fault></s:Body></s:Envelope>";
        assert_eq!(answer(500, fault), Err(Refusal::Code(CONFLICT)));
        assert_eq!(answer(500, b"<a/>"), Err(Refusal::Status(500)));
        assert_eq!(answer(302, b""), Err(Refusal::Status(302)), "redirects are not followed");
        assert!(matches!(answer(200, b"\xff"), Err(Refusal::Nonsense(_))));
        assert_eq!(
            address("<u:R><NewExternalIPAddress>9.9.9.1</NewExternalIPAddress></u:R>"),
            Ok(Ipv4Addr::new(9, 9, 9, 1))
        );
        assert!(address("<NewExternalIPAddress>router.lan</NewExternalIPAddress>").is_err());
    }

    proptest! {
        #[test]
        fn any_document_is_read_or_refused(document in "(<service>|</service>|<serviceType>|<controlURL>|urn:schemas-upnp-org:service:WANIPConnection:1|/|\\PC){0,40}") {
            if let Ok(services) = found(&document) {
                prop_assert!((1..=SERVICES_MAX).contains(&services.len()));
            }
            let _ = (address(&document), answer(500, document.as_bytes()));
        }
    }
}
