use proptest::prelude::*;

use super::*;

#[test]
fn both_families_round_trip() {
    for text in ["192.0.2.7:6881", "[2001:db8::7]:6881", "[1-ff00:0:110,10.0.0.1]:80", "[64-559,2001:db8::7]:80"] {
        assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
    }
}

#[test]
fn the_three_scion_forms_are_one_endpoint() {
    let forms = |host: &str, bare: &str| {
        [format!("1-ff00:0:110,{bare}:80"), format!("1-ff00:0:110,[{host}]:80"), format!("[1-ff00:0:110,{host}]:80")]
    };
    for (host, bare) in [("10.0.0.1", "10.0.0.1"), ("2001:db8::1", "[2001:db8::1]"), ("fe80::1%3", "[fe80::1%3]")] {
        for text in forms(host, bare) {
            let endpoint: Endpoint = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(endpoint.to_string(), format!("[1-ff00:0:110,{host}]:80"));
            assert_eq!(endpoint.as_scion().unwrap().isd_as, "1-ff00:0:110".parse().unwrap());
        }
    }
}

#[test]
fn one_host_has_one_identity() {
    assert_eq!("[::ffff:192.0.2.7]:1".parse::<Endpoint>(), "192.0.2.7:1".parse());
    assert_eq!("[1-2,::ffff:192.0.2.7]:1".parse::<Endpoint>(), "[1-2,192.0.2.7]:1".parse());
    // The same host number in two ASes is two hosts.
    assert_ne!("[1-2,192.0.2.7]:1".parse::<Endpoint>(), "[1-3,192.0.2.7]:1".parse());
    assert_ne!("[1-2,192.0.2.7]:1".parse::<Endpoint>(), "192.0.2.7:1".parse());
}

#[test]
fn errors_name_the_input_and_the_remedy() {
    let message = |text: &str| text.parse::<Endpoint>().unwrap_err().to_string();
    assert!(message("192.0.2.7").contains("192.0.2.7:6881"));
    assert!(message("2001:db8::7").contains("[2001:db8::7]:port"));
    assert!(message("nonsense").contains("`nonsense`"));
    assert!(message("192.0.2.7:99999").contains("192.0.2.7:99999"));
    assert!(message("1-ff00:0:110,10.0.0.1").contains("write [1-ff00:0:110,10.0.0.1]:6881"));
    assert!(message("[1-ff00:0:110,10.0.0.1]").contains("write [1-ff00:0:110,10.0.0.1]:6881"));
    assert!(message("1-ff00:0:110,2001:db8::1").contains("write [1-ff00:0:110,2001:db8::1]:6881"));
    assert!(message("1-ff00:0,10.0.0.1:80").contains("`1-ff00:0` is no ISD-AS"));
    assert!(message("0-ff00:0:110,10.0.0.1:80").contains("no single AS"));
    assert!(message("1-0,10.0.0.1:80").contains("no single AS"));
    assert!(message("1-ff00:0:110,mill:80").contains("`mill:80` is no host"));
    assert!(message("1-ff00:0:110,[10.0.0.1]:99999").contains("[10.0.0.1]:99999"));
    assert!(message("[1-ff00:0:110,10.0.0.1:80").contains("`10.0.0.1:80` is no host"));
}

#[test]
fn length_is_bounded_before_anything_is_copied() {
    let longest = format!("{:x>ENDPOINT_TEXT_BYTES_MAX$}", "1-2,");
    assert!(matches!(longest.parse::<Endpoint>(), Err(EndpointError::IsdAs { .. })));
    let over = format!("x{longest}").parse::<Endpoint>().unwrap_err().to_string();
    assert!(over.len() < 2 * ENDPOINT_TEXT_BYTES_MAX + 64 && over.contains("..."), "{over}");
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let host = (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from);
    let isd_as = (1..=u16::MAX, 1..1u64 << 48).prop_filter_map("48 bits", |(isd, asn)| IsdAs::new(isd, asn));
    (prop::option::of(isd_as), host).prop_map(|(isd_as, host)| match isd_as {
        Some(isd_as) => ScionAddr::new(isd_as, host).into(),
        None => host.into(),
    })
}

proptest! {
    #[test]
    fn what_is_printed_parses_to_the_same(endpoint in any_endpoint()) {
        prop_assert_eq!(endpoint.to_string().parse::<Endpoint>(), Ok(endpoint));
    }

    #[test]
    fn any_text_is_an_endpoint_or_an_error_that_shows_it(text in "[\\[\\]0-9a-f:.,%-]{0,40}") {
        match text.parse::<Endpoint>() {
            Ok(endpoint) => prop_assert_eq!(endpoint.to_string().parse::<Endpoint>(), Ok(endpoint)),
            Err(error) => prop_assert!(error.to_string().contains(&text)),
        }
    }
}
