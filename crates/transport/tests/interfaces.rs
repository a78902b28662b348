//! Interfaces and routes of a real system: a network namespace with two links.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_paths::Endpoint;
use anabranch_transport::{ConnectError, Interfaces, TcpListener, TcpStream, Via};

/// Runs `work` in a network namespace of its own; does nothing where this process may not make one.
fn alone(work: fn()) {
    // SAFETY: geteuid has no preconditions; unshare moves this thread alone, which ends with `work`.
    let thread = std::thread::spawn(move || unsafe {
        if libc::geteuid() != 0 || libc::unshare(libc::CLONE_NEWNET) != 0 {
            eprintln!("left out: not root");
            return;
        }
        work();
    });
    thread.join().unwrap();
}

fn ip(words: &str) {
    assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "ip {words}");
}

fn link(name: &str, address: &str) {
    ip(&format!("link add {name} type veth peer name {name}-far"));
    ip(&format!("link set {name}-far up"));
    ip(&format!("link set {name} up"));
    ip(&format!("addr add {address} dev {name}"));
}

fn ways(interfaces: &Interfaces, remotes: &[&str]) -> Vec<String> {
    let remotes: Vec<SocketAddr> = remotes.iter().map(|text| text.parse().unwrap()).collect();
    interfaces.candidates(&remotes).iter().map(|way| format!("{} to {}", way.via, way.remote)).collect()
}

/// Looks until there are so many ways: the system notices a carrier by and by.
fn wait_for(interfaces: &mut Interfaces, remotes: &[&str], count: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while ways(interfaces, remotes).len() != count {
        assert!(Instant::now() < deadline, "{:?}", interfaces.list());
        std::thread::sleep(Duration::from_millis(10));
        interfaces.refresh().unwrap();
    }
}

#[test]
fn only_interfaces_with_a_route_lead_to_a_peer() {
    alone(|| {
        ip("link set lo up");
        assert!(!Interfaces::new(&[]).unwrap().refresh().unwrap(), "nothing changed");
        link("up1", "10.1.0.1/24");
        link("up2", "10.2.0.1/24");
        ip("addr add fd00:1::1/64 dev up1 nodad");
        let mut interfaces = Interfaces::new(&[]).unwrap();
        let both = ["10.1.0.2:7000", "10.2.0.2:7000"];
        assert_eq!(ways(&interfaces, &both), ["up1 (10.1.0.1) to 10.1.0.2:7000", "up2 (10.2.0.1) to 10.2.0.2:7000"]);
        assert_eq!(ways(&interfaces, &["[fd00:1::2]:7000"]), ["up1 (fd00:1::1) to [fd00:1::2]:7000"]);
        // Beyond the links: where there is a route, by each that has one.
        let beyond = ["192.0.2.7:80", "[2001:db8::7]:80"];
        assert_eq!(ways(&interfaces, &beyond), [""; 0]);
        ip("route add default via 10.1.0.2 dev up1 metric 100");
        assert_eq!(ways(&interfaces, &beyond), ["up1 (10.1.0.1) to 192.0.2.7:80"]);
        ip("route add default via 10.2.0.2 dev up2 metric 600");
        assert_eq!(ways(&interfaces, &beyond), ["up1 (10.1.0.1) to 192.0.2.7:80", "up2 (10.2.0.1) to 192.0.2.7:80"]);
        // And where a rule gives an address a table of its own, as multi-homed hosts often have it.
        ip("route del default dev up2");
        ip("route add default via 10.2.0.2 dev up2 table 77");
        ip("rule add from 10.2.0.1 table 77");
        assert_eq!(ways(&interfaces, &beyond).len(), 2);
        ip("route add unreachable 192.0.2.0/24");
        ip("route add unreachable 192.0.2.0/24 table 77");
        assert_eq!(ways(&interfaces, &beyond), [""; 0]);

        // The user's choice, and uplinks that come and go.
        let mut second = Interfaces::new(&["up2".to_owned()]).unwrap();
        assert_eq!(
            ways(&second, &both),
            ["up2 (10.2.0.1) to 10.2.0.2:7000", "up2 (10.2.0.1) to 10.1.0.2:7000"],
            "by the routes of the only interface that may be used"
        );
        ip("link set up2-far down");
        wait_for(&mut second, &both, 0);
        interfaces.refresh().unwrap();
        assert_eq!(
            ways(&interfaces, &both),
            ["up1 (10.1.0.1) to 10.1.0.2:7000", "up1 (10.1.0.1) to 10.2.0.2:7000"],
            "the default route is left"
        );
        assert!(!interfaces.has("10.2.0.1".parse().unwrap()));
        ip("link set up2-far up");
        wait_for(&mut second, &both, 2);
        ip("link del up2");
        wait_for(&mut second, &both, 0);
        interfaces.refresh().unwrap();
        assert_eq!(interfaces.reachable_at(&["0.0.0.0:7000".parse().unwrap()]), ["10.1.0.1:7000".parse().unwrap()]);
    });
}

#[tokio::test]
async fn a_way_on_this_machine_connects_and_its_path_is_the_candidates() {
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr();
    let interfaces = Interfaces::new(&[]).unwrap();
    let [way] = &interfaces.candidates(&[at])[..] else { panic!("one way") };
    let stream = TcpStream::connect(at.into(), Some(&way.via)).await.unwrap();
    assert_eq!(stream.peer().path, way.path);
    assert_eq!(TcpStream::connect(at.into(), None).await.unwrap().peer().path, way.path);
}

#[tokio::test]
async fn errors_name_the_way_and_the_peer() {
    let peer: Endpoint = "192.0.2.7:6881".parse().unwrap();
    let via = Via { source: IpAddr::from([10, 9, 8, 7]), interface: "nope7".to_owned(), index: 77, is_local: false };
    let error = TcpStream::connect(peer, Some(&via)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Over { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with("over nope7 (10.9.8.7): cannot connect to 192.0.2.7:6881: "), "{text}");
}
