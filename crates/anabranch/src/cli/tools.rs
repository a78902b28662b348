//! Flags of `tracker`, `demo`, `completions` and `man`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use anabranch_paths::Endpoint;
use clap::{Args, ValueHint};

use super::SandboxFlags;
use crate::address::ip_only;
use crate::units::Size;

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
    #[command(flatten)]
    pub sandbox: SandboxFlags,
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
    /// Serve the page while it runs, at an address of this machine: 127.0.0.1 and any port, where none is given
    #[arg(long, value_name = "ADDR", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:0")]
    pub web: Option<SocketAddr>,
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
