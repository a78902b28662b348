//! A TUN device: packet by packet, or with segmentation offload: whole bursts of TCP or UDP in one read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use crate::netns::NetnsError;

type Result<T> = std::result::Result<T, NetnsError>;

/// `struct virtio_net_hdr` (virtio 1.2 §5.1.6), which goes before each burst.
const HEADER_LEN: usize = 10;
/// Largest burst: an IP packet of 64 KiB behind its header.
pub const BURST_LEN_MAX: usize = 65_536 + HEADER_LEN;
/// Longest name of a device, bytes (Linux, `IFNAMSIZ` less the zero at its end).
const NAME_LEN_MAX: usize = 15;
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

/// What one read of a device brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One IP packet, whole.
    Packets,
    /// One packet behind a `virtio_net_hdr`, its checksum left undone: both ends are on this machine.
    Unsummed,
    /// The same with many packets as one, which the kernel cuts up later.
    Bursts,
}

/// One open device; it goes away when closed.
#[derive(Debug)]
pub struct Tun {
    file: File,
}

impl Tun {
    /// Makes device `name` in this thread's namespace.
    ///
    /// # Errors
    /// When this process may not, or the name is too long or taken.
    pub fn open(name: &str, framing: Framing) -> Result<Self> {
        let path = "/dev/net/tun";
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(|source| NetnsError::System { what: path.to_owned(), source })?;
        if name.len() > NAME_LEN_MAX {
            let source = io::ErrorKind::InvalidInput.into();
            return Err(NetnsError::System { what: format!("making TUN device {name}"), source });
        }
        let header = if framing == Framing::Packets { 0 } else { IFF_VNET_HDR };
        let mut request = Request { name: [0; 16], flags: IFF_TUN | IFF_NO_PI | header, rest: [0; 22] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: `request` has the size and layout of struct ifreq and lives across the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &request) } != 0 {
            return Err(NetnsError::last_os(format!("making TUN device {name}")));
        }
        let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
        let wishes = match framing {
            Framing::Packets => [0; 2],
            Framing::Unsummed => [TUN_F_CSUM; 2],
            Framing::Bursts => [tcp | TUN_F_USO4 | TUN_F_USO6, tcp],
        };
        // SAFETY: TUNSETOFFLOAD takes its flags by value. Kernels before 6.2 refuse USO: the second wish goes without.
        if !wishes.iter().any(|flags| unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, *flags) } == 0) {
            return Err(NetnsError::last_os("TUNSETOFFLOAD"));
        }
        Ok(Self { file })
    }

    /// For poll.
    pub fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Reads the next packet or burst and answers its length, header included; `None` while there is none.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>> {
        use io::Read;
        match (&self.file).read(buffer) {
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(source) => Err(NetnsError::System { what: "reading from a TUN device".into(), source }),
        }
    }

    /// Sends a packet or burst. What the device refuses is lost, as on any wire.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn write(&self, burst: &[u8]) -> Result<()> {
        use io::Write;
        match (&self.file).write(burst) {
            Err(source) if source.raw_os_error() == Some(libc::EBADFD) => {
                Err(NetnsError::System { what: "writing to a TUN device".into(), source })
            }
            _ => Ok(()),
        }
    }
}

/// Bytes of the packets that a `burst` (or one packet), which begins with its header, will become: every packet but the first
/// adds its headers again.
pub fn wire_bytes(burst: &[u8]) -> u64 {
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
