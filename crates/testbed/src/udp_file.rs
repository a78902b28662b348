//! A file over UDP with nothing but the work that any verified and encrypted transfer has: read, hashed and sealed by one thread, opened, hashed
//! and written by another. The floor of bulk transfer.
//!
//! Nothing is lost, as in [`crate::udp`], so nothing is sent again, and packets come in order; both ends know the key.

use std::fs::File;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anabranch_hercules::tree::Hasher;
use anabranch_hercules::wire::seal::{DATA_HEAD_LEN, Kind, Opener, SECRET_LEN, Sealer, Secret};
use anabranch_udp::{Message, RecvBatch};

use crate::udp::{HEADERS_LEN, WINDOW_BYTES, await_packets, bind};
use crate::{Error, Result};

/// Bytes that are read, or written, as one: they stay in the processor's cache.
const BLOCK_BYTES: usize = 256 << 10;
/// Nothing for this long is an error.
const IDLE: Duration = Duration::from_secs(10);

fn secret() -> Secret {
    Secret::new(1, &[1; SECRET_LEN])
}

fn chunk_len(mtu: usize) -> usize {
    mtu - HEADERS_LEN - DATA_HEAD_LEN
}

/// Sends `file` to `peer` in packets of `mtu` bytes. Its root.
///
/// # Errors
/// When the file or the socket fails, or nobody answers.
pub fn send(file: &Path, peer: SocketAddr, mtu: usize) -> Result<[u8; 32]> {
    let content = File::open(file).map_err(Error::file(file))?;
    let len = content.metadata().map_err(Error::file(file))?.len();
    let socket = bind(0)?;
    let chunk = chunk_len(mtu);
    let packet = chunk + DATA_HEAD_LEN;
    let per_burst = (anabranch_udp::DATAGRAM_LEN_MAX / packet).min(socket.segments_max()).max(1);
    let block = (BLOCK_BYTES / (chunk * per_burst)).max(1) * chunk * per_burst;
    let (mut bytes, mut burst) = (vec![0; block], vec![0; per_burst * packet]);
    let (mut hasher, mut sealer) = (Hasher::new(len), Sealer::new(&secret(), Kind::Data, 0));
    let mut batch = RecvBatch::new(4);
    let (mut number, mut offset, mut arrived, mut heard) = (0, 0u64, 0, Instant::now());
    while offset < len {
        let bytes = &mut bytes[..(len - offset).min(block as u64) as usize];
        content.read_exact_at(bytes, offset).map_err(Error::file(file))?;
        hasher.update(bytes);
        for part in bytes.chunks(chunk * per_burst) {
            let mut filled = 0;
            for (text, place) in part.chunks(chunk).zip(burst.chunks_mut(packet)) {
                let (head, sealed) = place.split_first_chunk_mut().expect("a packet is longer than its head");
                sealer.seal_chunk_into(number, number, text, head, &mut sealed[..text.len()]);
                (number, filled) = (number + 1, filled + DATA_HEAD_LEN + text.len());
            }
            let parts = [IoSlice::new(&burst[..filled])];
            while (offset + part.len() as u64).saturating_sub(arrived) > WINDOW_BYTES
                || !sent(&socket.send(&[Message::burst(peer, &parts, packet)]))?
            {
                await_packets(&socket, 1);
                answers(&socket, &mut batch, &mut arrived, &mut heard)?;
            }
            answers(&socket, &mut batch, &mut arrived, &mut heard)?;
            offset += part.len() as u64;
        }
    }
    while arrived < len {
        await_packets(&socket, 1);
        answers(&socket, &mut batch, &mut arrived, &mut heard)?;
    }
    hasher.root().ok_or_else(|| Error::Nonsense { name: file.display().to_string(), what: "no root".into() })
}

fn sent(done: &io::Result<usize>) -> Result<bool> {
    match done {
        Ok(count) => Ok(*count > 0),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(Error::system("send")(io::Error::from(error.kind()))),
    }
}

fn answers(
    socket: &anabranch_udp::Socket,
    batch: &mut RecvBatch,
    arrived: &mut u64,
    heard: &mut Instant,
) -> Result<()> {
    while socket.recv(batch).is_ok() {
        for answer in batch.iter().flat_map(|received| received.segments()) {
            *arrived = (*arrived).max(answer.try_into().map_or(0, u64::from_be_bytes));
            *heard = Instant::now();
        }
    }
    if heard.elapsed() > IDLE {
        return Err(Error::Nonsense { name: "the receiver".into(), what: "no answer".into() });
    }
    Ok(())
}

/// Receives `len` bytes on `port` into `file`; `ready` hears once it listens. The root of what came.
///
/// # Errors
/// When the file or the socket fails, nothing comes, or something is lost.
pub fn receive(file: &Path, len: u64, port: u16, ready: impl FnOnce()) -> Result<[u8; 32]> {
    let content = File::create(file).map_err(Error::file(file))?;
    let socket = bind(port)?;
    ready();
    let (mut hasher, mut opener) = (Hasher::new(len), Opener::new(&secret(), Kind::Data, 0));
    let mut take = |bytes: &[u8], offset| {
        hasher.update(bytes);
        content.write_all_at(bytes, offset).map_err(Error::file(file))
    };
    let mut block = vec![0; BLOCK_BYTES];
    let (mut filled, mut written, mut last) = (0, 0u64, Instant::now());
    let mut batch = RecvBatch::new(16);
    while written < len {
        match socket.recv(&mut batch) {
            Ok(_) => {
                for packet in batch.iter().flat_map(|received| received.segments()) {
                    let Some((head, sealed)) = packet.split_first_chunk::<DATA_HEAD_LEN>() else { continue };
                    if filled + sealed.len() > block.len() {
                        take(&block[..filled], written)?;
                        (written, filled) = (written + filled as u64, 0);
                    }
                    opener
                        .open_into(head, sealed, &mut block[filled..filled + sealed.len()])
                        .map_err(|dropped| Error::Nonsense { name: "a packet".into(), what: format!("{dropped:?}") })?;
                    filled += sealed.len();
                }
                last = Instant::now();
                if written + filled as u64 >= len {
                    take(&block[..filled], written)?;
                    (written, filled) = (written + filled as u64, 0);
                }
                if let Some(first) = batch.get(0) {
                    let bytes = (written + filled as u64).to_be_bytes();
                    socket.send(&[Message::new(first.from, &[IoSlice::new(&bytes)])]).ok();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => await_packets(&socket, 100),
            Err(error) => return Err(Error::system("receive")(error)),
        }
        if last.elapsed() > IDLE {
            return Err(Error::Nonsense { name: "the sender".into(), what: "nothing came".into() });
        }
    }
    hasher.root().ok_or_else(|| Error::Nonsense { name: file.display().to_string(), what: "no root".into() })
}
