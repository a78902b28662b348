//! The thread that runs control services, daemons and the control API.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anabranch_paths::IsdAs;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{NetworkError, State, api};
use crate::control::ControlPlane;
use crate::control::services::{Role, Services, serve};
use crate::topology::As;

/// How often a daemon that stops is looked at, and how many times: a second in all.
const STOP_POLL: Duration = Duration::from_millis(5);
const STOP_POLLS_MAX: usize = 200;

/// One thread with a runtime; services are spawned onto it from outside.
pub(super) struct ServiceThread {
    handle: Handle,
    stop: watch::Sender<bool>,
    thread: Option<thread::JoinHandle<()>>,
    running: Mutex<HashMap<(IsdAs, &'static str), Running>>,
}

struct Running {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl ServiceThread {
    pub(super) fn start() -> Result<Self, NetworkError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, mut stopped) = watch::channel(false);
        let (ready, started) = mpsc::channel();
        let thread = thread::Builder::new().name("control".into()).spawn(move || {
            runtime.block_on(async move {
                _ = ready.send(());
                _ = stopped.changed().await;
            });
        })?;
        // Fails only if the thread ended before; then the services fail too, and say so.
        _ = started.recv();
        Ok(Self { handle, stop, thread: Some(thread), running: Mutex::default() })
    }

    /// Whether an AS's services run here.
    pub(super) fn runs(&self, isd_as: IsdAs) -> bool {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&(isd_as, CONTROL))
    }

    /// The control service and the daemon of an AS.
    pub(super) fn start_as(&self, plane: &Arc<ControlPlane>, home: &As) -> Result<(), NetworkError> {
        self.spawn(plane, home, Role::Control)?;
        self.spawn(plane, home, Role::Daemon)
    }

    pub(super) fn start_daemon(&self, plane: &Arc<ControlPlane>, home: &As) -> Result<(), NetworkError> {
        if !self.runs(home.isd_as) {
            return Err(NetworkError::NotHere(home.isd_as));
        }
        self.spawn(plane, home, Role::Daemon)
    }

    pub(super) fn stop_daemon(&self, isd_as: IsdAs) -> Result<(), NetworkError> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&(isd_as, DAEMON));
        let running = running.ok_or(NetworkError::NotHere(isd_as))?;
        // Who does not listen has ended already.
        _ = running.stop.send(true);
        for _ in 0..STOP_POLLS_MAX {
            if running.task.is_finished() {
                return Ok(());
            }
            thread::sleep(STOP_POLL);
        }
        Err(NetworkError::StillRunning(isd_as))
    }

    /// The control API; returns where it listens.
    pub(super) fn start_api(&self, address: SocketAddr, state: Arc<State>) -> Result<SocketAddr, NetworkError> {
        let bound = self.bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (bound, listener) = bound.map_err(|error| NetworkError::BindApi(address, error))?;
        self.handle.spawn(api::serve(state, listener));
        Ok(bound)
    }

    fn spawn(&self, plane: &Arc<ControlPlane>, home: &As, role: Role) -> Result<(), NetworkError> {
        let (what, address) = match role {
            Role::Daemon => (DAEMON, home.daemon),
            Role::Control => (CONTROL, home.control),
        };
        let isd_as = home.isd_as;
        let bound = self.bind(address);
        let listener = bound.map_err(|error| NetworkError::Bind { what, isd_as, address, error })?;
        let services = Arc::new(Services::new(plane.clone(), isd_as)?);
        let (stop, stopped) = watch::channel(false);
        let task = self.handle.spawn(serve(services, role, listener, stopped));
        self.running.lock().unwrap_or_else(PoisonError::into_inner).insert((isd_as, what), Running { stop, task });
        Ok(())
    }

    fn bind(&self, address: SocketAddr) -> std::io::Result<TcpListener> {
        let listener = StdListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let _in_runtime = self.handle.enter();
        TcpListener::from_std(listener)
    }
}

const DAEMON: &str = "daemon";
const CONTROL: &str = "control service";

impl Drop for ServiceThread {
    fn drop(&mut self) {
        _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            // If it panicked, it has said so itself.
            _ = thread.join();
        }
    }
}
