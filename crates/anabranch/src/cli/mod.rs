//! Every command and flag. Help, man pages and completions come from here, and so do the names of environment variables
//! and keys of the configuration file.

mod bulk;
mod daemon;
mod given;
mod guard;
mod keys;
mod lab;
mod later;
mod live;
mod sandbox;
mod scion;
mod session;
mod tools;
mod torrent;
mod transfer;

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, CommandFactory, Parser, Subcommand, ValueHint};

pub(crate) use bulk::{BulkFlags, BulkPathFlags, InvitationFlags, IoChoice, ReceiptFlags, ReceiveFlags, SendFlags};
pub(crate) use daemon::{
    AddFlags, AskFlags, DaemonFlags, Limit, LimitFlags, ListFlags, PasswordFlags, RemoveFlags, StatusFlags, TurnFlags,
    WatchFlags,
};
pub(crate) use given::Given;
pub(crate) use guard::GuardFlags;
pub(crate) use keys::{KeysCommand, KeysFlags, KeysForgetFlags, KeysListFlags, KeysOwnFlags, KnownKeysFlags};
pub(crate) use lab::{
    LabCellFlags, LabCheckFlags, LabCollectFlags, LabCommand, LabCompareFlags, LabFlags, LabFormFlags, LabListFlags,
    LabReportFlags, LabRoutesFlags, LabRunFlags, LabSubmitFlags, LabTaskFlags,
};
pub(crate) use later::Later;
pub(crate) use live::{LiveFlags, LiveIntegrity};
pub(crate) use sandbox::SandboxFlags;
pub(crate) use scion::{
    AddressFlags, LinkAction, NetCheckFlags, NetCommand, NetFlags, NetLinkFlags, NetStatusFlags, NetUpFlags,
    OnePathFlags, PathFlags, PathsFlags, PingFlags, QueryFlags, TracerouteFlags,
};
pub(crate) use session::{CongestionChoice, FindFlags, NodeName, SessionFlags, StopFlags, Switch};
pub(crate) use tools::{CompletionsFlags, DemoFlags, ManFlags, TrackerFlags};
pub(crate) use torrent::{CreateFlags, EditFlags, MakeFlags, ShowFlags, VerifyFlags};
pub(crate) use transfer::{DialectChoice, GetFlags, PlayFlags, ShareFlags};

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
    Create(Later<CreateFlags>),
    /// Change the trackers, web seeds, comment, source tag or private flag of a torrent
    Edit(Later<EditFlags>),
    /// Show what a torrent or magnet link holds
    Show(Later<ShowFlags>),
    /// Fetch content
    Get(Later<GetFlags>),
    /// Watch or listen to content while it arrives
    Play(Later<PlayFlags>),
    /// Share files, folders and torrents until interrupted
    Share(Later<ShareFlags>),
    /// Broadcast a live stream, from standard input or a file, and print a link for `get` and `play`
    Live(Later<LiveFlags>),
    /// Check files against a torrent
    Verify(Later<VerifyFlags>),
    /// Send files and folders, to one host or several, as fast as their paths carry
    Send(Later<SendFlags>),
    /// Receive what somebody sends
    Receive(Later<ReceiveFlags>),
    /// Check what a receiver signed
    Receipt(Later<ReceiptFlags>),
    /// Run a tracker (HTTP and UDP) until interrupted
    Tracker(Later<TrackerFlags>),
    /// Run a library of contents with an API and a page, until interrupted
    Daemon(Later<DaemonFlags>),
    /// Add contents to a daemon
    Add(Later<AddFlags>),
    /// List a daemon's contents
    List(Later<ListFlags>),
    /// Say how a daemon fares, or one of its contents
    Status(Later<StatusFlags>),
    /// Have contents of a daemon wait
    Pause(Later<TurnFlags>),
    /// Have contents of a daemon go on
    Resume(Later<TurnFlags>),
    /// Remove contents from a daemon
    Remove(Later<RemoveFlags>),
    /// Say how fast a daemon and its contents may be, and when they have shared enough
    Limit(Later<LimitFlags>),
    /// Watch a daemon's contents
    Watch(Later<WatchFlags>),
    /// Set the password of a daemon, for programs and people without its token
    Password(Later<PasswordFlags>),
    /// List the paths to a SCION destination
    Paths(Later<PathsFlags>),
    /// Ask a SCION host for an answer, over one path
    Ping(Later<PingFlags>),
    /// Ask every router on a SCION path
    #[command(visible_alias = "tr")]
    Traceroute(Later<TracerouteFlags>),
    /// Print the SCION address of this host
    Address(Later<AddressFlags>),
    /// Print this node's own key; list or forget those that others were met with
    Keys(Later<KeysFlags>),
    /// Run SCION networks on this machine
    Net(Later<NetFlags>),
    /// Fetch one file over one network in three ways, and draw a page of what happened
    Demo(Later<DemoFlags>),
    /// Run experiments that compare SCION with BGP on the same links, from plans, and report them
    Lab(Later<LabFlags>),
    /// Print completions for a shell
    Completions(Later<CompletionsFlags>),
    /// Print the manual or a command's page of it, or write all as man pages
    Man(Later<ManFlags>),
}

/// All commands; the flags of each once it is asked for, or all are built.
pub(crate) fn command() -> clap::Command {
    Cli::command().mut_args(usual)
}

/// The same with all flags at once. Completions of `help` are copied from the commands before any of these is built, and would lack what is
/// below `net` or `lab` otherwise.
pub(crate) fn whole() -> clap::Command {
    let defined = Command::augment_subcommands_for_update(clap::Command::new("anabranch"));
    command().mut_subcommands(|later| defined.find_subcommand(later.get_name()).cloned().unwrap_or(later))
}

/// What holds for every flag.
fn usual(arg: Arg) -> Arg {
    signed(answerable(arg))
}

/// A switch takes `=no` too: what the environment or the configuration file turned on can be turned off.
fn answerable(arg: Arg) -> Arg {
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        return arg;
    }
    let is_on_by_default = !arg.get_default_values().is_empty();
    arg.action(ArgAction::Set)
        .value_parser(BoolishValueParser::new())
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("yes")
        .default_value(if is_on_by_default { "yes" } else { "no" })
        .value_name("yes|no")
        .hide_default_value(true)
        .hide_possible_values(true)
}

/// Names of values that are numbers.
const NUMBERS: [&str; 9] = ["N", "N,N-M", "N|ID", "ID", "PORT", "RATE", "RATIO", "SIZE", "TIME"];

/// A number below zero reaches the flag's own parser, which says what to write, and is not taken for a flag.
fn signed(arg: Arg) -> Arg {
    let name = arg.get_value_names().and_then(|names| names.first());
    let is_number = arg.get_long().is_some() && name.is_some_and(|name| NUMBERS.contains(&name.as_str()));
    if is_number { arg.allow_hyphen_values(true) } else { arg }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    #[test]
    fn definitions_are_sound() {
        command().debug_assert();
        whole().debug_assert();
    }

    #[test]
    fn what_is_on_unless_turned_off_is_on() {
        let is_fair = |flags: &[&str]| {
            let matches = command().get_matches_from([&["anabranch", "send", "file"], flags].concat());
            match Cli::from_arg_matches(&matches).map(|cli| cli.command) {
                Ok(Command::Send(Later(flags))) => flags.fair,
                other => panic!("{:?}", other.err()),
            }
        };
        assert_eq!([&[][..], &["--fair"], &["--fair=yes"], &["--fair=no"]].map(is_fair), [true, true, true, false]);
    }

    #[test]
    fn help_is_completed_below_commands_too() {
        let mut root = whole();
        root.build();
        let help = root.find_subcommand("help").and_then(|help| help.find_subcommand("net"));
        assert!(help.is_some_and(|net| net.find_subcommand("up").is_some()));
        let flags = |root: &clap::Command| -> Vec<String> {
            let mut flags: Vec<String> = root
                .get_subcommands()
                .filter(|command| command.get_name() != "help")
                .flat_map(|command| command.get_arguments().map(|arg| format!("{} {arg}", command.get_name())))
                .collect();
            flags.sort();
            flags
        };
        let mut asked = command();
        asked.build();
        assert_eq!(flags(&root), flags(&asked));
    }
}
