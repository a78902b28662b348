//! Against a whole embedded network: its daemons, and its control services asked for segments that are combined here.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use anabranch_asnet::control;
use anabranch_asnet::control::services::topology_json;
use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology as NetworkTopology;
use anabranch_paths::ScionPath;
use anabranch_scion::lookup::topology::Topology;
use anabranch_scion::lookup::{ControlService, Daemon, PathLookup, Source};
use tokio::time::timeout;

use super::PATIENCE;

/// Two ISDs, three cores, six leaves, parallel links and peering links, at loopback addresses that no other test has.
const TOPOLOGY: &str = r#"
network = "127.97.0.0"
[as."1-ff00:0:110"]
core = true
[as."1-ff00:0:120"]
core = true
[as."2-ff00:0:210"]
core = true
[as."1-ff00:0:111"]
mtu = 1400
[as."1-ff00:0:112"]
[as."1-ff00:0:121"]
[as."1-ff00:0:122"]
[as."2-ff00:0:211"]
[as."2-ff00:0:212"]
[[link]]
core = ["1-ff00:0:110", "1-ff00:0:120"]
[[link]]
core = ["1-ff00:0:110", "1-ff00:0:120"]
[[link]]
core = ["1-ff00:0:110", "2-ff00:0:210"]
[[link]]
core = ["1-ff00:0:120", "2-ff00:0:210"]
[[link]]
parent = "1-ff00:0:110"
child = "1-ff00:0:111"
delay = "10 ms"
rate = "8 Mbit/s"
[[link]]
parent = "1-ff00:0:120"
child = "1-ff00:0:111"
[[link]]
parent = "1-ff00:0:111"
child = "1-ff00:0:112"
[[link]]
parent = "1-ff00:0:111"
child = "1-ff00:0:112"
[[link]]
parent = "1-ff00:0:120"
child = "1-ff00:0:121"
[[link]]
parent = "1-ff00:0:111"
child = "1-ff00:0:122"
[[link]]
parent = "2-ff00:0:210"
child = "2-ff00:0:211"
[[link]]
parent = "2-ff00:0:211"
child = "2-ff00:0:212"
[[link]]
peering = ["1-ff00:0:112", "2-ff00:0:212"]
[[link]]
peering = ["1-ff00:0:121", "1-ff00:0:122"]
"#;

fn start(third: u8, control: control::Options) -> Network {
    let text = TOPOLOGY.replace("127.97", &format!("127.{third}"));
    let topology = NetworkTopology::from_toml("net", &text).unwrap();
    Network::start(topology, Options { control, ..Options::default() }).unwrap()
}

/// What of a path both sources must agree on.
fn essence(paths: &[ScionPath]) -> BTreeSet<String> {
    let claims = |path: &ScionPath| {
        format!("{path} {} {:?} {:?} {:?}", path.mtu, path.next_hop, path.latency, path.bandwidth_kbps)
    };
    let all: BTreeSet<String> = paths.iter().map(claims).collect();
    assert_eq!(all.len(), paths.len(), "each way once");
    all
}

#[tokio::test]
async fn daemons_and_control_services_lead_to_the_same_paths() {
    let network = start(97, control::Options::default());
    let mut peering = 0;
    for from in network.ases() {
        let daemon = Source::Daemon(Daemon::new(from.daemon.to_string()));
        let topology = Topology::parse(topology_json(network.topology(), from).as_bytes()).unwrap();
        let segments = Source::ControlService(ControlService::new(&topology));
        let local = daemon.local_as().await.unwrap();
        assert_eq!(local, segments.local_as().await.unwrap());
        for to in network.ases().filter(|to| to.isd_as != from.isd_as) {
            let [told, combined] = [
                daemon.paths(local.isd_as, to.isd_as, false).await.unwrap(),
                segments.paths(local.isd_as, to.isd_as, false).await.unwrap(),
            ];
            assert!(!told.is_empty());
            assert_eq!(essence(&told), essence(&combined), "{} to {}", from.isd_as, to.isd_as);
            // The shortest way between the peers is their link.
            peering += told.iter().filter(|path| path.interfaces.len() == 2 && path.dataplane[4] & 2 != 0).count();
        }
    }
    assert_eq!(peering, 4, "both peering links in both directions");
}

/// Lives of twenty seconds, and a daemon that is stopped and started again.
#[tokio::test]
async fn a_refresh_brings_new_bytes_under_the_same_names() {
    let segment_lifetime = Duration::from_secs(20);
    let network = start(98, control::Options { segment_lifetime, ..control::Options::default() });
    let [from, to] = ["1-ff00:0:112", "2-ff00:0:212"].map(|text| text.parse().unwrap());
    let daemon = network.topology().get(from).unwrap().daemon;
    let lookup = PathLookup::start(Source::Daemon(Daemon::new(daemon.to_string()))).await.unwrap();
    let mut watch = lookup.watch(to).await.unwrap();
    let first = timeout(PATIENCE, watch.changed()).await.unwrap().unwrap().added;
    let last_expiry = first.iter().map(|path| path.expiry).max().unwrap();
    network.stop_daemon(from).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    network.start_daemon(from).unwrap();
    let mut refreshed = BTreeSet::new();
    while refreshed.len() < first.len() {
        let change = timeout(PATIENCE, watch.changed()).await.unwrap().unwrap();
        assert!(change.added.is_empty() && change.removed.is_empty());
        let later = change.refreshed.iter().filter(|path| path.expiry > last_expiry);
        refreshed.extend(later.map(|path| path.id()));
    }
    let snapshot = watch.snapshot();
    assert!(snapshot.paths.iter().all(|path| path.expiry > SystemTime::now()));
    for path in first {
        let now = snapshot.paths.iter().find(|now| now.id() == path.id()).unwrap();
        assert_ne!(now.dataplane, path.dataplane);
    }
}
