//! The host's SCION daemon, asked over gRPC.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use anabranch_paths::{Interface, IsdAs, ScionPath};
use anabranch_scion_wire::proto::daemon::{
    AS_METHOD, AsRequest, AsResponse, INTERFACES_METHOD, InterfacesRequest, InterfacesResponse,
    NOTIFY_INTERFACE_DOWN_METHOD, NotifyInterfaceDownRequest, NotifyInterfaceDownResponse, PATHS_METHOD,
    PORT_RANGE_METHOD, PathsRequest, PathsResponse, PortRangeResponse,
};

use super::convert::{PATH_LIFE_MAX, PathError, paths_from, underlay_from};
use super::rpc::Channel;
use super::{LocalAs, LookupError, PORT_RANGE_DEFAULT, Server};

/// Where a daemon listens unless somebody says otherwise.
pub const DAEMON_ADDRESS_DEFAULT: &str = "127.0.0.1:30255";
/// Environment variables that name a daemon, the first that is set counts.
pub const DAEMON_VARIABLES: [&str; 2] = ["SCION_DAEMON_ADDRESS", "SCION_DAEMON"];

/// The address in [`DAEMON_VARIABLES`], if any is set.
pub fn daemon_address_from_env() -> Option<String> {
    DAEMON_VARIABLES.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

/// A daemon. Calls are bounded in time; a connection that was lost is opened again by the next call.
pub struct Daemon {
    channel: Channel,
    /// Of its AS, by its own word; none before it was asked.
    routers: RwLock<Option<Vec<IpAddr>>>,
}

impl Daemon {
    /// The one at `address` (host and port). Nothing is sent yet.
    pub fn new(address: impl Into<String>) -> Self {
        Self { channel: Channel::new(Server::Daemon, address), routers: RwLock::default() }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        self.channel.address()
    }

    /// Its AS, the ports of it, and its routers.
    pub async fn local_as(&self) -> Result<LocalAs, LookupError> {
        let about: AsResponse = self.channel.call(AS_METHOD, &AsRequest { isd_as: 0 }).await?;
        let isd_as = IsdAs::from_u64(about.isd_as);
        if isd_as.isd() == 0 || isd_as.asn() == 0 || about.mtu == 0 {
            return Err(self.garbled(format_args!("it says that its AS is {isd_as} with an MTU of {}", about.mtu)));
        }
        let ports = match self.channel.call::<PortRangeResponse>(PORT_RANGE_METHOD, &()).await {
            Ok(range) => [range.dispatched_port_start, range.dispatched_port_end].map(u16::try_from),
            // Daemons from before dispatcherless hosts know no such method.
            Err(LookupError::Refused { .. }) => [Ok(*PORT_RANGE_DEFAULT.start()), Ok(*PORT_RANGE_DEFAULT.end())],
            Err(error) => return Err(error),
        };
        let [Ok(first_port), Ok(last_port)] = ports else {
            return Err(self.garbled("its port range exceeds 65535"));
        };
        let answer: InterfacesResponse = self.channel.call(INTERFACES_METHOD, &InterfacesRequest {}).await?;
        let interfaces = answer.interfaces.iter().filter_map(|(&id, interface)| {
            let address = underlay_from(&interface.address.as_ref()?.address)?;
            Some((u16::try_from(id).ok()?, address))
        });
        let interfaces = interfaces.collect::<BTreeMap<u16, SocketAddr>>();
        let routers = interfaces.values().map(SocketAddr::ip).collect();
        *self.routers.write().unwrap_or_else(PoisonError::into_inner) = Some(routers);
        Ok(LocalAs {
            isd_as,
            is_core: about.core,
            mtu: about.mtu.try_into().unwrap_or(u16::MAX),
            ports: first_port..=last_port,
            interfaces,
        })
    }

    /// The paths from its AS to `destination`, checked, each list of interfaces once; `refresh`: not from its cache.
    pub async fn paths(&self, source: IsdAs, destination: IsdAs, refresh: bool) -> Result<Vec<ScionPath>, LookupError> {
        let request = PathsRequest {
            source_isd_as: source.to_u64(),
            destination_isd_as: destination.to_u64(),
            refresh,
            hidden: false,
        };
        let answer: PathsResponse = self.channel.call(PATHS_METHOD, &request).await?;
        let (paths, bad) = paths_from(&answer, source, destination, |path| self.admit(path));
        match bad {
            Some(bad) if paths.is_empty() => Err(self.garbled(format_args!("a path of its answer is no use: {bad}"))),
            _ => Ok(paths),
        }
    }

    /// No path makes this host send to somebody who is no router of its AS, and none stays longer than it can be good for.
    fn admit(&self, path: &ScionPath) -> Result<(), PathError> {
        let routers = self.routers.read().unwrap_or_else(PoisonError::into_inner);
        match (path.next_hop, routers.as_ref()) {
            (Some(next_hop), Some(routers)) if !routers.contains(&next_hop.ip()) => {
                return Err(PathError::NotRouter(next_hop));
            }
            // What is inside the AS never ends.
            (Some(_), _) if path.expiry > SystemTime::now() + PATH_LIFE_MAX => return Err(PathError::MadeUp),
            _ => {}
        }
        Ok(())
    }

    /// Tells it of an interface that is down, so that nobody on this host is given paths over it.
    pub async fn notify_interface_down(&self, interface: Interface) -> Result<(), LookupError> {
        let request = NotifyInterfaceDownRequest { isd_as: interface.isd_as.to_u64(), id: interface.id.into() };
        self.channel.call::<NotifyInterfaceDownResponse>(NOTIFY_INTERFACE_DOWN_METHOD, &request).await.map(drop)
    }

    fn garbled(&self, reason: impl std::fmt::Display) -> LookupError {
        let address = self.address().to_owned();
        LookupError::Garbled { server: Server::Daemon, address, reason: reason.to_string() }
    }
}
