//! `ping`: asks a SCION host for answers, over one path.

mod summary;

use std::net::SocketAddr;
use std::rc::Rc;

use anabranch_paths::{PathId, ScionAddr, ScionPath};
use anabranch_scion::lookup::PathLookup;
use anabranch_scion::socket::{ECHO_TOKEN_LEN, END_HOST_PORT, Echo, ProbeError, RouteId, ScmpKind, Socket};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::traceroute;
use crate::awaited::Teller;
use crate::cli::PingFlags;
use crate::exit::{Code, Failure};
use crate::health::{self, not_received};
use crate::output::{self, Chatter};
use crate::path_list;
use crate::path_lookup::{self, Found};
use crate::runtime::{self, unless_interrupted};
use summary::{Summary, milliseconds};

/// Requests that wait for their answers at a time: those of two seconds, at one in eight milliseconds. Then the next one waits too.
const WAITING_MAX: usize = 256;

/// Runs the command.
pub(crate) fn run(flags: &PingFlags, chatter: Chatter) -> Result<Code, Failure> {
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let teller = Teller { chatter, has_events: flags.json };
        let finding = async {
            let (found, list) = path_lookup::find(&flags.query, &flags.destination, false, None, teller).await?;
            let Some(ip) = found.ip else {
                let isd_as = found.isd_as;
                return Err(Failure::usage(format!("`{isd_as}` is an AS: name a host of it, as in {isd_as},10.0.0.1")));
            };
            Ok((found, ip, path_lookup::choose(&flags.one_path, list).await?))
        };
        let Some((found, ip, path)) = unless_interrupted(&interrupted, finding).await? else {
            return Ok(Code::Interrupted);
        };
        let remote = ScionAddr::new(found.isd_as, SocketAddr::new(ip, END_HOST_PORT));
        let ping = Ping::new(flags, &found, remote, &path, chatter)?;
        if ping.is_heard() {
            ping.announce(&path)?;
        }
        let asking = async {
            let mut outcome = ping.ask(&interrupted).await?;
            if outcome.is_silence() {
                let timeout = flags.query.timeout;
                outcome.reach = Some(traceroute::locate(&ping.socket, ping.route, &path, timeout).await);
            }
            Ok(outcome)
        };
        let outcome = tokio::select! {
            done = asking => done?,
            failed = ping.socket.drive() => return Err(not_received(failed)),
            () = refresh(&found.lookup, &ping.socket, ping.route, remote, path.id()) => Outcome::default(),
        };
        ping.conclude(&outcome)
    })
}

/// One `ping` at work.
struct Ping<'a> {
    flags: &'a PingFlags,
    socket: Socket,
    route: RouteId,
    /// As users write it.
    host: String,
    /// Bytes of data in each request.
    data_len: usize,
    chatter: Chatter,
}

/// What a `ping` came to.
#[derive(Default)]
struct Outcome {
    summary: Summary,
    /// Why the last request without an answer had none.
    trouble: Option<ProbeError>,
    /// How far requests come, where nobody said anything.
    reach: Option<String>,
}

impl Outcome {
    /// Whether requests went out, and nobody said anything.
    fn is_silence(&self) -> bool {
        let silent = matches!(self.trouble, Some(ProbeError::Timeout(_)) | None);
        silent && !self.summary.is_empty() && !self.summary.is_answered()
    }
}

impl<'a> Ping<'a> {
    fn new(
        flags: &'a PingFlags,
        found: &Found,
        remote: ScionAddr,
        path: &ScionPath,
        chatter: Chatter,
    ) -> Result<Self, Failure> {
        let socket = health::socket(&found.lookup)?;
        let route = socket.register(remote, path).map_err(|error| Failure::new(Code::Network, error))?;
        let host = format!("{},{}", remote.isd_as, remote.host.ip());
        let data_len = data_len(flags, &socket, route)?;
        Ok(Self { flags, socket, route, host, data_len, chatter })
    }

    /// Whether anybody wants to know more than the exit code says.
    fn is_heard(&self) -> bool {
        self.flags.json || !self.chatter.quiet
    }

    fn announce(&self, path: &ScionPath) -> Result<(), Failure> {
        let host = &self.host;
        if self.flags.json {
            return output::json_event(
                "started",
                json!({ "host": host, "payload_size": self.data_len, "path": path_list::path_json(path) }),
            );
        }
        output::line(format_args!("asking {host} by path {}: {path}", path.id()))
    }

    /// Asks until it has asked often enough, and all answers are in or overdue; or until it is interrupted.
    async fn ask(&self, interrupted: &Rc<Notify>) -> Result<Outcome, Failure> {
        let mut outcome = Outcome::default();
        let mut ticks = tokio::time::interval(self.flags.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut waiting = JoinSet::new();
        let mut asked = 0_u64;
        loop {
            let all_asked = self.flags.count.is_some_and(|count| asked >= count.into());
            if all_asked && waiting.is_empty() {
                return Ok(outcome);
            }
            tokio::select! {
                _ = ticks.tick(), if !all_asked && waiting.len() < WAITING_MAX => {
                    asked += 1;
                    let (socket, route, timeout, number) = (self.socket.clone(), self.route, self.flags.query.timeout, asked);
                    let data_len = self.data_len;
                    waiting.spawn(async move { (number, socket.ping(route, data_len, timeout).await) });
                }
                Some(done) = waiting.join_next() => {
                    // A request that panicked is a fault of this program and has been reported by the runtime.
                    let Ok((number, answer)) = done else { continue };
                    outcome.summary.add(answer.as_ref().ok().map(|echo| echo.rtt));
                    if self.is_heard() {
                        self.tell(number, &answer)?;
                    }
                    outcome.trouble = answer.err().or(outcome.trouble);
                }
                () = interrupted.notified() => return Ok(outcome),
            }
        }
    }

    fn tell(&self, number: u64, answer: &Result<Echo, ProbeError>) -> Result<(), Failure> {
        match (answer, self.flags.json) {
            (Ok(Echo { rtt, packet_len, .. }), true) => {
                let fields = json!({ "number": number, "rtt_ms": milliseconds(*rtt), "bytes": packet_len });
                output::json_event("answer", fields)
            }
            (Ok(Echo { rtt, packet_len, .. }), false) => {
                output::line(format_args!("{number}: {:.3} ms, {packet_len} bytes", milliseconds(*rtt)))
            }
            (Err(error), true) => {
                let interface = match error {
                    ProbeError::Scmp(ScmpKind::ExternalInterfaceDown(interface)) => Some(interface.to_string()),
                    _ => None,
                };
                let fields = json!({ "number": number, "reason": error.to_string(), "interface": interface });
                output::json_event("no_answer", fields)
            }
            (Err(error), false) => output::line(format_args!("{number}: {error}")),
        }
    }

    fn conclude(&self, outcome: &Outcome) -> Result<Code, Failure> {
        let Outcome { summary, trouble, reach } = outcome;
        if self.flags.json {
            output::json_event("summary", summary.json())?;
        } else if self.is_heard() {
            output::line(summary)?;
        }
        if self.chatter.verbose {
            self.chatter.note(format_args!("asked from {}", self.socket.local()));
        }
        match trouble {
            _ if summary.is_answered() => Ok(Code::Success),
            _ if summary.is_empty() => Ok(Code::Interrupted),
            // A host that nobody answers for and a link that is down are mended in different places.
            Some(ProbeError::Timeout(_)) | None => {
                let reach = reach.as_ref().map_or_else(String::new, |reach| format!("; {reach}"));
                let remedy = "does the host run, and answer echo requests? Or try another path (--interactive)";
                let message = match reach.ends_with('?') {
                    true => format!("{} does not answer{reach}", self.host),
                    false => format!("{} does not answer{reach}: {remedy}", self.host),
                };
                Err(Failure::new(Code::Network, message))
            }
            Some(trouble) => Err(Failure::new(
                Code::Network,
                format!("no answer from {}: {trouble}; try another path (--interactive)", self.host),
            )),
        }
    }
}

/// Bytes of data in each request, as the flags say and the path takes.
fn data_len(flags: &PingFlags, socket: &Socket, route: RouteId) -> Result<usize, Failure> {
    let info = socket.info(route).ok_or_else(|| Failure::new(Code::Network, ProbeError::Gone))?;
    // An echo's header is as long as that of UDP, which counts among the headers.
    let (header_len, most) = (info.header_len, info.payload_len_max);
    let wanted = match flags.packet_size {
        _ if flags.max_mtu => most,
        None => flags.payload_size as usize,
        Some(len) => (len as usize).checked_sub(header_len).filter(|len| *len >= ECHO_TOKEN_LEN).ok_or_else(|| {
            let least = header_len + ECHO_TOKEN_LEN;
            Failure::usage(format!(
                "`--packet-size {len}` is less than the headers on this path: give at least {least}"
            ))
        })?,
    };
    if wanted > most {
        let message = format!(
            "{wanted} bytes of data do not fit into one packet on this path, which takes {most}, or {} with headers: give fewer, or --max-mtu",
            header_len + most
        );
        return Err(Failure::usage(message));
    }
    Ok(wanted)
}

/// Lets the route go on over fresh bytes whenever its path is renewed. Never ends.
async fn refresh(lookup: &PathLookup, socket: &Socket, route: RouteId, remote: ScionAddr, id: PathId) {
    if let Ok(mut watch) = lookup.watch(remote.isd_as).await {
        while let Ok(change) = watch.changed().await {
            for path in change.added.iter().chain(&change.refreshed).filter(|path| path.id() == id) {
                // The same path fits the route that it made.
                let _ = socket.update(route, path);
            }
        }
    }
    // Without news the path lives as long as it lives; routers say when it has expired.
    std::future::pending().await
}
