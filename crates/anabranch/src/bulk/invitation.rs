//! The ticket that is printed, as the flags say; and tickets of others, before anybody is asked.

use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_hercules::wire::ticket::Ticket;
use anabranch_swarm::bulk::{Invitation, UselessTicket, check_ticket, ticket_secret};
use anabranch_transport::NodeId;

use crate::cli::InvitationFlags;
use crate::exit::{Code, Failure};
use crate::units;

/// One for the other role.
pub(crate) fn new(flags: &InvitationFlags, holder_sends: bool, key: &NodeId) -> Result<Invitation, Failure> {
    let secret = ticket_secret().map_err(|error| Failure::new(Code::Failed, error))?;
    let times = u16::try_from(flags.times).unwrap_or(u16::MAX);
    Ok(Invitation::new(holder_sends, key, secret, SystemTime::now() + flags.expires, times))
}

/// Seconds since 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Why a ticket is of no use to who holds it, before anybody is asked.
pub(crate) fn check(ticket: &Ticket, holder_sends: bool) -> Result<(), Failure> {
    check_ticket(ticket, holder_sends, SystemTime::now()).map_err(|useless| match useless {
        UselessTicket::ForSending => Failure::usage(
            "this ticket is one for sending: whoever made it waits with `anabranch receive`; give it to `anabranch send PATH --to TICKET`",
        ),
        UselessTicket::ForReceiving => Failure::usage(
            "this ticket is one for receiving: whoever made it waits with `anabranch send`; give it to `anabranch receive TICKET`",
        ),
        UselessTicket::Expired(ago) => Failure::input(format!(
            "the ticket expired {} ago: ask for a new one, maybe with a longer --expires",
            units::duration(ago)
        )),
    })
}
