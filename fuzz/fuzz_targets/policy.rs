//! Any text as what users write about paths: endpoints, ISD-ASes, ACLs, sequences, preferences and policy files. What is
//! accepted is the same after being written, and an error names a place within the text.
#![no_main]

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::SystemTime;

use anabranch_paths::{
    Acl, Endpoint, Interface, IsdAs, PathFilter, PathIdPrefix, PolicyError, PolicyFile, Preference, ScionPath, Sequence,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    survives_writing::<Endpoint>(&text);
    survives_writing::<IsdAs>(&text);
    survives_writing::<PathIdPrefix>(&text);
    let filter = PathFilter {
        acl: policy::<Acl>(&text),
        sequence: policy::<Sequence>(&text),
        preference: policy::<Preference>(&text),
        ..PathFilter::default()
    };
    let mut paths: Vec<ScionPath> = [0, 1, 3].into_iter().map(path).collect();
    filter.apply(&mut paths, SystemTime::UNIX_EPOCH);
    if let Ok(file) = text.parse::<PolicyFile>() {
        file.filter(IsdAs::default(), None).apply(&mut paths, SystemTime::UNIX_EPOCH);
    }
});

fn survives_writing<T: FromStr + Display + Debug + PartialEq>(text: &str)
where
    T::Err: Debug,
{
    if let Ok(value) = text.parse::<T>() {
        let again: T = value.to_string().parse().expect("our own text");
        assert_eq!(again, value);
    }
}

fn policy<T: FromStr<Err = PolicyError> + Display + Debug + PartialEq>(text: &str) -> Option<T> {
    survives_writing::<T>(text);
    match text.parse::<T>() {
        Ok(policy) => Some(policy),
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.column), "{error}");
            None
        }
    }
}

fn path(links: u16) -> ScionPath {
    let isd_as = |place: u16| IsdAs::new(place % 3, u64::from(place)).unwrap_or_default();
    let ends = |link: u16| {
        [Interface { isd_as: isd_as(link), id: 2 * link }, Interface { isd_as: isd_as(link + 1), id: 2 * link + 1 }]
    };
    ScionPath {
        source: isd_as(0),
        destination: isd_as(links),
        interfaces: (0..links).flat_map(ends).collect(),
        mtu: 1400,
        expiry: SystemTime::UNIX_EPOCH,
        latency: Vec::new(),
        bandwidth_kbps: Vec::new(),
        link_kinds: Vec::new(),
        remarks: Default::default(),
        next_hop: None,
        dataplane: Vec::new(),
    }
}
