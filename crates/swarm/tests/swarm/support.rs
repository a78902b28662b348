//! Contents to transfer, sessions to run, and peers that follow a script.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anabranch_bittorrent::handshake::{HANDSHAKE_LEN, Handshake, Reserved};
use anabranch_bittorrent::wire::{BlockRange, Event as WireEvent, Limits, Message, Receiver, piece_header};
use anabranch_content::create::{CreateOptions, create};
use anabranch_content::geometry::Geometry;
use anabranch_content::hash;
pub(crate) use anabranch_content::info::Version;
use anabranch_content::metainfo::Metainfo;
use anabranch_content::storage;
pub(crate) use anabranch_swarm::{
    AddOptions, Aim, ContentId, ControlError, Data, Event, EventKind, Events, FailureKind, Progress, Session,
    SessionConfig, Source,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A test that takes longer hangs.
const TEST_MAX: Duration = Duration::from_secs(120);

pub(crate) const KIB: usize = 1024;
pub(crate) const MIB: usize = 1024 * KIB;

/// Runs `test` as a program would: one thread, one `LocalSet`.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = tokio::task::LocalSet::new()
        .block_on(&runtime, async { tokio::time::timeout(TEST_MAX, test).await.expect("the test hangs") });
    runtime.shutdown_timeout(Duration::from_secs(5));
    done
}

/// Files below a folder, and the torrent of them.
pub(crate) struct Content {
    pub dir: tempfile::TempDir,
    pub metainfo: Metainfo,
    files: Vec<(String, Vec<u8>)>,
}

impl Content {
    /// Files of these names and lengths below `content/`.
    pub(crate) fn new(files: &[(&str, usize)], version: Version, piece_length: Option<u32>) -> Self {
        let mut content = Self::files(files);
        let options = CreateOptions { version, piece_length, ..CreateOptions::default() };
        let made = create(&content.dir.path().join("content"), &options, &AtomicBool::new(false), |_, _| {}).unwrap();
        content.metainfo = Metainfo::parse(&made.metainfo).unwrap();
        content
    }

    /// One file, v1, with a piece length that no power of two is.
    pub(crate) fn odd(len: usize, piece_length: u32) -> Self {
        let mut content = Self::files(&[("data", len)]);
        let data = content.files[0].1.clone();
        let pieces: Vec<[&[u8]; 1]> = data.chunks(piece_length as usize).map(|piece| [piece]).collect();
        let messages: Vec<&[&[u8]]> = pieces.iter().map(|piece| &piece[..]).collect();
        let hashes = hash::sha1_pieces(&messages).concat();
        let mut torrent = format!(
            "d4:infod5:filesld6:lengthi{len}e4:pathl4:dataeee4:name7:content12:piece lengthi{piece_length}e6:pieces{}:",
            hashes.len()
        )
        .into_bytes();
        torrent.extend(hashes);
        torrent.extend(b"ee");
        content.metainfo = Metainfo::parse(&torrent).unwrap();
        content
    }

    fn files(files: &[(&str, usize)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = fastrand::Rng::with_seed(7);
        let mut made = Vec::new();
        for (name, len) in files {
            let path = dir.path().join("content").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut data = vec![0; *len];
            rng.fill(&mut data);
            std::fs::write(path, &data).unwrap();
            made.push(((*name).to_owned(), data));
        }
        // Replaced by the caller.
        let none = b"d4:infod6:lengthi1e4:name1:x12:piece lengthi16384e6:pieces20:aaaaaaaaaaaaaaaaaaaaee";
        Self { dir, metainfo: Metainfo::parse(none).unwrap(), files: made }
    }

    /// Has the kernel forget what the files hold, where they are on a disk.
    pub(crate) fn drop_from_memory(&self) {
        for (name, _) in &self.files {
            let file = std::fs::File::open(self.dir.path().join("content").join(name)).unwrap();
            file.sync_all().unwrap();
            storage::advise(&file, 0, 0, libc::POSIX_FADV_DONTNEED);
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.files.iter().map(|(_, data)| data.len() as u64).sum()
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.metainfo.info.geometry
    }

    pub(crate) fn info_hash(&self) -> [u8; 20] {
        self.metainfo.info.hashes.wire_hashes().next().unwrap()
    }

    /// The bytes of a block of a content of one file.
    pub(crate) fn block(&self, range: BlockRange) -> &[u8] {
        let offset = self.geometry().piece_offset(range.piece) as usize + range.begin as usize;
        &self.files[0].1[offset..offset + range.len as usize]
    }

    pub(crate) fn source(&self) -> Source {
        Source::Metainfo(Box::new(self.metainfo.clone()))
    }

    /// Asserts that `dir` holds the files, or those that `wanted` says.
    pub(crate) fn assert_in(&self, dir: &Path, wanted: impl Fn(&str) -> bool) {
        for (name, data) in self.files.iter().filter(|(name, _)| wanted(name)) {
            let found = std::fs::read(dir.join("content").join(name)).unwrap();
            assert!(found == *data, "{name} differs");
        }
    }
}

pub(crate) fn any_port() -> Vec<SocketAddr> {
    vec!["127.0.0.1:0".parse().unwrap()]
}

pub(crate) fn config(seed: u64) -> SessionConfig {
    SessionConfig { seed, disk_threads: 1, listen: any_port(), ..SessionConfig::default() }
}

/// A session with its events.
pub(crate) struct Node {
    pub session: Session,
    pub events: Events,
    /// All events so far.
    pub seen: Vec<Event>,
}

impl Node {
    pub(crate) fn start(config: SessionConfig) -> Self {
        let (session, events) = Session::start(config).unwrap();
        Self { session, events, seen: Vec::new() }
    }

    /// A session that shares `content`.
    pub(crate) fn seed(seed: u64, content: &Content) -> Self {
        let node = Self::start(config(seed));
        node.share(content);
        node
    }

    pub(crate) fn share(&self, content: &Content) -> ContentId {
        let options =
            AddOptions { dir: content.dir.path().to_owned(), read_only: true, trusted: true, ..AddOptions::default() };
        self.session.add(content.source(), options).unwrap()
    }

    pub(crate) fn get(&self, content: &Content, dir: &Path, peers: &[SocketAddr]) -> ContentId {
        let options = AddOptions {
            dir: dir.to_owned(),
            peers: peers.iter().map(|peer| (*peer).into()).collect(),
            ..AddOptions::default()
        };
        self.session.add(content.source(), options).unwrap()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.session.listening()[0]
    }

    /// Reads events until one satisfies `wanted`.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&EventKind) -> bool) -> EventKind {
        loop {
            let event = self.events.recv().await.expect("the session ended");
            self.seen.push(event.clone());
            if wanted(&event.kind) {
                return event.kind;
            }
        }
    }

    pub(crate) async fn finished(&mut self) {
        self.until(|kind| matches!(kind, EventKind::Finished)).await;
    }

    /// Waits until all of these are finished.
    pub(crate) async fn all_finished(&mut self, ids: &[ContentId]) {
        let mut open: HashSet<ContentId> = ids.iter().copied().collect();
        while !open.is_empty() {
            let event = self.events.recv().await.expect("the session ended");
            if matches!(event.kind, EventKind::Finished) {
                open.remove(&event.content);
            }
            self.seen.push(event);
        }
    }

    pub(crate) fn progress(&self, id: ContentId) -> Progress {
        self.session.progress(id).unwrap()
    }

    pub(crate) fn saw(&self, wanted: impl Fn(&EventKind) -> bool) -> bool {
        self.seen.iter().any(|event| wanted(&event.kind))
    }
}

/// Fetches one file of `content` into `out`.
pub(crate) async fn fetch_file(content: &Content, out: &Path, name: &'static str) {
    let seed = Node::seed(1, content);
    let mut node = Node::start(config(2));
    let options = AddOptions {
        dir: out.to_owned(),
        peers: vec![seed.address().into()],
        files: Some(Box::new(move |_, file| file.path.ends_with(name))),
        ..AddOptions::default()
    };
    node.session.add(content.source(), options).unwrap();
    node.finished().await;
    node.session.shutdown().await;
    seed.session.shutdown().await;
}

pub(crate) fn temp() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    (dir, path)
}

/// What a scripted peer hears.
#[derive(Debug, PartialEq)]
pub(crate) enum Got {
    Interested,
    Unchoke,
    Request(BlockRange),
    Cancel(BlockRange),
    Reject(BlockRange),
    Block(BlockRange, Vec<u8>),
    Other,
    Closed,
}

/// A peer that follows a script.
pub(crate) struct Raw {
    pub stream: TcpStream,
    receiver: Receiver,
    inbox: Vec<u8>,
    block: Option<(BlockRange, Vec<u8>)>,
}

impl Raw {
    /// Dials `address`.
    pub(crate) async fn connect(address: SocketAddr, info_hash: [u8; 20], name: u8) -> Self {
        let mut raw = Self::new(TcpStream::connect(address).await.unwrap());
        raw.send_handshake(info_hash, name).await;
        raw.read_handshake().await;
        raw
    }

    /// Takes the next connection.
    pub(crate) async fn accept(listener: &TcpListener, info_hash: [u8; 20], name: u8) -> Self {
        let mut raw = Self::new(listener.accept().await.unwrap().0);
        raw.read_handshake().await;
        raw.send_handshake(info_hash, name).await;
        raw
    }

    fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, receiver: Receiver::default(), inbox: Vec::new(), block: None }
    }

    async fn send_handshake(&mut self, info_hash: [u8; 20], name: u8) {
        let handshake = Handshake { reserved: Reserved::OURS, info_hash, peer_id: [name; 20] };
        self.stream.write_all(&handshake.encode()).await.unwrap();
    }

    async fn read_handshake(&mut self) {
        let mut bytes = [0; HANDSHAKE_LEN];
        self.stream.read_exact(&mut bytes).await.unwrap();
    }

    /// Everything is here, and everything is served.
    pub(crate) async fn offer_all(&mut self) {
        self.send(&[Message::HaveAll, Message::Unchoke]).await;
    }

    /// Sends messages; that the other side hung up shows when reading.
    pub(crate) async fn send(&mut self, messages: &[Message<'_>]) {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut bytes));
        self.write(&bytes).await;
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    pub(crate) async fn send_block(&mut self, range: BlockRange, data: &[u8]) {
        self.write(&block_message(range, data)).await;
    }

    /// What comes next.
    pub(crate) async fn next(&mut self) -> Got {
        loop {
            let mut input = &self.inbox[..];
            let before = input.len();
            let got = loop {
                match self.receiver.next(&mut input, &Limits::default()).unwrap() {
                    None => break None,
                    Some(WireEvent::BlockStart(range)) => self.block = Some((range, Vec::new())),
                    Some(WireEvent::BlockData(data)) => self.block.as_mut().unwrap().1.extend_from_slice(data),
                    Some(WireEvent::BlockEnd) => {
                        let (range, data) = self.block.take().unwrap();
                        break Some(Got::Block(range, data));
                    }
                    Some(WireEvent::Message(message)) => {
                        break Some(match message {
                            Message::Interested => Got::Interested,
                            Message::Unchoke => Got::Unchoke,
                            Message::Request(range) => Got::Request(range),
                            Message::Cancel(range) => Got::Cancel(range),
                            Message::Reject(range) => Got::Reject(range),
                            _ => Got::Other,
                        });
                    }
                }
            };
            let used = before - input.len();
            self.inbox.drain(..used);
            if let Some(got) = got {
                return got;
            }
            let mut chunk = [0; 16 * KIB];
            match self.stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return Got::Closed,
                Ok(len) => self.inbox.extend_from_slice(&chunk[..len]),
            }
        }
    }

    pub(crate) async fn until_request(&mut self) -> Option<BlockRange> {
        loop {
            match self.next().await {
                Got::Request(range) => return Some(range),
                Got::Closed => return None,
                _ => {}
            }
        }
    }

    pub(crate) async fn until_closed(&mut self) {
        while self.next().await != Got::Closed {}
    }
}

pub(crate) fn block_message(range: BlockRange, data: &[u8]) -> Vec<u8> {
    let mut bytes = piece_header(range.piece, range.begin, data.len() as u32).to_vec();
    bytes.extend_from_slice(data);
    bytes
}

/// A listener for a scripted peer.
pub(crate) async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}
