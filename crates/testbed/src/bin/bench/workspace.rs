//! Where the benches happen: content and torrents in memory, a namespace whose loopback is pinned to cubic; and a folder on the
//! disk of the checkout for the rows about that.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::{checkout, libtorrent};
use anabranch_testbed::{Error, Result, data, page_cache};
use tempfile::TempDir;

use crate::rows::Protocol;

/// Bytes a piece in every row.
pub(crate) const PIECE_LENGTH: u32 = 1 << 20;

/// Made once, used by all rows.
pub(crate) struct Workspace {
    folder: TempDir,
    /// Bytes of the content.
    pub len: u64,
    /// Contents of the rows about many.
    pub contents: usize,
    /// The folder with the content.
    pub data: PathBuf,
    /// The content.
    pub content: PathBuf,
    /// The loopback with cubic; none where this process may not make namespaces.
    pub inside: Option<Namespace>,
    /// What one path carried alone, bits a second, by protocol, rate and delay: what several are compared with.
    pub alone: HashMap<(Protocol, Option<u32>, u32), Vec<f64>>,
    /// On the disk that the checkout is on, made when first asked for.
    disk: Option<TempDir>,
    serial: u32,
}

impl Workspace {
    /// Makes the content in `/dev/shm` (or where there is none, in the folder for temporary files).
    ///
    /// # Errors
    /// When there is no room for twice the content and more.
    pub(crate) fn new(len: u64, contents: usize) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let folder =
            tempfile::Builder::new().prefix("anabranch-bench-").tempdir_in(&root).map_err(Error::file(&root))?;
        let data = folder.path().join("have");
        let content = data.join("content.bin");
        eprintln!("making {} MiB in {} ...", len >> 20, folder.path().display());
        data::make_file(&content, len, 1)?;
        let inside = net::available().then(Namespace::new).transpose()?;
        if inside.is_none() {
            eprintln!("not root: TCP uses the machine's default congestion control, and the long wire is left out");
        }
        Ok(Self { folder, len, contents, data, content, inside, alone: HashMap::new(), disk: None, serial: 0 })
    }

    /// Takes memory for a download, and gives it back: a virtual machine may get memory from its host when it is first touched, which
    /// costs more than writing to it, and give it back when it was free for seconds. Whoever runs next would pay for that, or not.
    pub(crate) fn warm(&self) {
        drop(std::hint::black_box(vec![1u8; self.len as usize]));
    }

    /// The torrent of the content in `version`, made by libtorrent when first asked for.
    ///
    /// # Errors
    /// When libtorrent is missing.
    pub(crate) fn torrent(&self, version: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(format!("v{version}.torrent"));
        if !path.exists() {
            libtorrent::create(&self.content, &path, version, PIECE_LENGTH, &[])?;
        }
        Ok(path)
    }

    /// The v1 info-hash of the content, as libtorrent writes it.
    ///
    /// # Errors
    /// When libtorrent is missing.
    pub(crate) fn info_hash_hex(&self) -> Result<String> {
        Ok(libtorrent::info(&self.torrent("1")?)?["v1"].as_str().unwrap_or_default().to_owned())
    }

    /// An empty folder for who fetches, gone at the next [`Self::sweep`].
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn out(&mut self) -> Result<PathBuf> {
        self.serial += 1;
        let path = self.folder.path().join("out").join(self.serial.to_string());
        std::fs::create_dir_all(&path).map_err(Error::file(&path))?;
        Ok(path)
    }

    /// A folder of this name that stays.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn keep(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(&path).map_err(Error::file(&path))?;
        Ok(path)
    }

    /// [`Self::out`] on the disk. What others left to be written is written first.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn out_on_disk(&mut self) -> Result<PathBuf> {
        self.serial += 1;
        let path = self.disk()?.join("out").join(self.serial.to_string());
        std::fs::create_dir_all(&path).map_err(Error::file(&path))?;
        // SAFETY: takes nothing.
        unsafe { libc::sync() };
        Ok(path)
    }

    /// The folder with a copy of the content on the disk: in the page cache, or out of it.
    ///
    /// # Errors
    /// When there is no room for it.
    pub(crate) fn data_on_disk(&mut self, is_warm: bool) -> Result<PathBuf> {
        let data = self.disk()?.join("have");
        let copy = data.join("content.bin");
        if !copy.exists() {
            std::fs::create_dir_all(&data).map_err(Error::file(&data))?;
            std::fs::copy(&self.content, &copy).map_err(Error::file(&copy))?;
        }
        page_cache::drop_file(&copy)?;
        if is_warm {
            page_cache::warm_file(&copy)?;
        }
        Ok(data)
    }

    fn disk(&mut self) -> Result<PathBuf> {
        if let Some(disk) = &self.disk {
            return Ok(disk.path().to_path_buf());
        }
        let root = checkout().join("bench-results");
        std::fs::create_dir_all(&root).map_err(Error::file(&root))?;
        let disk = tempfile::Builder::new().prefix("disk-").tempdir_in(&root).map_err(Error::file(&root))?;
        Ok(self.disk.insert(disk).path().to_path_buf())
    }

    /// Frees what was fetched.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(crate) fn sweep(&self) -> Result<()> {
        let folders = [Some(self.folder.path()), self.disk.as_ref().map(TempDir::path)];
        for out in folders.into_iter().flatten().map(|folder| folder.join("out")).filter(|out| out.exists()) {
            std::fs::remove_dir_all(&out).map_err(Error::file(out))?;
        }
        Ok(())
    }

    /// Compares what was fetched with the content.
    ///
    /// # Errors
    /// When it differs.
    pub(crate) fn check(&self, got: &Path) -> Result<()> {
        if data::same_file(&self.content, got)? {
            return Ok(());
        }
        Err(Error::Nonsense { name: "the transfer".into(), what: format!("{} differs", got.display()) })
    }

    /// The floor program, which is built beside this one.
    pub(crate) fn floor(&self) -> PathBuf {
        let here = std::env::current_exe().unwrap_or_else(|_| checkout().join("target/release/anabranch-bench"));
        here.with_file_name("anabranch-floor")
    }

    /// A command of the floor program, in the namespace.
    pub(crate) fn floor_command(&self) -> std::process::Command {
        let floor = self.floor();
        self.inside.as_ref().map_or_else(|| std::process::Command::new(&floor), |inside| inside.command(&floor))
    }
}
