//! Receiving: many datagrams in one call, coalesced where they are of one flow.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::slice::{Chunks, ChunksMut};

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

struct Slot {
    address: RawAddr,
    control: Control,
    len: usize,
    truncated: bool,
    info: Info,
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
}

impl<'a> Received<'a> {
    /// Each datagram. An empty one has no bytes to show and is passed over.
    pub fn segments(&self) -> Chunks<'a, u8> {
        self.bytes.chunks(self.segment_len)
    }
}

impl ReceivedMut<'_> {
    /// Each datagram.
    pub fn segments_mut(&mut self) -> ChunksMut<'_, u8> {
        self.bytes.chunks_mut(self.segment_len)
    }
}

impl RecvBatch {
    /// Buffers for `messages` messages of [`RECV_BUFFER_LEN`] bytes each; at least one, at most [`RECV_MESSAGES_MAX`].
    pub fn new(messages: usize) -> Self {
        let messages = messages.clamp(1, RECV_MESSAGES_MAX);
        let slot = || Slot {
            address: RawAddr::EMPTY,
            control: Control::EMPTY,
            len: 0,
            truncated: false,
            info: Info::default(),
        };
        Self {
            bytes: vec![0; messages * RECV_BUFFER_LEN].into(),
            slots: std::iter::repeat_with(slot).take(messages).collect(),
            filled: 0,
        }
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
            let Received { from, segment_len, ecn, truncated, local, .. } = slot.received(&[]);
            ReceivedMut { from, bytes: &mut bytes[..slot.len], segment_len, ecn, truncated, local }
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
        let mut errors = 0;
        loop {
            match self.recv_batch(batch) {
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || errors == SPURIOUS_ERRORS_MAX => {
                    return Err(error);
                }
                Err(error) => {
                    let spurious = error.kind() == io::ErrorKind::Interrupted || is_about_a_peer(&error);
                    if !spurious {
                        return Err(error);
                    }
                    errors += 1;
                }
            }
        }
    }

    fn recv_batch(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; RECV_MESSAGES_MAX];
        let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; RECV_MESSAGES_MAX];
        let places = headers.iter_mut().zip(&mut vectors);
        let buffers = batch.bytes.chunks_exact_mut(RECV_BUFFER_LEN);
        for ((header, vector), (slot, buffer)) in places.zip(batch.slots.iter_mut().zip(buffers)) {
            let vector = vector.write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: RECV_BUFFER_LEN });
            let mut msg_hdr = empty_header();
            msg_hdr.msg_name = (&raw mut slot.address).cast();
            msg_hdr.msg_namelen = RAW_ADDR_LEN;
            msg_hdr.msg_iov = vector;
            msg_hdr.msg_iovlen = 1;
            msg_hdr.msg_control = (&raw mut slot.control).cast();
            msg_hdr.msg_controllen = CONTROL_LEN as _;
            header.write(libc::mmsghdr { msg_hdr, msg_len: 0 });
        }
        let count = batch.slots.len() as libc::c_uint;
        let no_timeout = std::ptr::null_mut();
        // SAFETY: the first `count` headers were written above (there are at most RECV_MESSAGES_MAX slots, and a buffer for
        // each); what they point to lives until after the call and is nobody else's.
        let got = unsafe { libc::recvmmsg(self.as_raw_fd(), headers.as_mut_ptr().cast(), count, 0, no_timeout) };
        let got = check(got)? as usize;
        for (slot, header) in batch.slots.iter_mut().zip(&headers).take(got) {
            // SAFETY: one of the first `count`, written above.
            let header = unsafe { header.assume_init_ref() };
            slot.len = (header.msg_len as usize).min(RECV_BUFFER_LEN);
            slot.truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let control_len = header.msg_hdr.msg_controllen.min(CONTROL_LEN);
            slot.info = Info::read(&slot.control.0[..control_len]);
        }
        batch.filled = got;
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
