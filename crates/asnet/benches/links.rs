//! Links against what they were asked to do, from 1 Mbit/s to 1 Gbit/s: `cargo bench -p anabranch-asnet --bench links`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::router::{
    DataPlane, HOST_PORTS_DEFAULT, InterfaceConfig, LinkEnd, LinkRole, RouterConfig, check_links,
};

/// Rate in Mbit/s, delay and jitter in milliseconds, loss in percent.
const SHAPES: [(u64, u64, u64, f64); 8] = [
    (1, 10, 0, 0.0),
    (3, 50, 10, 0.0),
    (10, 5, 0, 2.0),
    (30, 100, 20, 5.0),
    (100, 20, 0, 0.0),
    (300, 40, 5, 1.0),
    (1000, 10, 0, 0.0),
    (1000, 100, 0, 0.0),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plane = DataPlane::start(None)?;
    let (one, other) = ("1-ff00:0:110".parse()?, "1-ff00:0:111".parse()?);
    let address = |host: u8, port: u16| SocketAddr::new(Ipv4Addr::new(127, 250, 0, host).into(), port);
    let router = |isd_as, neighbor, role, own, far| {
        let interfaces =
            (1..=SHAPES.len() as u16).zip(SHAPES).map(|(id, (mbps, delay_ms, jitter_ms, loss_percent))| {
                let shape = LinkShape {
                    rate_bps: Some(mbps * 1_000_000),
                    delay: Duration::from_millis(delay_ms),
                    jitter: Duration::from_millis(jitter_ms),
                    loss: loss_percent / 100.0,
                    ..LinkShape::default()
                };
                let (local, remote) = (address(own, 20_000 + id), address(far, 20_000 + id));
                InterfaceConfig { id, role, neighbor, local, remote, shape }
            });
        RouterConfig {
            isd_as,
            forwarding_key: [1; 16],
            internal: vec![address(own, 30_042)],
            host_ports: HOST_PORTS_DEFAULT,
            services: Vec::new(),
            interfaces: interfaces.collect(),
        }
    };
    let one_router = plane.add_router(&router(one, other, LinkRole::Child, 1, 2))?;
    let other_router = plane.add_router(&router(other, one, LinkRole::Parent, 2, 1))?;
    let end = |router: &Arc<_>, interface| LinkEnd { router: Arc::clone(router), interface };
    let links: Vec<_> = one_router.interfaces().map(|id| (end(&one_router, id), end(&other_router, id))).collect();
    let reports = check_links(&links)?;
    for report in &reports {
        println!("{report}");
    }
    let right = reports.iter().filter(|report| report.is_as_asked()).count();
    println!("{right} of {} directions do what was asked, within 5 %", reports.len());
    Ok(())
}
