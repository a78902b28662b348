//! The connection to the other end of a session, and how a session ends.

use std::time::Duration;

use anabranch_hercules::wire::ticket::PROOF_LABEL;
use anabranch_paths::Endpoint;
use anabranch_transport::control::{ConnectionLease, ControlRouter, ControlStream};
use anabranch_transport::{NodeId, datagram};
use tokio::sync::watch;

use super::context::is_cancelled;
use super::events::{PeerId, TransferError};
use super::messages::{MessageReader, MessageWriter, ReadError, WriteTask};
use super::network::CandidatePaths;

/// How long a caller may take to say what it wants, and each end to say the next of the preliminaries.
pub(super) const PRELIMINARIES_MAX: Duration = Duration::from_secs(20);

/// How a session ended that did not reach its end.
#[derive(Debug)]
pub(super) enum End {
    /// The connection was lost: it is tried again.
    Lost(String),
    /// The other end came again, by another connection.
    Replaced,
    /// The other end has too many to do: it is tried again.
    Busy(String),
    /// For good.
    Failed(TransferError),
}

impl From<ReadError> for End {
    fn from(silence: ReadError) -> Self {
        match silence {
            ReadError::Lost(why) => Self::Lost(why),
            ReadError::Wire(error) => Self::Failed(TransferError::Misbehaviour(error.into())),
        }
    }
}

impl From<TransferError> for End {
    fn from(error: TransferError) -> Self {
        Self::Failed(error)
    }
}

/// A connection on which both said what they want.
pub(super) struct ControlConnection {
    pub(super) peer: PeerId,
    pub(super) key: NodeId,
    pub(super) address: Endpoint,
    pub(super) reader: MessageReader,
    pub(super) writer: MessageWriter,
    pub(super) secret: [u8; 32],
    pub(super) router: ControlRouter,
    /// The way that its packets go.
    pub(super) path: Option<datagram::Path>,
    /// The caller's ways, those to be used first; the other end's are its own to choose.
    pub(super) candidates: Option<CandidatePaths>,
    /// The other end's addresses, for who calls.
    pub(super) addresses: Vec<Endpoint>,
    /// Longest chunk that the other end's paths take; 0 where it did not say.
    pub(super) chunk_len_max: u16,
    /// Whether the other end came again.
    pub(super) replaced: Replaced,
    _lease: ConnectionLease,
}

impl ControlConnection {
    /// A connection, and the secret for proofs.
    pub(super) fn open(peer: PeerId, stream: ControlStream) -> Result<((Self, [u8; 32]), WriteTask), String> {
        let exported = |label| stream.export(label).map_err(|error| error.to_string());
        let secret = exported(anabranch_hercules::wire::seal::SECRET_LABEL)?;
        let proof = exported(PROOF_LABEL)?;
        let (key, address, router, path) = (stream.key(), stream.remote(), stream.router(), stream.path());
        let (send, receive, lease) = stream.split();
        let (writer, writing) = MessageWriter::open(send);
        let control = Self {
            peer,
            key,
            address,
            reader: MessageReader::new(receive),
            writer,
            secret,
            router,
            path,
            candidates: None,
            addresses: Vec::new(),
            chunk_len_max: 0,
            replaced: Replaced::never(),
            _lease: lease,
        };
        Ok(((control, proof), writing))
    }
}

/// Hears when the other end comes again, by another connection: a session that goes on over this one has nobody to go on with.
pub(super) struct Replaced(pub(super) watch::Receiver<bool>);

impl Replaced {
    /// Nobody comes again to who calls.
    fn never() -> Self {
        Self(watch::channel(false).1)
    }

    /// Waits until it is so.
    pub(super) async fn wait(&mut self) {
        is_cancelled(&mut self.0).await;
    }
}
