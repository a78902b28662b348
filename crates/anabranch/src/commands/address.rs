//! `address`: the SCION address of this host.

use anabranch_scion::lookup::Source;
use serde_json::json;

use crate::awaited::Teller;
use crate::cli::AddressFlags;
use crate::exit::{Code, Failure};
use crate::output::Chatter;
use crate::runtime::{self, unless_interrupted};
use crate::{output, scion};

/// Runs the command.
pub(crate) fn run(flags: &AddressFlags, chatter: Chatter) -> Result<Code, Failure> {
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let source = Source::find(flags.sciond.as_deref()).map_err(Failure::input)?;
        let starting = Teller { chatter, has_events: false }.start(source);
        let Some(lookup) = unless_interrupted(&interrupted, starting).await? else { return Ok(Code::Interrupted) };
        let (isd_as, ip) = (lookup.local_as().isd_as, scion::local_ip(&lookup)?);
        let address = format!("{isd_as},{ip}");
        if flags.json {
            let entry = json!({ "isd_as": isd_as.to_string(), "ip": ip.to_string(), "address": address });
            output::line(json!({ "addresses": [entry] }))?;
        } else {
            output::line(address)?;
        }
        Ok(Code::Success)
    })
}
