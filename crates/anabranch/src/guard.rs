//! Whom the user wants nothing to do with, and what else the flags under "Whom to deal with" say.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_bittorrent::ip_filter::{IpFilter, List, Rule, parse_list};
use anabranch_paths::Endpoint;
use anabranch_swarm::{SessionConfig, Utp};

use crate::address::PeerAddress;
use crate::bulk::target;
use crate::cli::SessionFlags;
use crate::exit::{Code, Failure};
use crate::output::Chatter;

/// Bytes of one list: four times the largest that are in use.
const LIST_BYTES_MAX: u64 = 64 << 20;
/// What compressed lists begin with: gzip, zip.
const COMPRESSED: [&[u8]; 2] = [&[0x1f, 0x8b], b"PK\x03\x04"];

/// Puts into the session's choices what the flags say.
pub(crate) fn apply(flags: &SessionFlags, config: &mut SessionConfig, chatter: Chatter) -> Result<(), Failure> {
    let guard = &flags.guard;
    check_allow(flags, config)?;
    let mut rules = guard.block.clone();
    for path in &guard.ip_filter {
        let bytes = read(path).map_err(|error| unreadable(path, &error))?;
        if COMPRESSED.iter().any(|magic| bytes.starts_with(magic)) {
            let message = format!("{} is compressed: unpack it, and name what was in it", path.display());
            return Err(Failure::input(message));
        }
        let list = take_in(path, &bytes, chatter)?;
        if chatter.verbose {
            chatter.note(format_args!("{}: {} rules", path.display(), list.rules.len()));
        }
        rules.extend(list.rules);
    }
    if let Some(path) = &guard.bans {
        match read(path) {
            Ok(bytes) => rules.extend(take_in(path, &bytes, chatter)?.rules),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(unreadable(path, &error)),
        }
    }
    config.filter = Arc::new(IpFilter::new(rules));
    if guard.proxy.as_ref().is_some_and(|proxy| !proxy.may_relay_udp()) && flags.utp == Utp::Only {
        return Err(Failure::usage(
            "`--utp only` does not go through an HTTP `--proxy`, which takes TCP: name one of SOCKS5, or leave one of them out",
        ));
    }
    if let Some(proxy) = &guard.proxy {
        let (on, off) = match proxy.may_relay_udp() {
            true => ("peers, trackers and, if it relays datagrams, the DHT", "SCION and local discovery are off"),
            false => (
                "peers over TCP and trackers over HTTP",
                "SCION, uTP, the DHT, local discovery and UDP trackers are off",
            ),
        };
        let shut =
            if flags.listen.is_empty() && !proxy.may_relay_udp() { ", and nobody can connect to us" } else { "" };
        chatter.note(format_args!("through {proxy}: {on}; {off}{shut}"));
        config.proxy = Some(Arc::new(proxy.clone()));
    }
    Ok(())
}

/// What would go past the proxy is not done in silence. To be asked before anything is looked up.
pub(crate) fn check_proxy(flags: &SessionFlags) -> Result<(), Failure> {
    if flags.guard.proxy.is_none() {
        return Ok(());
    }
    let past = |what: &str, remedy: &str| Err(Failure::usage(format!("{what} goes past `--proxy`: {remedy}")));
    let listens = flags.listen.iter().any(|address| address.as_scion().is_some());
    if listens || flags.scion.paths.sciond.is_some() || flags.peer.iter().any(PeerAddress::is_scion) {
        return past("SCION", "leave its flags out, or the proxy");
    }
    if flags.peer.iter().any(|peer| matches!(peer, PeerAddress::Name(..))) {
        return past("looking up a peer's name", "give the peer's address");
    }
    if !flags.multipath.interface.is_empty() {
        return past("`--interface`", "leave it out, or the proxy");
    }
    Ok(())
}

fn check_allow(flags: &SessionFlags, config: &SessionConfig) -> Result<(), Failure> {
    // A mistyped key is told before everything else. Peers of secure contents prove keys over IP too.
    if allowed(flags)?.is_none() || config.secure_identity.is_some() {
        return Ok(());
    }
    if config.scion.is_none() {
        let message = "`--allow` admits peers by their keys, which they prove over SCION alone: give --listen with a SCION address, or --sciond; \
                       over IP too, `share --ppspp --secure` and `live --secure` share by keys";
        return Err(Failure::usage(message));
    }
    if let Some(address) = flags.listen.iter().find(|address| address.as_ip().is_some()) {
        let message = format!(
            "`--allow` admits nobody who comes over IP, where no key is proven: leave `--listen {address}` out"
        );
        return Err(Failure::usage(message));
    }
    Ok(())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe would be waited for until somebody writes to it.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(LIST_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::input(format!("cannot read {}: {error}; give a list of addresses to block", path.display()))
}

/// Reads a list; lines that make no sense are told of, and a list of nothing else is refused.
fn take_in(path: &Path, bytes: &[u8], chatter: Chatter) -> Result<List, Failure> {
    let shown = path.display();
    if bytes.len() as u64 > LIST_BYTES_MAX {
        return Err(Failure::input(format!("{shown} is no list to block by: it has more than {LIST_BYTES_MAX} bytes")));
    }
    let list = parse_list(bytes);
    let Some((number, line)) = list.unread.first() else { return Ok(list) };
    let first = format!("line {number}, `{}`", line.escape_debug());
    if list.rules.is_empty() {
        let message = format!(
            "{shown} is no list to block by: {first}, is none of ipfilter.dat, P2P text, addresses, networks and ranges"
        );
        return Err(Failure::input(message));
    }
    chatter.note(format_args!(
        "{shown}: {} lines make no sense and block nobody, the first is {first}",
        list.unread_count
    ));
    Ok(list)
}

/// Plain PPSPP proves no keys, over SCION either: who admits keys alone deals with secure links.
pub(crate) fn check_plain_ppspp(flags: &SessionFlags, remedy: &str) -> Result<(), Failure> {
    match flags.guard.allow.is_empty() {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "`--allow` admits peers by their keys, which plain PPSPP does not prove: {remedy}"
        ))),
    }
}

/// Whose keys are admitted, if anybody's in particular.
pub(crate) fn allowed(flags: &SessionFlags) -> Result<Option<HashSet<anabranch_transport::NodeId>>, Failure> {
    (!flags.guard.allow.is_empty()).then(|| target::allowed(&flags.guard.allow)).transpose()
}

/// The file of bans.
pub(crate) struct Bans {
    path: PathBuf,
    told: HashSet<String>,
}

impl Bans {
    /// The file that the flags name, if they do. It has to be one that can be written.
    pub(crate) fn open(flags: &SessionFlags) -> Result<Option<Self>, Failure> {
        let Some(path) = flags.guard.bans.clone() else { return Ok(None) };
        let bans = Self { path, told: HashSet::new() };
        bans.file().map_err(|error| bans.unwritable(&error))?;
        Ok(Some(bans))
    }

    fn file(&self) -> std::io::Result<File> {
        OpenOptions::new().append(true).create(true).open(&self.path)
    }

    fn unwritable(&self, error: &std::io::Error) -> Failure {
        let message = format!("cannot write {}: {error}; name another file with --bans", self.path.display());
        Failure::new(Code::Storage, message)
    }

    /// Adds a peer that proved hostile. The loopback is many programs of this machine, and stays.
    pub(crate) fn add(&mut self, peer: &Endpoint, reason: &str) -> Result<(), Failure> {
        let rule = Rule::from(peer).to_string();
        if peer.as_ip().is_some_and(|address| address.ip().is_loopback()) || !self.told.insert(rule.clone()) {
            return Ok(());
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (year, month, day) = anabranch_lab::date(seconds / 86_400);
        let reason: String = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let line = format!("{rule} # {year:04}-{month:02}-{day:02}: {reason}\n");
        self.file().and_then(|mut file| file.write_all(line.as_bytes())).map_err(|error| self.unwritable(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_are_written_once_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut bans = Bans { path: dir.path().join("bans"), told: HashSet::new() };
        for peer in
            ["192.0.2.1:6881", "192.0.2.1:7000", "[2001:db8::1]:1", "[1-ff00:0:110,10.0.0.1]:1", "127.0.0.1:6881"]
        {
            bans.add(&peer.parse().unwrap(), "it lied\nabout # piece 3").unwrap();
        }
        let list = parse_list(&read(&bans.path).unwrap());
        assert_eq!(list.unread, []);
        let rules: Vec<String> = list.rules.iter().map(ToString::to_string).collect();
        assert_eq!(rules, ["192.0.2.1", "2001:db8::1", "1-ff00:0:110,10.0.0.1"]);
    }
}
