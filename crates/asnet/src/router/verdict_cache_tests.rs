use anabranch_scion_wire::{Address, PathRef, Ports, Service};
use proptest::prelude::*;

use super::super::test_network::*;
use super::*;

fn down(port: u16, payload: &[u8]) -> Vec<u8> {
    let path = down_core1_to_a();
    let to = Address::new(ia(A), host(A, 9));
    packet_to(CORE1, to, PathRef::Standard(path.view()), Ports { source: 31_001, destination: port }, payload)
}

/// Both ways to judge a packet agree, in verdict and bytes.
#[track_caller]
fn agree(cache: &mut VerdictCache, rules: &Arc<Forwarder>, packet: &[u8], ingress: Ingress, now: u64) -> Verdict {
    let (mut one, mut other) = (packet.to_vec(), packet.to_vec());
    let (mut reply, mut other_reply) = (Reply::default(), Reply::default());
    let verdict = cache.process(rules, &mut one, ingress, now, &mut reply);
    assert_eq!(verdict, rules.process(&mut other, ingress, now, &mut other_reply));
    assert_eq!(one, other);
    if matches!(verdict, Verdict::Reply(_)) {
        assert_eq!(reply.packet(), other_reply.packet());
    }
    verdict
}

#[test]
fn repeated_headers_get_the_same_verdict_until_they_expire() {
    let rules = Arc::new(forwarder(CORE1));
    let mut cache = VerdictCache::default();
    let expiry = u64::from(MADE_S) * 1000 + 64 * 337_500;
    for (payload, now) in [(&b"one"[..], NOW_MS), (b"another", NOW_MS), (b"", expiry)] {
        let verdict = agree(&mut cache, &rules, &down(31_000, payload), Ingress::Internal, now);
        assert_eq!(verdict, Verdict::Forward(2));
        assert!(cache.repeat(&rules, &mut down(31_000, payload), now).is_some(), "the next one is quick");
    }
    agree(&mut cache, &rules, &down(31_000, b""), Ingress::Internal, expiry + 1);
}

#[test]
fn each_packet_finds_its_own_port() {
    let rules = Arc::new(forwarder(A));
    let mut cache = VerdictCache::default();
    for port in [31_000, 31_001, 80, 31_000] {
        let mut sent = down(port, b"x");
        judge(CORE1, &mut sent, Ingress::Internal);
        let verdict = agree(&mut cache, &rules, &sent, Ingress::Interface(1), NOW_MS);
        let expected = if port == 80 { 30_041 } else { port };
        assert_eq!(verdict, Verdict::Deliver(SocketAddr::new(host(A, 9), expected)));
    }
    // A datagram whose length is wrong is judged in full.
    let mut sent = down(31_000, b"x");
    judge(CORE1, &mut sent, Ingress::Internal);
    let udp_len = sent.len() - 1 - 3;
    sent[udp_len] ^= 1;
    agree(&mut cache, &rules, &sent, Ingress::Interface(1), NOW_MS);
}

#[test]
fn services_keep_their_own_port() {
    let rules = Arc::new(forwarder(A));
    let mut cache = VerdictCache::default();
    for _ in 0..2 {
        let path = down_core1_to_a();
        let to = Address::new(ia(A), Service::CONTROL);
        let mut sent = packet_to(CORE1, to, PathRef::Standard(path.view()), PORTS, b"");
        judge(CORE1, &mut sent, Ingress::Internal);
        let verdict = agree(&mut cache, &rules, &sent, Ingress::Interface(1), NOW_MS);
        assert_eq!(verdict, Verdict::Deliver(SocketAddr::new(host(A, 2), 30_252)));
    }
}

#[test]
fn changed_rules_are_asked_anew() {
    let rules = Arc::new(forwarder(CORE1));
    let mut cache = VerdictCache::default();
    agree(&mut cache, &rules, &down(31_000, b""), Ingress::Internal, NOW_MS);
    let mut changed = Forwarder::clone(&rules);
    changed.interface_mut(2).unwrap().is_up = false;
    let changed = Arc::new(changed);
    let verdict = agree(&mut cache, &changed, &down(31_000, b""), Ingress::Internal, NOW_MS);
    assert!(matches!(verdict, Verdict::Reply(Some(_))));
}

#[test]
fn sizes_are_looked_at_for_each_packet() {
    let rules = Arc::new(forwarder(CORE1));
    let mut cache = VerdictCache::default();
    agree(&mut cache, &rules, &down(31_000, b""), Ingress::Internal, NOW_MS);
    // Beyond the MTU, and with a length that lies.
    assert!(matches!(
        agree(&mut cache, &rules, &down(31_000, &[0; 1500]), Ingress::Internal, NOW_MS),
        Verdict::Reply(Some(_))
    ));
    agree(&mut cache, &rules, &down(31_000, b""), Ingress::Internal, NOW_MS);
    let lying = [down(31_000, b""), vec![0]].concat();
    assert!(matches!(agree(&mut cache, &rules, &lying, Ingress::Internal, NOW_MS), Verdict::Reply(Some(_))));
}

proptest! {
    // Whatever is changed in the second packet: the cache must not vouch for what a full look would refuse.
    #[test]
    fn the_cache_never_disagrees(
        at in 0..120_usize, flip: u8, inside: bool, now_far: bool, mut noise in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let (asn, ingress) = if inside { (CORE1, Ingress::Internal) } else { (A, Ingress::Interface(1)) };
        let rules = Arc::new(forwarder(asn));
        let mut cache = VerdictCache::default();
        let mut sent = down(31_000, b"payload");
        if !inside {
            judge(CORE1, &mut sent, Ingress::Internal);
        }
        agree(&mut cache, &rules, &sent, ingress, NOW_MS);
        let place = at % sent.len();
        sent[place] ^= flip;
        let now = if now_far { NOW_MS + (1 << 40) } else { NOW_MS };
        agree(&mut cache, &rules, &sent, ingress, now);
        agree(&mut cache, &rules, &noise, ingress, now);
        noise.splice(0..0, sent.iter().copied());
        agree(&mut cache, &rules, &noise, ingress, now);
    }
}
