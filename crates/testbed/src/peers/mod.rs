//! Real clients behind a few verbs: share this, fetch that, be ready, be done.
//!
//! All listen on a port of the loopback that was free a moment ago, keep everything they write in a folder of the
//! test, find peers only where they are told, and encrypt where a test has them do so, or the other side wants it.

pub mod anabranch;
pub mod aria2;
pub mod deluge;
pub mod libtorrent;
pub mod nginx;
pub mod qbittorrent;
pub mod rqbit;
pub mod rtorrent;
pub mod scion;
pub mod transmission;
pub mod webtorrent;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A port of the loopback that nobody uses now. Ports come from below the ephemeral range, so that an outgoing
/// connection does not take it before the peer does.
///
/// # Errors
/// When none is free.
pub fn free_address() -> Result<SocketAddrV4> {
    use std::sync::atomic::{AtomicU32, Ordering};
    /// Where the search starts and how many ports it goes through.
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 18_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..COUNT {
        // Processes start far apart, so that test programs that run at once seldom meet.
        let step = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id().wrapping_mul(97));
        let port = (FIRST + step % COUNT) as u16;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            drop(listener);
            return Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        }
    }
    Err(Error::Nonsense { name: "the loopback".into(), what: "no port is free".into() })
}

/// The checkout this crate was built in.
pub fn checkout() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// A program of the system, by name.
///
/// # Errors
/// When it is not on the path.
pub fn installed(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| Error::Missing { what: name.into(), remedy: "`make deps` installs what the tests need".into() })
}

/// The address in the `address` field of a `listening` event.
///
/// # Errors
/// When there is none.
pub fn address_of(event: &serde_json::Value) -> Result<SocketAddr> {
    let text = event["address"].as_str().unwrap_or_default();
    text.parse().map_err(|_| Error::Nonsense { name: "a listening event".into(), what: event.to_string() })
}
