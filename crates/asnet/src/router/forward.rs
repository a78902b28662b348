//! What a border router does with one packet. Pure.
//!
//! The rules are those of the SCION data plane specification ("Processing at Routers", "AS Traversal Operations") for an
//! AS whose interfaces are all on one router, so that packets from inside are always at their first hop.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use anabranch_paths::IsdAs;
use anabranch_scion_wire::mac::HopKey;
use anabranch_scion_wire::scmp;
use anabranch_scion_wire::{
    HopField, HostAddr, InfoField, Packet, PacketError, PacketMut, PathMut, PathRef, Protocol, Service, StandardPathMut,
};

use super::config::{HOST_PORT_DEFAULT, InterfaceConfig, LinkRole, RouterConfig};
use super::counters::DropReason;
use super::reply::{Answer, Reply, answer, too_big};

/// The protocol number of link probes ("Assigned SCION Protocol Numbers": 253 is for experimentation and testing).
pub(super) const PROBE_PROTOCOL: Protocol = Protocol(253);
/// Bytes of path that change on the way: the meta header and up to three info fields.
pub(super) const PATH_HEAD_LEN_MAX: usize = 4 + 3 * 8;

/// Where a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ingress {
    /// From a host of the AS.
    Internal,
    /// Over this interface.
    Interface(u16),
}

/// What is to be done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it out at this interface; the header was updated for the next router.
    Forward(u16),
    /// Hand it to this UDP address in the AS.
    Deliver(SocketAddr),
    /// Send the reply back where the packet came from, in the packet's stead. The reason is why the packet itself went
    /// no further; none for what the router was asked.
    Reply(Option<DropReason>),
    /// A link probe has arrived.
    Probe,
    /// Nothing.
    Drop(DropReason),
}

/// An AS's forwarding rules as they are at one moment.
#[derive(Clone, Debug)]
pub struct Forwarder {
    pub(super) isd_as: IsdAs,
    key: HopKey,
    /// The router's own addresses inside the AS.
    hosts: Vec<IpAddr>,
    host_ports: RangeInclusive<u16>,
    services: Vec<(Service, Vec<SocketAddr>)>,
    /// By id, ascending.
    interfaces: Vec<InterfaceRules>,
}

/// What the rules ask of an interface.
#[derive(Clone, Debug)]
pub(super) struct InterfaceRules {
    pub(super) id: u16,
    pub(super) role: LinkRole,
    pub(super) neighbor: IsdAs,
    pub(super) mtu: u16,
    pub(super) is_up: bool,
}

/// Why a packet goes no further, and what its sender is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rejection {
    pub(super) reason: DropReason,
    pub(super) answer: Option<Answer>,
}

/// A verdict that holds for every packet with the same header until one of its hop fields expires.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedVerdict {
    pub(super) verdict: Verdict,
    pub(super) valid_until_unix_ms: u64,
    /// Where the path starts in the packet, and how many bytes of it may have changed.
    pub(super) path_at: usize,
    pub(super) path_head_len: usize,
    /// The largest packet that it holds for.
    pub(super) packet_len_max: usize,
    /// A service is meant, whose port is not the packet's.
    pub(super) is_for_service: bool,
}

impl Default for CachedVerdict {
    fn default() -> Self {
        Self {
            verdict: Verdict::Drop(DropReason::Malformed),
            valid_until_unix_ms: 0,
            path_at: 0,
            path_head_len: 0,
            packet_len_max: usize::MAX,
            is_for_service: false,
        }
    }
}

impl From<DropReason> for Rejection {
    /// Nothing is said about it.
    fn from(reason: DropReason) -> Self {
        Self { reason, answer: None }
    }
}

impl Forwarder {
    /// The rules that a checked configuration asks for.
    pub fn new(config: &RouterConfig) -> Self {
        let rules = |interface: &InterfaceConfig| InterfaceRules {
            id: interface.id,
            role: interface.role,
            neighbor: interface.neighbor,
            mtu: interface.shape.mtu,
            is_up: true,
        };
        let mut interfaces: Vec<_> = config.interfaces.iter().map(rules).collect();
        interfaces.sort_by_key(|interface| interface.id);
        let mut forwarder = Self {
            isd_as: config.isd_as,
            key: HopKey::new(&config.forwarding_key),
            hosts: config.internal.iter().map(|address| address.ip()).collect(),
            host_ports: config.host_ports.clone(),
            services: Vec::new(),
            interfaces,
        };
        for (service, address) in &config.services {
            let mut instances = forwarder.service(*service).to_vec();
            instances.push(*address);
            forwarder.set_service(*service, instances);
        }
        forwarder
    }

    /// The interface of this number.
    pub(super) fn interface(&self, id: u16) -> Option<&InterfaceRules> {
        let index = self.interfaces.binary_search_by_key(&id, |interface| interface.id).ok()?;
        self.interfaces.get(index)
    }

    /// The same, to be changed.
    pub(super) fn interface_mut(&mut self, id: u16) -> Option<&mut InterfaceRules> {
        let index = self.interfaces.binary_search_by_key(&id, |interface| interface.id).ok()?;
        self.interfaces.get_mut(index)
    }

    /// Names who runs a service from now on.
    pub(super) fn set_service(&mut self, service: Service, instances: Vec<SocketAddr>) {
        self.services.retain(|(known, _)| *known != service);
        if !instances.is_empty() {
            self.services.push((service, instances));
        }
    }

    /// Services that somebody runs.
    pub(super) fn service_count(&self) -> usize {
        self.services.len()
    }

    fn service(&self, service: Service) -> &[SocketAddr] {
        self.services.iter().find(|(known, _)| *known == service).map_or(&[], |(_, instances)| instances)
    }

    /// The address that the router speaks with.
    pub(super) fn host(&self) -> HostAddr {
        // A checked configuration has an internal address.
        self.hosts.first().map_or(HostAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), |host| (*host).into())
    }

    /// Judges one packet and updates its header in place; a reply, if one is due, is left in `reply`.
    pub fn process(&self, packet: &mut [u8], ingress: Ingress, now_unix_ms: u64, reply: &mut Reply) -> Verdict {
        self.rule(packet, ingress, now_unix_ms, reply).verdict
    }

    /// [`process`](Self::process), with how long and for which bytes the verdict holds.
    pub(super) fn rule(
        &self,
        bytes: &mut [u8],
        ingress: Ingress,
        now_unix_ms: u64,
        reply: &mut Reply,
    ) -> CachedVerdict {
        reply.clear();
        let mut cached = CachedVerdict::default();
        let mut packet = match PacketMut::parse(bytes) {
            Ok(packet) => packet,
            Err(PacketError::Truncated | PacketError::TrailingBytes) => {
                // A parameter problem, if there is a header to answer to ("Invalid Packet Size").
                let rejection = Rejection { reason: DropReason::WrongSize, answer: Some(Answer::INVALID_PACKET_SIZE) };
                cached.verdict = answer(self, bytes, ingress, rejection, reply);
                return cached;
            }
            Err(_) => return cached,
        };
        // Replies quote and turn round the packet as it came, so what changes is kept.
        let path_at = packet.view().header().path_offset();
        let mut head = [0; PATH_HEAD_LEN_MAX];
        let head_len = PATH_HEAD_LEN_MAX.min(packet.as_bytes().len() - path_at);
        head[..head_len].copy_from_slice(&packet.as_bytes()[path_at..path_at + head_len]);
        cached.verdict = match self.judge(&mut packet, ingress, now_unix_ms, &mut cached) {
            Ok(verdict) => {
                (cached.path_at, cached.path_head_len) = (path_at, head_len);
                verdict
            }
            Err(rejection) => {
                bytes[path_at..path_at + head_len].copy_from_slice(&head[..head_len]);
                cached.valid_until_unix_ms = 0;
                answer(self, bytes, ingress, rejection, reply)
            }
        };
        cached
    }

    fn judge(
        &self,
        packet: &mut PacketMut<'_>,
        ingress: Ingress,
        now_unix_ms: u64,
        cached: &mut CachedVerdict,
    ) -> Result<Verdict, Rejection> {
        if let Ingress::Interface(id) = ingress
            && !self.interface(id).is_some_and(|interface| interface.is_up)
        {
            return Err(DropReason::InterfaceDown.into());
        }
        let view = packet.view();
        let (header, packet_len) = (view.header(), packet.as_bytes().len());
        cached.is_for_service = matches!(header.destination_host(), Some(HostAddr::Service(_)));
        match header.path() {
            PathRef::Standard(_) => {
                let (source, destination) = (header.source_as(), header.destination_as());
                let facts = Facts { source, destination, path_at: header.path_offset() };
                facts.check_ends(self, &view, ingress)?;
                let PathMut::Standard(path) = packet.path_mut() else { return Err(DropReason::Malformed.into()) };
                let mut traversal = Traversal { rules: self, facts, path, ingress, now_unix_ms, valid_until: u64::MAX };
                let way = traversal.run()?;
                cached.valid_until_unix_ms = traversal.valid_until;
                match way {
                    Next::Out(egress) => {
                        cached.packet_len_max = self.check_mtu(egress, packet_len)?;
                        Ok(Verdict::Forward(egress))
                    }
                    Next::Alerted(alert) => {
                        let answer = Answer::to_traceroute(&packet.view(), alert);
                        Err(Rejection { reason: DropReason::NotAnswered, answer })
                    }
                    Next::Local => self.deliver(&packet.view()),
                }
            }
            PathRef::OneHop(_) => self.one_hop(packet, ingress, now_unix_ms),
            // Within the AS, the only thing to ask a router is an echo.
            PathRef::Empty if ingress == Ingress::Internal && header.destination_as() == self.isd_as => {
                Err(self.to_router(&view).unwrap_or(DropReason::NotAnswered.into()))
            }
            PathRef::Empty | PathRef::Other(_) => Err(DropReason::PathType.into()),
        }
    }

    /// The link's MTU, if the packet keeps within it.
    fn check_mtu(&self, egress: u16, packet_len: usize) -> Result<usize, Rejection> {
        let mtu = self.interface(egress).map_or(0, |interface| interface.mtu);
        if packet_len <= usize::from(mtu) { Ok(mtu.into()) } else { Err(too_big(mtu)) }
    }

    /// What the router itself is asked, as the "problem" of having to answer it.
    fn to_router(&self, view: &Packet<'_>) -> Option<Rejection> {
        let host = view.header().destination_host()?.ip()?;
        let is_own = self.hosts.contains(&host);
        let answer = is_own.then(|| Answer::to_echo(view)).flatten()?;
        Some(Rejection { reason: DropReason::NotAnswered, answer: Some(answer) })
    }

    /// Finds the host that a packet is for.
    pub(super) fn deliver(&self, view: &Packet<'_>) -> Result<Verdict, Rejection> {
        if let Some(asked) = self.to_router(view) {
            return Err(asked);
        }
        let refuse = |reason, answer| Rejection { reason, answer: Some(answer) };
        match view.header().destination_host() {
            Some(HostAddr::Service(service)) => {
                let instances = self.service(service.base());
                // One flow stays with one instance.
                let instance = view.header().flow_id() as usize % instances.len().max(1);
                match instances.get(instance) {
                    Some(address) => Ok(Verdict::Deliver(*address)),
                    // "Destination unreachable: no route to destination".
                    None => Err(refuse(DropReason::NoService, Answer::NO_ROUTE)),
                }
            }
            Some(HostAddr::V4(_) | HostAddr::V6(_)) | None => {
                let host = view.header().destination_host().and_then(|host| host.ip());
                let host = host
                    .filter(|ip| !ip.is_unspecified() && ip.to_canonical() == *ip)
                    .ok_or(refuse(DropReason::BadDestination, Answer::INVALID_DESTINATION))?;
                if !self.reaches(host) {
                    return Err(refuse(DropReason::Unreachable, Answer::ADDRESS_UNREACHABLE));
                }
                let port = scmp::receiver_port(view).ok_or(DropReason::NoPort)?;
                Ok(Verdict::Deliver(SocketAddr::new(host, self.host_port(port))))
            }
        }
    }

    /// Hosts read SCION packets at their own ports within the range that the AS names, and else at one.
    pub(super) fn host_port(&self, port: u16) -> u16 {
        if self.host_ports.contains(&port) { port } else { HOST_PORT_DEFAULT }
    }

    /// No packet from outside makes this router send to where its AS is not: a network on loopback stays there.
    fn reaches(&self, host: IpAddr) -> bool {
        let is_broadcast = matches!(host, IpAddr::V4(v4) if v4.is_broadcast());
        let is_inside = self.hosts.iter().any(|own| own.is_ipv4() == host.is_ipv4())
            && (host.is_loopback() || !self.hosts.iter().all(|own| own.is_loopback()));
        is_inside && !host.is_multicast() && !is_broadcast
    }

    /// One-hop paths (SCION header, "OneHopPath"): out with a hop field of ours, in with one that we complete.
    fn one_hop(&self, packet: &mut PacketMut<'_>, ingress: Ingress, now_unix_ms: u64) -> Result<Verdict, Rejection> {
        let (view, packet_len) = (packet.view(), packet.as_bytes().len());
        let (source, destination) = (view.header().source_as(), view.header().destination_as());
        let PathMut::OneHop(mut path) = packet.path_mut() else { return Err(DropReason::Malformed.into()) };
        let (info, first) = (path.view().info(), path.view().first_hop());
        if !info.cons_dir {
            return Err(DropReason::Malformed.into());
        }
        if first.expiry_unix_ms(info.timestamp_s) < now_unix_ms {
            return Err(DropReason::Expired.into());
        }
        match ingress {
            Ingress::Internal => {
                let egress = self.interface(first.cons_egress).ok_or(DropReason::UnknownEgress)?;
                if source != self.isd_as {
                    return Err(DropReason::BadSource.into());
                }
                if destination != egress.neighbor {
                    return Err(DropReason::BadDestination.into());
                }
                if !self.key.verify(info.seg_id, info.timestamp_s, &first) {
                    return Err(DropReason::BadMac.into());
                }
                if !egress.is_up {
                    return Err(DropReason::InterfaceDown.into());
                }
                path.chain_seg_id();
                self.check_mtu(first.cons_egress, packet_len)?;
                Ok(Verdict::Forward(first.cons_egress))
            }
            Ingress::Interface(id) => {
                if destination != self.isd_as {
                    return Err(DropReason::BadDestination.into());
                }
                if self.interface(id).is_none_or(|interface| interface.neighbor != source) {
                    return Err(DropReason::BadSource.into());
                }
                let second = HopField::unsealed(first.exp_time, id, 0);
                path.set_second_hop(self.key.sealed(info.seg_id, info.timestamp_s, second));
                let view = packet.view();
                let is_ours = view.header().destination_host() == Some(self.host());
                if is_ours && view.header().next_header() == PROBE_PROTOCOL {
                    return Ok(Verdict::Probe);
                }
                // Like the reference, say nothing about a one-hop packet that cannot be delivered.
                self.deliver(&view).map_err(|rejection| rejection.reason.into())
            }
        }
    }
}

/// What the traversal needs to know beside the path.
#[derive(Clone, Copy)]
struct Facts {
    source: IsdAs,
    destination: IsdAs,
    path_at: usize,
}

impl Facts {
    /// Source and destination are where the packet comes from and goes to.
    fn check_ends(&self, rules: &Forwarder, view: &Packet<'_>, ingress: Ingress) -> Result<(), Rejection> {
        let PathRef::Standard(path) = view.header().path() else { return Ok(()) };
        let (source_is_local, destination_is_local) = (self.source == rules.isd_as, self.destination == rules.isd_as);
        let bad_source = Rejection { reason: DropReason::BadSource, answer: Some(Answer::INVALID_SOURCE) };
        let bad_destination =
            Rejection { reason: DropReason::BadDestination, answer: Some(Answer::INVALID_DESTINATION) };
        match ingress {
            Ingress::Internal => {
                // No other router of this AS hands in packets that are under way.
                if !path.is_first_hop() {
                    return Err(DropReason::NotFirstHop.into());
                }
                if !source_is_local {
                    return Err(bad_source);
                }
                if destination_is_local {
                    return Err(bad_destination);
                }
                // The source must be one that answers can go to.
                let host = view.header().source_host();
                let is_host = host.is_some_and(|host| host.ip().is_none_or(|ip| ip.to_canonical() == ip));
                if is_host { Ok(()) } else { Err(bad_source) }
            }
            Ingress::Interface(_) if source_is_local => Err(bad_source),
            Ingress::Interface(_) if path.is_last_hop() != destination_is_local => Err(bad_destination),
            Ingress::Interface(_) => Ok(()),
        }
    }
}

/// Where the path leads from here.
enum Next {
    /// To a host of this AS.
    Local,
    /// Out at an interface.
    Out(u16),
    /// We are to look at the payload.
    Alerted(Alert),
}

/// A router alert that a packet has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alert {
    /// The interface of ours that it asks about.
    pub(super) interface: u16,
    /// The hop field that has it, counted over all segments.
    pub(super) hop: usize,
    /// The side of that hop.
    pub(super) at_egress: bool,
}

/// A standard path being followed through this AS.
struct Traversal<'a> {
    rules: &'a Forwarder,
    facts: Facts,
    path: StandardPathMut<'a>,
    ingress: Ingress,
    now_unix_ms: u64,
    /// When the first hop field that was looked at ends.
    valid_until: u64,
}

impl Traversal<'_> {
    fn run(&mut self) -> Result<Next, Rejection> {
        let path = self.path.view();
        // The two hops at a peering link chain to the same parent: SegID stays as it is there.
        let is_peering = path.is_peering_hop();
        let (info, hop) = self.current();
        self.check_expiry(&info, &hop)?;
        if let Ingress::Interface(id) = self.ingress
            && hop.ingress(info.cons_dir) != id
        {
            return Err(self.reject_hop(DropReason::WrongIngress, Answer::unknown_ingress(info.cons_dir)));
        }
        // Against construction direction, the router at the ingress steps SegID back before it checks the MAC.
        if !info.cons_dir && self.ingress != Ingress::Internal && !is_peering {
            self.path.chain_seg_id();
        }
        self.check_mac()?;
        if let Ingress::Interface(id) = self.ingress
            && hop.alert_at_ingress(info.cons_dir)
        {
            return Ok(self.alerted(id, false));
        }
        if self.facts.destination == self.rules.isd_as {
            return Ok(Next::Local);
        }
        let is_crossover = self.path.view().is_segment_change() && !is_peering;
        if is_crossover {
            self.advance()?;
            let (info, hop) = self.current();
            self.check_expiry(&info, &hop)?;
            self.check_mac()?;
        }
        self.leave(is_crossover, is_peering)
    }

    /// Checks the egress and steps the path on to the next AS.
    fn leave(&mut self, is_crossover: bool, is_peering: bool) -> Result<Next, Rejection> {
        let (info, hop) = self.current();
        let egress_id = hop.egress(info.cons_dir);
        let rules = self.rules;
        let egress = rules
            .interface(egress_id)
            .ok_or_else(|| self.reject_hop(DropReason::UnknownEgress, Answer::unknown_egress(info.cons_dir)))?;
        if let Ingress::Interface(id) = self.ingress {
            let ingress_role = rules.interface(id).map(|interface| interface.role);
            if !turn_is_allowed(ingress_role, egress.role, is_crossover) {
                return Err(if is_crossover {
                    self.reject_info(DropReason::BadTurn, Answer::INVALID_SEGMENT_CHANGE)
                } else {
                    self.reject_hop(DropReason::BadTurn, Answer::INVALID_PATH)
                });
            }
        }
        // Before a look at the interface's state, so that a traceroute finds the link that is down.
        if hop.alert_at_egress(info.cons_dir) {
            return Ok(self.alerted(egress_id, true));
        }
        if !egress.is_up {
            let answer = Answer::ExternalInterfaceDown { interface: egress_id };
            return Err(Rejection { reason: DropReason::InterfaceDown, answer: Some(answer) });
        }
        if info.cons_dir && !is_peering {
            self.path.chain_seg_id();
        }
        self.advance()?;
        Ok(Next::Out(egress_id))
    }

    fn alerted(&self, interface: u16, at_egress: bool) -> Next {
        Next::Alerted(Alert { interface, hop: self.path.view().meta().hop_current(), at_egress })
    }

    fn current(&self) -> (InfoField, HopField) {
        let path = self.path.view();
        (path.current_info(), path.current_hop())
    }

    fn advance(&mut self) -> Result<(), Rejection> {
        self.path.advance().map_err(|_| DropReason::Malformed.into())
    }

    fn check_expiry(&mut self, info: &InfoField, hop: &HopField) -> Result<(), Rejection> {
        let expiry = hop.expiry_unix_ms(info.timestamp_s);
        self.valid_until = self.valid_until.min(expiry);
        if expiry >= self.now_unix_ms {
            return Ok(());
        }
        Err(self.reject_hop(DropReason::Expired, Answer::PATH_EXPIRED))
    }

    fn check_mac(&self) -> Result<(), Rejection> {
        let (info, hop) = self.current();
        if self.rules.key.verify(info.seg_id, info.timestamp_s, &hop) {
            return Ok(());
        }
        Err(self.reject_hop(DropReason::BadMac, Answer::INVALID_MAC))
    }

    /// A rejection with the current hop field, which SCMP's pointer shows.
    fn reject_hop(&self, reason: DropReason, answer: Answer) -> Rejection {
        let pointer = self.facts.path_at + self.path.view().current_hop_offset();
        Rejection { reason, answer: Some(answer.pointing_at(pointer)) }
    }

    /// A rejection with the current info field.
    fn reject_info(&self, reason: DropReason, answer: Answer) -> Rejection {
        let pointer = self.facts.path_at + self.path.view().current_info_offset();
        Rejection { reason, answer: Some(answer.pointing_at(pointer)) }
    }
}

/// Which links a path may join in one AS, so that nobody carries traffic for whom nobody pays ("Path Segment
/// Combinations"). A peering hop is no crossover: it is in both segments.
fn turn_is_allowed(ingress: Option<LinkRole>, egress: LinkRole, is_crossover: bool) -> bool {
    use LinkRole::{Child, Core, Parent, Peer};
    let Some(ingress) = ingress else { return false };
    let turn = (ingress, egress);
    if is_crossover {
        matches!(turn, (Core, Child) | (Child, Core) | (Child, Child))
    } else {
        matches!(turn, (Core, Core) | (Child, Parent) | (Parent, Child) | (Child, Peer) | (Peer, Child))
    }
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "vectors.rs"]
mod vectors;
