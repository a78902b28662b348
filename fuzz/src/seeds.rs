//! Writes valid samples for every target to `CORPUS/TARGET/seed-N`: fuzzing starts from them instead of from nothing.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anabranch_bittorrent::extension::{
    Challenge, ExtensionHandshake, ExtensionIds, IdentityProof, InterfaceSequence, MetadataMessage, PathsInUse,
    PathsMessage, PeerIdentity, PexFlags, PexMessage, Wish,
};
use anabranch_bittorrent::handshake::{self, Handshake, Reserved};
use anabranch_bittorrent::mse::{Initiator, Methods};
use anabranch_bittorrent::tracker::{AnnounceRequest, Event, ScrapeEntry, TrackerUrl, http, udp};
use anabranch_bittorrent::wire::{BlockRange, Hashes, Message, TreeRequest, piece_header};
use anabranch_content::bencode::{DictBuilder, ListBuilder};
use anabranch_content::bitfield::Bitfield;
use anabranch_content::hash::sha256;
use anabranch_content::info::InfoHashes;
use anabranch_content::merkle::HashRequest;
use anabranch_content::storage::{FileRecord, Lease, Resume, Stamp};
use anabranch_hercules::PacketWindow;
use anabranch_hercules::wire::control::{Answer, Control, Mark, Report};
use anabranch_hercules::wire::manifest::{Entry, EntryKind};
use anabranch_hercules::wire::message::{Message as BulkMessage, Offer};
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_hercules::wire::ticket::{KeyPrint, Ticket};
use anabranch_paths::select::Selector;
use anabranch_paths::{Interface, IsdAs};
use anabranch_ppspp::bin::Bin;
use anabranch_ppspp::hash::HashFunction;
use anabranch_ppspp::wire::{Addressing, Codec, Dialect, DiscardWindow, Integrity, Message as Ppspp, SwarmParams};
use anabranch_scion_wire::combine::combine;
use anabranch_scion_wire::proto::control_plane::{SegmentType, Segments, SegmentsRequest, SegmentsResponse};
use anabranch_scion_wire::proto::{Timestamp, daemon, grpc};
use anabranch_scion_wire::scmp::{EchoId, Message as Scmp, ProblemCode, UnreachableCode};
use anabranch_scion_wire::segment::{AsEntry, HopField as SegmentHop, PeerEntry, Segment, SegmentInfo};
use anabranch_scion_wire::{
    Address, DataplanePath, HeaderFields, HeaderTemplate, HopField, InfoField, OneHopPath, Packet, PathRef,
    PathSegment, Ports, Service, checksum,
};
use anabranch_utp::Seq;
use anabranch_utp::packet::{Header, Kind};
use anabranch_xdp::FrameTemplate;
use prost::Message as _;

fn main() -> io::Result<()> {
    let corpus = PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| "corpus".into()));
    write(&corpus, "bencode", &bencode())?;
    write(&corpus, "metainfo", &metainfo())?;
    write(&corpus, "edit", &metainfo())?;
    write(&corpus, "magnet", &magnet())?;
    write(&corpus, "daemon", &daemon())?;
    write(&corpus, "ip_filter", &ip_filter())?;
    write(&corpus, "known_keys", &known_keys())?;
    write(&corpus, "socks", &socks())?;
    write(&corpus, "tracker", &tracker())?;
    write(&corpus, "dht", &dht())?;
    write(&corpus, "resume", &resume())?;
    write(&corpus, "policy", &policy())?;
    write(&corpus, "wire", &wire())?;
    write(&corpus, "utp", &utp())?;
    write(&corpus, "portmap", &portmap())?;
    write(&corpus, "mse", &mse())?;
    write(&corpus, "web_seed", &web_seed())?;
    write(&corpus, "ppspp_wire", &ppspp_wire())?;
    let links = [
        format!("ppspp:{}?cp=1&hf=2&ca=4&cs=8192&cl=9&pe=a:1&tr=b&dn=c%20", "ab".repeat(32)),
        format!("tswift://h:1/{}", "cd".repeat(20)),
    ];
    write(&corpus, "ppspp_link", &links.map(String::into_bytes))?;
    let list = b"d5:filesld4:attr1:x6:lengthi3e4:pathl1:a1:beed6:lengthi0e4:pathl2:..eed4:attr1:l4:pathl1:ce12:symlink pathl1:aeeee";
    write(&corpus, "ppspp_manifest", &[[&3u64.to_be_bytes()[..], list].concat()])?;
    write(&corpus, "ppspp_bins", &[(0..255).collect(), [0, 0, 9, 255].repeat(9)])?;
    write(&corpus, "extension", &extension())?;
    write(&corpus, "scion_packet", &scion_packet())?;
    // The first byte says where a packet comes in: from inside, and at an interface.
    let at = |from: u8| scion_packet().into_iter().map(move |packet| [&[from], &packet[..]].concat());
    write(&corpus, "router", &at(0).chain(at(2)).collect::<Vec<_>>())?;
    write(&corpus, "scmp", &scmp())?;
    write(&corpus, "segments", &segments())?;
    write(&corpus, "lookup", &lookup())?;
    write(&corpus, "scion_socket", &scion_socket())?;
    write(&corpus, "datagram", &scion_socket())?;
    write(&corpus, "frames", &frames())?;
    write(&corpus, "topology", &topology())?;
    write(&corpus, "plan", &plans())?;
    write(&corpus, "control", &control())?;
    write(&corpus, "bulk", &bulk())?;
    write(&corpus, "bulk_ends", &bulk_ends())
}

/// The first byte says what the rest is.
fn bulk() -> Vec<Vec<u8>> {
    let mut window = PacketWindow::default();
    (0..40).filter(|number| number % 7 != 3).for_each(|number| _ = window.insert(number));
    let answer = Answer { mark: 1, sender_us: 2, receiver_us: 3, delay_us: 4 };
    let controls = [
        Control::Hello { sender_us: 1 },
        Control::Echo { sender_us: 1, receiver_us: 2 },
        Control::Confirm { receiver_us: 2, rtt_us: 3 },
        Control::Mark(Mark { mark: 1, sender_us: 2, oldest: 3, next: 40, interval_us: 5 }),
        Control::Report(Report::of(&window, 1, Some(answer), 0, 40)),
        Control::Report(Report::of(&window, 1, None, 3, 12)),
        Control::Knock,
    ];
    let (kind, modified) = (EntryKind::File { len: 90, extents: vec![1..20, 30..80] }, (7, 8));
    let entry = Entry { name: b"a/b".to_vec(), mode: 0o644, modified, kind };
    let mut entries = vec![2];
    entry.write(&mut entries).expect("an entry");
    let receipt = Receipt {
        transfer: 1,
        root: [2; 32],
        content_len: 3,
        manifest_hash: [4; 32],
        entries: 5,
        finished: 6,
        sender: [7; 32],
        receiver: [8; 32],
        signature: [9; 64],
    };
    let mut receipt_bytes = vec![3];
    receipt.write(&mut receipt_bytes);
    let offer = Offer { transfer: 1, chunk_len: 1400, content_len: 9, manifest_len: 8, manifest_hash: [4; 32] };
    let messages = [
        BulkMessage::Offer(offer),
        BulkMessage::Entries(entries[1..].to_vec()),
        BulkMessage::Kept(vec![0..3, 5..9]),
        BulkMessage::Ready,
        BulkMessage::Hashes { first: 1, hashes: vec![[1; 32]; 2] },
        BulkMessage::Root([1; 32]),
        BulkMessage::Again(vec![1..2, 5..6]),
        BulkMessage::Receipt(Box::new(receipt)),
        BulkMessage::Open { sends: true, chunk_len_max: 0, proof: Some([1; 32]) },
        BulkMessage::Path(3),
        BulkMessage::Limit(1_000_000),
        BulkMessage::End { code: 1, reason: "the disk is full".into() },
    ];
    let ticket = Ticket {
        holder_sends: false,
        addresses: vec!["192.0.2.7:1".parse().expect("IP"), "[1-ff00:0:110,10.0.0.1]:80".parse().expect("SCION")],
        key: KeyPrint([1; 16]),
        secret: [2; 12],
        expires: 3,
    };
    let with = |what: u8, write: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = vec![what];
        write(&mut bytes);
        bytes
    };
    let controls = controls.iter().map(|control| with(0, &|out| control.write(out)));
    let messages = messages.iter().map(|message| with(1, &|out| message.write(out)));
    let ticket = with(4, &|out| out.extend(ticket.to_string().bytes()));
    let mut packet = vec![5, 8, 2, 0, 0, 0, 7];
    packet.resize(60, 0);
    controls.chain(messages).chain([entries, receipt_bytes, ticket, packet]).collect()
}

/// A controller; then steps: what, how long, and bytes. An honest start, a batch, a while, and what [`bulk`] has.
fn bulk_ends() -> Vec<Vec<u8>> {
    let start = [5, 0, 7, 1, 10, 5, 0, 6, 0, 7, 1, 20, 5, 0];
    let step = |what: u8, body: &[u8]| {
        let body = &body[..body.len().min(255)];
        [&[what, body.len() as u8][..], body].concat()
    };
    let then = |at: u8, sample: &[u8]| {
        let (to_sender, to_receiver) = if sample[0] == 0 { (0, 1) } else { (3, 4) };
        let steps = [step(to_sender, &sample[1..]), step(to_receiver, &sample[1..])].concat();
        [&[at][..], &start, &steps, &start].concat()
    };
    let samples = bulk();
    (0..).zip(samples.iter().filter(|sample| sample[0] < 2)).map(|(at, sample)| then(at, sample)).collect()
}

fn ppspp_wire() -> Vec<Vec<u8>> {
    let node = Bin::new(2, 1).expect("a node");
    let messages = [
        Ppspp::Have(node.range()),
        Ppspp::Ack { chunks: 4..5, delay_us: 30_000 },
        Ppspp::Integrity { node, digest: HashFunction::Sha1.hash(b"node") },
        Ppspp::SignedIntegrity { node, ntp: 1 << 63, signature: &[7; 64] },
        Ppspp::Request(node.range()),
        Ppspp::Cancel(node.range()),
        Ppspp::PexV4("192.0.2.7:6778".parse().expect("an address")),
        Ppspp::PexV6("[2001:db8::1]:6778".parse().expect("an address")),
        Ppspp::PexCertificate(&[0x30; 9]),
        Ppspp::Data { chunk: 4, sent_us: 9, payload: b"chunk" },
    ];
    let mut samples = Vec::new();
    for (form, addressing) in Addressing::ALL.into_iter().enumerate() {
        let hash = HashFunction::Sha1;
        let codec = Codec { dialect: Dialect::Rfc7574, addressing, hash, signature_len: 64, chunk_len: Some(9) };
        let mut sample = vec![form as u8, 0, 64, 9, 0, 0, 0, 1];
        messages.iter().for_each(|message| message.encode(&codec, &mut sample).expect("fits"));
        samples.push(sample);
        let swarm =
            SwarmParams::new(&[13; 65], Integrity::UnifiedMerkleTree, hash, addressing, Some(9)).expect("a swarm");
        let mut sample = vec![form as u8, 0, 64, 9, 0, 0, 0, 0];
        swarm.handshake(Dialect::Rfc7574, 7, true, Some(DiscardWindow::Last(99))).encode(&mut sample);
        samples.push(sample);
    }
    samples
}

fn known_keys() -> Vec<Vec<u8>> {
    let key = "a".repeat(51) + "q";
    let lines = format!("# a remark\n[1-ff00:0:110,10.0.0.1]:31000 {key}\n\n[1-1,2001:db8::1]:9 {key} # the lab\n");
    vec![lines.into_bytes()]
}

fn socks() -> Vec<Vec<u8>> {
    let v6 = [&[0, 0, 0, 4][..], &[0x20; 16], &[0x1b, 0x39, 1]].concat();
    vec![b"\0\0\0\x01\xc0\0\x02\x07\x1b\x39answer".to_vec(), b"\0\0\0\x03\x04host\x1b\x39answer".to_vec(), v6]
}

fn ip_filter() -> Vec<Vec<u8>> {
    let lists = [
        "# a remark\n192.0.2.7\n192.0.2.0/25 # another\n2001:db8::/32\n192.0.2.1-192.0.2.9\n",
        "001.002.003.000 - 001.002.003.255 , 100 , Some, body\n1.2.4.0 - 1.2.4.9 , 128 , let through\n",
        "Some-body #1: a part:10.0.0.1-10.0.0.2\nIPv6:2001:db8::1-2001:db8::2\n",
        "1-ff00:0:110\n[1-ff00:0:110,10.0.0.1]\n",
    ];
    lists.map(|list| list.as_bytes().to_vec()).to_vec()
}

fn write(corpus: &Path, target: &str, samples: &[Vec<u8>]) -> io::Result<()> {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder)?;
    for (number, sample) in samples.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:02}")), sample)?;
    }
    Ok(())
}

fn bencode() -> Vec<Vec<u8>> {
    ["d1:ad1:bi-7ee4:listli1e2:xxlee3:zzz0:e", "i0e", "le", "d2:bbi1e2:aai2ee", "i-0e", "01:a", "d1:a1:x1:a1:ye"]
        .map(|text| text.as_bytes().to_vec())
        .into()
}

fn plans() -> Vec<Vec<u8>> {
    let everything = r#"
id = "two"
title = "Two"
source = "A paper"
topology = "net.toml"
repetitions = 3
seed = 7
limit = "1 min"
[content]
size = "1 MB"
piece_length = "64 KiB"
[sweep]
connections = [3, 7]
[quick]
repetitions = 1
size = "100 kB"
[[candidate]]
name = "bgp"
routing = "bgp"
connections = 9
[[candidate]]
name = "scion"
routing = "scion"
selector = "disjoint"
paths = 4
flags = ["--congestion", "cubic"]
[[peers]]
in = ["1-3"]
count = 2
join = "5 s"
client = "anabranch"
[[peers]]
role = "seed"
in = ["1-2"]
limit_up = "500K"
limit_down = "1MiB"
[[event]]
at = "2 s"
link = ["1-2", "1-1"]
direction = "there"
set = { rate = "1 Mbit/s" }
[[event]]
at = "3 s"
link = ["1-1", "1-3"]
cross = "4 Mbit/s"
length = "1 s"
[[figure]]
id = "fig"
title = "Goodput"
measure = "goodput"
groups = "connections"
relative_to = "bgp"
[figure.paper]
3 = { bgp = 100, scion = 148 }
[[must]]
that = "1 < (goodput(scion, 7) - 1) / goodput(bgp, 7) <= 1 + 2 * 3"
why = "so"
"#;
    vec![everything.as_bytes().to_vec()]
}

fn topology() -> Vec<Vec<u8>> {
    let everything = r#"
name = "all"
network = "127.20.0.0"
segment_lifetime = "20 s"
[defaults]
delay = "1 ms"
[as."1-ff00:0:110"]
core = true
control = "127.0.0.1:1"
daemon = "127.0.0.1:2"
routers = { A = "127.0.0.1:3" }
[as."1-ff00:0:111"]
mtu = 1400
hosts = { alice = "127.0.0.9" }
[as."1-ff00:0:112"]
hosts = ["bob"]
[[link]]
parent = "1-ff00:0:110-A#7"
child = "1-ff00:0:111"
rate = "10 Mbit/s"
jitter = "1 ms"
loss = "1 %"
queue = "64 KiB"
mtu = 1300
there = { rate = "none" }
back = { delay = "2 ms" }
underlay = ["127.0.0.1:4", "127.0.0.1:5"]
[[link]]
parent = "1-ff00:0:110"
child = "1-ff00:0:112"
count = 2
[[link]]
peering = ["1-ff00:0:111", "1-ff00:0:112"]
"#;
    [
        everything,
        include_str!("../../topologies/two-isds.toml"),
        include_str!("../../topologies/line.toml"),
        include_str!("../../topologies/diamond.topo"),
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// The first byte says which method, service and encoding.
fn control() -> Vec<Vec<u8>> {
    let (leaf, core) = (0x0001_ff00_0000_0111, 0x0002_0000_0000_0000);
    let paths = daemon::PathsRequest { destination_isd_as: 0x0002_ff00_0000_0211, ..Default::default() };
    let down = daemon::NotifyInterfaceDownRequest { isd_as: leaf, id: 1 };
    let segments = SegmentsRequest { src_isd_as: 0x0001_0000_0000_0000, dst_isd_as: core };
    vec![
        [&[0][..], &grpc::frame(&paths)].concat(),
        [&[1][..], &grpc::frame(&daemon::AsRequest { isd_as: leaf })].concat(),
        [&[2][..], &grpc::frame(&())].concat(),
        [&[4][..], &grpc::frame(&down)].concat(),
        [&[6 | 8][..], &grpc::frame(&segments)].concat(),
        [&[6 | 8 | 16][..], &grpc::frame(&segments)[5..]].concat(),
    ]
}

fn policy() -> Vec<Vec<u8>> {
    let file = r#"{"destinations": {"1-ff00:0:110,10.0.0.2:80": "a", "2": "b", "0": "default"},
        "defaults": {"min_mtu": 1280, "min_validity_sec": 10, "ordering": "hops_asc,meta_latency_asc"},
        "filters": {"a": {"sequence": "0* 1-ff00:0:110#1,2 0+", "min_meta_bandwidth": 1000},
        "b": {"ordering": "hops_desc,meta_bandwidth_desc"}, "default": {"acl": ["+ 1-ff00:0:111", "- 1#0", "+"]}}}"#;
    [
        "[1-ff00:0:110,10.0.0.1]:80",
        "1-ff00:0:110,[10.0.0.1]:80",
        "64-559,[fe80::1%3]:80",
        "192.0.2.7:6881",
        "[2001:db8::7]:6881",
        "65535-ffff:ffff:ffff",
        "1dec194377b5",
        "+ 1-ff00:0:133#1,2 - 1-1#3 - 2 +",
        "0* 1-ff00:0:110#1 0+ (2-ff00:0:210 | 2-2#0,1|3) 0?",
        "latency,bandwidth,hops,mtu",
        file,
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// The entry of a file in a v1 file list.
fn file(path: &[&str], length: i64, attr: &str) -> DictBuilder {
    let mut names = ListBuilder::new();
    for name in path {
        names.bytes(name);
    }
    let mut file = DictBuilder::new();
    file.int("length", length).list("path", &names);
    if !attr.is_empty() {
        file.bytes("attr", attr);
    }
    file
}

fn metainfo() -> Vec<Vec<u8>> {
    const PIECE_LENGTH: i64 = 16384;
    let info = || {
        let mut info = DictBuilder::new();
        info.bytes("name", "name").int("piece length", PIECE_LENGTH);
        info
    };
    let single = info().int("length", 40000).bytes("pieces", [7; 60]).int("private", 1).clone();

    let mut link = file(&["d", "link"], 0, "l");
    link.list("symlink path", ListBuilder::new().bytes("d").bytes("a"));
    let mut files = ListBuilder::new();
    files.dict(&file(&["d", "a"], 5, "xh")).dict(&file(&[".pad", "16379"], PIECE_LENGTH - 5, "p"));
    files.dict(&file(&["b"], 9, "")).dict(&link).dict(&file(&["..", "B"], 0, ""));
    let multi = info().list("files", &files).bytes("pieces", [7; 40]).clone();

    let leaves = [[1; 32], [2; 32]];
    let root = sha256(leaves.as_flattened());
    let mut leaf = DictBuilder::new();
    leaf.dict("", DictBuilder::new().int("length", 2 * PIECE_LENGTH).bytes("pieces root", root));
    let mut tree = DictBuilder::new();
    tree.dict("a", &leaf);
    let v2 = info().int("meta version", 2).dict("file tree", &tree).clone();
    let mut files = ListBuilder::new();
    files.dict(&file(&["a"], 2 * PIECE_LENGTH, ""));
    let hybrid = v2.clone().list("files", &files).bytes("pieces", [7; 40]).clone();

    let layers = DictBuilder::new().bytes(root, leaves.as_flattened()).clone();
    let tier = |url: &str| ListBuilder::new().bytes(url).clone();
    let tiers = ListBuilder::new().list(&tier("http://a.example/announce")).list(&tier("udp://b.example:80")).clone();
    let torrent = |info: &DictBuilder| {
        let mut torrent = DictBuilder::new();
        torrent.dict("info", info).bytes("announce", "http://a.example/announce").list("announce-list", &tiers);
        torrent.int("creation date", 1_700_000_000).bytes("comment", "text").bytes("created by", "seeds");
        torrent.bytes("url-list", "http://c.example/").dict("piece layers", &layers);
        torrent.list("nodes", ListBuilder::new().list(ListBuilder::new().bytes("d.example").int(6881)));
        torrent.encode()
    };
    let mut samples: Vec<_> = [&single, &multi, &v2, &hybrid].map(torrent).into();
    samples.extend([single, multi, v2, hybrid].map(|info| info.encode()));
    samples
}

/// Requests to the daemon, behind the number of what they are.
fn daemon() -> Vec<Vec<u8>> {
    let options = r#"{"source":"magnet:?xt=urn:btih:a","dir":"/x","tags":["a"],"paused":true,"limit_up":5,"ratio_max":1.5,"peers":["10.0.0.1:1"]}"#;
    let settings = r#"{"limit_up":5,"downloads_max":null,"ratio_max":1.5,"dir":"/x","categories":{"a":"/b","c":null}}"#;
    let form = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--x\r\nContent-Disposition: form-data; name=t; \
                filename=\"f\"\r\nContent-Type: a/b\r\n\r\nd1:ai1ee\r\n--x--\r\n";
    let kept = "anabranch library 1 4\nend\n";
    let samples = [(0, "a=1&b=%C3%A4+x&limit=5"), (1, options), (2, kept), (3, form), (4, settings)];
    samples.iter().map(|(kind, text)| [&[*kind], text.as_bytes()].concat()).collect()
}

fn magnet() -> Vec<Vec<u8>> {
    let v1 = "xt=urn:btih:c12fe1c06bba254a9dc9f519b335aa7c1367a88a";
    let v2 = format!("xt=urn:btmh:1220{}", "ab".repeat(32));
    [
        format!("magnet:?{v1}&dn=a%20name&tr=udp%3A%2F%2Ft.example%3A80&x.pe=10.0.0.1:6881&so=0,2,4-6"),
        format!("magnet:?{v1}&{v2}&ws=http%3A%2F%2Fw.example%2F"),
        format!("magnet:?{v2}"),
        format!("magnet:?{v1}&x.pe=%5B1-ff00%3A0%3A110%2C10.0.0.1%5D%3A6881&x.pe=1-ff00:0:110,[::1]:80"),
        "magnet:?xt=urn:btih:YEX6DQDLXISUVHOJ6UM3GNNKPQJWPKEK&tr.1=http://t.example/".into(),
    ]
    .map(String::into_bytes)
    .into()
}

/// The examples of BEP 5, 44 and 14, a file of nodes, and a conversation of three messages.
fn dht() -> Vec<Vec<u8>> {
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
    seeds.push([vec![1], messages[..3].iter().flat_map(|message| part(message)).collect()].concat());
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

fn tracker() -> Vec<Vec<u8>> {
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

fn resume() -> Vec<Vec<u8>> {
    let stamp = Stamp { size: 5, mtime_ns: 1_700_000_000_000_000_000, inode: 7 };
    let lease = Lease { from_ns: 1_700_000_000_000_000_000, until_ns: 1_700_000_001_000_000_000 };
    let field = |ones: &[u32]| {
        let mut field = Bitfield::new(11);
        ones.iter().for_each(|piece| assert!(field.set(*piece)));
        field
    };
    let resume = Resume {
        hashes: InfoHashes { v1: Some([1; 20]), v2: Some([2; 32]) },
        boot: [3; 16],
        have: field(&[0, 1, 10]),
        durable: field(&[0]),
        recheck: field(&[5]),
        files: vec![
            FileRecord { stamp: Some(stamp), lease: Some(lease), foreign: false },
            FileRecord { stamp: None, lease: None, foreign: true },
            FileRecord { stamp: Some(stamp), lease: None, foreign: false },
        ],
        priorities: vec![1, 0],
        downloaded: 99,
        uploaded: 98,
    };
    let file = resume.encode();
    let body = &file[16..file.len() - 4];
    let len = (body.len() as u16).to_le_bytes();
    // Piece 4 was verified, piece 0 failed, file 1 may be written to.
    let mut journal = vec![1, 4, 0, 0, 0, 2, 0, 0, 0, 0, 3, 1, 0, 0, 0];
    journal.extend(lease.from_ns.to_le_bytes());
    journal.extend(lease.until_ns.to_le_bytes());
    vec![[&[0], &file[..]].concat(), [&[1], &len[..], body, &journal].concat()]
}

/// A byte of options, then each step behind a byte of what to do and its length: a call is answered, bytes are written, pass, are lost
/// and pass again.
fn utp() -> Vec<Vec<u8>> {
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
fn portmap() -> Vec<Vec<u8>> {
    let step = |what: u8, bytes: &[u8]| [&[what], &(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let outside = [9, 9, 9, 1, 0xff, 0xff];
    let pcp = [step(2, &outside), step(6 | 12 << 3, &[]), step(2, &outside)].concat();
    let other = step(0, b"\0\x81\0\x01\0\0\0\x05");
    let address = step(0, b"\0\x80\0\0\0\0\x37\x74\x09\x09\x09\x01");
    let map = |opcode: u8| step(0, &[&[0, opcode, 0, 0, 0, 0, 0x37, 0x74][..], b"\x1a\xe1\x1a\xe2\0\0\x02\x58"].concat());
    let natpmp = [other, address, map(0x82), map(0x81)].concat();
    let found = step(0, b"HTTP/1.1 200 OK\r\nLOCATION: http://192.168.1.1:5000/desc.xml\r\n\r\n");
    let service = "urn:schemas-upnp-org:service:WANIPConnection:1";
    let description = format!(
        "<?xml version=\"1.0\"?><root><URLBase>http://192.168.1.1:80/</URLBase><device><serviceList><service><serviceType>{service}\
         </serviceType><controlURL>/ctl</controlURL></service></serviceList></device></root>"
    );
    let told = "<s:Envelope><s:Body><u:R><NewExternalIPAddress>9.9.9.1</NewExternalIPAddress></u:R></s:Body></s:Envelope>";
    let fault = "<s:Fault><errorCode>718</errorCode></s:Fault>";
    let http = [step(4, description.as_bytes()), step(4, told.as_bytes()), step(12, fault.as_bytes()), step(4, b"<ok/>")];
    let upnp = [&step(3, &[])[..], &found, &http.concat(), &step(4, b"<ok/>"), &step(5, &[])].concat();
    vec![pcp, natpmp, upnp]
}

fn wire() -> Vec<Vec<u8>> {
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

fn extension() -> Vec<Vec<u8>> {
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

/// UDP over every kind of path, between every kind of address.
fn scion_packet() -> Vec<Vec<u8>> {
    let hop = |cons_ingress, cons_egress| HopField {
        egress_alert: true,
        mac: [1, 2, 3, 4, 5, 6],
        ..HopField::unsealed(63, cons_ingress, cons_egress)
    };
    let info = |cons_dir, peering| InfoField { peering, cons_dir, seg_id: 7, timestamp_s: 1_700_000_000 };
    let (up, core, down) = ([hop(1, 0), hop(2, 3), hop(0, 4)], [hop(5, 0), hop(0, 6)], [hop(0, 7), hop(8, 0)]);
    let segment = |cons_dir, peering, hops| PathSegment { info: info(cons_dir, peering), hops };
    let built = |segments: &[PathSegment<'_>]| DataplanePath::build(segments).expect("a path");
    let whole = built(&[segment(false, false, &up), segment(false, false, &core), segment(true, false, &down)]);
    let peering = built(&[segment(false, true, &up[..1]), segment(true, true, &down)]);
    let one_hop = OneHopPath::build(info(true, false), up[1]);
    let paths = [
        PathRef::Empty,
        PathRef::Standard(whole.view()),
        PathRef::Standard(peering.view()),
        PathRef::OneHop(OneHopPath::parse(&one_hop).expect("a path")),
    ];
    let isd_as = "1-ff00:0:110".parse().expect("an ISD-AS");
    let addresses = [
        Address::new(isd_as, std::net::IpAddr::from([10, 0, 0, 1])),
        Address::new(isd_as, std::net::IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])),
        Address::new(isd_as, Service::CONTROL),
    ];
    let mut samples = Vec::new();
    for (path, ends) in paths.into_iter().zip([[0, 0], [0, 1], [1, 0], [0, 2]]) {
        let [source, destination] = ends.map(|end: usize| addresses[end]);
        let fields = HeaderFields { source, destination, path, flow_id: 1, traffic_class: 0 };
        let template = HeaderTemplate::new(&fields, Ports { source: 31000, destination: 443 }).expect("a template");
        let mut packet = vec![0; template.header_len()];
        template.write(5, checksum::sum(b"hello"), &mut packet).expect("it fits");
        packet.extend(b"hello");
        samples.push(packet);
    }
    samples
}

/// Every message, alone and in a packet; errors quote one of the packets above.
fn scmp() -> Vec<Vec<u8>> {
    let packets = scion_packet();
    let quote = packets[1].as_slice();
    let id = EchoId { identifier: 31000, sequence: 1 };
    let header = Packet::parse(&packets[1]).expect("a packet");
    let isd_as = header.header().source_as();
    let fields = HeaderFields {
        source: header.header().destination().expect("an address"),
        destination: header.header().source().expect("an address"),
        path: PathRef::Empty,
        flow_id: 1,
        traffic_class: 0,
    };
    let messages = [
        Scmp::DestinationUnreachable { code: UnreachableCode::PORT, quote },
        Scmp::PacketTooBig { mtu: 1400, quote },
        Scmp::ParameterProblem { code: ProblemCode::HOP_MAC, pointer: 80, quote },
        Scmp::ExternalInterfaceDown { isd_as, interface: 5, quote },
        Scmp::InternalConnectivityDown { isd_as, ingress: 5, egress: 6, quote },
        Scmp::EchoRequest { id, data: b"data" },
        Scmp::EchoReply { id, data: b"data" },
        Scmp::TracerouteRequest { id },
        Scmp::TracerouteReply { id, isd_as, interface: 5 },
    ];
    let mut samples = vec![quote.to_vec()];
    for message in messages {
        let mut out = vec![0; 2000];
        let len = message.write(&fields, &mut out).expect("it fits");
        out.truncate(len);
        samples.push(Packet::parse(&out).expect("a packet").payload().to_vec());
        samples.push(out);
    }
    samples
}

/// From the core AS 1-ff00:0:111 to the leaf `end`, with a peering link to the other leaf.
fn segment(end: &str, egress: u16, peer: &str, peering: [u16; 2]) -> Segment {
    let hop = |ingress, egress| SegmentHop { exp_time: 63, ingress, egress, mac: [1, 2, 3, 4, 5, 6] };
    let mut core = AsEntry::new(isd_as("1-ff00:0:111"), 1472, hop(0, egress), 0);
    core.static_info.latency_intra.insert(9, Duration::from_millis(3));
    core.static_info.bandwidth_inter_kbps.insert(egress, 1_000_000);
    let mut leaf = AsEntry::new(isd_as(end), 1472, hop(1, 0), 1400);
    leaf.peers.push(PeerEntry {
        peer: isd_as(peer),
        peer_interface: peering[1],
        peer_mtu: 1300,
        hop: hop(peering[0], 0),
    });
    Segment::new(SegmentInfo { timestamp_s: 1_750_000_000, id: egress }, vec![core, leaf]).expect("a segment")
}

fn isd_as(text: &str) -> anabranch_paths::IsdAs {
    text.parse().expect("an ISD-AS")
}

/// Up to 1-ff00:0:110 and down to 1-ff00:0:112.
fn up_and_down() -> [Segment; 2] {
    [segment("1-ff00:0:110", 1, "1-ff00:0:112", [5, 6]), segment("1-ff00:0:112", 2, "1-ff00:0:110", [6, 5])]
}

fn segments() -> Vec<Vec<u8>> {
    let messages = up_and_down().map(|segment| segment.to_proto(Segment::unsigned));
    let kinds = [SegmentType::Up, SegmentType::Down].map(i32::from);
    let lists = messages.clone().map(|message| Segments { segments: vec![message] });
    let answer = SegmentsResponse { segments: kinds.into_iter().zip(lists).collect() };
    let with = |choice: u8, message: Vec<u8>| [vec![choice], message].concat();
    let [up, _] = messages;
    vec![with(0, up.encode_to_vec()), with(1, answer.encode_to_vec()), with(2, grpc::frame(&answer))]
}

fn lookup() -> Vec<Vec<u8>> {
    let [up, down] = up_and_down();
    let paths = combine(isd_as("1-ff00:0:110"), isd_as("1-ff00:0:112"), &[up], &[], &[down]);
    let told = paths.iter().map(|path| daemon::Path {
        raw: path.dataplane.clone(),
        interface: Some(daemon::Interface { address: Some(daemon::Underlay { address: "10.0.0.1:30042".to_owned() }) }),
        interfaces: path
            .interfaces
            .iter()
            .map(|interface| daemon::PathInterface { isd_as: interface.isd_as.to_u64(), id: interface.id.into() })
            .collect(),
        mtu: path.mtu.into(),
        expiration: Some(Timestamp {
            seconds: path.expiry.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64),
            nanos: 0,
        }),
        bandwidth: vec![1, 0, 2],
        ..daemon::Path::default()
    });
    let answer = daemon::PathsResponse { paths: told.collect() }.encode_to_vec();
    let topology =
        br#"{"isd_as": "1-ff00:0:110", "mtu": 1400, "dispatched_ports": "31000-32767", "attributes": ["core"],
        "border_routers": {"br1": {"internal_addr": "10.0.0.1:30042", "interfaces": {"1": {}, "41": {}}}},
        "control_service": {"cs1": {"addr": "[fd00::1]:30252"}}}"#;
    let dns = b"\x01\x02\x81\x80\0\x01\0\x01\0\0\0\0\x01a\x07example\0\0\x10\0\x01\
        \xc0\x0c\0\x10\0\x01\0\0\0\x3c\0\x13\x12scion=1-1,10.0.0.1";
    let hosts = b"# ours\n1-ff00:0:111,[10.9.9.9] host alias # more\n2-1,fd00::1 host\n";
    let samples: [&[u8]; 5] = [&answer, topology, dns, hosts, b"no path: 100 %25 down%0A"];
    (0..).zip(samples).map(|(choice, sample)| [&[choice], sample].concat()).collect()
}

/// Packets for the target's socket, one after the other: data, an echo request, an error about a packet of its own.
fn scion_socket() -> Vec<Vec<u8>> {
    let isd_as = "1-ff00:0:110".parse().expect("an ISD-AS");
    let [own, other] = [1, 2].map(|host| Address::new(isd_as, std::net::IpAddr::from([10, 0, 0, host])));
    let fields =
        |source, destination| HeaderFields { source, destination, path: PathRef::Empty, flow_id: 1, traffic_class: 0 };
    let datagram = |fields: &HeaderFields<'_>, source, destination| {
        let template = HeaderTemplate::new(fields, Ports { source, destination }).expect("a template");
        let mut packet = vec![0; template.header_len()];
        template.write(5, checksum::sum(b"hello"), &mut packet).expect("it fits");
        packet.extend(b"hello");
        packet
    };
    let to_us = fields(other, own);
    let data = datagram(&to_us, 31000, 443);
    let quote = datagram(&fields(own, other), 443, 31000);
    let messages = [
        Scmp::EchoRequest { id: EchoId { identifier: 31000, sequence: 1 }, data: b"data" },
        Scmp::DestinationUnreachable { code: UnreachableCode::PORT, quote: &quote },
    ];
    let mut packets = vec![data];
    packets.extend(messages.iter().map(|message| {
        let mut packet = vec![0; 1500];
        let len = message.write(&to_us, &mut packet).expect("it fits");
        packet.truncate(len);
        packet
    }));
    packets.extend(scion_packet());
    let framed = |packet: &Vec<u8>| [&(packet.len() as u16).to_be_bytes(), packet.as_slice()].concat();
    let mut samples: Vec<_> = packets.iter().map(framed).collect();
    samples.push(samples.concat());
    samples
}

/// A status, then what the head says, and the name of a file.
fn web_seed() -> Vec<Vec<u8>> {
    let heads = [
        (206u16, "bytes 10-19/100\n10\nidentity\n\na b/ü"),
        (200, "\n100\n\n\n%"),
        (503, "\n\n\n120\n?"),
        (416, "bytes */9"),
    ];
    heads.map(|(status, text)| [&status.to_be_bytes()[..], text.as_bytes()].concat()).to_vec()
}

/// Three bytes of options, then a caller's first words.
fn mse() -> Vec<Vec<u8>> {
    let methods = [Methods::BOTH, Methods::RATHER_RC4, Methods::RC4];
    let words = methods.into_iter().zip([0u8, 1, 2]).map(|(methods, at)| {
        let mut words = vec![at, at << 2 | at, 0x20 << at];
        Initiator::new([7; 20], methods, b"hello", [at; 32], &mut words);
        words
    });
    words.chain([b"GET / HTTP/1.1\r\n\r\n".repeat(40)]).collect()
}

/// Of both families, with and without padding.
fn frames() -> Vec<Vec<u8>> {
    let ends = [["192.0.2.1:7000", "192.0.2.2:7000"], ["[2001:db8::1]:7000", "[fe80::2]:7000"]];
    let frame = |ends: [&str; 2], payload: &[u8]| {
        let [from, to] = ends.map(|end| end.parse().expect("an address"));
        let template = FrameTemplate::new([2; 6], [4; 6], from, to).expect("of one family");
        let mut frame = vec![0; template.headers_len() + payload.len()];
        template.write(payload.len(), checksum::sum(payload), 1, &mut frame);
        frame[template.headers_len()..].copy_from_slice(payload);
        frame.resize(frame.len().max(60), 0);
        frame
    };
    ends.into_iter().flat_map(|ends| [frame(ends, b""), frame(ends, b"odd"), frame(ends, &[7; 100])]).collect()
}
