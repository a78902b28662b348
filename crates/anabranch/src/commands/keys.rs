//! `keys`: this node's own key, and those that others were met with.

use anabranch_transport::known_keys::{KnownKeys, KnownKeysError};
use serde_json::json;

use crate::bulk::options::own_identity;
use crate::cli::{KeysCommand, KeysForgetFlags, KeysListFlags, KeysOwnFlags, KnownKeysFlags};
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::settings;

/// Runs the command.
pub(crate) fn run(command: &KeysCommand, chatter: Chatter) -> Result<Code, Failure> {
    match command {
        KeysCommand::List(flags) => list(flags),
        KeysCommand::Forget(flags) => forget(flags, chatter),
        KeysCommand::Own(flags) => own(flags),
    }
}

fn own(flags: &KeysOwnFlags) -> Result<Code, Failure> {
    let Some(identity) = own_identity(flags.key.as_deref())? else {
        return Err(Failure::usage(
            "no folder is known to keep a key in: set HOME or XDG_STATE_HOME, or give --key FILE",
        ));
    };
    let key = identity.node_id();
    match flags.json {
        true => output::line(json!({ "key": key.to_string() }))?,
        false => output::line(key)?,
    }
    Ok(Code::Success)
}

fn list(flags: &KeysListFlags) -> Result<Code, Failure> {
    let known = file(&flags.file)?.list().map_err(failure)?;
    if flags.json {
        let entry = |known: &anabranch_transport::known_keys::KnownKey| json!({ "address": known.address.to_string(), "key": known.key.to_string() });
        output::line(json!({ "keys": known.iter().map(entry).collect::<Vec<_>>() }))?;
        return Ok(Code::Success);
    }
    for known in known {
        output::line(format_args!("{} {}", known.address, known.key))?;
    }
    Ok(Code::Success)
}

fn forget(flags: &KeysForgetFlags, chatter: Chatter) -> Result<Code, Failure> {
    let keys = file(&flags.file)?;
    let mut unknown = Vec::new();
    for address in &flags.address {
        match keys.forget(*address).map_err(failure)? {
            Some(known) => chatter.note(format_args!("forgot {} of {address}", known.key)),
            None => unknown.push(address.to_string()),
        }
    }
    if unknown.is_empty() {
        return Ok(Code::Success);
    }
    let message = format!(
        "{} does not know {}: `anabranch keys list` says whom it knows",
        keys.path().display(),
        unknown.join(", ")
    );
    Err(Failure::input(message))
}

fn file(flags: &KnownKeysFlags) -> Result<KnownKeys, Failure> {
    let path = flags.known_keys.clone().or_else(settings::known_keys_file);
    let missing =
        || Failure::usage("no folder is known to keep keys in: set HOME or XDG_STATE_HOME, or give --known-keys FILE");
    path.map(KnownKeys::new).ok_or_else(missing)
}

fn failure(error: KnownKeysError) -> Failure {
    match error {
        KnownKeysError::Io { .. } => Failure::new(Code::Storage, error),
        error => Failure::input(error),
    }
}
