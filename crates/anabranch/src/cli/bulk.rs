//! Flags of bulk transfer: `send`, `receive` and `receipt`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anabranch_hercules::congestion::Kind;
use anabranch_paths::select::Selector;
use anabranch_paths::{Endpoint, PathIdPrefix};
use anabranch_swarm::bulk::Io;
use anabranch_transport::NodeId;
use clap::{Args, ValueEnum, ValueHint};

use super::session::selector_by_name;
use super::{Given, PathFlags, SandboxFlags};
use crate::bulk::target::{Allowed, Target};
use crate::patterns::Selection;
use crate::units::{self, Rate, Size};

/// `send`
#[derive(Debug, Args)]
pub(crate) struct SendFlags {
    #[command(flatten)]
    pub given: Given,
    /// Files, folders and links; - for standard input
    #[arg(value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Where to send: a ticket that `anabranch receive` printed, or the address of a standing receiver, maybe with the key it has to
    /// prove (KEY@ADDR); may be given several times [default: print a ticket, and wait for who fetches]
    #[arg(long, value_name = "ADDR|TICKET", value_hint = ValueHint::Hostname)]
    pub to: Vec<Target>,
    /// Keep the receipt that each receiver signs in this file, for `anabranch receipt`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub receipt: Option<PathBuf>,
    /// Name of what comes from standard input
    #[arg(long, value_name = "NAME", default_value = "stdin")]
    pub name: OsString,
    /// List what would go, and over which paths, and send nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub invitation: InvitationFlags,
    /// Most bytes per second to send, to all together, such as 500K, 10M or 1.5MiB (K is 1000, KiB 1024)
    #[arg(long, value_name = "RATE")]
    pub limit_up: Option<Rate>,
    /// How fast each path goes [default: fair, or bbr with --fair=no]
    #[arg(long, value_name = "NAME", value_enum)]
    pub congestion: Option<BulkCongestion>,
    /// Send at this rate over each path, whatever gets lost: for a link that nobody else uses
    #[arg(long, value_name = "RATE", conflicts_with = "congestion")]
    pub rate: Option<Rate>,
    /// Take of a link what one flow of TCP would, however many paths go through it; --fair=no takes what each path gets
    #[arg(long, default_value = "yes")]
    pub fair: bool,
    #[command(flatten)]
    pub bulk: BulkFlags,
}

/// `receive`
#[derive(Debug, Args)]
pub(crate) struct ReceiveFlags {
    #[command(flatten)]
    pub given: Given,
    /// What `anabranch send` printed [default: print a ticket, and wait for who sends]
    #[arg(value_name = "TICKET")]
    pub ticket: Option<String>,
    /// Folder to put what comes in, made if it is not there; - for standard output
    #[arg(long, short = 'o', value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Wait for senders that prove this key or one of those in this file, and let each send as often as it likes; needs --listen. May
    /// be given several times
    #[arg(long, value_name = "KEY|FILE", value_hint = ValueHint::FilePath)]
    pub allow: Vec<Allowed>,
    /// Overwrite files that stand in the content's place and are others
    #[arg(long, short)]
    pub force: bool,
    #[command(flatten)]
    pub invitation: InvitationFlags,
    /// Most bytes per second to receive, all together, such as 500K, 10M or 1.5MiB (K is 1000, KiB 1024)
    #[arg(long, value_name = "RATE")]
    pub limit_down: Option<Rate>,
    #[command(flatten)]
    pub bulk: BulkFlags,
}

/// What a ticket is good for.
#[derive(Debug, Args)]
pub(crate) struct InvitationFlags {
    /// How many may use the ticket that is printed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub times: u32,
    /// How long the ticket that is printed may be used, such as 30m, 12h or 7d
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = units::parse_long_time)]
    pub expires: Duration,
    /// Address to listen on, port 0 for any; may be given several times, once with a SCION address, which given alone is the only one
    /// [default: all, any port]
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<Endpoint>,
}

/// What both ends have in common.
#[derive(Debug, Args)]
pub(crate) struct BulkFlags {
    /// Give up after so long without the other end, such as 90s, 30m or 12h [default: 30s if it was never reached, 10m if it was]
    #[arg(long, value_name = "TIME", value_parser = units::parse_long_time)]
    pub give_up: Option<Duration>,
    /// Memory for content on its way [default: 48MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_memory)]
    pub memory: Option<Size>,
    /// File with this node's key, made if it is not there [default: one that is kept, which `anabranch keys own` prints]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key: Option<PathBuf>,
    /// File of the keys that receivers had when --to first named them: who has another key now is refused
    /// [default: $XDG_STATE_HOME/anabranch/known-keys]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub known_keys: Option<PathBuf>,
    #[command(flatten)]
    pub paths: BulkPathFlags,
    #[command(flatten)]
    pub sandbox: SandboxFlags,
    /// Print one JSON event a line
    #[arg(long)]
    pub json: bool,
}

/// How many paths are used, and which.
#[derive(Debug, Args)]
#[command(next_help_heading = "Paths")]
pub(crate) struct BulkPathFlags {
    /// Paths to one peer at most
    #[arg(long = "paths", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub paths_per_peer: u32,
    /// How paths are chosen [default: disjoint]
    #[arg(long, value_name = "NAME", value_parser = selector_by_name())]
    pub selector: Option<Selector>,
    /// Network interface that packets over plain IP may leave by; may be given several times [default: all]
    #[arg(long, value_name = "NAME")]
    pub interface: Vec<String>,
    /// Say which paths come and go, and why
    #[arg(long)]
    pub explain: bool,
    /// Write rate, round trip, losses and share of each path to this file, as CSV, twenty times a second
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub path_log: Option<PathBuf>,
    /// How packets get to the wire: past the kernel where it can be done, or where it is measured to be faster
    #[arg(long, value_name = "HOW", value_enum, default_value_t = IoChoice::Udp)]
    pub io: IoChoice,
    #[command(flatten)]
    pub scion: PathFlags,
    /// Only this path, by four or more first digits of its id or fingerprint; may be given several times
    #[arg(long, value_name = "ID")]
    pub path: Vec<PathIdPrefix>,
}

/// How packets get to the wire, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IoChoice {
    /// By the system's sockets
    Udp,
    /// By AF_XDP, past the kernel and its firewall: each --interface, or all that do it; needs root, or the capabilities that
    /// docs/xdp.md names
    Xdp,
    /// By AF_XDP on interfaces whose driver copies nothing and where it takes less time, by a measurement; else by the system's sockets
    Auto,
}

impl From<IoChoice> for Io {
    fn from(choice: IoChoice) -> Self {
        match choice {
            IoChoice::Udp => Self::Udp,
            IoChoice::Xdp => Self::Xdp,
            IoChoice::Auto => Self::Auto,
        }
    }
}

/// Congestion control of bulk transfer, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BulkCongestion {
    /// CUBIC's law: shares evenly with TCP, and heeds only losses that a queue explains
    Fair,
    /// PCC Allegro: fills any link, and leaves others little where queues are short
    Allegro,
    /// PCC Vivace: shares evenly with its own kind, and yields to TCP
    Vivace,
    /// Keeps its rate where packets are lost without congestion, and queues short
    Bbr,
}

impl From<BulkCongestion> for Kind {
    fn from(choice: BulkCongestion) -> Self {
        match choice {
            BulkCongestion::Fair => Self::Fair,
            BulkCongestion::Allegro => Self::Allegro,
            BulkCongestion::Vivace => Self::Vivace,
            BulkCongestion::Bbr => Self::Bbr,
        }
    }
}

/// `receipt`
#[derive(Debug, Args)]
pub(crate) struct ReceiptFlags {
    /// What `send --receipt` wrote
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The content that was sent, or the folder that it is in: whether it is still what the receipt says
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub path: Option<PathBuf>,
    /// The key that has to have sent
    #[arg(long, value_name = "KEY")]
    pub sender: Option<NodeId>,
    /// The key that has to have received; may be given several times, and each has to
    #[arg(long, value_name = "KEY")]
    pub receiver: Vec<NodeId>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
