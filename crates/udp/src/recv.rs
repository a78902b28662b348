//! Receiving: many datagrams in one call, coalesced where they are of one flow.

#![allow(unsafe_code)]

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::slice::Chunks;
use std::time::SystemTime;

use crate::address::{RAW_ADDR_LEN, RawAddr};
use crate::control::{CONTROL_LEN, Control, Info};
use crate::send::empty_header;
use crate::socket::{Socket, check};

/// Most messages in one batch: two megabytes of buffers, and the call's cost is long spread thin.
pub const RECV_MESSAGES_MAX: usize = 32;
/// Bytes of a buffer: whatever the kernel coalesces fits.
pub const RECV_BUFFER_LEN: usize = 1 << 16;
/// Errors of earlier sends (a port unreachable, say) that one receive passes over before it gives up.
const SPURIOUS_ERRORS_MAX: usize = 16;

/// Buffers for arriving datagrams, made once and used again and again.
pub struct RecvBatch {
    bytes: Box<[u8]>,
    slots: Box<[Slot]>,
    /// Slots filled by the last receive.
    filled: usize,
}

/// What was received to one place of the caller's.
#[derive(Clone, Copy)]
struct Slot {
    address: RawAddr,
    len: usize,
    truncated: bool,
    info: Info,
}

impl Slot {
    const EMPTY: Self = Self {
        address: RawAddr::EMPTY,
        len: 0,
        truncated: false,
        info: Info { segment_len: None, ecn: 0, local: None, interface: 0, arrived: None },
    };
}

/// Where one message goes, scattered: the first part is filled first. What comes of it is in the other fields.
#[derive(Debug)]
pub struct Scatter<'a, 'b> {
    /// Together they should take [`RECV_BUFFER_LEN`] bytes, which whatever the kernel coalesces fits into; at most
    /// [`crate::PARTS_MAX`] of them.
    pub parts: &'a mut [IoSliceMut<'b>],
    /// What was received.
    pub received: Arrival,
}

/// What is known of a message that was received, but for its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Who sent it.
    pub from: SocketAddr,
    /// Bytes of all its datagrams.
    pub len: usize,
    /// Bytes of each datagram but the last, which may be shorter; never zero.
    pub segment_len: usize,
    /// The two ECN bits, the same for all.
    pub ecn: u8,
    /// Whether bytes beyond the parts were lost.
    pub truncated: bool,
    /// The address it was sent to, if the options asked for that.
    pub local: Option<IpAddr>,
    /// The number of the interface it came in by, likewise; 0 where nobody told.
    pub interface: u32,
    /// When the kernel took it from the device, if the options asked for that; of several, the first.
    pub arrived: Option<SystemTime>,
}

impl Arrival {
    /// Nothing, from nobody.
    pub const NONE: Self = Self {
        from: SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0)),
        len: 0,
        segment_len: 1,
        ecn: 0,
        truncated: false,
        local: None,
        interface: 0,
        arrived: None,
    };
}

/// One datagram, or several of one flow in arrival order.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Who sent it.
    pub from: SocketAddr,
    /// The bytes of all datagrams.
    pub bytes: &'a [u8],
    /// Bytes of each datagram but the last, which may be shorter; never zero.
    pub segment_len: usize,
    /// The two ECN bits, the same for all.
    pub ecn: u8,
    /// Whether bytes beyond the buffer were lost.
    pub truncated: bool,
    /// The address it was sent to, if the options asked for that.
    pub local: Option<IpAddr>,
    /// When the kernel took it from the device, if the options asked for that; of several, the first.
    pub arrived: Option<SystemTime>,
}

/// [`Received`], with bytes that can be changed in place.
#[derive(Debug)]
pub struct ReceivedMut<'a> {
    /// Who sent it.
    pub from: SocketAddr,
    /// The bytes of all datagrams.
    pub bytes: &'a mut [u8],
    /// Bytes of each datagram but the last, which may be shorter; never zero.
    pub segment_len: usize,
    /// The two ECN bits, the same for all.
    pub ecn: u8,
    /// Whether bytes beyond the buffer were lost.
    pub truncated: bool,
    /// The address it was sent to, if the options asked for that.
    pub local: Option<IpAddr>,
    /// When the kernel took it from the device, if the options asked for that; of several, the first.
    pub arrived: Option<SystemTime>,
}

impl<'a> Received<'a> {
    /// Each datagram. An empty one has no bytes to show and is passed over.
    pub fn segments(&self) -> Chunks<'a, u8> {
        self.bytes.chunks(self.segment_len)
    }
}

impl RecvBatch {
    /// Buffers for `messages` messages of [`RECV_BUFFER_LEN`] bytes each; at least one, at most [`RECV_MESSAGES_MAX`].
    pub fn new(messages: usize) -> Self {
        let messages = messages.clamp(1, RECV_MESSAGES_MAX);
        Self { bytes: vec![0; messages * RECV_BUFFER_LEN].into(), slots: vec![Slot::EMPTY; messages].into(), filled: 0 }
    }

    /// Messages in it since the last receive.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether the last receive brought nothing.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// What the last receive brought, one by its place.
    pub fn get(&self, index: usize) -> Option<Received<'_>> {
        let slot = self.slots[..self.filled].get(index)?;
        Some(slot.received(&self.bytes[index * RECV_BUFFER_LEN..]))
    }

    /// What the last receive brought, in arrival order.
    pub fn iter(&self) -> impl Iterator<Item = Received<'_>> {
        let slots = self.slots[..self.filled].iter();
        slots.zip(self.bytes.chunks(RECV_BUFFER_LEN)).map(|(slot, bytes)| slot.received(bytes))
    }

    /// The same, to be changed in place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = ReceivedMut<'_>> {
        let slots = self.slots[..self.filled].iter();
        slots.zip(self.bytes.chunks_mut(RECV_BUFFER_LEN)).map(|(slot, bytes)| {
            let Received { from, segment_len, ecn, truncated, local, arrived, .. } = slot.received(&[]);
            ReceivedMut { from, bytes: &mut bytes[..slot.len], segment_len, ecn, truncated, local, arrived }
        })
    }
}

impl Slot {
    /// `buffer` starts with this slot's bytes, or is empty.
    fn received<'a>(&self, buffer: &'a [u8]) -> Received<'a> {
        Received {
            from: self.address.get(),
            bytes: buffer.get(..self.len).unwrap_or_default(),
            segment_len: self.info.segment_len.unwrap_or(self.len).max(1),
            ecn: self.info.ecn,
            truncated: self.truncated,
            local: self.info.local,
            arrived: self.info.arrived,
        }
    }

    fn arrival(&self) -> Arrival {
        Arrival {
            from: self.address.get(),
            len: self.len,
            segment_len: self.info.segment_len.unwrap_or(self.len).max(1),
            ecn: self.info.ecn,
            truncated: self.truncated,
            local: self.info.local,
            interface: self.info.interface,
            arrived: self.info.arrived,
        }
    }
}

impl Socket {
    /// Fills `batch` with what has arrived and says how many messages that is: at least one.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there. Errors that earlier datagrams of ours met on their way (a refused port) are passed
    /// over: they are about another peer than the next datagram's.
    pub fn recv(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.filled = 0;
        let count = batch.slots.len();
        let buffers = batch.bytes.chunks_exact_mut(RECV_BUFFER_LEN);
        let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; RECV_MESSAGES_MAX];
        for (vector, buffer) in vectors.iter_mut().zip(buffers) {
            vector.write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: RECV_BUFFER_LEN });
        }
        // There is a vector for each slot: neither are more than RECV_MESSAGES_MAX.
        let vector = |index: usize| (vectors[index].as_ptr().cast_mut(), 1);
        // SAFETY: the first `count` vectors were written above and point to buffers that are nobody else's.
        batch.filled = unsafe { self.recv_messages(count, vector, |index, slot| batch.slots[index] = slot) }?;
        Ok(batch.filled)
    }

    /// Receives messages to where the caller says, in order, and says how many have come: at least one, if `messages` is not
    /// empty; at most [`RECV_MESSAGES_MAX`].
    ///
    /// # Errors
    /// As [`Socket::recv`].
    pub fn recv_scattered(&self, messages: &mut [Scatter<'_, '_>]) -> io::Result<usize> {
        let count = messages.len().min(RECV_MESSAGES_MAX);
        if count == 0 {
            return Ok(0);
        }
        let mut parts = [const { MaybeUninit::<(*mut libc::iovec, usize)>::uninit() }; RECV_MESSAGES_MAX];
        for (place, message) in parts.iter_mut().zip(messages.iter_mut()) {
            // `IoSliceMut` is an `iovec` by its documented layout.
            place.write((message.parts.as_mut_ptr().cast(), message.parts.len().min(crate::PARTS_MAX)));
        }
        // SAFETY: one of the first `count`, written above.
        let parts_of = |index: usize| unsafe { parts[index].assume_init() };
        // SAFETY: the parts are borrowed exclusively until the call is over.
        unsafe { self.recv_messages(count, parts_of, |index, slot| messages[index].received = slot.arrival()) }
    }

    /// `recvmmsg` of at most `count` messages, RECV_MESSAGES_MAX at most; passes over errors that are about other messages.
    ///
    /// # Safety
    /// For each index below `count`, `parts` gives vectors, and how many, that point to memory which nobody else uses.
    unsafe fn recv_messages(
        &self,
        count: usize,
        parts: impl Fn(usize) -> (*mut libc::iovec, usize),
        mut take: impl FnMut(usize, Slot),
    ) -> io::Result<usize> {
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; RECV_MESSAGES_MAX];
        let mut addresses = [const { MaybeUninit::<RawAddr>::uninit() }; RECV_MESSAGES_MAX];
        let mut controls = [const { MaybeUninit::<Control>::uninit() }; RECV_MESSAGES_MAX];
        let count = count.min(RECV_MESSAGES_MAX);
        let mut errors = 0;
        let got = loop {
            // Anew after an error: the kernel may have written to the headers.
            let places = headers.iter_mut().zip(&mut addresses).zip(&mut controls);
            for (index, ((header, address), control)) in places.take(count).enumerate() {
                let mut msg_hdr = empty_header();
                msg_hdr.msg_name = (address.write(RawAddr::EMPTY) as *mut RawAddr).cast();
                msg_hdr.msg_namelen = RAW_ADDR_LEN;
                let (vectors, len) = parts(index);
                msg_hdr.msg_iov = vectors;
                msg_hdr.msg_iovlen = len as _;
                // All of it initialised: the kernel leaves gaps between what it writes.
                msg_hdr.msg_control = (control.write(Control::EMPTY) as *mut Control).cast();
                msg_hdr.msg_controllen = CONTROL_LEN as _;
                header.write(libc::mmsghdr { msg_hdr, msg_len: 0 });
            }
            let no_timeout = std::ptr::null_mut();
            let vlen = count as libc::c_uint;
            // SAFETY: the first `count` headers were written above; what they point to lives until after the call and is
            // nobody else's, as the caller has promised for the vectors.
            let got = unsafe { libc::recvmmsg(self.as_raw_fd(), headers.as_mut_ptr().cast(), vlen, 0, no_timeout) };
            match check(got) {
                Ok(got) => break got as usize,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || errors == SPURIOUS_ERRORS_MAX => {
                    return Err(error);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted || is_about_a_peer(&error) => errors += 1,
                Err(error) => return Err(error),
            }
        };
        for (index, header) in headers.iter().enumerate().take(got) {
            // SAFETY: one of the first `count`, written above.
            let header = unsafe { header.assume_init_ref() };
            // SAFETY: written above; the kernel wrote over it.
            let address = unsafe { addresses[index].assume_init() };
            let control_len = header.msg_hdr.msg_controllen.min(CONTROL_LEN);
            let control: *const u8 = controls[index].as_ptr().cast();
            // SAFETY: initialised above, so many bytes at least; the kernel wrote over some.
            let control = unsafe { std::slice::from_raw_parts(control, control_len) };
            let len = header.msg_len as usize;
            let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            take(index, Slot { address, len, truncated, info: Info::read(control) });
        }
        Ok(got)
    }
}

/// ICMP's news of where an earlier datagram went.
fn is_about_a_peer(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EMSGSIZE | libc::EPROTO)
    )
}
