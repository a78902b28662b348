//! Clients of the store that play a protocol each: what they need to receive a content is all that the store promises.
//!
//! Everything is made from a seed, which is printed: contents, the order in which blocks arrive, what arrives twice or damaged,
//! how little memory there is, whether storage refuses at first, and when the program starts anew from its checkpoint.

mod bulk;
mod chunks;
mod pieces;

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;
use anabranch_content::geometry::{BlockRange, Geometry};
use anabranch_content::hash::ExpectedHash;
use anabranch_content::info::{FileEntry, FileKind, Info, InfoHashes, Version};
use anabranch_content::storage::{Loaded, ResumeStore, Storage, StorageError, StorageOptions};
use anabranch_paths::ConnId;
use fastrand::Rng;
use tokio::runtime::Runtime;

use crate::events::ContentId;
use crate::store::buffers::{CHUNK_LEN, NoPlace, PieceBuffers};
use crate::store::disk::{Disk, Outcome, Replies, Reply, SpillJob, VerifyJob};
use crate::store::pools::Pools;

const ID: ContentId = ContentId(3);
const ONE: ConnId = ConnId(1);
const TWO: ConnId = ConnId(2);
/// An answer that takes longer never comes.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const SEEDS: u64 = 24;
/// Of so many blocks one arrives damaged.
const DAMAGED_EVERY: usize = 300;

/// Runs `test` for every seed.
fn for_seeds(test: impl Fn(&mut Rng)) {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        test(&mut Rng::with_seed(seed));
    }
}

/// A content that no torrent describes: files of these lengths, one after the other, in such pieces and blocks.
pub(super) fn content(rng: &mut Rng, files: &[u64], piece_length: u32, block_length: u32) -> (Arc<Info>, Vec<u8>) {
    let mut offset = 0;
    let entry = |(index, length): (usize, &u64)| {
        let entry = FileEntry {
            path: format!("content/{index}").into(),
            length: *length,
            offset,
            kind: FileKind::Regular,
            executable: false,
            hidden: false,
            mtime: None,
            root: None,
        };
        offset += length;
        entry
    };
    let files: Vec<FileEntry> = files.iter().enumerate().map(entry).collect();
    let mut data = vec![0; offset as usize];
    rng.fill(&mut data);
    let info = Info {
        source: Box::default(),
        hashes: InfoHashes { v1: Some([7; 20]), v2: None },
        version: Version::V1,
        name: "content".into(),
        multi_file: true,
        files,
        geometry: Geometry::new(piece_length, offset, Vec::new()).with_block_length(block_length),
        piece_hashes: Box::default(),
        private: false,
    };
    (Arc::new(info), data)
}

/// Whoever receives a content, and keeps book of what the store should know.
struct Client {
    info: Arc<Info>,
    /// All bytes, where they lie in piece space.
    data: Vec<u8>,
    pools: Rc<Pools>,
    buffers: PieceBuffers,
    resume: Arc<ResumeStore>,
    disk: Disk,
    replies: Replies,
    runtime: Runtime,
    /// Jobs that were not answered yet.
    jobs: usize,
    /// Jobs that storage refused.
    refused: Vec<(StorageError, Refused)>,
    /// A folder stands where the first file belongs.
    in_the_way: bool,
    verified: Bitfield,
    /// Blocks that are here, by piece.
    here: Vec<Vec<bool>>,
    /// Pieces of which a damaged block was taken.
    damaged: BTreeSet<u32>,
    /// What the store was asked to cope with, to see that the seeds ask for all of it.
    met: Met,
    dir: tempfile::TempDir,
}

#[derive(Default, Debug)]
struct Met {
    duplicates: u32,
    bad: u32,
    refused: u32,
    spilled: u32,
    resumed: u32,
}

impl Met {
    fn add(&mut self, other: &Self) {
        self.duplicates += other.duplicates;
        self.bad += other.bad;
        self.refused += other.refused;
        self.spilled += other.spilled;
        self.resumed += other.resumed;
    }

    /// Seeds that miss something prove less than they say.
    fn assert_all(&self) {
        let all = [self.duplicates, self.bad, self.refused, self.spilled, self.resumed];
        assert!(all.iter().all(|count| *count > 0), "{self:?}");
    }
}

enum Refused {
    Piece(Box<VerifyJob>),
    Spill(Box<SpillJob>),
}

impl Client {
    fn new(rng: &mut Rng, (info, data): (Arc<Info>, Vec<u8>)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pools = Pools::new(u64::from(CHUNK_LEN) * if rng.bool() { 2 } else { 64 });
        let (resume, _) = open(&info, dir.path());
        let in_the_way = rng.bool();
        if in_the_way {
            std::fs::create_dir_all(dir.path().join(&info.files[0].path)).unwrap();
        }
        let buffers = PieceBuffers::new(Rc::clone(&pools), info.geometry.clone());
        let (disk, replies) = Disk::new(rng.usize(1..3)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let pieces = info.geometry.piece_count();
        let here = (0..pieces).map(|piece| vec![false; info.geometry.block_count(piece) as usize]).collect();
        Self {
            info,
            data,
            pools,
            buffers,
            resume,
            disk,
            replies,
            runtime,
            jobs: 0,
            refused: Vec::new(),
            in_the_way,
            verified: Bitfield::new(pieces),
            here,
            damaged: BTreeSet::new(),
            met: Met::default(),
            dir,
        }
    }

    fn geometry(&self) -> &Geometry {
        &self.info.geometry
    }

    fn block(&self, piece: u32, block: u32) -> BlockRange {
        let (begin, len) = (block * self.geometry().block_length(), self.geometry().block_len(piece, block));
        BlockRange { piece, begin, len }
    }

    /// Blocks that are missing, in any order.
    fn missing(&self, rng: &mut Rng) -> Vec<BlockRange> {
        let pieces = (0u32..).zip(&self.here).filter(|(piece, _)| !self.verified.get(*piece));
        let blocks =
            pieces.flat_map(|(piece, here)| (0u32..).zip(here).map(move |(block, here)| (piece, block, *here)));
        let mut missing: Vec<_> =
            blocks.filter(|(.., here)| !here).map(|(piece, block, _)| self.block(piece, block)).collect();
        rng.shuffle(&mut missing);
        missing
    }

    fn bytes(&self, range: BlockRange) -> &[u8] {
        let offset = self.geometry().piece_offset(range.piece) as usize + range.begin as usize;
        &self.data[offset..offset + range.len as usize]
    }

    /// What a peer sends of a range: now and then not what it should.
    fn payload(&self, range: BlockRange, rng: &mut Rng) -> (Vec<u8>, bool) {
        let mut payload = self.bytes(range).to_vec();
        let is_damaged = rng.usize(..DAMAGED_EVERY) == 0;
        payload[0] ^= u8::from(is_damaged);
        (payload, is_damaged)
    }

    fn is_here(&self, range: BlockRange) -> bool {
        let (first, block_len) = (range.begin / self.geometry().block_length(), self.geometry().block_length());
        let blocks = first as usize..(first + range.len.div_ceil(block_len)) as usize;
        self.verified.get(range.piece) || self.here[range.piece as usize][blocks].iter().any(|here| *here)
    }

    /// Memory for `range`, with room made for it where memory is short.
    fn place(&mut self, range: BlockRange) -> Result<*mut u8, NoPlace> {
        loop {
            match self.buffers.place(range, Instant::now()) {
                Err(NoPlace::NoMemory) => self.relieve(),
                placed => return placed,
            }
        }
    }

    /// What the kernel does for a receiver: the payload of a datagram lands in the place that was given for it.
    #[allow(unsafe_code)]
    fn receive(&mut self, range: BlockRange, payload: &[u8]) -> Result<(), NoPlace> {
        let place = self.place(range)?;
        // SAFETY: `place` answers memory of `range.len` bytes, and nothing was asked of the buffers since.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), place, range.len as usize) };
        Ok(())
    }

    /// The payload lies in its place, and counts.
    fn keep(&mut self, range: BlockRange, is_damaged: bool) {
        let now = Instant::now();
        self.buffers.begin(range, ONE, now).unwrap();
        assert!(self.buffers.finish(range, ONE, now));
        self.note(range, is_damaged);
    }

    fn note(&mut self, range: BlockRange, is_damaged: bool) {
        let block_len = self.geometry().block_length();
        let first = (range.begin / block_len) as usize;
        self.here[range.piece as usize][first..first + range.len.div_ceil(block_len) as usize].fill(true);
        if is_damaged {
            self.damaged.insert(range.piece);
        }
    }

    /// What nobody may send: twice, across what arrives, half a block, past the end.
    fn try_nonsense(&mut self, range: BlockRange) {
        let now = Instant::now();
        let refused = self.buffers.insert(range, &vec![0xaa; range.len as usize], now).unwrap_err();
        assert_eq!(refused, NoPlace::Here, "{range:?}");
        self.met.duplicates += 1;
        let past_the_end = BlockRange { piece: self.geometry().piece_count(), ..range };
        assert_eq!(self.buffers.place(past_the_end, now), Err(NoPlace::Outside));
        let Some(other) = (0..self.geometry().piece_count())
            .map(|piece| self.block(piece, 0))
            .find(|other| !self.is_here(*other) && other.len > 1)
        else {
            return;
        };
        let half = BlockRange { len: other.len / 2, ..other };
        assert_eq!(self.place(half), Err(NoPlace::Outside), "{half:?}");
        self.place(other).unwrap();
        self.buffers.begin(other, TWO, now).unwrap();
        assert_eq!(self.buffers.place(other, now), Err(NoPlace::Arriving));
        assert_eq!(self.buffers.begin(other, ONE, now), Err(NoPlace::Arriving));
        self.buffers.disconnected(TWO);
        assert!(!self.buffers.finish(other, TWO, now), "it let go of it");
    }

    fn is_whole(&self, piece: u32) -> bool {
        !self.verified.get(piece) && self.here[piece as usize].iter().all(|here| *here)
    }

    /// Hands a whole piece to the disk threads.
    fn verify(&mut self, piece: u32, expected: ExpectedHash) {
        let whole = self.buffers.take(piece).unwrap();
        self.jobs += 1;
        self.disk.verify(VerifyJob {
            content: ID,
            piece,
            whole,
            expected,
            digests: false,
            read_soon: piece.is_multiple_of(2),
            resume: Arc::clone(&self.resume),
            geometry: self.info.geometry.clone(),
        });
    }

    /// Memory is short.
    fn relieve(&mut self) {
        let free_before = self.pools.free_bytes();
        let spills = self.buffers.spill();
        // What was laid out and never received into is simply free again.
        let is_better = !spills.is_empty() || self.jobs > 0 || self.pools.free_bytes() > free_before;
        assert!(is_better, "there is nothing that could be spilled");
        for spill in spills {
            self.jobs += 1;
            self.met.spilled += 1;
            self.disk.spill(SpillJob { content: ID, spill, resume: Arc::clone(&self.resume) });
        }
        self.answers();
    }

    /// Waits for all verdicts. What storage refuses is handed in again once the cause is gone.
    fn answers(&mut self) {
        while self.jobs > 0 {
            let next = async { tokio::time::timeout(ANSWER_MAX, self.replies.next()).await };
            let reply = self.runtime.block_on(next).expect("an answer comes").expect("the disk is there");
            self.jobs -= 1;
            match reply {
                Reply::Verified(verified) => self.verdict(verified.piece, verified.outcome),
                Reply::Spilled(spilled) => match spilled.failed {
                    None => self.buffers.spilled(spilled.piece),
                    Some((error, job)) => self.refused.push((error, Refused::Spill(job))),
                },
                _ => panic!("nobody asked for this"),
            }
        }
        if self.refused.is_empty() {
            return;
        }
        assert!(std::mem::take(&mut self.in_the_way), "storage works: {}", self.refused[0].0);
        self.mend();
        for (_, job) in std::mem::take(&mut self.refused) {
            self.jobs += 1;
            self.met.refused += 1;
            match job {
                Refused::Piece(job) => self.disk.verify(*job),
                Refused::Spill(job) => self.disk.spill(*job),
            }
        }
        self.answers();
    }

    fn mend(&self) {
        std::fs::remove_dir(self.dir.path().join(&self.info.files[0].path)).unwrap();
    }

    fn verdict(&mut self, piece: u32, outcome: Outcome) {
        match outcome {
            Outcome::Good { .. } => {
                assert!(!self.damaged.contains(&piece), "piece {piece} is damaged");
                assert!(self.verified.set(piece), "piece {piece} is told once");
            }
            Outcome::Bad { digests } => {
                assert!(self.damaged.remove(&piece), "piece {piece} is as it should be");
                assert_eq!(digests.len(), self.here[piece as usize].len(), "one a block");
                self.met.bad += 1;
                self.here[piece as usize].fill(false);
                self.buffers.reopen(piece);
            }
            Outcome::Failed { error, job } => self.refused.push((error, Refused::Piece(job))),
        }
    }

    /// The program ends without a word after a checkpoint, and starts again: what was verified is known, and nothing else.
    fn restart(&mut self) {
        self.answers();
        if std::mem::take(&mut self.in_the_way) {
            self.mend();
        }
        self.resume.checkpoint().unwrap();
        let (resume, loaded) = open(&self.info, self.dir.path());
        match loaded {
            Loaded::Resumed(found) => {
                assert_eq!(found.have, self.verified);
                assert!(found.recheck.is_empty(), "{:?}", found.recheck);
            }
            _ => assert_eq!(self.verified.count(), 0),
        }
        self.resume = resume;
        self.buffers = PieceBuffers::new(Rc::clone(&self.pools), self.info.geometry.clone());
        for piece in 0..self.geometry().piece_count() {
            let is_verified = self.verified.get(piece);
            self.here[piece as usize].fill(is_verified);
        }
        self.damaged.clear();
        self.met.resumed += 1;
    }

    /// Everything is verified, recorded, and in its files.
    fn assert_complete(&self) {
        assert!(self.verified.is_full());
        assert_eq!(self.pools.used_bytes(), 0, "all memory is free again");
        self.resume.with(|resume| assert_eq!(resume.have, self.verified));
        for (_, file) in self.info.regular_files() {
            let found = std::fs::read(self.dir.path().join(&file.path)).unwrap_or_default();
            let range = file.range();
            assert!(found == self.data[range.start as usize..range.end as usize], "{} differs", file.path.display());
        }
    }
}

fn open(info: &Arc<Info>, root: &Path) -> (Arc<ResumeStore>, Loaded) {
    let storage = Arc::new(Storage::open(Arc::clone(info), root, StorageOptions::default()).unwrap());
    let (resume, loaded) = ResumeStore::open(storage, None).unwrap();
    (Arc::new(resume), loaded)
}
