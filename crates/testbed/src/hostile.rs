//! Peers that mean harm or are broken: they speak just enough of BEP 3 to get through the handshake.
//!
//! Each runs on threads of its own and stops when dropped. They either wait for a victim to connect or connect to one.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::acceptor::Acceptor;
use crate::tricks::Trick;
use crate::{Error, Result};

/// Connections one hostile peer handles in its life: a victim may come back a few times.
const CONNECTIONS_MAX: usize = 64;
/// Longest message it cares to read: a request or a bitfield of the small contents in tests.
const MESSAGE_LEN_MAX: usize = 1 << 20;
/// A socket call that takes longer looks whether to stop.
const TICK: Duration = Duration::from_millis(200);
/// What a flooder asks for, again and again, at most.
const FLOOD_REQUESTS_MAX: u64 = 20_000_000;
/// What one with something to say sends at most.
const SAID_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a public key of message stream encryption, and of noise that is sent at once.
const KEY_LEN: usize = 96;
const NOISE_LEN: usize = 16 * 1024;
/// What is sent behind an absurd length, at most.
const GIANT_BYTES_MAX: u64 = 256 << 20;

// BEP 3, message ids.
const UNCHOKE: u8 = 1;
const INTERESTED: u8 = 2;
const BITFIELD: u8 = 5;
const REQUEST: u8 = 6;
const PIECE: u8 = 7;
// BEP 52.
const HASH_REQUEST: u8 = 21;
/// Blocks of a piece, as pieces are in tests.
const LEAVES: u32 = crate::fixture::PIECE_LENGTH / 16_384;
/// Blocks that a deaf peer asks for, and thousands of pieces of metadata: more than the system keeps for it, and no flood.
const DEAF_REQUESTS: usize = 200;
const DEAF_BATCHES: usize = 4;
/// What the system takes for it.
const DEAF_BUFFER_LEN: libc::c_int = 16 * 1024;
/// Between two rounds of questions.
const SELDOM: Duration = Duration::from_millis(100);

/// What is wrong with the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malice {
    /// Has everything, unchokes, and answers every request with wrong bytes.
    Lies,
    /// Has everything, unchokes, and never answers a request.
    Mute,
    /// Accepts the connection and never says a word.
    Silent,
    /// Sends what could be a key of message stream encryption, has one made for it, and never says another word.
    Key,
    /// The same, then noise without end.
    Noise,
    /// Asks for the first block without end, reads nothing.
    Floods,
    /// Announces a message of 4 GiB less a byte and starts to send it.
    Giant,
    /// Sends its handshake byte by byte, ever so slowly.
    Drips,
    /// Says something without end that is no block: see [`Trick`].
    Says(Trick),
    /// Asks for metadata and blocks, some MiB of both, and reads nothing.
    Deaf,
    /// Has everything and the metadata too, as it says, and answers nothing.
    Coy,
    /// Asks, though choked, for the hashes of the blocks of one piece after the other of the file with this root (BEP 52).
    AsksHashes([u8; 32]),
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    connections: AtomicU64,
    sent_bytes: AtomicU64,
    ended: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

/// A running hostile peer.
pub struct Hostile {
    /// Where it listens, or the address it connects from.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _acceptor: Option<Acceptor>,
}

impl Hostile {
    /// Waits on a free port of the loopback for victims. `pieces` is how many it claims to have.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn listen(malice: Malice, info_hash: [u8; 20], pieces: u32) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let acceptor = Acceptor::start(CONNECTIONS_MAX, {
            let shared = shared.clone();
            move |stream| serve(stream, malice, info_hash, pieces, shared.clone())
        })?;
        Ok(Self { address: acceptor.address, shared, _acceptor: Some(acceptor) })
    }

    /// Connects to `victim`.
    ///
    /// # Errors
    /// When it cannot.
    pub fn dial(malice: Malice, victim: SocketAddr, info_hash: [u8; 20], pieces: u32) -> Result<Self> {
        let stream = TcpStream::connect(victim).map_err(Error::system(format!("connecting to {victim}")))?;
        let address = stream.local_addr().map_err(Error::system("local address"))?;
        let shared = Arc::new(Shared::default());
        serve(stream, malice, info_hash, pieces, shared.clone());
        Ok(Self { address, shared, _acceptor: None })
    }

    /// Connections that came about.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Connections that are over.
    pub fn ended(&self) -> u64 {
        self.shared.ended.load(Ordering::Relaxed)
    }

    /// Bytes sent to victims.
    pub fn sent_bytes(&self) -> u64 {
        self.shared.sent_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for stream in self.shared.open.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

fn serve(stream: TcpStream, malice: Malice, info_hash: [u8; 20], pieces: u32, shared: Arc<Shared>) {
    if let Ok(copy) = stream.try_clone() {
        shared.open.lock().unwrap_or_else(PoisonError::into_inner).push(copy);
    }
    shared.connections.fetch_add(1, Ordering::Relaxed);
    std::thread::spawn(move || {
        harass(stream, malice, info_hash, pieces, &shared).ok();
        shared.ended.fetch_add(1, Ordering::Relaxed);
    });
}

fn harass(stream: TcpStream, malice: Malice, info_hash: [u8; 20], pieces: u32, shared: &Shared) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TICK))?;
    stream.set_write_timeout(Some(TICK))?;
    let mut peer = Peer { stream, shared };
    if malice == Malice::Silent {
        return peer.read_exact(&mut vec![0; MESSAGE_LEN_MAX]);
    }
    if matches!(malice, Malice::Key | Malice::Noise) {
        let mut noise = vec![0; NOISE_LEN];
        fastrand::fill(&mut noise);
        peer.send(&noise[..KEY_LEN])?;
        while malice == Malice::Noise && peer.shared.sent_bytes.load(Ordering::Relaxed) < SAID_BYTES_MAX {
            peer.send(&noise)?;
        }
        return peer.read_exact(&mut vec![0; MESSAGE_LEN_MAX]);
    }
    // BEP 3, "handshake"; the id is one no client uses, and another one every time: ids are free.
    static IDS: AtomicU64 = AtomicU64::new(0);
    let mut handshake = b"\x13BitTorrent protocol".to_vec();
    handshake.extend_from_slice(&match malice {
        Malice::Says(trick) => trick.reserved(),
        Malice::Coy | Malice::Deaf | Malice::AsksHashes(_) => Trick::Hashes.reserved(),
        _ => [0; 8],
    });
    handshake.extend_from_slice(&info_hash);
    handshake.extend_from_slice(format!("-XX0000-{:012}", IDS.fetch_add(1, Ordering::Relaxed)).as_bytes());
    if malice == Malice::Drips {
        for byte in handshake {
            peer.send(&[byte])?;
            std::thread::sleep(TICK);
        }
        return peer.read_exact(&mut vec![0; MESSAGE_LEN_MAX]);
    }
    peer.send(&handshake)?;
    peer.read_exact(&mut [0; 68])?;
    match malice {
        Malice::Silent | Malice::Key | Malice::Noise | Malice::Drips => Ok(()),
        Malice::Coy => {
            peer.send(&Trick::Hashes.opening(pieces))?;
            peer.read_exact(&mut vec![0; MESSAGE_LEN_MAX])
        }
        Malice::Deaf => {
            let len = DEAF_BUFFER_LEN;
            let size = size_of_val(&len) as libc::socklen_t;
            // SAFETY: an open socket, and a value of the size given. Best effort: with a larger buffer it takes longer to fill.
            unsafe {
                let value = (&raw const len).cast();
                libc::setsockopt(peer.stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, value, size);
            }
            peer.send(&Trick::Hashes.opening(pieces))?;
            peer.send(&Trick::Metadata.batch(pieces).repeat(DEAF_BATCHES))?;
            let mut body = [0; 12];
            body[8..].copy_from_slice(&16_384u32.to_be_bytes());
            peer.send(&message(REQUEST, &body).repeat(DEAF_REQUESTS))?;
            while !peer.shared.stop.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
            }
            Ok(())
        }
        Malice::AsksHashes(root) => {
            peer.drain();
            while peer.shared.sent_bytes.load(Ordering::Relaxed) < SAID_BYTES_MAX {
                let ask = |piece: u32| {
                    let numbers = [0, piece * LEAVES, LEAVES, 0].map(u32::to_be_bytes).concat();
                    message(HASH_REQUEST, &[&root[..], &numbers].concat())
                };
                peer.send(&(0..pieces).flat_map(ask).collect::<Vec<u8>>())?;
                std::thread::sleep(SELDOM);
            }
            Ok(())
        }
        Malice::Says(trick) => {
            peer.stream.set_nonblocking(false)?;
            peer.drain();
            peer.send(&trick.opening(pieces))?;
            let batch = trick.batch(pieces);
            while peer.shared.sent_bytes.load(Ordering::Relaxed) < SAID_BYTES_MAX {
                peer.send(&batch)?;
                std::thread::sleep(trick.pause());
            }
            Ok(())
        }
        Malice::Lies | Malice::Mute => {
            peer.send(&message(BITFIELD, &bitfield(pieces)))?;
            peer.send(&message(UNCHOKE, &[]))?;
            peer.answer(malice == Malice::Lies)
        }
        Malice::Floods => {
            peer.send(&message(INTERESTED, &[]))?;
            let mut body = [0; 12];
            body[8..].copy_from_slice(&16_384u32.to_be_bytes());
            let batch = message(REQUEST, &body).repeat(1000);
            for _ in 0..FLOOD_REQUESTS_MAX / 1000 {
                peer.send(&batch)?;
            }
            Ok(())
        }
        Malice::Giant => {
            peer.send(&u32::MAX.to_be_bytes())?;
            let junk = [PIECE; 16 * 1024];
            for _ in 0..GIANT_BYTES_MAX / junk.len() as u64 {
                peer.send(&junk)?;
            }
            Ok(())
        }
    }
}

struct Peer<'a> {
    stream: TcpStream,
    shared: &'a Shared,
}

impl Peer<'_> {
    /// Reads and forgets what comes, on a thread of its own, as long as the connection lasts.
    fn drain(&self) {
        let Ok(mut copy) = self.stream.try_clone() else { return };
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                match copy.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                    Err(_) => return,
                }
            }
        });
    }

    /// Reads messages for ever; answers requests with wrong bytes, or not at all.
    fn answer(&mut self, lies: bool) -> std::io::Result<()> {
        loop {
            let mut prefix = [0; 4];
            self.read_exact(&mut prefix)?;
            let len = u32::from_be_bytes(prefix) as usize;
            if len > MESSAGE_LEN_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            let mut body = vec![0; len];
            self.read_exact(&mut body)?;
            if lies && body.len() == 13 && body[0] == REQUEST {
                let wanted = u32::from_be_bytes([body[9], body[10], body[11], body[12]]) as usize;
                let mut block = body[1..9].to_vec();
                block.resize(8 + wanted.min(MESSAGE_LEN_MAX), 0xbd);
                self.send(&message(PIECE, &block))?;
            }
        }
    }

    fn read_exact(&mut self, mut buffer: &mut [u8]) -> std::io::Result<()> {
        while !buffer.is_empty() {
            match self.stream.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => buffer = &mut buffer[len..],
                Err(error) => self.again(error)?,
            }
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(len) => {
                    bytes = &bytes[len..];
                    self.shared.sent_bytes.fetch_add(len as u64, Ordering::Relaxed);
                }
                Err(error) => self.again(error)?,
            }
        }
        Ok(())
    }

    /// A tick passed: goes on, unless told to stop or the error is a real one.
    fn again(&self, error: std::io::Error) -> std::io::Result<()> {
        let tick = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted);
        if tick && !self.shared.stop.load(Ordering::Relaxed) { Ok(()) } else { Err(error) }
    }
}

pub(crate) fn message(id: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32 + 1).to_be_bytes().to_vec();
    bytes.push(id);
    bytes.extend_from_slice(body);
    bytes
}

/// All of `pieces` set, spare bits clear.
pub(crate) fn bitfield(pieces: u32) -> Vec<u8> {
    let mut bytes = vec![0xff; pieces.div_ceil(8) as usize];
    if let (Some(last), spare @ 1..) = (bytes.last_mut(), pieces.wrapping_neg() % 8) {
        *last <<= spare;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meet(malice: Malice) -> (Hostile, TcpStream) {
        let hostile = Hostile::listen(malice, [7; 20], 9).unwrap();
        let mut stream = TcpStream::connect(hostile.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&[1; 68]).unwrap();
        (hostile, stream)
    }

    fn read(stream: &mut TcpStream, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_liar_looks_like_a_seed_and_answers_wrong() {
        let (hostile, mut stream) = meet(Malice::Lies);
        let hello = read(&mut stream, 68);
        assert_eq!(hello[28..48], [7; 20]);
        assert_eq!(read(&mut stream, 7), [0, 0, 0, 3, BITFIELD, 0xff, 0x80]);
        assert_eq!(read(&mut stream, 5), [0, 0, 0, 1, UNCHOKE]);
        stream.write_all(&message(REQUEST, &[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3])).unwrap();
        assert_eq!(read(&mut stream, 16), [0, 0, 0, 12, PIECE, 0, 0, 0, 1, 0, 0, 0, 2, 0xbd, 0xbd, 0xbd]);
        assert_eq!(hostile.connections(), 1);
    }

    #[test]
    fn a_giant_announces_four_gibibytes_and_a_flooder_floods() {
        let (_giant, mut stream) = meet(Malice::Giant);
        assert_eq!(read(&mut stream, 72)[68..], [0xff; 4]);
        let (flooder, mut stream) = meet(Malice::Floods);
        read(&mut stream, 68 + 5 + 17 * 5000);
        // It counts after it has sent.
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while flooder.sent_bytes() <= 17 * 5000 && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(flooder.sent_bytes() > 17 * 5000);
    }
}
