//! The thread that moves an endpoint's packets.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use noq::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A thread with a runtime of its own; lives as long as somebody holds it.
#[derive(Debug)]
pub(super) struct Driver {
    handle: Handle,
    /// Dropped with the last holder, which ends the thread.
    _stop: oneshot::Sender<()>,
}

impl Driver {
    /// Starts it.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        std::thread::Builder::new().name("quic".to_owned()).spawn(move || {
            // Nothing is ever sent: the channel only ends.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Arc::new(Self { handle, _stop: stop }))
    }

    /// The runtime of the thread.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What noq runs on.
    pub(super) fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(OnThread(self.handle.clone()))
    }
}

/// Tokio as noq sees it, from whichever thread it calls.
#[derive(Debug)]
struct OnThread(Handle);

impl Runtime for OnThread {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _inside = self.0.enter();
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Box<dyn AsyncUdpSocket>> {
        let _inside = self.0.enter();
        TokioRuntime.wrap_udp_socket(socket)
    }
}
