//! As much of the DNS as one question needs (RFC 1035): a query, its answer, UDP, and TCP where an answer is too long for UDP. TXT records
//! are asked for here; who has to choose the way that a question leaves by asks for addresses with [`query_for`] and [`parse_addresses`].
//! A resolver crate would bring a cache, six record types and forty more crates for these.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// Servers that are asked: as many as libc takes from resolv.conf.
const SERVERS_MAX: usize = 3;
/// Rounds over all servers.
const ROUNDS: usize = 2;
/// For one question to one server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Datagrams looked at for one question: others may send to the port.
const DATAGRAMS_MAX: usize = 16;
/// RFC 1035 §4.2.1, with some room for servers that send more.
const UDP_BYTES_MAX: usize = 4096;
/// Records looked at in one answer.
const RECORDS_MAX: usize = 256;
/// Labels of a name: 255 bytes, each label two at least.
const LABELS_MAX: usize = 127;
const HEADER_LEN: usize = 12;
const PORT: u16 = 53;
/// Longest label, and longest name as it is written (RFC 1035 §2.3.4, less the two bytes at the ends of a name in a message).
const LABEL_LEN_MAX: usize = 63;
const NAME_LEN_MAX: usize = 253;
/// RFC 1035 §3.2.2, §3.2.4.
const TYPE_TXT: u16 = 16;
const TYPE_A: u16 = 1;
/// RFC 3596 §2.1.
const TYPE_AAAA: u16 = 28;
const CLASS_IN: u16 = 1;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum DnsError {
    #[error("/etc/resolv.conf names none")]
    NoServer,
    #[error("{0}: {1}")]
    Failed(SocketAddr, io::Error),
    #[error("{0} did not answer within {s} s", s = ANSWER_TIMEOUT.as_secs())]
    Deadline(SocketAddr),
    #[error("{0} answers with error {1}")]
    Refused(SocketAddr, u8),
    #[error("{0} answers with what is no DNS message")]
    Garbled(SocketAddr),
}

/// What a message says to our question.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// The strings of each TXT record, joined. Empty too where the name does not exist.
    Texts(Vec<Vec<u8>>),
    /// Too long for UDP.
    Truncated,
    /// An RCODE other than NOERROR and NXDOMAIN.
    Error(u8),
}

/// The servers that a resolv.conf names.
pub fn servers(resolv_conf: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|&key| key == "nameserver").and(words.next())?;
        Some(SocketAddr::new(address.parse().ok()?, PORT))
    };
    resolv_conf.lines().filter_map(server).take(SERVERS_MAX).collect()
}

/// The TXT records of `name`, from the first server that answers.
pub(super) async fn txt(name: &str, servers: &[SocketAddr]) -> Result<Vec<Vec<u8>>, DnsError> {
    let mut last = DnsError::NoServer;
    for _ in 0..ROUNDS {
        for &server in &servers[..servers.len().min(SERVERS_MAX)] {
            match timeout(ANSWER_TIMEOUT, ask(name, server)).await {
                Ok(Ok(texts)) => return Ok(texts),
                Ok(Err(error)) => last = error,
                Err(_) => last = DnsError::Deadline(server),
            }
        }
    }
    Err(last)
}

async fn ask(name: &str, server: SocketAddr) -> Result<Vec<Vec<u8>>, DnsError> {
    let failed = |error| DnsError::Failed(server, error);
    // Unguessable together with the source port, which the system draws (RFC 5452 §4).
    let query = query(fastrand::u16(..), name);
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await.map_err(failed)?;
    socket.connect(server).await.map_err(failed)?;
    socket.send(&query).await.map_err(failed)?;
    let mut buffer = [0; UDP_BYTES_MAX];
    for _ in 0..DATAGRAMS_MAX {
        let len = socket.recv(&mut buffer).await.map_err(failed)?;
        match parse(&buffer[..len], &query) {
            Some(Answer::Texts(texts)) => return Ok(texts),
            Some(Answer::Error(code)) => return Err(DnsError::Refused(server, code)),
            Some(Answer::Truncated) => return ask_tcp(&query, server).await,
            None => {}
        }
    }
    Err(DnsError::Garbled(server))
}

/// RFC 1035 §4.2.2: two bytes of length before each message.
async fn ask_tcp(query: &[u8], server: SocketAddr) -> Result<Vec<Vec<u8>>, DnsError> {
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(&[&(query.len() as u16).to_be_bytes(), query].concat()).await?;
        let mut message = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut message).await?;
        io::Result::Ok(message)
    };
    let message = exchange.await.map_err(|error| DnsError::Failed(server, error))?;
    match parse(&message, query) {
        Some(Answer::Texts(texts)) => Ok(texts),
        Some(Answer::Error(code)) => Err(DnsError::Refused(server, code)),
        Some(Answer::Truncated) | None => Err(DnsError::Garbled(server)),
    }
}

/// The question for TXT records of `name`, which has labels of at most 63 bytes.
pub fn query(id: u16, name: &str) -> Vec<u8> {
    question(id, name, TYPE_TXT)
}

/// The question for the addresses of one family of `name`; `None` where it is no name that the DNS has.
pub fn query_for(id: u16, name: &str, is_ipv6: bool) -> Option<Vec<u8>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| (1..=LABEL_LEN_MAX).contains(&label.len());
    let is_name = name.len() <= NAME_LEN_MAX && name.is_ascii() && name.split('.').all(is_label);
    is_name.then(|| question(id, name, if is_ipv6 { TYPE_AAAA } else { TYPE_A }))
}

fn question(id: u16, name: &str, kind: u16) -> Vec<u8> {
    const RECURSION_DESIRED: u16 = 0x0100;
    let header = [id, RECURSION_DESIRED, 1, 0, 0, 0];
    let mut message: Vec<u8> = header.iter().flat_map(|field| field.to_be_bytes()).collect();
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend([kind, CLASS_IN].iter().flat_map(|field| field.to_be_bytes()));
    message
}

/// What `message` answers to `query`; `None` if it does not.
pub fn parse(message: &[u8], query: &[u8]) -> Option<Answer> {
    let mut texts = Vec::new();
    let outcome = read(message, query, |kind, data| {
        if kind == TYPE_TXT {
            texts.push(strings(data)?);
        }
        Some(())
    })?;
    Some(match outcome {
        Outcome::Whole => Answer::Texts(texts),
        Outcome::Truncated => Answer::Truncated,
        Outcome::Error(code) => Answer::Error(code),
    })
}

/// The addresses that `message` answers to `query`, none where the name does not exist or the server knows nothing; `None` if it does not
/// answer it, `Some(Err)` if it is too long for UDP.
pub fn parse_addresses(message: &[u8], query: &[u8]) -> Option<Result<Vec<IpAddr>, TooLong>> {
    let mut addresses = Vec::new();
    let outcome = read(message, query, |kind, data| {
        match (kind, data.len()) {
            (TYPE_A, _) => addresses.push(IpAddr::from(<[u8; 4]>::try_from(data).ok()?)),
            (TYPE_AAAA, _) => addresses.push(IpAddr::from(<[u8; 16]>::try_from(data).ok()?)),
            _ => {}
        }
        Some(())
    })?;
    Some(match outcome {
        Outcome::Whole => Ok(addresses),
        Outcome::Error(_) => Ok(Vec::new()),
        Outcome::Truncated => Err(TooLong),
    })
}

/// An answer that is to be had over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

enum Outcome {
    Whole,
    Truncated,
    Error(u8),
}

/// Goes through the records of the Internet's class in an answer, each with its type and data.
fn read(message: &[u8], query: &[u8], mut take: impl FnMut(u16, &[u8]) -> Option<()>) -> Option<Outcome> {
    const RESPONSE: u8 = 0x80;
    const TRUNCATED: u8 = 0x02;
    const NXDOMAIN: u8 = 3;
    let mut reader = Reader { message, at: 0 };
    let header = reader.take(HEADER_LEN)?;
    let is_ours = header[..2] == query[..2] && header[2] & RESPONSE != 0 && header[4..6] == [0, 1];
    let question = reader.take(query.len() - HEADER_LEN)?;
    // Names compare without case, and servers may change it.
    if !is_ours || !question.eq_ignore_ascii_case(&query[HEADER_LEN..]) {
        return None;
    }
    match header[3] & 0x0f {
        _ if header[2] & TRUNCATED != 0 => return Some(Outcome::Truncated),
        0 => {}
        NXDOMAIN => return Some(Outcome::Whole),
        code => return Some(Outcome::Error(code)),
    }
    let records = usize::from(u16::from_be_bytes([header[6], header[7]])).min(RECORDS_MAX);
    for _ in 0..records {
        // Records of the names that ours is an alias of count as well: the server has followed the aliases.
        reader.skip_name()?;
        let (kind, class) = (reader.u16()?, reader.u16()?);
        reader.take(4)?; // Time to live: we keep nothing.
        let len = reader.u16()?;
        let data = reader.take(len.into())?;
        if class == CLASS_IN {
            take(kind, data)?;
        }
    }
    Some(Outcome::Whole)
}

/// Strings with a byte of length before each, joined.
fn strings(mut data: &[u8]) -> Option<Vec<u8>> {
    let mut joined = Vec::new();
    while let Some((&len, rest)) = data.split_first() {
        let (string, rest) = rest.split_at_checked(len.into())?;
        joined.extend(string);
        data = rest;
    }
    Some(joined)
}

struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.message.get(self.at..)?.get(..len)?;
        self.at += len;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A name ends with an empty label or with a pointer, which need not be followed to step over it (RFC 1035 §4.1.4).
    fn skip_name(&mut self) -> Option<()> {
        for _ in 0..LABELS_MAX + 1 {
            let len = self.take(1)?[0];
            match len >> 6 {
                0b00 if len == 0 => return Some(()),
                0b00 => drop(self.take(len.into())?),
                0b11 => return self.take(1).map(drop),
                _ => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn resolv_conf_names_servers() {
        let text = "# none\nsearch example\nnameserver 10.0.0.1\nnameserver fd00::1 # two\nnameserver x\n;nameserver 1.1.1.1\n\
                    nameserver 10.0.0.2\nnameserver 10.0.0.3";
        let found: Vec<String> = servers(text).iter().map(SocketAddr::to_string).collect();
        assert_eq!(found, ["10.0.0.1:53", "[fd00::1]:53", "10.0.0.2:53"], "as many as the limit");
    }

    /// An answer with a name of `labels` labels and `records` records.
    fn answer(query: &[u8], labels: usize, records: u16) -> Vec<u8> {
        let mut message = [&query[..2], &[0x81, 0x80, 0, 1], &records.to_be_bytes(), &[0; 4], &query[12..]].concat();
        for _ in 0..records {
            message.extend(b"\x01a".repeat(labels));
            message.extend([0, 0, 16, 0, 1, 0, 0, 0, 60, 0, 2, 1, b'x']);
        }
        message
    }

    #[test]
    fn names_and_records_are_limited() {
        let query = query(7, "a.example");
        let texts = |labels, records| parse(&answer(&query, labels, records), &query);
        assert_eq!(texts(LABELS_MAX, 1), Some(Answer::Texts(vec![b"x".to_vec()])));
        assert_eq!(texts(LABELS_MAX + 1, 1), None);
        let count = |records| match texts(1, records) {
            Some(Answer::Texts(texts)) => texts.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!((count(RECORDS_MAX as u16), count(RECORDS_MAX as u16 + 1)), (RECORDS_MAX, RECORDS_MAX));
    }

    #[test]
    fn only_our_question_is_answered() {
        let ours = query(7, "a.example");
        assert!(parse(&answer(&ours, 1, 1), &ours).is_some());
        assert!(parse(&answer(&query(7, "A.ExAmple"), 1, 1), &ours).is_some());
        assert!(parse(&answer(&query(8, "a.example"), 1, 1), &ours).is_none());
        assert!(parse(&answer(&query(7, "b.example"), 1, 1), &ours).is_none());
        assert!(parse(&ours, &ours).is_none(), "a question is no answer");
    }

    #[test]
    fn addresses_are_those_of_the_family_that_was_asked_for() {
        let ask = |name, is_ipv6| query_for(7, name, is_ipv6);
        let query = ask("a.example.", false).unwrap();
        assert_eq!(query, question(7, "a.example", TYPE_A));
        let mut message = [&query[..2], &[0x81, 0x80, 0, 1, 0, 2, 0, 0, 0, 0], &query[12..]].concat();
        // An alias first, then the address of what it stands for.
        message.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 2, 0xc0, 12]);
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]);
        assert_eq!(parse_addresses(&message, &query), Some(Ok(vec!["192.0.2.7".parse().unwrap()])));
        assert_eq!(parse_addresses(&message, &ask("a.example", true).unwrap()), None, "another question");
        message[2] |= 2;
        assert_eq!(parse_addresses(&message, &query), Some(Err(TooLong)));
        let (long_label, long_name) = ("a".repeat(64), "a.".repeat(130));
        for bad in ["", ".", "a..b", &long_label, &long_name, "ä.example"] {
            assert_eq!(ask(bad, false), None, "{bad}");
        }
        assert!(ask(&"a".repeat(63), false).is_some());
    }

    proptest! {
        #[test]
        fn changed_answers_never_panic(at in 0usize..200, with: u8, cut in 0usize..200, tail: Vec<u8>) {
            let query = query(7, "a.example");
            let mut message = answer(&query, 3, 4);
            let at = at % message.len();
            message[at] = with;
            let _ = (parse(&message, &query), parse_addresses(&message, &query));
            message.truncate(cut);
            let _ = parse(&message, &query);
            message.extend(tail);
            let _ = parse(&message, &query);
        }
    }
}
