//! Where to find peers and seeds, as far as a torrent says.

use super::limits::{URL_BYTES_MAX, URLS_MAX};
use crate::bencode::Value;

/// Trackers in tiers (BEP 12, "announce-list"), or else the one in `announce`. Unusable URLs are left out.
pub(crate) fn trackers(metainfo: Value<'_>) -> Vec<Vec<String>> {
    let mut left = URLS_MAX;
    let mut tiers = Vec::new();
    for tier in metainfo.get("announce-list").and_then(|tiers| tiers.as_list()).into_iter().flatten() {
        let urls = tier.as_list().into_iter().flatten().filter_map(|url| tracker_url(url.as_bytes()?));
        let urls: Vec<_> = urls.take(left).collect();
        left -= urls.len();
        if !urls.is_empty() {
            tiers.push(urls);
        }
    }
    if tiers.is_empty() {
        let announce = metainfo.get("announce").and_then(|url| tracker_url(url.as_bytes()?));
        tiers.extend(announce.map(|url| vec![url]));
    }
    tiers
}

/// A tracker's URL, if it is one that can be asked. No spaces or control characters: they would end up in a request.
pub(crate) fn tracker_url(raw: &[u8]) -> Option<String> {
    let url = std::str::from_utf8(raw).ok()?.trim();
    let usable = url.len() <= URL_BYTES_MAX && !url.contains(|c: char| c.is_control() || c == ' ');
    (usable && has_scheme(url, &["http://", "https://", "udp://"])).then(|| url.to_owned())
}

/// Web seeds under `key`, a string or a list of strings (BEP 19, "url-list"; BEP 17, "httpseeds"), each once.
pub(crate) fn web_seeds(metainfo: Value<'_>, key: &str) -> Vec<String> {
    let Some(value) = metainfo.get(key) else { return Vec::new() };
    let single = value.as_bytes().into_iter();
    let several = value.as_list().into_iter().flatten().filter_map(|url| url.as_bytes());
    let mut urls: Vec<String> = Vec::new();
    for url in single.chain(several).take(URLS_MAX).filter_map(web_seed_url) {
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls
}

/// Whether `text` is the address of a web seed, as it stands.
pub fn is_web_seed(text: &str) -> bool {
    web_seed_url(text.as_bytes()).is_some_and(|url| url == text)
}

/// A web seed's URL, with what may not stand in an URL percent-encoded; the limit counts that.
pub(crate) fn web_seed_url(raw: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(raw).ok()?.trim();
    if text.len() > URL_BYTES_MAX || !has_scheme(text, &["http://", "https://"]) {
        return None;
    }
    let mut url = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            0x21..=0x7e if !b"\"<>\\^`{|}".contains(&byte) => url.push(char::from(byte)),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    (url.len() <= URL_BYTES_MAX).then_some(url)
}

/// DHT nodes (BEP 5, "nodes"): pairs of host and port.
pub(crate) fn nodes(metainfo: Value<'_>) -> Vec<(String, u16)> {
    let nodes = metainfo.get("nodes").and_then(|nodes| nodes.as_list()).into_iter().flatten();
    let node = |node: Value<'_>| {
        let mut parts = node.as_list()?;
        let host = parts.next()?.as_str().filter(|host| !host.is_empty() && host.len() <= URL_BYTES_MAX)?;
        let port = parts.next()?.as_uint().and_then(|port| u16::try_from(port).ok())?;
        Some((host.to_owned(), port))
    };
    nodes.filter_map(node).take(URLS_MAX).collect()
}

/// Whether a host follows one of `schemes`.
fn has_scheme(url: &str, schemes: &[&str]) -> bool {
    schemes.iter().any(|scheme| {
        let head = url.get(..scheme.len());
        head.is_some_and(|head| head.eq_ignore_ascii_case(scheme))
            && !url[scheme.len()..].starts_with(['/', '?', '#'])
            && url.len() > scheme.len()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_seeds_are_measured_as_they_are_kept() {
        let base = "http://w.example/";
        let plain = "x".repeat(URL_BYTES_MAX - base.len());
        assert!(web_seed_url(format!("{base}{plain}").as_bytes()).is_some());
        assert!(web_seed_url(format!("{base}{plain}x").as_bytes()).is_none());
        assert!(web_seed_url(format!("{base}{}\"", &plain[3..]).as_bytes()).is_some());
        assert!(web_seed_url(format!("{base}{}\"", &plain[2..]).as_bytes()).is_none());
    }
}
