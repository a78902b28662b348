//! SCION in announces: `ab_scion=ADDRESS` in the query, once for each address, percent-encoded, or once without a value by a
//! client that listens nowhere over SCION; and `ab_used=PATH`, once for each path over which the client moves content. In the
//! UDP form the query is URL data (BEP 41).
//!
//! Both wire forms share it, and trackers of other makes leave parameters that they do not know.

use anabranch_paths::{Endpoint, ScionAddr};

use super::url::{percent_decode, push_escaped};
use super::{AnnounceRequest, SCION_ADDRESSES_MAX};
use crate::compact::is_dialable;
use crate::extension::{IN_USE_KEY, IN_USE_OF_HOST_MAX, InterfaceSequence};

/// The parameter, and the key of HTTP answers.
pub(super) const KEY: &str = "ab_scion";

/// Appends the parameters to a target that may have a query already; nothing where the client does not speak SCION. Paths in
/// use are told as long as the target is no longer than `bytes_max`; addresses matter more, and are told in any case.
pub(super) fn push_query(target: &mut String, request: &AnnounceRequest, bytes_max: usize) {
    let Some(addresses) = &request.scion else { return };
    let mut push = |key: &str, value: &[u8], bytes_max: usize| {
        let before = target.len();
        target.push(if target.contains('?') { '&' } else { '?' });
        target.push_str(key);
        target.push('=');
        push_escaped(target, value);
        if target.len() > bytes_max {
            target.truncate(before);
        }
    };
    if addresses.is_empty() {
        push(KEY, b"", usize::MAX);
    }
    for address in addresses.iter().take(SCION_ADDRESSES_MAX) {
        push(KEY, address.to_string().as_bytes(), usize::MAX);
    }
    for path in request.in_use.iter().take(IN_USE_OF_HOST_MAX) {
        push(IN_USE_KEY, &path.encode(), bytes_max);
    }
}

/// Takes in one path that is in use: what is none, and what is past [`IN_USE_OF_HOST_MAX`], is left out, as it is advice.
pub(super) fn take_in_use(in_use: &mut Vec<InterfaceSequence>, value: &str) {
    let path = percent_decode(value).and_then(|bytes| InterfaceSequence::parse(&bytes));
    if let Some(path) = path.filter(|path| in_use.len() < IN_USE_OF_HOST_MAX && !in_use.contains(path)) {
        in_use.push(path);
    }
}

/// Takes in one parameter's value. Addresses past [`SCION_ADDRESSES_MAX`], those that nobody can dial, and repetitions are
/// left out; `None` where the value is no address.
pub(super) fn take_value(scion: &mut Option<Vec<ScionAddr>>, value: &str) -> Option<()> {
    let addresses = scion.get_or_insert_default();
    let text = String::from_utf8(percent_decode(value)?).ok()?;
    if text.is_empty() {
        return Some(());
    }
    let address: ScionAddr = text.parse().ok()?;
    let is_new = is_dialable(&Endpoint::Scion(address)) && !addresses.contains(&address);
    if is_new && addresses.len() < SCION_ADDRESSES_MAX {
        addresses.push(address);
    }
    Some(())
}

/// What URL data say: addresses, and paths in use. Values that are no address count as left out: a datagram cannot be refused
/// with a reason.
pub(super) fn read_url_data(url_data: &[u8]) -> (Option<Vec<ScionAddr>>, Vec<InterfaceSequence>) {
    let (mut scion, mut in_use) = (None, Vec::new());
    let query = str::from_utf8(url_data).ok().and_then(|text| text.split_once('?')).map_or("", |(_, query)| query);
    for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        if key == KEY {
            let _ = take_value(&mut scion, value);
        } else if key == IN_USE_KEY {
            take_in_use(&mut in_use, value);
        }
    }
    (scion, in_use)
}

#[cfg(test)]
mod tests {
    use anabranch_paths::IsdAs;
    use proptest::prelude::*;

    use super::*;

    fn read(target: &str) -> Option<Vec<ScionAddr>> {
        read_url_data(target.as_bytes()).0
    }

    fn push(target: &mut String, scion: Option<&[ScionAddr]>) {
        push_query(target, &says(scion, &[]), 0);
    }

    fn says(scion: Option<&[ScionAddr]>, in_use: &[InterfaceSequence]) -> AnnounceRequest {
        let request = AnnounceRequest::new([0; 20], [0; 20], 1, super::super::Event::None);
        AnnounceRequest { scion: scion.map(<[ScionAddr]>::to_vec), in_use: in_use.to_vec(), ..request }
    }

    #[test]
    fn addresses_are_written_and_read() {
        let addresses = ["[1-ff00:0:110,10.0.0.1]:6881", "[64-559,2001:db8::1]:80"].map(|text| text.parse().unwrap());
        let mut target = "/announce".to_owned();
        push(&mut target, Some(&addresses));
        let expected = "/announce?ab_scion=%5B1-ff00%3A0%3A110%2C10.0.0.1%5D%3A6881\
            &ab_scion=%5B64-559%2C2001%3Adb8%3A%3A1%5D%3A80";
        assert_eq!(target, expected);
        assert_eq!(read(&target), Some(addresses.to_vec()));
    }

    #[test]
    fn who_listens_nowhere_asks_all_the_same() {
        let mut target = "/a?key=1".to_owned();
        push(&mut target, None);
        assert_eq!((target.as_str(), read(&target)), ("/a?key=1", None));
        push(&mut target, Some(&[]));
        assert_eq!((target.as_str(), read(&target)), ("/a?key=1&ab_scion=", Some(vec![])));
    }

    #[test]
    fn other_forms_are_read_and_what_is_none_left_out() {
        let address = vec!["[1-ff00:0:110,10.0.0.1]:6881".parse().unwrap()];
        for form in ["[1-ff00:0:110,10.0.0.1]:6881", "1-ff00:0:110,10.0.0.1:6881", "1-ff00:0:110,[10.0.0.1]:6881"] {
            assert_eq!(read(&format!("/?ab_scion={form}&ab_scion={form}")), Some(address.clone()), "{form}");
        }
        for none in ["10.0.0.1:6881", "x", "%zz", "%ff", "[0-0,10.0.0.1]:1", "[1-1,10.0.0.1]:0", "[1-1,0.0.0.0]:1"] {
            assert_eq!(read(&format!("/?ab_scion={none}")), Some(vec![]), "{none}");
        }
        assert_eq!(read("/ab_scion=x"), None);
    }

    #[test]
    fn four_addresses_are_the_most() {
        let host = |port| ScionAddr::new(IsdAs::new(1, 7).unwrap(), ([10, 0, 0, 1], port).into());
        let five: Vec<_> = (1..=SCION_ADDRESSES_MAX as u16 + 1).map(host).collect();
        let mut target = String::new();
        push(&mut target, Some(&five));
        assert_eq!(read(&target), Some(five[..SCION_ADDRESSES_MAX].to_vec()));
        assert_eq!(read(&format!("{target}&ab_scion={}", five[SCION_ADDRESSES_MAX])), read(&target));
    }

    #[test]
    fn paths_in_use_are_told_as_far_as_there_is_room() {
        let paths: Vec<_> = (1..=9).map(InterfaceSequence::of_link).collect();
        let mut target = "/a".to_owned();
        push_query(&mut target, &says(Some(&[]), &paths[..1]), 1000);
        let interface = |asn| format!("%00%01%00%00%00%00%00{asn}%00%01");
        assert_eq!(target, format!("/a?ab_scion=&ab_used={}{}", interface("n"), interface("o")));
        let len = target.len();
        for (bytes_max, told) in [(len - 1, 0), (len, 1), (10_000, IN_USE_OF_HOST_MAX)] {
            let mut target = "/a".to_owned();
            push_query(&mut target, &says(Some(&[]), &paths), bytes_max);
            let none = (Some(Vec::new()), paths[..told].to_vec());
            assert_eq!(read_url_data(target.as_bytes()), none, "{bytes_max}");
        }
        // Who does not speak SCION says nothing; what is no path is left out.
        let mut target = "/a".to_owned();
        push_query(&mut target, &says(None, &paths), 1000);
        assert_eq!(target, "/a");
        assert_eq!(read_url_data(b"/a?ab_used=abc&ab_used=%zz&ab_used="), (None, Vec::new()));
    }

    proptest! {
        #[test]
        fn no_url_data_panic(bytes: Vec<u8>, text in "(/\\?|ab_scion=|ab_used=|&|%5B|1-ff00:0:110|,|10\\.0\\.0\\.1|\\]|:80|%){0,12}") {
            let _ = (read_url_data(&bytes), read_url_data(text.as_bytes()));
        }
    }
}
