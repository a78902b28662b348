//! Flags of everything that runs a session: where content is found, how much of what it takes, over which paths.

use std::path::PathBuf;
use std::time::Duration;

use anabranch_paths::select::Selector;
use anabranch_paths::{Endpoint, PathIdPrefix};
use anabranch_swarm::{Encryption, Utp};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum, ValueHint};

use super::{GuardFlags, PathFlags, SandboxFlags};
use crate::address::PeerAddress;
use crate::seeding::{Ratio, parse_ratio};
use crate::units::{self, Rate, Size};

/// Where metadata comes from and goes.
#[derive(Debug, Args)]
pub(crate) struct FindFlags {
    /// Tracker beside the content's own; may be given several times
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub tracker: Vec<String>,
    /// Save the torrent of the one SOURCE, a magnet link as a rule, once all of it is known
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub save_torrent: Option<PathBuf>,
    /// Give up without progress for so long, such as 90s, 30m or 12h [default: when no source is left and none can come]
    #[arg(long, value_name = "TIME", value_parser = units::parse_long_time)]
    pub give_up: Option<Duration>,
    /// Folder for the records of what is verified [default: beside the content], and for the metadata of magnet links
    /// [default: $XDG_CACHE_HOME/anabranch]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub state_dir: Option<PathBuf>,
}

/// When sharing ends by itself.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct StopFlags {
    /// Stop sharing a content once it was uploaded so often in this run, such as 1 or 2.5
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    pub stop_ratio: Option<Ratio>,
    /// Stop sharing a content after so long, such as 90s, 30m or 12h
    #[arg(long, value_name = "TIME", value_parser = units::parse_long_time)]
    pub stop_after: Option<Duration>,
}

/// Flags of everything that runs a session.
#[derive(Debug, Args)]
pub(crate) struct SessionFlags {
    /// Peer to dial, address or name with port, a host of SCION maybe with the key it has to prove (KEY@ADDR); may be given several times
    #[arg(long, value_name = "ADDR", value_hint = ValueHint::Hostname)]
    pub peer: Vec<PeerAddress>,
    /// Address to listen on, port 0 for any; may be given several times, once with a SCION address such as
    /// [1-ff00:0:110,10.0.0.1]:0 [default: [::]:6881, or any port when that is taken]
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<Endpoint>,
    /// Most bytes per second to receive, such as 500K, 10M or 1.5MiB (K is 1000, KiB 1024); contents share it evenly, and the peers
    /// of each, where they can use their part
    #[arg(long, value_name = "RATE")]
    pub limit_down: Option<Rate>,
    /// Most bytes per second to send, shared in the same way
    #[arg(long, value_name = "RATE")]
    pub limit_up: Option<Rate>,
    /// Most bytes per second to receive, for each content
    #[arg(long, value_name = "RATE")]
    pub torrent_limit_down: Option<Rate>,
    /// Most bytes per second to send, for each content
    #[arg(long, value_name = "RATE")]
    pub torrent_limit_up: Option<Rate>,
    /// Most bytes per second to receive, for each connection
    #[arg(long, value_name = "RATE")]
    pub peer_limit_down: Option<Rate>,
    /// Most bytes per second to send, for each connection
    #[arg(long, value_name = "RATE")]
    pub peer_limit_up: Option<Rate>,
    /// Most connections with peers, whoever opened them, all contents together
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_peers: u32,
    #[command(flatten)]
    pub multipath: MultipathFlags,
    /// Peers served at once, for each content [default: by the upload rate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub upload_slots: Option<u32>,
    /// Memory for pieces under way and, half of it where SCION is used, for what peers may fill over QUIC [default: 48MiB
    /// for each]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_memory)]
    pub memory: Option<Size>,
    /// Do not exchange peers with peers
    #[arg(long)]
    pub no_pex: bool,
    /// Fetch from the HTTP servers that a torrent or link names (web seeds)
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_or_off(), action = clap::ArgAction::Set)]
    pub web_seeds: bool,
    /// Encrypt connections over TCP: where the peer wants it (allow), takes it (prefer), always (require), never (off)
    #[arg(long, value_name = "WHEN", default_value = "allow", value_parser = encryption_by_name())]
    pub encryption: Encryption,
    /// Speak uTP beside TCP: in both directions (on), to those who call so (in), alone (only), never (off)
    #[arg(long, value_name = "WHEN", default_value = "on", value_parser = utp_by_name())]
    pub utp: Utp,
    /// Have routers open the ports that are listened at (PCP, NAT-PMP, UPnP), where they translate the uplink's address
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_or_off(), action = clap::ArgAction::Set)]
    pub port_mapping: bool,
    #[command(flatten)]
    pub discovery: DiscoveryFlags,
    #[command(flatten)]
    pub guard: GuardFlags,
    #[command(flatten)]
    pub scion: ScionFlags,
    #[command(flatten)]
    pub sandbox: SandboxFlags,
    /// Print one JSON event a line
    #[arg(long)]
    pub json: bool,
}

/// How peers are found without a tracker.
#[derive(Debug, Args)]
#[command(next_help_heading = "Finding peers")]
pub(crate) struct DiscoveryFlags {
    /// Find peers in the distributed hash table, and be found there; never for private torrents
    #[arg(long, value_name = "on|off", value_enum, default_value_t = Switch::On)]
    pub dht: Switch,
    /// Node of the distributed hash table to begin from, HOST:PORT or a SCION address; may be given several times [default: those known
    /// from before and from peers; public ones where none of these is known, and a content is shared or finds nobody, on machines with an address on
    /// the Internet]
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_node)]
    pub dht_node: Vec<NodeName>,
    /// Find peers in the same network by calling out, and be found so; never for private torrents
    #[arg(long, value_name = "on|off", value_enum, default_value_t = Switch::On)]
    pub lsd: Switch,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// It is used
    On,
    /// It is not
    Off,
}

/// A node's host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeName(pub String, pub u16);

/// Ports below this one are for the system's services: nobody's node is there.
const NODE_PORT_MIN: u16 = 1024;

fn parse_node(text: &str) -> Result<NodeName, String> {
    let wrong = || "write HOST:PORT, such as 192.0.2.5:6881, [2001:db8::5]:6881 or node.example.org:6881".to_owned();
    let (host, port) = match text.parse::<Endpoint>() {
        Ok(Endpoint::Ip(address)) => (address.ip().to_string(), address.port()),
        Ok(Endpoint::Scion(address)) => (format!("{},{}", address.isd_as, address.host.ip()), address.host.port()),
        Err(_) => {
            let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if host.is_empty() || host.len() > 255 || !host.bytes().all(is_name) {
                return Err(wrong());
            }
            (host.to_owned(), port.parse().map_err(|_| wrong())?)
        }
    };
    if port < NODE_PORT_MIN {
        return Err(format!("nodes are not asked at ports below {NODE_PORT_MIN}, which are for other services"));
    }
    Ok(NodeName(host, port))
}

/// How many paths are used, and which.
#[derive(Debug, Args)]
#[command(next_help_heading = "Paths")]
pub(crate) struct MultipathFlags {
    /// Paths to one peer at most, those asked for where content is fetched, those granted where it is shared
    /// [default: 4 to fetch, 16 to share]
    #[arg(long = "paths", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub paths_per_peer: Option<u32>,
    /// Connections to choose at most, over all paths to all peers of a content, and peers to serve at once [default: 64, and
    /// peers by the upload rate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub max_connections: Option<u32>,
    /// How paths are chosen [default: disjoint; to share: as those who fetch wish]
    #[arg(long, value_name = "NAME", value_parser = selector_by_name())]
    pub selector: Option<Selector>,
    /// Network interface that connections over plain IP may leave by; may be given several times [default: all]
    #[arg(long, value_name = "NAME")]
    pub interface: Vec<String>,
    /// List the paths to each SCION peer that is named, and ask which ones to take
    #[arg(long, conflicts_with = "path")]
    pub interactive: bool,
    /// Say which paths there are, which are chosen and why, and what becomes of each
    #[arg(long)]
    pub explain: bool,
    /// Write rate, round trip, losses and share of each path to this file, as CSV, twenty times a second
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub path_log: Option<PathBuf>,
}

/// How peers are reached over SCION.
#[derive(Debug, Args)]
#[command(next_help_heading = "SCION")]
pub(crate) struct ScionFlags {
    #[command(flatten)]
    pub paths: PathFlags,
    /// Only this path, by four or more first digits of its id or fingerprint; may be given several times
    #[arg(long, value_name = "ID")]
    pub path: Vec<PathIdPrefix>,
    /// Congestion control of connections over SCION
    #[arg(long, value_name = "NAME", value_enum, default_value_t = CongestionChoice::Bbr)]
    pub congestion: CongestionChoice,
    /// Paths that one connection over SCION spreads over at most, by multipath QUIC (a draft), where both sides say so; 1 leaves each connection
    /// its own path, and lets the selector choose
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub paths_per_connection: u32,
    /// File with this node's key, made if it is not there [default: one that is kept for the address that --listen gives with a
    /// port, else a new one each time]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key: Option<PathBuf>,
}

/// Congestion control, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CongestionChoice {
    /// Shares evenly with TCP, slows at every lost packet, fills queues
    Cubic,
    /// Keeps its rate where packets are lost without congestion, and queues short
    Bbr,
}

fn on_or_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|word| word == "on")
}

/// The names of `--encryption`.
const ENCRYPTIONS: [(&str, Encryption); 4] = [
    ("allow", Encryption::Allow),
    ("prefer", Encryption::Prefer),
    ("require", Encryption::Require),
    ("off", Encryption::Off),
];

fn encryption_by_name() -> impl TypedValueParser<Value = Encryption> {
    let names = PossibleValuesParser::new(ENCRYPTIONS.map(|(name, _)| name));
    names.map(|name| {
        let known = ENCRYPTIONS.iter().find(|(known, _)| *known == name);
        known.map_or(Encryption::default(), |(_, encryption)| *encryption)
    })
}

/// The names of `--utp`.
const UTPS: [(&str, Utp); 4] = [("on", Utp::On), ("in", Utp::In), ("only", Utp::Only), ("off", Utp::Off)];

fn utp_by_name() -> impl TypedValueParser<Value = Utp> {
    let names = PossibleValuesParser::new(UTPS.map(|(name, _)| name));
    names.map(|name| UTPS.iter().find(|(known, _)| *known == name).map_or(Utp::default(), |(_, utp)| *utp))
}

/// Values of `--selector`, which shells complete.
pub(super) fn selector_by_name() -> impl TypedValueParser<Value = Selector> {
    PossibleValuesParser::new(Selector::ALL.map(Selector::name)).try_map(|name| name.parse::<Selector>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_hosts_with_ports() {
        for (text, host, port) in [
            ("192.0.2.5:6881", "192.0.2.5", 6881),
            ("[2001:db8::5]:1024", "2001:db8::5", 1024),
            ("node.example.org:25401", "node.example.org", 25401),
            ("[1-ff00:0:110,10.0.0.1]:31000", "1-ff00:0:110,10.0.0.1", 31000),
        ] {
            assert_eq!(parse_node(text), Ok(NodeName(host.to_owned(), port)), "{text}");
        }
        for text in ["", "192.0.2.5", "192.0.2.5:53", "host:", ":6881", "host:70000", "ho st:6881", "http://host:6881"]
        {
            assert!(parse_node(text).is_err(), "{text}");
        }
    }
}
