//! A network that others wrote, for our end host to prove itself on: Anapaya's pocketscion, in this process.
//!
//! Its daemons speak gRPC, and its routers take packets at UDP sockets of the loopback. What is between them is simulated: hop
//! fields are verified, links go down, SCMP errors come back. Two ISDs with three core ASes and three leaves:
//!
//! ```text
//!   ISD 1                               ISD 2
//!   110 ====== 120 -------------------- 210
//!    | \______/ | \___________________/ ||
//!    |/         |                       ||
//!   111        112                      211   (110-210 too; 111 and 211 peer)
//! ```

mod checksums;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use anabranch_paths::{Interface, IsdAs};
use anyhow::{Context, Result};
use chrono::Utc;
use pocketscion::comp::daemon::DaemonServiceState;
use pocketscion::io_config::IoConfig;
use pocketscion::network::scion::topology::{ScionAs, ScionLink, ScionTopologyBuilder};
use pocketscion::runtime::{PocketScionRuntime, builder::PocketScionRuntimeBuilder};
use pocketscion::state::PocketScionState;
use sciparse::identifier::isd_asn::IsdAsn;

use checksums::Repaired;

const CORES: [&str; 3] = ["1-ff00:0:110", "1-ff00:0:120", "2-ff00:0:210"];
const LEAVES: [&str; 3] = ["1-ff00:0:111", "1-ff00:0:112", "2-ff00:0:211"];
const LINKS: [&str; 11] = [
    "1-ff00:0:110#1 core 1-ff00:0:120#1",
    "1-ff00:0:110#2 core 1-ff00:0:120#2",
    "1-ff00:0:110#3 core 2-ff00:0:210#1",
    "1-ff00:0:120#3 core 2-ff00:0:210#2",
    "1-ff00:0:110#4 parent_of 1-ff00:0:111#1",
    "1-ff00:0:120#4 parent_of 1-ff00:0:111#2",
    "1-ff00:0:120#5 parent_of 1-ff00:0:112#1",
    "2-ff00:0:210#3 parent_of 2-ff00:0:211#1",
    "2-ff00:0:210#4 parent_of 2-ff00:0:211#2",
    "1-ff00:0:111#3 peer 2-ff00:0:211#3",
    "1-ff00:0:111#4 peer 1-ff00:0:112#2",
];

/// The network. It ends when it is dropped.
pub struct Pocket {
    runtime: PocketScionRuntime,
    io: IoConfig,
}

impl Pocket {
    /// Starts it, on ports of its own choice. SCMP messages that the network sends to `asker`, a host of any AS, get checksums
    /// that hold. At `responder`, in any AS, it answers echo requests itself. (To other hosts it takes them at the port that is
    /// their identifier, where nobody waits for them.)
    ///
    /// # Errors
    /// When it cannot have its sockets.
    pub async fn start(asker: IpAddr, responder: IpAddr) -> Result<Self> {
        scion_sdk_utils::rustls::select_ring_crypto_provider();
        let mut topology = ScionTopologyBuilder::new();
        let mut interfaces: BTreeMap<IsdAsn, Vec<NonZeroU16>> = BTreeMap::new();
        for core in CORES {
            topology.add_as(ScionAs::new_core(core.parse()?))?;
        }
        for leaf in LEAVES {
            topology.add_as(ScionAs::new(leaf.parse()?))?;
        }
        for link in LINKS {
            topology.add_link(link.parse::<ScionLink>()?)?;
            for end in [link.split(' ').next(), link.split(' ').next_back()] {
                let (isd_as, id) = end.and_then(|end| end.split_once('#')).context("a link has two ends")?;
                interfaces.entry(isd_as.parse()?).or_default().push(id.parse()?);
            }
        }
        let mut state = PocketScionState::new(Utc::now());
        state.set_topology(topology.build()?);
        state.enable_global_scmp_echo_responder(responder.into());
        let repaired = Arc::new(Repaired::new(asker)?);
        for (isd_as, ids) in interfaces {
            state.add_router(isd_as, ids, Vec::new(), BTreeMap::new());
            state.add_daemon_service(isd_as, DaemonServiceState::new())?;
            state.add_sim_receiver(isd_as, asker.into(), repaired.clone())?;
        }
        let io = IoConfig::default();
        let builder = PocketScionRuntimeBuilder::new().with_system_state(state).with_io_config(io.clone());
        Ok(Self { runtime: builder.start().await?, io })
    }

    /// All its ASes.
    pub fn ases(&self) -> impl Iterator<Item = &'static str> {
        CORES.into_iter().chain(LEAVES)
    }

    /// Where an AS's daemon listens.
    ///
    /// # Errors
    /// When there is no such AS.
    pub fn daemon(&self, isd_as: &str) -> Result<SocketAddr> {
        self.io.daemon_service_addr(isd_as.parse()?).with_context(|| format!("no daemon in {isd_as}"))
    }

    /// The paths that pocketscion itself has, each as the interfaces that a packet passes.
    ///
    /// # Errors
    /// When there is no such AS.
    pub fn paths(&self, source: IsdAs, destination: IsdAs) -> Result<Vec<Vec<Interface>>> {
        let [source, destination] = [source, destination].map(|each| IsdAsn::from_u64(each.to_u64()));
        let paths = self.runtime.paths(source, destination, Utc::now())?;
        let interface = |id: u16, isd_as: IsdAsn| Interface { isd_as: IsdAs::from_u64(isd_as.to_u64()), id };
        let interfaces = paths.iter().map(|path| {
            let metadata = path.metadata().and_then(|metadata| metadata.interfaces.as_ref());
            let passed = metadata.context("a path without interfaces")?.iter();
            Ok(passed.map(|each| interface(each.interface.id, each.interface.isd_asn)).collect())
        });
        interfaces.collect()
    }

    /// Whether a path passes one of the peering links.
    pub fn crosses_peering(interfaces: &[Interface]) -> bool {
        let peering = LINKS.iter().filter(|link| link.contains(" peer "));
        let ends: Vec<&str> = peering.flat_map(|link| link.split(" peer ")).collect();
        interfaces.iter().any(|interface| ends.contains(&interface.to_string().as_str()))
    }

    /// Takes the link at an interface down, or up again.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn set_link_up(&self, interface: Interface, is_up: bool) -> Result<()> {
        let isd_as = IsdAsn::from_u64(interface.isd_as.to_u64());
        self.runtime.set_link_state(isd_as, interface.id, is_up).with_context(|| format!("no link at {interface}"))?;
        Ok(())
    }
}
