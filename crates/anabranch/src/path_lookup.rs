//! The paths to a destination that the flags let through: what `paths`, `ping` and `traceroute` have in common.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_paths::{IsdAs, PathFilter, PolicyFile, ScionPath};
use anabranch_scion::lookup::names::{NameError, Names};
use anabranch_scion::lookup::{PathLookup, Source};

use crate::awaited::Teller;
use crate::cli::{OnePathFlags, PathFlags, QueryFlags};
use crate::destination::Destination;
use crate::exit::{Code, Failure};
use crate::health::{self, Health};
use crate::path_list::PathList;
use crate::{ask, units};

/// Bytes of a policy file: more than it may have, so that its reader notices.
const POLICY_BYTES_MAX: u64 = anabranch_paths::POLICY_FILE_BYTES_MAX as u64 + 1;

/// What a lookup brought.
pub(crate) struct Found {
    /// Keeps the paths fresh.
    pub lookup: PathLookup,
    /// The destination's AS.
    pub isd_as: IsdAs,
    /// The host there, if the destination is one.
    pub ip: Option<IpAddr>,
}

/// Asks for the paths to `destination`, at least one, in the order in which they are tried: `max` of them at most. With `probe`, each path's
/// last router is asked too. Within a runtime.
pub(crate) async fn find(
    query: &QueryFlags,
    destination: &Destination,
    probe: bool,
    max: Option<usize>,
    teller: Teller,
) -> Result<(Found, PathList), Failure> {
    let flags = &query.path;
    let (isd_as, host) = resolve(destination, teller).await?;
    let filter = match &flags.policy {
        Some(path) => filter(flags, read_policy(path)?.filter(isd_as, host).clone()),
        None => filter(flags, PathFilter::default()),
    };
    let source = Source::find(flags.sciond.as_deref()).map_err(Failure::input)?;
    let lookup = teller.start(source).await?;
    let mut paths = teller.paths(&lookup, isd_as, query.refresh).await?.to_vec();
    let total = paths.len();
    anabranch_paths::sort(&mut paths);
    filter.apply(&mut paths, SystemTime::now());
    if paths.is_empty() {
        let message = format!(
            "the policy forbids every path to {isd_as}, of which there are {total}: `anabranch paths {isd_as}` lists them"
        );
        return Err(Failure::new(Code::Network, message));
    }
    paths.truncate(max.unwrap_or(usize::MAX));
    let ip = host.map(|host| host.ip());
    let mut health = match probe || query.healthy_only {
        true => Some(health::probe(&lookup, isd_as, ip, &paths, query.timeout).await?),
        false => None,
    };
    if query.healthy_only
        && let Some(found) = &mut health
    {
        let mut alive = found.iter().map(Health::is_alive);
        let tried = paths.len();
        paths.retain(|_| alive.next().unwrap_or(false));
        if paths.is_empty() {
            let why = found.first().map_or_else(String::new, |health| format!(" ({health})"));
            let message = format!(
                "none of {} to {isd_as} is alive{why}: `anabranch paths --probe {isd_as}` says what became of each",
                units::count(tried, "path")
            );
            return Err(Failure::new(Code::Network, message));
        }
        found.retain(Health::is_alive);
    }
    let list = PathList::new(lookup.local_as().isd_as, isd_as, paths, health);
    Ok((Found { lookup, isd_as, ip }, list))
}

/// The path that the user means, by asking him if he wants that; else the first one.
pub(crate) async fn choose(flags: &OnePathFlags, list: PathList) -> Result<Arc<ScionPath>, Failure> {
    if flags.interactive {
        return ask::beside(move || ask::one(&list, std::io::stdin().lock(), std::io::stderr())).await;
    }
    match &flags.path_name {
        Some(name) => list.choose(name).cloned().map_err(|error| Failure::new(Code::Network, error)),
        // A lookup that brings no path is an error.
        None => list.paths().first().cloned().ok_or_else(|| Failure::new(Code::Network, "there is no path")),
    }
}

/// The AS, and the host with its port, which is zero where none was given.
async fn resolve(destination: &Destination, teller: Teller) -> Result<(IsdAs, Option<SocketAddr>), Failure> {
    match destination {
        Destination::As(isd_as) => Ok((*isd_as, None)),
        Destination::Host { isd_as, ip, port } => Ok((*isd_as, Some(SocketAddr::new(*ip, port.unwrap_or(0))))),
        Destination::Name(name) => {
            let names = Names::system();
            let resolving = async {
                names.resolve(name).await.map_err(|error| match error {
                    NameError::HostsLine { .. } | NameError::Hosts { .. } => Failure::input(error),
                    _ => Failure::new(Code::Network, error),
                })
            };
            let hosts = teller.name(name, resolving).await?;
            // A name that stands for anything stands for at least one host.
            let first = hosts.first().ok_or_else(|| Failure::new(Code::Network, format!("`{name}` has no address")))?;
            Ok((first.isd_as, Some(SocketAddr::new(first.ip, 0))))
        }
    }
}

/// The flags, and under them what they leave open.
pub(crate) fn filter(flags: &PathFlags, under: PathFilter) -> PathFilter {
    PathFilter {
        acl: flags.acl.clone().or(under.acl),
        sequence: flags.sequence.clone().or(under.sequence),
        preference: flags.preference.clone().or(under.preference),
        ..under
    }
}

/// Reads a policy file.
pub(crate) fn read_policy(path: &Path) -> Result<PolicyFile, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::input(format!("{}: {error}", path.display()));
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(POLICY_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| failed(&format!("the policy file cannot be read: {error}")))?;
    text.parse().map_err(|error: anabranch_paths::PolicyFileError| failed(&error))
}
