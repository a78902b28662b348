//! Which program a peer runs, by its peer id, where that tells why it gets nothing.

/// The program behind a peer id, if it is known to read no hybrid torrents: it takes the link's v1 hash, connects, fetches the
/// metadata and gives up on it without a word.
pub(crate) fn without_hybrid(peer_id: &[u8; 20]) -> Option<String> {
    let id = str::from_utf8(&peer_id[..10]).ok()?;
    // BEP 20's other style: `A2-1-36-0-`.
    if let Some(version) = id.strip_prefix("A2-1-") {
        let minor: u32 = version.split('-').next()?.parse().ok()?;
        return (minor <= ARIA2_MINOR_LAST).then(|| format!("aria2 1.{minor}"));
    }
    // BEP 20: `-TR3000-` is 3.00.
    let version = id.strip_prefix("-TR")?.get(..3)?;
    let version: u32 = version.parse().ok()?;
    let (major, minor) = (version / 100, version % 100);
    (major < TRANSMISSION_MAJOR_FIRST).then(|| format!("Transmission {major}.{minor:02}"))
}

/// The last aria2 1.x that was seen to refuse them.
const ARIA2_MINOR_LAST: u32 = 36;
/// The first Transmission that reads them.
const TRANSMISSION_MAJOR_FIRST: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn found(id: &str) -> Option<String> {
        let mut peer_id = [b'x'; 20];
        peer_id[..id.len()].copy_from_slice(id.as_bytes());
        without_hybrid(&peer_id)
    }

    #[test]
    fn old_clients_are_known_by_their_ids() {
        assert_eq!(found("A2-1-36-0-").as_deref(), Some("aria2 1.36"));
        assert_eq!(found("-TR3000-").as_deref(), Some("Transmission 3.00"));
        assert_eq!(found("-TR2940-").as_deref(), Some("Transmission 2.94"));
        for id in ["A2-1-37-0-", "-TR4050-", "-qB4650-", "-TR", "A2-1-", "-TRX000-", "-LT20B0-", "-TR3é"] {
            assert_eq!(found(id), None, "{id}");
        }
        assert_eq!(without_hybrid(&[0xff; 20]), None);
    }
}
