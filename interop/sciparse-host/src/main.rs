//! A SCION end host that the tests drive: one command, one line of output for everything that happened.
//!
//! Packets, SCMP messages and the combination of segments are Anapaya's (`sciparse`), and so is what asks the daemon and
//! the control service (`scion-protobuf`). So our network and our end host meet somebody who read the specifications
//! without us.
//!
//! ```text
//! paths    DAEMON ISD-AS              path HOPS mtu MTU, for every path
//! ping     DAEMON ISD-AS IP           echo HOPS ok|timeout, an SCMP echo over every path
//! send     DAEMON ISD-AS IP PORT      reply HOPS ok|wrong|timeout, a datagram over every path and its echo
//! serve    DAEMON IP PORT             ready, then sends every datagram back over the path it came on, and answers
//!                                     SCMP echo requests, until killed
//! segments DAEMON CONTROL ISD-AS IP   as ping, over paths combined here of the control service's segments
//! ```
//!
//! DAEMON and CONTROL are host:port. Exits 1 when a line says anything but ok.

mod host;
mod lookup;
mod packet;

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use sciparse::identifier::isd_asn::IsdAsn;
use sciparse::path::ScionPath;

use host::{Host, Outcome};
use lookup::Daemon;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sciparse-host: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether everything was answered as it should.
fn run(args: &[&str]) -> Result<bool> {
    match args {
        ["paths", daemon, destination] => {
            for path in Daemon::connect(daemon)?.paths(isd_as(destination)?)? {
                println!("path {} mtu {}", hops(&path), path.metadata().map_or(0, |metadata| metadata.mtu));
            }
            Ok(true)
        }
        ["ping", daemon, destination, ip] => {
            let daemon = Daemon::connect(daemon)?;
            let paths = daemon.paths(isd_as(destination)?)?;
            ping(&daemon, &paths, ip.parse().context("IP")?)
        }
        ["segments", daemon, control, destination, ip] => {
            let daemon = Daemon::connect(daemon)?;
            let paths = daemon.combined_paths(control, isd_as(destination)?)?;
            ping(&daemon, &paths, ip.parse().context("IP")?)
        }
        ["send", daemon, destination, ip, port] => {
            let daemon = Daemon::connect(daemon)?;
            let paths = daemon.paths(isd_as(destination)?)?;
            let (ip, port) = (ip.parse().context("IP")?, port.parse().context("PORT")?);
            each(&paths, "reply", |path| Host::towards(&daemon, path, ip)?.send(path, ip, port, &payload(path)))
        }
        ["serve", daemon, ip, port] => {
            let home = Daemon::connect(daemon)?.home();
            host::serve(home, ip.parse().context("IP")?, port.parse().context("PORT")?)
        }
        _ => bail!("usage: sciparse-host paths|ping|send|serve|segments ..., as the top of main.rs says"),
    }
}

fn ping(daemon: &Daemon, paths: &[ScionPath], ip: IpAddr) -> Result<bool> {
    each(paths, "echo", |path| Host::towards(daemon, path, ip)?.ping(path, ip, &payload(path)))
}

/// Says how it went over each path.
fn each(paths: &[ScionPath], what: &str, go: impl Fn(&ScionPath) -> Result<Outcome>) -> Result<bool> {
    let mut all_ok = true;
    for path in paths {
        let outcome = go(path)?;
        all_ok &= outcome == Outcome::Ok;
        println!("{what} {} {outcome}", hops(path));
    }
    Ok(all_ok)
}

fn isd_as(text: &str) -> Result<IsdAsn> {
    text.parse().map_err(|error| anyhow::anyhow!("`{text}` is no ISD-AS: {error}"))
}

/// Bytes of a datagram or an echo.
const PAYLOAD_LEN: usize = 901;

/// Differs for every path, so that an answer to another datagram is noticed. Of odd length, which checksums pad.
fn payload(path: &ScionPath) -> Vec<u8> {
    hops(path).bytes().cycle().take(PAYLOAD_LEN).collect()
}

/// The interfaces of a path, as in 1-ff00:0:110#1,1-ff00:0:111#41; a dash inside one AS.
fn hops(path: &ScionPath) -> String {
    let interfaces = path.metadata().and_then(|metadata| metadata.interfaces.as_deref()).unwrap_or_default();
    let joined: Vec<String> =
        interfaces.iter().map(|each| format!("{}#{}", each.interface.isd_asn, each.interface.id)).collect();
    if joined.is_empty() { "-".into() } else { joined.join(",") }
}
