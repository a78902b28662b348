//! Extension messages: greetings, metadata, peers, and who only uploads.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_content::geometry::BLOCK_LEN;
use anabranch_paths::{Endpoint, Host, ScionAddr};

use super::config::{BAD_EXTENSIONS_MAX, longest_block};
use super::conn::Conn;
use super::{Event, PeerMisbehaved, REQUEST_LEN_MAX, Torrent, UPLOAD_QUEUE_MAX};
use crate::extension::{
    Extension, ExtensionError, ExtensionHandshake, ExtensionIds, HANDSHAKE_ID, HolepunchMessage, MetadataMessage,
    MetadataProgress, PathsInUse, PexFlags, PexMessage, encode_dont_have, encode_upload_only, parse_dont_have,
    parse_upload_only,
};
use crate::handshake::Handshake;
use crate::reach::may_name_peer;
use crate::wire::Message;
use crate::{ConnId, PeerKey};

/// How often a connection is looked at that there was no news for.
const PEX_RETRY: Duration = Duration::from_secs(5);
/// Addresses taken of one message, all families together: twice what BEP 11 wants sent.
pub(super) const PEX_TAKEN_MAX: usize = 100;
/// Of these, ports of one host.
pub(super) const PEX_OF_HOST_MAX: usize = 3;

impl Torrent {
    /// Says where our node of the distributed hash table is, to who wants to know (BEP 5, "port"). Once the pieces were announced:
    /// some peers take nothing before.
    pub(super) fn tell_dht_port(&mut self, id: ConnId, theirs: &Handshake) {
        let is_private = self.known_info().is_some_and(|info| info.private);
        let Some(conn) = self.conns.get_mut(&id).filter(|_| theirs.reserved.dht() && !is_private) else { return };
        if let Some(port) = self.config.dht_port_for(&conn.address) {
            Message::Port(port).encode(&mut conn.out);
            self.touch(id);
        }
    }

    /// The peer says where its node is.
    pub(super) fn on_dht_port(&mut self, id: ConnId, port: u16) {
        // BEP 27: a private torrent has nothing to do with the table.
        let is_private = self.known_info().is_some_and(|info| info.private);
        let Some(conn) = self.conns.get(&id).filter(|_| port != 0 && !is_private) else { return };
        if self.config.dht_port_for(&conn.address).is_none() {
            return;
        }
        let node = match conn.address {
            Endpoint::Ip(address) => SocketAddr::new(address.ip(), port).into(),
            Endpoint::Scion(ScionAddr { isd_as, host }) => {
                ScionAddr::new(isd_as, SocketAddr::new(host.ip(), port)).into()
            }
        };
        self.events.push_back(Event::DhtNode(node));
    }

    pub(super) fn send_extended_handshake(&mut self, id: ConnId) {
        let upload_only = self.is_finished() && !self.is_super_seeding();
        let info = self.known_info();
        // BEP 27: what is private comes from its tracker: no peers are exchanged, and no metadata for strangers.
        let private = info.is_some_and(|info| info.private);
        let metadata_size = info.filter(|info| !info.private).map(|info| info.source.len() as u64);
        if self.conns.get(&id).is_none_or(|conn| !conn.extended) {
            return;
        }
        let identity = self.own_name(id).and_then(|name| name.identity());
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let mut ids = ExtensionIds::OURS;
        if !self.config.pex {
            ids = ids.without(Extension::Pex);
        }
        if !self.config.holepunch {
            ids = ids.without(Extension::Holepunch);
        }
        if private {
            ids = ids.switched_off(Extension::Pex).switched_off(Extension::Metadata);
            ids = ids.switched_off(Extension::Holepunch);
        }
        let handshake = ExtensionHandshake {
            ids,
            client: Some(self.config.client.clone()),
            listen_port: self.config.listen_port,
            prefers_encryption: self.config.prefers_encryption.then_some(true),
            request_queue_len: Some(UPLOAD_QUEUE_MAX as u32),
            your_ip: conn.address.as_ip().map(|address| address.ip()),
            metadata_size,
            upload_only: upload_only.then_some(true),
            block_len_max: Some(longest_block(self.config.choker.upload_limit_bytes)),
            identity,
            challenge: conn.challenge,
            scion_port: self.config.scion_port,
            ..ExtensionHandshake::default()
        };
        Message::Extended { id: HANDSHAKE_ID, payload: &handshake.encode() }.encode(&mut conn.out);
        self.touch(id);
    }

    /// Peers that connect from now on are told that we listen at this port, as others see it, and that our node of the distributed
    /// hash table is at that one.
    pub fn set_listen_ports(&mut self, listen: Option<u16>, dht: Option<u16>) {
        (self.config.listen_port, self.config.dht_port) = (listen, dht);
    }

    pub(super) fn on_extended(
        &mut self,
        id: ConnId,
        extension: u8,
        payload: &[u8],
        now: Instant,
    ) -> Result<(), PeerMisbehaved> {
        match self.take_extended(id, extension, payload, now) {
            Ok(result) => result,
            // The stream is still in step: one bad message is left out, only a habit ends the connection.
            Err(error) => {
                let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
                conn.bad_extensions += 1;
                match conn.bad_extensions > BAD_EXTENSIONS_MAX {
                    true => Err(PeerMisbehaved::BadExtension(error.to_string())),
                    false => Ok(()),
                }
            }
        }
    }

    fn take_extended(
        &mut self,
        id: ConnId,
        extension: u8,
        payload: &[u8],
        now: Instant,
    ) -> Result<Result<(), PeerMisbehaved>, ExtensionError> {
        if extension == HANDSHAKE_ID {
            self.on_extended_handshake(id, &ExtensionHandshake::parse(payload)?, now);
            return Ok(Ok(()));
        }
        match Extension::from_our_id(extension) {
            Some(Extension::Metadata) => {
                if let Some(message) = MetadataMessage::parse(payload)? {
                    return Ok(self.on_metadata(id, message, now));
                }
            }
            Some(Extension::Pex) => self.on_peers(id, PexMessage::parse(payload)?, now),
            Some(Extension::UploadOnly) => {
                let upload_only = parse_upload_only(payload)?;
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.upload_only = upload_only;
                }
                self.close_if_useless(id);
            }
            Some(Extension::Paths) => self.on_paths(id, payload, now)?,
            Some(Extension::Holepunch) => {
                if let Some(message) = HolepunchMessage::parse(payload)? {
                    self.on_holepunch(id, message, now);
                }
            }
            Some(Extension::DontHave) => return Ok(self.on_dont_have(id, parse_dont_have(payload)?, now)),
            // BEP 10: messages that were not agreed on are ignored.
            None => {}
        }
        Ok(Ok(()))
    }

    fn on_extended_handshake(&mut self, id: ConnId, handshake: &ExtensionHandshake, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.extensions.update(&handshake.ids);
        if let Some(client) = &handshake.client {
            conn.client = Some(client.clone());
        }
        conn.listen_port = handshake.listen_port.or(conn.listen_port);
        conn.scion_port = handshake.scion_port.or(conn.scion_port);
        conn.prefers_encryption |= handshake.prefers_encryption.unwrap_or(false);
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
            conn.metadata_size = Some(size);
            metadata.add_peer(id, size, now);
            self.ask_for_metadata(id, now);
        }
        if let Some(identity) = handshake.identity {
            self.on_identity(id, identity, now);
        }
        if let Some(challenge) = handshake.challenge {
            self.prove_identity(id, challenge);
        }
        if let Some(proof) = &handshake.proof {
            self.on_identity_proof(id, proof, now);
        }
        self.talk_of_addresses(id, handshake, now);
        self.talk_of_paths(id, now);
        self.fill_requests(id, now);
        self.close_if_useless(id);
    }

    /// The peer of a connection wants its connections encrypted, as this one shows: others are told so (BEP 11).
    pub fn set_prefers_encryption(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.prefers_encryption = true;
        }
    }

    /// Whether it does, as far as is known.
    pub fn prefers_encryption(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_some_and(|conn| conn.prefers_encryption)
    }

    // ---- metadata (BEP 9) ----

    pub(super) fn fetch_metadata(&mut self, now: Instant) {
        if self.metadata.is_some() {
            self.conn_ids().into_iter().for_each(|id| self.ask_for_metadata(id, now));
        }
    }

    fn ask_for_metadata(&mut self, id: ConnId, now: Instant) {
        let (Some(metadata), Some(conn)) = (&mut self.metadata, self.conns.get_mut(&id)) else { return };
        let Some(extension) = conn.extensions.get(Extension::Metadata) else { return };
        if let Some(size) = conn.metadata_size.filter(|_| !metadata.has_peer(id)) {
            // There was no place for it, and there may be one now. Who lied is gone by then, or offers again what is not taken twice.
            metadata.add_peer(id, size, now);
        }
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
                    .received(id, piece, total_size, data, now)
                    .map_err(|fault| PeerMisbehaved::BadMetadata(fault.to_string()))?;
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

    // ---- peers (BEP 11) ----

    pub(super) fn exchange_peers(&mut self, now: Instant) {
        if !self.config.pex {
            return;
        }
        let due = |conn: &Conn| now >= conn.pex_next && conn.extensions.get(Extension::Pex).is_some();
        let due = self.conns.iter().filter(|(_, conn)| due(conn));
        // A peer is told once, over its oldest connection, however many paths it has.
        let due = due.filter(|(id, conn)| self.speaker(conn.peer) == Some(**id));
        let ids: Vec<(ConnId, PeerKey)> = due.map(|(id, conn)| (*id, conn.peer)).collect();
        if ids.is_empty() {
            return;
        }
        // And it is told of once: by the address that we dialled, if we did.
        let mut all: BTreeMap<PeerKey, (bool, Endpoint, PexFlags)> = BTreeMap::new();
        for conn in self.conns.values() {
            let Some(address) = conn.listen_address() else { continue };
            let entry = (conn.outgoing, address, flags_of(conn));
            let known = all.entry(conn.peer).or_insert(entry);
            if conn.outgoing && !known.0 {
                *known = entry;
            }
        }
        for (id, peer) in ids {
            // Who did not say that it understands SCION addresses is told of none.
            let scion = self.conns.get(&id).is_some_and(|conn| conn.scion_port.is_some());
            let met_at = self.conns.get(&id).map(|conn| conn.address);
            let is_for = |address: &Endpoint| met_at.is_none_or(|met_at| may_name_peer(&met_at, address));
            let fits = |address: &Endpoint| (scion || address.as_scion().is_none()) && is_for(address);
            let others = all.iter().filter(|(other, (_, address, _))| **other != peer && fits(address));
            let others: Vec<(Endpoint, PexFlags)> = others.map(|(_, (_, address, flags))| (*address, *flags)).collect();
            let in_use = if scion { self.in_use_of_others(peer) } else { PathsInUse::default() };
            self.send_peers(id, &others, &in_use, now);
        }
    }

    /// The connection over which `peer` is told what is for it and not for one of its paths: the oldest.
    pub(super) fn speaker(&self, peer: PeerKey) -> Option<ConnId> {
        let mut live = self.live_paths(peer).filter(|(_, conn)| conn.is_usable());
        live.next().map(|(id, _)| id)
    }

    fn send_peers(&mut self, id: ConnId, others: &[(Endpoint, PexFlags)], in_use: &PathsInUse, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Some(extension) = conn.extensions.get(Extension::Pex) else { return };
        let message = conn.pex.next(others, in_use, now);
        conn.pex_next = conn.pex.deadline().map_or(now, |due| due.max(now)).max(now + PEX_RETRY);
        if let Some(message) = message {
            Message::Extended { id: extension, payload: &message.encode() }.encode(&mut conn.out);
            self.touch(id);
        }
    }

    fn on_peers(&mut self, id: ConnId, message: PexMessage, now: Instant) {
        // One clock for all paths of a peer: that of its oldest connection.
        let first = self.conns.get(&id).and_then(|conn| self.peers.get(&conn.peer)?.conns.first().copied());
        let Some(conn) = self.conns.get_mut(&first.unwrap_or(id)) else { return };
        if !self.config.pex || !conn.pex.may_receive(now) {
            return;
        }
        let met_at = conn.address;
        if let (Some(in_use), Some(peer)) = (message.in_use, self.peers.get_mut(&conn.peer)) {
            peer.told.replace(in_use, now);
        }
        let complete = self.is_complete();
        // Two peers that only upload have nothing to say to each other (BEP 21).
        let useful = |flags: &PexFlags| !(complete && flags.contains(PexFlags::UPLOAD_ONLY));
        let scion = self.config.scion_port.is_some();
        let fits = |address: &Endpoint| (scion || address.as_scion().is_none()) && may_name_peer(&met_at, address);
        let added = message.added.into_iter().filter(|(_, flags)| useful(flags));
        let mut of_host: BTreeMap<Host, usize> = BTreeMap::new();
        let mut few = |address: &Endpoint| {
            let host = Host::of(address);
            let count = of_host.entry(host).or_default();
            *count += 1;
            host.is_loopback() || *count <= PEX_OF_HOST_MAX
        };
        // A message that names one host again and again means it harm.
        let added = added.filter(|(address, _)| fits(address)).filter(|(address, _)| few(address));
        let added: Vec<(Endpoint, PexFlags)> = added.take(PEX_TAKEN_MAX).collect();
        let takes_part = |(_, flags): &&(Endpoint, PexFlags)| flags.contains(PexFlags::HOLEPUNCH);
        for (address, _) in added.iter().filter(takes_part) {
            self.may_meet(id, address);
        }
        if !added.is_empty() {
            self.events.push_back(Event::Peers(added));
        }
    }

    // ---- who only uploads (BEP 21), who lost a piece (BEP 54) ----

    pub(super) fn send_upload_only(&mut self, id: ConnId, upload_only: bool) {
        self.send_extension(id, Extension::UploadOnly, &encode_upload_only(upload_only));
    }

    pub(super) fn send_dont_have(&mut self, id: ConnId, piece: u32) {
        self.send_extension(id, Extension::DontHave, &encode_dont_have(piece));
    }

    pub(super) fn send_extension(&mut self, id: ConnId, extension: Extension, payload: &[u8]) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(number) = conn.extensions.get(extension) {
            Message::Extended { id: number, payload }.encode(&mut conn.out);
            self.touch(id);
        }
    }
}

/// What others are told of a peer (BEP 11, "added.f").
fn flags_of(conn: &Conn) -> PexFlags {
    let flags = [
        (conn.is_seed() || conn.upload_only, PexFlags::UPLOAD_ONLY),
        (conn.prefers_encryption, PexFlags::ENCRYPTION),
        (conn.outgoing, PexFlags::REACHABLE),
        (conn.over_utp, PexFlags::UTP),
        (conn.extensions.get(Extension::Holepunch).is_some(), PexFlags::HOLEPUNCH),
    ];
    let set = flags.into_iter().filter(|(is_set, _)| *is_set);
    set.fold(PexFlags::default(), |flags, (_, flag)| flags.with(flag))
}
