//! Flags of what makes, changes, shows and checks torrents: `create`, `edit`, `show` and `verify`.

use std::ffi::OsString;
use std::path::PathBuf;

use anabranch_content::info::Version;
use clap::builder::{BoolishValueParser, PossibleValue};
use clap::{Args, ValueEnum, ValueHint};

use super::session::{FindFlags, SessionFlags};
use crate::patterns::Selection;
use crate::units::Size;

/// Flags about how a torrent is made.
#[derive(Debug, Args)]
pub(crate) struct MakeFlags {
    /// Generation of the format: 1 for every client, 2 for Merkle trees, which blame single blocks on who sent them, hybrid for
    /// both; aria2 1.36 and Transmission 3.00 read neither 2 nor hybrid
    #[arg(long, value_name = "VERSION", default_value = "1", value_parser = clap::value_parser!(FormatVersion))]
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
#[command(mut_arg("json", |json| json.help("Print one JSON object")))]
pub(crate) struct ShowFlags {
    /// A .torrent file, a link of PPSPP; or a magnet link, whose metadata peers are asked for, as `get` would ask
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

/// `verify`
#[derive(Debug, Args)]
pub(crate) struct VerifyFlags {
    /// A .torrent file or a link of PPSPP
    #[arg(value_name = "TORRENT", value_hint = ValueHint::FilePath)]
    pub torrent: PathBuf,
    /// The folder that the content is in, or for a link the file
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
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
