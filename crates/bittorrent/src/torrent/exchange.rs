//! Extension messages: greetings, metadata, peers, and who only uploads.

use std::net::SocketAddr;
use std::time::Instant;

use anabranch_content::geometry::BLOCK_LEN;

use super::{Event, PeerMisbehaved, REQUEST_LEN_MAX, Torrent, UPLOAD_QUEUE_MAX};
use crate::ConnId;
use crate::extension::{
    Extension, ExtensionHandshake, ExtensionIds, HANDSHAKE_ID, MetadataMessage, MetadataProgress, MetadataServe,
    PexFlags, PexMessage, encode_dont_have, encode_upload_only, parse_dont_have, parse_upload_only,
};
use crate::wire::Message;

/// Metadata pieces waiting to be sent to one peer; a fetcher asks for a few at a time.
const METADATA_OUT_MAX: usize = 4 * 1024 * 1024;

impl Torrent {
    pub(super) fn send_extended_handshake(&mut self, id: ConnId) {
        let complete = self.is_complete();
        let metadata_size = self.content.as_ref().map(|content| content.info.source.len() as u64);
        let pex = self.config.pex;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let mut ids = ExtensionIds::OURS;
        if !pex {
            ids = ids.without(Extension::Pex);
        }
        let handshake = ExtensionHandshake {
            ids,
            client: Some(self.config.client.clone()),
            listen_port: self.config.listen_port,
            request_queue_len: Some(UPLOAD_QUEUE_MAX as u32),
            your_ip: Some(conn.address.ip()),
            metadata_size,
            upload_only: complete.then_some(true),
            block_len_max: Some(REQUEST_LEN_MAX),
            ..ExtensionHandshake::default()
        };
        Message::Extended { id: HANDSHAKE_ID, payload: &handshake.encode() }.encode(&mut conn.out);
        self.touch(id);
    }

    pub(super) fn on_extended(
        &mut self,
        id: ConnId,
        extension: u8,
        payload: &[u8],
        now: Instant,
    ) -> Result<(), PeerMisbehaved> {
        let bad = |error: crate::extension::ExtensionError| PeerMisbehaved::BadExtension(error.to_string());
        if extension == HANDSHAKE_ID {
            let handshake = ExtensionHandshake::parse(payload).map_err(bad)?;
            self.on_extended_handshake(id, &handshake, now);
            return Ok(());
        }
        match Extension::from_our_id(extension) {
            Some(Extension::Metadata) => match MetadataMessage::parse(payload).map_err(bad)? {
                Some(message) => self.on_metadata(id, message, now),
                None => Ok(()),
            },
            Some(Extension::Pex) => {
                let message = PexMessage::parse(payload).map_err(bad)?;
                self.on_peers(id, &message, now);
                Ok(())
            }
            Some(Extension::UploadOnly) => {
                let upload_only = parse_upload_only(payload).map_err(bad)?;
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.upload_only = upload_only;
                }
                self.close_if_useless(id);
                Ok(())
            }
            Some(Extension::DontHave) => {
                let piece = parse_dont_have(payload).map_err(bad)?;
                self.on_dont_have(id, piece, now);
                Ok(())
            }
            // BEP 10: messages that were not agreed on are ignored.
            None => Ok(()),
        }
    }

    fn on_extended_handshake(&mut self, id: ConnId, handshake: &ExtensionHandshake, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.extensions.update(&handshake.ids);
        if let Some(client) = &handshake.client {
            conn.client = Some(client.clone());
        }
        conn.listen_port = handshake.listen_port.or(conn.listen_port);
        if let Some(reqq) = handshake.request_queue_len {
            conn.reqq = reqq.clamp(1, UPLOAD_QUEUE_MAX as u32);
        }
        if let Some(len) = handshake.block_len_max {
            conn.request_len_max = len.clamp(BLOCK_LEN, REQUEST_LEN_MAX) / BLOCK_LEN * BLOCK_LEN;
        }
        // One request of ours may hold many blocks: the pipeline counts what fits in the peer's queue.
        conn.pipeline.set_reqq(conn.reqq.saturating_mul(conn.request_len_max / BLOCK_LEN));
        conn.upload_only = handshake.upload_only.unwrap_or(conn.upload_only);
        if let (Some(metadata), Some(size), Some(_)) =
            (&mut self.metadata, handshake.metadata_size, conn.extensions.get(Extension::Metadata))
        {
            metadata.add_peer(id, size);
            self.ask_for_metadata(id, now);
        }
        self.fill_requests(id, now);
        self.close_if_useless(id);
    }

    // ---- metadata (BEP 9) ----

    pub(super) fn fetch_metadata(&mut self, now: Instant) {
        if self.metadata.is_some() {
            let ids: Vec<ConnId> = self.conns.keys().copied().collect();
            ids.into_iter().for_each(|id| self.ask_for_metadata(id, now));
        }
    }

    fn ask_for_metadata(&mut self, id: ConnId, now: Instant) {
        let (Some(metadata), Some(conn)) = (&mut self.metadata, self.conns.get_mut(&id)) else { return };
        let Some(extension) = conn.extensions.get(Extension::Metadata) else { return };
        let before = conn.out.len();
        while let Some(piece) = metadata.next_request(id, now) {
            let payload = MetadataMessage::Request { piece }.encode();
            Message::Extended { id: extension, payload: &payload }.encode(&mut conn.out);
        }
        if conn.out.len() > before {
            self.touch(id);
        }
    }

    fn on_metadata(&mut self, id: ConnId, message: MetadataMessage<'_>, now: Instant) -> Result<(), PeerMisbehaved> {
        match message {
            MetadataMessage::Request { piece } => self.serve_metadata(id, piece),
            MetadataMessage::Reject { piece } => {
                if let Some(metadata) = &mut self.metadata {
                    metadata.rejected(id, piece, now);
                }
            }
            MetadataMessage::Data { piece, total_size, data } => {
                let Some(metadata) = &mut self.metadata else { return Ok(()) };
                let progress = metadata
                    .received(id, piece, total_size, data)
                    .map_err(|fault| PeerMisbehaved::BadExtension(fault.to_string()))?;
                match progress {
                    MetadataProgress::Going => self.ask_for_metadata(id, now),
                    MetadataProgress::Complete(bytes) => {
                        self.metadata = None;
                        self.events.push_back(Event::Metadata(bytes));
                    }
                    MetadataProgress::Failed { blamed } => {
                        if let Some(peer) = blamed.and_then(|conn| self.conns.get(&conn)).map(|conn| conn.peer) {
                            self.ban(peer, "it sent metadata whose hash is wrong");
                        }
                        self.fetch_metadata(now);
                    }
                }
            }
        }
        Ok(())
    }

    fn serve_metadata(&mut self, id: ConnId, piece: u32) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Some(extension) = conn.extensions.get(Extension::Metadata) else { return };
        let answer = match &self.content {
            Some(content) if conn.out.len() < METADATA_OUT_MAX => MetadataServe(&content.info.source).piece(piece),
            _ => MetadataMessage::Reject { piece },
        };
        Message::Extended { id: extension, payload: &answer.encode() }.encode(&mut conn.out);
        self.touch(id);
    }

    // ---- peers (BEP 11) ----

    pub(super) fn send_peers(&mut self, id: ConnId, now: Instant) {
        if !self.config.pex {
            return;
        }
        let Some(conn) = self.conns.get(&id) else { return };
        let Some(extension) = conn.extensions.get(Extension::Pex) else { return };
        if conn.pex.deadline().is_some_and(|due| now < due) {
            return;
        }
        let others: Vec<(SocketAddr, PexFlags)> = self
            .conns
            .iter()
            .filter(|(other, _)| **other != id)
            .filter_map(|(_, conn)| {
                let flags =
                    if conn.is_seed() || conn.upload_only { PexFlags::UPLOAD_ONLY } else { PexFlags::default() };
                let reachable = if conn.outgoing { PexFlags::REACHABLE } else { PexFlags::default() };
                Some((conn.listen_address()?, flags.with(reachable)))
            })
            .collect();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(message) = conn.pex.next(&others, now) {
            Message::Extended { id: extension, payload: &message.encode() }.encode(&mut conn.out);
            self.touch(id);
        }
    }

    fn on_peers(&mut self, id: ConnId, message: &PexMessage, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !self.config.pex || !conn.pex.may_receive(now) || message.added.is_empty() {
            return;
        }
        let complete = self.is_complete();
        // Two peers that only upload have nothing to say to each other (BEP 21).
        let useful = |flags: &PexFlags| !(complete && flags.contains(PexFlags::UPLOAD_ONLY));
        let added = message.added.iter().filter(|(_, flags)| useful(flags)).map(|(address, _)| *address);
        self.events.push_back(Event::Peers(added.collect()));
    }

    // ---- who only uploads (BEP 21), who lost a piece (BEP 54) ----

    pub(super) fn send_upload_only(&mut self, id: ConnId) {
        self.send_extension(id, Extension::UploadOnly, &encode_upload_only(true));
    }

    pub(super) fn send_dont_have(&mut self, id: ConnId, piece: u32) {
        self.send_extension(id, Extension::DontHave, &encode_dont_have(piece));
    }

    fn send_extension(&mut self, id: ConnId, extension: Extension, payload: &[u8]) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(number) = conn.extensions.get(extension) {
            Message::Extended { id: number, payload }.encode(&mut conn.out);
            self.touch(id);
        }
    }

    fn on_dont_have(&mut self, id: ConnId, piece: u32, now: Instant) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return };
        let super::Has::Known(bits) = &mut conn.has else { return };
        if bits.clear(piece) {
            content.picker.peer_lost_piece(piece, bits);
            self.update_interest(id, now);
        }
    }
}
