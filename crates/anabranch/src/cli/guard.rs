//! Flags about whom `get` and `share` deal with, and by way of whom.

use std::path::PathBuf;

use anabranch_bittorrent::ip_filter::Rule;
use anabranch_transport::Proxy;
use clap::{Args, ValueHint};

use crate::bulk::target::Allowed;

/// Whom to deal with, and by way of whom.
#[derive(Debug, Args)]
#[command(next_help_heading = "Whom to deal with")]
pub(crate) struct GuardFlags {
    /// File with addresses to have nothing to do with: ipfilter.dat, P2P text, or one address, network or range a line; may be
    /// given several times
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ip_filter: Vec<PathBuf>,
    /// Address, network (192.0.2.0/24), range (192.0.2.1-192.0.2.9) or SCION AS to have nothing to do with; may be given several
    /// times
    #[arg(long, value_name = "RANGE")]
    pub block: Vec<Rule>,
    /// File that keeps bans from run to run: its addresses are blocked, and peers that prove hostile are added
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub bans: Option<PathBuf>,
    /// Deal only with peers that prove this key, or one of those in this file, which is over SCION alone, and with secure links of
    /// PPSPP (--secure) over IP too; may be given several times
    #[arg(long, value_name = "KEY|FILE", value_hint = ValueHint::FilePath)]
    pub allow: Vec<Allowed>,
    /// File of the keys that SCION peers had when --peer first named them: who has another key now is refused
    /// [default: $XDG_STATE_HOME/anabranch/known-keys]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub known_keys: Option<PathBuf>,
    /// Reach peers and trackers through this proxy, socks5://HOST:PORT or http://HOST:PORT, with USER:PASSWORD@ where it asks for
    /// them; what cannot go through is off: SCION, local discovery, listening unless --listen is given, and where it relays no UDP the
    /// DHT, uTP and UDP trackers
    #[arg(long, value_name = "URL")]
    pub proxy: Option<Proxy>,
}
