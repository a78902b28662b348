//! `ping`: asks a SCION host for answers, over one path.

mod summary;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use anabranch_paths::{PathId, ScionAddr, ScionPath};
use anabranch_scion::lookup::PathLookup;
use anabranch_scion::socket::{END_HOST_PORT, Echo, ProbeError, RouteId, ScmpKind, Socket};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::cli::PingFlags;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::path_list::{self, PathList};
use crate::path_lookup::{self, Found};
use crate::{ask, run, scion};
use summary::{Summary, milliseconds};

/// Bytes of data in a request: as many as ping(8) sends.
const DATA_LEN: usize = 56;
/// Requests that wait for their answers at a time: those of two seconds, at one in eight milliseconds. Then the next one waits too.
const WAITING_MAX: usize = 256;

/// Runs the command.
pub fn run(flags: &PingFlags, chatter: Chatter) -> Result<Code, Failure> {
    run::block_on(async {
        let found = path_lookup::find(&flags.path, &flags.destination).await?;
        let Some(ip) = found.ip else {
            let isd_as = found.isd_as;
            return Err(Failure::usage(format!("`{isd_as}` is an AS: name a host of it, as in {isd_as},10.0.0.1")));
        };
        let path = choose(flags, &found.list)?;
        let remote = ScionAddr::new(found.isd_as, SocketAddr::new(ip, END_HOST_PORT));
        let interrupted = run::interrupts()?;
        let ping = Ping::new(flags, &found, remote, &path, chatter)?;
        if ping.is_heard() {
            ping.announce(&path)?;
        }
        let asking = async {
            tokio::select! {
                done = ping.ask(&interrupted) => done,
                failed = ping.socket.drive() => Err(Failure::new(Code::Network, format!("cannot receive: {}", why(failed)))),
                () = refresh(&found.lookup, &ping.socket, ping.route, remote, path.id()) => Ok(Outcome::default()),
            }
        };
        let outcome = asking.await?;
        ping.conclude(&outcome)
    })
}

fn why(ended: io::Result<()>) -> String {
    ended.err().map_or_else(|| "the socket was closed".to_owned(), |error| error.to_string())
}

fn choose(flags: &PingFlags, list: &PathList) -> Result<Arc<ScionPath>, Failure> {
    if flags.interactive {
        return ask::one(list, io::stdin().lock(), io::stderr());
    }
    match &flags.path_id {
        Some(prefix) => prefix.find(list.paths()).cloned().map_err(|error| Failure::new(Code::Network, error)),
        // A lookup that brings no path is an error.
        None => list.paths().first().cloned().ok_or_else(|| Failure::new(Code::Network, "there is no path")),
    }
}

/// One `ping` at work.
struct Ping<'a> {
    flags: &'a PingFlags,
    socket: Socket,
    route: RouteId,
    /// As users write it.
    host: String,
    chatter: Chatter,
}

/// What a `ping` came to.
#[derive(Default)]
struct Outcome {
    summary: Summary,
    /// Why the last request without an answer had none.
    trouble: Option<ProbeError>,
}

impl<'a> Ping<'a> {
    fn new(
        flags: &'a PingFlags,
        found: &Found,
        remote: ScionAddr,
        path: &ScionPath,
        chatter: Chatter,
    ) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::new(Code::Network, error);
        let here = found.lookup.local_as();
        let local = ScionAddr::new(here.isd_as, SocketAddr::new(scion::local_ip(&found.lookup)?, 0));
        let socket = Socket::bind(local, here.ports.clone()).map_err(|error| failed(&error))?;
        let route = socket.register(remote, path).map_err(|error| failed(&error))?;
        let host = format!("{},{}", remote.isd_as, remote.host.ip());
        Ok(Self { flags, socket, route, host, chatter })
    }

    /// Whether anybody wants to know more than the exit code says.
    fn is_heard(&self) -> bool {
        self.flags.json || !self.chatter.quiet
    }

    fn announce(&self, path: &ScionPath) -> Result<(), Failure> {
        let host = &self.host;
        if self.flags.json {
            return output::json_event("started", json!({ "host": host, "path": path_list::path_json(path) }));
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
                    let (socket, route, timeout, number) = (self.socket.clone(), self.route, self.flags.timeout, asked);
                    waiting.spawn(async move { (number, socket.ping(route, DATA_LEN, timeout).await) });
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
        let Outcome { summary, trouble } = outcome;
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
            Some(ProbeError::Timeout(_)) | None => Err(Failure::new(
                Code::Network,
                format!(
                    "{} does not answer: does it run, and answer echo requests? Or try another path (--interactive)",
                    self.host
                ),
            )),
            Some(trouble) => Err(Failure::new(
                Code::Network,
                format!("no answer from {}: {trouble}; try another path (--interactive)", self.host),
            )),
        }
    }
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
