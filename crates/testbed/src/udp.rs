//! UDP alone between two processes, in bursts (GSO) and coalesced (GRO): what a bulk transfer over it could reach at most.
//!
//! The receiver answers each batch with how many bytes it has, and the sender keeps less under way than the receiver's buffer takes: so nothing is lost,
//! and nothing is done to the bytes.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use anabranch_udp::{Message, Options, RecvBatch, Socket};

use crate::{Error, Result};

/// Bytes under way at most.
pub(crate) const WINDOW_BYTES: u64 = 1 << 20;
/// A full window of which nothing comes in this time was lost.
const STALL: Duration = Duration::from_millis(50);
/// No packet for this long ends the receiver.
const IDLE: Duration = Duration::from_secs(10);
/// IPv4 and UDP.
pub(crate) const HEADERS_LEN: usize = 28;
/// Bursts given to the system at once.
const BURSTS: usize = 4;

/// Sends to `peer` for `time`, in packets of `mtu` bytes. Answers how many bytes arrived, and in which time.
///
/// # Errors
/// When a socket fails, or nobody answers.
pub fn send(peer: SocketAddr, mtu: usize, time: Duration) -> Result<(u64, Duration)> {
    let socket = bind(0)?;
    let len = mtu - HEADERS_LEN;
    let burst = vec![7; (anabranch_udp::DATAGRAM_LEN_MAX / len).min(socket.segments_max()).max(1) * len];
    let parts = [IoSlice::new(&burst)];
    let messages: Vec<_> = (0..BURSTS).map(|_| Message::burst(peer, &parts, len)).collect();
    let mut batch = RecvBatch::new(4);
    // `lost` is what was given up.
    let (start, mut sent, mut arrived, mut lost, mut moved) = (Instant::now(), 0, 0, 0, Instant::now());
    while start.elapsed() < time {
        let room = (WINDOW_BYTES + arrived + lost).saturating_sub(sent) as usize / burst.len();
        if room > 0 {
            match socket.send(&messages[..room.min(BURSTS)]) {
                Ok(count) => sent += (count * burst.len()) as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => await_packets(&socket, 1),
                Err(error) => return Err(Error::system("send")(error)),
            }
        } else {
            await_packets(&socket, 10);
        }
        while socket.recv(&mut batch).is_ok() {
            for answer in batch.iter().flat_map(|received| received.segments()) {
                let bytes = answer.try_into().map_or(0, u64::from_be_bytes);
                if bytes > arrived {
                    (arrived, moved) = (bytes, Instant::now());
                }
            }
        }
        if moved.elapsed() > STALL {
            (lost, moved) = (sent - arrived, Instant::now());
        }
    }
    if arrived == 0 {
        return Err(Error::Nonsense { name: peer.to_string(), what: "no answer".into() });
    }
    Ok((arrived, start.elapsed()))
}

/// Receives on `port` until nothing comes any more, or it is ended; `ready` hears once it listens.
///
/// # Errors
/// When the socket fails.
pub fn receive(port: u16, ready: impl FnOnce()) -> Result<u64> {
    let socket = bind(port)?;
    ready();
    let (mut batch, mut arrived, mut last) = (RecvBatch::new(16), 0u64, Instant::now());
    while last.elapsed() < IDLE {
        match socket.recv(&mut batch) {
            Ok(_) => {
                arrived +=
                    batch.iter().flat_map(|received| received.segments()).map(|one| one.len() as u64).sum::<u64>();
                last = Instant::now();
                if let Some(first) = batch.get(0) {
                    let (bytes, to) = (arrived.to_be_bytes(), first.from);
                    // An answer that is lost stands in the next.
                    socket.send(&[Message::new(to, &[IoSlice::new(&bytes)])]).ok();
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => await_packets(&socket, 100),
            Err(error) => return Err(Error::system("receive")(error)),
        }
    }
    Ok(arrived)
}

pub(crate) fn bind(port: u16) -> Result<Socket> {
    Socket::bind((Ipv4Addr::UNSPECIFIED, port).into(), &Options::default()).map_err(Error::system("bind"))
}

pub(crate) fn await_packets(socket: &Socket, limit_ms: i32) {
    let mut poll = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives over the call.
    unsafe { libc::poll(&mut poll, 1, limit_ms) };
}
