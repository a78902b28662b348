//! Tokens: they show that who announces is where it says, and asked before (BEP 5, "announce_peer").

use std::hash::Hasher;
use std::time::{Duration, Instant};

use anabranch_paths::Endpoint;
use siphasher::sip::SipHasher24;

/// Bytes of a token.
pub(crate) const TOKEN_LEN: usize = 8;
/// BEP 5: "the BitTorrent implementation uses the SHA1 hash of the IP address concatenated onto a secret that changes every five minutes and
/// tokens up to ten minutes old are accepted".
const SECRET_CHANGES_EVERY: Duration = Duration::from_secs(5 * 60);

/// What nobody else can make or guess, from one secret.
#[derive(Debug)]
pub(crate) struct Tokens {
    key: [u8; 16],
    began: Instant,
}

impl Tokens {
    pub(crate) fn new(key: [u8; 16], now: Instant) -> Self {
        Self { key, began: now }
    }

    /// For whoever is at `address`, whichever its port.
    pub(crate) fn of(&self, address: &Endpoint, now: Instant) -> [u8; TOKEN_LEN] {
        self.at(address, self.period(now))
    }

    /// Whether `token` is one of the last two periods' for `address`.
    pub(crate) fn is_valid(&self, token: &[u8], address: &Endpoint, now: Instant) -> bool {
        let period = self.period(now);
        (period.saturating_sub(1)..=period).any(|period| self.at(address, period) == token)
    }

    fn period(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / SECRET_CHANGES_EVERY.as_secs()
    }

    fn at(&self, address: &Endpoint, period: u64) -> [u8; TOKEN_LEN] {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write_u64(period);
        hasher.write_u64(address.as_scion().map_or(0, |scion| scion.isd_as.to_u64()));
        match address.ip() {
            std::net::IpAddr::V4(ip) => hasher.write(&ip.octets()),
            std::net::IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        hasher.finish().to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_holds_for_its_host_and_its_time() {
        let now = Instant::now();
        let tokens = Tokens::new([3; 16], now);
        let address: Endpoint = "192.0.2.1:1".parse().unwrap();
        let token = tokens.of(&address, now);
        assert!(tokens.is_valid(&token, &"192.0.2.1:2".parse().unwrap(), now));
        assert!(!tokens.is_valid(&token, &"192.0.2.2:1".parse().unwrap(), now));
        assert!(!tokens.is_valid(&token, &"[1-ff00:0:110,192.0.2.1]:1".parse().unwrap(), now));
        assert!(!tokens.is_valid(&token[1..], &address, now) && !tokens.is_valid(b"", &address, now));
        let late = 2 * SECRET_CHANGES_EVERY;
        assert!(tokens.is_valid(&token, &address, now + late - Duration::from_secs(1)));
        assert!(!tokens.is_valid(&token, &address, now + late));
        assert_ne!(token, Tokens::new([4; 16], now).of(&address, now));
    }
}
