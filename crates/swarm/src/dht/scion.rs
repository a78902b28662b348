//! The node's socket in the SCION network: whoever asks is answered over the path that it came by, and who is to be asked is reached over
//! the first path that the user allows.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use anabranch_dht::wire::{DATAGRAM_LEN_MAX, is_krpc};
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_scion::socket::{RouteId, Socket};

use crate::net::scion::{Payload, ScionNet};

/// Hosts whose paths are remembered.
const ROUTES_MAX: usize = 1024;
/// A path that was looked up is looked up anew after so long: it ages, and another may be better.
const ROUTE_FRESH_FOR: Duration = Duration::from_secs(5 * 60);
/// The way back to who asked is good for answering at once.
const BACK_FRESH_FOR: Duration = Duration::from_secs(10);
/// Look-ups at once; what is to be sent meanwhile to further hosts is lost.
const LOOKUPS_MAX: usize = 32;
/// Pause after a socket error, so that one that persists does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// The socket.
pub(super) struct ScionPort {
    net: Weak<ScionNet>,
    socket: Socket,
    routes: RefCell<HashMap<ScionAddr, Route>>,
    lookups: Cell<usize>,
}

#[derive(Clone, Copy)]
struct Route {
    id: RouteId,
    /// Registered by us, and so to be taken back.
    is_ours: bool,
    until: Instant,
}

impl ScionPort {
    /// At any port of ours.
    pub(super) fn open(net: &Rc<ScionNet>) -> Option<Self> {
        let (local, ports, routers) = net.place()?;
        let anywhere = ScionAddr::new(local.isd_as, SocketAddr::new(local.host.ip(), 0));
        let socket = Socket::bind(anywhere, ports).ok()?;
        socket.set_routers(routers);
        Some(Self { net: Rc::downgrade(net), socket, routes: RefCell::default(), lookups: Cell::new(0) })
    }

    pub(super) fn local(&self) -> ScionAddr {
        self.socket.local()
    }

    /// Receives until the session ends; `received` is given what may be for the node.
    pub(super) async fn serve(self: Rc<Self>, received: impl Fn(Endpoint, &[u8])) {
        let mut datagram = vec![0; DATAGRAM_LEN_MAX];
        loop {
            let Ok((len, route)) = self.socket.recv_from(&mut datagram).await else {
                tokio::time::sleep(ERROR_PAUSE).await;
                continue;
            };
            let Some(info) = self.socket.info(route).filter(|_| is_krpc(&datagram[..len])) else { continue };
            let back = Route { id: route, is_ours: false, until: Instant::now() + BACK_FRESH_FOR };
            self.remember(info.remote, back, false);
            received(Endpoint::Scion(info.remote), &datagram[..len]);
        }
    }

    /// Sends a datagram: at once where a path is known, else when it is found.
    pub(super) fn send(self: &Rc<Self>, to: ScionAddr, datagram: &[u8]) {
        let (port, datagram) = (Rc::clone(self), datagram.to_vec());
        let known = self.routes.borrow().get(&to).filter(|route| Instant::now() < route.until).copied();
        if known.is_none() && self.lookups.get() >= LOOKUPS_MAX {
            return;
        }
        tokio::task::spawn_local(async move {
            let route = match known {
                Some(route) => Some(route.id),
                None => port.look_up(to).await,
            };
            if let Some(route) = route {
                // What is lost is asked for again, or not.
                let _ = port.socket.send_to(route, &datagram).await;
            }
        });
    }

    async fn look_up(&self, to: ScionAddr) -> Option<RouteId> {
        self.lookups.set(self.lookups.get() + 1);
        let found = match self.net.upgrade() {
            Some(net) => net.found(to, Payload::Quic).await,
            None => None,
        };
        self.lookups.set(self.lookups.get().saturating_sub(1));
        let path = found?.paths.into_iter().next()?;
        let id = self.socket.register(to, &path).ok()?;
        self.remember(to, Route { id, is_ours: true, until: Instant::now() + ROUTE_FRESH_FOR }, true);
        Some(id)
    }

    /// From now on `to` is reached so. A path of ours that is still good stays, whatever came from there.
    fn remember(&self, to: ScionAddr, route: Route, replaces: bool) {
        let (mut routes, now) = (self.routes.borrow_mut(), Instant::now());
        let is_good = |held: &Route| held.is_ours && now < held.until;
        if !replaces && routes.get(&to).is_some_and(is_good) {
            return;
        }
        if routes.len() >= ROUTES_MAX && !routes.contains_key(&to) {
            let oldest = routes.iter().min_by_key(|(_, route)| route.until).map(|(to, _)| *to);
            if let Some(gone) = oldest.and_then(|oldest| routes.remove(&oldest)) {
                self.forget(gone);
            }
        }
        if let Some(before) = routes.insert(to, route) {
            self.forget(before);
        }
    }

    fn forget(&self, route: Route) {
        if route.is_ours {
            self.socket.remove(route.id);
        }
    }
}
