//! How many channels one host may have. A host has 65,536 ports and costs its owner nothing more for each; so ports alone keep nobody
//! else out.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::live::VIEWER_CHANNELS_MAX;
use super::{HALF_OPEN_MAX, PeerAddress, Swarm};
use crate::merkle::NodeStore;
use crate::wire::ChannelId;

/// Proven channels that one host opened, of all that there may be: two of its programs over each of sixteen paths, or as many behind one
/// router; eight such hosts find room. And as many that were opened to it: peers name whom to call.
pub const HOST_CHANNELS_MAX: usize = 32;
/// The same of those that others open to a live viewer, which has few: a third of them is left to other hosts.
pub const VIEWER_HOST_CHANNELS_MAX: usize = VIEWER_CHANNELS_MAX * 2 / 3;
/// Channels that one host opened and has not proven yet: four such hosts fill the queue. An honest one proves each in a round trip.
pub const HOST_HALF_OPEN_MAX: usize = HALF_OPEN_MAX / 4;
/// A channel over which no chunk moved for so long makes room for another one of its host: a pause between two chunks is shorter.
pub(super) const IDLE_MIN: Duration = Duration::from_secs(10);
/// Leading bits of an IPv6 address that are one subscriber's, who has all addresses that begin with them (RFC 6177).
const PREFIX_BITS: u32 = 64;

/// Whether two addresses are one host's. This machine is none: many programs are at it, each with a right of its own.
pub(super) fn is_same_host(one: IpAddr, other: IpAddr) -> bool {
    let network = |ip: IpAddr| match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << (u128::BITS - PREFIX_BITS)))),
        ip => ip,
    };
    !one.to_canonical().is_loopback() && network(one) == network(other)
}

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// Whether a channel that is about to be proven has a place among those of its host that were opened from the same side. Where there
    /// are as many as may be, the one of those that the host opened and that has been idle for the longest makes room.
    pub(super) fn has_room_of_host(&mut self, now: Instant, id: ChannelId) -> bool {
        let Some(new) = self.channels.get(&id) else { return false };
        let max = self.host_channels_max(new);
        let is_ours = |channel: &Channel<P>| channel.tries > 0;
        let is_of_host = |channel: &Channel<P>| {
            channel.proven && is_ours(channel) == is_ours(new) && channel.peer.is_same_host(&new.peer)
        };
        let of_host = self.channels.iter().filter(|(_, channel)| is_of_host(channel));
        if of_host.clone().count() < max {
            return true;
        }
        let idle_for = |channel: &Channel<P>| now.saturating_duration_since(channel.moved_at);
        let may_go = |channel: &Channel<P>| {
            !is_ours(channel) && idle_for(channel) >= IDLE_MIN && !self.pinned.contains(&channel.peer)
        };
        let idle = of_host.filter(|(_, channel)| may_go(channel)).max_by_key(|(_, channel)| idle_for(channel));
        match idle.map(|(idle, _)| *idle) {
            Some(idle) => {
                self.close(idle, true);
                true
            }
            None => false,
        }
    }

    fn host_channels_max(&self, new: &Channel<P>) -> usize {
        let is_viewer = self.live.as_ref().is_some_and(|live| !live.is_source());
        match (is_viewer, new.tries) {
            (false, _) => HOST_CHANNELS_MAX,
            (true, 0) => VIEWER_HOST_CHANNELS_MAX,
            // Over how many paths a viewer calls whom its user named is its own choice.
            (true, _) => VIEWER_CHANNELS_MAX,
        }
    }

    /// Others opened more channels than wait for their proof: the oldest of the newest one's host makes room, or else the oldest of all.
    pub(super) fn trim_half_open(&mut self, newest: ChannelId) {
        let Some(peer) = self.channels.get(&newest).map(|channel| channel.peer.clone()) else { return };
        let is_of_host = |half: &&ChannelId| {
            let channel = self.channels.get(*half);
            channel.is_some_and(|channel| channel.peer.is_same_host(&peer))
        };
        let mut of_host = self.half_open.iter().filter(is_of_host);
        let oldest = of_host.next().copied();
        if let Some(oldest) = oldest.filter(|_| of_host.count() >= HOST_HALF_OPEN_MAX) {
            self.close(oldest, false);
        }
        while self.half_open.len() > HALF_OPEN_MAX
            && let Some(oldest) = self.half_open.pop_front()
        {
            self.close(oldest, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_or_a_network() {
        for (one, other, is_same) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8:0:1::1", "2001:db8:0:1:ffff:ffff:ffff:ffff", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
            // This machine.
            ("127.0.0.1", "127.0.0.1", false),
            ("::1", "::1", false),
            ("::ffff:127.0.0.1", "127.0.0.1", false),
        ] {
            let parse = |text: &str| text.parse().expect("an address");
            assert_eq!(is_same_host(parse(one), parse(other)), is_same, "{one} and {other}");
        }
    }
}
