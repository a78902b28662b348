//! What a peer calls itself, so that its connections are known as one peer's.

use anabranch_content::hash::sha256;

/// What keeps the hash from meaning anything elsewhere.
const DOMAIN: &[u8] = b"anabranch peer identity v1\0";

/// The name by which one peer is known to one other, over all its addresses and paths (`ab_id` in the extension handshake).
///
/// It is made of a secret of the sender and of the receiver's peer id, so that every peer gets another one: nobody but the two
/// knows it, so nobody else can use up the one's credit, or lie in its name, by repeating what it heard. What it cannot do
/// is to prove anything to a receiver whose own peer id somebody else shows around; the key of a QUIC connection proves it,
/// and goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerIdentity(pub [u8; 32]);

impl PeerIdentity {
    /// What we call ourselves to the peer that says `their_peer_id` of itself.
    pub fn ours(secret: &[u8; 32], info_hash: &[u8; 20], their_peer_id: &[u8; 20]) -> Self {
        Self(sha256(&[DOMAIN, secret, info_hash, their_peer_id].concat()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_secret_content_and_peer_makes_another_name() {
        let names = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]
            .map(|(secret, hash, peer)| PeerIdentity::ours(&[secret; 32], &[hash; 20], &[peer; 20]));
        assert_eq!(names[0], PeerIdentity::ours(&[1; 32], &[1; 20], &[1; 20]));
        (1..4).for_each(|at| (0..at).for_each(|other| assert_ne!(names[at], names[other])));
    }
}
