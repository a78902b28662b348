//! `receive`: receives what somebody sends.

use std::path::Path;
use std::sync::Arc;

use anabranch_hercules::wire::ticket::Ticket;
use anabranch_swarm::bulk::{self, Admission, Destinations, Dial, Peers};

use crate::awaited::Teller;
use crate::bulk::invitation;
use crate::bulk::known::Known;
use crate::bulk::options::{identity, options, start_failure};
use crate::bulk::stream::{self, Output, ToOutput};
use crate::bulk::target::{Target, allowed};
use crate::bulk::watch::{Dialled, Expected, Watch};
use crate::cli::ReceiveFlags;
use crate::exit::{Code, Failure};
use crate::output::Chatter;
use crate::runtime::{self, unless_interrupted};
use crate::sandbox::Plan;
use crate::{scion, system};

/// Runs the command.
pub(crate) fn run(flags: Box<ReceiveFlags>, chatter: Chatter) -> Result<Code, Failure> {
    let ticket = flags.ticket.as_deref().map(ticket).transpose()?;
    let is_output = flags.dir == Path::new("-");
    check(&flags, is_output)?;
    let keys = allowed(&flags.allow)?;
    system::raise_open_files_limit();
    // What goes to standard output passes a file that is to be had before the sandbox is closed.
    let passing = is_output.then(stream::nameless).transpose()?;
    let _sandbox = Plan::receive(&flags).enter(chatter)?;
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let output = Arc::new(Output::new(passing));
        let destinations: Arc<dyn Destinations> = match is_output {
            true => Arc::new(ToOutput(Arc::clone(&output))),
            false => super::bulk_files::destinations(&flags.dir, flags.force, chatter),
        };
        let identity = identity(flags.bulk.key.as_deref(), chatter)?;
        let key = identity.node_id();
        let in_ticket = ticket.iter().flat_map(|ticket| &ticket.addresses).any(|address| address.as_scion().is_some());
        let listen = &flags.invitation.listen;
        let teller = Teller { chatter, has_events: flags.bulk.json };
        let scion = scion::bulk_config(&flags.bulk.paths, listen, false, in_ticket, &identity, teller);
        let is_standing = !keys.is_empty();
        let Some(scion) = unless_interrupted(&interrupted, scion).await? else {
            return Ok(if is_standing { Code::Success } else { Code::Interrupted });
        };
        let invitation = match (&ticket, is_standing) {
            (None, false) => Some(invitation::new(&flags.invitation, true, &key)?),
            _ => None,
        };
        let dialled = ticket.iter().map(|ticket| Dialled {
            label: Target::Ticket(Box::new(ticket.clone())).to_string(),
            is_remembered: false,
            addresses: ticket.addresses.clone(),
        });
        let dialled = dialled.collect();
        let peers = match (&ticket, &invitation) {
            (Some(ticket), _) => Peers::Dial(vec![Dial::from(ticket)]),
            (None, Some(invitation)) => Peers::Listen(invitation.admission()),
            (None, None) => Peers::Listen(Admission { keys, ..Admission::default() }),
        };
        let expected = Expected {
            is_sender: false,
            dialled,
            invitation,
            is_output_taken: is_output,
            key,
            give_up: flags.bulk.give_up,
            json: flags.bulk.json,
            explain: flags.bulk.paths.explain,
        };
        let known = Known::open(&flags.bulk, chatter)?;
        let mut watch = Watch::new(expected, known, flags.bulk.paths.path_log.as_deref(), chatter)?;
        let mut options = options(&flags.bulk, listen, identity, scion);
        options.limit_down = flags.limit_down.map(|rate| rate.0);
        let (handle, mut events) =
            bulk::receive(options, peers, destinations).map_err(|error| start_failure(&error))?;
        let ended = watch.follow(&handle, &mut events, interrupted).await;
        // Whoever closed it needs no word about it.
        if output.is_closed() { Err(Failure::new(Code::StdoutClosed, "")) } else { ended }
    })
}

fn ticket(text: &str) -> Result<Ticket, Failure> {
    let ticket: Ticket = text.parse().map_err(|error| Failure::usage(format!("`{text}`: {error}")))?;
    invitation::check(&ticket, false)?;
    Ok(ticket)
}

/// Flags that cannot be meant together.
fn check(flags: &ReceiveFlags, is_output: bool) -> Result<(), Failure> {
    let given = |names: &[&'static str]| flags.given.first_of(names);
    if flags.ticket.is_some()
        && let Some(flag) = given(&["times", "expires", "listen", "allow"])
    {
        return Err(Failure::usage(format!(
            "`--{flag}` is about who may call, and with a TICKET this end calls: leave one of both out"
        )));
    }
    if flags.ticket.is_none() && !flags.allow.is_empty() {
        if flags.invitation.listen.is_empty() {
            return Err(Failure::usage(
                "`--allow` waits for senders, who have to know where: give --listen ADDR, with a port",
            ));
        }
        if let Some(flag) = given(&["times", "expires"]) {
            return Err(Failure::usage(format!(
                "`--{flag}` is about a ticket, and with --allow there is none: leave one of both out"
            )));
        }
    }
    if is_output && flags.bulk.json {
        return Err(Failure::usage("`-o -` and `--json` both print on standard output: leave one out"));
    }
    if is_output && !flags.allow.is_empty() {
        return Err(Failure::usage("`-o -` takes one file, and with --allow many may come: give a folder"));
    }
    // What of the folder's path is there: the rest is made.
    let there = flags.dir.ancestors().find(|place| place.symlink_metadata().is_ok());
    if let Some(place) = there.filter(|place| !is_output && !place.is_dir()) {
        let message = format!("{} is no folder: choose another (-o), or move it away", place.display());
        return Err(Failure::new(Code::Storage, message));
    }
    Ok(())
}
