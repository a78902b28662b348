//! `send`: sends files and folders to one host or several.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_hercules::congestion::Kind;
use anabranch_swarm::Leave;
use anabranch_swarm::bulk::files::FileSource;
use anabranch_swarm::bulk::{self, Dial, Options, PeerKey, Peers, Source};
use tokio::sync::Notify;

use super::bulk_files::scan_failure;
use crate::awaited::Teller;
use crate::bulk::invitation;
use crate::bulk::known::Known;
use crate::bulk::options::{identity, options, start_failure};
use crate::bulk::receipts::{self, Receipts};
use crate::bulk::stream::{self, Input};
use crate::bulk::target::{Target, is_ticket};
use crate::bulk::watch::{Dialled, Expected, Watch};
use crate::cli::SendFlags;
use crate::exit::{Code, Failure};
use crate::output::Chatter;
use crate::runtime::{self, unless_interrupted};
use crate::sandbox::Plan;
use crate::{scion, system};

/// Bytes of a file's name: Linux's `NAME_MAX`.
const NAME_LEN_MAX: usize = 255;

/// Runs the command.
pub(crate) fn run(flags: Box<SendFlags>, chatter: Chatter) -> Result<Code, Failure> {
    check(&flags)?;
    system::raise_open_files_limit();
    // What comes from standard input passes a file that is to be had before the sandbox is closed.
    let passing = flags.paths.iter().any(|path| path == Path::new("-")).then(stream::nameless).transpose()?;
    let sandbox = Plan::send(&flags).enter(chatter)?;
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let Some(source) = source(&flags, passing, chatter, &interrupted).await? else { return Ok(Code::Interrupted) };
        let identity = identity(flags.bulk.key.as_deref(), chatter)?;
        let key = identity.node_id();
        let named_scion = |target: &Target| matches!(target, Target::Host { address, .. } if address.is_scion());
        let in_ticket = |target: &Target| matches!(target, Target::Ticket(ticket) if ticket.addresses.iter().any(|address| address.as_scion().is_some()));
        let teller = Teller { chatter, has_events: flags.bulk.json && !flags.dry_run };
        let scion = scion::bulk_config(
            &flags.bulk.paths,
            &flags.invitation.listen,
            flags.to.iter().any(named_scion),
            flags.to.iter().any(in_ticket),
            &identity,
            teller,
        );
        let Some(scion) = unless_interrupted(&interrupted, scion).await? else { return Ok(Code::Interrupted) };
        let known = Known::open(&flags.bulk, chatter)?;
        let found = unless_interrupted(&interrupted, dials(&flags, scion.is_some(), &known, teller)).await?;
        let Some((dials, dialled)) = found else { return Ok(Code::Interrupted) };
        if flags.dry_run {
            let shown = super::dry_run::run(&flags, &*source, &dials, scion.as_ref(), teller);
            return Ok(unless_interrupted(&interrupted, shown).await?.unwrap_or(Code::Interrupted));
        }
        let invitation = match dials.is_empty() {
            true => Some(invitation::new(&flags.invitation, false, &key)?),
            false => None,
        };
        let peers = match &invitation {
            Some(invitation) => Peers::Listen(invitation.admission()),
            None => Peers::Dial(dials),
        };
        let manifest = source.manifest();
        let expected = Expected {
            is_sender: true,
            dialled,
            invitation,
            is_output_taken: false,
            key,
            give_up: flags.bulk.give_up,
            json: flags.bulk.json,
            explain: flags.bulk.paths.explain,
        };
        let mut watch = Watch::new(expected, known, flags.bulk.paths.path_log.as_deref(), chatter)?;
        let options = sending(&flags, options(&flags.bulk, &flags.invitation.listen, identity, scion));
        let (handle, mut events) = bulk::send(options, peers, source).map_err(|error| start_failure(&error))?;
        let ended = watch.follow(&handle, &mut events, interrupted).await;
        if let Some(path) = flags.receipt.as_deref().filter(|_| !watch.receipts.is_empty()) {
            let receipts = Receipts { receipts: std::mem::take(&mut watch.receipts), manifest: manifest.to_vec() };
            sandbox.save(receipts::write, path, &receipts.encode())?;
        }
        ended
    })
}

/// Flags that cannot be meant together.
fn check(flags: &SendFlags) -> Result<(), Failure> {
    if let Some(ticket) = flags.paths.iter().find_map(|path| path.to_str().filter(|path| is_ticket(path)))
        && !Path::new(ticket).exists()
    {
        let message = format!("`{ticket}` is a ticket: give it with --to, and in its place what to send");
        return Err(Failure::usage(message));
    }
    let is_input = flags.paths.iter().any(|path| path == Path::new("-"));
    if is_input && flags.paths.len() > 1 {
        return Err(Failure::usage("standard input (`-`) is sent alone: leave the other paths out"));
    }
    let name = flags.name.as_encoded_bytes();
    if is_input && (name.contains(&b'/') || [&b""[..], b".", b".."].contains(&name) || name.len() > NAME_LEN_MAX) {
        return Err(Failure::usage(format!(
            "`--name {}` is no name of a file: give one without `/`, of at most {NAME_LEN_MAX} bytes",
            flags.name.display()
        )));
    }
    if !is_input && let Some(flag) = flags.given.first_of(&["name"]) {
        return Err(Failure::usage(format!(
            "`--{flag}` names what comes from standard input: leave it out, or send `-`"
        )));
    }
    if !flags.to.is_empty()
        && let Some(flag) = flags.given.first_of(&["times", "expires"])
    {
        return Err(Failure::usage(format!(
            "`--{flag}` is about the ticket that is printed where there is no --to: leave it out"
        )));
    }
    for target in &flags.to {
        if let Target::Ticket(ticket) = target {
            invitation::check(ticket, true)?;
        }
    }
    flags.receipt.as_deref().map_or(Ok(()), receipts::check_place)
}

/// What is to be sent, looked through; `None` when interrupted meanwhile.
async fn source(
    flags: &SendFlags,
    passing: Option<File>,
    chatter: Chatter,
    interrupted: &Notify,
) -> Result<Option<Arc<dyn Source>>, Failure> {
    let canceled = Arc::new(AtomicBool::new(false));
    let (paths, name, selection) = (flags.paths.clone(), flags.name.clone(), flags.selection.clone());
    let cancel = Arc::clone(&canceled);
    let mut work = tokio::task::spawn_blocking(move || -> Result<Arc<dyn Source>, Failure> {
        if let Some(passing) = passing {
            // A file of which nothing was read yet has a length, and can be read twice.
            let input = io::stdin().as_fd().try_clone_to_owned().map(File::from);
            if let Ok(mut input) = input
                && input.metadata().is_ok_and(|meta| meta.is_file())
                && input.stream_position().is_ok_and(|position| position == 0)
            {
                let source = FileSource::of_file(input, &name).map_err(|error| scan_failure(&error))?;
                return Ok(Arc::new(source));
            }
            return Ok(Arc::new(Input::read(passing, &name, &canceled)?));
        }
        super::bulk_files::scan(&paths, &selection, &canceled, chatter)
    });
    tokio::select! {
        source = &mut work => source.map_err(|error| Failure::new(Code::Failed, error))?.map(Some),
        () = interrupted.notified() => {
            cancel.store(true, Ordering::Relaxed);
            Ok(None)
        }
    }
}

/// Whom to call, and what they are called in turn.
async fn dials(
    flags: &SendFlags,
    scion: bool,
    known: &Known,
    teller: Teller,
) -> Result<(Vec<Dial>, Vec<Dialled>), Failure> {
    let (mut dials, mut dialled, leave) = (Vec::new(), Vec::new(), Leave::by(&flags.bulk.paths.interface));
    for target in &flags.to {
        let (dial, is_remembered) = match target {
            Target::Ticket(ticket) => (Dial::from(&**ticket), false),
            Target::Host { key, address, .. } => {
                let addresses = address.resolve(scion, &leave, teller).await?;
                let found = key.or_else(|| known.find(&addresses));
                (Dial { addresses, key: found.map(PeerKey::Whole), secret: None }, key.is_none())
            }
        };
        dialled.push(Dialled { label: target.to_string(), is_remembered, addresses: dial.addresses.clone() });
        dials.push(dial);
    }
    Ok((dials, dialled))
}

/// What is about sending alone.
fn sending(flags: &SendFlags, first: Options) -> Options {
    let congestion = match (flags.rate, flags.congestion) {
        (Some(rate), _) => Kind::Fixed(rate.0 as f64),
        (None, Some(choice)) => choice.into(),
        (None, None) if flags.fair => Kind::Fair,
        (None, None) => Kind::Bbr,
    };
    Options { congestion, is_fair: flags.fair, limit_up: flags.limit_up.map(|rate| rate.0), ..first }
}
