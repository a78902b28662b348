//! Pieces that a choked peer may ask for, so that it gets something to trade with (BEP 6, "allowed fast").

use std::net::Ipv4Addr;

use anabranch_content::hash::sha1;

/// Pieces that are allowed at most; BEP 6 proposes 10.
pub const ALLOWED_FAST_MAX: usize = 10;

/// Hashes spent at most on finding different pieces: a content of few pieces may need several for each, and a content of
/// [`ALLOWED_FAST_MAX`] pieces is all but never done after this many.
const ROUNDS_MAX: usize = 100;

/// The pieces that the peer at `address` is to be sent while choked, `count` of them, fewer where the content is small.
///
/// The set follows from the peer's /24 network and the content alone, so that reconnecting brings no new pieces
/// (BEP 6, "Allowed Fast Set Generation").
pub fn allowed_fast(address: Ipv4Addr, info_hash: &[u8; 20], piece_count: u32, count: usize) -> Vec<u32> {
    let count = count.min(ALLOWED_FAST_MAX).min(piece_count as usize);
    let mut allowed = Vec::with_capacity(count);
    let [a, b, c, _] = address.octets();
    let mut seed = [0; 24];
    seed[..3].copy_from_slice(&[a, b, c]);
    seed[4..].copy_from_slice(info_hash);
    let mut digest = sha1(&seed);
    for _ in 0..ROUNDS_MAX {
        for word in digest.as_chunks::<4>().0 {
            if allowed.len() == count {
                return allowed;
            }
            let piece = u32::from_be_bytes(*word) % piece_count;
            if !allowed.contains(&piece) {
                allowed.push(piece);
            }
        }
        digest = sha1(&digest);
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specification_s_example() {
        let peer = Ipv4Addr::new(80, 4, 4, 200);
        let all = [1059, 431, 808, 1217, 287, 376, 1188, 353, 508];
        assert_eq!(allowed_fast(peer, &[0xaa; 20], 1313, 7), all[..7]);
        assert_eq!(allowed_fast(peer, &[0xaa; 20], 1313, 9), all);
    }

    #[test]
    fn small_contents_are_allowed_whole_and_the_limit_holds() {
        let peer = Ipv4Addr::LOCALHOST;
        assert!(allowed_fast(peer, &[1; 20], 0, 10).is_empty());
        assert_eq!(allowed_fast(peer, &[1; 20], 1, 10), [0]);
        assert_eq!(allowed_fast(peer, &[1; 20], 10, 10).len(), 10);
        assert_eq!(allowed_fast(peer, &[1; 20], 5000, 99).len(), ALLOWED_FAST_MAX);
    }
}
