//! Every command and flag. Help, man pages and completions come from here, and so do the names of environment variables
//! and keys of the configuration file.

mod bulk;
mod given;
mod guard;
mod scion;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anabranch_bittorrent::picker::RequestStrategy;
use anabranch_content::info::Version;
use anabranch_content::storage::Preallocate;
use anabranch_paths::select::Selector;
use anabranch_paths::{Endpoint, PathIdPrefix};
use clap::builder::{BoolishValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};

use crate::address::{PeerAddress, ip_only};
use crate::choice::FileNumbers;
use crate::patterns::{FilePattern, Selection};
use crate::seeding::{Ratio, parse_ratio};
use crate::units::{self, Rate, Size};

pub(crate) use bulk::{BulkFlags, BulkPathFlags, InvitationFlags, ReceiptFlags, ReceiveFlags, SendFlags};
pub(crate) use given::Given;
pub(crate) use guard::GuardFlags;
pub(crate) use scion::{
    AddressFlags, LinkAction, NetCheckFlags, NetCommand, NetFlags, NetLinkFlags, NetStatusFlags, NetUpFlags,
    OnePathFlags, PathFlags, PathsFlags, PingFlags, QueryFlags, TracerouteFlags,
};

const AFTER_HELP: &str = "\
Every flag can also be set by an environment variable (--limit-up: ANABRANCH_LIMIT_UP) or in the configuration file \
(limit-up = \"1M\", for one command in a table of its name); the command line goes before the environment, and that before the file.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 bad input, 4 incomplete or damaged, 5 storage, 6 network, 130 interrupted.";

/// Shares and fetches content over BitTorrent v1, v2 and hybrid, and sends it from host to host, over every path at once.
#[derive(Debug, Parser)]
#[command(name = "anabranch", version, after_help = AFTER_HELP, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Configuration file (TOML) instead of $XDG_CONFIG_HOME/anabranch/config.toml
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Say nothing but errors, and print nothing but what was asked for
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Tell of peers and trackers too; list padding
    #[arg(long, short, global = true)]
    pub verbose: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a torrent of a file or folder
    Create(CreateFlags),
    /// Change the trackers, web seeds, comment, source tag or private flag of a torrent
    Edit(EditFlags),
    /// Show what a torrent or magnet link holds
    Show(Box<ShowFlags>),
    /// Fetch content
    Get(Box<GetFlags>),
    /// Watch or listen to content while it arrives
    Play(Box<PlayFlags>),
    /// Share files, folders and torrents until interrupted
    Share(Box<ShareFlags>),
    /// Check files against a torrent
    Verify(VerifyFlags),
    /// Send files and folders, to one host or several, as fast as their paths carry
    Send(Box<SendFlags>),
    /// Receive what somebody sends
    Receive(Box<ReceiveFlags>),
    /// Check what a receiver signed
    Receipt(ReceiptFlags),
    /// Run a tracker (HTTP and UDP) until interrupted
    Tracker(TrackerFlags),
    /// List the paths to a SCION destination
    Paths(Box<PathsFlags>),
    /// Ask a SCION host for an answer, over one path
    Ping(Box<PingFlags>),
    /// Ask every router on a SCION path
    #[command(visible_alias = "tr")]
    Traceroute(Box<TracerouteFlags>),
    /// Print the SCION address of this host
    Address(AddressFlags),
    /// Print this node's own key; list or forget those that others were met with
    Keys(KeysFlags),
    /// Run SCION networks on this machine
    Net(NetFlags),
    /// Fetch one file over one network in three ways, and draw a page of what happened
    Demo(DemoFlags),
    /// Print completions for a shell
    Completions(CompletionsFlags),
    /// Print the manual or a command's page of it, or write all as man pages
    Man(ManFlags),
}

/// Flags of `keys`.
#[derive(Debug, Args)]
pub(crate) struct KeysFlags {
    /// What to do with them.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// What to do with known keys.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Print them, the one that was met first in front
    List(KeysListFlags),
    /// Forget the key of a peer, so that its next one is taken
    Forget(KeysForgetFlags),
    /// Print the key by which others know this node in `send` and `receive`, as --allow takes it
    Own(KeysOwnFlags),
}

/// Flags of `keys own`.
#[derive(Debug, Args)]
pub(crate) struct KeysOwnFlags {
    /// File with the key, made if it is not there [default: one in $XDG_STATE_HOME/anabranch/keys]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `keys list`.
#[derive(Debug, Args)]
pub(crate) struct KeysListFlags {
    #[command(flatten)]
    pub file: KnownKeysFlags,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `keys forget`.
#[derive(Debug, Args)]
pub(crate) struct KeysForgetFlags {
    /// Its address, as --peer or --to was given it; several may be given
    #[arg(required = true, value_name = "ADDR")]
    pub address: Vec<Endpoint>,
    #[command(flatten)]
    pub file: KnownKeysFlags,
}

/// Which file known keys are in.
#[derive(Debug, Args)]
pub(crate) struct KnownKeysFlags {
    /// Their file [default: $XDG_STATE_HOME/anabranch/known-keys]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub known_keys: Option<PathBuf>,
}

/// Flags about how a torrent is made.
#[derive(Debug, Args)]
pub(crate) struct MakeFlags {
    /// Generation of the format: 1 for old clients (aria2 1.36, Transmission 3.00), which cannot read the others, 2 for Merkle
    /// trees, hybrid for both
    #[arg(long, value_name = "VERSION", default_value = "hybrid", value_parser = clap::value_parser!(FormatVersion))]
    pub version: FormatVersion,
    /// Bytes in a piece, a power of two: 16KiB to 128MiB [default: for 1000 to 2000 pieces]
    #[arg(long, value_name = "N")]
    pub piece_length: Option<Size>,
    /// Announce URL of a tracker; may be given several times, one tried after the other. Those with a comma between them are one tier
    #[arg(long, value_name = "URL[,URL]", value_hint = ValueHint::Url)]
    pub tracker: Vec<String>,
    /// HTTP server that has the content too (BEP 19); may be given several times
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub web_seed: Vec<String>,
    /// Peers may come from the trackers only
    #[arg(long)]
    pub private: bool,
    /// A remark for people
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// Source tag, which makes another info-hash of equal content: trackers that are private ask for it
    #[arg(long, value_name = "TAG")]
    pub source: Option<String>,
    /// Carry the time of each file's last change, which makes another info-hash
    #[arg(long)]
    pub times: bool,
    #[command(flatten)]
    pub selection: Selection,
}

/// `create`
#[derive(Debug, Args)]
pub(crate) struct CreateFlags {
    /// File or folder
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub path: PathBuf,
    /// Where the torrent goes, - for standard output [default: NAME.torrent in this folder]
    #[arg(long, short, value_name = "OUT.torrent", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub make: MakeFlags,
    /// List what would go in, and hash and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Name of the content instead of the path's
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Leave the creation date out: equal files make equal torrents
    #[arg(long)]
    pub no_date: bool,
    /// Overwrite OUT.torrent
    #[arg(long, short)]
    pub force: bool,
}

/// `edit`
#[derive(Debug, Args)]
pub(crate) struct EditFlags {
    /// A .torrent file, which is replaced
    #[arg(value_name = "TORRENT", value_hint = ValueHint::FilePath)]
    pub torrent: PathBuf,
    /// Leave TORRENT as it is, and put the changed one here; - for standard output
    #[arg(long, short, value_name = "OUT.torrent", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Overwrite OUT.torrent
    #[arg(long, short)]
    pub force: bool,
    /// Trackers instead of those that are there, as `create` takes them; '' for none
    #[arg(long, value_name = "URL[,URL]", value_hint = ValueHint::Url)]
    pub tracker: Vec<String>,
    /// Tier of trackers to add behind those that are there; may be given several times
    #[arg(long, value_name = "URL[,URL]", value_hint = ValueHint::Url)]
    pub add_tracker: Vec<String>,
    /// Tracker to take out; may be given several times
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub remove_tracker: Vec<String>,
    /// Web seeds instead of those that are there; '' for none
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub web_seed: Vec<String>,
    /// Another remark for people; '' for none
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// Another source tag; '' for none. Changes the info-hash: another torrent, which those who have this one do not find
    #[arg(long, value_name = "TAG")]
    pub source: Option<String>,
    /// Whether peers may come from the trackers only. Changes the info-hash too
    #[arg(long, value_name = "yes|no", num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_parser = BoolishValueParser::new())]
    pub private: Option<bool>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `show`
#[derive(Debug, Args)]
pub(crate) struct ShowFlags {
    /// A .torrent file; or a magnet link, whose metadata peers are asked for, as `get` would ask
    #[arg(value_name = "SOURCE", value_hint = ValueHint::FilePath)]
    pub source: OsString,
    /// Ask nobody: show what a magnet link says itself
    #[arg(long)]
    pub offline: bool,
    #[command(flatten)]
    pub find: FindFlags,
    #[command(flatten)]
    pub session: SessionFlags,
}

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
    #[command(flatten)]
    pub guard: GuardFlags,
    #[command(flatten)]
    pub scion: ScionFlags,
    /// Print one JSON event a line
    #[arg(long)]
    pub json: bool,
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

/// `get`
#[derive(Debug, Args)]
pub(crate) struct GetFlags {
    #[command(flatten)]
    pub given: Given,
    /// .torrent files, magnet links and links of PPSPP (ppspp:..., tswift://...)
    #[arg(value_name = "SOURCE", required = true, value_hint = ValueHint::FilePath)]
    pub sources: Vec<OsString>,
    /// Folder to put content in
    #[arg(long, short = 'o', value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Go on sharing when complete, until interrupted
    #[arg(long)]
    pub seed: bool,
    #[command(flatten)]
    pub stop: StopFlags,
    /// Run this command by `sh -c` for each content that is complete, and wait for it; $CONTENT_PATH, $CONTENT_NAME and others tell
    /// which
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub on_complete: Option<OsString>,
    /// Fetch pieces in order
    #[arg(long)]
    pub sequential: bool,
    /// Fetch only files that match, such as '*.mkv', 'extras/' or 'disc 1/**/*.flac'; may be given several times
    #[arg(long, value_name = "GLOB")]
    pub files: Vec<FilePattern>,
    /// Fetch only the files of these numbers, as --list shows them, such as 1,3-5; with --files, those too. May be given several times
    #[arg(long, value_name = "N,N-M")]
    pub select_file: Vec<FileNumbers>,
    /// List the files, and ask in the terminal which ones to fetch
    #[arg(long)]
    pub choose: bool,
    /// List the files that would be fetched, and fetch none
    #[arg(long)]
    pub list: bool,
    #[command(flatten)]
    pub find: FindFlags,
    /// Verify everything that is on disk, whatever was recorded
    #[arg(long)]
    pub recheck: bool,
    /// Overwrite files that stand in the content's place and are others
    #[arg(long, short)]
    pub force: bool,
    /// How files get their space: sparse as they fill, full at first
    #[arg(long, value_name = "HOW", default_value = "sparse")]
    pub preallocate: Space,
    /// How requests are spread over connections
    #[arg(long, value_name = "HOW", default_value = "fastest")]
    pub strategy: Strategy,
    #[command(flatten)]
    pub session: SessionFlags,
}

/// `play`
#[derive(Debug, Args)]
pub(crate) struct PlayFlags {
    #[command(flatten)]
    pub given: Given,
    /// A .torrent file, a magnet link or a link of PPSPP
    #[arg(value_name = "SOURCE", value_hint = ValueHint::FilePath)]
    pub source: OsString,
    /// Player to start, with its arguments, such as mpv --fs; the address to play is put behind them. Ends when the player does
    #[arg(last = true, value_name = "PLAYER", value_hint = ValueHint::CommandWithArguments)]
    pub player: Vec<OsString>,
    /// Open the address with what the desktop has for it (xdg-open)
    #[arg(long)]
    pub open: bool,
    /// Folder to put content in
    #[arg(long, short = 'o', value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Keep nothing: content goes to a folder of its own, in --dir if that is given, and is deleted at the end
    #[arg(long)]
    pub temporary: bool,
    /// Play the files that match, such as '*.mkv' or 'disc 1/'; may be given several times [default: the largest one that players
    /// know]
    #[arg(long, visible_alias = "file", value_name = "GLOB")]
    pub files: Vec<FilePattern>,
    /// Play the files of these numbers, as `get --list` shows them, such as 1,3-5; with --files, those too. May be given several times
    #[arg(long, value_name = "N,N-M")]
    pub select_file: Vec<FileNumbers>,
    /// Address to serve players at, port 0 for any. Whoever reaches it can watch too
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = ip_only)]
    pub http: Endpoint,
    #[command(flatten)]
    pub find: FindFlags,
    /// Verify everything that is on disk, whatever was recorded
    #[arg(long)]
    pub recheck: bool,
    /// Overwrite files that stand in the content's place and are others
    #[arg(long, short)]
    pub force: bool,
    #[command(flatten)]
    pub session: SessionFlags,
}

/// `share`
#[derive(Debug, Args)]
pub(crate) struct ShareFlags {
    #[command(flatten)]
    pub given: Given,
    /// Files and folders, which are hashed first; or .torrent files, whose content is verified first
    #[arg(value_name = "PATH|TORRENT", required = true, value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Folder that holds the content of torrents [default: the torrent's own, or else this folder]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
    /// Trust that the files of torrents are right when their sizes are
    #[arg(long)]
    pub no_verify: bool,
    /// Save the torrent made of PATH
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub torrent_out: Option<PathBuf>,
    /// Share files by PPSPP (RFC 7574), in chunks that are verified one by one, and print a link for each; no torrent is made
    #[arg(long)]
    pub ppspp: bool,
    /// With --ppspp: length of a chunk, such as 1KiB or 8KiB; a datagram takes one, so more than 1200 bytes need a network that
    /// takes longer ones [default: 1KiB]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_chunk)]
    pub chunk_length: Option<Size>,
    /// With --ppspp: share a torrent of the same files too, from the same copy
    #[arg(long)]
    pub with_torrent: bool,
    #[command(flatten)]
    pub stop: StopFlags,
    #[command(flatten)]
    pub make: MakeFlags,
    #[command(flatten)]
    pub session: SessionFlags,
}

/// `verify`
#[derive(Debug, Args)]
pub(crate) struct VerifyFlags {
    /// A .torrent file
    #[arg(value_name = "TORRENT", value_hint = ValueHint::FilePath)]
    pub torrent: PathBuf,
    /// The folder that the content is in
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `tracker`
#[derive(Debug, Args)]
pub(crate) struct TrackerFlags {
    /// Address to listen on, for TCP and UDP, port 0 for any; may be given several times [default: [::]:6969, for IPv6 and IPv4]
    #[arg(long, value_name = "ADDR", value_parser = ip_only)]
    pub listen: Vec<Endpoint>,
    /// Track this content only: a .torrent file, magnet link or info-hash; may be given several times
    #[arg(long, value_name = "FILE|LINK|HASH", value_hint = ValueHint::FilePath)]
    pub allow_content: Vec<OsString>,
    /// Answer only those whose announce URL has this key: http://HOST:6969/KEY/announce
    #[arg(long, value_name = "KEY")]
    pub passkey: Option<String>,
    /// Connections from this machine and its network are a reverse proxy's: believe its X-Forwarded-For
    #[arg(long)]
    pub behind_proxy: bool,
    /// Print the address as a JSON event
    #[arg(long)]
    pub json: bool,
}

/// `demo`
#[derive(Debug, Args)]
pub(crate) struct DemoFlags {
    /// Folder for the page and the logs
    #[arg(long, value_name = "DIR", default_value = "anabranch-demo", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// Size of the file
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    pub size: Size,
    /// Print one JSON event a line
    #[arg(long)]
    pub json: bool,
}

/// `completions`
#[derive(Debug, Args)]
pub(crate) struct CompletionsFlags {
    /// Which shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// `man`
#[derive(Debug, Args)]
pub(crate) struct ManFlags {
    /// Command whose page is printed, such as `get` or `net up` [default: all]
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Write the pages to this folder, one file a command; it is made if it is not there
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// All commands and flags.
pub(crate) fn command() -> clap::Command {
    let answerable = |command: clap::Command| command.mut_args(answerable);
    let show = |show: clap::Command| show.mut_arg("json", |json| json.help("Print one JSON object"));
    answerable(Cli::command())
        .mut_subcommand("show", show)
        .mut_subcommands(|command| answerable(command).mut_subcommands(answerable))
}

/// A switch takes `=no` too: what the environment or the configuration file turned on can be turned off.
fn answerable(arg: Arg) -> Arg {
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        return arg;
    }
    arg.action(ArgAction::Set)
        .value_parser(BoolishValueParser::new())
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("yes")
        .default_value("no")
        .value_name("yes|no")
        .hide_default_value(true)
        .hide_possible_values(true)
}

/// Values of `--selector`, which shells complete.
fn selector_by_name() -> impl TypedValueParser<Value = Selector> {
    PossibleValuesParser::new(Selector::ALL.map(Selector::name)).try_map(|name| name.parse::<Selector>())
}

/// Values of `--version`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormatVersion(pub Version);

impl ValueEnum for FormatVersion {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self(Version::V1), Self(Version::V2), Self(Version::Hybrid)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self.0 {
            Version::V1 => PossibleValue::new("1"),
            Version::V2 => PossibleValue::new("2"),
            Version::Hybrid => PossibleValue::new("hybrid"),
        })
    }
}

/// Values of `--preallocate`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space(pub Preallocate);

impl ValueEnum for Space {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self(Preallocate::Sparse), Self(Preallocate::Full)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self.0 {
            Preallocate::Sparse => "sparse",
            Preallocate::Full => "full",
        }))
    }
}

/// Values of `--strategy`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strategy(pub RequestStrategy);

impl ValueEnum for Strategy {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self(RequestStrategy::PrioritizeFastest),
            Self(RequestStrategy::FuzzyPrioritized),
            Self(RequestStrategy::StrictlyPrioritized),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self.0 {
            RequestStrategy::PrioritizeFastest => "fastest",
            RequestStrategy::FuzzyPrioritized => "fuzzy",
            RequestStrategy::StrictlyPrioritized => "strict",
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_sound() {
        command().debug_assert();
    }
}
