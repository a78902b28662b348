//! `traceroute`: asks every router on a path.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anabranch_paths::{Interface, ScionAddr, ScionPath};
use anabranch_scion::socket::{END_HOST_PORT, ProbeError, Socket, TraceAnswer, TraceHop};
use serde_json::{Value, json};

use crate::awaited::Teller;
use crate::cli::TracerouteFlags;
use crate::exit::{Code, Failure};
use crate::health::{self, not_received};
use crate::output::{self, Chatter};
use crate::runtime::{self, unless_interrupted};
use crate::{path_list, path_lookup};

/// How often each router is asked: as often as scionproto's does.
const PROBES_PER_HOP: usize = 3;

/// What came of asking one interface's router.
struct Asked {
    interface: Interface,
    answers: Vec<Result<TraceAnswer, ProbeError>>,
}

/// Runs the command.
pub(crate) fn run(flags: &TracerouteFlags, chatter: Chatter) -> Result<Code, Failure> {
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let teller = Teller { chatter, has_events: false };
        let finding = async {
            let (found, list) = path_lookup::find(&flags.query, &flags.destination, false, None, teller).await?;
            Ok((found, path_lookup::choose(&flags.one_path, list).await?))
        };
        let Some((found, path)) = unless_interrupted(&interrupted, finding).await? else {
            return Ok(Code::Interrupted);
        };
        if path.interfaces.is_empty() {
            let message = format!("{} is our own AS: there is no router on the way; `ping` asks a host", found.isd_as);
            return Err(Failure::usage(message));
        }
        let socket = health::socket(&found.lookup)?;
        // Requests end at routers: which host they are for does not matter.
        let host = SocketAddr::new(found.ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), END_HOST_PORT);
        let route = socket
            .register(ScionAddr::new(found.isd_as, host), &path)
            .map_err(|error| Failure::new(Code::Network, error))?;
        if !flags.json && !chatter.quiet {
            output::line(format_args!("tracing path {}: {path}", path.id()))?;
        }
        let asking = async {
            let mut rounds = Vec::with_capacity(PROBES_PER_HOP);
            for _ in 0..PROBES_PER_HOP {
                let hops = socket.traceroute(route, flags.query.timeout).await;
                rounds.push(hops.map_err(|error| Failure::new(Code::Network, error))?);
            }
            Ok(rounds)
        };
        let rounds = tokio::select! {
            rounds = asking => rounds?,
            failed = socket.drive() => return Err(not_received(failed)),
            () = interrupted.notified() => return Ok(Code::Interrupted),
        };
        let asked = by_interface(&path, rounds);
        if flags.json {
            let hops: Vec<Value> = asked.iter().map(Asked::json).collect();
            output::line(json!({ "path": path_list::path_json(&path), "hops": hops }))?;
        } else if !chatter.quiet {
            for (place, asked) in asked.iter().enumerate() {
                output::line(format_args!("{place} {}", asked.text()))?;
            }
        }
        let answered: Vec<bool> = asked.iter().map(Asked::is_answered).collect();
        match answered.contains(&false) {
            false => Ok(Code::Success),
            true => Err(Failure::new(Code::Network, where_it_ends(&path, &answered))),
        }
    })
}

fn by_interface(path: &ScionPath, rounds: Vec<Vec<TraceHop>>) -> Vec<Asked> {
    let mut asked: Vec<Asked> =
        path.interfaces.iter().map(|interface| Asked { interface: *interface, answers: Vec::new() }).collect();
    for round in rounds {
        for (asked, hop) in asked.iter_mut().zip(round) {
            asked.answers.push(hop.answer);
        }
    }
    asked
}

/// Asks each router of `route`, which goes over `path`, once: how far requests come, in a sentence. Somebody has to receive.
pub(crate) async fn locate(
    socket: &Socket,
    route: anabranch_scion::socket::RouteId,
    path: &ScionPath,
    timeout: Duration,
) -> String {
    let hops = socket.traceroute(route, timeout).await.unwrap_or_default();
    let answered: Vec<bool> = hops.iter().map(|hop| hop.answer.is_ok()).collect();
    where_it_ends(path, &answered)
}

/// How far requests come, of which interfaces' routers `answered`, in a sentence.
fn where_it_ends(path: &ScionPath, answered: &[bool]) -> String {
    let ours = path.next_hop.map_or_else(String::new, |router| format!(" at {router}"));
    let silent = answered.iter().position(|answered| !answered);
    match (silent, answered.iter().rposition(|answered| *answered)) {
        (None, _) => "every router on the way answers".to_owned(),
        (_, None) => format!("the router of our own AS{ours} does not answer either: is it running?"),
        (Some(silent), Some(last)) if last > silent => {
            format!("the router at {} does not answer, but others behind it do", path.interfaces[silent])
        }
        (_, Some(last)) => format!("routers answer as far as {}, and nothing does behind it", path.interfaces[last]),
    }
}

impl Asked {
    fn is_answered(&self) -> bool {
        self.answers.iter().any(Result::is_ok)
    }

    /// Its router's address, where that answered.
    fn router(&self) -> Option<String> {
        self.answers.iter().flatten().map(|answer| answer.router.to_string()).next()
    }

    /// `1-ff00:0:110,127.16.0.2 IfID=1  0.213 ms  0.180 ms  *`
    fn text(&self) -> String {
        let times: Vec<String> = self
            .answers
            .iter()
            .map(|answer| answer.as_ref().map_or("*".to_owned(), |answer| format!("{:.3} ms", milliseconds(answer))))
            .collect();
        let router = self.router().unwrap_or_else(|| self.interface.isd_as.to_string());
        let said = self.answers.iter().find_map(|answer| match answer {
            Err(ProbeError::Scmp(kind)) => Some(format!("  {kind}")),
            _ => None,
        });
        format!("{router} IfID={}  {}{}", self.interface.id, times.join("  "), said.unwrap_or_default())
    }

    fn json(&self) -> Value {
        let times: Vec<Option<f64>> =
            self.answers.iter().map(|answer| answer.as_ref().ok().map(milliseconds)).collect();
        let said = self.answers.iter().find_map(|answer| match answer {
            Err(ProbeError::Scmp(kind)) => Some(kind.to_string()),
            _ => None,
        });
        json!({
            "isd_as": self.interface.isd_as.to_string(),
            "interface": self.interface.id,
            "router": self.router(),
            "rtt_ms": times,
            "reason": said,
        })
    }
}

fn milliseconds(answer: &TraceAnswer) -> f64 {
    answer.rtt.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path_list::tests::path;

    #[test]
    fn where_requests_end_is_told() {
        let path = path("1-1 1>2 1-2 3>4 1-9");
        let ends = |answered: [bool; 4]| where_it_ends(&path, &answered);
        assert_eq!(ends([true; 4]), "every router on the way answers");
        let ours = "the router of our own AS at 127.0.0.1:31002 does not answer either: is it running?";
        assert_eq!(ends([false; 4]), ours);
        assert_eq!(ends([true, true, false, false]), "routers answer as far as 1-2#2, and nothing does behind it");
        let one = "the router at 1-2#2 does not answer, but others behind it do";
        assert_eq!(ends([true, false, true, true]), one);
    }
}
