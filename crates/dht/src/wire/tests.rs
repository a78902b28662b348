use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::family::{Contact, Family};
use crate::id::NodeId;

fn message(datagram: &[u8], then: impl FnOnce(Message<'_>)) {
    parse(datagram, |parsed| match parsed {
        Parsed::Message(message) => then(message),
        Parsed::Refused { refusal, .. } => panic!("{refusal}"),
    })
    .unwrap();
}

fn refused(datagram: &[u8]) -> Refusal {
    parse(datagram, |parsed| match parsed {
        Parsed::Message(message) => panic!("{message:?}"),
        Parsed::Refused { refusal, .. } => refusal,
    })
    .unwrap()
}

const ID: NodeId = NodeId(*b"abcdefghij0123456789");

#[test]
fn the_examples_of_the_specification_are_read_and_written() {
    // BEP 5.
    for (datagram, ask) in [
        (&b"d1:ad2:id20:abcdefghij0123456789e1:q4:ping1:t2:aa1:y1:qe"[..], Ask::Ping),
        (
            b"d1:ad2:id20:abcdefghij01234567896:target20:mnopqrstuvwxyz123456e1:q9:find_node1:t2:aa1:y1:qe",
            Ask::FindNode { target: NodeId(*b"mnopqrstuvwxyz123456") },
        ),
        (
            b"d1:ad2:id20:abcdefghij01234567899:info_hash20:mnopqrstuvwxyz123456e1:q9:get_peers1:t2:aa1:y1:qe",
            Ask::GetPeers { info_hash: NodeId(*b"mnopqrstuvwxyz123456"), no_seeds: false, scrape: false },
        ),
    ] {
        let query = Query { id: ID, want: None, ask };
        assert_eq!(Message::query(b"aa", query.clone()).encode(), datagram);
        message(datagram, |message| assert_eq!(message.body, Body::Query(query)));
    }
    let announce = b"d1:ad2:id20:abcdefghij012345678912:implied_porti1e9:info_hash20:mnopqrstuvwxyz1234564:porti6881e5:token8:aoeusnthe1:q13:announce_peer1:t2:aa1:y1:qe";
    message(announce, |message| {
        let ask = Ask::AnnouncePeer {
            info_hash: NodeId(*b"mnopqrstuvwxyz123456"),
            port: None,
            seed: false,
            token: b"aoeusnth",
        };
        assert_eq!(message.body, Body::Query(Query { id: ID, want: None, ask }));
    });
    let peers = b"d1:rd2:id20:abcdefghij01234567895:token8:aoeusnth6:valuesl6:axje.u6:idhtnmee1:t2:aa1:y1:re";
    message(peers, |message| {
        let Body::Answer(answer) = message.body else { panic!() };
        assert_eq!((answer.token, answer.values.len()), (Some(&b"aoeusnth"[..]), 2));
        assert_eq!(answer.values[0], "97.120.106.101:11893".parse().unwrap());
    });
    let error = b"d1:eli201e23:A Generic Error Ocurrede1:t2:aa1:y1:ee";
    message(error, |message| {
        assert_eq!(message.body, Body::Error { code: 201, text: b"A Generic Error Ocurred" });
        assert_eq!(message.encode(), error);
    });
}

#[test]
fn wrong_queries_are_refused_with_the_reason_and_what_is_none_is_left() {
    let with = |arguments: &str, method: &str| {
        format!("d1:ad2:id20:abcdefghij0123456789{arguments}e1:q{}:{method}1:t2:aa1:y1:qe", method.len()).into_bytes()
    };
    assert_eq!(refused(&with("", "nonsense")), Refusal::Unknown);
    assert_eq!(refused(&with("", "find_node")), Refusal::Protocol("target"));
    assert_eq!(refused(&with("6:target3:abc", "find_node")), Refusal::Protocol("target"));
    assert_eq!(refused(b"d1:q4:ping1:t2:aa1:y1:qe"), Refusal::Protocol("a"));
    let hash = "9:info_hash20:mnopqrstuvwxyz123456";
    for port in ["", "4:porti0e", "4:porti65536e", "4:porti-1e"] {
        assert_eq!(refused(&with(&format!("{hash}{port}5:token1:a"), "announce_peer")), Refusal::Protocol("port"));
    }
    let long = "x".repeat(1000);
    assert_eq!(refused(&with(&format!("5:token1:a1:v1000:{long}"), "put")), Refusal::TooBig);
    let key = "k".repeat(32);
    let salted = format!("1:k32:{key}4:salt65:{}3:seqi1e5:token1:a1:v1:x", "s".repeat(65));
    assert_eq!(refused(&with(&salted, "put")), Refusal::Salt);
    let unsigned = format!("1:k32:{key}3:seqi1e5:token1:a1:v1:x");
    assert_eq!(refused(&with(&unsigned, "put")), Refusal::Protocol("sig"));
    for nothing in
        [&b""[..], b"x", b"de", b"d1:t2:aae", b"d1:t2:aa1:y1:xe", b"d1:t2:aa1:y1:re", b"d1:rde1:t2:aa1:y1:re"]
    {
        assert!(parse(nothing, |_| ()).is_err());
    }
    // A number that is longer than anybody's would be carried for nothing.
    for (len, is_read) in [(TRANSACTION_LEN_MAX, true), (TRANSACTION_LEN_MAX + 1, false)] {
        let number = vec![b'n'; len];
        let ping = Message::query(&number, Query { id: ID, want: None, ask: Ask::Ping }).encode();
        assert_eq!(parse(&ping, |_| ()).is_ok(), is_read);
    }
}

#[test]
fn of_long_lists_so_much_is_taken() {
    let contact = |at: u8| Contact { id: NodeId([at; 20]), address: format!("192.0.2.{}:1", at + 1).parse().unwrap() };
    let mut answer = Answer::new(ID);
    answer.nodes = (0..CONTACTS_MAX as u8 + 1).map(contact).collect();
    answer.values = (0..=u8::MAX).map(|at| format!("192.0.{at}.1:1").parse().unwrap()).collect();
    let encoded = |answer: Answer<'_>| {
        let body = Body::Answer(Box::new(answer));
        Message { transaction: b"aa", version: None, your_address: None, read_only: false, body }.encode()
    };
    let taken = |datagram: &[u8], check: &dyn Fn(&Answer<'_>)| {
        message(datagram, |message| {
            let Body::Answer(answer) = message.body else { panic!() };
            check(&answer);
        });
    };
    let mut short = answer.clone();
    short.values.truncate(100);
    taken(&encoded(short), &|answer| assert_eq!((answer.nodes.len(), answer.values.len()), (CONTACTS_MAX, 100)));
    answer.nodes.clear();
    answer.values.truncate(210);
    taken(&encoded(answer), &|answer| assert_eq!(answer.values.len(), VALUES_MAX));
}

fn id() -> impl Strategy<Value = NodeId> {
    any::<[u8; 20]>().prop_map(NodeId)
}

fn address() -> impl Strategy<Value = Endpoint> {
    let port = 1..=u16::MAX;
    prop_oneof![
        (1u32..0xe000_0000, port.clone()).prop_map(|(ip, port)| std::net::SocketAddr::from((
            std::net::Ipv4Addr::from_bits(ip),
            port
        ))
        .into()),
        (0x2000u128 << 112..0x4000 << 112, port.clone()).prop_map(|(ip, port)| std::net::SocketAddr::from((
            std::net::Ipv6Addr::from_bits(ip),
            port
        ))
        .into()),
        (1u64..1 << 40, 1u32..0xe000_0000, port).prop_map(|(asn, ip, port)| {
            let host = std::net::SocketAddr::from((std::net::Ipv4Addr::from_bits(ip), port));
            anabranch_paths::ScionAddr::new(anabranch_paths::IsdAs::from_u64(1 << 48 | asn), host).into()
        }),
    ]
}

fn contacts() -> impl Strategy<Value = Vec<Contact>> {
    let all = vec((id(), address()).prop_map(|(id, address)| Contact { id, address }), 0..9);
    // As they stand in a message: by family.
    all.prop_map(|mut all| {
        all.sort_by_key(|contact| Family::of(&contact.address));
        all
    })
}

fn ask() -> impl Strategy<Value = Ask<'static>> {
    let leak = |bytes: Vec<u8>| -> &'static [u8] { Box::leak(bytes.into_boxed_slice()) };
    prop_oneof![
        Just(Ask::Ping),
        id().prop_map(|target| Ask::FindNode { target }),
        (id(), any::<bool>(), any::<bool>()).prop_map(|(info_hash, no_seeds, scrape)| Ask::GetPeers {
            info_hash,
            no_seeds,
            scrape
        }),
        (id(), proptest::option::of(1..=u16::MAX), any::<bool>(), vec(any::<u8>(), 0..30)).prop_map(
            move |(info_hash, port, seed, token)| Ask::AnnouncePeer { info_hash, port, seed, token: leak(token) }
        ),
        (id(), any::<Option<i64>>()).prop_map(|(target, seq)| Ask::Get { target, seq }),
        id().prop_map(|target| Ask::SampleInfohashes { target }),
        (vec(any::<u8>(), 0..30), any::<i64>(), any::<Option<i64>>(), 0i64.., vec(any::<u8>(), 0..64)).prop_map(
            move |(token, value, cas, seq, salt)| Ask::Put {
                token: leak(token),
                value: leak(format!("i{value}e").into_bytes()),
                mutable: (seq % 2 == 0).then(|| MutableItem {
                    key: &[5; 32],
                    salt: leak(salt),
                    seq,
                    signature: &[6; 64]
                }),
                cas,
            }
        ),
    ]
}

proptest! {
    #[test]
    fn queries_read_back(number in vec(any::<u8>(), 1..9), id in id(), want in any::<Option<[bool; 3]>>(), ask in ask(), ro: bool) {
        let want = want.map(|want| Want::of(Family::ALL.into_iter().filter(|family| want[family.index()])));
        let query = Query { id, want, ask };
        let sent = Message { transaction: &number, version: Some(b"AB01"), your_address: None, read_only: ro, body: Body::Query(query) };
        message(&sent.encode(), |read| assert_eq!(read, sent));
    }

    #[test]
    fn answers_read_back(id in id(), nodes in contacts(), values in vec(address(), 0..20), own in address(), seq: Option<i64>, token: Option<[u8; 8]>) {
        let mut answer = Answer::new(id);
        answer.nodes = nodes;
        answer.values = values;
        answer.values.sort_by_key(|value| Family::of(value) == Family::Scion);
        answer.token = token.as_ref().map(|token| &token[..]);
        answer.seq = seq;
        let body = Body::Answer(Box::new(answer));
        let sent = Message { transaction: b"aa", version: None, your_address: Some(own), read_only: false, body };
        message(&sent.encode(), |read| assert_eq!(read, sent));
    }

    #[test]
    fn anything_may_come(bytes: Vec<u8>) {
        let _ = parse(&bytes, |_| ());
        let _ = parse(&[b"d1:t2:aa1:y1:q", &bytes[..], b"e"].concat(), |_| ());
    }
}
