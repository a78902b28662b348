//! A stream whose bytes go through a cipher on their way, for protocols that agree on one by themselves.
//!
//! It lies over any [`Stream`], and has the same calls. Nothing is kept of what comes: it is received into memory that all such streams
//! of a thread share, decrypted there, and copied to where the caller wants it. Of what goes, only what the stream below did not take
//! is kept, at most [`PORTION_LEN`] bytes. Files are read into that memory too, instead of being sent without a copy.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::task::{Context, Poll};

use crate::Stream;

/// Bytes that are encrypted or decrypted at once: few enough to stay in the processor's caches.
const PORTION_LEN: usize = 64 * 1024;

thread_local! {
    static PORTION: RefCell<Box<[u8]>> = RefCell::new(vec![0; PORTION_LEN].into());
}

/// One direction's cipher: bytes are taken in the order of the stream.
pub trait StreamCipher {
    /// Encrypts the next bytes, or decrypts them.
    fn apply(&mut self, bytes: &mut [u8]);
}

/// A stream under a cipher.
pub struct EncryptedStream {
    inner: Stream,
    receive: RefCell<Box<dyn StreamCipher>>,
    sending: RefCell<Sending>,
}

struct Sending {
    cipher: Box<dyn StreamCipher>,
    /// Bytes that are encrypted, and were not taken yet.
    pending: Vec<u8>,
}

impl EncryptedStream {
    /// What follows on `inner` goes through the ciphers.
    pub fn new(inner: Stream, receive: Box<dyn StreamCipher>, send: Box<dyn StreamCipher>) -> Self {
        let sending = Sending { cipher: send, pending: Vec::new() };
        Self { inner, receive: RefCell::new(receive), sending: RefCell::new(sending) }
    }

    /// The stream below.
    pub fn inner(&self) -> &Stream {
        &self.inner
    }

    /// See [`Stream::try_recv`].
    ///
    /// # Safety
    /// Every entry must describe memory that is valid for writes of its length and that nothing else touches during the call.
    pub(crate) unsafe fn try_recv(&self, buffers: &mut [libc::iovec]) -> io::Result<usize> {
        let mut cipher = self.receive.borrow_mut();
        let room: usize = buffers.iter().map(|buffer| buffer.iov_len).sum();
        let mut places = buffers.iter().map(|buffer| (buffer.iov_base.cast::<u8>(), buffer.iov_len));
        let mut place = (std::ptr::null_mut(), 0);
        PORTION.with_borrow_mut(|portion| {
            let mut received = 0;
            while received < room {
                let wanted = portion.len().min(room - received);
                let mut entry = [libc::iovec { iov_base: portion.as_mut_ptr().cast(), iov_len: wanted }];
                // SAFETY: the entry describes memory that is borrowed exclusively here.
                let len = match unsafe { self.inner.try_recv(&mut entry) } {
                    // What came before is told first; the end, or the failure, is met again.
                    Ok(0) | Err(_) if received > 0 => return Ok(received),
                    Ok(0) => return Ok(0),
                    Ok(len) => len,
                    Err(error) => return Err(error),
                };
                let mut bytes = &mut portion[..len];
                cipher.apply(bytes);
                while !bytes.is_empty() {
                    if place.1 == 0 {
                        let Some(next) = places.next() else { break };
                        place = next;
                    }
                    let (part, rest) = bytes.split_at_mut(place.1.min(bytes.len()));
                    // SAFETY: the caller vouches for the entry, of which `place` is what is left; `part` is no longer than that,
                    // and lies in memory of this thread's own.
                    unsafe {
                        std::ptr::copy_nonoverlapping(part.as_ptr(), place.0, part.len());
                        place = (place.0.add(part.len()), place.1 - part.len());
                    }
                    bytes = rest;
                }
                received += len;
                if len < wanted {
                    return Ok(received);
                }
            }
            Ok(received)
        })
    }

    /// See [`Stream::try_send`].
    pub(crate) fn try_send(&self, buffers: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        self.send_portion(more, |portion| {
            let mut len = 0;
            for buffer in buffers {
                let take = buffer.len().min(portion.len() - len);
                portion[len..len + take].copy_from_slice(&buffer[..take]);
                len += take;
            }
            Ok(len)
        })
    }

    /// See [`Stream::try_send_file`].
    pub(crate) fn try_send_file(&self, file: &File, offset: u64, len: usize) -> io::Result<usize> {
        self.send_portion(true, |portion| {
            let len = len.min(portion.len());
            file.read_at(&mut portion[..len], offset)
        })
    }

    /// Encrypts and sends what `fill` answers the length of, once all that went before was taken.
    fn send_portion(&self, more: bool, fill: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        let mut sending = self.sending.borrow_mut();
        if !sending.send_pending(&self.inner)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        PORTION.with_borrow_mut(|portion| {
            let len = fill(portion)?;
            let bytes = &mut portion[..len];
            sending.cipher.apply(bytes);
            if len > 0 {
                let sent = taken(self.inner.try_send(&[IoSlice::new(bytes)], more))?;
                sending.pending.extend_from_slice(&bytes[sent..]);
            }
            Ok(len)
        })
    }

    /// See [`Stream::flush`].
    pub(crate) fn flush(&self) -> io::Result<bool> {
        Ok(self.sending.borrow_mut().send_pending(&self.inner)? && self.inner.flush()?)
    }

    /// See [`Stream::poll_recv_ready`].
    pub(crate) fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_recv_ready(cx)
    }

    /// See [`Stream::poll_send_ready`].
    pub(crate) fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_send_ready(cx)
    }
}

impl Sending {
    /// Sends what is encrypted; answers whether all of it was taken.
    fn send_pending(&mut self, inner: &Stream) -> io::Result<bool> {
        while !self.pending.is_empty() {
            let sent = taken(inner.try_send(&[IoSlice::new(&self.pending)], false))?;
            if sent == 0 {
                return Ok(false);
            }
            self.pending.drain(..sent);
        }
        // Most streams wait for the network now and then only: the memory is others' meanwhile.
        self.pending = Vec::new();
        Ok(true)
    }
}

/// How much was taken: nothing, where that would block.
fn taken(sent: io::Result<usize>) -> io::Result<usize> {
    match sent {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
        sent => sent,
    }
}

impl fmt::Debug for EncryptedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptedStream").field("inner", &self.inner).finish_non_exhaustive()
    }
}
