//! Which programs fetch and share.

use std::path::PathBuf;

use crate::bed::{BedError, Routing};

/// A program that peers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Client {
    /// `anabranch get` and `share`.
    Anabranch,
    /// `anabranch receive` and `send`.
    Bulk,
    /// `anabranch get` and `share --ppspp`.
    Ppspp,
    /// libtorrent, under its bindings for Python.
    Libtorrent,
    /// aria2.
    Aria2,
    /// Transmission's daemon.
    Transmission,
    /// iperf3: TCP alone, as fast as it is.
    Iperf3,
    /// Globus's GridFTP: a file over several connections of TCP.
    GridFtp,
}

/// What clients speak: those of one kind understand each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// BitTorrent.
    BitTorrent,
    /// Bulk transfer.
    Bulk,
    /// PPSPP.
    Ppspp,
    /// iperf3's own.
    Iperf3,
    /// FTP with its extensions.
    GridFtp,
}

impl Client {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Anabranch,
        Self::Bulk,
        Self::Ppspp,
        Self::Libtorrent,
        Self::Aria2,
        Self::Transmission,
        Self::Iperf3,
        Self::GridFtp,
    ];

    /// As plans write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anabranch => "anabranch",
            Self::Bulk => "anabranch-bulk",
            Self::Ppspp => "anabranch-ppspp",
            Self::Libtorrent => "libtorrent",
            Self::Aria2 => "aria2",
            Self::Transmission => "transmission",
            Self::Iperf3 => "iperf3",
            Self::GridFtp => "gridftp",
        }
    }

    /// What it speaks.
    pub fn speech(self) -> Speech {
        match self {
            Self::Anabranch | Self::Libtorrent | Self::Aria2 | Self::Transmission => Speech::BitTorrent,
            Self::Bulk => Speech::Bulk,
            Self::Ppspp => Speech::Ppspp,
            Self::Iperf3 => Speech::Iperf3,
            Self::GridFtp => Speech::GridFtp,
        }
    }

    /// Whether it is this program.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Anabranch | Self::Bulk | Self::Ppspp)
    }

    /// Whether it goes over that routing: only ours know SCION.
    pub fn goes_over(self, routing: Routing) -> bool {
        self.is_ours() || routing != Routing::Scion
    }

    /// Whether it finds others by a tracker alone, and reads version 1 of torrents alone.
    pub fn is_old(self) -> bool {
        matches!(self, Self::Aria2 | Self::Transmission)
    }

    /// Whether who fetches tells of nothing and ends once it has everything.
    pub(crate) fn ends_when_done(self) -> bool {
        matches!(self, Self::Iperf3 | Self::GridFtp)
    }

    /// Whether its flags are settings, which all of its peers have, and no words of a command line.
    pub(crate) fn has_settings(self) -> bool {
        matches!(self, Self::Libtorrent | Self::Transmission)
    }

    /// Whether it is there.
    ///
    /// # Errors
    /// What to install.
    pub(crate) fn check(self) -> Result<(), BedError> {
        let wanted: (&[&str], &'static str) = match self {
            Self::Anabranch | Self::Bulk | Self::Ppspp => return Ok(()),
            Self::Libtorrent => {
                let program = "python3 with libtorrent".to_owned();
                let package = "libtorrent for Python (Debian: python3-libtorrent), or name a Python that has it in ANABRANCH_LAB_PYTHON";
                return python().map(drop).ok_or(BedError::Missing { program, package });
            }
            Self::Aria2 => (&["aria2c"], "aria2 (Debian: aria2)"),
            Self::Transmission => (&["transmission-daemon"], "Transmission (Debian: transmission-daemon)"),
            Self::Iperf3 => (&["iperf3"], "iperf3 (Debian: iperf3)"),
            Self::GridFtp => (
                &["globus-gridftp-server", "globus-url-copy"],
                "GridFTP (Debian: globus-gridftp-server-progs and globus-gass-copy-progs)",
            ),
        };
        let (names, package) = wanted;
        names.iter().try_for_each(|name| {
            installed(name).map(drop).ok_or_else(|| BedError::Missing { program: (*name).to_owned(), package })
        })
    }
}

/// Where a program is that one may call by its name, or that is for root.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// A Python that has libtorrent: the one that the environment names, the one of a checkout's tests, or the system's.
pub(crate) fn python() -> Option<PathBuf> {
    let named = std::env::var_os("ANABRANCH_LAB_PYTHON").map(PathBuf::from);
    let all = named.into_iter().chain([PathBuf::from(".deps/venv/bin/python")]).chain(installed("python3"));
    all.filter(|python| python.is_file()).find(|python| {
        let asked = std::process::Command::new(python).args(["-c", "import libtorrent"]).output();
        asked.is_ok_and(|output| output.status.success())
    })
}
