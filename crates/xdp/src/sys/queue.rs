//! One AF_XDP socket at one queue of an interface: memory for frames, and the four rings through which they change hands.
//!
//! The crate behind it leaves three things to its user. Frames must not outlive their memory: a [`Queue`] owns both,
//! lends frames to closures only, and closes the socket before the memory goes. A frame that is with the kernel must not
//! be touched: frames come from the free list or from the receive ring, and go to the transmit or the fill ring, nowhere else. And
//! no more frames may be on their way than the rings take: [`TX_FRAMES`] are counted, the others belong to receiving.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xdp::nic::NicIndex;
use xdp::slab::{Slab, StackSlab};
use xdp::socket::{SocketError, XdpSocket, XdpSocketBuilder};
use xdp::umem::{FrameSize, UmemCfgBuilder};
use xdp::{CompletionRing, RingConfigBuilder, RxRing, Umem, WakableFillRing, WakableTxRing};

/// Frames that wait to be read: 2.4 ms of 10 Gbit/s in packets of 1500 bytes, what a reader may be away.
const RX_FRAMES: u32 = 2048;
/// Frames on their way out: half of that, and as many as two bursts of the system's sockets take eight times.
pub(crate) const TX_FRAMES: u32 = 1024;
/// Frames that change hands at once.
pub(crate) const BATCH: usize = 64;
/// Frames that the kernel sends in one call where it copies them (`TX_BATCH_SIZE`).
const KICK_FRAMES: usize = 32;
/// Bytes in front of a received frame that the kernel keeps for the program (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// What the kernel may hold of packets that it has made of our frames and that have not left: all of them, with its own
/// structures.
const SEND_BUFFER_BYTES: libc::c_int = TX_FRAMES as libc::c_int * 8192;

/// A socket and its frames.
pub(crate) struct Queue {
    // Dropped in this order: rings and socket before the memory that they point to.
    rx: Mutex<Rx>,
    tx: Mutex<Tx>,
    socket: XdpSocket,
    frames: Mutex<Umem>,
}

struct Rx {
    ring: RxRing,
    fill: WakableFillRing,
}

struct Tx {
    ring: WakableTxRing,
    completion: CompletionRing,
    /// Frames that are with the kernel.
    in_flight: usize,
    /// Frames handed over since the kernel last took all.
    unsent: usize,
}

/// Which step failed, and what the kernel said.
pub(crate) type Failure = (&'static str, io::Error);

impl Queue {
    /// Bytes of memory that [`Queue::bind`] locks for frames of so many bytes.
    pub(crate) fn memory_bytes(frame_len: usize) -> usize {
        (RX_FRAMES + TX_FRAMES) as usize * (frame_len + HEADROOM).next_power_of_two()
    }

    /// The longest frame where one of `wanted` bytes shall fit, if possible.
    pub(crate) fn frame_len_max(wanted: usize) -> usize {
        let sizes = [2048, 4096].map(|size| size - HEADROOM);
        if wanted <= sizes[0] { sizes[0] } else { sizes[1] }
    }

    /// A socket at queue `queue` of interface number `interface`, for frames of up to `frame_len` bytes
    /// ([`Queue::frame_len_max`]). What it receives it is given by a program.
    pub(crate) fn bind(interface: u32, queue: u32, frame_len: usize) -> Result<Self, Failure> {
        let impossible = |error: xdp::error::Error| ("memory for frames", io::Error::other(error.to_string()));
        let frame_size = if frame_len + HEADROOM <= 2048 { FrameSize::TwoK } else { FrameSize::FourK };
        let memory = UmemCfgBuilder { frame_size, frame_count: RX_FRAMES + TX_FRAMES, ..UmemCfgBuilder::default() };
        let memory = memory.build().map_err(impossible)?;
        let mut frames = Umem::map(memory).map_err(|error| ("memory for frames", error))?;
        let mut builder = XdpSocketBuilder::new().map_err(failure)?;
        set_send_buffer(&builder);
        let rings = RingConfigBuilder {
            rx_count: RX_FRAMES,
            tx_count: TX_FRAMES,
            fill_count: RX_FRAMES,
            completion_count: TX_FRAMES,
        };
        let rings = rings.build().map_err(impossible)?;
        let (rings, flags) = builder.build_wakable_rings(&frames, rings).map_err(failure)?;
        let (Some(rx), Some(tx)) = (rings.rx_ring, rings.tx_ring) else {
            return Err(("rings", io::Error::other("there are none")));
        };
        let mut fill = rings.fill_ring;
        // SAFETY: the memory goes after the socket (the order of the fields).
        unsafe { fill.enqueue(&mut frames, RX_FRAMES as usize, false) }.map_err(|error| ("the fill ring", error))?;
        let socket = builder.bind(NicIndex(interface), queue, flags).map_err(failure)?;
        Ok(Self {
            rx: Mutex::new(Rx { ring: rx, fill }),
            tx: Mutex::new(Tx { ring: tx, completion: rings.completion_ring, in_flight: 0, unsent: 0 }),
            socket,
            frames: Mutex::new(frames),
        })
    }

    /// Readable while frames wait.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }

    /// Whether the driver reads and writes the frames' memory itself.
    pub(crate) fn is_zero_copy(&self) -> bool {
        let mut options: u32 = 0;
        let mut len = mem::size_of_val(&options) as libc::socklen_t;
        let fd = self.socket.as_raw_fd();
        // SAFETY: the number lives over the call and has `len` bytes.
        let answer =
            unsafe { libc::getsockopt(fd, libc::SOL_XDP, libc::XDP_OPTIONS, (&raw mut options).cast(), &raw mut len) };
        answer == 0 && options & libc::XDP_OPTIONS_ZEROCOPY != 0
    }

    /// Frames that the kernel dropped because none was free for them, or the ring was full.
    pub(crate) fn dropped(&self) -> u64 {
        self.socket.statistics().map_or(0, |statistics| {
            statistics.rx_dropped + statistics.rx_ring_full + statistics.rx_fill_ring_empty_descs
        })
    }

    /// Sends up to `count` frames, at most [`BATCH`]: `write` gets the number and the memory of each, and says how many of
    /// its bytes are used. How many were handed over: at least one.
    ///
    /// # Errors
    /// `WouldBlock` if all frames are on their way; else the interface is down or gone, and nothing was handed over.
    pub(crate) fn send(&self, count: usize, mut write: impl FnMut(usize, &mut [u8]) -> usize) -> io::Result<usize> {
        let mut tx = lock(&self.tx);
        let mut empty = StackSlab::<BATCH>::new();
        {
            let mut frames = lock(&self.frames);
            tx.reclaim(&mut frames);
            let room = (TX_FRAMES as usize - tx.in_flight).min(BATCH);
            for _ in 0..count.min(room) {
                // SAFETY: the frame goes to the transmit ring or back, below; both within the memory's life.
                let Some(frame) = (unsafe { frames.alloc() }) else { break };
                empty.push_front(frame);
            }
        }
        if empty.is_empty() {
            // What was handed over before may wait for a call.
            self.kick(&mut tx)?;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut written = StackSlab::<BATCH>::new();
        let mut at = 0;
        while let Some(mut frame) = empty.pop_back() {
            let room = frame.capacity();
            // Both stay within the frame, so neither fails.
            let _ = frame.adjust_tail(room as i32);
            let len = write(at, &mut frame).min(room);
            let _ = frame.adjust_tail(len as i32 - room as i32);
            written.push_front(frame);
            at += 1;
        }
        // SAFETY: the memory goes after the socket (the order of the fields).
        let sent = unsafe { tx.ring.send(&mut written, false) };
        // The ring has a place for every frame that may be on its way, so none is left over.
        let sent = sent.unwrap_or(0);
        while let Some(frame) = written.pop_back() {
            lock(&self.frames).free_packet(frame);
        }
        tx.in_flight += sent;
        tx.unsent += sent;
        self.kick(&mut tx)?;
        Ok(sent)
    }

    /// Asks the kernel to send what it was handed.
    fn kick(&self, tx: &mut Tx) -> io::Result<()> {
        for _ in 0..=tx.unsent.div_ceil(KICK_FRAMES) {
            // SAFETY: no pointers.
            let answer = unsafe {
                libc::sendto(self.socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
            };
            if answer >= 0 {
                tx.unsent = 0;
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // More than it sends at once; or the device has no room, and the next call tries again.
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                _ => return Err(error),
            }
        }
        Ok(())
    }

    /// Lends up to `count` received frames, at most [`BATCH`], to `take`, in order; how many there were.
    pub(crate) fn receive(&self, count: usize, mut take: impl FnMut(&[u8])) -> usize {
        let mut rx = lock(&self.rx);
        let mut received = Limited { slab: StackSlab::new(), left: count.min(BATCH) };
        {
            let frames = lock(&self.frames);
            // SAFETY: the frames go back below, within the memory's life.
            unsafe { rx.ring.recv(&frames, &mut received) };
        }
        if received.is_empty() {
            return 0;
        }
        let mut done = StackSlab::<BATCH>::new();
        while let Some(frame) = received.pop_back() {
            // The socket takes no frames of several buffers.
            if !frame.is_continued() {
                take(&frame);
            }
            done.push_front(frame);
        }
        let count = done.len();
        let mut frames = lock(&self.frames);
        while let Some(frame) = done.pop_back() {
            frames.free_packet(frame);
        }
        // A reader that waits does so in poll(2), which wakes the driver where that is needed.
        // SAFETY: the memory goes after the socket (the order of the fields).
        let _ = unsafe { rx.fill.enqueue(&mut frames, count, false) };
        count
    }
}

impl Tx {
    /// Takes back what has left.
    fn reclaim(&mut self, frames: &mut Umem) {
        let done = self.completion.dequeue(frames, TX_FRAMES as usize);
        self.in_flight -= done.min(self.in_flight);
    }
}

/// A slab that takes no more than was asked for.
struct Limited {
    slab: StackSlab<BATCH>,
    left: usize,
}

impl Slab for Limited {
    fn available(&self) -> usize {
        self.left.min(self.slab.available())
    }

    fn len(&self) -> usize {
        self.slab.len()
    }

    fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    fn push_front(&mut self, packet: xdp::Packet) -> Option<xdp::Packet> {
        self.left = self.left.saturating_sub(1);
        self.slab.push_front(packet)
    }

    fn pop_back(&mut self) -> Option<xdp::Packet> {
        self.slab.pop_back()
    }
}

/// Beyond the system's limit if that is allowed. Without it, less is on its way at once.
fn set_send_buffer(socket: &impl AsRawFd) {
    let bytes = SEND_BUFFER_BYTES;
    let len = mem::size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the number lives over the call and has `len` bytes.
    unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, (&raw const bytes).cast(), len)
    };
}

fn failure(error: SocketError) -> Failure {
    match error {
        SocketError::SocketCreation(error) => ("an AF_XDP socket", error),
        SocketError::Bind(error) => ("another AF_XDP socket", error),
        SocketError::SetSockOpt { inner, .. } | SocketError::GetSockOpt { inner, .. } => ("memory for frames", inner),
        SocketError::RingMap { inner, .. } => ("a ring", inner),
    }
}

// A panic of the closure leaves frames lent for ever, and nothing half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
