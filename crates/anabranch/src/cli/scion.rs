//! Flags of the commands about SCION networks: `paths`, `ping`, `traceroute`, `address` and `net`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::topology::set_property;
use anabranch_paths::{Acl, IsdAs, PathIdError, PathIdPrefix, Preference, Sequence};
use clap::{Args, Subcommand, ValueEnum, ValueHint};

use crate::destination::{Destination, LinkEnd};
use crate::units;

/// Flags of everything that looks for paths.
#[derive(Debug, Args)]
pub(crate) struct PathFlags {
    /// Address of the SCION daemon [default: SCION_DAEMON_ADDRESS, SCION_DAEMON or 127.0.0.1:30255]
    #[arg(long, value_name = "ADDR", value_hint = ValueHint::Hostname, value_parser = host_and_port)]
    pub sciond: Option<String>,
    /// Hops that a path may take, such as '0* 1-ff00:0:110#1 0+ (2 | 3)?'
    #[arg(long, value_name = "SEQUENCE", allow_hyphen_values = true, value_parser = sequence)]
    pub sequence: Option<Sequence>,
    /// Interfaces that a path may pass, such as '- 2-ff00:0:210#3 +'
    #[arg(long, value_name = "ACL", allow_hyphen_values = true)]
    pub acl: Option<Acl>,
    /// What to order paths by, first things first: latency, bandwidth, hops, mtu, separated by commas
    #[arg(long, value_name = "ORDER")]
    pub preference: Option<Preference>,
    /// Path policy as JSON, in JPAN's form; the flags above go before what it says
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
}

/// Flags of commands that look paths up once.
#[derive(Debug, Args)]
pub(crate) struct QueryFlags {
    #[command(flatten)]
    pub path: PathFlags,
    /// Look paths up afresh, not in the daemon's cache
    #[arg(long, short)]
    pub refresh: bool,
    /// Only paths whose last router answers
    #[arg(long)]
    pub healthy_only: bool,
    /// How long to wait for each answer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::parse_time)]
    pub timeout: Duration,
}

/// `paths`
#[derive(Debug, Args)]
pub(crate) struct PathsFlags {
    /// ISD-AS, host of one (1-ff00:0:110,10.0.0.1), or name
    #[arg(value_name = "DEST", value_hint = ValueHint::Hostname)]
    pub destination: Destination,
    /// Ask the last router of each path, and say which paths are alive
    #[arg(long)]
    pub probe: bool,
    /// List so many paths at most, the first ones [default: all]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub maxpaths: Option<u32>,
    /// Say more of each path: its fingerprint, what is claimed of each part, places and notes
    #[arg(long, short)]
    pub extended: bool,
    #[command(flatten)]
    pub query: QueryFlags,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Which one of the paths to a destination is taken.
#[derive(Debug, Args)]
pub(crate) struct OnePathFlags {
    /// List the paths, and ask which one to take
    #[arg(long, short)]
    pub interactive: bool,
    /// Path to take, by its number in the list of `paths` with the same flags, or by four or more first digits of its id or
    /// fingerprint [default: the first that `paths` lists]
    #[arg(long = "path", value_name = "N|ID", conflicts_with = "interactive", value_parser = path_name)]
    pub path_name: Option<String>,
}

/// `ping`
#[derive(Debug, Args)]
pub(crate) struct PingFlags {
    /// Host to ask (1-ff00:0:110,10.0.0.1), or its name
    #[arg(value_name = "DEST", value_hint = ValueHint::Hostname)]
    pub destination: Destination,
    #[command(flatten)]
    pub one_path: OnePathFlags,
    /// How many times to ask [default: until interrupted]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Time between two requests, such as 200ms or 1s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::parse_time)]
    pub interval: Duration,
    /// Bytes of data in each request, at least 8
    #[arg(long, short = 's', value_name = "N", default_value_t = 56, value_parser = clap::value_parser!(u32).range(8..=65_535))]
    pub payload_size: u32,
    /// Bytes of each request with its SCION header, instead of --payload-size
    #[arg(long, value_name = "N", conflicts_with = "payload_size", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub packet_size: Option<u32>,
    /// Make each request as long as the path's MTU
    #[arg(long, conflicts_with_all = ["payload_size", "packet_size"])]
    pub max_mtu: bool,
    #[command(flatten)]
    pub query: QueryFlags,
    /// Print one JSON event a line
    #[arg(long)]
    pub json: bool,
}

/// `traceroute`
#[derive(Debug, Args)]
pub(crate) struct TracerouteFlags {
    /// ISD-AS, host of one (1-ff00:0:110,10.0.0.1), or name
    #[arg(value_name = "DEST", value_hint = ValueHint::Hostname)]
    pub destination: Destination,
    #[command(flatten)]
    pub one_path: OnePathFlags,
    #[command(flatten)]
    pub query: QueryFlags,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `address`
#[derive(Debug, Args)]
pub(crate) struct AddressFlags {
    /// Address of the SCION daemon [default: SCION_DAEMON_ADDRESS, SCION_DAEMON or 127.0.0.1:30255]
    #[arg(long, value_name = "ADDR", value_hint = ValueHint::Hostname, value_parser = host_and_port)]
    pub sciond: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `net`
#[derive(Debug, Args)]
pub(crate) struct NetFlags {
    /// What to do.
    #[command(subcommand)]
    pub command: NetCommand,
}

/// `net ...`
#[derive(Debug, Subcommand)]
pub(crate) enum NetCommand {
    /// Run the network of a topology file on this machine until interrupted
    Up(NetUpFlags),
    /// Show a running network: its ASes, daemons, hosts and links
    Status(NetStatusFlags),
    /// Take a link of a running network down or up, or change what it does to packets
    Link(NetLinkFlags),
    /// Measure every link of a topology against what it asks for
    Check(NetCheckFlags),
}

/// `net up`
#[derive(Debug, Args)]
pub(crate) struct NetUpFlags {
    /// Topology file: our TOML, or scionproto's .topo
    #[arg(value_name = "TOPOLOGY", value_hint = ValueHint::FilePath)]
    pub topology: PathBuf,
    /// Where `net link` and `net status` reach it
    #[arg(long, value_name = "ADDR", default_value = CONTROL_ADDRESS)]
    pub control: SocketAddr,
    /// Write the names of all hosts to this file, for SCION_HOSTS_FILES or as /etc/scion/hosts; it goes when the network does
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub hosts: Option<PathBuf>,
    /// Run this AS only, and leave the others to other processes, with the same --secret; may be given several times
    #[arg(long, value_name = "ISD-AS")]
    pub only: Vec<IsdAs>,
    /// File with what the keys of all ASes come from, the same for all processes; made if it is not there
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub secret: Option<PathBuf>,
    /// Claim rates, delays and losses of links, and leave it to what is between the routers to have them
    #[arg(long)]
    pub unshaped: bool,
    /// Print one JSON event a line
    #[arg(long)]
    pub json: bool,
}

/// `net status`
#[derive(Debug, Args)]
pub(crate) struct NetStatusFlags {
    /// Where the network's `net up` listens
    #[arg(long, value_name = "ADDR", default_value = CONTROL_ADDRESS)]
    pub control: SocketAddr,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Where `net up` listens for `net link`: next to the daemons' port.
const CONTROL_ADDRESS: &str = "127.0.0.1:30256";

/// `net link`
#[derive(Debug, Args)]
pub(crate) struct NetLinkFlags {
    /// One end: an ISD-AS, or one of its interfaces where links are parallel (1-ff00:0:110#2)
    #[arg(value_name = "A")]
    pub from: LinkEnd,
    /// The other end
    #[arg(value_name = "B")]
    pub to: LinkEnd,
    /// What to do with the link
    #[arg(value_name = "ACTION")]
    pub action: LinkAction,
    /// With `set`, for packets both ways: rate=10Mbit/s delay=20ms jitter=2ms loss=0.5% queue=256KiB mtu=1472
    #[arg(value_name = "KEY=VALUE", value_parser = key_value)]
    pub properties: Vec<(String, String)>,
    /// Where the network's `net up` listens
    #[arg(long, value_name = "ADDR", default_value = CONTROL_ADDRESS)]
    pub control: SocketAddr,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What `net link` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkAction {
    /// Drop everything.
    Down,
    /// Let packets pass again.
    Up,
    /// Change properties.
    Set,
}

/// `net check`
#[derive(Debug, Args)]
pub(crate) struct NetCheckFlags {
    /// Topology file: our TOML, or scionproto's .topo
    #[arg(value_name = "TOPOLOGY", value_hint = ValueHint::FilePath)]
    pub topology: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// An empty sequence would let every path through; a variable of a script that is not set is no wish for that.
fn sequence(text: &str) -> Result<Sequence, String> {
    match text.trim().is_empty() {
        true => {
            Err("it is empty: leave it out where any path will do, or write hops, as in '0* 1-ff00:0:110#1 0+'"
                .to_owned())
        }
        false => text.parse().map_err(|error: anabranch_paths::PolicyError| error.to_string()),
    }
}

/// A number in a list, or the beginning of an id: which of them decides the list.
fn path_name(text: &str) -> Result<String, PathIdError> {
    let text = text.trim();
    let is_number = text.len() < 4 && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        text.parse::<PathIdPrefix>()?;
    }
    Ok(text.to_owned())
}

fn host_and_port(text: &str) -> Result<String, String> {
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let fits = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && is_port(port));
    fits.then(|| text.to_owned()).ok_or_else(|| "write HOST:PORT, as in 127.0.0.1:30255".to_owned())
}

/// A property of a link, where it is one: what the network would refuse is told before it is asked.
fn key_value(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
    let (key, value) = pair.ok_or("write KEY=VALUE, as in delay=20ms")?;
    set_property(&mut LinkShape::default(), key, value).map_err(|error| error.to_string())?;
    Ok((key.to_owned(), value.to_owned()))
}
