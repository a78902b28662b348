//! By which route the packets of one path go, at either end.

use anabranch_transport::datagram::{Packet, SendErrorKind, Sender};

use super::interface::Route;
use super::port::{From, Port};

/// A path's route, and what is learned of the next one.
#[derive(Default)]
pub(super) struct Routing {
    route: Option<Route>,
    /// This end chose the route.
    is_own: bool,
    pub(super) sender: Option<Sender>,
    /// The next route, as a packet of the path showed.
    learned: Option<Route>,
}

impl Routing {
    pub(super) fn route(&self) -> Option<&Route> {
        self.route.as_ref()
    }

    /// The route that it has once it is settled.
    pub(super) fn next_route(&self) -> Option<&Route> {
        self.learned.as_ref().or(self.route.as_ref())
    }

    /// It goes by `route` from now on, which this end chose, or which packets showed.
    pub(super) fn set(&mut self, route: Route, is_own: bool, ports: &[Port]) {
        self.sender = ports.get(route.port).and_then(|port| port.sender(&route.path));
        (self.route, self.is_own) = (Some(route), is_own);
    }

    /// The route that was learned since this was asked last.
    pub(super) fn take_learned(&mut self) -> Option<Route> {
        self.learned.take()
    }

    /// An authenticated packet came from there. Who chose the route keeps it as long as it leads to the right address; the other end
    /// follows, also to fresh hop fields.
    pub(super) fn heard(&mut self, from: &From<'_>) {
        let Some(back) = from.route() else { return };
        let is_known = self.route.as_ref().is_some_and(|route| {
            let (path, back_path) = (&route.path, &back.path);
            let is_same = if self.is_own { path.remote() == back_path.remote() } else { path.is_identical(back_path) };
            route.port == back.port && is_same
        });
        if !is_known {
            self.learned = Some(back);
        }
    }

    /// Sends a control packet. One that does not leave is lost like others: the next says the same and more. Where the address is gone from
    /// which a path of the other end's is answered, it will be from whichever there is.
    pub(super) fn send_control(&mut self, packet: &[u8]) {
        let Some(sender) = &mut self.sender else { return };
        let Err(error) = sender.try_send(&[Packet { head: packet, body: &[] }]) else { return };
        if self.is_own || error.kind != SendErrorKind::InterfaceGone || self.learned.is_some() {
            return;
        }
        let other = |route: &Route| Some(Route { port: route.port, path: route.path.from_any_address()? });
        self.learned = self.route.as_ref().and_then(other);
    }
}
