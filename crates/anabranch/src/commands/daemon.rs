//! `daemon`: a library of contents, with an API and a page, until it is interrupted.

use std::io::{self, IsTerminal};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;

use anabranch_daemon::client::{default_socket, token_file};
use anabranch_daemon::{Config, Daemon, StartError, listen};
use anabranch_paths::Endpoint;
use anabranch_swarm::SessionConfig;
use serde_json::json;

use super::check_trackers;
use crate::cli::DaemonFlags;
use crate::exit::{Code, Failure};
use crate::guard;
use crate::output::{self, Chatter};
use crate::run;
use crate::settings;

/// Runs the command.
pub(crate) fn run(flags: &DaemonFlags, chatter: Chatter) -> Result<Code, Failure> {
    check_trackers(&flags.tracker)?;
    guard::check_proxy(&flags.session)?;
    let state_dir = state_dir(flags.state_dir.clone())?;
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    // Who names a folder of its own may be a second daemon of this user.
    let runtime_dir = runtime_dir.filter(|_| flags.state_dir.is_none());
    let socket = flags.socket.clone().unwrap_or_else(|| default_socket(runtime_dir.as_deref(), &state_dir));
    let listener = flags.api.0.map(listen).transpose().map_err(failure)?;
    run::block_on(async {
        let interrupted = run::interrupts()?;
        let config = SessionConfig {
            state_dir: Some(state_dir.join("resume")),
            metadata_dir: Some(state_dir.join("metadata")),
            ..SessionConfig::default()
        };
        let (session, events, peers) = run::fetching(&flags.session, config, &[], chatter).await?;
        // The daemon reads a stream of events of its own.
        drop(events);
        let scion = session.scion_address().map(Endpoint::Scion);
        let listening = session.listening().iter().copied().map(Endpoint::from).chain(scion);
        let config = Config {
            state_dir: state_dir.clone(),
            dir: flags.dir.clone(),
            allow: flags.allow_dir.clone(),
            socket: Some(socket.clone()),
            names: flags.api_name.clone(),
            listening: listening.map(|address| address.to_string()).collect(),
            peers,
            keys: run::keys(&flags.session),
            trackers: flags.tracker.clone(),
            discovery: run::discovery(&flags.session),
            fetch_hosts: flags.fetch_host.clone(),
            limits: (flags.session.limit_down.map(|rate| rate.0), flags.session.limit_up.map(|rate| rate.0)),
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
            tokio::select! {
                () = interrupted.notified() => {}
                () = asked.notified() => {}
            }
            notify("STOPPING=1");
        }
        daemon.stop();
        session.shutdown().await;
        told.map(|()| Code::Success)
    })
}

/// Says where it is. The link with the token goes to a terminal alone: logs are read by others.
fn tell(
    flags: &DaemonFlags,
    daemon: &Daemon,
    socket: &std::path::Path,
    token_file: &std::path::Path,
    chatter: Chatter,
) -> Result<(), Failure> {
    let url = daemon.address().map(|address| format!("http://{address}/"));
    if flags.session.json {
        let fields = json!({
            "socket": socket.to_string_lossy(),
            "url": url,
            "token_file": token_file.to_string_lossy(),
        });
        return output::json_event("serving", fields);
    }
    if let Some(address) = daemon.address().filter(|address| !address.ip().is_loopback()) {
        chatter.note(format_args!(
            "{address} can be reached from elsewhere, and what goes over it can be read on the way: put a proxy that speaks TLS \
             before it, or come by ssh"
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
        StartError::Key(_) => Code::Input,
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
