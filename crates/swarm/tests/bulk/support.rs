//! Contents in memory, and ends that are told what to do.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anabranch_hercules::wire::manifest::{Entry, EntryKind};
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_hercules::{ChunkSet, tree};
use anabranch_paths::Endpoint;
use anabranch_swarm::bulk::{
    Admission, Destination, DestinationError, Destinations, Dial, Event, Events, Offered, Options, Refusal, Source,
    SourceError,
};
use anabranch_transport::{Identity, NodeId};

/// No test waits longer for anything: two busy cores may have other work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Content that is not kept anywhere: each byte follows from its place.
pub(crate) struct Pattern {
    pub(crate) len: u64,
    pub(crate) seed: u64,
    pub(crate) reads: AtomicU64,
    /// Reads from here on fail as those of a file that changed.
    pub(crate) changed_from: u64,
}

impl Pattern {
    pub(crate) fn new(len: u64, seed: u64) -> Arc<Self> {
        Arc::new(Self { len, seed, reads: AtomicU64::new(0), changed_from: u64::MAX })
    }

    pub(crate) fn fill(&self, offset: u64, into: &mut [u8]) {
        for (at, byte) in (offset..).zip(into.iter_mut()) {
            let word = ((at / 8) ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *byte = (word >> (at % 8 * 8)) as u8;
        }
    }
}

impl Source for Pattern {
    fn content_len(&self) -> u64 {
        self.len
    }

    fn entries(&self) -> u32 {
        1
    }

    fn manifest(&self) -> Arc<[u8]> {
        let extents = if self.len > 0 { vec![0..self.len] } else { Vec::new() };
        let kind = EntryKind::File { len: self.len, extents };
        let entry = Entry { name: b"pattern".to_vec(), mode: 0o644, modified: (self.seed as i64, 0), kind };
        let mut bytes = Vec::new();
        entry.write(&mut bytes).unwrap();
        bytes.into()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.reads.fetch_add(into.len() as u64, Ordering::Relaxed);
        if offset + into.len() as u64 > self.changed_from {
            return Err(SourceError::Changed("pattern".to_owned()));
        }
        self.fill(offset, into);
        Ok(())
    }
}

/// What is done before something is finished, and whether it may be.
pub(crate) type BeforeFinish = Arc<dyn Fn() -> Result<(), DestinationError> + Send + Sync>;

/// What is received, and what outlives a receiver: what a disk would have.
pub(crate) struct Memory {
    pub(crate) contents: Mutex<HashMap<[u8; 32], Arc<Place>>>,
    pub(crate) refuses: bool,
    /// Of each content, until more is made.
    pub(crate) room: u64,
    pub(crate) before_finish: Option<BeforeFinish>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { contents: Mutex::default(), refuses: false, room: u64::MAX, before_finish: None }
    }
}

pub(crate) struct Place {
    pub(crate) bytes: Mutex<Vec<u8>>,
    pub(crate) kept: Mutex<ChunkSet>,
    pub(crate) finished: Mutex<Option<Receipt>>,
    /// Writes beyond so many bytes find no room, while it is set.
    pub(crate) room: AtomicU64,
    before_finish: Option<BeforeFinish>,
}

/// One opening of a place.
struct Opened(Arc<Place>);

impl Memory {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Spans that are kept of the only one, if there is one yet.
    pub(crate) fn kept(&self) -> u64 {
        let contents = self.contents.lock().unwrap();
        contents.values().next().map_or(0, |place| place.kept.lock().unwrap().len())
    }

    pub(crate) fn only(&self) -> Arc<Place> {
        self.contents.lock().unwrap().values().next().expect("something was offered").clone()
    }
}

impl Destinations for Memory {
    fn open(&self, offered: Offered) -> Result<Arc<dyn Destination>, Refusal> {
        if self.refuses {
            return Err(Refusal("there is no place for that".to_owned()));
        }
        let len = offered.offer.content_len;
        let mut contents = self.contents.lock().unwrap();
        let place = contents.entry(offered.offer.manifest_hash).or_insert_with(|| {
            Arc::new(Place {
                bytes: Mutex::new(vec![0; len as usize]),
                kept: Mutex::new(ChunkSet::new(tree::span_count(len))),
                finished: Mutex::default(),
                room: AtomicU64::new(self.room),
                before_finish: self.before_finish.clone(),
            })
        });
        Ok(Arc::new(Opened(place.clone())))
    }
}

impl Destination for Opened {
    fn kept(&self) -> ChunkSet {
        self.0.kept.lock().unwrap().clone()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DestinationError> {
        if offset + bytes.len() as u64 > self.0.room.load(Ordering::Relaxed) {
            return Err(DestinationError::Full("the disk is full".to_owned()));
        }
        self.0.bytes.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DestinationError> {
        into.copy_from_slice(&self.0.bytes.lock().unwrap()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn span_kept(&self, span: u64, _: &[u8; 32]) -> Result<(), DestinationError> {
        self.0.kept.lock().unwrap().insert(span);
        Ok(())
    }

    fn finish(&self, receipt: &Receipt) -> Result<(), DestinationError> {
        self.0.before_finish.as_ref().map_or(Ok(()), |before| before())?;
        *self.0.finished.lock().unwrap() = Some(receipt.clone());
        Ok(())
    }
}

impl Place {
    pub(crate) fn assert_is(&self, pattern: &Pattern) {
        let bytes = self.bytes.lock().unwrap();
        let mut expected = vec![0; 1 << 20];
        for (at, part) in bytes.chunks(1 << 20).enumerate() {
            pattern.fill((at as u64) << 20, &mut expected[..part.len()]);
            assert!(part == &expected[..part.len()], "the content differs in its MiB {at}");
        }
        assert_eq!(bytes.len() as u64, pattern.len);
        let receipt = self.finished.lock().unwrap().clone().expect("it was finished");
        assert!(receipt.verify() && receipt.content_len == pattern.len);
    }
}

pub(crate) fn options() -> Options {
    let mut options = Options::new(Identity::ephemeral().unwrap());
    options.listen = Some(vec!["127.0.0.1:0".parse().unwrap()]);
    // As a network has them, not the loopback's.
    options.packet_len = Some(1500);
    options
}

/// Admits one who holds the ticket of this secret.
pub(crate) fn by_ticket(secret: [u8; 12], times: u16) -> Admission {
    Admission { secret: Some(secret), times, ..Admission::default() }
}

pub(crate) fn dial(address: SocketAddr, secret: Option<[u8; 12]>) -> Dial {
    Dial { addresses: vec![Endpoint::from(address)], key: None, secret }
}

pub(crate) fn by_key(key: NodeId) -> Admission {
    Admission { keys: [key].into(), ..Admission::default() }
}

/// Reads events with patience.
pub(crate) struct Ear {
    events: Events,
    pub(crate) heard: Vec<String>,
}

impl Ear {
    pub(crate) fn new(events: Events) -> Self {
        Self { events, heard: Vec::new() }
    }

    /// The next event but progress; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        let event = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        let event = event.unwrap_or_else(|_| panic!("nothing more after {:#?}", self.heard));
        if let Some(event) = &event {
            // The last progress is enough.
            if matches!(event, Event::Progress(_)) && self.heard.last().is_some_and(|last| last.starts_with("Progress"))
            {
                self.heard.pop();
            }
            self.heard.push(format!("{event:?}").chars().take(300).collect());
        }
        event
    }

    /// The first event that `pick` takes.
    pub(crate) async fn until<T>(&mut self, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            let event = self.next().await;
            let Some(event) = event else { panic!("it ended after {:#?}", self.heard) };
            if let Some(found) = pick(&event) {
                return found;
            }
            assert!(start.elapsed() < 2 * PATIENCE, "it was not told after {:#?}", self.heard);
        }
    }

    pub(crate) async fn listening(&mut self) -> SocketAddr {
        self.until(|event| match event {
            Event::Listening { addresses } => addresses.iter().find_map(Endpoint::as_ip),
            _ => None,
        })
        .await
    }

    pub(crate) async fn finished(&mut self) -> (Receipt, u64) {
        self.until(|event| match event {
            Event::Finished { receipt, repeated_bytes, .. } => Some(((**receipt).clone(), *repeated_bytes)),
            Event::Failed { error, .. } => panic!("{error}"),
            _ => None,
        })
        .await
    }

    pub(crate) async fn failed(&mut self) -> String {
        self.until(|event| match event {
            Event::Failed { error, .. } => Some(error.to_string()),
            Event::Finished { .. } => panic!("it finished"),
            _ => None,
        })
        .await
    }
}
