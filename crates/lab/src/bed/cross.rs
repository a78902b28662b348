//! Cross traffic by TCP over one link: connections from one of its routers to the other, which send as fast as they can.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Bed, BedError, addresses, system};
use crate::netns::NetnsError;
use crate::wire::CROSS_TCP_PORTS;

/// Bytes that are sent and read in one go.
const CHUNK_BYTES: usize = 64 << 10;
/// How soon who waits sees that it is over.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a connection may take to come about; then another one is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Running connections; dropped, they end.
#[derive(Debug)]
pub(crate) struct Flows {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Bed {
    /// Starts so many connections that send what leaves one end of a link. `number` tells those that run at once from each other.
    ///
    /// # Errors
    /// When the port is taken or the system refuses.
    pub(crate) fn flows(&self, link: usize, way: usize, number: usize, count: u32) -> Result<Flows, BedError> {
        let ends = self.ends[link].map(|at| &self.ases[at]);
        let [near, far] = [way, 1 - way].map(|end| addresses::link(link, end));
        // Events and directions are limited, and so are their numbers.
        let port = CROSS_TCP_PORTS.start() + (2 * number + way) as u16;
        let target = SocketAddr::from((far, port));
        let listener =
            ends[1 - way].enter(|| TcpListener::bind(target).map_err(system("listening for cross traffic")))?;
        listener.set_nonblocking(true).map_err(system("listening for cross traffic"))?;
        let over = Arc::new(AtomicBool::new(false));
        let mut flows = Flows { over: over.clone(), threads: Vec::new() };
        flows.threads.push(thread::spawn({
            let over = over.clone();
            move || take(&listener, &over)
        }));
        for _ in 0..count {
            let (inside, over) = (ends[way].open()?, over.clone());
            flows.threads.push(thread::spawn(move || give(&inside, near, target, &over)));
        }
        Ok(flows)
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            thread.join().ok();
        }
    }
}

/// Accepts connections and reads what they bring.
fn take(listener: &TcpListener, over: &AtomicBool) {
    thread::scope(|scope| {
        while !over.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    scope.spawn(move || drain(stream, over));
                }
                Err(_) => thread::sleep(LOOK_EVERY),
            }
        }
    });
}

fn drain(mut stream: TcpStream, over: &AtomicBool) {
    // Without a timeout it would see late that it is over, no more.
    stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(LOOK_EVERY))).ok();
    let mut chunk = vec![0; CHUNK_BYTES];
    while !over.load(Ordering::Relaxed) {
        match stream.read(&mut chunk) {
            Ok(0) => return,
            Err(error) if !is_pause(&error) => return,
            _ => {}
        }
    }
}

/// Keeps one connection full, and makes another one where it breaks.
fn give(inside: &File, from: Ipv4Addr, to: SocketAddr, over: &AtomicBool) {
    // SAFETY: a valid descriptor of a namespace; only this thread moves, and it ends with this function.
    if unsafe { libc::setns(inside.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
        eprintln!("no cross traffic from {from}: {}", NetnsError::last_os("setns"));
        return;
    }
    let chunk = vec![0; CHUNK_BYTES];
    while !over.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect_timeout(&to, CONNECT_TIMEOUT) else {
            thread::sleep(LOOK_EVERY);
            continue;
        };
        let name = b"cubic";
        // SAFETY: the name's bytes live across the call, which copies them. Where it is refused, the machine's default is used.
        unsafe {
            let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
            libc::setsockopt(stream.as_raw_fd(), level, option, name.as_ptr().cast(), name.len() as libc::socklen_t);
        }
        stream.set_write_timeout(Some(LOOK_EVERY)).ok();
        while !over.load(Ordering::Relaxed) {
            match stream.write(&chunk) {
                Err(error) if !is_pause(&error) => break,
                _ => {}
            }
        }
    }
}

fn is_pause(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
