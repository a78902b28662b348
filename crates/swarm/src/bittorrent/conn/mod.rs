//! One connection's task: bytes from the socket to the core, and back.
//!
//! | file | idea |
//! | --- | --- |
//! | `mod.rs` | the task: turns of receiving and of sending, sleep between them, the end |
//! | `channel.rs` | what both directions need: the content, the stream, how a turn ends |
//! | `receive/` | what comes: laid out in [`scratch`](super::scratch) memory before it comes, and told to the core |
//! | `send.rs` | what goes: control messages, then blocks from their files |

mod channel;
mod receive;
mod send;

use std::rc::Rc;

use anabranch_bittorrent::ConnId;
use anabranch_transport::Stream;

use crate::bittorrent::error::ConnError;
use crate::bittorrent::torrent::TorrentHandle;
use crate::net::conn_handle::ConnHandle;
use channel::{Channel, Turn};
use receive::Receiving;
use send::Sending;

/// One connection, after its handshakes.
pub(crate) struct Conn {
    channel: Channel,
    receiving: Receiving,
    sending: Sending,
}

impl Conn {
    /// A connection that is part of `torrent` already.
    pub(crate) fn new(torrent: TorrentHandle, id: ConnId, stream: Stream, handle: Rc<ConnHandle>) -> Self {
        let (down, up) = torrent.borrow().limits(&handle);
        let channel = Channel::new(torrent, id, stream, handle);
        Self { channel, receiving: Receiving::new(down), sending: Sending::new(up) }
    }

    /// Runs the connection until it ends. `early` are bytes that came behind the handshake.
    pub(crate) async fn run(mut self, early: Vec<u8>) -> ConnError {
        match self.drive(early).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn drive(&mut self, early: Vec<u8>) -> Result<std::convert::Infallible, ConnError> {
        let Self { channel, receiving, sending } = self;
        receiving.begin(channel, &early)?;
        loop {
            if let Some(reason) = channel.handle.take_close() {
                // What was queued before the end (a reject, a last have) still goes out where the socket takes it.
                let _ = sending.turn(channel);
                let _ = channel.stream.flush();
                return Err(ConnError::Ended(reason));
            }
            let received = receiving.turn(channel)?;
            let sent = sending.turn(channel)?;
            if sent == Turn::Blocked && sending.is_not_read(channel) {
                return Err(ConnError::Ended("it does not read what we send".to_owned()));
            }
            if sent == Turn::More || received == Turn::More {
                tokio::task::yield_now().await;
                continue;
            }
            channel.wait(sent, received).await?;
            // However often this one is woken, those that it waits for have their turn too.
            tokio::task::consume_budget().await;
        }
    }
}
