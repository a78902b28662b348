//! Bare QUIC streams, as the transport makes them: the yardstick for what they cost.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_transport::{Identity, QuicEndpoint, QuicOptions, QuicStream, StreamStats};

use crate::{Error, Result};

/// Bytes handed over or taken at once.
const CHUNK: usize = 256 * 1024;

/// What a receiver saw.
#[derive(Debug)]
pub struct Report {
    /// Bytes that came.
    pub bytes: u64,
    /// From the first byte to the last.
    pub wall: Duration,
    /// Of the connection, at its end.
    pub stats: StreamStats,
}

/// Listens on `address` for one caller and sends it `len` bytes. `listening` is told the address.
pub fn send(address: SocketAddr, options: &QuicOptions, len: u64, listening: impl FnOnce(SocketAddr)) -> Result<()> {
    runtime()?.block_on(async {
        let endpoint = endpoint(address, options)?;
        listening(endpoint.local().socket_addr());
        let Some(stream) = endpoint.accept().await else { return Ok(()) };
        let block = vec![0x5a; CHUNK];
        let mut left = len;
        while left > 0 {
            poll_fn(|cx| stream.poll_send_ready(cx)).await.map_err(Error::system("sending"))?;
            let part = &block[..CHUNK.min(left as usize)];
            match stream.try_send(&[IoSlice::new(part)], false) {
                Ok(sent) => left -= sent as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Error::system("sending")(error)),
            }
        }
        drop(stream);
        endpoint.close().await;
        Ok(())
    })
}

/// Calls `peer` and receives until the stream ends.
pub fn receive(peer: SocketAddr, options: &QuicOptions) -> Result<Report> {
    runtime()?.block_on(async {
        let local = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let endpoint = endpoint(local.parse().map_err(|_| nonsense(local))?, options)?;
        let stream = endpoint.connect(peer.into(), None).await.map_err(|error| nonsense(&error.to_string()))?;
        let report = drain(&stream).await?;
        drop(stream);
        endpoint.close().await;
        Ok(report)
    })
}

async fn drain(stream: &QuicStream) -> Result<Report> {
    let mut block = vec![0; CHUNK];
    let (mut bytes, mut first) = (0, None);
    loop {
        poll_fn(|cx| stream.poll_recv_ready(cx)).await.map_err(Error::system("receiving"))?;
        let begin = *first.get_or_insert_with(Instant::now);
        let mut iovecs = [libc::iovec { iov_base: block.as_mut_ptr().cast(), iov_len: block.len() }];
        // SAFETY: the entry describes `block`, which outlives the call and is ours alone.
        match unsafe { stream.try_recv(&mut iovecs) } {
            Ok(0) => {
                let stats = stream.stats().map_err(Error::system("reading the path's figures"))?;
                return Ok(Report { bytes, wall: begin.elapsed(), stats });
            }
            Ok(len) => bytes += len as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(Error::system("receiving")(error)),
        }
    }
}

fn endpoint(address: SocketAddr, options: &QuicOptions) -> Result<QuicEndpoint> {
    let identity = Identity::ephemeral().map_err(|error| nonsense(&error.to_string()))?;
    QuicEndpoint::bind(address, &identity, options).map_err(Error::system(format!("listening on {address}")))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::system("starting the runtime"))
}

fn nonsense(what: &str) -> Error {
    Error::Nonsense { name: "a QUIC connection".into(), what: what.into() }
}
