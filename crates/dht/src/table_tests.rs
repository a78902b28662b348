use super::*;
use std::net::{Ipv4Addr, SocketAddr};

use proptest::prelude::*;

const OWN: NodeId = NodeId([0; 20]);

/// In a network of its own, with a name that shares `bits` with ours; secure where that is asked for and possible.
fn contact(number: u32, bits: usize) -> Contact {
    let address = SocketAddr::from((Ipv4Addr::from_bits(0x1400_0000 + (number << 8)), 6881)).into();
    Contact { id: OWN.at_depth(bits, &mut fastrand::Rng::with_seed(u64::from(number))), address }
}

/// With a name that its address may have, in the first bucket: half of all are.
fn secure(number: u32) -> Contact {
    let mut rng = fastrand::Rng::with_seed(u64::from(number));
    (0u8..=255)
        .map(|salt| {
            let address = contact(number, 0).address;
            Contact { id: NodeId::secure(&address, salt, &mut rng), address }
        })
        .find(|contact| contact.id.shared_bits(&OWN) == 0)
        .expect("one of eight has the first bit set")
}

fn full(now: Instant) -> Table {
    let mut table = Table::new(OWN, now);
    // Two buckets, so that the first one is not split.
    (0..BUCKET_LEN as u32).for_each(|number| assert_eq!(table.answered(contact(1000 + number, 1), now), Entered::In));
    (0..BUCKET_LEN as u32).for_each(|number| assert_eq!(table.answered(secure(number), now), Entered::In));
    table
}

#[test]
fn the_bucket_that_we_are_in_splits_and_others_do_not() {
    let now = Instant::now();
    let mut table = full(now);
    assert_eq!(table.answered(secure(50), now), Entered::StandsBy(None));
    assert_eq!(table.len(), 2 * BUCKET_LEN);
    for number in 0..BUCKET_LEN as u32 {
        assert_eq!(table.answered(contact(2000 + number, 9), now), Entered::In);
    }
    let nearest = table.nearest(&OWN, 3, now);
    assert!(nearest.iter().all(|contact| contact.id.shared_bits(&OWN) == 9), "{nearest:?}");
    assert_eq!(table.nearest(&OWN, 100, now).len(), 3 * BUCKET_LEN);
}

#[test]
fn a_bad_node_gives_its_place_to_one_that_stands_by() {
    let (now, later) = (Instant::now(), Instant::now() + FRESH_FOR);
    let mut table = full(now);
    assert_eq!(table.answered(secure(50), later), Entered::StandsBy(Some(secure(0))));
    table.failed(&secure(0));
    assert!(table.nearest_usable(&secure(0).id, 1) == [secure(0)], "one failure is an accident");
    table.failed(&secure(0));
    assert_eq!(table.nearest_usable(&secure(0).id, 100).iter().filter(|held| **held == secure(0)).count(), 0);
    assert!(table.nearest_usable(&secure(50).id, 1) == [secure(50)]);
    // Nobody stands by: bad ones stay a while, and are told to nobody.
    (0..FAILURES_MAX - 1).for_each(|_| table.failed(&secure(1)));
    assert!(table.find(&secure(1)).is_some() && !table.nearest_usable(&OWN, 100).contains(&secure(1)));
    table.failed(&secure(1));
    assert!(table.find(&secure(1)).is_none());
}

#[test]
fn names_that_an_address_may_not_have_give_way() {
    let now = Instant::now();
    let mut table = full(now);
    let unfit = contact(50, 0);
    assert_eq!(table.answered(unfit, now), Entered::Refused, "the bucket is full of better ones");
    let mut table = Table::new(OWN, now);
    for number in 0..BUCKET_LEN as u32 {
        table.answered(contact(1000 + number, 1), now);
        table.answered(contact(number, 0), now);
    }
    assert!(table.asked(secure(50), now) && !table.asked(contact(51, 0), now));
    assert_eq!(table.answered(secure(50), now), Entered::In);
    assert_eq!(table.len(), 2 * BUCKET_LEN);
}

#[test]
fn an_address_has_one_place_and_a_network_two_of_a_bucket() {
    let now = Instant::now();
    let mut table = Table::new(OWN, now);
    let at = |ip: &str, port: u16, bits: usize, seed: u64| Contact {
        id: OWN.at_depth(bits, &mut fastrand::Rng::with_seed(seed)),
        address: format!("{ip}:{port}").parse().unwrap(),
    };
    assert_eq!(table.answered(at("20.0.0.1", 1, 0, 1), now), Entered::In);
    assert_eq!(table.answered(at("20.0.0.1", 2, 3, 2), now), Entered::In);
    assert_eq!(table.len(), 1, "the host has another name now");
    assert_eq!(table.answered(at("20.0.0.2", 1, 3, 3), now), Entered::In);
    assert_eq!(table.answered(at("20.0.0.3", 1, 3, 4), now), Entered::Refused);
    assert!(!table.asked(at("20.0.0.3", 1, 3, 4), now));
    // Local networks are their users' own, and each program of this machine is one.
    for port in 1..=5 {
        assert_eq!(table.answered(at("127.0.0.1", port, 4, u64::from(port)), now), Entered::In);
        assert_eq!(table.answered(at(&format!("10.0.0.{port}"), 1, 5, u64::from(port) + 9), now), Entered::In);
    }
    // Somebody else has this name.
    let taken = Contact { id: at("20.0.0.2", 1, 3, 3).id, address: "30.0.0.1:1".parse().unwrap() };
    assert_eq!(table.answered(taken, now), Entered::Refused);
    assert_eq!(table.answered(Contact { id: OWN, ..taken }, now), Entered::Refused);
}

#[test]
fn who_is_silent_is_asked_and_buckets_are_refreshed() {
    let (now, mut rng) = (Instant::now(), fastrand::Rng::with_seed(1));
    assert_eq!(Table::new(OWN, now).deadline(), None, "an empty table has nobody to ask");
    let mut table = full(now);
    assert_eq!(table.deadline(), Some(now + FRESH_FOR));
    assert_eq!((table.questionable(now, |_| true), table.refresh(&mut rng, now)), (None, None));
    let later = now + FRESH_FOR;
    assert!(table.nearest(&OWN, 8, later).is_empty());
    let target = table.refresh(&mut rng, later).unwrap();
    assert_eq!(target.shared_bits(&OWN), 0);
    let asked = table.questionable(later, |_| true).unwrap();
    assert_eq!(table.answered(asked, later), Entered::In);
    assert!(!table.asked(secure(3), later), "it is known, and good by this");
    assert!(table.nearest(&OWN, 8, later).len() == 2);
}

#[test]
fn another_name_of_ours_keeps_the_nodes() {
    let now = Instant::now();
    let mut table = full(now);
    table.rename(NodeId([0xff; 20]), now);
    assert_eq!((table.own(), table.len()), (NodeId([0xff; 20]), 2 * BUCKET_LEN));
}

proptest! {
    #[test]
    fn whatever_comes_the_table_holds_together(steps in prop::collection::vec((0u8..3, 0u32..600, 0usize..20), 0..600)) {
        let start = Instant::now();
        let mut table = Table::new(OWN, start);
        for (at, (kind, number, bits)) in steps.into_iter().enumerate() {
            let now = start + Duration::from_secs(at as u64 * 7);
            match kind {
                0 | 1 => {
                    table.answered(contact(number, bits), now);
                }
                _ => table.failed(&contact(number, bits)),
            }
            let held: usize = table.buckets.iter().map(|bucket| bucket.nodes.len() + bucket.spare.len()).sum();
            prop_assert_eq!(held, table.places.len());
            prop_assert!(table.buckets.iter().all(|bucket| bucket.nodes.len() <= BUCKET_LEN && bucket.spare.len() <= BUCKET_LEN));
            for (depth, bucket) in table.buckets.iter().enumerate() {
                for node in &bucket.nodes {
                    prop_assert_eq!(table.bucket_of(&node.contact.id), depth);
                }
            }
        }
    }
}
