//! `paths`: lists the paths to a SCION destination.

use std::time::SystemTime;

use crate::awaited::Teller;
use crate::cli::PathsFlags;
use crate::exit::{Code, Failure};
use crate::output::Chatter;
use crate::runtime::{self, unless_interrupted};
use crate::{output, path_lookup};

/// Runs the command.
pub(crate) fn run(flags: &PathsFlags, chatter: Chatter) -> Result<Code, Failure> {
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let teller = Teller { chatter, has_events: false };
        let max = flags.maxpaths.map(|max| max as usize);
        let finding = path_lookup::find(&flags.query, &flags.destination, flags.probe, max, teller);
        let Some((_, list)) = unless_interrupted(&interrupted, finding).await? else { return Ok(Code::Interrupted) };
        if flags.json {
            output::line(list.json())?;
        } else {
            output::raw(list.text(SystemTime::now(), flags.extended).as_bytes())?;
        }
        match list.alive() {
            Some(0) => Err(Failure::new(Code::Network, "no path is alive: the list says what became of each")),
            _ => Ok(Code::Success),
        }
    })
}
