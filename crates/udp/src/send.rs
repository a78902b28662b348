//! Sending: many messages in one call, each perhaps a burst.

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use crate::DATAGRAM_LEN_MAX;
use crate::address::RawAddr;
use crate::control::{Control, Writer};
use crate::socket::{Socket, check};

/// Datagrams in one burst. Linux before 6.9 takes 64, later ones 128; receivers coalesce 64.
pub const SEGMENTS_MAX: usize = 64;
/// Parts of one message: the kernel's limit (`UIO_MAXIOV`).
pub const PARTS_MAX: usize = 1024;
/// Messages in one system call. Each takes about 250 bytes of stack, and at 32 the call's own cost is long spread thin.
const MESSAGES_MAX: usize = 32;

/// What to send to one destination: one datagram, or a burst of datagrams of one size.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Where to.
    pub to: SocketAddr,
    /// The bytes, scattered. Where one part ends and the next begins says nothing of where datagrams end.
    pub parts: &'a [IoSlice<'a>],
    /// Bytes of each datagram but the last, which may be shorter. At least the sum of all parts: one datagram.
    pub segment_len: usize,
    /// The two ECN bits of the IP header; zero is "not capable".
    pub ecn: u8,
    /// The source address, where the socket has several.
    pub from: Option<IpAddr>,
    /// The number of the interface to leave by; 0 leaves that to the system's routes. Over IPv6, and where the system would choose another
    /// source for it, Linux passes over this.
    pub interface: u32,
}

impl<'a> Message<'a> {
    /// One datagram.
    pub fn new(to: SocketAddr, parts: &'a [IoSlice<'a>]) -> Self {
        Self::burst(to, parts, usize::MAX)
    }

    /// Datagrams of `segment_len` bytes each, the last one perhaps shorter.
    pub fn burst(to: SocketAddr, parts: &'a [IoSlice<'a>], segment_len: usize) -> Self {
        Self { to, parts, segment_len, ecn: 0, from: None, interface: 0 }
    }

    fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    fn is_burst(&self) -> bool {
        // No full sum: a burst shows within its first parts.
        let mut room = self.segment_len;
        self.parts.iter().any(|part| match room.checked_sub(part.len()) {
            Some(left) => {
                room = left;
                false
            }
            None => true,
        })
    }

    fn check(&self) -> io::Result<()> {
        let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let len = self.len();
        if len > DATAGRAM_LEN_MAX {
            return refuse("a message is longer than 65,507 bytes: split it");
        }
        if self.segment_len == 0 || len.div_ceil(self.segment_len) > SEGMENTS_MAX {
            return refuse("a burst has more than 64 datagrams: split it");
        }
        if self.parts.len() > PARTS_MAX {
            return refuse("a message has more than 1024 parts: join some");
        }
        Ok(())
    }
}

impl Socket {
    /// Sends as many of `messages` as the kernel takes now, in order, and says how many.
    ///
    /// Where the kernel refuses a burst, it leaves as single datagrams; if the kernel's buffer fills in the middle of that,
    /// the rest of that burst is lost, as it may be anywhere on the way.
    ///
    /// # Errors
    /// Nothing was sent, because of the first message: `WouldBlock` if the kernel's buffer is full, `InvalidInput` if it
    /// breaks a limit ([`DATAGRAM_LEN_MAX`], [`SEGMENTS_MAX`], [`PARTS_MAX`]), else what the kernel says of its destination or
    /// size (`EMSGSIZE`): skip it.
    pub fn send(&self, messages: &[Message<'_>]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < messages.len() {
            match self.send_some(&messages[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if sent == 0 => return Err(error),
                // It comes again with the next call, if it still holds.
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// As [`Socket::send`], but no burst is cut apart, so that nothing of one is ever lost here.
    ///
    /// # Errors
    /// As [`Socket::send`]; and `EIO` or `EINVAL` if the first message is a burst that the kernel or the device refuses: send
    /// its datagrams one by one, as with all later ones if that works.
    pub fn send_whole(&self, messages: &[Message<'_>]) -> io::Result<usize> {
        let fitting = messages.iter().take(MESSAGES_MAX).take_while(|message| message.check().is_ok()).count();
        let Some(first) = messages.first() else { return Ok(0) };
        if fitting == 0 {
            first.check()?;
        }
        loop {
            match self.send_batch(&messages[..fitting]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// One system call's worth; `messages` is not empty.
    fn send_some(&self, messages: &[Message<'_>]) -> io::Result<usize> {
        let first = &messages[0];
        let gso = self.gso();
        // What cannot go in this call waits for the next one and is first then.
        let fits = |message: &&Message<'_>| message.check().is_ok() && (gso || !message.is_burst());
        let count = messages.iter().take(MESSAGES_MAX).take_while(fits).count();
        if count == 0 {
            first.check()?;
            return self.send_split(first);
        }
        match self.send_batch(&messages[..count]) {
            // The device cannot checksum what it cuts: never on this socket.
            Err(error) if error.raw_os_error() == Some(libc::EIO) && first.is_burst() => {
                self.disable_gso();
                self.send_split(first)
            }
            // This burst's datagrams are larger than the device's MTU, or the device's transforms exclude bursts.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && first.is_burst() => self.send_split(first),
            other => other,
        }
    }

    /// A burst as single datagrams.
    fn send_split(&self, burst: &Message<'_>) -> io::Result<usize> {
        let mut slices = Vec::with_capacity(burst.parts.len() + SEGMENTS_MAX);
        let mut ends = Vec::with_capacity(SEGMENTS_MAX);
        let mut room = burst.segment_len;
        for part in burst.parts {
            let mut part: &[u8] = part;
            while !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(room));
                slices.push(IoSlice::new(now));
                room -= now.len();
                part = later;
                if room == 0 {
                    ends.push(slices.len());
                    room = burst.segment_len;
                }
            }
        }
        if ends.last() != Some(&slices.len()) {
            ends.push(slices.len());
        }
        let mut from = 0;
        let single = |end: &usize| {
            let parts = &slices[mem::replace(&mut from, *end)..*end];
            Message { parts, segment_len: usize::MAX, ..*burst }
        };
        let datagrams: Vec<_> = ends.iter().map(single).collect();
        let mut sent = 0;
        while sent < datagrams.len() {
            let until = datagrams.len().min(sent + MESSAGES_MAX);
            match self.send_batch(&datagrams[sent..until]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(1)
    }

    /// `sendmmsg`; at most [`MESSAGES_MAX`] messages.
    fn send_batch(&self, messages: &[Message<'_>]) -> io::Result<usize> {
        let mut addresses = [const { MaybeUninit::<RawAddr>::uninit() }; MESSAGES_MAX];
        let mut controls = [const { MaybeUninit::<Control>::uninit() }; MESSAGES_MAX];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MESSAGES_MAX];
        let slots = addresses.iter_mut().zip(&mut controls).zip(&mut headers);
        for (message, ((address, control), header)) in messages.iter().zip(slots) {
            let (raw, name_len) = RawAddr::new(message.to, self.is_v6());
            let mut msg_hdr = empty_header();
            msg_hdr.msg_name = (address.write(raw) as *mut RawAddr).cast();
            msg_hdr.msg_namelen = name_len;
            // The kernel reads only; `IoSlice` is an `iovec` by its documented layout.
            msg_hdr.msg_iov = message.parts.as_ptr().cast_mut().cast();
            msg_hdr.msg_iovlen = message.parts.len() as _;
            if message.is_burst() || message.ecn != 0 || message.from.is_some() || message.interface != 0 {
                let control = control.write(Control::EMPTY);
                let mut writer = Writer::new(control);
                if message.is_burst() {
                    // `check` bounds the sum of all parts, and a burst's segment is shorter than that.
                    writer.segment_len(message.segment_len as u16);
                }
                if message.ecn != 0 {
                    writer.ecn(message.to.ip(), message.ecn);
                }
                if message.from.is_some() || message.interface != 0 {
                    let from = self.named_source(message.from, message.interface, message.to.ip());
                    writer.source(from, message.interface, self.is_v6());
                }
                msg_hdr.msg_controllen = writer.len() as _;
                msg_hdr.msg_control = (control as *mut Control).cast();
            }
            header.write(libc::mmsghdr { msg_hdr, msg_len: 0 });
        }
        let count = messages.len().min(MESSAGES_MAX) as libc::c_uint;
        // SAFETY: the first `count` headers were written above; what they point to (addresses, controls, the caller's parts)
        // lives until after the call.
        let sent = unsafe { libc::sendmmsg(self.as_raw_fd(), headers.as_mut_ptr().cast(), count, 0) };
        Ok(check(sent)? as usize)
    }
}

/// A header that points nowhere.
pub(crate) fn empty_header() -> libc::msghdr {
    // SAFETY: plain C data, for which zero is "nothing".
    unsafe { mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, RecvBatch};

    #[test]
    fn a_burst_that_is_refused_leaves_as_datagrams() {
        let bind = || Socket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
        let (a, b) = (bind(), bind());
        a.disable_gso();
        assert_eq!(a.segments_max(), 1);
        let payload: Vec<u8> = (0..=255).cycle().take(1000 * 40 + 300).collect();
        let parts: Vec<_> = payload.chunks(1501).map(IoSlice::new).collect();
        let burst = Message::burst(b.local_addr(), &parts, 1000);
        let small = [IoSlice::new(&[1])];
        assert_eq!(a.send(&[burst, Message::new(b.local_addr(), &small)]).unwrap(), 2);
        let mut got = Vec::new();
        let mut batch = RecvBatch::new(32);
        while b.recv(&mut batch).is_ok() {
            got.extend(batch.iter().flat_map(|received| received.segments().map(<[u8]>::to_vec).collect::<Vec<_>>()));
        }
        assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [vec![1000; 40], vec![300, 1]].concat());
        assert_eq!(got.concat(), [payload, vec![1]].concat());
    }
}
