//! Whole networks: packets of hosts over every path that daemons answer with.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anabranch_asnet::network::client::{self, ClientError};
use anabranch_asnet::network::{Direction, Network, NetworkError, Options};
use anabranch_asnet::topology::Topology;
use anabranch_paths::{IsdAs, ScionPath};
use anabranch_scion_wire::scmp::Message;
use anabranch_scion_wire::{
    Address, HeaderFields, HeaderTemplate, Packet, PathRef, Ports, StandardPath, checksum, udp,
};

/// A network of its own addresses, so that tests run beside each other.
fn start(file: &str, net: u8, options: Options) -> Network {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let topology = Topology::from_toml(file, &format!("network = '127.{net}.0.0'\n{text}")).unwrap();
    Network::start(topology, options).unwrap()
}

fn number(text: &str) -> IsdAs {
    text.parse().unwrap()
}

/// The first host of an AS, with a socket.
struct TestHost {
    isd_as: IsdAs,
    socket: UdpSocket,
}

impl TestHost {
    fn new(network: &Network, isd_as: IsdAs, port: u16) -> Self {
        let address = network.topology().get(isd_as).unwrap().hosts[0].address;
        let socket = UdpSocket::bind((address, port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Self { isd_as, socket }
    }

    fn address(&self) -> (Address, SocketAddr) {
        let local = self.socket.local_addr().unwrap();
        (Address::new(self.isd_as, local.ip()), local)
    }

    fn send(&self, to: &Self, path: &ScionPath, payload: &[u8]) {
        let ((source, from), (destination, there)) = (self.address(), to.address());
        let header = match path.dataplane.as_slice() {
            [] => PathRef::Empty,
            bytes => PathRef::Standard(StandardPath::parse(bytes).unwrap()),
        };
        let fields = HeaderFields { source, destination, path: header, flow_id: 1, traffic_class: 0 };
        let template = HeaderTemplate::new(&fields, Ports { source: from.port(), destination: there.port() }).unwrap();
        let mut packet = vec![0; 2048];
        let header_len = template.write(payload.len(), checksum::sum(payload), &mut packet).unwrap();
        packet[header_len..][..payload.len()].copy_from_slice(payload);
        packet.truncate(header_len + payload.len());
        self.socket.send_to(&packet, path.next_hop.unwrap_or(there)).unwrap();
    }

    /// The payload of the next packet, if it is UDP.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut bytes = [0; 2048];
        let len = self.socket.recv(&mut bytes).ok()?;
        let packet = Packet::parse(&bytes[..len]).unwrap();
        udp::Datagram::parse(&packet).ok().map(|datagram| datagram.payload().to_vec())
    }

    /// The interface that the next packet, an SCMP error, says is down.
    fn receive_down(&self) -> Option<(IsdAs, u16)> {
        let mut bytes = [0; 2048];
        let len = self.socket.recv(&mut bytes).ok()?;
        match Message::parse(&Packet::parse(&bytes[..len]).unwrap()) {
            Ok(Message::ExternalInterfaceDown { isd_as, interface, .. }) => Some((isd_as, interface)),
            _ => None,
        }
    }
}

#[test]
fn packets_arrive_over_every_path_between_any_two_ases() {
    let network = start("two-isds.toml", 90, Options::default());
    let ases: Vec<IsdAs> = network.ases().map(|each| each.isd_as).collect();
    assert_eq!(ases.len(), 9);
    let hosts: Vec<_> = ases.iter().map(|isd_as| TestHost::new(&network, *isd_as, 31_000)).collect();
    let mut peering = 0;
    for from in &hosts {
        for to in &hosts {
            let paths = network.control().paths(from.isd_as, to.isd_as, SystemTime::now()).unwrap();
            assert!(!paths.is_empty(), "{} {}", from.isd_as, to.isd_as);
            for (index, path) in paths.iter().enumerate() {
                let payload = format!("{} to {} by {index}", from.isd_as, to.isd_as);
                from.send(to, path, payload.as_bytes());
                assert_eq!(to.receive(), Some(payload.into_bytes()), "{:?}", path.interfaces);
                let header = StandardPath::parse(&path.dataplane);
                peering += usize::from(header.is_ok_and(|header| header.has_peering()));
            }
        }
    }
    assert!(peering > 0);
    let alice = number("1-ff00:0:111");
    let to_erin = network.control().paths(alice, number("2-ff00:0:211"), SystemTime::now()).unwrap();
    let distinct: std::collections::HashSet<_> = to_erin.iter().map(|path| &path.interfaces).collect();
    assert_eq!(distinct.len(), to_erin.len());
    // One by peering; over the cores each way twice, for the parallel links at the end.
    assert!(to_erin.len() >= 9, "{}", to_erin.len());
}

#[test]
fn links_go_down_and_up_by_the_control_api() {
    let api = Some("127.0.0.1:0".parse().unwrap());
    let network = start("line.toml", 91, Options { api, ..Options::default() });
    let api = network.api().unwrap();
    let hosts = ["1-ff00:0:111", "1-ff00:0:112"].map(|isd_as| TestHost::new(&network, number(isd_as), 31_000));
    let [alice, bob] = &hosts;
    let path = network.control().paths(alice.isd_as, bob.isd_as, SystemTime::now()).unwrap().remove(0);
    alice.send(bob, &path, b"up");
    assert_eq!(bob.receive().as_deref(), Some(&b"up"[..]));

    let link = client::change_link(api, &serde_json::json!({"a": "1-ff00:0:110", "b": "1-ff00:0:112", "up": false}));
    assert_eq!(link.unwrap()["up"], false);
    alice.send(bob, &path, b"down");
    assert_eq!(alice.receive_down(), Some((number("1-ff00:0:110"), 2)));
    bob.socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert_eq!(bob.receive(), None);

    let order = serde_json::json!({"a": "1-ff00:0:112#1", "up": true, "direction": "there",
        "set": {"rate": "8 Mbit/s", "delay": "1 ms", "mtu": 1400}});
    let link = client::change_link(api, &order).unwrap();
    assert_eq!(
        (&link["up"], &link["there"]["rate_bps"], &link["back"]["rate_bps"]),
        (&true.into(), &8_000_000.into(), &serde_json::Value::Null)
    );
    alice.send(bob, &path, b"up again");
    bob.socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(bob.receive().as_deref(), Some(&b"up again"[..]));

    let shown = client::network(api).unwrap();
    assert_eq!(shown["ases"].as_array().unwrap().len(), 3);
    let counted = |each: &serde_json::Value| each["counters"]["sent_packets"].is_u64();
    assert!(shown["ases"].as_array().unwrap().iter().all(counted));
    assert_eq!(shown["links"][1]["there"]["mtu"], 1400);
    assert_eq!(shown["links"][1]["counters"][0]["sent_packets"], 2);
    let state = network.link(1).unwrap();
    network.set_link_shape(1, Direction::Both, state.shapes[1]).unwrap();
    assert_eq!(network.link(1).unwrap().shapes[0].rate_bps, None);
}

#[test]
fn orders_that_make_no_sense_change_nothing() {
    let api = Some("127.0.0.1:0".parse().unwrap());
    let network = start("two-isds.toml", 92, Options { api, ..Options::default() });
    let api = network.api().unwrap();
    let before = network.link(0).unwrap();
    let link = r#""a": "1-ff00:0:110#1""#;
    for (order, expected) in [
        ("{}".to_owned(), "`a` is missing"),
        ("[]".to_owned(), "send an object"),
        (format!("{{{link}, \"u\": 1}}"), "`u` means nothing"),
        (format!("{{{link}, \"up\": \"no\"}}"), "write true or false"),
        (format!("{{{link}, \"up\": false, \"set\": {{\"rate\": \"fast\"}}}}"), "`fast` is no value for `rate`"),
        (format!("{{{link}, \"set\": {{\"jitter\": \"9 s\"}}}}"), "jitter of 9s exceeds the delay"),
        (format!("{{{link}, \"direction\": \"up\"}}"), "`up` is no direction"),
        (r#"{"a": "1-ff00:0:110", "b": "1-ff00:0:120"}"#.to_owned(), "several links join"),
        (r#"{"a": "1-ff00:0:113", "b": "2-ff00:0:212"}"#.to_owned(), "no link joins"),
        (r#"{"a": "x"}"#.to_owned(), "`x` is no end of a link"),
    ] {
        let order = serde_json::from_str(&order).unwrap();
        let error = client::change_link(api, &order).unwrap_err();
        assert!(matches!(error, ClientError::Refused(_)) && error.to_string().contains(expected), "{error}");
    }
    assert_eq!(network.link(0).unwrap(), before);
    let nobody = "127.0.0.1:1".parse().unwrap();
    assert!(client::network(nobody).unwrap_err().to_string().contains("anabranch net up"));
}

#[test]
fn parts_of_a_network_agree_without_a_word() {
    let part = |ases: &[&str]| {
        let only = ases.iter().map(|each| number(each)).collect();
        start("line.toml", 93, Options { only, secret: Some([5; 32]), ..Options::default() })
    };
    let parts = [part(&["1-ff00:0:110"]), part(&["1-ff00:0:111"]), part(&["1-ff00:0:112"])];
    let alice = TestHost::new(&parts[1], number("1-ff00:0:111"), 31_000);
    let bob = TestHost::new(&parts[2], number("1-ff00:0:112"), 31_000);
    let path = parts[1].control().paths(alice.isd_as, bob.isd_as, SystemTime::now()).unwrap().remove(0);
    alice.send(&bob, &path, b"hello");
    assert_eq!(bob.receive().as_deref(), Some(&b"hello"[..]));
    assert_eq!(parts[1].ases().count(), 1);
    let lone = Topology::clone(parts[0].topology());
    let options = Options { only: vec![number("1-ff00:0:110")], ..Options::default() };
    assert!(matches!(Network::start(lone, options), Err(NetworkError::NoSecret)));
}

#[test]
fn a_network_stops_and_starts_again_on_its_addresses() {
    let first = start("line.toml", 94, Options::default());
    let second = || {
        let topology = Topology::clone(first.topology());
        Network::start(topology, Options::default())
    };
    // What is taken is named.
    assert!(second().err().unwrap().to_string().contains("127.94.0.2"));
    let daemon = first.topology().ases()[1].daemon;
    assert!(std::net::TcpStream::connect(daemon).is_ok());
    first.stop_daemon(number("1-ff00:0:111")).unwrap();
    assert!(std::net::TcpStream::connect(daemon).is_err());
    first.start_daemon(number("1-ff00:0:111")).unwrap();
    assert!(std::net::TcpStream::connect(daemon).is_ok());
    let topology = Topology::clone(first.topology());
    drop(first);
    assert!(std::net::TcpStream::connect(daemon).is_err());
    drop(Network::start(topology, Options::default()).unwrap());
}

#[test]
fn the_other_examples_run() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies/diamond.topo");
    let topology = Topology::load(&path).unwrap();
    assert_eq!((topology.ases().len(), topology.links().len()), (4, 5));
}
