//! A thread that takes connections on a port of the loopback until it is told to stop.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{Error, Result};

/// How long waking the thread may take: on the loopback there is nothing to wait for.
const WAKE_LIMIT: Duration = Duration::from_millis(200);

/// A running acceptor; it stops when dropped. Connections that it handed out live on.
pub struct Acceptor {
    /// Where it listens.
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Acceptor {
    /// Hands every connection to `handle`, one after the other, `connections_max` of them at most.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(connections_max: usize, handle: impl FnMut(TcpStream) + Send + 'static) -> Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), connections_max, handle)
    }

    /// The same at `address`.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn start_at(
        address: SocketAddr,
        connections_max: usize,
        mut handle: impl FnMut(TcpStream) + Send + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind(address).map_err(Error::system(format!("listening at {address}")))?;
        let address = listener.local_addr().map_err(Error::system("local address"))?;
        let stop = Arc::new(AtomicBool::new(false));
        std::thread::spawn({
            let stop = stop.clone();
            move || {
                for stream in listener.incoming().take(connections_max).map_while(std::result::Result::ok) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    handle(stream);
                }
            }
        });
        Ok(Self { address, stop })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        TcpStream::connect_timeout(&self.address, WAKE_LIMIT).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn takes_as_many_as_it_may_and_no_more() {
        let (tell, told) = mpsc::channel();
        let acceptor = Acceptor::start(2, move |stream| tell.send(stream).unwrap()).unwrap();
        let _held: Vec<_> = (0..2).map(|_| TcpStream::connect(acceptor.address).unwrap()).collect();
        assert_eq!(told.iter().count(), 2, "the thread ends, and with it the channel");
    }

    #[test]
    fn stops_when_dropped() {
        let (tell, told) = mpsc::channel::<()>();
        let acceptor = Acceptor::start(2, move |_| tell.send(()).unwrap()).unwrap();
        drop(acceptor);
        assert_eq!(told.iter().count(), 0);
    }
}
