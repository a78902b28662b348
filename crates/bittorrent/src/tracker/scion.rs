//! SCION addresses in announces: `ab_scion=ADDRESS` in the query, once for each address, percent-encoded, or once without
//! a value by a client that listens nowhere over SCION. In the UDP form the query is URL data (BEP 41).
//!
//! Both wire forms share it, and trackers of other makes leave parameters that they do not know.

use anabranch_paths::{Endpoint, ScionAddr};

use super::SCION_ADDRESSES_MAX;
use super::url::{percent_decode, push_escaped};
use crate::compact::is_dialable;

/// The parameter, and the key of HTTP answers.
pub(super) const KEY: &str = "ab_scion";

/// Appends the parameters to a target that may have a query already; nothing where `scion` is `None`.
pub(super) fn push_query(target: &mut String, scion: Option<&[ScionAddr]>) {
    let Some(addresses) = scion else { return };
    let mut push = |value: &str| {
        target.push(if target.contains('?') { '&' } else { '?' });
        target.push_str(KEY);
        target.push('=');
        push_escaped(target, value.as_bytes());
    };
    if addresses.is_empty() {
        push("");
    }
    addresses.iter().take(SCION_ADDRESSES_MAX).for_each(|address| push(&address.to_string()));
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

/// What URL data say. Values that are no address count as left out: a datagram cannot be refused with a reason.
pub(super) fn read_url_data(url_data: &[u8]) -> Option<Vec<ScionAddr>> {
    let text = str::from_utf8(url_data).ok()?;
    let (_, query) = text.split_once('?')?;
    let mut scion = None;
    for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        if key == KEY {
            let _ = take_value(&mut scion, value);
        }
    }
    scion
}

#[cfg(test)]
mod tests {
    use anabranch_paths::IsdAs;
    use proptest::prelude::*;

    use super::*;

    fn read(target: &str) -> Option<Vec<ScionAddr>> {
        read_url_data(target.as_bytes())
    }

    #[test]
    fn addresses_are_written_and_read() {
        let addresses = ["[1-ff00:0:110,10.0.0.1]:6881", "[64-559,2001:db8::1]:80"].map(|text| text.parse().unwrap());
        let mut target = "/announce".to_owned();
        push_query(&mut target, Some(&addresses));
        let expected = "/announce?ab_scion=%5B1-ff00%3A0%3A110%2C10.0.0.1%5D%3A6881\
            &ab_scion=%5B64-559%2C2001%3Adb8%3A%3A1%5D%3A80";
        assert_eq!(target, expected);
        assert_eq!(read(&target), Some(addresses.to_vec()));
    }

    #[test]
    fn who_listens_nowhere_asks_all_the_same() {
        let mut target = "/a?key=1".to_owned();
        push_query(&mut target, None);
        assert_eq!((target.as_str(), read(&target)), ("/a?key=1", None));
        push_query(&mut target, Some(&[]));
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
        push_query(&mut target, Some(&five));
        assert_eq!(read(&target), Some(five[..SCION_ADDRESSES_MAX].to_vec()));
        assert_eq!(read(&format!("{target}&ab_scion={}", five[SCION_ADDRESSES_MAX])), read(&target));
    }

    proptest! {
        #[test]
        fn no_url_data_panic(bytes: Vec<u8>, text in "(/\\?|ab_scion=|&|%5B|1-ff00:0:110|,|10\\.0\\.0\\.1|\\]|:80|%){0,12}") {
            let _ = (read_url_data(&bytes), read_url_data(text.as_bytes()));
        }
    }
}
