//! Messages over the connection's stream, with time and size bounds: whoever is slow or says too much is cut off.

use std::error::Error;
use std::time::Duration;

use anabranch_hercules::wire::WireError;
use anabranch_hercules::wire::message::Message;
use anabranch_transport::control::{RecvStream, SendStream};
use tokio::sync::mpsc;

/// Messages that wait to be written.
const WAITING_MAX: usize = 4;
/// One that the other end does not take in so long ends the connection.
const WRITE_MAX: Duration = Duration::from_secs(30);
/// How much is read at once.
const READ_LEN: usize = 32 * 1024;
/// How long the last words may take to arrive.
pub(super) const LAST_WORDS_MAX: Duration = Duration::from_secs(3);

/// What an end of message says to programs: docs/bulk.md.
pub(super) mod code {
    pub(in super::super) const INTERRUPTED: u16 = 0;
    pub(in super::super) const REJECTED: u16 = 1;
    pub(in super::super) const REFUSED: u16 = 2;
    pub(in super::super) const SOURCE: u16 = 3;
    pub(in super::super) const DESTINATION: u16 = 4;
    pub(in super::super) const MISBEHAVED: u16 = 5;
    pub(in super::super) const BUSY: u16 = 6;
}

/// Why nothing more can be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The connection is gone; it may be made anew.
    Lost(String),
    /// What came is no message.
    Wire(WireError),
}

/// Reads the other end's messages.
pub(super) struct MessageReader {
    stream: RecvStream,
    bytes: Vec<u8>,
}

impl MessageReader {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self { stream, bytes: Vec::new() }
    }

    /// The next message. Nothing is lost where this is dropped half-way.
    pub(super) async fn next(&mut self) -> Result<Message, ReadError> {
        loop {
            if let Some((message, len)) = Message::parse(&self.bytes).map_err(ReadError::Wire)? {
                self.bytes.drain(..len);
                return Ok(message);
            }
            let chunk = self.stream.read_chunk(READ_LEN).await;
            match chunk {
                Ok(Some(bytes)) => self.bytes.extend_from_slice(&bytes),
                Ok(None) => return Err(ReadError::Lost("the other end closed the connection".to_owned())),
                // What lies behind says why: reset by one that began again, timed out.
                Err(error) => {
                    let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                    return Err(ReadError::Lost(format!("the connection was lost: {why}")));
                }
            }
        }
    }

    /// The next message, in `within`.
    pub(super) async fn next_within(&mut self, within: Duration) -> Result<Message, ReadError> {
        let late = || ReadError::Lost(format!("the other end said nothing for {within:?}"));
        tokio::time::timeout(within, self.next()).await.unwrap_or_else(|_| Err(late()))
    }
}

/// Writes messages, on a task of its own: whoever waits for the other end to take one still reads what it sends.
#[derive(Clone)]
pub(super) struct MessageWriter(mpsc::Sender<Message>);

/// The task, to be waited for at the end.
pub(super) struct WriteTask(tokio::task::JoinHandle<Option<SendStream>>);

impl MessageWriter {
    /// On the local set.
    pub(super) fn open(mut stream: SendStream) -> (Self, WriteTask) {
        let (sender, mut waiting) = mpsc::channel::<Message>(WAITING_MAX);
        let writing = tokio::task::spawn_local(async move {
            let mut bytes = Vec::new();
            while let Some(message) = waiting.recv().await {
                bytes.clear();
                message.write(&mut bytes);
                match tokio::time::timeout(WRITE_MAX, stream.write_all(&bytes)).await {
                    Ok(Ok(())) => {}
                    _ => return None,
                }
            }
            Some(stream)
        });
        (Self(sender), WriteTask(writing))
    }

    /// Sends it; false where the connection is gone.
    pub(super) async fn send(&self, message: Message) -> bool {
        self.0.send(message).await.is_ok()
    }
}

impl WriteTask {
    /// Lets what was sent arrive. Every [`MessageWriter`] has to be dropped.
    pub(super) async fn finish(self) {
        let arrive = async {
            if let Ok(Some(mut stream)) = self.0.await {
                let _ = stream.finish();
                let _ = stream.stopped().await;
            }
        };
        let _ = tokio::time::timeout(LAST_WORDS_MAX, arrive).await;
    }
}
