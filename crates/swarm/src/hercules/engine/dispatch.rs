//! What comes to a socket goes to the transfer that it is of.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use anabranch_hercules::CONTROL_PACKET_MAX;
use anabranch_hercules::wire::seal::Kind;

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::port::Port;

/// Calls before the rest has its turn.
const CALLS_PER_TURN: usize = 8;

/// Receives from the port `at` and hands on what came. Whether there may be more.
pub(super) fn receive(
    ports: &mut [Port],
    at: usize,
    now: Instant,
    senders: &mut BTreeMap<u32, Outgoing>,
    receivers: &mut BTreeMap<u32, Incoming>,
) -> bool {
    for _ in 0..CALLS_PER_TURN {
        // What comes waits in the socket until the disk has taken some, for a moment. Each is asked: it may be the moment's end for it.
        let (mut is_any_full, is_alone) = (false, receivers.len() + senders.len() == 1);
        for receiver in receivers.values_mut() {
            is_any_full |= !receiver.may_receive(now, is_alone);
        }
        if is_any_full {
            return false;
        }
        let Some(port) = ports.get_mut(at) else { return false };
        let more = port.receive(at, now, |fields, packet, from| match fields.kind {
            Kind::Data => {
                let receiver = receivers.get_mut(&fields.transfer);
                if let (Some(receiver), Some((head, sealed))) = (receiver, packet.split_first_chunk()) {
                    receiver.on_data(fields, head, sealed, now);
                }
            }
            _ if packet.len() > CONTROL_PACKET_MAX => {}
            Kind::FromSender => {
                if let Some(receiver) = receivers.get_mut(&fields.transfer) {
                    receiver.on_control(packet, from, now);
                }
            }
            Kind::FromReceiver => {
                if let Some(sender) = senders.get_mut(&fields.transfer) {
                    sender.on_control(packet, from, now);
                }
            }
        });
        let more = match more {
            Ok(more) => more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // An error that an earlier packet's fate left on the socket.
            Err(_) => continue,
        };
        for receiver in receivers.values_mut() {
            receiver.settle_routes(ports);
        }
        for sender in senders.values_mut() {
            sender.settle_routes(ports);
        }
        if !more {
            return false;
        }
    }
    true
}
