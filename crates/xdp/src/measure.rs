//! Which way to the wire is the cheaper one on this machine: measured at the start, before anything depends on it.
//!
//! What can be measured without another host is sending. Both ways send the same frames, addressed to this very
//! interface: its own hardware address as source and as destination. No host takes them, and a switch does not send a frame back
//! to where it came from, so they end at the first one. Counted is the processor time of a packet, not packets a second: on a link
//! that both fill, the rate says nothing.
//!
//! The system's way is measured without its network layers, as bursts that a packet socket hands to the device. So
//! it looks a little cheaper than a UDP socket is, and what beats it beats UDP. Receiving is not measured: with zero-copy it saves
//! what sending saves. Without zero-copy nothing is measured, and nothing is touched: frames that are copied one by one
//! cost more than bursts.

use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_scion_wire::checksum::{self, Sum};

use crate::error::Error;
use crate::frame::{FRAME_OVERHEAD, FrameTemplate};
use crate::kernel::Kernel;
use crate::port::{Mode, Port};
use crate::sys;

/// Packets that each way sends: 25 ms of 1 Gbit/s at 1500 bytes.
const PACKETS: usize = 2048;
/// Packets that one way sends before it is the other's turn, so that both meet the same machine.
const TURN_PACKETS: usize = 256;
/// How long it may take together. A device that takes nothing for so long is measured by what it took.
const TIME_MAX: Duration = Duration::from_millis(300);
/// What a burst may have: the longest packet of IP, with room for headers.
const BURST_BYTES_MAX: usize = 65_000;
/// How long to wait for a full device.
const NAP: Duration = Duration::from_micros(50);
/// XDP has to cost less than so much of the system's way: what changes from run to run decides nothing.
const WORTH_IT: f64 = 0.9;
/// Where the frames are addressed to, if anybody took them: "discard" (RFC 863).
const DISCARD: u16 = 9;

/// Processor time of the sending thread for one packet, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// Past the kernel.
    pub xdp_ns: f64,
    /// By the system, in bursts.
    pub system_ns: f64,
}

impl Measurement {
    /// Whether the way past the kernel is clearly the cheaper one.
    pub fn is_worth_it(&self) -> bool {
        self.xdp_ns < self.system_ns * WORTH_IT
    }
}

/// Why datagrams stay with the system.
#[derive(Debug, thiserror::Error)]
pub enum Declined {
    /// It cannot be used.
    #[error(transparent)]
    Impossible(#[from] Error),
    /// It would copy every frame.
    #[error("the driver of {0} does no zero-copy: bursts of UDP are faster")]
    NoZeroCopy(String),
    /// It costs more.
    #[error("sending by {interface} takes {:.0} ns a packet by AF_XDP and {:.0} in bursts of UDP", measured.xdp_ns, measured.system_ns)]
    Slower {
        /// Which.
        interface: String,
        /// What was measured.
        measured: Measurement,
    },
    /// It cannot be told.
    #[error("what AF_XDP costs on {interface} cannot be measured: {source}")]
    Unmeasured {
        /// Which.
        interface: String,
        /// Why.
        source: io::Error,
    },
}

impl Port {
    /// As [`Port::attach`], if that is the faster way: where the driver does zero-copy, and a measurement says so.
    ///
    /// # Errors
    /// It is not, or cannot be used.
    pub fn attach_if_faster(interface: &str, local: SocketAddr) -> Result<(Self, Measurement), Declined> {
        let name = || interface.to_owned();
        let kernel = Kernel::new().map_err(|error| Error::of_system(interface, "rtnetlink", error))?;
        let found = kernel.interface(interface)?;
        let capabilities = xdp::nic::NicIndex(found.index).query_capabilities();
        if !capabilities.is_ok_and(|capabilities| capabilities.zero_copy.is_available()) {
            return Err(Declined::NoZeroCopy(name()));
        }
        let port = Self::attach(interface, local)?;
        if port.mode() != Mode::ZeroCopy {
            return Err(Declined::NoZeroCopy(name()));
        }
        let measured = port.measure().map_err(|source| Declined::Unmeasured { interface: name(), source })?;
        match measured.is_worth_it() {
            true => Ok((port, measured)),
            false => Err(Declined::Slower { interface: name(), measured }),
        }
    }

    /// What a packet costs this way and by the system, in turn. Takes a third of a second at most, and some 6 MB of the link.
    ///
    /// # Errors
    /// The interface has no address, or takes nothing.
    pub fn measure(&self) -> io::Result<Measurement> {
        let own = self.own_address()?;
        let interface = self.interface();
        let (source, destination) = (SocketAddr::new(own, DISCARD), SocketAddr::new(own, DISCARD));
        let template = FrameTemplate::new(interface.mac, interface.mac, source, destination);
        let template = template.ok_or_else(|| io::Error::other("no address"))?;
        let frame_len = self.packet_len_max() + FRAME_OVERHEAD;
        let payload = vec![0x5a; frame_len - template.headers_len()];
        let burst = Burst::new(&template, &payload, own);
        let mut device = sys::packet_socket(interface.index)?;
        let end = Instant::now() + TIME_MAX;
        let (mut past, mut system) = (Cost::default(), Cost::default());
        while (past.packets < PACKETS || system.packets < PACKETS) && Instant::now() < end {
            past.take(|| self.send_some(&template, &payload, end))?;
            system.take(|| burst.send_some(&mut device, end))?;
        }
        match (past.mean_ns(), system.mean_ns()) {
            (Some(xdp_ns), Some(system_ns)) => Ok(Measurement { xdp_ns, system_ns }),
            _ => Err(io::Error::other("the device takes no frames")),
        }
    }

    fn send_some(&self, template: &FrameTemplate, payload: &[u8], end: Instant) -> io::Result<usize> {
        let mut sent = 0;
        while sent < TURN_PACKETS && Instant::now() < end {
            let write = |_, frame: &mut [u8]| {
                let (headers, rest) = frame.split_at_mut(template.headers_len());
                // As it is with data: copied and summed.
                let sum = checksum::copy_sum(rest, payload);
                let written = template.write(payload.len(), sum, 0, headers);
                if written { headers.len() + payload.len() } else { 0 }
            };
            sent += or_nap(self.send(0, TURN_PACKETS - sent, write))?;
        }
        Ok(sent)
    }
}

/// What was sent, and what that took.
#[derive(Default)]
struct Cost {
    packets: usize,
    time: Duration,
}

impl Cost {
    fn take(&mut self, send: impl FnOnce() -> io::Result<usize>) -> io::Result<()> {
        let before = sys::thread_time();
        self.packets += send()?;
        self.time += sys::thread_time().saturating_sub(before);
        Ok(())
    }

    fn mean_ns(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.time.as_nanos() as f64 / self.packets as f64)
    }
}

/// Many packets as the kernel hands them to a device: one, with a note of where to cut it (linux/virtio_net.h).
struct Burst {
    bytes: Vec<u8>,
    packets: usize,
}

impl Burst {
    const NOTE_LEN: usize = 10;
    const NEEDS_CHECKSUM: u8 = 1;
    const UDP_L4: u8 = 5;

    fn new(template: &FrameTemplate, payload: &[u8], own: IpAddr) -> Self {
        let packets = (BURST_BYTES_MAX / payload.len()).clamp(1, 64);
        let headers_len = template.headers_len();
        let mut bytes = vec![0; Self::NOTE_LEN + headers_len];
        (bytes[0], bytes[1]) = (Self::NEEDS_CHECKSUM, Self::UDP_L4);
        let checksum_start = headers_len - 8;
        for (at, number) in [(2, headers_len), (4, payload.len()), (6, checksum_start), (8, 6)] {
            bytes[at..at + 2].copy_from_slice(&(number as u16).to_ne_bytes());
        }
        let all_len = packets * payload.len();
        template.write(all_len, Sum::default(), 0, &mut bytes[Self::NOTE_LEN..]);
        // The device adds the payload to the pseudo header's sum.
        let own = match own {
            IpAddr::V4(ip) => checksum::sum(&ip.octets()),
            IpAddr::V6(ip) => checksum::sum(&ip.octets()),
        };
        let pseudo = own + own + Sum::from_u16(17) + Sum::from_u16(all_len as u16 + 8);
        bytes[Self::NOTE_LEN + headers_len - 2..].copy_from_slice(&(!pseudo.checksum()).to_be_bytes());
        bytes.extend(payload.iter().cycle().take(all_len));
        Self { bytes, packets }
    }

    fn send_some(&self, device: &mut File, end: Instant) -> io::Result<usize> {
        let mut sent = 0;
        while sent < TURN_PACKETS && Instant::now() < end {
            sent += or_nap(device.write(&self.bytes).map(|_| self.packets))?;
        }
        Ok(sent)
    }
}

/// A full device is waited for.
fn or_nap(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS) => {
            std::thread::sleep(NAP);
            Ok(0)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::IPV4_HEADERS_LEN;

    #[test]
    fn a_small_gain_is_none() {
        let worth = |xdp_ns| Measurement { xdp_ns, system_ns: 200.0 }.is_worth_it();
        assert!(worth(179.0) && !worth(180.0) && !worth(200.0) && !worth(f64::NAN));
    }

    #[test]
    fn a_burst_is_cut_into_whole_packets() {
        let own = SocketAddr::from(([192, 0, 2, 1], DISCARD));
        let template = FrameTemplate::new([2; 6], [2; 6], own, own).unwrap();
        for (payload_len, packets) in [(1472, 44), (3798, 17), (100, 64)] {
            let burst = Burst::new(&template, &vec![1; payload_len], own.ip());
            assert_eq!(burst.packets, packets);
            let len = burst.bytes.len() - Burst::NOTE_LEN;
            assert_eq!(len, IPV4_HEADERS_LEN + packets * payload_len);
            // The packet's own length, which the kernel cuts by.
            let at = Burst::NOTE_LEN + FRAME_OVERHEAD + 2;
            assert_eq!(usize::from(u16::from_be_bytes([burst.bytes[at], burst.bytes[at + 1]])), len - FRAME_OVERHEAD);
        }
    }

    #[test]
    fn what_cannot_be_used_is_declined_with_its_reason() {
        let local = "127.0.0.1:7000".parse().unwrap();
        let declined = |name| Port::attach_if_faster(name, local).map(|_| ()).unwrap_err();
        assert!(matches!(declined("lo"), Declined::Impossible(Error::Kind { .. })));
        assert!(matches!(declined("no-such-device"), Declined::Impossible(Error::Unknown { .. })));
    }
}
