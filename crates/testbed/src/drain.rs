//! Many leechers in one process that fetch and forget: load for a seeder without the cost of real clients.
//!
//! Each has an address of its own in 127.0.0.0/8, has nothing, is interested, and keeps a pipeline of requests full
//! while it is unchoked. Nothing is checked or kept.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// x
const LEECHERS_MAX: u32 = 1000;
/// Blocks asked for ahead.
const PIPELINE_LEN: u32 = 64;
/// Bytes a block.
const BLOCK_LEN: u32 = 16 * 1024;
/// Longest message accepted: a block, or the bitfield of any bench content.
const MESSAGE_LEN_MAX: usize = 1 << 20;
/// Stack of a leecher's thread.
const STACK_LEN: usize = 128 * 1024;
/// How long a read may wait: choked leechers hear nothing for long.
const PATIENCE: Duration = Duration::from_secs(120);

// BEP 3, message ids.
const CHOKE: u8 = 0;
const UNCHOKE: u8 = 1;
const INTERESTED: u8 = 2;
const REQUEST: u8 = 6;
const PIECE: u8 = 7;

/// What is to be fetched.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Who shares it.
    pub seeder: SocketAddrV4,
    /// Its v1 info-hash.
    pub info_hash: [u8; 20],
    /// Whole pieces only: the last, shorter one is left alone.
    pub pieces: u32,
    /// Bytes a piece, a multiple of a block.
    pub piece_length: u32,
}

/// What they got.
#[derive(Clone, Copy, Debug)]
pub struct Drained {
    /// Leechers that got through the handshake and were still connected at the end.
    pub connected: u64,
    /// Of these, leechers that got at least a block in the time that counts.
    pub served: u64,
    /// Payload bytes a second, all together, in the time that counts.
    pub rate_bytes: f64,
}

/// Runs `count` leechers: `warm_up` for all to connect and get going, then `measured`.
///
/// # Errors
/// When `count` is too large or threads cannot be had.
pub fn drain(target: Target, count: u32, warm_up: Duration, measured: Duration) -> Result<Drained> {
    if count > LEECHERS_MAX {
        return Err(Error::Nonsense {
            name: "drain".into(),
            what: format!("{count} leechers, {LEECHERS_MAX} at most"),
        });
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut leechers = Vec::new();
    for number in 0..count {
        let (stop, bytes, connected) = (stop.clone(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::Builder::new().stack_size(STACK_LEN).spawn({
            let (bytes, connected) = (bytes.clone(), connected.clone());
            move || {
                fetch(target, number, &stop, &bytes, &connected).ok();
                connected.store(false, Ordering::Relaxed);
            }
        });
        leechers.push((thread.map_err(Error::system("starting a thread"))?, bytes, connected));
    }
    std::thread::sleep(warm_up);
    let (started, before) = (Instant::now(), counts(&leechers));
    std::thread::sleep(measured);
    let (lasted, after) = (started.elapsed(), counts(&leechers));
    let connected = leechers.iter().filter(|leecher| leecher.2.load(Ordering::Relaxed)).count() as u64;
    stop.store(true, Ordering::Relaxed);
    let gained: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    let served = gained.iter().filter(|bytes| **bytes > 0).count() as u64;
    Ok(Drained { connected, served, rate_bytes: gained.iter().sum::<u64>() as f64 / lasted.as_secs_f64() })
}

type Leecher = (std::thread::JoinHandle<()>, Arc<AtomicU64>, Arc<AtomicBool>);

fn counts(leechers: &[Leecher]) -> Vec<u64> {
    leechers.iter().map(|leecher| leecher.1.load(Ordering::Relaxed)).collect()
}

fn fetch(target: Target, number: u32, stop: &AtomicBool, bytes: &AtomicU64, connected: &AtomicBool) -> Result<()> {
    let stream = connect_from([127, 1, (number / 250) as u8, (number % 250 + 1) as u8], target.seeder)?;
    let failed = || Error::system("fetching");
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed())?;
    // BEP 3, "handshake", no extensions.
    let mut hello = b"\x13BitTorrent protocol\0\0\0\0\0\0\0\0".to_vec();
    hello.extend_from_slice(&target.info_hash);
    hello.extend_from_slice(format!("-DR0001-{number:012}").as_bytes());
    hello.extend_from_slice(&[0, 0, 0, 1, INTERESTED]);
    (&stream).write_all(&hello).map_err(failed())?;
    let mut reader = BufReader::with_capacity(256 * 1024, &stream);
    let mut buffer = vec![0; MESSAGE_LEN_MAX];
    reader.read_exact(&mut buffer[..68]).map_err(failed())?;
    connected.store(true, Ordering::Relaxed);
    // Each starts elsewhere, as rarest-first would have it.
    let blocks = target.piece_length / BLOCK_LEN;
    let (mut next, total) = (number.wrapping_mul(7919), target.pieces * blocks);
    let (mut unchoked, mut asked) = (false, 0);
    while !stop.load(Ordering::Relaxed) {
        if unchoked && asked <= PIPELINE_LEN / 2 {
            let mut batch = Vec::with_capacity(17 * PIPELINE_LEN as usize);
            while asked < PIPELINE_LEN {
                let block = next % total;
                for word in [13, block / blocks, block % blocks * BLOCK_LEN, BLOCK_LEN] {
                    batch.extend_from_slice(&u32::to_be_bytes(word));
                    if word == 13 && batch.len() % 17 == 4 {
                        batch.push(REQUEST);
                    }
                }
                (next, asked) = (next.wrapping_add(1), asked + 1);
            }
            (&stream).write_all(&batch).map_err(failed())?;
        }
        reader.read_exact(&mut buffer[..4]).map_err(failed())?;
        let len = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]) as usize;
        if len > MESSAGE_LEN_MAX {
            return Err(Error::Nonsense { name: "the seeder".into(), what: format!("a message of {len} bytes") });
        }
        reader.read_exact(&mut buffer[..len]).map_err(failed())?;
        match (len > 0).then(|| buffer[0]) {
            Some(UNCHOKE) => unchoked = true,
            // What was asked for is forgotten (BEP 3, "choke").
            Some(CHOKE) => (unchoked, asked) = (false, 0),
            Some(PIECE) => {
                asked = u32::saturating_sub(asked, 1);
                bytes.fetch_add(len as u64 - 9, Ordering::Relaxed);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Connects from an address of our choice, which the standard library does not offer.
fn connect_from(from: [u8; 4], to: SocketAddrV4) -> Result<TcpStream> {
    let name = |address: [u8; 4], port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address) },
        sin_zero: [0; 8],
    };
    let (near, far) = (name(from, 0), name(to.ip().octets(), to.port()));
    let len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: plain values; the descriptor is fresh and owned from the next line on.
    let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(Error::last_os("socket"));
    }
    // SAFETY: as above.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: both names live across the calls and have the length given.
    let failed = unsafe {
        libc::bind(fd.as_raw_fd(), (&raw const near).cast(), len) != 0
            || libc::connect(fd.as_raw_fd(), (&raw const far).cast(), len) != 0
    };
    if failed { Err(Error::last_os(format!("connecting to {to}"))) } else { Ok(fd.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_is_kept_full_and_payload_is_counted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(seeder) = listener.local_addr().unwrap() else { panic!("IPv4") };
        std::thread::spawn(move || {
            for stream in listener.incoming().take(2).map_while(std::result::Result::ok) {
                std::thread::spawn(move || -> std::io::Result<()> {
                    let mut stream = stream;
                    let mut hello = [0; 68 + 5];
                    stream.read_exact(&mut hello)?;
                    stream.write_all(&hello[..68])?;
                    stream.write_all(&[0, 0, 0, 1, UNCHOKE])?;
                    loop {
                        let mut request = [0; 17];
                        stream.read_exact(&mut request)?;
                        assert_eq!(request[..5], [0, 0, 0, 13, REQUEST]);
                        assert_eq!(request[13..], BLOCK_LEN.to_be_bytes());
                        let mut piece = (BLOCK_LEN + 9).to_be_bytes().to_vec();
                        piece.push(PIECE);
                        piece.extend_from_slice(&request[5..13]);
                        piece.resize(13 + BLOCK_LEN as usize, 0);
                        stream.write_all(&piece)?;
                    }
                });
            }
        });
        let target = Target { seeder, info_hash: [1; 20], pieces: 3, piece_length: 2 * BLOCK_LEN };
        let drained = drain(target, 2, Duration::from_millis(300), Duration::from_millis(300)).unwrap();
        assert_eq!((drained.connected, drained.served), (2, 2));
        assert!(drained.rate_bytes > 0.0);
        assert!(drain(target, LEECHERS_MAX + 1, Duration::ZERO, Duration::ZERO).is_err());
    }
}
