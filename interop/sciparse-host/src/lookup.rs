//! What the daemon and the control service say.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use scion_protobuf::buffa_types::google::protobuf::Empty;
use scion_protobuf::connectrpc::Protocol;
use scion_protobuf::connectrpc::client::{ClientConfig, HttpClient};
use scion_protobuf::proto::control_plane::v1::{SegmentLookupServiceClient, SegmentsRequest};
use scion_protobuf::proto::daemon::v1::{ASRequest, DaemonServiceClient, InterfacesRequest, PathsRequest};
use sciparse::dataplane_path::model::DpPath;
use sciparse::dataplane_path::view::ScionDpPathViewExt;
use sciparse::identifier::isd_asn::IsdAsn;
use sciparse::path::ScionPath;
use sciparse::path::combinator::combine;
use sciparse::segment::SegmentsPage;
use sciparse::segment::list_segment_plan::{CoreHint, Dst, ListSegmentPlan, Src};
use tokio::runtime::Runtime;

const TIMEOUT: Duration = Duration::from_secs(5);

/// The daemon of the AS that this host is in.
pub struct Daemon {
    runtime: Runtime,
    client: DaemonServiceClient<HttpClient>,
    home: IsdAsn,
    core: bool,
    ports: RangeInclusive<u16>,
}

impl Daemon {
    /// Asks the daemon at `address` where this host is.
    pub fn connect(address: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let config = config(address)?.with_protocol(Protocol::Grpc);
        let client = DaemonServiceClient::new(HttpClient::plaintext_http2_only(), config);
        let (home, ports) = runtime
            .block_on(async {
                let home = client.r#as(ASRequest { isd_as: 0 }).await?.into_owned();
                let ports = client.port_range(Empty::default()).await?.into_owned();
                Ok::<_, scion_protobuf::connectrpc::ConnectError>((home, ports))
            })
            .map_err(|error| anyhow!("the daemon at {address}: {error}"))?;
        let port = |port| u16::try_from(port).with_context(|| format!("the daemon says port {port}"));
        let ports = port(ports.dispatched_port_start)?..=port(ports.dispatched_port_end)?;
        Ok(Self { runtime, client, home: IsdAsn::from_u64(home.isd_as), core: home.core, ports })
    }

    /// The AS.
    pub fn home(&self) -> IsdAsn {
        self.home
    }

    /// The ports that the AS's routers deliver to.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.ports.clone()
    }

    /// All paths that the daemon knows.
    pub fn paths(&self, destination: IsdAsn) -> Result<Vec<ScionPath>> {
        let request = PathsRequest {
            source_isd_as: self.home.to_u64(),
            destination_isd_as: destination.to_u64(),
            ..PathsRequest::default()
        };
        let found = self.runtime.block_on(self.client.paths(request)).map_err(|error| anyhow!("paths: {error}"))?;
        let paths = found.into_owned().paths.into_iter();
        paths
            .map(|path| {
                ScionPath::try_from_rpc(path, self.home, destination).map_err(|error| anyhow!("a path: {error}"))
            })
            .collect()
    }

    /// All paths that sciparse makes of the segments that the control service at `control` knows, over peering links not.
    pub fn combined_paths(&self, control: &str, destination: IsdAsn) -> Result<Vec<ScionPath>> {
        let client = SegmentLookupServiceClient::new(HttpClient::plaintext(), config(control)?);
        let (mut cores, mut others) = (Vec::new(), Vec::new());
        for (src, dst) in self.steps(destination)? {
            let request = SegmentsRequest { src_isd_as: src.to_u64(), dst_isd_as: dst.to_u64() };
            let found = self.runtime.block_on(client.segments(request));
            // Refused where the destination is not what the step takes it for.
            let Ok(found) = found else { continue };
            let page = SegmentsPage::try_from_rpc(found.into_owned()).map_err(|error| anyhow!("segments: {error}"))?;
            let (core, other) = page.segments.split_parts();
            cores.extend(core);
            others.extend(other);
        }
        let next_hops = self.next_hops()?;
        let mut paths = combine(self.home, destination, cores.iter(), others.iter());
        // sciparse starts a peering hop's segment from the beta before the AS's entry; its MAC is over the one after
        // (SCION data plane, "Peering Links"). Routers refuse what comes of it, and rightly.
        paths.retain(|path| !crosses_peering(path));
        for path in &mut paths {
            let first = path.first_egress_interface().context("a path without a first interface")?;
            let next_hop = next_hops.iter().find(|(id, _)| *id == u64::from(first.id));
            let (_, address) = next_hop.with_context(|| format!("the daemon knows no interface {}", first.id))?;
            path.set_next_hop(Some(*address));
        }
        // The same interfaces can come of a core segment built in either direction: sciparse tells them apart, users do not.
        let mut seen = BTreeSet::new();
        paths.retain(|path| seen.insert(crate::hops(path)));
        ensure!(!paths.is_empty(), "no path to {destination} comes of {} segments", cores.len() + others.len());
        Ok(paths)
    }

    /// The segments to ask for. Nobody says whether the destination is a core AS: ask for both.
    fn steps(&self, destination: IsdAsn) -> Result<BTreeSet<(IsdAsn, IsdAsn)>> {
        let source = Src::new(self.home, self.core).map_err(|error| anyhow!("{error}"))?;
        let mut steps = BTreeSet::new();
        for core in [false, true] {
            let plan = ListSegmentPlan::new(source, CoreHint::Multiple, Dst::new(destination, core))
                .map_err(|error| anyhow!("{error}"))?;
            steps.extend([plan.up, plan.core, plan.down].into_iter().flatten());
        }
        Ok(steps)
    }

    /// The routers that have the AS's interfaces.
    fn next_hops(&self) -> Result<Vec<(u64, SocketAddr)>> {
        let found = self.runtime.block_on(self.client.interfaces(InterfacesRequest::default()));
        let found = found.map_err(|error| anyhow!("interfaces: {error}"))?.into_owned();
        let interfaces = found.interfaces.into_iter();
        interfaces
            .map(|(id, interface)| {
                let underlay = interface.address.into_option().context("an interface without an address")?;
                Ok((id, underlay.address.parse().context(underlay.address)?))
            })
            .collect()
    }
}

fn config(address: &str) -> Result<ClientConfig> {
    let uri =
        format!("http://{address}").parse::<http::Uri>().with_context(|| format!("`{address}` is no host:port"))?;
    Ok(ClientConfig::new(uri).with_default_timeout(TIMEOUT))
}

fn crosses_peering(path: &ScionPath) -> bool {
    match path.dp_path().to_model() {
        DpPath::Standard(path) => path.iter_info_fields().any(|info| info.flags.peering()),
        _ => false,
    }
}
