//! bpf(2): maps, one program, and the link that holds it to an interface.
//!
//! All of them are descriptors, and none is pinned: when the process ends, however it ends, the kernel detaches the program.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::program::Instruction;

// linux/bpf.h
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// The program knows that a frame may lie in several buffers.
const XDP_HAS_FRAGS: u32 = 1 << 5;
/// Some kernel functions may only be called by programs under the GPL; none of ours is among them.
const LICENSE: &std::ffi::CStr = c"Apache-2.0";

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachMode {
    /// In the driver, before the kernel has made a packet of a frame.
    Native = 1 << 2,
    /// After that: any driver, and little gain.
    Generic = 1 << 1,
}

#[repr(C)]
struct CreateMap {
    kind: u32,
    key_len: u32,
    value_len: u32,
    entries_max: u32,
    flags: u32,
}

#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct LoadProgram {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_len: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
struct CreateLink {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// A map from keys of one length to values of 32 bits.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    key_len: usize,
}

impl Map {
    /// Of keys of `key_len` bytes.
    pub(crate) fn hash(key_len: usize, entries_max: u32) -> io::Result<Self> {
        Self::new(MAP_TYPE_HASH, key_len, entries_max)
    }

    /// Of AF_XDP sockets by queue.
    pub(crate) fn sockets(entries_max: u32) -> io::Result<Self> {
        Self::new(MAP_TYPE_XSKMAP, 4, entries_max)
    }

    fn new(kind: u32, key_len: usize, entries_max: u32) -> io::Result<Self> {
        let attributes = CreateMap { kind, key_len: key_len as u32, value_len: 4, entries_max, flags: 0 };
        Ok(Self { fd: descriptor(bpf(MAP_CREATE, &attributes)?), key_len })
    }

    pub(crate) fn raw(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    pub(crate) fn insert(&self, key: &[u8], value: u32) -> io::Result<()> {
        self.element(MAP_UPDATE_ELEM, key, &value.to_ne_bytes())
    }

    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<()> {
        self.element(MAP_DELETE_ELEM, key, &[])
    }

    fn element(&self, command: libc::c_int, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!(key.len(), self.key_len, "the kernel reads so many bytes");
        let value = if value.is_empty() { 0 } else { value.as_ptr() as u64 };
        let map = self.raw().cast_unsigned();
        bpf(command, &Element { map, padding: 0, key: key.as_ptr() as u64, value, flags: 0 })?;
        Ok(())
    }
}

/// A program that the kernel has verified.
#[derive(Debug)]
pub(crate) struct Program(OwnedFd);

impl Program {
    pub(crate) fn load(code: &[Instruction]) -> io::Result<Self> {
        let attributes = LoadProgram {
            kind: PROG_TYPE_XDP,
            instructions: code.len() as u32,
            code: code.as_ptr() as u64,
            license: LICENSE.as_ptr() as u64,
            log_level: 0,
            log_len: 0,
            log: 0,
            kernel_version: 0,
            flags: XDP_HAS_FRAGS,
            name: *b"anabranch\0\0\0\0\0\0\0",
            interface: 0,
            attach_type: ATTACH_XDP,
        };
        Ok(Self(descriptor(bpf(PROG_LOAD, &attributes)?)))
    }

    /// Attaches it to interface number `interface` for as long as the answer lives.
    pub(crate) fn attach(&self, interface: u32, mode: AttachMode) -> io::Result<OwnedFd> {
        let program = self.0.as_raw_fd().cast_unsigned();
        let attributes = CreateLink { program, interface, attach_type: ATTACH_XDP, flags: mode as u32 };
        Ok(descriptor(bpf(LINK_CREATE, &attributes)?))
    }
}

/// `attributes` are those of `command`, with pointers that live over the call to as many bytes as the kernel takes there.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    let len = mem::size_of::<T>() as libc::c_uint;
    // SAFETY: the attributes live over the call and have `len` bytes; the callers above vouch for what they point to: keys
    // have the map's length (asserted), values four bytes, code so many instructions, and the license ends in a zero.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), len) };
    super::check(answer as libc::c_int)
}

fn descriptor(fd: libc::c_int) -> OwnedFd {
    // SAFETY: the kernel has just made it, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
