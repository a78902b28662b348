//! A TCP relay that counts: what really crossed to a peer that is killed before it can say so.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Result;
use crate::acceptor::Acceptor;

/// Connections relayed in its life.
const CONNECTIONS_MAX: usize = 4096;
/// Bytes taken at a time: little, so that what a dead peer never read does not count for much.
const CHUNK_LEN: usize = 16 * 1024;

/// A running relay; it stops when dropped.
pub struct Meter {
    /// Where to connect instead of to the target.
    pub address: SocketAddr,
    bytes_down: Arc<AtomicU64>,
    _acceptor: Acceptor,
}

impl Meter {
    /// Relays every connection to `target`.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(target: SocketAddr) -> Result<Self> {
        let bytes_down = Arc::<AtomicU64>::default();
        let acceptor = Acceptor::start(CONNECTIONS_MAX, {
            let bytes_down = bytes_down.clone();
            move |near| drop(relay(near, target, &bytes_down))
        })?;
        Ok(Self { address: acceptor.address, bytes_down, _acceptor: acceptor })
    }

    /// Bytes that went from the target to those who connected, protocol included.
    pub fn bytes_down(&self) -> u64 {
        self.bytes_down.load(Ordering::Relaxed)
    }
}

fn relay(near: TcpStream, target: SocketAddr, bytes_down: &Arc<AtomicU64>) -> std::io::Result<()> {
    let far = TcpStream::connect(target)?;
    let (near_too, far_too, bytes_down) = (near.try_clone()?, far.try_clone()?, bytes_down.clone());
    std::thread::spawn(move || pump(near_too, far_too, |_| {}));
    std::thread::spawn(move || {
        pump(far, near, |len| {
            bytes_down.fetch_add(len, Ordering::Relaxed);
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
    use std::net::{Ipv4Addr, TcpListener};

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
