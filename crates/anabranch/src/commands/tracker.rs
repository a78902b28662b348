//! `tracker`: runs a tracker until interrupted.

use anabranch_swarm::tracker::{ServerOptions, TrackerServer};
use serde_json::json;

use crate::address::reachable;
use crate::cli::TrackerFlags;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::run;

/// Runs the command.
pub fn run(flags: &TrackerFlags, chatter: Chatter) -> Result<Code, Failure> {
    let listen = flags.listen.socket_addr();
    run::block_on(async {
        let failed = |error| run::listen_failure(listen, &error);
        let server = TrackerServer::bind(listen, ServerOptions::default()).await.map_err(failed)?;
        let interrupted = run::interrupts()?;
        let listening = server.local_addr().map_err(failed)?;
        for address in reachable(listening) {
            let (http, udp) = (format!("http://{address}/announce"), format!("udp://{address}/announce"));
            if flags.json {
                output::json_event("listening", json!({ "address": listening.to_string(), "http": http, "udp": udp }))?;
            } else {
                output::line(http)?;
                output::line(udp)?;
            }
        }
        server.run(interrupted.notified()).await;
        if chatter.verbose {
            chatter.note("interrupted");
        }
        Ok(Code::Success)
    })
}
