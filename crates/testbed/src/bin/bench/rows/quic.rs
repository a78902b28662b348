//! One QUIC stream between two processes of this machine: over UDP/IP, inside a SCION AS, over two of its routers.

use std::time::Duration;

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, Result};

use crate::report::Sample;
use crate::workspace::Workspace;

/// Longest that one run may take.
const LIMIT: Duration = Duration::from_secs(120);
/// The two ASes.
pub(super) const ONE: &str = "1-ff00:0:110";
/// See [`ONE`].
pub(super) const OTHER: &str = "1-ff00:0:111";

/// What the packets pass.
#[derive(Clone, Copy)]
pub(super) enum Route {
    Ip,
    InsideAs,
    RouterPair,
}

/// The payload rate of one stream whose packets have at most `mtu` bytes of UDP payload.
pub(super) fn stream(workspace: &mut Workspace, way: Route, congestion: &str, mtu: u16) -> Result<Sample> {
    let (bytes, mtu_text) = (workspace.len.to_string(), mtu.to_string());
    let floor = workspace.floor();
    let (network, listen, local) = match way {
        Route::Ip => (None, "127.0.0.1:0".to_owned(), "127.0.0.1:0".to_owned()),
        Route::InsideAs => (None, format!("[{ONE},127.0.0.1]:0"), format!("[{ONE},127.0.0.1]:0")),
        Route::RouterPair => {
            let network = pair(mtu)?;
            (Some(network), format!("[{ONE},127.0.0.1]:0"), format!("[{OTHER},127.0.0.1]:0"))
        }
    };
    let mut sending = std::process::Command::new(&floor);
    let mut sender = Process::spawn("sender", sending.args(["quic-send", &bytes, &listen, congestion, &mtu_text]))?;
    let (event, _) = sender.wait_event("listening", LIMIT)?;
    let address = event["address"].as_str().unwrap_or_default().to_owned();
    let mut receiving = std::process::Command::new(&floor);
    receiving.args(["quic-recv", &address, congestion, &mtu_text, &local]);
    if let Some(network) = &network {
        let isd_as = OTHER.parse().map_err(|_| nonsense("an AS's number"))?;
        let home = network.topology().get(isd_as).ok_or_else(|| nonsense("the topology"))?;
        receiving.arg(home.daemon.to_string());
    }
    let (lines, usage) = Process::run("receiver", &mut receiving, LIMIT)?;
    let finished = lines.iter().map(|line| line.json()).find(|event| event["event"] == "finished");
    let rate = finished.and_then(|event| event["rate_bits"].as_f64()).ok_or_else(|| nonsense("the receiver"))?;
    let sent = sender.wait_success(LIMIT)?;
    Ok(Sample {
        figure: rate / 1e6,
        cpu_fetch: Some(usage.cpu().as_secs_f64()),
        cpu_share: Some(sent.cpu().as_secs_f64()),
        ..Sample::default()
    })
}

/// Two ASes and the link between them, in this process.
pub(super) fn pair(mtu: u16) -> Result<Network> {
    let text = format!(
        "network = '127.130.0.0'\n[as.'{ONE}']\ncore = true\nmtu = {mtu}\n[as.'{OTHER}']\nmtu = {mtu}\n\
         [[link]]\nparent = '{ONE}'\nchild = '{OTHER}'\nmtu = {mtu}\n"
    );
    let topology = Topology::from_toml("pair.toml", &text).map_err(|error| nonsense(&error.to_string()))?;
    Network::start(topology, Options::default()).map_err(|error| nonsense(&error.to_string()))
}

fn nonsense(what: &str) -> Error {
    Error::Nonsense { name: "the QUIC row".into(), what: what.into() }
}
