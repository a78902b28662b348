//! A connection's task, as others see it.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use anabranch_paths::Host;
use anabranch_transport::StreamStats;
use tokio::sync::Notify;

use super::admission::Place;

/// How others reach a connection's task.
pub(crate) struct ConnHandle {
    notify: Notify,
    close: RefCell<Option<String>>,
    closing: Cell<bool>,
    readahead_done: Cell<bool>,
    /// When payload moved last, either way, or when the connection began.
    moved: Cell<Instant>,
    /// Who is at its other end.
    host: Host,
    stats: Cell<Option<StreamStats>>,
}

impl ConnHandle {
    /// A connection with `host` begins.
    pub(crate) fn new(host: Host, now: Instant) -> Self {
        Self {
            notify: Notify::new(),
            close: RefCell::default(),
            closing: Cell::new(false),
            readahead_done: Cell::new(false),
            moved: Cell::new(now),
            host,
            stats: Cell::new(None),
        }
    }

    /// Its place among the connections.
    pub(crate) fn place(&self) -> Place {
        Place { host: self.host, moved: self.moved.get() }
    }

    /// What the transport measured lately of a connection that is at work.
    pub(crate) fn stats(&self) -> Option<StreamStats> {
        self.stats.get()
    }

    /// The transport measured this.
    pub(crate) fn measured(&self, stats: StreamStats) {
        self.stats.set(Some(stats));
    }

    /// There is something to send.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    /// The connection is to end.
    pub(crate) fn close(&self, reason: String) {
        if !self.closing.replace(true) {
            *self.close.borrow_mut() = Some(reason);
        }
        self.notify.notify_one();
    }

    /// What the connection is to send next was read from disk.
    pub(crate) fn readahead_done(&self) {
        self.readahead_done.set(true);
        self.notify.notify_one();
    }

    /// Whether [`ConnHandle::readahead_done`] was called since this was asked last.
    pub(crate) fn take_readahead_done(&self) -> bool {
        self.readahead_done.take()
    }

    /// Payload moved.
    pub(crate) fn moved(&self, now: Instant) {
        self.moved.set(now);
    }

    /// Why the connection is to end, if it is.
    pub(crate) fn take_close(&self) -> Option<String> {
        self.close.borrow_mut().take()
    }

    /// Whether the connection is to end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Waits for [`ConnHandle::wake`] or [`ConnHandle::close`].
    pub(crate) async fn notified(&self) {
        self.notify.notified().await;
    }
}
