//! `proto.daemon.v1.DaemonService`.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use anabranch_paths::{Interface, IsdAs, LinkKind, ScionPath};
use anabranch_scion_wire::proto::daemon::{self as proto, AS_METHOD, INTERFACES_METHOD, PATHS_METHOD};
use anabranch_scion_wire::proto::daemon::{NOTIFY_INTERFACE_DOWN_METHOD, PORT_RANGE_METHOD, SERVICES_METHOD};
use anabranch_scion_wire::proto::grpc::Status;
use anabranch_scion_wire::proto::{Duration as ProtoDuration, LinkType, Timestamp};

use super::{Call, Services, unimplemented};
use crate::control::LookupError;
use crate::control::limits::{NOTIFIED_DOWN, NOTIFIED_MAX};

/// "Nobody says" of a latency, as scionproto's daemon writes it.
const LATENCY_UNSET: ProtoDuration = ProtoDuration { seconds: 0, nanos: -1 };

impl Services {
    pub(super) fn daemon(&self, method: &str, call: Call<'_>, now: SystemTime) -> Result<Vec<u8>, Status> {
        match method {
            PATHS_METHOD => call.with(|request| self.paths(request, now)),
            AS_METHOD => call.with(|request: proto::AsRequest| self.describe(request)),
            INTERFACES_METHOD => call.with(|_: proto::InterfacesRequest| Ok(self.interfaces())),
            SERVICES_METHOD => call.with(|_: proto::ServicesRequest| Ok(self.services())),
            PORT_RANGE_METHOD => call.with(|(): ()| Ok(self.port_range())),
            NOTIFY_INTERFACE_DOWN_METHOD => call.with(|request: proto::NotifyInterfaceDownRequest| {
                let id = u16::try_from(request.id).map_err(|_| invalid("no interface has this number"))?;
                self.notify_down(Interface { isd_as: self.own_or(request.isd_as), id }, now);
                Ok(proto::NotifyInterfaceDownResponse {})
            }),
            _ => Err(unimplemented(method)),
        }
    }

    /// Zero means the daemon's own AS.
    fn own_or(&self, isd_as: u64) -> IsdAs {
        if isd_as == 0 { self.home.isd_as } else { IsdAs::from_u64(isd_as) }
    }

    fn paths(&self, request: proto::PathsRequest, now: SystemTime) -> Result<proto::PathsResponse, Status> {
        let (local, asked) = (self.home.isd_as, self.own_or(request.source_isd_as));
        if asked != local {
            return Err(invalid(LookupError::OtherSource { local, asked }));
        }
        let mut paths = self.plane.paths(local, IsdAs::from_u64(request.destination_isd_as), now).map_err(invalid)?;
        let down = self.notified(now);
        paths.retain(|path| !path.interfaces.iter().any(|interface| down.contains(interface)));
        Ok(proto::PathsResponse { paths: paths.iter().map(path_to).collect() })
    }

    fn describe(&self, request: proto::AsRequest) -> Result<proto::AsResponse, Status> {
        let isd_as = self.own_or(request.isd_as);
        let each = self.plane.topology().get(isd_as);
        let each = each.ok_or_else(|| Status::new(Status::NOT_FOUND, LookupError::NotHere(isd_as)))?;
        Ok(proto::AsResponse { isd_as: isd_as.to_u64(), core: each.core, mtu: each.mtu.into() })
    }

    fn interfaces(&self) -> proto::InterfacesResponse {
        let interfaces = self.home.interfaces.iter().map(|interface| {
            let address = self.home.routers[interface.router].internal.to_string();
            (interface.id.into(), proto::Interface { address: Some(proto::Underlay { address }) })
        });
        proto::InterfacesResponse { interfaces: interfaces.collect() }
    }

    fn services(&self) -> proto::ServicesResponse {
        let control = || proto::ListService { services: vec![proto::Service { uri: self.home.control.to_string() }] };
        let services = ["control", "discovery"].map(|name| (name.to_owned(), control()));
        proto::ServicesResponse { services: BTreeMap::from(services) }
    }

    fn port_range(&self) -> proto::PortRangeResponse {
        proto::PortRangeResponse {
            dispatched_port_start: (*self.home.host_ports.start()).into(),
            dispatched_port_end: (*self.home.host_ports.end()).into(),
        }
    }

    fn notify_down(&self, interface: Interface, now: SystemTime) {
        let mut notified = self.notified.lock().unwrap_or_else(PoisonError::into_inner);
        notified.retain(|(known, _)| *known != interface);
        if notified.len() == NOTIFIED_MAX {
            notified.pop_front();
        }
        notified.push_back((interface, now));
    }

    /// Interfaces that were found down a short while ago.
    fn notified(&self, now: SystemTime) -> Vec<Interface> {
        let mut notified = self.notified.lock().unwrap_or_else(PoisonError::into_inner);
        notified.retain(|(_, at)| now.duration_since(*at).is_ok_and(|passed| passed < NOTIFIED_DOWN));
        notified.iter().map(|(interface, _)| *interface).collect()
    }
}

fn invalid(error: impl std::fmt::Display) -> Status {
    Status::new(Status::INVALID_ARGUMENT, error)
}

fn path_to(path: &ScionPath) -> proto::Path {
    let interfaces = path.interfaces.iter();
    // Inside one AS there is no router, and scionproto's daemon leaves the address empty.
    let next_hop = path.next_hop.map_or_else(String::new, |address| address.to_string());
    let since_1970 = path.expiry.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    proto::Path {
        raw: path.dataplane.clone(),
        interface: Some(proto::Interface { address: Some(proto::Underlay { address: next_hop }) }),
        interfaces: interfaces
            .map(|interface| proto::PathInterface { isd_as: interface.isd_as.to_u64(), id: interface.id.into() })
            .collect(),
        mtu: path.mtu.into(),
        expiration: Some(Timestamp { seconds: since_1970.as_secs() as i64, nanos: since_1970.subsec_nanos() as i32 }),
        latency: path.latency.iter().map(|latency| latency.map_or(LATENCY_UNSET, duration_to)).collect(),
        bandwidth: path.bandwidth_kbps.iter().map(|kbps| kbps.unwrap_or(0)).collect(),
        link_type: path.link_kinds.iter().map(|kind| link_type_to(*kind).into()).collect(),
        ..proto::Path::default()
    }
}

fn duration_to(duration: Duration) -> ProtoDuration {
    ProtoDuration { seconds: duration.as_secs() as i64, nanos: duration.subsec_nanos() as i32 }
}

fn link_type_to(kind: LinkKind) -> LinkType {
    match kind {
        LinkKind::Unset => LinkType::Unspecified,
        LinkKind::Direct => LinkType::Direct,
        LinkKind::MultiHop => LinkType::MultiHop,
        LinkKind::OpenNet => LinkType::OpenNet,
    }
}
