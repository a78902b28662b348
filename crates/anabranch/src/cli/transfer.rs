//! Flags of `get`, `play` and `share`.

use std::ffi::OsString;
use std::path::PathBuf;

use anabranch_bittorrent::picker::RequestStrategy;
use anabranch_content::storage::Preallocate;
use anabranch_paths::Endpoint;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum, ValueHint};

use super::Given;
use super::session::{FindFlags, SessionFlags, StopFlags};
use super::torrent::MakeFlags;
use crate::address::ip_only;
use crate::choice::FileNumbers;
use crate::patterns::FilePattern;
use crate::units::{self, Size};

/// `get`
#[derive(Debug, Args)]
pub(crate) struct GetFlags {
    #[command(flatten)]
    pub given: Given,
    /// .torrent files, magnet links and links of PPSPP (ppspp:..., tswift://...)
    #[arg(value_name = "SOURCE", required = true, value_hint = ValueHint::FilePath)]
    pub sources: Vec<OsString>,
    /// Folder to put content in; of a live stream also the file to record to, or - for standard output
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
    /// HTTP server that has the content too (BEP 19), beside those that SOURCE names; may be given several times
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub web_seed: Vec<String>,
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
    /// HTTP server that has the content too (BEP 19), beside those that SOURCE names; may be given several times
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub web_seed: Vec<String>,
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
    /// Send little more than one copy before the others have a whole one among them: tell each peer of a few pieces at a time, and of
    /// more when it has passed those on (super-seeding, BEP 16). For the first who shares something; slower where others have it too
    #[arg(long)]
    pub super_seed: bool,
    /// Save the torrent made of PATH
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub torrent_out: Option<PathBuf>,
    /// Share files and folders by PPSPP (RFC 7574), in chunks that are verified one by one, and print a link for each; no torrent is made
    #[arg(long)]
    pub ppspp: bool,
    /// With --ppspp: length of a chunk, such as 1KiB or 8KiB; a datagram takes one, so more than 1200 bytes need a network that
    /// takes longer ones [default: 1KiB]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_chunk)]
    pub chunk_length: Option<Size>,
    /// With --ppspp: share inside QUIC, encrypted, with peers that prove a key; with --allow, only with those of these keys
    #[arg(long)]
    pub secure: bool,
    /// With --ppspp: whom it is shared with
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    pub dialect: DialectChoice,
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

/// Values of `--dialect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DialectChoice {
    /// All that speak RFC 7574
    #[default]
    Rfc7574,
    /// libswift, which speaks an older draft and knows SHA-1 alone
    Libswift,
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
