//! Bare QUIC streams, as the transport makes them: the yardstick for what they cost.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{Endpoint, IsdAs, ScionPath};
use anabranch_scion::lookup::{Daemon, PORT_RANGE_DEFAULT, PathLookup, Source};
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
pub fn send(address: Endpoint, options: &QuicOptions, len: u64, listening: impl FnOnce(Endpoint)) -> Result<()> {
    runtime()?.block_on(async {
        let endpoint = bind(address, options)?;
        listening(endpoint.local());
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

/// Calls `peer` from `local`, receives without looking for `skipped`, and then for `counted`: bytes a second meanwhile.
pub fn receive_for(
    local: SocketAddr,
    peer: SocketAddr,
    options: &QuicOptions,
    skipped: Duration,
    counted: Duration,
) -> Result<f64> {
    runtime()?.block_on(async {
        let endpoint = bind(local.into(), options)?;
        let stream = endpoint.connect(peer.into(), None).await.map_err(|error| nonsense(&error.to_string()))?;
        let (start, mut block, mut bytes, mut begun) = (Instant::now(), vec![0; CHUNK], 0, None);
        let end = start + skipped + counted;
        while Instant::now() < end {
            let ready = tokio::time::timeout_at(end.into(), poll_fn(|cx| stream.poll_recv_ready(cx)));
            let Ok(ready) = ready.await else { break };
            ready.map_err(Error::system("receiving"))?;
            match take(&stream, &mut block)? {
                Some(0) => return Err(nonsense("it ended before it was measured")),
                Some(len) => bytes += len as u64,
                None => {}
            }
            if start.elapsed() >= skipped {
                begun.get_or_insert((Instant::now(), bytes));
            }
        }
        drop(stream);
        endpoint.close().await;
        Ok(begun.map_or(0.0, |(since, before)| (bytes - before) as f64 / since.elapsed().as_secs_f64()))
    })
}

/// Calls `peer` from `local` and receives until the stream ends. A peer of SCION is reached over the first path that `daemon`
/// knows; one of our own AS needs no daemon.
pub fn receive(local: Endpoint, peer: Endpoint, daemon: Option<&str>, options: &QuicOptions) -> Result<Report> {
    runtime()?.block_on(async {
        let endpoint = bind(local, options)?;
        let stream = match peer {
            Endpoint::Ip(_) => endpoint.connect(peer, None).await,
            Endpoint::Scion(remote) => {
                let path = match daemon {
                    Some(daemon) => first_path(daemon, remote.isd_as).await?,
                    None => Arc::new(ScionPath::inside(remote.isd_as, options.mtu_bytes_max, SystemTime::UNIX_EPOCH)),
                };
                endpoint.connect_over(remote, &path, None).await
            }
        };
        let stream = stream.map_err(|error| nonsense(&error.to_string()))?;
        let report = drain(&stream).await?;
        drop(stream);
        endpoint.close().await;
        Ok(report)
    })
}

async fn first_path(daemon: &str, to: IsdAs) -> Result<Arc<ScionPath>> {
    let found = |error: &dyn std::fmt::Display| nonsense(&error.to_string());
    let lookup = PathLookup::start(Source::Daemon(Daemon::new(daemon))).await.map_err(|error| found(&error))?;
    let paths = lookup.paths(to).await.map_err(|error| found(&error))?;
    paths.first().cloned().ok_or_else(|| nonsense("no path"))
}

async fn drain(stream: &QuicStream) -> Result<Report> {
    let mut block = vec![0; CHUNK];
    let (mut bytes, mut first) = (0, None);
    loop {
        poll_fn(|cx| stream.poll_recv_ready(cx)).await.map_err(Error::system("receiving"))?;
        let begin = *first.get_or_insert_with(Instant::now);
        match take(stream, &mut block)? {
            Some(0) => {
                let stats = stream.stats().map_err(Error::system("reading the path's figures"))?;
                return Ok(Report { bytes, wall: begin.elapsed(), stats });
            }
            Some(len) => bytes += len as u64,
            None => {}
        }
    }
}

/// What is there now; 0 at the end, `None` where nothing is.
fn take(stream: &QuicStream, block: &mut [u8]) -> Result<Option<usize>> {
    let mut iovecs = [libc::iovec { iov_base: block.as_mut_ptr().cast(), iov_len: block.len() }];
    // SAFETY: the entry describes `block`, which outlives the call and is ours alone.
    match unsafe { stream.try_recv(&mut iovecs) } {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(Error::system("receiving")(error)),
    }
}

fn bind(address: Endpoint, options: &QuicOptions) -> Result<QuicEndpoint> {
    let identity = Identity::ephemeral().map_err(|error| nonsense(&error.to_string()))?;
    match address {
        Endpoint::Ip(address) => {
            QuicEndpoint::bind(address, &identity, options).map_err(Error::system(format!("listening on {address}")))
        }
        Endpoint::Scion(address) => QuicEndpoint::bind_scion(address, PORT_RANGE_DEFAULT, &identity, options)
            .map_err(|error| nonsense(&error.to_string())),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::system("starting the runtime"))
}

fn nonsense(what: &str) -> Error {
    Error::Nonsense { name: "a QUIC connection".into(), what: what.into() }
}
