//! Our end host on pocketscion: lookup, packets over every path, and a link that goes down.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_paths::{Interface, IsdAs, ScionAddr, ScionPath};
use anabranch_pocketscion::Pocket;
use anabranch_scion::lookup::{Daemon, PathLookup, Source};
use anabranch_scion::socket::{ScmpKind, Socket};
use anyhow::{Result, ensure};

const TIMEOUT: Duration = Duration::from_secs(3);
/// Where hosts take SCMP requests.
const SCMP_PORT: u16 = 30041;
/// An end with two uplinks, and one with two parallel ones; they also peer.
const SOURCE: &str = "1-ff00:0:111";
const DESTINATION: &str = "2-ff00:0:211";

async fn lookup(pocket: &Pocket, isd_as: &str) -> Result<PathLookup> {
    let daemon = Daemon::new(pocket.daemon(isd_as)?.to_string());
    Ok(PathLookup::start(Source::Daemon(daemon)).await?)
}

fn bind(lookup: &PathLookup, ip: IpAddr, port: u16) -> Result<Socket> {
    let local = lookup.local_as();
    Ok(Socket::bind(ScionAddr::new(local.isd_as, SocketAddr::new(ip, port)), local.ports.clone())?)
}

/// The paths that pocketscion's routers can forward over: those over peering links it finds, and then its simulation fails
/// on them ("error simulating packet traversal"), because sciparse 0.8.6 cannot advance a path from one peering hop to the other.
async fn routable(lookup: &PathLookup) -> Result<Vec<Arc<ScionPath>>> {
    let paths = lookup.paths(DESTINATION.parse()?).await?;
    Ok(paths.iter().filter(|path| !Pocket::crosses_peering(&path.interfaces)).cloned().collect())
}

/// Addresses of their own for every test: the asker's, the other host's, and that of pocketscion's own echo responder.
fn hosts(test: u8) -> [IpAddr; 3] {
    [1, 2, 3].map(|host| [127, 91, test, host].into())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_finds_every_path_between_all_ases() -> Result<()> {
    let pocket = Pocket::start(hosts(1)[0], hosts(1)[2]).await?;
    let mut count = 0;
    for source in pocket.ases() {
        let lookup = lookup(&pocket, source).await?;
        assert_eq!(lookup.local_as().isd_as, source.parse()?);
        for destination in pocket.ases().filter(|destination| *destination != source) {
            let destination: IsdAs = destination.parse()?;
            let found = lookup.paths(destination).await?;
            let interfaces: BTreeSet<&[Interface]> = found.iter().map(|path| path.interfaces.as_slice()).collect();
            assert_eq!(interfaces.len(), found.len(), "{source} to {destination}: a path twice");
            let known = pocket.paths(source.parse()?, destination)?;
            assert_eq!(interfaces, known.iter().map(Vec::as_slice).collect(), "{source} to {destination}");
            count += found.len();
        }
    }
    println!("{count} paths");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn datagrams_and_pings_are_answered_over_every_path() -> Result<()> {
    let [asker, other, responder] = hosts(2);
    let pocket = Pocket::start(asker, responder).await?;
    let here = lookup(&pocket, SOURCE).await?;
    let there = lookup(&pocket, DESTINATION).await?;
    let server = bind(&there, other, 0)?;
    let at = server.local();
    tokio::spawn(async move {
        let mut buffer = vec![0; 2000];
        while let Ok((len, route)) = server.recv_from(&mut buffer).await {
            // A lost answer fails the test.
            let _ = server.send_to(route, &buffer[..len]).await;
        }
    });
    let paths = routable(&here).await?;
    for path in &paths {
        let socket = bind(&here, asker, 0)?;
        let route = socket.register(at, path)?;
        let payload = path.to_string().into_bytes();
        socket.send_to(route, &payload).await?;
        let mut buffer = vec![0; 2000];
        let received = tokio::time::timeout(TIMEOUT, socket.recv_from(&mut buffer)).await;
        let (len, way) = received.map_err(|_| anyhow::anyhow!("no answer over {path}: {:?}", socket.counters()))??;
        ensure!(way == route && buffer[..len] == payload, "another answer over {path}");

        let responder = ScionAddr::new(DESTINATION.parse()?, SocketAddr::new(responder, SCMP_PORT));
        let route = socket.register(responder, path)?;
        tokio::select! {
            pong = socket.ping(route, 500, TIMEOUT) => {
                pong.map_err(|error| anyhow::anyhow!("{path}: {error}"))?;
            }
            failed = socket.drive() => failed?,
        }
    }
    println!("{} paths", paths.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_down_is_told_as_an_event_that_names_the_interface() -> Result<()> {
    let [asker, other, responder] = hosts(3);
    let pocket = Pocket::start(asker, responder).await?;
    let here = lookup(&pocket, SOURCE).await?;
    let paths = routable(&here).await?;
    let mut count = 0;
    // Every interface that packets leave an AS by, on any path.
    for (path, at) in paths.iter().flat_map(|path| (0..path.interfaces.len()).step_by(2).map(move |at| (path, at))) {
        let down = path.interfaces[at];
        let socket = bind(&here, asker, 0)?;
        let route = socket.register(ScionAddr::new(DESTINATION.parse()?, SocketAddr::new(other, 31_000)), path)?;
        pocket.set_link_up(down, false)?;
        // pocketscion sends errors about datagrams alone back to who sent them.
        socket.send_to(route, b"is anybody there").await?;
        let event = tokio::select! {
            event = tokio::time::timeout(TIMEOUT, socket.event()) => {
                event.map_err(|_| anyhow::anyhow!("{path}, {down} being down: no event; {:?}", socket.counters()))?
            }
            failed = socket.drive() => anyhow::bail!("{failed:?}"),
        };
        assert_eq!((event.route, event.kind), (route, ScmpKind::ExternalInterfaceDown(down)), "{path}");
        pocket.set_link_up(down, true)?;
        count += 1;
    }
    println!("{count} links down, over {} paths", paths.len());
    Ok(())
}
