//! Flags of `daemon`, and of the commands that ask one.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anabranch_daemon::client::At;
use anabranch_hercules::wire::ticket::{Ticket, TicketError};
use clap::{Args, ValueHint};

use super::session::SessionFlags;
use crate::bulk::target::Allowed;
use crate::seeding::{Ratio, parse_ratio};
use crate::units::{self, Rate};

/// Where the page is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ApiAddress(pub Option<SocketAddr>);

impl FromStr for ApiAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self(None)),
            text => text
                .parse()
                .map(|address| Self(Some(address)))
                .map_err(|_| "write an address with its port, such as 127.0.0.1:6880, or none"),
        }
    }
}

/// `daemon`
#[derive(Debug, Args)]
pub(crate) struct DaemonFlags {
    /// Folder for contents that are added without one, until another is set
    #[arg(long, short = 'o', value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Another folder that contents may be in, or be shared from; may be given several times
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub allow_dir: Vec<PathBuf>,
    /// Folder for the library and the tokens [default: $XDG_STATE_HOME/anabranch/daemon]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub state_dir: Option<PathBuf>,
    /// Socket for this user's programs [default: $XDG_RUNTIME_DIR/anabranch/daemon.sock, or else in the folder above]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub socket: Option<PathBuf>,
    /// Address of the page and of the API for whoever has a token, port 0 for any; none for the socket alone
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6880")]
    pub api: ApiAddress,
    /// Certificate for the address above, with those above it (PEM): what goes over it is encrypted then
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Name by which browsers may call this host, beside its addresses and localhost; may be given several times
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Hostname)]
    pub api_name: Vec<String>,
    /// Host of the local network, by its name or address, that torrent files may be fetched from, such as an indexer's; may be given several
    /// times
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Hostname)]
    pub fetch_host: Vec<String>,
    /// Tracker of all contents, beside their own; may be given several times
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub tracker: Vec<String>,
    /// Run this command by `sh -c` for each content that is complete, and for each bulk transfer that was received; $CONTENT_PATH,
    /// $CONTENT_NAME and others tell which
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub on_complete: Option<OsString>,
    #[command(flatten)]
    pub session: SessionFlags,
}

/// Which daemon is asked.
#[derive(Debug, Args)]
pub(crate) struct AskFlags {
    /// The daemon's socket, or its address such as 127.0.0.1:6880 [default: the socket of this user's daemon]
    #[arg(long, value_name = "ADDR", value_hint = ValueHint::AnyPath)]
    pub daemon: Option<At>,
    /// File with the token of a daemon that is asked by its address [default: that of this user's daemon]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub token_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `add`
#[derive(Debug, Args)]
pub(crate) struct AddFlags {
    /// .torrent files, their addresses on the web, magnet links, links of PPSPP and tickets to receive with; with --share or --send, files
    /// and folders of the daemon's host, with --live a file or a pipe
    #[arg(value_name = "SOURCE", required_unless_present_any = ["receive", "live"], value_hint = ValueHint::AnyPath)]
    pub sources: Vec<OsString>,
    /// Share these files and folders from where they are
    #[arg(long)]
    pub share: bool,
    /// Folder to put content in [default: the daemon's, or that of the category]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub into: Option<PathBuf>,
    /// Category
    #[arg(long, value_name = "NAME")]
    pub category: Option<String>,
    /// Tag; may be given several times
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
    /// Add it, and have it wait
    #[arg(long)]
    pub paused: bool,
    /// Fetch pieces in order
    #[arg(long)]
    pub sequential: bool,
    /// Most bytes per second to receive, for each content
    #[arg(long, value_name = "RATE")]
    pub torrent_limit_down: Option<Rate>,
    /// Most bytes per second to send, for each content
    #[arg(long, value_name = "RATE")]
    pub torrent_limit_up: Option<Rate>,
    /// Pause it once it was uploaded so often, such as 1 or 2.5
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    pub stop_ratio: Option<Ratio>,
    /// Pause it once it was shared for so long, such as 90s, 30m or 12h
    #[arg(long, value_name = "TIME", value_parser = units::parse_long_time)]
    pub stop_after: Option<Duration>,
    /// Peer to dial for it, address with port; may be given several times
    #[arg(long, value_name = "ADDR", value_parser = peer)]
    pub dial: Vec<String>,
    // Before those that have headings of their own, which would be its, too.
    #[command(flatten)]
    pub ask: AskFlags,
    #[command(flatten)]
    pub bulk: BulkAddFlags,
    #[command(flatten)]
    pub live: LiveAddFlags,
}

/// What of `add` is about bulk transfers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Bulk transfers")]
pub(crate) struct BulkAddFlags {
    /// Send these files and folders to whoever has the ticket that is printed, one for each; or with --to, to who made a ticket
    #[arg(long)]
    pub send: bool,
    /// Receive what is sent with the ticket that is printed; or with --allow, what certain keys send, any number of times
    #[arg(long)]
    pub receive: bool,
    /// Ticket of who waits for what is sent
    #[arg(long, value_name = "TICKET", value_parser = ticket)]
    pub to: Option<String>,
    /// Key that may send, or with --live --secure watch, or a file with keys, one a line; may be given several times
    #[arg(long, value_name = "KEY|FILE", value_hint = ValueHint::FilePath)]
    pub allow: Vec<Allowed>,
    /// How many may use the ticket that is printed [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub times: Option<u16>,
    /// How long the ticket that is printed may be used, such as 30m, 12h or 7d [default: 1d]
    #[arg(long, value_name = "TIME", value_parser = units::parse_long_time)]
    pub expires: Option<Duration>,
    /// UDP port that the other end calls [default: one that is free, and then always that]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Overwrite files that are there with what is received
    #[arg(long)]
    pub force: bool,
}

/// What of `add` is about live streams whose source is the daemon.
#[derive(Debug, Args)]
#[command(next_help_heading = "Live streams")]
pub(crate) struct LiveAddFlags {
    /// Broadcast what programs send to the address that is printed; or, with a SOURCE, a file, once and at its rate, or what comes out of
    /// a pipe
    #[arg(long)]
    pub live: bool,
    /// What viewers see it called; its ending tells players what it is [default: the SOURCE's name, or live.ts]
    #[arg(long, value_name = "NAME", requires = "live")]
    pub name: Option<String>,
    /// Key that it is signed with, and by which viewers know it, as that of `live --key`; made where the file is not there [default: one
    /// of its own, kept with the library]
    #[arg(long, value_name = "FILE", requires = "live", value_hint = ValueHint::FilePath)]
    pub key: Option<PathBuf>,
    /// Bytes a second to broadcast, such as 500K or 1.5MiB [default: as the clock in an MPEG transport stream says; of anything
    /// else, as it comes]
    #[arg(long, value_name = "RATE", requires = "live")]
    pub rate: Option<Rate>,
    /// Copies of the stream that are sent from the daemon at most, on average [default: 3]
    #[arg(long, value_name = "N", requires = "live", value_parser = clap::value_parser!(u64).range(2..=256))]
    pub copies: Option<u64>,
    /// Broadcast inside QUIC, encrypted, to viewers that prove a key; with --allow, only to those of these keys
    #[arg(long, requires = "live")]
    pub secure: bool,
    /// Tracker where viewers find each other; may be given several times
    #[arg(long, value_name = "URL", requires = "live", value_hint = ValueHint::Url)]
    pub tracker: Vec<String>,
}

/// `list`
#[derive(Debug, Args)]
pub(crate) struct ListFlags {
    /// Only those in this state, such as downloading, seeding, paused or error
    #[arg(long, value_name = "NAME")]
    pub state: Option<String>,
    /// Only those of this category
    #[arg(long, value_name = "NAME")]
    pub category: Option<String>,
    /// Only those with this tag
    #[arg(long, value_name = "TAG")]
    pub tag: Option<String>,
    #[command(flatten)]
    pub ask: AskFlags,
}

/// `status`
#[derive(Debug, Args)]
pub(crate) struct StatusFlags {
    /// Its number or name, as `list` shows them, or its hash, or the beginning of that [default: the daemon itself]
    #[arg(value_name = "CONTENT")]
    pub content: Option<String>,
    #[command(flatten)]
    pub ask: AskFlags,
}

/// `pause` and `resume`
#[derive(Debug, Args)]
pub(crate) struct TurnFlags {
    /// Their numbers or names, as `list` shows them, or hashes, or the beginnings of those
    #[arg(value_name = "CONTENT", required_unless_present = "all")]
    pub contents: Vec<String>,
    /// All there are
    #[arg(long, conflicts_with = "contents")]
    pub all: bool,
    #[command(flatten)]
    pub ask: AskFlags,
}

/// `remove`
#[derive(Debug, Args)]
pub(crate) struct RemoveFlags {
    /// Their numbers or names, as `list` shows them, or hashes, or the beginnings of those
    #[arg(value_name = "CONTENT", required = true)]
    pub contents: Vec<String>,
    /// Delete their files too
    #[arg(long)]
    pub delete_files: bool,
    #[command(flatten)]
    pub ask: AskFlags,
}

/// A limit, as it is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit<T> {
    /// This one.
    At(T),
    /// None.
    None,
    /// For a content: that of all.
    Usual,
}

/// `limit`
#[derive(Debug, Args)]
pub(crate) struct LimitFlags {
    /// Their numbers or names, as `list` shows them, or hashes, or the beginnings of those [default: all together]
    #[arg(value_name = "CONTENT")]
    pub contents: Vec<String>,
    /// Most bytes per second to receive, or none
    #[arg(long, value_name = "RATE", value_parser = rate_limit)]
    pub down: Option<Limit<Rate>>,
    /// Most bytes per second to send, or none
    #[arg(long, value_name = "RATE", value_parser = rate_limit)]
    pub up: Option<Limit<Rate>>,
    /// Share a content until it was uploaded so often, such as 1 or 2.5; none, or, for a content, usual: as all are
    #[arg(long, value_name = "RATIO", value_parser = ratio_limit)]
    pub ratio: Option<Limit<Ratio>>,
    /// Share a content for so long, such as 90s, 30m or 12h; none, or, for a content, usual: as all are
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    pub time: Option<Limit<Duration>>,
    #[command(flatten)]
    pub ask: AskFlags,
}

fn rate_limit(text: &str) -> Result<Limit<Rate>, String> {
    match text {
        "none" => Ok(Limit::None),
        text => text.parse().map(Limit::At).map_err(|error: units::UnitError| format!("{error}; or none")),
    }
}

fn ratio_limit(text: &str) -> Result<Limit<Ratio>, String> {
    unusual(text, parse_ratio)
}

fn time_limit(text: &str) -> Result<Limit<Duration>, String> {
    unusual(text, units::parse_long_time)
}

fn unusual<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Limit<T>, String> {
    match text {
        "none" => Ok(Limit::None),
        "usual" => Ok(Limit::Usual),
        text => parse(text).map(Limit::At).map_err(|error| format!("{error}; or none")),
    }
}

/// `watch`
#[derive(Debug, Args)]
pub(crate) struct WatchFlags {
    /// Their numbers or names, as `list` shows them, or hashes, or the beginnings of those [default: all]
    #[arg(value_name = "CONTENT")]
    pub contents: Vec<String>,
    /// End when all of these are complete
    #[arg(long, requires = "contents")]
    pub wait: bool,
    #[command(flatten)]
    pub ask: AskFlags,
}

/// `password`
#[derive(Debug, Args)]
pub(crate) struct PasswordFlags {
    /// Name that goes with the password
    #[arg(long, value_name = "NAME", default_value = "admin", value_hint = ValueHint::Username)]
    pub user: String,
    /// Take the password away: those with a token come in alone
    #[arg(long)]
    pub remove: bool,
    #[command(flatten)]
    pub ask: AskFlags,
}

fn peer(text: &str) -> Result<String, &'static str> {
    let known = anabranch_swarm::parse_peer(text).map(|_| text.to_owned());
    known.ok_or("write an address with its port, such as 192.0.2.1:6881 or [1-ff00:0:110,10.0.0.1]:31000")
}

fn ticket(text: &str) -> Result<String, TicketError> {
    text.parse::<Ticket>().map(|_| text.to_owned())
}
