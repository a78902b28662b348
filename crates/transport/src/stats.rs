//! What is known of a connection's path.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Bytes of Linux' `struct tcp_info` that are asked for; older kernels fill fewer.
const TCP_INFO_LEN: usize = 168;
/// Where its fields lie (`linux/tcp.h`); libc's own structure ends before the last four.
const SND_MSS_AT: usize = 16;
const RTT_US_AT: usize = 68;
const SND_CWND_AT: usize = 80;
const TOTAL_RETRANS_AT: usize = 100;
const BYTES_ACKED_AT: usize = 120;
const BYTES_RECEIVED_AT: usize = 128;
const DELIVERY_RATE_AT: usize = 160;

/// A snapshot of a connection's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStats {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Congestion window, in bytes.
    pub cwnd_bytes: u64,
    /// Packets taken for lost (QUIC, uTP) or sent again (TCP) since the connection opened.
    pub lost_packets: u64,
    /// Rate at which the peer acknowledges, in bytes per second.
    pub delivery_rate_bytes: u64,
    /// Largest payload of a packet on this path, in bytes: of UDP datagrams (QUIC, uTP), of segments (TCP).
    pub mtu_bytes: u64,
    /// Bytes sent since the connection opened: all of them (QUIC, uTP), those acknowledged (TCP).
    pub sent_bytes: u64,
    /// Bytes received since the connection opened.
    pub received_bytes: u64,
}

impl StreamStats {
    /// Reads `TCP_INFO` of a TCP socket.
    pub(crate) fn of_tcp(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let mut info = [0u8; TCP_INFO_LEN];
        let mut len = TCP_INFO_LEN as libc::socklen_t;
        // SAFETY: the pointer and length describe `info`; the kernel writes at most `len` bytes.
        let result = unsafe {
            libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let word = |at: usize| info[at..].first_chunk().map_or(0, |bytes| u64::from(u32::from_ne_bytes(*bytes)));
        let long = |at: usize| info[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        Ok(Self {
            rtt: Duration::from_micros(word(RTT_US_AT)),
            cwnd_bytes: word(SND_CWND_AT) * word(SND_MSS_AT),
            lost_packets: word(TOTAL_RETRANS_AT),
            delivery_rate_bytes: long(DELIVERY_RATE_AT),
            mtu_bytes: word(SND_MSS_AT),
            sent_bytes: long(BYTES_ACKED_AT),
            received_bytes: long(BYTES_RECEIVED_AT),
        })
    }

    pub(crate) fn of_utp(stats: &anabranch_utp::ConnStats) -> Self {
        Self {
            rtt: stats.rtt,
            cwnd_bytes: stats.window_bytes,
            lost_packets: stats.lost_packets,
            delivery_rate_bytes: stats.delivery_rate_bytes,
            mtu_bytes: stats.datagram_len as u64,
            sent_bytes: stats.sent_bytes,
            received_bytes: stats.received_bytes,
        }
    }

    pub(crate) fn of_quic(stats: &noq::PathStats) -> Self {
        // CUBIC estimates no rate: one congestion window a round trip is what it sends at.
        let window_rate = || (u128::from(stats.cwnd) * 1_000_000).checked_div(stats.rtt.as_micros()).unwrap_or(0);
        let rate_bytes = match stats.bandwidth_estimate {
            Some(bits) => bits / 8,
            None => u64::try_from(window_rate()).unwrap_or(u64::MAX),
        };
        Self {
            rtt: stats.rtt,
            cwnd_bytes: stats.cwnd,
            // Probes for a larger packet size are meant to be lost.
            lost_packets: stats.lost_packets.saturating_sub(stats.lost_plpmtud_probes),
            delivery_rate_bytes: rate_bytes,
            mtu_bytes: u64::from(stats.current_mtu),
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
        }
    }
}
