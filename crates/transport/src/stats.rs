//! What the kernel knows of a connection.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// A snapshot of a connection's congestion state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStats {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Congestion window, in bytes.
    pub cwnd_bytes: u64,
    /// Segments sent again since the connection opened.
    pub retransmitted_segments: u64,
    /// Rate at which the peer acknowledged, in bytes per second.
    pub delivery_rate_bytes: u64,
}

impl StreamStats {
    /// Reads `TCP_INFO` of a TCP socket.
    pub(crate) fn of_tcp(fd: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: `tcp_info` is plain data, for which all zeros is a valid value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the pointer and length describe `info`; the kernel writes at most `len` bytes.
        let result = unsafe {
            libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            rtt: Duration::from_micros(u64::from(info.tcpi_rtt)),
            cwnd_bytes: u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss),
            retransmitted_segments: u64::from(info.tcpi_total_retrans),
            delivery_rate_bytes: delivery_rate_bytes(&info),
        })
    }
}

/// glibc's `tcp_info` ends before the delivery rate: without it, one congestion window a round trip is the estimate.
fn delivery_rate_bytes(info: &libc::tcp_info) -> u64 {
    let window_bytes = u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss);
    (window_bytes * 1_000_000).checked_div(u64::from(info.tcpi_rtt)).unwrap_or(0)
}
