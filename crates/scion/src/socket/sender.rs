//! Sending, without a packet lost for want of room in the kernel.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use anabranch_udp::Message;
use tokio::io::Interest;

use super::Shared;
use super::counters::add;
use super::outbound::{BURSTS_MAX, Burst, Cursor, Outbox, Transmit};

/// Sends over a socket's routes. Each task has one of its own: it waits for room on its own, and its buffers are reused.
pub struct Sender {
    shared: Arc<Shared>,
    outbox: Outbox,
    /// Waits until the kernel takes more.
    writable: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("local", &self.shared.core.local()).finish_non_exhaustive()
    }
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, outbox: Outbox::default(), writable: None }
    }

    /// Packets that one transmit may have to leave as one burst.
    pub fn segments_max(&self) -> usize {
        self.shared.io.get_ref().segments_max()
    }

    /// Sends as many of `transmits` as the kernel takes now, in order, and says how many. Of the last one, packets may be
    /// lost for want of room in the kernel; [`super::Counters::packets_unsent`] counts them.
    ///
    /// # Errors
    /// Nothing was sent, because of the first transmit: `WouldBlock` if the kernel's buffer is full, `NotConnected` if its
    /// route is gone, `EMSGSIZE` if its packets exceed the path's MTU, else what the kernel says of the next hop. But for
    /// `WouldBlock`, skip it.
    pub fn try_send(&mut self, transmits: &[Transmit<'_>]) -> io::Result<usize> {
        send(&self.shared, &mut self.outbox, transmits)
    }

    /// As [`Sender::try_send`], but registers the task to be woken where that would block.
    ///
    /// # Errors
    /// As [`Sender::try_send`], without `WouldBlock`.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, transmits: &[Transmit<'_>]) -> Poll<io::Result<usize>> {
        loop {
            if let Some(writable) = &mut self.writable {
                let is_writable = ready!(writable.as_mut().poll(cx));
                self.writable = None;
                is_writable?;
            }
            let (shared, outbox) = (&self.shared, &mut self.outbox);
            match shared.io.try_io(Interest::WRITABLE, |_| send(shared, outbox, transmits)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let shared = self.shared.clone();
                    self.writable = Some(Box::pin(async move { shared.io.writable().await.map(|_| ()) }));
                }
                done => return Poll::Ready(done),
            }
        }
    }

    /// Sends all of `transmits`, waiting for room.
    ///
    /// # Errors
    /// As [`Sender::try_send`], without `WouldBlock`. What came before the transmit in question was sent.
    pub async fn send(&mut self, transmits: &[Transmit<'_>]) -> io::Result<()> {
        let mut sent = 0;
        while sent < transmits.len() {
            sent += std::future::poll_fn(|cx| self.poll_send(cx, &transmits[sent..])).await?;
        }
        Ok(())
    }
}

/// See [`Sender::try_send`].
pub(super) fn send(shared: &Shared, outbox: &mut Outbox, transmits: &[Transmit<'_>]) -> io::Result<usize> {
    let socket = shared.io.get_ref();
    let mut cursor = Cursor::default();
    let mut done = 0;
    loop {
        outbox.clear();
        let made = shared.core.outbound(outbox, transmits, &mut cursor, socket.segments_max());
        if outbox.bursts.is_empty() {
            return if done == 0 { made.map(|()| 0) } else { Ok(done) };
        }
        match flush(shared, outbox) {
            Ok(()) => done = cursor.transmit,
            // Its first burst did not go: the transmit is as new.
            Err((error, burst)) if burst.is_first => {
                return if burst.transmit == 0 { Err(error) } else { Ok(burst.transmit) };
            }
            Err((_, burst)) => {
                let left = &transmits[burst.transmit].payload[burst.payload_start..];
                let segment_len = transmits[burst.transmit].segment_len.max(1);
                add(&shared.core.counting.packets_unsent, left.len().div_ceil(segment_len) as u64);
                return Ok(burst.transmit + 1);
            }
        }
    }
}

/// Hands the outbox to the kernel; fails with the first burst that it does not take.
fn flush(shared: &Shared, outbox: &Outbox) -> Result<(), (io::Error, Burst)> {
    let bursts = &outbox.bursts[..outbox.bursts.len().min(BURSTS_MAX)];
    let mut parts = [IoSlice::new(&[]); BURSTS_MAX];
    for (part, burst) in parts.iter_mut().zip(bursts) {
        *part = IoSlice::new(outbox.burst_bytes(burst));
    }
    let message = |at: usize| match bursts.get(at) {
        Some(burst) => Message::burst(burst.to, std::slice::from_ref(&parts[at]), burst.packet_len),
        None => Message::new(shared.core.local().host, &[]),
    };
    let messages: [Message<'_>; BURSTS_MAX] = std::array::from_fn(message);
    let mut sent = 0;
    while sent < bursts.len() {
        match shared.io.get_ref().send(&messages[sent..bursts.len()]) {
            Ok(count) => {
                for burst in &bursts[sent..sent + count] {
                    add(&shared.core.counting.packets_sent, burst.packets as u64);
                    add(&shared.core.counting.bytes_sent, burst.payload_bytes as u64);
                }
                sent += count;
            }
            Err(error) => return Err((error, bursts[sent].clone())),
        }
    }
    Ok(())
}
