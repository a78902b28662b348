//! `address`: the SCION address of this host.

use anabranch_scion::lookup::{PathLookup, Source};
use serde_json::json;

use crate::cli::AddressFlags;
use crate::exit::{Code, Failure};
use crate::run::unless_interrupted;
use crate::{output, run, scion};

/// Runs the command.
pub(crate) fn run(flags: &AddressFlags) -> Result<Code, Failure> {
    run::block_on(async {
        let interrupted = run::interrupts()?;
        let source = Source::find(flags.sciond.as_deref()).map_err(Failure::input)?;
        let starting = async { PathLookup::start(source).await.map_err(|error| Failure::new(Code::Network, error)) };
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
