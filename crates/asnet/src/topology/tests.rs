use super::*;

const TWO: &str = r#"
[as."1-ff00:0:110"]
core = true
[as."1-ff00:0:111"]
hosts = ["alice", "bob"]
[[link]]
parent = "1-ff00:0:110"
child = "1-ff00:0:111#41"
rate = "10 Mbit/s"
delay = "20 ms"
there = { loss = "1 %" }
count = 1
"#;

fn two_with(more: &str) -> Result<Topology, TopologyError> {
    Topology::from_toml("t.toml", &format!("{TWO}{more}"))
}

fn number(text: &str) -> IsdAs {
    text.parse().unwrap()
}

#[test]
fn a_small_file_says_everything_that_runs() {
    let topology = two_with("").unwrap();
    assert_eq!(topology.name, "t");
    let link = &topology.links()[0];
    assert_eq!(link.ends.map(|end| end.to_string()), ["1-ff00:0:110#1", "1-ff00:0:111#41"]);
    assert_eq!(link.underlay.map(|end| end.to_string()), ["127.16.0.2:20000", "127.16.1.2:20000"]);
    assert_eq!((link.shapes[0].loss, link.shapes[1].loss), (0.01, 0.0));
    assert_eq!(link.shapes[1].rate_bps, Some(10_000_000));
    let leaf = topology.get(number("1-ff00:0:111")).unwrap();
    assert_eq!(leaf.hosts[1].address.to_string(), "127.16.1.101");
    assert_eq!(leaf.routers[0].internal.to_string(), "127.16.1.2:30042");
    let interface = leaf.interface(41).unwrap();
    assert_eq!((interface.neighbour, interface.end, interface.link), (Neighbour::Parent, 1, 0));
    assert_eq!(interface.remote_address, link.underlay[0]);
    assert_eq!(topology.interface(interface.remote).unwrap().neighbour, Neighbour::Child);
}

#[test]
fn numbers_fill_the_gaps_and_parallel_links_have_ports_of_their_own() {
    let topology = two_with("[[link]]\nparent = '1-ff00:0:110#1'\nchild='1-ff00:0:111'\n[[link]]\nparent = '1-ff00:0:110-B'\nchild='1-ff00:0:111'\ncount=2").unwrap();
    let core = topology.get(number("1-ff00:0:110")).unwrap();
    assert_eq!(core.interfaces.iter().map(|interface| interface.id).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(core.routers.len(), 2);
    assert_eq!(core.interface(3).unwrap().local_address.to_string(), "127.16.0.3:20002");
    let again = two_with("[[link]]\nparent = '1-ff00:0:110#1'\nchild='1-ff00:0:111'\n[[link]]\nparent = '1-ff00:0:110-B'\nchild='1-ff00:0:111'\ncount=2").unwrap();
    assert_eq!(topology.ases(), again.ases());
}

#[test]
fn every_error_names_the_line_and_the_remedy() {
    // Appended to TWO, whose last line is 12.
    let cases = [
        ("[[link]]\ncore = ['1-ff00:0:110', '1-ff00:0:999']", "t.toml:13: AS 1-ff00:0:999 is not defined: write [as."),
        (
            "[[link]]\ncore = ['1-ff00:0:110', '1-ff00:0:111']",
            "13: a core link joins core ASes, and 1-ff00:0:111 is none: write core = true",
        ),
        (
            "[[link]]\nparent = '1-ff00:0:111'\nchild = '1-ff00:0:110'",
            "13: 1-ff00:0:110 is a core AS and cannot be a child",
        ),
        (
            "[[link]]\nparent = '1-ff00:0:110'\nchild = '1-ff00:0:111#41'",
            "13: interface 41 of 1-ff00:0:111 is already used by the link on line 6",
        ),
        ("[[link]]\npeering = ['1-ff00:0:111', '1-ff00:0:111']", "13: both ends of the link are in 1-ff00:0:111"),
        ("[as.'2-ff00:0:210']", "13: ISD 2 has no core AS: write core = true"),
        ("[as.'1-ff00:0:112']", "13: 1-ff00:0:112 has no way up to a core AS: give it"),
        ("[as.'2-ff00:0:210']\ncore = true", "13: the core ASes 1-ff00:0:110 and 2-ff00:0:210 cannot reach each other"),
        (
            "[as.'2-ff00:0:210']\ncore = true\n[[link]]\nparent='2-ff00:0:210'\nchild='1-ff00:0:111'",
            "15: the parent 2-ff00:0:210 and the child 1-ff00:0:111 are in different ISDs",
        ),
        (
            "[as.'1-ff00:0:112']\ncore = true\n[[link]]\npeering=['1-ff00:0:110','1-ff00:0:112']",
            "15: 1-ff00:0:110 and 1-ff00:0:112 are both core ASes and cannot peer",
        ),
        (
            "[as.'1-ff00:0:1']\n[as.'1-ff00:0:2']\n[[link]]\nparent='1-ff00:0:1'\nchild='1-ff00:0:2'\n[[link]]\nparent='1-ff00:0:2'\nchild='1-ff00:0:1'",
            "is its own ancestor by the parent-child links",
        ),
        ("[as.'1-0']", "13: `1-0` is a wildcard"),
        ("[as.1-ff00]", "13: `1-ff00` is no value for `as`: write an ISD-AS number"),
        ("[as.'1-ff00:0:111']", "13: "),
        ("rat = '1 Mbit/s'", "13: `rat` means nothing in a link: use one of"),
        ("mtu = 1279", "13: `1279` is no value for `mtu`: write bytes from 1280"),
        ("mtu = ", "13: "),
        ("jitter = '21 ms'", "6: jitter of 21ms exceeds the delay: give at most"),
        ("[[link]]\nparent = '1-ff00:0:110'", "13: a link needs `child`"),
        ("[[link]]", "13: a link needs `core`: write core = "),
        ("[[link]]\ncore = ['1-ff00:0:110']", "14: `[...]` is no value for `core`: write two ends"),
        ("[[link]]\nparent = '1-ff00:0:110#3'\nchild = '1-ff00:0:111'\ncount = 2", "13: `count` makes several links"),
        ("[[link]]\nparent = '1-ff00:0:110'\nchild = '1-ff00:0:111'\ncount = 65", "16: `65` is no value"),
        (
            "[as.'1-ff00:0:113']\nhosts = ['x', 'x']\n[[link]]\nparent='1-ff00:0:110'\nchild='1-ff00:0:113'",
            "14: 1-ff00:0:113 has two hosts named `x`",
        ),
        (
            "[[link]]\nparent = '1-ff00:0:110'\nchild = '1-ff00:0:111'\nunderlay = ['127.16.0.2:20000', '127.9.9.9:1']",
            "13: the address 127.16.0.2:20000 is already used by interface 1",
        ),
        (
            "[[link]]\nparent = '1-ff00:0:110'\nchild = '1-ff00:0:111'\nunderlay = ['[::1]:1', '127.9.9.9:1']",
            "13: the two ends [::1]:1 and 127.9.9.9:1 are of different",
        ),
        (
            "[[link]]\nparent = '1-ff00:0:110#65536'\nchild = '1-ff00:0:111'",
            "14: `1-ff00:0:110#65536` is no value for `parent`",
        ),
    ];
    for (more, expected) in cases {
        let message = two_with(more).expect_err(more).to_string();
        assert!(message.contains(expected), "{more}\n  gives    {message}\n  expected {expected}");
    }
    for (text, expected) in [
        ("", "t.toml:1: no AS is defined"),
        ("network = '127.16.0.1'", "1: `127.16.0.1` is no value"),
        ("segment_lifetime = '19 s'", "1: `19 s` is no value for `segment_lifetime`: write a time from 20 s"),
        ("[defaults]\nspeed = 1", "2: `speed` means nothing in the links' defaults"),
    ] {
        let message = Topology::from_toml("t.toml", text).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn limits_hold() {
    let hosts = |count: usize| {
        let names: Vec<_> = (0..count).map(|at| format!("'h{at}'")).collect();
        let text = format!("[as.'1-1']\ncore = true\nhosts = [{}]", names.join(","));
        Topology::from_toml("t", &text)
    };
    assert_eq!(hosts(limits::HOSTS_PER_AS_MAX).unwrap().ases()[0].hosts[149].address.to_string(), "127.16.0.249");
    assert!(matches!(hosts(limits::HOSTS_PER_AS_MAX + 1).unwrap_err().kind, TopologyErrorKind::TooMany { .. }));

    let ases = |count: usize| {
        let text: String =
            (1..=count).map(|at| format!("[as.'{at}-1']\ncore = true\n[[link]]\ncore=['1-1','{at}-1']\n")).collect();
        Topology::from_toml("t", &text.replacen("[[link]]\ncore=['1-1','1-1']\n", "", 1))
    };
    assert_eq!(ases(limits::ASES_MAX).unwrap().ases()[999].daemon.to_string(), "127.19.231.1:30255");
    assert!(matches!(ases(limits::ASES_MAX + 1).unwrap_err().kind, TopologyErrorKind::TooMany { .. }));

    let deep = |depth: usize| Topology::from_topo("t", &format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    assert_eq!(deep(limits::DEPTH_MAX + 1).unwrap_err().kind, TopologyErrorKind::TooDeep);
    assert_ne!(deep(limits::DEPTH_MAX).unwrap_err().kind, TopologyErrorKind::TooDeep);
    let large = " ".repeat(limits::FILE_SIZE_MAX + 1);
    assert_eq!(Topology::from_toml("t", &large).unwrap_err().kind, TopologyErrorKind::FileTooLarge);
    let high = "network = '127.255.255.0'\n[as.'1-1']\ncore=true\n[as.'1-2']\n[[link]]\nparent='1-1'\nchild='1-2'";
    assert!(matches!(Topology::from_toml("t", high).unwrap_err().kind, TopologyErrorKind::NetworkTooHigh(_)));
}

const TOPO: &str = r#"--- # Tiny
ASes:
  "1-ff00:0:110":
    core: true
    voting: true
    mtu: 1400
  "1-ff00:0:111":
    cert_issuer: 1-ff00:0:110
  "1-ff00:0:112": {cert_issuer: 1-ff00:0:110, underlay: UDP/IPv6}
links:
  - {a: "1-ff00:0:110-A#1", b: "1-ff00:0:111#41", linkAtoB: CHILD, mtu: 1280}
  - {a: "1-ff00:0:112#1", b: "1-ff00:0:110-A#2", linkAtoB: PARENT, bw: 500}
  - {a: "1-ff00:0:111", b: "1-ff00:0:112", linkAtoB: PEER}
"#;

#[test]
fn scionprotos_format_is_read() {
    let topology = Topology::from_topo("tiny.topo", TOPO).unwrap();
    assert_eq!(topology.name, "tiny");
    let core = topology.get(number("1-ff00:0:110")).unwrap();
    assert_eq!((core.core, core.mtu, core.routers.len()), (true, 1400, 1));
    assert_eq!(topology.links()[0].shapes[0].mtu, 1280);
    // Stated from the child, kept from the parent.
    assert_eq!(topology.links()[1].ends.map(|end| end.to_string()), ["1-ff00:0:110#2", "1-ff00:0:112#1"]);
    // Without a label, every interface has a router of its own.
    assert_eq!(topology.get(number("1-ff00:0:111")).unwrap().routers.len(), 2);
    assert_eq!(topology.links()[2].kind, LinkType::Peering);
}

#[test]
fn its_errors_name_lines_too() {
    for (from, to, expected) in [
        ("CHILD", "CHILDREN", "t.topo:11: `CHILDREN` is no value for `linkAtoB`"),
        ("voting", "votign", "t.topo:5: `votign` means nothing in an AS"),
        ("  \"1-ff00:0:111\":", "  \"1-ff00:0:110\":", "t.topo:7: `1-ff00:0:110` is given twice"),
        ("#41", "#x", "t.topo:11: `1-ff00:0:111#x` is no value for `b`"),
        ("b: \"1-ff00:0:112\", ", "", "t.topo:13: a link needs `b`"),
        ("bw: 500}", "bw: 500", "t.topo:13: "),
        ("mtu: 1400", "mtu: *x", "t.topo:6: "),
        ("links:", "lnks:", "t.topo:10: `lnks` means nothing"),
    ] {
        let message = Topology::from_topo("t.topo", &TOPO.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(message.contains(expected), "{to}\n  gives    {message}\n  expected {expected}");
    }
}

proptest::proptest! {
    #[test]
    fn nothing_that_a_file_says_panics(text in "[\\[\\]{}:=#'\"a-z0-9 \n.-]{0,200}") {
        _ = Topology::from_toml("t", &text);
        _ = Topology::from_topo("t", &text);
    }

    #[test]
    fn a_changed_byte_never_panics(at in 0..TWO.len(), byte in 32u8..127, topo_at in 0..TOPO.len()) {
        let change = |text: &str, at: usize| {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = byte;
            String::from_utf8(bytes)
        };
        if let Ok(text) = change(TWO, at) {
            _ = Topology::from_toml("t", &text);
        }
        if let Ok(text) = change(TOPO, topo_at) {
            _ = Topology::from_topo("t", &text);
        }
    }
}
