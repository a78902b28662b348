//! The first bytes of a connection, either way: handshakes in the clear, or after a greeting that encrypts
//! ([`mse`](anabranch_bittorrent::mse)).
//!
//! A caller is answered in the way in which it begins, and at once: the first byte that is none of a handshake in the clear is one of the other kind. Over
//! transports that prove a key everything is encrypted already, and nothing is added.

#![allow(unsafe_code)]

use std::future::poll_fn;
use std::io::{self, IoSlice};

use anabranch_bittorrent::InfoHash;
use anabranch_bittorrent::handshake::{HANDSHAKE_LEN, Handshake};
use anabranch_bittorrent::mse::{self, Agreed, Ciphers, Initiator, Method, Methods, MseError, Responder};
use anabranch_transport::{EncryptedStream, Stream, StreamCipher};
use tokio_rustls::rustls::crypto::ring;

use crate::bittorrent::error::ConnError;
use crate::config::Encryption;

/// Bytes that are received at once, until there is a connection.
const PORTION_LEN: usize = 1024;

/// How a connection of ours begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// With the handshake.
    Plain,
    /// With a greeting that encrypts.
    Encrypted(Methods),
}

/// A stream on which a handshake came.
pub(super) struct Greeted {
    /// What goes on, through ciphers where that was agreed on.
    pub stream: Stream,
    pub theirs: Handshake,
    /// What came behind the handshake.
    pub early: Vec<u8>,
    /// What a greeting that encrypts agreed on, if there was one.
    pub method: Option<Method>,
}

/// How to call a peer that wants its connections encrypted, or is not known to: at first, and where it [does not take
/// that](is_refusal), once more at once.
pub(super) fn openings(encryption: Encryption, wants_it: bool) -> (Opening, Option<Opening>) {
    let Some(methods) = encryption.methods() else { return (Opening::Plain, None) };
    let (plain, encrypted) = (Opening::Plain, Opening::Encrypted(methods));
    match encryption {
        Encryption::Require => (encrypted, None),
        Encryption::Prefer => (encrypted, Some(plain)),
        Encryption::Allow if wants_it => (encrypted, Some(plain)),
        Encryption::Allow | Encryption::Off => (plain, Some(encrypted)),
    }
}

/// Whether what came of a call may be due to how it was opened. Who takes no greeting in the clear hangs up; what clients do that do
/// not know the other kind is up to them.
pub(super) fn is_refusal(opening: Opening, error: &ConnError) -> bool {
    match (opening, error) {
        (_, ConnError::NotGreeted) => true,
        (Opening::Encrypted(_), error) => {
            matches!(error, ConnError::Stranger(_) | ConnError::Closed | ConnError::Io(_))
        }
        (Opening::Plain, _) => false,
    }
}

/// Why a peer that was called in one way only did not take the call, where that may be the reason.
pub(super) fn explain(error: ConnError, encryption: Encryption) -> ConnError {
    match (error, encryption) {
        (ConnError::NotGreeted, Encryption::Require) => ConnError::Stranger(
            "it closed the connection: it does not encrypt, as --encryption require wants it, or does not have this content"
                .to_owned(),
        ),
        (ConnError::NotGreeted, Encryption::Off) => ConnError::Stranger(
            "it closed the connection: it wants it encrypted, which --encryption off forbids, or does not have this content"
                .to_owned(),
        ),
        (error, _) => error,
    }
}

/// Sends our handshake over a connection that we opened, and receives that of the peer.
pub(super) async fn call(stream: Stream, ours: &Handshake, opening: Opening) -> Result<Greeted, ConnError> {
    match opening {
        Opening::Plain => {
            send_all(&stream, &ours.encode()).await?;
            let (theirs, early) = receive_handshake(&stream, Vec::new()).await?;
            Ok(Greeted { stream, theirs, early, method: None })
        }
        Opening::Encrypted(methods) => {
            let mut out = Vec::new();
            let mut greeting = Initiator::new(ours.info_hash, methods, &ours.encode(), seed()?, &mut out);
            let agreed = loop {
                send_all(&stream, &out).await?;
                out.clear();
                let portion = receive_portion(&stream).await?;
                if let Some(agreed) = greeting.received(&portion, &mut out).map_err(stranger)? {
                    break agreed;
                }
            };
            go_on(stream, agreed).await
        }
    }
}

/// Receives the handshake of a peer that called us, however it begins. `find` answers which content is meant by a [`content_key`](mse::content_key).
pub(super) async fn accept(
    stream: Stream,
    encryption: Encryption,
    find: impl Fn(&[u8; 20]) -> Option<InfoHash>,
) -> Result<Greeted, ConnError> {
    let is_encrypted_below = stream.node_id().is_some();
    let mut received = Vec::with_capacity(HANDSHAKE_LEN);
    let methods = loop {
        match (Handshake::parse(&received), encryption.methods().filter(|_| !is_encrypted_below)) {
            (Ok(None), _) => received.extend_from_slice(&receive_portion(&stream).await?),
            (Ok(Some(_)), _) if encryption == Encryption::Require && !is_encrypted_below => {
                return Err(ConnError::Stranger("it does not encrypt, as --encryption require wants it".to_owned()));
            }
            (Ok(Some(theirs)), _) => {
                let early = received.split_off(HANDSHAKE_LEN);
                return Ok(Greeted { stream, theirs, early, method: None });
            }
            (Err(_), Some(methods)) => break methods,
            (Err(error), None) => return Err(ConnError::Stranger(error.to_string())),
        }
    };
    let (mut greeting, mut out) = (Responder::new(methods, seed()?), Vec::new());
    loop {
        let agreed = greeting.received(&received, &find, &mut out).map_err(stranger)?;
        send_all(&stream, &out).await?;
        out.clear();
        match agreed {
            Some(agreed) => return go_on(stream, agreed).await,
            None => received = receive_portion(&stream).await?,
        }
    }
}

/// The stream goes on as was agreed: a handshake comes.
async fn go_on(stream: Stream, agreed: Agreed) -> Result<Greeted, ConnError> {
    let method = Some(agreed.method());
    let stream = match agreed.ciphers {
        Some(Ciphers { receive, send }) => {
            EncryptedStream::new(stream, Box::new(Cipher(receive)), Box::new(Cipher(send))).into()
        }
        None => stream,
    };
    let (theirs, early) = receive_handshake(&stream, agreed.early).await?;
    Ok(Greeted { stream, theirs, early, method })
}

struct Cipher(mse::Rc4);

impl StreamCipher for Cipher {
    fn apply(&mut self, bytes: &mut [u8]) {
        self.0.apply(bytes);
    }
}

fn stranger(error: MseError) -> ConnError {
    ConnError::Stranger(error.to_string())
}

fn seed() -> Result<[u8; 32], ConnError> {
    let mut seed = [0; 32];
    let filled = ring::default_provider().secure_random.fill(&mut seed);
    filled.map_err(|_| ConnError::Ended("the system has no randomness to make a key of".to_owned()))?;
    Ok(seed)
}

/// Reads a handshake, of which `received` came already; answers it and what came behind it.
async fn receive_handshake(stream: &Stream, mut received: Vec<u8>) -> Result<(Handshake, Vec<u8>), ConnError> {
    loop {
        if let Some(theirs) = Handshake::parse(&received).map_err(|error| ConnError::Stranger(error.to_string()))? {
            let early = received.split_off(HANDSHAKE_LEN);
            return Ok((theirs, early));
        }
        received.extend_from_slice(&receive_portion(stream).await?);
    }
}

/// The next bytes, at least one.
pub(super) async fn receive_portion(stream: &Stream) -> Result<Vec<u8>, ConnError> {
    loop {
        poll_fn(|cx| stream.poll_recv_ready(cx)).await?;
        let mut portion = vec![0u8; PORTION_LEN];
        let mut iovec = [libc::iovec { iov_base: portion.as_mut_ptr().cast(), iov_len: portion.len() }];
        // SAFETY: the entry describes `portion`, which outlives the call and is ours alone.
        match unsafe { stream.try_recv(&mut iovec) } {
            Ok(0) => return Err(ConnError::Closed),
            Ok(len) => {
                portion.truncate(len);
                return Ok(portion);
            }
            Err(error) if is_retry(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends all of it, in packets of its own.
pub(super) async fn send_all(stream: &Stream, mut bytes: &[u8]) -> Result<(), ConnError> {
    while !bytes.is_empty() {
        poll_fn(|cx| stream.poll_send_ready(cx)).await?;
        match stream.try_send(&[IoSlice::new(bytes)], false) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if is_retry(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    while !stream.flush()? {
        poll_fn(|cx| stream.poll_send_ready(cx)).await?;
    }
    // Transmission 3.00 leaves what comes in one packet with the handshake unread until the next one comes, and looks for what it wants
    // every ten seconds.
    stream.end_packet();
    Ok(())
}

fn is_retry(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_called_as_both_want_it_and_otherwise_at_once() {
        let (plain, both) = (Opening::Plain, Opening::Encrypted(Methods::BOTH));
        let (rather, rc4) = (Opening::Encrypted(Methods::RATHER_RC4), Opening::Encrypted(Methods::RC4));
        for (encryption, wants_it, expected) in [
            (Encryption::Allow, false, (plain, Some(both))),
            (Encryption::Allow, true, (both, Some(plain))),
            (Encryption::Prefer, false, (rather, Some(plain))),
            (Encryption::Require, false, (rc4, None)),
            (Encryption::Require, true, (rc4, None)),
            (Encryption::Off, true, (plain, None)),
        ] {
            assert_eq!(openings(encryption, wants_it), expected, "{encryption:?} {wants_it}");
        }
        // Who is silent, or speaks of something else, has heard what it was told in the clear.
        let silent = || ConnError::Stranger("it sent no handshake".to_owned());
        assert!(is_refusal(plain, &ConnError::NotGreeted) && !is_refusal(plain, &silent()));
        assert!(is_refusal(both, &ConnError::NotGreeted) && is_refusal(both, &silent()));
        assert!(!is_refusal(both, &ConnError::Ended("it refuses connections".to_owned())));
    }
}
