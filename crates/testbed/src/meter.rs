//! A TCP relay that counts: what really crossed to a peer that is killed before it can say so.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{Error, Result};

/// Connections relayed in its life.
const CONNECTIONS_MAX: usize = 4096;
/// Bytes taken at a time: little, so that what a dead peer never read does not count for much.
const CHUNK_LEN: usize = 16 * 1024;

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    bytes_down: AtomicU64,
}

/// A running relay; it stops when dropped.
pub struct Meter {
    /// Where to connect instead of to the target.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Meter {
    /// Relays every connection to `target`.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::system("listening"))?;
        let address = listener.local_addr().map_err(Error::system("local address"))?;
        let shared = Arc::new(Shared::default());
        std::thread::spawn({
            let shared = shared.clone();
            move || {
                for near in listener.incoming().take(CONNECTIONS_MAX).map_while(std::result::Result::ok) {
                    if shared.stop.load(Ordering::Relaxed) {
                        break;
                    }
                    relay(near, target, &shared).ok();
                }
            }
        });
        Ok(Self { address, shared })
    }

    /// Bytes that went from the target to those who connected, protocol included.
    pub fn bytes_down(&self) -> u64 {
        self.shared.bytes_down.load(Ordering::Relaxed)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        TcpStream::connect(self.address).ok();
    }
}

fn relay(near: TcpStream, target: SocketAddr, shared: &Arc<Shared>) -> std::io::Result<()> {
    let far = TcpStream::connect(target)?;
    let (near_too, far_too, shared) = (near.try_clone()?, far.try_clone()?, shared.clone());
    std::thread::spawn(move || pump(near_too, far_too, |_| {}));
    std::thread::spawn(move || {
        pump(far, near, |len| {
            shared.bytes_down.fetch_add(len, Ordering::Relaxed);
        })
    });
    Ok(())
}

/// Copies until either side is gone, then closes both.
fn pump(mut from: TcpStream, mut to: TcpStream, count: impl Fn(u64)) {
    let mut chunk = [0; CHUNK_LEN];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(len) if to.write_all(&chunk[..len]).is_ok() => count(len as u64),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_comes_back() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let meter = Meter::start(listener.local_addr().unwrap()).unwrap();
        let mut near = TcpStream::connect(meter.address).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(b"ask").unwrap();
        far.read_exact(&mut [0; 3]).unwrap();
        far.write_all(b"answer").unwrap();
        drop(far);
        let mut all = Vec::new();
        near.read_to_end(&mut all).unwrap();
        assert_eq!((all.as_slice(), meter.bytes_down()), (b"answer".as_slice(), 6));
    }
}
