//! Round-trip times as the kernel estimates them for the TCP connections of a namespace (`sock_diag(7)`, `TCP_INFO`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::netns::{Namespace, NetnsError};

/// Bytes of an answer that are read at once: the kernel sends no more in one message.
const ANSWER_BYTES: usize = 32 << 10;
/// Answers that are read at most, so that a kernel that goes on and on ends nothing here.
const ANSWERS_MAX: usize = 1000;
/// `SOCK_DIAG_BY_FAMILY`, `INET_DIAG_INFO` and the bit that asks for it (`linux/sock_diag.h`, `linux/inet_diag.h`).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
/// `TCP_ESTABLISHED` as a bit of states.
const ESTABLISHED: u32 = 1 << 1;
/// Bytes of `nlmsghdr`, `inet_diag_req_v2` and `inet_diag_msg`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = 56;
const ENTRY_BYTES: usize = 72;
/// Where `tcp_info` has its estimate, us.
const RTT_AT: usize = 68;

/// Who can be asked for those of one namespace.
#[derive(Debug)]
pub(crate) struct RoundTrips(OwnedFd);

impl RoundTrips {
    /// Of a namespace's connections.
    ///
    /// # Errors
    /// When the system has no such sockets.
    pub(crate) fn of(namespace: &Namespace) -> Result<Self, NetnsError> {
        namespace.enter(|| {
            let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: no pointers.
            let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) };
            if fd < 0 {
                return Err(NetnsError::last_os("a socket for sock_diag"));
            }
            // SAFETY: the descriptor is fresh and owned from here on.
            Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
        })
    }

    /// The estimates of all connections over IPv4 that stand now; what the kernel does not tell is left out.
    pub(crate) fn now(&self) -> Vec<Duration> {
        let mut times = Vec::new();
        if self.ask().is_ok() {
            let mut answer = vec![0; ANSWER_BYTES];
            for _ in 0..ANSWERS_MAX {
                // SAFETY: so many writable bytes; the descriptor is open.
                let len = unsafe { libc::recv(self.0.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
                let Ok(len) = usize::try_from(len) else { break };
                if read(&answer[..len], &mut times) {
                    break;
                }
            }
        }
        times
    }

    fn ask(&self) -> io::Result<()> {
        let mut request = [0u8; HEADER_BYTES + REQUEST_BYTES];
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
        request[..4].copy_from_slice(&((HEADER_BYTES + REQUEST_BYTES) as u32).to_ne_bytes());
        request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request[6..8].copy_from_slice(&flags.to_ne_bytes());
        // Family, protocol, what to tell besides, and of which states.
        request[HEADER_BYTES] = libc::AF_INET as u8;
        request[HEADER_BYTES + 1] = libc::IPPROTO_TCP as u8;
        request[HEADER_BYTES + 2] = 1 << (INET_DIAG_INFO - 1);
        request[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&ESTABLISHED.to_ne_bytes());
        // SAFETY: so many readable bytes; the descriptor is open, and without an address the kernel is meant.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Reads the messages of an answer; whether it was the last one.
fn read(mut answer: &[u8], times: &mut Vec<Duration>) -> bool {
    let half = |bytes: &[u8], at: usize| bytes.get(at..at + 2).map(|half| u16::from_ne_bytes([half[0], half[1]]));
    while let Some(len) =
        word(answer, 0).map(|len| len as usize).filter(|len| (HEADER_BYTES..=answer.len()).contains(len))
    {
        let message = &answer[..len];
        match half(message, 4).map(i32::from) {
            Some(libc::NLMSG_DONE | libc::NLMSG_ERROR) => return true,
            Some(kind) if kind == i32::from(SOCK_DIAG_BY_FAMILY) => {
                times.extend(message.get(HEADER_BYTES + ENTRY_BYTES..).and_then(estimate));
            }
            _ => {}
        }
        answer = &answer[aligned(len).min(answer.len())..];
    }
    // What has no messages has no further ones.
    !answer.is_empty()
}

/// The estimate among the attributes of a connection.
fn estimate(mut attributes: &[u8]) -> Option<Duration> {
    loop {
        let (len, kind) = attributes.first_chunk::<4>().map(|head| {
            (usize::from(u16::from_ne_bytes([head[0], head[1]])), u16::from_ne_bytes([head[2], head[3]]))
        })?;
        let attribute = attributes.get(4..len)?;
        if kind == INET_DIAG_INFO {
            return word(attribute, RTT_AT)
                .filter(|micros| *micros > 0)
                .map(|micros| Duration::from_micros(micros.into()));
        }
        attributes = attributes.get(aligned(len)..)?;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
}

/// Messages and attributes begin at multiples of four.
fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_connection_that_stands_has_an_estimate() {
        if !crate::netns::available() {
            eprintln!("not run: namespaces need root");
            return;
        }
        let namespace = Namespace::new().unwrap();
        let asked = RoundTrips::of(&namespace).unwrap();
        assert!(asked.now().is_empty());
        let _both = namespace
            .enter(|| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                Ok::<_, NetnsError>((caller, listener.accept().unwrap()))
            })
            .unwrap();
        // Both ends of it.
        assert_eq!(asked.now().len(), 2);
        assert!(asked.now().iter().all(|time| *time < Duration::from_secs(10)));
    }

    proptest! {
        #[test]
        fn any_answer_is_read_to_its_end(answer in proptest::collection::vec(any::<u8>(), 0..300), len in 0u32..300) {
            let mut answer = answer;
            if let Some(head) = answer.first_chunk_mut::<6>() {
                head[..4].copy_from_slice(&len.to_ne_bytes());
                head[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            }
            let mut times = Vec::new();
            read(&answer, &mut times);
            prop_assert!(times.len() <= answer.len() / HEADER_BYTES);
        }
    }
}
