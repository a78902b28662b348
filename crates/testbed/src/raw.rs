//! What there is to measure against: bare TCP, and the naive floor.
//!
//! The floor is what a careful program gets with one thread a side and no protocol at all: the sender gives the file to
//! `sendfile`, the receiver takes 256 KiB at a time, hashes it with SHA-1 (the `sha1` crate, SHA-NI where the processor
//! has it), writes it with `pwrite` and compares each piece's hash. On a disk it writes each piece past the page cache, which is
//! the cheapest way there; or, to be compared with, through it. Bare TCP leaves out file, hash and disk.
//! Both pin TCP to cubic.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use sha1::{Digest, Sha1};

use crate::{Error, Result};

/// Bytes taken from the socket at a time: fits the second-level cache, so hashing and writing find it there.
const RECV_LEN: usize = 256 * 1024;
/// Bytes given to one `sendfile`.
const SENDFILE_LEN: usize = 4 << 20;
/// No byte for this long ends either side.
const IDLE: Duration = Duration::from_secs(60);

/// Where direct reads and writes begin, in the file and in memory.
const DIRECT_ALIGN: usize = 4096;
/// Bytes of a direct read.
const DIRECT_READ_LEN: usize = 1 << 20;

/// Whether the page cache is between a file and its reader or writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// As usual.
    Cached,
    /// `O_DIRECT`.
    Direct,
}

/// Listens on `address` and returns the listener with the address it got.
///
/// # Errors
/// When the address is taken or not ours.
pub fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).map_err(Error::system(format!("listening on {address}")))?;
    let bound = listener.local_addr().map_err(Error::system("local address"))?;
    Ok((listener, bound))
}

/// Sends all of the file at `path` to the first who connects.
///
/// # Errors
/// When the file or the connection fails.
pub fn send_file(listener: &TcpListener, path: &Path) -> Result<()> {
    let file = File::open(path).map_err(Error::file(path))?;
    let len = file.metadata().map_err(Error::file(path))?.len();
    let stream = accept(listener)?;
    let mut offset: libc::off_t = 0;
    while (offset as u64) < len {
        // SAFETY: both descriptors are open for the whole call, offset is a valid off_t.
        let sent = unsafe { libc::sendfile(stream.as_raw_fd(), file.as_raw_fd(), &mut offset, SENDFILE_LEN) };
        if sent < 0 && std::io::Error::last_os_error().kind() != ErrorKind::Interrupted {
            return Err(Error::last_os("sendfile"));
        }
    }
    linger(stream)
}

/// Fetches from `peer` into `path` until it closes, hashing pieces of `piece_length`, and syncs the file. Answers the bytes and the
/// hashes' hash, so that none of the work can be optimised away.
///
/// # Errors
/// When the file or the connection fails.
pub fn receive_file(peer: SocketAddr, path: &Path, piece_length: usize, access: Access) -> Result<(u64, [u8; 20])> {
    let file = File::create(path).map_err(Error::file(path))?;
    let direct = (access == Access::Direct).then(|| open_direct(File::options().write(true), path)).transpose()?;
    let mut stream = connect(peer)?;
    let mut space = vec![0; piece_length.max(RECV_LEN) + DIRECT_ALIGN];
    let buffer = aligned(&mut space);
    let (mut total, mut in_piece) = (0u64, 0usize);
    let (mut piece, mut all) = (Sha1::new(), Sha1::new());
    loop {
        // Directly, a piece is written as a whole; through the cache, while its bytes are in the processor's.
        let at = if direct.is_some() { in_piece } else { 0 };
        let room = RECV_LEN.min(piece_length - in_piece);
        let len = match stream.read(&mut buffer[at..at + room]) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(Error::system("receiving")(error)),
        };
        piece.update(&buffer[at..at + len]);
        if direct.is_none() {
            file.write_all_at(&buffer[..len], total).map_err(Error::file(path))?;
        }
        total += len as u64;
        in_piece += len;
        if in_piece == piece_length {
            if let Some(direct) = &direct {
                let start = total - piece_length as u64;
                direct.write_all_at(&buffer[..piece_length], start).map_err(Error::file(path))?;
            }
            all.update(piece.finalize_reset());
            in_piece = 0;
        }
    }
    if direct.is_some() {
        // The last piece is no whole block.
        file.write_all_at(&buffer[..in_piece], total - in_piece as u64).map_err(Error::file(path))?;
    }
    file.sync_data().map_err(Error::file(path))?;
    all.update(piece.finalize());
    Ok((total, all.finalize().into()))
}

/// Reads all of the file at `path` and does nothing with it but a sum over a byte of each chunk: the limit that memory
/// or disk set to creating and verifying.
///
/// # Errors
/// When it cannot be read.
pub fn read_file(path: &Path, access: Access) -> Result<u64> {
    let (mut file, len) = match access {
        Access::Cached => (File::open(path).map_err(Error::file(path))?, RECV_LEN),
        Access::Direct => (open_direct(File::options().read(true), path)?, DIRECT_READ_LEN),
    };
    let mut space = vec![0; len + DIRECT_ALIGN];
    let buffer = &mut aligned(&mut space)[..len];
    let mut sum = 0;
    loop {
        match file.read(buffer).map_err(Error::file(path))? {
            0 => return Ok(sum),
            len => sum += u64::from(buffer[len - 1]),
        }
    }
}

fn open_direct(options: &mut std::fs::OpenOptions, path: &Path) -> Result<File> {
    options.custom_flags(libc::O_DIRECT).open(path).map_err(Error::file(path))
}

/// `space` from the first address on that direct access takes.
fn aligned(space: &mut [u8]) -> &mut [u8] {
    let skip = space.as_ptr().align_offset(DIRECT_ALIGN);
    &mut space[skip..]
}

/// Sends `len` bytes of nothing to the first who connects.
///
/// # Errors
/// When the connection fails.
pub fn send_raw(listener: &TcpListener, len: u64) -> Result<()> {
    let mut stream = accept(listener)?;
    let buffer = vec![0; RECV_LEN];
    let mut left = len;
    while left > 0 {
        let take = left.min(buffer.len() as u64) as usize;
        stream.write_all(&buffer[..take]).map_err(Error::system("sending"))?;
        left -= take as u64;
    }
    linger(stream)
}

/// What a receiver of bare TCP saw.
#[derive(Clone, Copy, Debug)]
pub struct RawReport {
    /// Bytes in all.
    pub bytes: u64,
    /// From the connection's start to its end.
    pub wall: Duration,
    /// Rate over the second half of the bytes, bytes a second: what the wire gives once the window is open.
    pub rate_bytes_late: f64,
}

/// Receives `len` bytes from `peer`, which then closes.
///
/// # Errors
/// When the connection fails.
pub fn receive_raw(peer: SocketAddr, len: u64) -> Result<RawReport> {
    let started = Instant::now();
    let mut stream = connect(peer)?;
    let mut buffer = vec![0; RECV_LEN];
    let (mut bytes, mut half) = (0u64, None);
    loop {
        let taken = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(taken) => taken as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(Error::system("receiving")(error)),
        };
        bytes += taken;
        if bytes >= len / 2 {
            half.get_or_insert((Instant::now(), bytes));
        }
    }
    let rate_bytes_late = half.map_or(0.0, |(since, before)| (bytes - before) as f64 / since.elapsed().as_secs_f64());
    Ok(RawReport { bytes, wall: started.elapsed(), rate_bytes_late })
}

fn connect(peer: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&peer, IDLE).map_err(Error::system(format!("connecting to {peer}")))?;
    tune(&stream)?;
    Ok(stream)
}

fn accept(listener: &TcpListener) -> Result<TcpStream> {
    let (stream, _) = listener.accept().map_err(Error::system("accepting"))?;
    tune(&stream)?;
    Ok(stream)
}

fn tune(stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(IDLE)).map_err(Error::system("setting a timeout"))?;
    stream.set_write_timeout(Some(IDLE)).map_err(Error::system("setting a timeout"))?;
    let name = b"cubic";
    // SAFETY: `name` is readable for the length given. Best effort: a kernel without cubic keeps its default.
    unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    Ok(())
}

/// Closes for writing and waits for the other side to close, so that all was received.
fn linger(mut stream: TcpStream) -> Result<()> {
    stream.shutdown(std::net::Shutdown::Write).map_err(Error::system("closing"))?;
    stream.read(&mut [0; 1]).map_err(Error::system("waiting for the receiver")).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_moves_a_file_and_hashes_every_piece() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        crate::data::make_file(&from, 1_000_001, 5).unwrap();
        let mut all = Sha1::new();
        for piece in std::fs::read(&from).unwrap().chunks(65_536) {
            all.update(Sha1::digest(piece));
        }
        let hash = <[u8; 20]>::from(all.finalize());
        for access in [Access::Cached, Access::Direct] {
            // Not everywhere: then there is nothing to measure either.
            if access == Access::Direct && open_direct(File::options().read(true), &from).is_err() {
                continue;
            }
            let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).unwrap();
            let received = std::thread::scope(|scope| {
                scope.spawn(|| send_file(&listener, &from).unwrap());
                receive_file(address, &to, 65_536, access).unwrap()
            });
            assert_eq!(received, (1_000_001, hash));
            assert!(crate::data::same_file(&from, &to).unwrap());
        }
        assert_eq!(read_file(&to, Access::Cached).is_ok(), read_file(&to, Access::Direct).is_ok());
    }

    #[test]
    fn bare_tcp_counts_its_bytes() {
        let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let report = std::thread::scope(|scope| {
            scope.spawn(|| send_raw(&listener, 3_000_000).unwrap());
            receive_raw(address, 3_000_000).unwrap()
        });
        assert_eq!(report.bytes, 3_000_000);
    }
}
