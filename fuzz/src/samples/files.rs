//! Samples of files that users and programs write: plans, topologies, policies, lists.

use anabranch_scion_wire::proto::control_plane::SegmentsRequest;
use anabranch_scion_wire::proto::{daemon, grpc};

pub(crate) fn known_keys() -> Vec<Vec<u8>> {
    let key = "a".repeat(51) + "q";
    let lines = format!("# a remark\n[1-ff00:0:110,10.0.0.1]:31000 {key}\n\n[1-1,2001:db8::1]:9 {key} # the lab\n");
    vec![lines.into_bytes()]
}

pub(crate) fn ip_filter() -> Vec<Vec<u8>> {
    let lists = [
        "# a remark\n192.0.2.7\n192.0.2.0/25 # another\n2001:db8::/32\n192.0.2.1-192.0.2.9\n",
        "001.002.003.000 - 001.002.003.255 , 100 , Some, body\n1.2.4.0 - 1.2.4.9 , 128 , let through\n",
        "Some-body #1: a part:10.0.0.1-10.0.0.2\nIPv6:2001:db8::1-2001:db8::2\n",
        "1-ff00:0:110\n[1-ff00:0:110,10.0.0.1]\n",
    ];
    lists.map(|list| list.as_bytes().to_vec()).to_vec()
}

pub(crate) fn plans() -> Vec<Vec<u8>> {
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

pub(crate) fn topology() -> Vec<Vec<u8>> {
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
        include_str!("../../../topologies/two-isds.toml"),
        include_str!("../../../topologies/line.toml"),
        include_str!("../../../topologies/diamond.topo"),
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// The first byte says which method, service and encoding.
pub(crate) fn control() -> Vec<Vec<u8>> {
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

pub(crate) fn policy() -> Vec<Vec<u8>> {
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

/// Requests to the daemon, behind the number of what they are.
pub(crate) fn daemon() -> Vec<Vec<u8>> {
    let options = r#"{"source":"magnet:?xt=urn:btih:a","dir":"/x","tags":["a"],"paused":true,"limit_up":5,"ratio_max":1.5,"peers":["10.0.0.1:1"]}"#;
    let settings = r#"{"limit_up":5,"downloads_max":null,"ratio_max":1.5,"dir":"/x","categories":{"a":"/b","c":null}}"#;
    let form = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--x\r\nContent-Disposition: form-data; name=t; \
                filename=\"f\"\r\nContent-Type: a/b\r\n\r\nd1:ai1ee\r\n--x--\r\n";
    let kept = "anabranch library 1 4\nend\n";
    let samples = [(0, "a=1&b=%C3%A4+x&limit=5"), (1, options), (2, kept), (3, form), (4, settings)];
    samples.iter().map(|(kind, text)| [&[*kind], text.as_bytes()].concat()).collect()
}
