use std::time::SystemTime;

use proptest::prelude::*;

use super::*;
use crate::testing::path;

const FILE: &str = r#"{
  "destinations": {
    "1-ff00:0:110,10.0.0.2": "host",
    "1-ff00:0:110": "as",
    "2": "isd",
    "0": "default"
  },
  "defaults": { "min_mtu": 1340, "min_validity_sec": 10, "ordering": "hops_asc,meta_latency_asc" },
  "filters": {
    "default": { "acl": ["+ 1-ff00:0:111", "+ 1-ff00:0:112", "- 1", "+"] },
    "host": { "sequence": "1-ff00:0:133#0 1-ff00:0:120#2,1 0 0 1-ff00:0:110#0", "min_mtu": 1400 },
    "as": { "acl": ["- 1-ff00:0:130#0", "+"], "min_mtu": 0, "ordering": "meta_latency_asc" },
    "isd": { "min_meta_bandwidth": 1000000, "min_validity_sec": 120 }
  }
}"#;

fn filter(isd_as: &str, host: Option<&str>) -> PathFilter {
    let file: PolicyFile = FILE.parse().unwrap_or_else(|error| panic!("{error}"));
    file.filter(isd_as.parse().unwrap(), host.map(|host| host.parse().unwrap())).clone()
}

#[test]
fn the_first_destination_that_matches_has_its_filter_over_the_defaults() {
    let host = filter("1-ff00:0:110", Some("10.0.0.2:80"));
    assert_eq!((host.mtu_bytes_min, host.validity_min), (1400, Duration::from_secs(10)));
    assert!(host.sequence.is_some() && host.acl.is_none());
    let other = filter("1-ff00:0:110", Some("10.0.0.3:80"));
    assert_eq!((other.mtu_bytes_min, other.preference), (0, Some("latency".parse().unwrap())));
    assert_eq!(filter("1-ff00:0:110", None).mtu_bytes_min, 0);
    let isd = filter("2-ff00:0:210", None);
    assert_eq!((isd.bandwidth_bytes_min, isd.validity_min), (1_000_000, Duration::from_secs(120)));
    let rest = filter("1-ff00:0:120", Some("10.0.0.2:80"));
    assert_eq!((rest.mtu_bytes_min, rest.preference.clone()), (1340, Some("hops,latency".parse().unwrap())));
    let now = SystemTime::UNIX_EPOCH;
    let mut way = path("1-ff00:0:111 1>2 1-ff00:0:112");
    way.expiry = now + Duration::from_secs(10);
    assert!(rest.allows(&way, now));
    assert!(!rest.allows(&path("1-ff00:0:111 1>2 1-ff00:0:113"), now));
}

#[test]
fn destinations_are_matched_in_the_order_of_the_file() {
    // Any sorted order would try "0-5" before "1".
    let file =
        r#"{"destinations": {"1": "b", "0-5": "a", "0": "b"}, "filters": {"a": {"min_mtu": 1}, "b": {"min_mtu": 2}}}"#;
    let file: PolicyFile = file.parse().unwrap();
    let mtu = |isd_as: &str| file.filter(isd_as.parse().unwrap(), None).mtu_bytes_min;
    assert_eq!((mtu("1-5"), mtu("2-5"), mtu("2-6")), (2, 1, 2));
}

#[test]
fn destination_patterns_have_all_forms() {
    let matches = |pattern: &str, isd_as: &str, host: &str| {
        let pattern: Destination = pattern.parse().unwrap_or_else(|()| panic!("{pattern}"));
        pattern.matches(isd_as.parse().unwrap(), Some(host.parse().unwrap()))
    };
    assert!(matches("1", "1-2", "10.0.0.1:80"));
    assert!(matches("1-0", "1-2", "10.0.0.1:80"));
    assert!(!matches("1-3", "1-2", "10.0.0.1:80"));
    assert!(matches("1-2,10.0.0.1:80", "1-2", "10.0.0.1:80"));
    assert!(matches("1-2,10.0.0.1:0", "1-2", "10.0.0.1:80"));
    assert!(!matches("1-2,10.0.0.1:81", "1-2", "10.0.0.1:80"));
    assert!(matches("1-2,[2001:db8::1]", "1-2", "[2001:db8::1]:80"));
    assert!(matches("1-2,[2001:db8::1]:80", "1-2", "[2001:db8::1]:80"));
    for text in ["", "x", "1,10.0.0.1", "1-2,", "1-2,mill", "1-2,10.0.0.1:x", "1-2-3"] {
        assert!(text.parse::<Destination>().is_err(), "{text}");
    }
}

#[test]
fn errors_name_the_place() {
    let changed = |from: &str, to: &str| {
        let text = FILE.replacen(from, to, 1);
        assert_ne!(text, FILE, "{from}");
        text.parse::<PolicyFile>().unwrap_err().to_string()
    };
    for (from, to, parts) in [
        ("\"- 1\"", "\"- 1-x\"", ["filters.default.acl[2]", "column 5"]),
        ("\"- 1\"", "\"-\"", ["filters.default.acl[3]", "never looked at"]),
        ("0 0 1-ff00:0:110#0", "0 (0 1-ff00:0:110#0", ["filters.host.sequence", "never closed"]),
        ("hops_asc", "hops", ["defaults.ordering", "hops_asc"]),
        ("\"min_mtu\": 1400", "\"min_mtu\": 70000", ["filters.host.min_mtu", "65535"]),
        ("\"min_mtu\": 1400", "\"min_mtu\": \"1400\"", ["filters.host.min_mtu", "whole number"]),
        ("\"min_mtu\": 1400", "\"min_mtu\": -1", ["line 11", "whole number"]),
        ("\"min_mtu\": 1400", "\"min_mtus\": 1", ["filters.host", "`min_mtus` has no meaning"]),
        ("\"host\"", "\"hosts\"", ["destinations.1-ff00:0:110,10.0.0.2", "`hosts`"]),
        ("\"2\"", "\"two\"", ["`two`", "ISD-AS"]),
        ("\"2\"", "\"0\"", ["`0` is given twice", "line 6"]),
        ("\"2\"", "\"0-0\"", ["destinations", "no other"]),
        ("\"0\"", "\"3\"", ["destinations", "\"0\""]),
        ("\"destinations\"", "\"destination\"", ["`destination`", "destinations"]),
        ("\"filters\": {", "\"filters\": {,", ["line", "column"]),
    ] {
        let message = changed(from, to);
        assert!(parts.iter().all(|part| message.contains(part)), "{to}: {message}");
    }
    for text in ["", "[]", "{}", "{\"destinations\": {}, \"filters\": {}}"] {
        assert!(text.parse::<PolicyFile>().is_err(), "{text}");
    }
}

#[test]
fn size_is_bounded() {
    let padded = |len: usize| format!("{FILE}{}", " ".repeat(len - FILE.len())).parse::<PolicyFile>();
    assert!(padded(POLICY_FILE_BYTES_MAX).is_ok());
    assert_eq!(padded(POLICY_FILE_BYTES_MAX + 1), Err(PolicyFileError::TooLong));
    let deep = "[".repeat(200) + &"]".repeat(200);
    assert!(matches!(deep.parse::<PolicyFile>(), Err(PolicyFileError::Json(_))));
}

proptest! {
    #[test]
    fn a_damaged_file_is_read_or_refused(at in 0..FILE.len(), with in "\\PC{0,3}") {
        let end = (at + 1).min(FILE.len());
        let text = format!("{}{with}{}", &FILE[..at], &FILE[end..]);
        if let Ok(file) = text.parse::<PolicyFile>() {
            file.filter(IsdAs::default(), None);
        }
    }
}
