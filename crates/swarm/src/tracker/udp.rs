//! Announces over UDP: retransmission and connection ids (BEP 15).
//!
//! All announces to one tracker address share one connected socket, so a tracker that binds connection ids to our port
//! is content, a thousand torrents cost one descriptor, and "connection refused" reaches us. A reader task per socket
//! hands datagrams to whoever waits for their transaction. Behind a proxy, a socket is a relay of the proxy's, for one tracker
//! by its name, and lasts as long as the proxy keeps it. While nobody waits for a tracker, nothing is read of its socket: what it sends
//! unasked fills the kernel's buffer, and costs us no time.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_bittorrent::tracker::ReplyError;
use anabranch_bittorrent::tracker::udp::{
    self, CONNECTION_ID_USED, DATAGRAM_BYTES_MAX, RETRANSMIT_EXPONENT_MAX, reply_transaction,
};
use anabranch_transport::{UDP_HEADER_LEN_MAX, UdpRelay, UdpTarget};
use tokio::net::UdpSocket;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::access::TrackerAccess;
use super::error::Cause;

/// UDP announces at once: they share sockets by tracker, so they cost memory only.
pub const UDP_ANNOUNCES_MAX: usize = 512;
/// Sockets kept open, one a tracker address. As many as announces that may be under way at once, so that an idle one
/// can always be found to close.
pub(super) const SESSIONS_MAX: usize = UDP_ANNOUNCES_MAX;
/// Pause after a socket error, so that one that persists does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// The sockets that are open.
#[derive(Default)]
pub(super) struct Sessions {
    by_target: Mutex<HashMap<UdpTarget, Arc<Session>>>,
}

impl Sessions {
    /// The socket for `target`, a new one if there is none, through a proxy if there is one; without it, `target` is an address.
    /// Idle ones whose connection id has run out are closed.
    pub(super) async fn get(&self, target: &UdpTarget, access: &TrackerAccess) -> Result<Arc<Session>, Cause> {
        {
            let mut sessions = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(session) = sessions.get(target).filter(|session| !session.is_over()) {
                return Ok(session.clone());
            }
            sessions.remove(target);
            let is_idle = |session: &Arc<Session>| Arc::strong_count(session) == 1;
            sessions.retain(|_, session| !is_idle(session) || session.opened_at.elapsed() < CONNECTION_ID_USED);
            if sessions.len() >= SESSIONS_MAX {
                let idle = sessions.iter().find(|(_, session)| is_idle(session)).map(|(target, _)| target.clone());
                idle.and_then(|idle| sessions.remove(&idle));
            }
        }
        let way = match (access.proxy.as_deref(), target) {
            (Some(proxy), _) => Carrier::Relayed(proxy.associate(target.clone()).await.map_err(Cause::from_proxy)?),
            (None, UdpTarget::Address(addr)) => {
                Carrier::Direct(access.leave.datagrams(*addr).await.map_err(Cause::from_connect)?)
            }
            (None, UdpTarget::Name(..)) => return Err(Cause::NoAddress),
        };
        let session = Arc::new(Session::new(way, target));
        let mut sessions = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(sessions.entry(target.clone()).or_insert(session).clone())
    }

    /// The socket is of no use any more: the next who asks gets another.
    pub(super) fn leave(&self, target: &UdpTarget, session: &Arc<Session>) {
        let mut sessions = self.by_target.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.get(target).is_some_and(|present| Arc::ptr_eq(present, session)) {
            sessions.remove(target);
        }
    }
}

#[cfg(test)]
impl Sessions {
    /// Sockets open.
    pub(super) fn len(&self) -> usize {
        self.by_target.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

type Answer = Result<Vec<u8>, io::ErrorKind>;

/// Requests under way, by transaction.
#[derive(Default)]
struct Waiting {
    all: Mutex<HashMap<u32, oneshot::Sender<Answer>>>,
    /// There is one more.
    begun: Notify,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, oneshot::Sender<Answer>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How datagrams get to a tracker.
enum Carrier {
    Direct(UdpSocket),
    Relayed(UdpRelay),
}

impl Carrier {
    async fn send(&self, datagram: &[u8]) -> io::Result<()> {
        match self {
            Self::Direct(socket) => socket.send(datagram).await.map(|_| ()),
            // A relay that is gone: the reader hears of it too.
            Self::Relayed(relay) => relay.send(datagram).await.map_err(|_| io::ErrorKind::ConnectionAborted.into()),
        }
    }

    /// The next datagram, and whether it came by IPv6, where only the way of each tells.
    async fn recv<'a>(&self, buffer: &'a mut [u8]) -> io::Result<(&'a [u8], Option<bool>)> {
        match self {
            Self::Direct(socket) => socket.recv(buffer).await.map(|length| (&buffer[..length], None)),
            Self::Relayed(relay) => relay.recv(buffer).await.map(|(datagram, is_ipv6)| (datagram, Some(is_ipv6))),
        }
    }
}

/// What a session and its reader know of its way.
#[derive(Default)]
struct Known {
    is_ipv6: AtomicBool,
    is_over: AtomicBool,
}

/// A socket to one tracker address.
pub(super) struct Session {
    way: Arc<Carrier>,
    waiting: Arc<Waiting>,
    reader: AbortHandle,
    connection: tokio::sync::Mutex<Connection>,
    opened_at: Instant,
    known: Arc<Known>,
}

#[derive(Default)]
struct Connection {
    id: Option<(u64, Instant)>,
    /// Connects in a row without an answer: n of BEP 15.
    silences: u32,
}

impl Session {
    fn new(way: Carrier, target: &UdpTarget) -> Session {
        let (way, waiting, known) = (Arc::new(way), Arc::new(Waiting::default()), Arc::new(Known::default()));
        known.is_ipv6.store(matches!(target, UdpTarget::Address(addr) if addr.is_ipv6()), Ordering::Relaxed);
        let reader = tokio::spawn(read(way.clone(), waiting.clone(), known.clone())).abort_handle();
        Session { way, waiting, reader, connection: tokio::sync::Mutex::default(), opened_at: Instant::now(), known }
    }

    /// Whether the tracker's address, and so the form of its peers, is IPv6; of a name behind a proxy, as its last answer came.
    pub(super) fn is_ipv6(&self) -> bool {
        self.known.is_ipv6.load(Ordering::Relaxed)
    }

    /// Whether the proxy took it away.
    fn is_over(&self) -> bool {
        self.known.is_over.load(Ordering::Relaxed)
    }

    /// Sends what `build` makes of a connection id and a transaction until `read` accepts an answer. Waits 15·2^n s
    /// for each (BEP 15, "Time outs"), `first` being the 15 s; the caller bounds the whole.
    pub(super) async fn request<T>(
        &self,
        first: Duration,
        build: impl Fn(u64, u32) -> Vec<u8>,
        read: impl Fn(&[u8], u32) -> Result<T, ReplyError>,
    ) -> Result<T, Cause> {
        let mut has_renewed = false;
        for silences in 0..=RETRANSMIT_EXPONENT_MAX {
            let (id, is_fresh) = self.connection_id(first).await?;
            let transaction = fastrand::u32(..);
            let wait = first.saturating_mul(1 << silences);
            let Some(answer) = self.exchange(build(id, transaction), transaction, wait).await? else {
                // A tracker that was restarted is silent to ids from before.
                self.forget(id).await;
                continue;
            };
            match read(&answer, transaction) {
                Ok(value) => return Ok(value),
                // Maybe our address changed or the tracker was restarted: an id from before is worth a second try.
                Err(ReplyError::Refused(_)) if !is_fresh && !has_renewed => {
                    has_renewed = true;
                    self.forget(id).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Cause::Silent)
    }

    async fn forget(&self, id: u64) {
        self.connection.lock().await.id.take_if(|(known, _)| *known == id);
    }

    /// A connection id that may be used, and whether it was obtained just now. One asks for all.
    async fn connection_id(&self, first: Duration) -> Result<(u64, bool), Cause> {
        let mut connection = self.connection.lock().await;
        if let Some((id, received_at)) = connection.id
            && received_at.elapsed() < CONNECTION_ID_USED
        {
            return Ok((id, false));
        }
        while connection.silences <= RETRANSMIT_EXPONENT_MAX {
            let transaction = fastrand::u32(..);
            let wait = first.saturating_mul(1 << connection.silences);
            match self.exchange(udp::connect_request(transaction), transaction, wait).await? {
                Some(answer) => {
                    let id = udp::parse_connect_reply(&answer, transaction)?;
                    *connection = Connection { id: Some((id, Instant::now())), silences: 0 };
                    return Ok((id, true));
                }
                None => connection.silences += 1,
            }
        }
        connection.silences = 0;
        Err(Cause::Silent)
    }

    /// Sends one datagram and waits for its answer; `None` when there was none in time.
    async fn exchange(&self, datagram: Vec<u8>, transaction: u32, wait: Duration) -> Result<Option<Vec<u8>>, Cause> {
        let (sender, receiver) = oneshot::channel();
        let _guard = Registered { waiting: &self.waiting, transaction };
        if let (Carrier::Direct(socket), true) = (&*self.way, self.waiting.lock().is_empty()) {
            // What became of datagrams that nobody waited for does not concern this one.
            let _ = socket.take_error();
        }
        self.waiting.lock().insert(transaction, sender);
        self.waiting.begun.notify_one();
        // The reader, which would tell, may just have ended.
        if self.is_over() {
            return Err(Cause::Connect(io::ErrorKind::ConnectionAborted.into()));
        }
        self.way.send(&datagram).await.map_err(Cause::from_connect)?;
        match tokio::time::timeout(wait, receiver).await {
            Ok(Ok(Ok(answer))) => Ok(Some(answer)),
            Ok(Ok(Err(kind))) => Err(Cause::from_connect(kind.into())),
            // Displaced by another request with the same number, which is one in four billion: as if it were lost.
            Ok(Err(_)) | Err(_) => Ok(None),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Takes the transaction off the list when its request ends, however it ends.
struct Registered<'a> {
    waiting: &'a Waiting,
    transaction: u32,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.transaction);
    }
}

async fn read(way: Arc<Carrier>, waiting: Arc<Waiting>, known: Arc<Known>) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX + UDP_HEADER_LEN_MAX];
    loop {
        // That a relay is gone is to be noticed at once.
        if matches!(*way, Carrier::Direct(_)) && waiting.lock().is_empty() {
            waiting.begun.notified().await;
            continue;
        }
        match way.recv(&mut buffer).await {
            Ok((answer, is_ipv6)) => {
                if let Some(is_ipv6) = is_ipv6 {
                    known.is_ipv6.store(is_ipv6, Ordering::Relaxed);
                }
                if let Some(sender) = reply_transaction(answer).and_then(|number| waiting.lock().remove(&number)) {
                    // Whoever waited may have given up this instant.
                    let _ = sender.send(Ok(answer.to_vec()));
                }
            }
            Err(error) => {
                // Whatever is wrong with a relay, another one may do: the tracker's own refusals do not reach us through it.
                let is_over = matches!(*way, Carrier::Relayed(_));
                let kind = if is_over { io::ErrorKind::ConnectionAborted } else { error.kind() };
                known.is_over.store(is_over, Ordering::Relaxed);
                let all: Vec<_> = waiting.lock().drain().collect();
                for (_, sender) in all {
                    let _ = sender.send(Err(kind));
                }
                if is_over {
                    return;
                }
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}
