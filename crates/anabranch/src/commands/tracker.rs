//! `tracker`: runs a tracker until interrupted.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use anabranch_bittorrent::InfoHash;
use anabranch_content::hex;
use anabranch_content::info::InfoHashes;
use anabranch_swarm::tracker::{ServerOptions, TrackerServer};
use serde_json::json;

use crate::cli::TrackerFlags;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::runtime;
use crate::sandbox::Plan;
use crate::session;
use crate::source::{self, Source};

/// The port that trackers have by custom.
const PORT: u16 = 6969;
/// Longest key: what clients take of a URL has to hold more than that.
const PASSKEY_CHARS_MAX: usize = 128;

/// Runs the command.
pub(crate) fn run(flags: &TrackerFlags, chatter: Chatter) -> Result<Code, Failure> {
    let _sandbox = Plan::tracker(flags).enter(chatter)?;
    let mut options = ServerOptions { is_behind_proxy: flags.behind_proxy, ..ServerOptions::default() };
    if let Some(passkey) = &flags.passkey {
        check_passkey(passkey)?;
        options.tracker.passkey = Some(passkey.clone());
    }
    if !flags.allow_content.is_empty() {
        options.tracker.allowed = Some(allowed(flags)?);
    }
    runtime::block_on(async {
        let server = bind(flags, options).await?;
        let interrupted = runtime::interrupts()?;
        for listening in server.local_addrs() {
            for address in anabranch_swarm::reachable(listening) {
                let key = flags.passkey.iter().map(|key| format!("/{key}")).collect::<String>();
                let [http, udp] = ["http", "udp"].map(|scheme| format!("{scheme}://{address}{key}/announce"));
                if flags.json {
                    let fields = json!({ "address": listening.to_string(), "http": http, "udp": udp });
                    output::json_event("listening", fields)?;
                } else {
                    output::line(http)?;
                    output::line(udp)?;
                }
            }
        }
        server.run(interrupted.notified()).await;
        if chatter.verbose {
            chatter.note("interrupted");
        }
        Ok(Code::Success)
    })
}

/// Listens where the flags say; else for both families, or where there is no IPv6, for IPv4.
async fn bind(flags: &TrackerFlags, options: ServerOptions) -> Result<TrackerServer, Failure> {
    let [both, v4]: [SocketAddr; 2] = [(Ipv6Addr::UNSPECIFIED, PORT).into(), (Ipv4Addr::UNSPECIFIED, PORT).into()];
    let Some((first, rest)) = flags.listen.split_first() else {
        return match TrackerServer::bind(both, options.clone()).await {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TrackerServer::bind(v4, options).await.map_err(|error| session::listen_failure(v4, &error))
            }
            bound => bound.map_err(|error| session::listen_failure(both, &error)),
        };
    };
    let first = first.socket_addr();
    let mut server =
        TrackerServer::bind(first, options).await.map_err(|error| session::listen_failure(first, &error))?;
    for address in rest {
        let address = address.socket_addr();
        server.listen(address).await.map_err(|error| session::listen_failure(address, &error))?;
    }
    Ok(server)
}

/// A key has to stand in a URL as it is.
fn check_passkey(passkey: &str) -> Result<(), Failure> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~');
    if (1..=PASSKEY_CHARS_MAX).contains(&passkey.len()) && passkey.chars().all(fits) {
        return Ok(());
    }
    let message =
        format!("`--passkey` takes 1 to {PASSKEY_CHARS_MAX} letters, digits and any of `-._~`, as it stands in a URL");
    Err(Failure::usage(message))
}

/// The contents that the flags name, by both their hashes.
fn allowed(flags: &TrackerFlags) -> Result<HashSet<InfoHash>, Failure> {
    let mut allowed = HashSet::new();
    for named in &flags.allow_content {
        allowed.extend(hashes(named)?.wire_hashes());
    }
    Ok(allowed)
}

fn hashes(named: &OsStr) -> Result<InfoHashes, Failure> {
    let text = named.to_str().unwrap_or_default();
    if let Some(v1) = hex::decode(text) {
        return Ok(InfoHashes { v1: Some(v1), v2: None });
    }
    if let Some(v2) = hex::decode(text) {
        return Ok(InfoHashes { v1: None, v2: Some(v2) });
    }
    Ok(match source::load(named)? {
        Source::Torrent(metainfo) => metainfo.info.hashes,
        Source::Magnet(magnet) => magnet.hashes,
        // What announces of it are made under.
        source @ Source::Ppspp(_) => anabranch_swarm::Source::from(source).hashes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_in_a_url_as_they_are() {
        assert!(check_passkey("aB3-._~").is_ok() && check_passkey(&"k".repeat(PASSKEY_CHARS_MAX)).is_ok());
        for bad in ["", "a/b", "a b", "a?b", "ä", &"k".repeat(PASSKEY_CHARS_MAX + 1)] {
            assert!(check_passkey(bad).is_err(), "{bad}");
        }
    }
}
