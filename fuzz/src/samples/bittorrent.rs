//! Samples of what peers, trackers, the DHT and gateways of BitTorrent say.

use std::time::Duration;

use anabranch_bittorrent::extension::{
    Challenge, ExtensionHandshake, ExtensionIds, IdentityProof, InterfaceSequence, MetadataMessage, PathsInUse,
    PathsMessage, PeerIdentity, PexFlags, PexMessage, Wish,
};
use anabranch_bittorrent::handshake::{self, Handshake, Reserved};
use anabranch_bittorrent::mse::{Initiator, Methods};
use anabranch_bittorrent::tracker::{AnnounceRequest, Event, ScrapeEntry, TrackerUrl, http, udp};
use anabranch_bittorrent::wire::{BlockRange, Hashes, Message, TreeRequest, piece_header};
use anabranch_content::bencode::{DictBuilder, ListBuilder};
use anabranch_content::merkle::HashRequest;
use anabranch_paths::select::Selector;
use anabranch_paths::{Interface, IsdAs};
use anabranch_utp::Seq;
use anabranch_utp::packet::{Header, Kind};

pub(crate) fn socks() -> Vec<Vec<u8>> {
    let v6 = [&[0, 0, 0, 4][..], &[0x20; 16], &[0x1b, 0x39, 1]].concat();
    vec![b"\0\0\0\x01\xc0\0\x02\x07\x1b\x39answer".to_vec(), b"\0\0\0\x03\x04host\x1b\x39answer".to_vec(), v6]
}

/// The examples of BEP 5, 44 and 14, a file of nodes, and a conversation of three messages.
pub(crate) fn dht() -> Vec<Vec<u8>> {
    let messages: [&[u8]; 8] = [
        b"d1:ad2:id20:abcdefghij0123456789e1:q4:ping1:t2:aa1:y1:qe",
        b"d1:ad2:id20:abcdefghij01234567896:target20:mnopqrstuvwxyz1234564:wantl2:n42:n6ee1:q9:find_node1:t2:aa1:y1:qe",
        b"d1:ad2:id20:abcdefghij01234567899:info_hash20:mnopqrstuvwxyz1234566:scrapei1ee1:q9:get_peers1:t2:aa1:y1:qe",
        b"d1:ad2:id20:abcdefghij012345678912:implied_porti1e9:info_hash20:mnopqrstuvwxyz1234564:porti6881e5:token8:aoeusnthe1:q13:announce_peer1:t2:aa1:y1:qe",
        b"d1:ad2:id20:abcdefghij01234567895:token1:t1:v5:helloe1:q3:put1:t2:aa1:y1:qe",
        b"d1:ad2:id20:abcdefghij01234567896:target20:mnopqrstuvwxyz123456e1:q17:sample_infohashes1:t2:aa1:y1:qe",
        b"d1:rd2:id20:abcdefghij01234567895:nodes26:abcdefghij0123456789\x14\0\0\x01\x1a\xe15:token8:aoeusnth6:valuesl6:axje.u6:idhtnmee1:t2:aa1:y1:re",
        b"d1:eli201e23:A Generic Error Ocurrede1:t2:aa1:y1:ee",
    ];
    let mut seeds: Vec<Vec<u8>> = messages.iter().map(|message| [&[0], *message].concat()).collect();
    let part = |message: &&[u8]| [&[message.len() as u8][..], *message].concat();
    seeds.push([vec![1], messages[..3].iter().flat_map(part).collect()].concat());
    // What an answer to a query of ours has in it.
    seeds.push([&[1][..], &part(&&b"d2:id20:abcdefghij01234567895:nodes0:e"[..])].concat());
    let saved = anabranch_dht::snapshot::encode(&[(anabranch_dht::Family::V4, Default::default())]);
    seeds.push([vec![2], saved].concat());
    let call = format!(
        "BT-SEARCH * HTTP/1.1\r\nHost: 239.192.152.143:6771\r\nPort: 6881\r\nInfohash: {}\r\ncookie: a\r\n\r\n\r\n",
        "ab".repeat(20)
    );
    seeds.push([&[3][..], call.as_bytes()].concat());
    seeds
}

pub(crate) fn tracker() -> Vec<Vec<u8>> {
    let with_choice = |choice: u8, message: &[u8]| [&[choice], message].concat();
    let reply = DictBuilder::new()
        .int("interval", 1800)
        .int("min interval", 60)
        .int("complete", 3)
        .int("incomplete", 4)
        .int("downloaded", 5)
        .bytes("peers", [10, 0, 0, 1, 26, 225])
        .bytes("peers6", [1; 18])
        .bytes("external ip", [10, 0, 0, 2])
        .bytes("tracker id", "id")
        .bytes("warning message", "text")
        .encode();
    let peer = DictBuilder::new().bytes("ip", "10.0.0.1").int("port", 6881).bytes("peer id", [1; 20]).clone();
    let long = DictBuilder::new().int("interval", 60).list("peers", ListBuilder::new().dict(&peer)).encode();
    let refusal = DictBuilder::new().bytes("failure reason", "no").bytes("retry in", "never").encode();
    let scion =
        ["[1-ff00:0:110,10.0.0.1]:6881", "[1-ff00:0:110,::1]:6881"].map(|peer| peer.parse().expect("an address"));
    let compact = b"\x00\x01\xff\x00\x00\x00\x01\x10\x04\x0a\x00\x00\x01\x1a\xe1";
    let reply_scion = DictBuilder::new().int("interval", 60).bytes("ab_scion", compact).encode();
    let peer = DictBuilder::new().bytes("ip", "1-ff00:0:110,10.0.0.1").int("port", 6881).clone();
    let long_scion = DictBuilder::new().int("interval", 60).list("ab_scion", ListBuilder::new().dict(&peer)).encode();
    let entry = DictBuilder::new().int("complete", 1).int("downloaded", 2).int("incomplete", 3).clone();
    let scrape = DictBuilder::new().dict("files", DictBuilder::new().dict([7; 20], &entry)).encode();

    let request = AnnounceRequest::new([7; 20], handshake::peer_id(1), 6881, Event::Started);
    let url: TrackerUrl = "http://t.example/announce".parse().expect("a good URL");
    let entries = [ScrapeEntry { complete: 1, downloaded: 2, incomplete: 3 }];
    let request = AnnounceRequest { scion: Some(scion.to_vec()), ..request };
    let announce = udp::announce_request(0, 7, &request, "");
    let scrape_request = udp::scrape_request(0, 7, &[[7; 20]]);
    // After a length: what follows the connection id, which the target puts in.
    let asked = [&announce[8..], &scrape_request[8..]].map(|part| [&[part.len() as u8], part].concat()).concat();
    let mut udp_announced = [[0, 0, 0, 1], [0, 0, 0, 7], [0, 0, 7, 8], [0, 0, 0, 3], [0, 0, 0, 4]].concat();
    udp_announced.extend([10, 0, 0, 1, 26, 225]);
    vec![
        with_choice(0, &reply),
        with_choice(0, &long),
        with_choice(0, &refusal),
        with_choice(0, &reply_scion),
        with_choice(0, &long_scion),
        with_choice(1, &scrape),
        with_choice(2, &udp::connect_reply(7, 9)),
        with_choice(2, &udp_announced),
        with_choice(2, &udp::announce_reply(7, Duration::from_secs(60), 3, 4, &[([10, 0, 0, 1], 6881).into()], &scion)),
        with_choice(2, &udp::scrape_reply(7, &entries)),
        with_choice(2, &udp::error_reply(7, "no")),
        with_choice(3, b"http://t.example:80/announce?key=1 ../other"),
        with_choice(3, b"udp://[::1]:6969/announce //b.example/x"),
        with_choice(4, &asked),
        with_choice(5, &[b"\0", http::announce_target(&url, &request).as_bytes()].concat()),
        with_choice(5, &[b"\x01", http::scrape_target(&url, &[[7; 20]]).as_bytes()].concat()),
    ]
}

/// A byte of options, then each step behind a byte of what to do and its length: a call is answered, bytes are written, pass, are lost
/// and pass again.
pub(crate) fn utp() -> Vec<Vec<u8>> {
    let step = |what: u8, bytes: &[u8]| [&[what], &(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let (pass, lose, wait, write, read) = (4 << 1, 0x80 | (4 << 1), 0x40 | (5 << 1), 3 << 1, 6 << 1);
    let header = Header {
        kind: Kind::Syn,
        connection_id: 7,
        timestamp_us: 1,
        delay_us: 0,
        window: 1 << 20,
        seq: Seq(1),
        ack: Seq(0),
    };
    let mut syn = Vec::new();
    header.write(&[], 0, &mut syn);
    let mut state = Vec::new();
    Header { kind: Kind::State, ..header }.write(&[1, 0, 0, 0], 9, &mut state);
    let moved = [step(pass, &[]), step(pass, &[]), step(write, &[5; 9000]), step(pass, &[])].concat();
    let lost = [step(write, &[6; 5000]), step(lose, &[]), step(wait, &[]), step(pass, &[]), step(read, &[])].concat();
    let strangers = [step(0, &syn), step(2 << 1, &syn), step(1, &state), step(pass, &[])].concat();
    [syn, state, [&[1], &moved[..]].concat(), [&[2], &moved[..], &lost[..]].concat(), [&[3], &strangers[..]].concat()]
        .into()
}

/// Answers of a router, each behind a byte of what it is and its length: PCP that opens, that is not spoken, NAT-PMP, and UPnP's three steps.
pub(crate) fn portmap() -> Vec<Vec<u8>> {
    let step = |what: u8, bytes: &[u8]| [&[what], &(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let outside = [9, 9, 9, 1, 0xff, 0xff];
    let pcp = [step(2, &outside), step(6 | 12 << 3, &[]), step(2, &outside)].concat();
    let other = step(0, b"\0\x81\0\x01\0\0\0\x05");
    let address = step(0, b"\0\x80\0\0\0\0\x37\x74\x09\x09\x09\x01");
    let map =
        |opcode: u8| step(0, &[&[0, opcode, 0, 0, 0, 0, 0x37, 0x74][..], b"\x1a\xe1\x1a\xe2\0\0\x02\x58"].concat());
    let natpmp = [other, address, map(0x82), map(0x81)].concat();
    let found = step(0, b"HTTP/1.1 200 OK\r\nLOCATION: http://192.168.1.1:5000/desc.xml\r\n\r\n");
    let service = "urn:schemas-upnp-org:service:WANIPConnection:1";
    let description = format!(
        "<?xml version=\"1.0\"?><root><URLBase>http://192.168.1.1:80/</URLBase><device><serviceList><service><serviceType>{service}\
         </serviceType><controlURL>/ctl</controlURL></service></serviceList></device></root>"
    );
    let told =
        "<s:Envelope><s:Body><u:R><NewExternalIPAddress>9.9.9.1</NewExternalIPAddress></u:R></s:Body></s:Envelope>";
    let fault = "<s:Fault><errorCode>718</errorCode></s:Fault>";
    let http =
        [step(4, description.as_bytes()), step(4, told.as_bytes()), step(12, fault.as_bytes()), step(4, b"<ok/>")];
    let upnp = [&step(3, &[])[..], &found, &http.concat(), &step(4, b"<ok/>"), &step(5, &[])].concat();
    vec![pcp, natpmp, upnp]
}

pub(crate) fn wire() -> Vec<Vec<u8>> {
    let range = BlockRange { piece: 1, begin: 16384, len: 16384 };
    let request = TreeRequest { root: [7; 32], part: HashRequest { base: 0, index: 2, length: 2, proof_layers: 2 } };
    let hashes = Hashes::new(request, &[[9; 32]; 4]).expect("two hashes and two uncles");
    let messages = [
        Message::KeepAlive,
        Message::Choke,
        Message::Unchoke,
        Message::Interested,
        Message::NotInterested,
        Message::Have(3),
        Message::Bitfield(&[0xf0, 0x80]),
        Message::Request(range),
        Message::Cancel(range),
        Message::Port(6881),
        Message::Suggest(4),
        Message::HaveAll,
        Message::HaveNone,
        Message::Reject(range),
        Message::AllowedFast(5),
        Message::Extended { id: 0, payload: b"de" },
        Message::HashRequest(request),
        Message::Hashes(hashes),
        Message::HashReject(request),
    ];
    // The options and lengths of parts that the target reads first.
    let front = [0, 3, 5, 1, 2, 8, 13, 21, 34];
    let mut all = front.to_vec();
    let mut samples: Vec<_> = messages
        .iter()
        .map(|message| {
            message.encode(&mut all);
            let mut sample = front.to_vec();
            message.encode(&mut sample);
            sample
        })
        .collect();
    all.extend(piece_header(1, 0, 40));
    all.extend([b'x'; 40]);
    all.extend([0, 0, 0, 3, 99, 1, 2]);
    samples.push(all);
    let ours = Handshake { reserved: Reserved::OURS, info_hash: [1; 20], peer_id: handshake::peer_id(1) };
    samples.push([&front[..], &ours.encode()].concat());
    samples
}

pub(crate) fn extension() -> Vec<Vec<u8>> {
    let peers = ["10.0.0.1:6881", "[::1]:6881", "[1-ff00:0:110,10.0.0.1]:6881", "[1-ff00:0:110,::1]:6881"]
        .map(|peer| peer.parse().expect("an address"));
    let handshake = ExtensionHandshake {
        ids: ExtensionIds::OURS,
        client: Some("Anabranch 0.1".into()),
        listen_port: Some(6881),
        request_queue_len: Some(500),
        your_ip: Some([127, 0, 0, 1].into()),
        ipv4: Some([10, 0, 0, 1].into()),
        ipv6: Some([0, 0, 0, 0, 0, 0, 0, 1].into()),
        metadata_size: Some(31235),
        upload_only: Some(true),
        complete_ago_secs: Some(9),
        block_len_max: Some(65536),
        identity: Some(PeerIdentity([7; 32])),
        challenge: Some(Challenge([8; 16])),
        proof: Some(IdentityProof([9; 64])),
        scion_port: Some(6881),
        addresses: Some(peers.to_vec()),
        uplink: Some(2),
        prefers_encryption: Some(true),
    };
    let interface = |asn, id| Interface { isd_as: IsdAs::new(1, asn).expect("a small number"), id };
    let path = InterfaceSequence::new(vec![interface(110, 1), interface(111, 2)]).expect("one link");
    let mut in_use = PathsInUse::default();
    in_use.add("[1-ff00:0:110,10.1.2.3]:6881".parse().expect("an address"), &[path.clone(), path.reversed()]);
    let pex = PexMessage {
        added: peers.map(|peer| (peer, PexFlags::UPLOAD_ONLY)).to_vec(),
        dropped: peers.to_vec(),
        in_use: Some(in_use),
    };
    let wish = Wish { paths: 4, dial: true, selector: Some(Selector::Disjoint) };
    let paths =
        PathsMessage { wish: Some(Some(wish)), grants: Some(vec![path.clone()]), used: Some(vec![path.clone(), path]) };
    let data = MetadataMessage::Data { piece: 1, total_size: Some(16389), data: b"bytes" };
    let honest = [0, 0, 0, 2, 0, 0, 2, 0, 0, 5, 0, 0, 5, 0, 1];
    let liar = [0, 1, 0, 0, 0, 0, 5, 1, 0, 5, 0, 1, 2, 1, 0, 4, 0, 11, 5, 1, 0, 5, 1, 1, 5, 0, 0, 5, 0, 1];
    let with_choice = |choice: u8, payload: &[u8]| [&[choice], payload].concat();
    vec![
        with_choice(0, &handshake.encode()),
        with_choice(1, &MetadataMessage::Request { piece: 0 }.encode()),
        with_choice(1, &data.encode()),
        with_choice(1, &MetadataMessage::Reject { piece: 0 }.encode()),
        with_choice(2, &pex.encode()),
        with_choice(3, &[0, 0, 0, 1]),
        with_choice(4, &honest),
        with_choice(4, &liar),
        with_choice(6, &paths.encode()),
        with_choice(6, &PathsMessage { wish: Some(None), ..PathsMessage::default() }.encode()),
        with_choice(5, b"\0\0\x09\x09\x01\x02\x1b\x58\0\0\0\0"),
        with_choice(5, &[&[2, 1][..], &[9; 18], &[0, 0, 0, 3]].concat()),
    ]
}

/// A status, then what the head says, and the name of a file.
pub(crate) fn web_seed() -> Vec<Vec<u8>> {
    let heads = [
        (206u16, "bytes 10-19/100\n10\nidentity\n\na b/ü"),
        (200, "\n100\n\n\n%"),
        (503, "\n\n\n120\n?"),
        (416, "bytes */9"),
    ];
    heads.map(|(status, text)| [&status.to_be_bytes()[..], text.as_bytes()].concat()).to_vec()
}

/// Three bytes of options, then a caller's first words.
pub(crate) fn mse() -> Vec<Vec<u8>> {
    let methods = [Methods::BOTH, Methods::RATHER_RC4, Methods::RC4];
    let words = methods.into_iter().zip([0u8, 1, 2]).map(|(methods, at)| {
        let mut words = vec![at, at << 2 | at, 0x20 << at];
        Initiator::new([7; 20], methods, b"hello", [at; 32], &mut words);
        words
    });
    words.chain([b"GET / HTTP/1.1\r\n\r\n".repeat(40)]).collect()
}
