//! An honest peer that has everything and looks at its requests only now and then: every so often it answers all that it has been
//! asked, and is silent in between. So do clients that share their upload out in slices of time.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use crate::acceptor::Acceptor;
use crate::{Error, Result};

/// Connections in its life: who fetches dials once, or a few times.
const CONNECTIONS_MAX: usize = 16;
/// Longest message it reads.
const MESSAGE_LEN_MAX: usize = 1 << 20;

// BEP 3, message ids.
const UNCHOKE: u8 = 1;
const BITFIELD: u8 = 5;
const REQUEST: u8 = 6;
const PIECE: u8 = 7;

/// A running peer; it stops when dropped.
pub struct Pulses {
    /// Where it listens.
    pub address: SocketAddr,
    answered: Arc<AtomicU32>,
    wrong_every: Arc<AtomicU32>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    _acceptor: Acceptor,
}

/// What is shared, and how.
struct Content {
    file: std::fs::File,
    info_hash: [u8; 20],
    pieces: u32,
    piece_length: u64,
    period: Duration,
    answered: Arc<AtomicU32>,
    /// One block of so many is wrong; 0: none.
    wrong_every: Arc<AtomicU32>,
    blocks: AtomicU32,
}

impl Pulses {
    /// Shares the file at `path`, which is the whole content, and answers every `period`.
    ///
    /// # Errors
    /// When the file cannot be opened or no port can be had.
    pub fn share(path: &Path, info_hash: [u8; 20], pieces: u32, piece_length: u32, period: Duration) -> Result<Self> {
        let file = std::fs::File::open(path).map_err(Error::file(path))?;
        let (answered, open) = (Arc::<AtomicU32>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let wrong_every = Arc::<AtomicU32>::default();
        let content = Content {
            wrong_every: wrong_every.clone(),
            blocks: AtomicU32::new(0),
            file,
            info_hash,
            pieces,
            piece_length: u64::from(piece_length),
            period,
            answered: answered.clone(),
        };
        let (content, opened) = (Arc::new(content), open.clone());
        let acceptor = Acceptor::start(CONNECTIONS_MAX, move |stream| {
            if let Ok(copy) = stream.try_clone() {
                opened.lock().unwrap_or_else(PoisonError::into_inner).push(copy);
            }
            let content = content.clone();
            std::thread::spawn(move || serve(stream, &content).ok());
        })?;
        Ok(Self { address: acceptor.address, answered, wrong_every, open, _acceptor: acceptor })
    }

    /// The same, but one block of `every` is wrong.
    #[must_use]
    pub fn lying(self, every: u32) -> Self {
        self.wrong_every.store(every, Ordering::Relaxed);
        self
    }

    /// Pulses in which it had something to answer.
    pub fn answered(&self) -> u32 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for Pulses {
    fn drop(&mut self) {
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

fn serve(mut stream: TcpStream, content: &Content) -> std::io::Result<()> {
    let mut hello = [0; 68];
    stream.read_exact(&mut hello)?;
    let mut greeting = b"\x13BitTorrent protocol\0\0\0\0\0\0\0\0".to_vec();
    greeting.extend_from_slice(&content.info_hash);
    greeting.extend_from_slice(b"-XX0000-pulsing-peer");
    let mut bits = vec![0xff; content.pieces.div_ceil(8) as usize];
    if let (Some(last), spare @ 1..) = (bits.last_mut(), content.pieces.wrapping_neg() % 8) {
        *last <<= spare;
    }
    greeting.extend_from_slice(&message(BITFIELD, &[&bits]));
    greeting.extend_from_slice(&message(UNCHOKE, &[]));
    stream.write_all(&greeting)?;
    let (tell, told) = mpsc::channel();
    let mut requests = stream.try_clone()?;
    std::thread::spawn(move || {
        while let Ok(Some(request)) = next_request(&mut requests) {
            if tell.send(request).is_err() {
                break;
            }
        }
    });
    loop {
        std::thread::sleep(content.period);
        let mut answers = Vec::new();
        loop {
            let [piece, begin, len] = match told.try_recv() {
                Ok(request) => request,
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            };
            let mut block = vec![0; len as usize];
            content.file.read_exact_at(&mut block, u64::from(piece) * content.piece_length + u64::from(begin))?;
            let number = content.blocks.fetch_add(1, Ordering::Relaxed) + 1;
            let every = content.wrong_every.load(Ordering::Relaxed);
            if every > 0 && number.is_multiple_of(every) {
                block.iter_mut().for_each(|byte| *byte = !*byte);
            }
            answers.extend(message(PIECE, &[&piece.to_be_bytes(), &begin.to_be_bytes(), &block]));
        }
        if !answers.is_empty() {
            content.answered.fetch_add(1, Ordering::Relaxed);
            stream.write_all(&answers)?;
        }
    }
}

/// The next request; other messages are passed over. `None` for a message that no honest peer sends.
fn next_request(stream: &mut TcpStream) -> std::io::Result<Option<[u32; 3]>> {
    loop {
        let mut prefix = [0; 4];
        stream.read_exact(&mut prefix)?;
        let len = u32::from_be_bytes(prefix) as usize;
        if len > MESSAGE_LEN_MAX {
            return Ok(None);
        }
        let mut body = vec![0; len];
        stream.read_exact(&mut body)?;
        if let [REQUEST, fields @ ..] = &body[..]
            && let Ok(fields) = <[u8; 12]>::try_from(fields)
        {
            let field = |at: usize| u32::from_be_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
            let request = [field(0), field(4), field(8)];
            return Ok(Some(request).filter(|[.., len]| *len as usize <= MESSAGE_LEN_MAX));
        }
    }
}

fn message(id: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut bytes = (body.len() as u32 + 1).to_be_bytes().to_vec();
    bytes.push(id);
    bytes.extend_from_slice(&body);
    bytes
}
