//! `daemon`: a library of contents, with an API and a page, until it is interrupted.

use std::io::{self, IsTerminal};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_daemon::client::{default_socket, token_file};
use anabranch_daemon::{Config, Daemon, StartError, Whole, check_free, listen};
use anabranch_paths::Endpoint;
use anabranch_swarm::SessionConfig;
use clap::FromArgMatches;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::check_trackers;
use crate::cli::{Cli, Command, DaemonFlags, Later, command};
use crate::exit::{Code, Failure};
use crate::guard;
use crate::hook::{self, Ended, Hook};
use crate::output::{self, Chatter};
use crate::runtime::{self, unless_interrupted};
use crate::sandbox::{Plan, Sandbox};
use crate::session;
use crate::settings;
use crate::system;

/// Contents that became complete and whose command waits to be begun; those beyond have none.
const COMPLETED_MAX: usize = 1000;

/// Runs the command.
pub(crate) fn run(flags: &DaemonFlags, config: Option<PathBuf>, chatter: Chatter) -> Result<Code, Failure> {
    check_trackers(&flags.tracker)?;
    guard::check_proxy(&flags.session)?;
    let state_dir = state_dir(flags.state_dir.clone())?;
    check_free(&state_dir).map_err(failure)?;
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    // Who names a folder of its own may be a second daemon of this user.
    let runtime_dir = runtime_dir.filter(|_| flags.state_dir.is_none());
    let socket = flags.socket.clone().unwrap_or_else(|| default_socket(runtime_dir.as_deref(), &state_dir));
    let listener = flags.api.0.map(listen).transpose().map_err(failure)?;
    let command: hook::Shared = Arc::new(Mutex::new(flags.on_complete.clone()));
    let sandbox = Plan::daemon(flags, settings::config_file(config).as_deref(), &state_dir, &socket)
        .starting(Some(hook::errand(Arc::clone(&command))))
        .reloading(Box::new(move |_| {
            // The command is the user's by this way, too. Where the file makes no sense, the other process tells.
            if let Ok(flags) = reread() {
                *command.lock().unwrap_or_else(PoisonError::into_inner) = flags.on_complete;
            }
            Vec::new()
        }))
        .enter(chatter)?;
    runtime::block_on(async {
        let interrupted = runtime::interrupts_but_hangups()?;
        let hangup = SignalKind::hangup();
        // One that whoever started the program had it ignore (`nohup`) stays ignored.
        let hangups = (!system::is_ignored(hangup.as_raw_value())).then(|| signal(hangup).map_err(Failure::runtime));
        let mut hangups = hangups.transpose()?;
        let config = SessionConfig {
            state_dir: Some(state_dir.join("resume")),
            metadata_dir: Some(state_dir.join("metadata")),
            ..SessionConfig::default()
        };
        let fetching = session::fetching(&flags.session, config, &[], chatter);
        let Some((session, events, peers)) = unless_interrupted(&interrupted, fetching).await? else {
            return Ok(Code::Success);
        };
        // The daemon reads a stream of events of its own.
        drop(events);
        let scion = session.scion_address().map(Endpoint::Scion);
        let listening = session.listening().iter().copied().map(Endpoint::from).chain(scion);
        let (told_of, mut completed) = mpsc::channel(COMPLETED_MAX);
        let config = Config {
            state_dir: state_dir.clone(),
            socket: Some(socket.clone()),
            listening: listening.map(|address| address.to_string()).collect(),
            completed: Some(told_of),
            ..daemon_config(flags, peers.clone())
        };
        let daemon = match Daemon::start(session.handle(), listener, config) {
            Ok(daemon) => daemon,
            Err(error) => {
                session.shutdown().await;
                return Err(failure(error));
            }
        };
        for key in daemon.strange() {
            chatter.note(format_args!("`{key}` of the library makes no sense to this version, and stays as it is"));
        }
        let told = tell(flags, &daemon, &socket, &token_file(&state_dir), chatter);
        if told.is_ok() {
            notify("READY=1");
            let asked = daemon.asked_to_end();
            let mut hook = flags.on_complete.clone().map(Hook::new);
            loop {
                tokio::select! {
                    () = interrupted.notified() => break,
                    () = asked.notified() => break,
                    () = hung_up(&mut hangups) => {
                        notify("RELOADING=1");
                        hook = reload(&daemon, (&flags.dir, &sandbox), &peers, hook, chatter);
                        notify("READY=1");
                    }
                    Some(content) = completed.recv() => {
                        if let Some(hook) = &mut hook {
                            match content.what {
                                Whole::Content(info) => hook.complete(content.session, &info, &content.dir),
                                Whole::Bulk { name, bytes, placed } => {
                                    hook.received(content.session, (name, bytes), placed, &content.dir);
                                }
                            }
                        }
                    }
                    ended = next(&mut hook, &sandbox) => {
                        if let Some(failure) = ended.failure {
                            chatter.note(format_args!("the command for a content that is complete {failure}"));
                        }
                    }
                }
            }
            notify("STOPPING=1");
        }
        // It may have something to ask the session until it has ended.
        let _ = tokio::task::spawn_blocking(|| daemon.stop()).await;
        session.shutdown().await;
        told.map(|()| Code::Success)
    })
}

/// What flags say of a daemon, at its start and when they are read again.
fn daemon_config(flags: &DaemonFlags, peers: Vec<Endpoint>) -> Config {
    Config {
        dir: flags.dir.clone(),
        allow: flags.allow_dir.clone(),
        names: flags.api_name.clone(),
        peers,
        keys: session::keys(&flags.session),
        trackers: flags.tracker.clone(),
        limits: (flags.session.limit_down.map(|rate| rate.0), flags.session.limit_up.map(|rate| rate.0)),
        discovery: session::discovery(&flags.session),
        fetch_hosts: flags.fetch_host.clone(),
        clock: Some(system::local_time),
        tls: flags.tls_cert.clone().zip(flags.tls_key.clone()),
        ..Config::default()
    }
}

/// Waits for a hang-up; for ever where they are ignored.
async fn hung_up(hangups: &mut Option<Signal>) {
    match hangups {
        Some(hangups) => {
            hangups.recv().await;
        }
        None => std::future::pending().await,
    }
}

async fn next(hook: &mut Option<Hook>, sandbox: &Sandbox) -> Ended {
    match hook {
        Some(hook) => hook.next(sandbox).await,
        None => std::future::pending().await,
    }
}

/// Reads the configuration again, and has the daemon take it in. What is wrong in it is told, and then nothing changes.
fn reload(
    daemon: &Daemon,
    (dir, sandbox): (&Path, &Sandbox),
    peers: &[Endpoint],
    hook: Option<Hook>,
    chatter: Chatter,
) -> Option<Hook> {
    let read = reread().and_then(|mut flags| {
        check_trackers(&flags.tracker)?;
        // The sandbox was closed with the folders that there were.
        if !sandbox.reaches(&flags.dir) {
            flags.dir = dir.to_owned();
        }
        flags.allow_dir.retain(|folder| {
            let is_out = folder.exists() && !sandbox.reaches(folder);
            if is_out {
                chatter.note(format_args!(
                    "{} is out of the sandbox's reach: it is allowed from the next start on, or with --sandbox off",
                    folder.display()
                ));
            }
            !is_out
        });
        daemon.reload(daemon_config(&flags, peers.to_vec())).map_err(failure)?;
        sandbox.reload()?;
        Ok(flags)
    });
    match read {
        Ok(flags) => {
            chatter.note(format_args!(
                "the configuration was read again; addresses and folders of its own hold from the next start on"
            ));
            match (hook, flags.on_complete) {
                (Some(hook), Some(command)) => Some(hook.with(command)),
                (_, command) => command.map(Hook::new),
            }
        }
        Err(failure) => {
            chatter.note(format_args!("the configuration was read again, and not taken: {failure}"));
            hook
        }
    }
}

fn reread() -> Result<Box<DaemonFlags>, Failure> {
    let arguments: Vec<_> = std::env::args_os().collect();
    let wrong = |error: &dyn std::fmt::Display| Failure::usage(error.to_string().trim_end());
    let matches = settings::layered(command, &arguments)?.map_err(|error| wrong(&error))?;
    match Cli::from_arg_matches(&matches).map_err(|error| wrong(&error))?.command {
        Command::Daemon(Later(flags)) => Ok(flags),
        _ => Err(Failure::usage("this is no `daemon` any more")),
    }
}

/// Says where it is. The link with the token goes to a terminal alone: logs are read by others.
fn tell(
    flags: &DaemonFlags,
    daemon: &Daemon,
    socket: &std::path::Path,
    token_file: &std::path::Path,
    chatter: Chatter,
) -> Result<(), Failure> {
    let url = daemon.url();
    if flags.session.json {
        let fields = json!({
            "socket": socket.to_string_lossy(),
            "url": url,
            "token_file": token_file.to_string_lossy(),
        });
        return output::json_event("serving", fields);
    }
    if let Some(address) = daemon.address().filter(|address| !address.ip().is_loopback() && flags.tls_cert.is_none()) {
        chatter.note(format_args!(
            "{address} can be reached from elsewhere, and what goes over it can be read on the way: give --tls-cert and --tls-key, \
             put a proxy that speaks TLS before it, or come by ssh"
        ));
    }
    chatter.note(format_args!("socket: {}", socket.display()));
    match (daemon.link().filter(|_| io::stdout().is_terminal()), url) {
        (Some(link), _) => output::line(link),
        (None, Some(url)) => {
            chatter.note(format_args!("the token is in {}", token_file.display()));
            output::line(url)
        }
        (None, None) => Ok(()),
    }
}

/// The folder of the daemon, where no other is named.
pub(super) fn state_dir(given: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let known = given.or_else(|| settings::state_folder().map(|folder| folder.join("daemon")));
    known.ok_or_else(|| Failure::usage("there is no folder for the library: set HOME, or give --state-dir"))
}

fn failure(error: StartError) -> Failure {
    let code = match error {
        StartError::Store(_) | StartError::Folder { .. } => Code::Storage,
        StartError::Socket { .. } | StartError::Address { .. } => Code::Network,
        StartError::Key(_) | StartError::Tls(_) => Code::Input,
        StartError::Thread(_) => Code::Failed,
    };
    Failure::new(code, error)
}

/// Tells systemd (sd_notify(3)), where it started us.
fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    // Where that cannot be told, systemd says so itself.
    let _ = UnixDatagram::unbound().and_then(|socket| socket.send_to_addr(state.as_bytes(), &address?));
}
