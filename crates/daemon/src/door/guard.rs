//! Whether a request means this host, and comes from where it says: what keeps other web pages out. Pure.
//!
//! A page elsewhere may have its own name lead here (DNS rebinding): its requests go by that name, and only addresses, `localhost` and
//! the names that the user gave are served. It may send requests here with the user's cookies (CSRF): browsers say where those come
//! from (`Origin`, `Sec-Fetch-Site`), and what comes from elsewhere is refused. Programs say neither, and show a token.

use std::net::IpAddr;

use hyper::header::{HOST, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, Uri};

/// Why a request is not for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// It means another host.
    Host,
    /// It comes from another site.
    Origin,
}

/// The host that a request means, as it names it.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    uri.authority().map(Authority::as_str).or_else(|| headers.get(HOST)?.to_str().ok())
}

/// Whether a request is for us, who go by `names` beside addresses.
pub(crate) fn check(method: &Method, uri: &Uri, headers: &HeaderMap, names: &[String]) -> Result<(), Foreign> {
    let host = host(uri, headers).filter(|_| headers.get_all(HOST).iter().count() <= 1).ok_or(Foreign::Host)?;
    if !is_ours(host, names) {
        return Err(Foreign::Host);
    }
    let mut origins = headers.get_all(ORIGIN).iter();
    if let Some(origin) = origins.next() {
        let site = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, site)| site);
        if origins.next().is_some() || !site.is_some_and(|site| site.eq_ignore_ascii_case(host)) {
            return Err(Foreign::Origin);
        }
    }
    let fetch = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // A link elsewhere may lead to the page; nothing else is asked for from elsewhere.
    let is_visit = *method == Method::GET && uri.path() == "/" && fetch("sec-fetch-mode") == Some("navigate");
    match fetch("sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) if is_visit => Ok(()),
        Some(_) => Err(Foreign::Origin),
    }
}

/// Whether a host is us: an address, `localhost`, or one of `names`.
fn is_ours(host: &str, names: &[String]) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    bare.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|ours| ours.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn judge(method: Method, uri: &str, fields: &[(&str, &str)]) -> Result<(), Foreign> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        check(&method, &uri.parse().unwrap(), &headers, &["nas.example".to_owned()])
    }

    #[test]
    fn only_our_names_are_served() {
        for host in [
            "127.0.0.1:6880",
            "127.0.0.1",
            "[::1]:6880",
            "[::1]",
            "localhost",
            "LocalHost:1",
            "192.0.2.5:1",
            "nas.example:80",
            "NAS.example",
        ] {
            assert_eq!(judge(Method::GET, "/api", &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:6880",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            "nas.example.evil",
            "[::1",
            "x:y",
        ] {
            assert_eq!(judge(Method::GET, "/api", &[("host", host)]), Err(Foreign::Host), "{host}");
        }
        assert_eq!(judge(Method::GET, "/api", &[]), Err(Foreign::Host));
        assert_eq!(judge(Method::GET, "/api", &[("host", "127.0.0.1"), ("host", "evil.example")]), Err(Foreign::Host));
        assert_eq!(judge(Method::GET, "http://evil.example/api", &[("host", "127.0.0.1")]), Err(Foreign::Host));
    }

    #[test]
    fn what_comes_from_elsewhere_is_refused() {
        let with = |fields: &[(&str, &str)]| {
            judge(Method::POST, "/api/v1/contents", &[&[("host", "127.0.0.1:6880")], fields].concat())
        };
        assert_eq!(with(&[]), Ok(()));
        assert_eq!(with(&[("origin", "http://127.0.0.1:6880"), ("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(with(&[("origin", "https://127.0.0.1:6880")]), Ok(()), "behind a proxy that speaks TLS");
        for origin in
            ["http://evil.example", "null", "http://127.0.0.1:80", "http://localhost:6880", "127.0.0.1:6880", ""]
        {
            assert_eq!(with(&[("origin", origin)]), Err(Foreign::Origin), "{origin}");
        }
        let twice = [("origin", "http://127.0.0.1:6880"), ("origin", "http://evil.example")];
        assert_eq!(with(&twice), Err(Foreign::Origin));
        for site in ["cross-site", "same-site", "nonsense"] {
            assert_eq!(with(&[("sec-fetch-site", site)]), Err(Foreign::Origin), "{site}");
        }
        let visit = [("host", "127.0.0.1:6880"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert_eq!(judge(Method::GET, "/", &visit), Ok(()));
        assert_eq!(judge(Method::GET, "/api/v1/contents", &visit), Err(Foreign::Origin));
        assert_eq!(judge(Method::POST, "/", &visit), Err(Foreign::Origin));
    }
}
