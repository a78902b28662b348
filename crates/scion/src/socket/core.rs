//! A SCION socket without its system calls: bytes in, data and events out, and the other way.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anabranch_paths::{ScionAddr, ScionPath};
use anabranch_scion_wire::Address;
use anabranch_scion_wire::scmp::END_HOST_PORT;

use super::counters::{Counters, Counting};
use super::probe::Probes;
use super::routes::{RouteError, RouteId, RouteInfo, Routes, ms_since};
use super::scmp::{EchoBudget, Events};

/// What a socket knows. Threads may share it: locks are held for a look-up, not for a packet's bytes.
#[derive(Debug)]
pub struct Core {
    pub(super) local: ScionAddr,
    /// Times of last use are counted from here.
    pub(super) start: Instant,
    pub(super) counting: Counting,
    pub(super) events: Events,
    pub(super) probes: Probes,
    pub(super) echo_budget: Mutex<EchoBudget>,
    pub(super) removals: Arc<AtomicU64>,
    routes: Mutex<Routes>,
    /// Who hands over what comes from other ASes; `None` where nobody has told.
    routers: Mutex<Option<HashSet<IpAddr>>>,
}

impl Core {
    /// For the socket at `local`.
    pub fn new(local: ScionAddr, now: Instant) -> Self {
        let local = ScionAddr::new(local.isd_as, local.host);
        let routes = Routes::new(local);
        Self {
            local,
            start: now,
            counting: Counting::default(),
            events: Events::default(),
            probes: Probes::default(),
            echo_budget: Mutex::new(EchoBudget::new(now)),
            removals: routes.removals(),
            routes: Mutex::new(routes),
            routers: Mutex::default(),
        }
    }

    /// See [`super::Socket::set_routers`].
    pub fn set_routers(&self, routers: impl IntoIterator<Item = IpAddr>) {
        let routers: HashSet<IpAddr> = routers.into_iter().collect();
        *lock(&self.routers) = Some(routers).filter(|routers| !routers.is_empty());
    }

    /// Whether packets of other ASes may be handed over by `from`. Ports are not compared: a router may have several. A
    /// dispatcher on this host, as older ASes need it, hands on what routers gave it.
    pub(super) fn is_router(&self, from: SocketAddr) -> bool {
        let ip = from.ip().to_canonical();
        let is_dispatcher = ip == self.local.host.ip() && from.port() == END_HOST_PORT;
        lock(&self.routers).as_ref().is_none_or(|routers| is_dispatcher || routers.contains(&ip))
    }

    /// The socket's address.
    pub fn local(&self) -> ScionAddr {
        self.local
    }

    /// See [`super::Socket::register`].
    ///
    /// # Errors
    /// Path and addresses do not belong together, or there are too many routes.
    pub fn register(&self, remote: ScionAddr, path: &ScionPath, now: Instant) -> Result<RouteId, RouteError> {
        let route = self.routes().register(remote, path, ms_since(self.start, now))?;
        self.add_router(path);
        Ok(route)
    }

    /// A router that paths lead over is one, also where it was not there yet when the others were told.
    fn add_router(&self, path: &ScionPath) {
        let next_hop = path.next_hop.filter(|_| !path.interfaces.is_empty());
        if let (Some(routers), Some(router)) = (&mut *lock(&self.routers), next_hop) {
            routers.insert(router.ip());
        }
    }

    /// See [`super::Socket::update`].
    ///
    /// # Errors
    /// The route is gone, or the path is another way.
    pub fn update(&self, route: RouteId, path: &ScionPath) -> Result<(), RouteError> {
        self.routes().update(route, path)?;
        self.add_router(path);
        Ok(())
    }

    /// See [`super::Socket::keep`].
    ///
    /// # Errors
    /// The route is gone, or there are too many.
    pub fn keep(&self, route: RouteId) -> Result<(), RouteError> {
        self.routes().keep(route)
    }

    /// See [`super::Socket::release`].
    pub fn release(&self, route: RouteId) {
        self.routes().release(route);
    }

    /// See [`super::Socket::remove`].
    pub fn remove(&self, route: RouteId) -> bool {
        self.routes().remove(route)
    }

    /// What is known of a route.
    pub fn info(&self, route: RouteId) -> Option<RouteInfo> {
        self.routes().info(route)
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counting.snapshot()
    }

    pub(super) fn local_address(&self) -> Address {
        Address::new(self.local.isd_as, self.local.host.ip())
    }

    pub(super) fn local_port(&self) -> u16 {
        self.local.host.port()
    }

    pub(super) fn routes(&self) -> MutexGuard<'_, Routes> {
        lock(&self.routes)
    }
}

/// A panic elsewhere leaves none of our tables half changed: each change is one step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Addresses of hosts as packets carry them: without port.
pub(super) fn host_of(address: ScionAddr) -> Address {
    Address::new(address.isd_as, address.host.ip())
}

/// Where requests to a host are handed over inside our own AS: to its socket, or where none is named to the port for all.
pub(super) fn request_hop(next_hop: SocketAddr, port: u16) -> SocketAddr {
    if next_hop.port() == 0 { SocketAddr::new(next_hop.ip(), port) } else { next_hop }
}
