//! What a peer calls itself, and how it proves it, so that its connections are known as one peer's.
//!
//! A name is worth nothing by itself: whoever calls a peer in another's name hears by what name that peer is known to the
//! other, and could say it there. So the name is the public half of an Ed25519 key, and counts once a signature over a fresh
//! [`Challenge`] shows that the other half is at the far end of this very connection. A signature could be passed on by
//! somebody in the middle who calls both; so it also covers what its maker sees at the other end ([`SeenAs`]), which over a
//! detour is the one in the middle. Who cannot check that (behind a NAT one's own address is another one outside) leaves the
//! name unproven.

use std::net::IpAddr;

use anabranch_content::hash::sha256;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

/// What keeps the keys and the signatures from meaning anything elsewhere.
const NAME_DOMAIN: &[u8] = b"anabranch peer identity v2\0";
const CHALLENGE_DOMAIN: &[u8] = b"anabranch peer challenge v2\0";
const PROOF_DOMAIN: &[u8] = b"anabranch peer proof v2\0";

/// Bytes of a challenge: nobody sees the same one twice.
pub const CHALLENGE_LEN: usize = 16;
/// Bytes of a proof: an Ed25519 signature (RFC 8032).
pub const PROOF_LEN: usize = 64;

/// The name by which one peer is known to one other, over all its addresses and paths (`ab_id` in the extension handshake).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerIdentity(pub [u8; 32]);

/// What a peer has to sign (`ab_nonce`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge(pub [u8; CHALLENGE_LEN]);

/// The signature (`ab_proof`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityProof(pub [u8; PROOF_LEN]);

/// What tells the other end of a connection from everybody else, as this end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenAs {
    /// The key that its transport proved.
    Key([u8; 32]),
    /// Its address. Ports are left out: they are many hosts' to choose.
    Host(IpAddr),
}

/// Our own name towards one peer, with what proves it.
pub(crate) struct OwnName(Ed25519KeyPair);

impl OwnName {
    /// What we call ourselves to the peer that says `their_peer_id` of itself. It follows from a secret of ours, so that every
    /// peer and every content gets another name and nobody can link them.
    pub(crate) fn new(secret: &[u8; 32], info_hash: &[u8; 20], their_peer_id: &[u8; 20]) -> Option<Self> {
        let seed = sha256(&[NAME_DOMAIN, secret, info_hash, their_peer_id].concat());
        // Every 32 bytes are an Ed25519 key; the type does not know.
        Ed25519KeyPair::from_seed_unchecked(&seed).ok().map(Self)
    }

    /// The name.
    pub(crate) fn identity(&self) -> Option<PeerIdentity> {
        self.0.public_key().as_ref().try_into().ok().map(PeerIdentity)
    }

    /// Proves the name to who asked with `challenge` and is seen here as `other`.
    pub(crate) fn prove(&self, challenge: Challenge, other: SeenAs) -> Option<IdentityProof> {
        self.0.sign(&statement(challenge, other)).as_ref().try_into().ok().map(IdentityProof)
    }
}

impl PeerIdentity {
    /// Whether `proof` shows that the far end of a connection has this name: it answers `challenge`, and sees us as `us`.
    pub fn is_proven_by(&self, proof: &IdentityProof, challenge: Challenge, us: SeenAs) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(&statement(challenge, us), &proof.0).is_ok()
    }
}

impl Challenge {
    /// The challenge for the connection of this number, which nobody can foresee who does not have the secret. `seed` is another
    /// one in every run.
    pub(crate) fn new(secret: &[u8; 32], seed: u64, number: u32) -> Self {
        let hash = sha256(&[CHALLENGE_DOMAIN, secret, &seed.to_be_bytes(), &number.to_be_bytes()].concat());
        let (first, _) = hash.split_first_chunk().unwrap_or((&[0; CHALLENGE_LEN], &[]));
        Self(*first)
    }
}

/// What is signed.
fn statement(challenge: Challenge, seen: SeenAs) -> Vec<u8> {
    let (kind, seen) = match seen {
        SeenAs::Key(key) => (b"key\0", key.to_vec()),
        SeenAs::Host(IpAddr::V4(ip)) => (b"ip4\0", ip.octets().to_vec()),
        SeenAs::Host(IpAddr::V6(ip)) => (b"ip6\0", ip.octets().to_vec()),
    };
    [PROOF_DOMAIN, &challenge.0, kind, &seen].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(secret: u8, hash: u8, peer: u8) -> OwnName {
        OwnName::new(&[secret; 32], &[hash; 20], &[peer; 20]).unwrap()
    }

    #[test]
    fn every_secret_content_and_peer_makes_another_name() {
        let names = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)];
        let names = names.map(|(secret, hash, peer)| name(secret, hash, peer).identity().unwrap());
        assert_eq!(names[0], name(1, 1, 1).identity().unwrap());
        (1..4).for_each(|at| (0..at).for_each(|other| assert_ne!(names[at], names[other])));
    }

    #[test]
    fn a_proof_holds_for_one_name_one_challenge_and_one_receiver() {
        let (challenge, other) = (Challenge::new(&[1; 32], 5, 1), Challenge::new(&[1; 32], 5, 2));
        let us = ["192.0.2.1", "2001:db8::1"].map(|ip| SeenAs::Host(ip.parse().unwrap()));
        let us = [us[0], us[1], SeenAs::Key([7; 32]), SeenAs::Key([8; 32])];
        let (honest, thief) = (name(1, 1, 1), name(2, 1, 1));
        let identity = honest.identity().unwrap();
        for (at, seen) in us.into_iter().enumerate() {
            let proof = honest.prove(challenge, seen).unwrap();
            for (against, us) in us.into_iter().enumerate() {
                assert_eq!(identity.is_proven_by(&proof, challenge, us), at == against);
                assert!(!identity.is_proven_by(&proof, other, us));
                assert!(!identity.is_proven_by(&thief.prove(challenge, us).unwrap(), challenge, us));
            }
        }
    }

    #[test]
    fn challenges_differ_by_run_and_by_connection() {
        let all = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)];
        let all = all.map(|(secret, seed, number)| Challenge::new(&[secret; 32], seed, number));
        (1..4).for_each(|at| (0..at).for_each(|other| assert_ne!(all[at], all[other])));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_as_key_and_signature_prove_nothing(key: [u8; 32], first: [u8; 32], second: [u8; 32]) {
            let proof = [first, second].concat().try_into().map(IdentityProof).unwrap();
            let us = SeenAs::Host(std::net::Ipv4Addr::LOCALHOST.into());
            proptest::prop_assert!(!PeerIdentity(key).is_proven_by(&proof, Challenge([0; CHALLENGE_LEN]), us));
        }
    }
}
