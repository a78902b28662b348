//! Contents that come and go many times leave nothing behind: memory, descriptors and threads are back where they were. Alone in its
//! process, of which it looks at the whole.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anabranch_content::create::{CreateOptions, create};
use anabranch_content::metainfo::Metainfo;
use anabranch_swarm::{AddOptions, ContentId, Data, EventKind, Events, Session, SessionConfig, Source};

/// Bytes of a content: two pieces.
const CONTENT_LEN: usize = 20_000;
/// Contents of a round that a peer brings.
const FETCHED: usize = 5;
/// Growth that is no leak: what the allocator and the runtime keep for the next time.
const GROWTH_MAX_BYTES: u64 = 6 << 20;
/// Growth of what is in use of the heap: tables whose capacity has grown.
const ALLOCATED_GROWTH_MAX_BYTES: u64 = 1 << 20;
/// How long the system may take to end threads and close descriptors.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
/// When nothing goes for so long, nothing is about to.
const AT_REST: Duration = Duration::from_millis(200);
/// Threads that have nothing to do end before anybody counts them.
const THREAD_KEEP_ALIVE: Duration = Duration::from_millis(50);

/// What the process has.
#[derive(Clone, Copy, Debug)]
struct Held {
    memory_bytes: u64,
    /// Of the heap, what is in use.
    allocated_bytes: u64,
    descriptors: usize,
    threads: usize,
}

fn held() -> Held {
    // What nobody uses is given back first: how much of it the allocator keeps is chance, and would hide what is left behind.
    // SAFETY: takes an integer only.
    unsafe { libc::malloc_trim(0) };
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    // SAFETY: the call only answers.
    let heap = unsafe { libc::mallinfo2() };
    let allocated_bytes = (heap.uordblks + heap.hblkhd) as u64;
    Held {
        memory_bytes: pages * 4096,
        allocated_bytes,
        descriptors: count("/proc/self/fd"),
        threads: count("/proc/self/task"),
    }
}

/// What is left when nothing more goes: of descriptors and threads no more than `before`, and none has gone for a while. A thread that
/// is about to end still has its stack and its part of the heap.
async fn settled(before: Held) -> Held {
    let deadline = Instant::now() + SETTLED_WITHIN;
    let mut last = held();
    loop {
        tokio::time::sleep(AT_REST).await;
        let now = held();
        let is_at_rest = (now.descriptors, now.threads) == (last.descriptors, last.threads);
        let is_back = now.descriptors <= before.descriptors && now.threads <= before.threads;
        if is_at_rest && is_back || Instant::now() > deadline {
            return now;
        }
        last = now;
    }
}

fn made(dir: &Path, count: usize) -> Vec<Metainfo> {
    let make = |number: usize| {
        let path = dir.join(format!("content-{number}"));
        let mut bytes = vec![0; CONTENT_LEN];
        fastrand::Rng::with_seed(number as u64).fill(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let made = create(&path, &CreateOptions::default(), &AtomicBool::new(false), |_, _| {}).unwrap();
        Metainfo::parse(&made.metainfo).unwrap()
    };
    (0..count).map(make).collect()
}

fn start(seed: u64) -> (Session, Events) {
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    Session::start(SessionConfig { seed, listen, disk_threads: 2, ..SessionConfig::default() }).unwrap()
}

struct Churn {
    contents: Vec<Metainfo>,
    shared: PathBuf,
    out: PathBuf,
    seed: Session,
}

impl Churn {
    /// Adds all contents, some to be shared, some to be fetched, some by a link that nobody knows anything of; removes all.
    async fn round(&self, session: &Session, events: &mut Events) {
        let mut ids = Vec::new();
        let mut opening = 0;
        for (number, metainfo) in self.contents.iter().enumerate() {
            let is_shared = number % 3 == 0;
            let source = match number % 3 {
                2 if number >= FETCHED => Source::Magnet(Box::new(metainfo.magnet())),
                _ => Source::Metainfo(Box::new(metainfo.clone())),
            };
            opening += usize::from(matches!(source, Source::Metainfo(_)));
            let options = AddOptions {
                dir: if is_shared { self.shared.clone() } else { self.out.clone() },
                read_only: is_shared,
                peers: if number < FETCHED { vec![self.seed.listening()[0].into()] } else { Vec::new() },
                ..AddOptions::default()
            };
            ids.push((session.add(source, options).unwrap(), if is_shared { Data::Keep } else { Data::Delete }));
        }
        let mut fetched = (0..FETCHED).filter(|number| number % 3 != 0).count();
        while opening > 0 || fetched > 0 {
            let event = events.recv().await.unwrap();
            let is_fetched =
                |id: ContentId| ids[..FETCHED].iter().any(|(other, data)| *other == id && *data == Data::Delete);
            match event.kind {
                EventKind::Started { .. } => opening -= 1,
                EventKind::Finished if is_fetched(event.content) => fetched -= 1,
                EventKind::Failed { reason, .. } => panic!("{reason}"),
                _ => {}
            }
        }
        let removals: Vec<_> = ids.into_iter().map(|(id, data)| session.remove(id, data)).collect();
        for removal in removals {
            assert_eq!(removal.await.unwrap().left, Vec::<PathBuf>::new());
        }
        assert!(session.list().is_empty());
        // Of two that let go of their places at once, each may leave the empty file of locks to the other.
        let left = std::fs::read_dir(&self.out).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.filter(|name| name != ".anabranch-lock").count(), 0);
    }
}

fn churn(count: usize, rounds: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .build()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (shared, out) = (dir.path().join("shared"), dir.path().join("out"));
    std::fs::create_dir(&shared).unwrap();
    std::fs::create_dir(&out).unwrap();
    let contents = made(&shared, count);
    let at_first = held();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        // Nobody listens to it: events that are not read would pile up, to their limit of some megabytes.
        let (seed, _) = start(1);
        for metainfo in &contents[..FETCHED] {
            let share = AddOptions { dir: shared.clone(), read_only: true, trusted: true, ..AddOptions::default() };
            seed.add(Source::Metainfo(Box::new(metainfo.clone())), share).unwrap();
        }
        let churn = Churn { contents, shared, out, seed };
        let (session, mut events) = start(2);
        // What is kept for good is taken in the first rounds.
        churn.round(&session, &mut events).await;
        churn.round(&session, &mut events).await;
        let before = settled(held()).await;
        for _ in 0..rounds {
            churn.round(&session, &mut events).await;
        }
        let after = settled(before).await;
        println!("{count} contents, {rounds} times: {before:?}, then {after:?}");
        assert!(after.descriptors <= before.descriptors, "{before:?}, then {after:?}");
        assert!(after.threads <= before.threads, "{before:?}, then {after:?}");
        assert!(after.memory_bytes <= before.memory_bytes + GROWTH_MAX_BYTES, "{before:?}, then {after:?}");
        let allocated_max = before.allocated_bytes + ALLOCATED_GROWTH_MAX_BYTES;
        assert!(after.allocated_bytes <= allocated_max, "{before:?}, then {after:?}");
        // Sessions end their threads, politely or not.
        session.shutdown().await;
        drop(churn);
        let after = settled(at_first).await;
        assert!(after.threads <= at_first.threads, "{at_first:?}, then {after:?}");
        assert!(after.descriptors <= at_first.descriptors, "{at_first:?}, then {after:?}");
    });
}

/// Enough to show what stays: a content's core alone is tens of kilobytes.
#[test]
fn contents_that_come_and_go_leave_nothing() {
    churn(100, 10);
}

#[test]
#[ignore = "takes minutes: `make churn`"]
fn a_thousand_contents_a_hundred_times_leave_nothing() {
    churn(1000, 100);
}
