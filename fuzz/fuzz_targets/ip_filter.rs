//! Any bytes as a list of whom to block, and a filter made of it.
#![no_main]

use anabranch_bittorrent::ip_filter::{IpFilter, Rule, parse_list};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let list = parse_list(data);
    assert!(list.unread.len() <= list.unread_count);
    let filter = IpFilter::new(list.rules.iter().copied());
    assert!(filter.len() <= list.rules.len());
    for rule in &list.rules {
        assert_eq!(rule.to_string().parse::<Rule>().as_ref(), Ok(rule));
        match rule {
            Rule::V4(first, last) => assert!([first, last].iter().all(|ip| filter.blocks_ip((**ip).into()))),
            // What stands for IPv4 is none of IPv6's business.
            Rule::V6(first, last) => {
                let mut ends = [first, last].into_iter().filter(|ip| ip.to_ipv4_mapped().is_none());
                assert!(ends.all(|ip| filter.blocks_ip((*ip).into())));
            }
            Rule::Scion(..) => {}
        }
    }
});
