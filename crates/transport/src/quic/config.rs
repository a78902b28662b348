//! Windows, timers, packet sizes, congestion control.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use noq::congestion::{ControllerFactory, CubicConfig};
use noq::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use super::budget::QuicBudget;
use super::lanes::{LANE_WINDOW, LANES};
use super::loss_tolerant_bbr::TolerantConfig;
use super::probes::ProbesAsideConfig;
use super::window::RECEIVE_WINDOW_MIN;
use crate::NodeId;

/// The most that a connection may receive ahead of its reader, in bytes: 1 Gbit/s for 100 ms is 12.5 MB, and as much again
/// while a loss is repaired; with room to spare.
pub(super) const RECEIVE_WINDOW_MAX: u64 = LANES as u64 * LANE_WINDOW as u64;
/// What a connection takes from its writer before the congestion window is known to be larger, in bytes.
pub(super) const SEND_WINDOW_MIN: u64 = 512 * 1024;
/// The most that a connection takes from its writer before it is acknowledged, in bytes. For the reason above.
pub(super) const SEND_WINDOW_MAX: u64 = RECEIVE_WINDOW_MAX;
/// A peer that is silent for so long is gone (RFC 9308 §3.2).
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a silent connection says that it is there: three of these fit into the other side's patience.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(9);
/// The packet size that every QUIC path carries (RFC 9000 §14.1): connections start with it.
pub const MTU_MIN: u16 = 1200;
/// The largest UDP payload that is tried: a jumbo frame of 9000 bytes without IPv4 and UDP headers.
pub(super) const MTU_MAX: u16 = 8972;
/// Wait before large packets are tried again after they seemed to get lost. noq takes a few bursts of congestion for a path
/// that swallows large packets; where one really does, a try costs a few probes.
const MTU_RETRY: Duration = Duration::from_secs(1);

/// How a connection finds its rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Congestion {
    /// CUBIC (RFC 9438): shares a bottleneck evenly with TCP; slows at every loss, and fills every queue.
    Cubic,
    /// BBR, version 3: keeps its rate where a path loses packets without being full, up to 5 % of them, and queues short.
    #[default]
    Bbr,
}

/// What an endpoint is told.
#[derive(Clone, Debug)]
pub struct QuicOptions {
    /// The congestion control of its connections.
    pub congestion: Congestion,
    /// Who may connect; `None` admits everybody.
    pub allowed: Option<HashSet<NodeId>>,
    /// Largest UDP payload that is tried; over SCION, the largest packet inside our AS.
    pub mtu_bytes_max: u16,
    /// The memory that peers may fill; endpoints of one process are given the same.
    pub budget: QuicBudget,
    /// The protocol that both sides must name (ALPN).
    pub protocol: Vec<u8>,
    /// Paths that one connection may have, where the other side allows it as well (draft-ietf-quic-multipath); 1 for none but its own.
    pub paths: u32,
}

impl Default for QuicOptions {
    fn default() -> Self {
        Self {
            congestion: Congestion::default(),
            allowed: None,
            mtu_bytes_max: MTU_MAX,
            budget: QuicBudget::default(),
            protocol: super::tls::ALPN.to_vec(),
            paths: 1,
        }
    }
}

/// The configuration of one connection, whose path carries UDP payloads of `mtu_bytes` at most.
pub(super) fn transport(options: &QuicOptions, mtu_bytes: u16) -> Arc<TransportConfig> {
    let mtu_bytes = mtu_bytes.min(options.mtu_bytes_max);
    let mut config = TransportConfig::default();
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(mtu_bytes.clamp(MTU_MIN, MTU_MAX)).black_hole_cooldown(MTU_RETRY);
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(LANES))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(LANE_WINDOW))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOW_MIN as u32))
        .send_window(SEND_WINDOW_MIN)
        .send_fairness(false)
        .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .initial_mtu(MTU_MIN)
        .mtu_discovery_config(Some(discovery))
        // noq 1.4.0 writes ACK_FREQUENCY frames without a look at the room left: behind a handshake packet and an
        // acknowledgement in one datagram it panics, and takes the process with it.
        .ack_frequency_config(None)
        .datagram_receive_buffer_size(None);
    if options.paths > 1 {
        config.max_concurrent_multipath_paths(options.paths);
        config.default_path_keep_alive_interval(Some(KEEP_ALIVE)).default_path_max_idle_timeout(Some(IDLE_TIMEOUT));
    }
    config.congestion_controller_factory(Arc::new(ProbesAsideConfig(congestion(options))));
    Arc::new(config)
}

/// What makes the controllers of connections.
pub(super) fn congestion(options: &QuicOptions) -> Arc<dyn ControllerFactory + Send + Sync> {
    match options.congestion {
        Congestion::Cubic => Arc::new(CubicConfig::default()),
        Congestion::Bbr => Arc::new(TolerantConfig::default()),
    }
}
