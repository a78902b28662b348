//! A TUN device with segmentation offload: whole bursts of TCP or UDP in one read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use super::link::Burst;
use crate::{Error, Result};

/// `struct virtio_net_hdr` (virtio 1.2 §5.1.6), which goes before each packet.
const HEADER_LEN: usize = 10;
/// Largest burst: an IP packet of 64 KiB behind its header.
pub(super) const BURST_LEN_MAX: usize = 65_536 + HEADER_LEN;
/// Offsets into the header: length of the packet headers, payload bytes a packet.
const HDR_LEN: usize = 2;
const GSO_SIZE: usize = 4;

// linux/if_tun.h
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const IFF_TUN: i16 = 0x0001;
const IFF_NO_PI: i16 = 0x1000;
const IFF_VNET_HDR: i16 = 0x4000;
const TUN_F_CSUM: libc::c_uint = 0x01;
const TUN_F_TSO4: libc::c_uint = 0x02;
const TUN_F_TSO6: libc::c_uint = 0x04;
const TUN_F_USO4: libc::c_uint = 0x20;
const TUN_F_USO6: libc::c_uint = 0x40;

/// `struct ifreq`, as far as TUNSETIFF reads it.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

/// One open device; it goes away when closed.
pub(super) struct Tun {
    file: File,
}

impl Tun {
    /// Makes device `name` in this thread's namespace.
    pub(super) fn open(name: &str, offload: bool) -> Result<Self> {
        let path = "/dev/net/tun";
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(Error::file(path))?;
        let mut request = Request { name: [0; 16], flags: IFF_TUN | IFF_NO_PI | IFF_VNET_HDR, rest: [0; 22] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: `request` has the size and layout of struct ifreq and lives across the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &request) } != 0 {
            return Err(Error::last_os(format!("making TUN device {name}")));
        }
        // Checksums stay undone between the two ends in any case: both are on this machine.
        let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
        let wishes = if offload { [tcp | TUN_F_USO4 | TUN_F_USO6, tcp] } else { [TUN_F_CSUM; 2] };
        // SAFETY: TUNSETOFFLOAD takes its flags by value. Kernels before 6.2 refuse USO: the second wish goes without.
        if !wishes.iter().any(|flags| unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, *flags) } == 0) {
            return Err(Error::last_os("TUNSETOFFLOAD"));
        }
        Ok(Self { file })
    }

    /// For poll.
    pub(super) fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// The next packet or burst, `None` while there is none.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Result<Option<Burst>> {
        use io::Read;
        match (&self.file).read(buffer) {
            Ok(len) => Ok(Some(Burst { len, wire_bytes: wire_bytes(&buffer[..len]) })),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(Error::system("reading from a TUN device")(error)),
        }
    }

    /// Sends a packet or burst. What the device refuses is lost, as on any wire.
    pub(super) fn write(&self, burst: &[u8]) -> Result<()> {
        use io::Write;
        match (&self.file).write(burst) {
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => {
                Err(Error::system("writing to a TUN device")(error))
            }
            _ => Ok(()),
        }
    }
}

/// Bytes of the packets that `burst` will become: every packet but the first adds its headers again.
fn wire_bytes(burst: &[u8]) -> u64 {
    let field =
        |at: usize| burst.get(at..at + 2).map_or(0, |bytes| u64::from(u16::from_ne_bytes([bytes[0], bytes[1]])));
    let len = burst.len().saturating_sub(HEADER_LEN) as u64;
    let (headers, segment) = (field(HDR_LEN), field(GSO_SIZE));
    if segment == 0 || len <= headers {
        return len;
    }
    headers * (len - headers).div_ceil(segment) + (len - headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burst(len: usize, headers: u16, segment: u16) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN + len];
        bytes[HDR_LEN..HDR_LEN + 2].copy_from_slice(&headers.to_ne_bytes());
        bytes[GSO_SIZE..GSO_SIZE + 2].copy_from_slice(&segment.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_burst_counts_the_headers_of_each_packet() {
        assert_eq!(wire_bytes(&burst(1500, 52, 0)), 1500);
        assert_eq!(wire_bytes(&burst(52 + 1448, 52, 1448)), 1500);
        assert_eq!(wire_bytes(&burst(52 + 1449, 52, 1448)), 1501 + 52);
        assert_eq!(wire_bytes(&burst(52 + 2896, 52, 1448)), 3000);
        assert_eq!(wire_bytes(&[0; 3]), 0);
    }
}
