//! `live`: broadcasts what it reads, until that ends or the user does.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_paths::Endpoint;
use anabranch_ppspp::pace::{self, Pace};
use anabranch_ppspp::sign::SigningKey;
use anabranch_swarm::ppspp::{LIVE_CHUNK_LEN, LiveShare};
use anabranch_swarm::{AddOptions, ContentId, Events, Session, SessionConfig, Source};
use serde_json::{Map, json};
use tokio::sync::{Notify, mpsc};

use super::key;
use crate::bulk::options::identity;
use crate::cli::{LiveFlags, LiveIntegrity};
use crate::commands::{check_trackers, share};
use crate::exit::{Code, Failure};
use crate::guard;
use crate::output::{self, Chatter};
use crate::runtime::{self, unless_interrupted};
use crate::sandbox::Plan;
use crate::session;
use crate::units;
use crate::watch::{Content, Watch};

/// Bytes read at once.
const READ_LEN: usize = 64 << 10;
/// Reads that wait to be broadcast.
const READS_WAITING: usize = 4;
/// After the end, those who lack some of it have so long to get it.
const LINGER_MAX: Duration = Duration::from_secs(10);
const LINGER_LOOK: Duration = Duration::from_millis(100);
/// Longest name of a stream, in bytes.
const NAME_LEN_MAX: usize = 255;
const NAME_DEFAULT: &str = "live.ts";
/// Bytes a second that a key is to sign chunks for one by one, 8 Mbit/s; and how often a signature is timed, for the machine may be busy.
const SLOW_RATE: u64 = 1_000_000;
const SIGNATURES_TIMED: u32 = 3;
/// A stream counts its chunks from further down than one that was begun a second before, by so many ...
const CHUNKS_A_SECOND: u64 = 256;
/// ... for so many seconds, 97 days; then from the top again. Half of all numbers are left to the stream itself, two terabytes.
const SECONDS: u64 = 1 << 23;

/// Runs the command.
pub(crate) fn run(mut flags: Box<LiveFlags>, chatter: Chatter) -> Result<Code, Failure> {
    check_trackers(&flags.tracker)?;
    guard::check_proxy(&flags.session)?;
    let name = name(&flags)?;
    let (input, head) = open(&flags)?;
    // Here it is the stream's key: who broadcasts is known by that.
    let key = key::open(flags.session.scion.key.take().as_deref())?;
    if !flags.secure {
        guard::check_plain_ppspp(&flags.session, "give --secure too")?;
    }
    if flags.integrity == LiveIntegrity::SignAll
        && let Some(rate_max) = rate_of_slow_key(&key)
    {
        chatter.note(format_args!(
            "the key takes so long for each signature that no more than {} can be broadcast with --integrity sign-all: use an ECDSA key, \
             or --integrity unified",
            units::rate(rate_max)
        ));
    }
    let share = match flags.integrity {
        LiveIntegrity::Unified => LiveShare::new(key, Some(name.clone())),
        LiveIntegrity::SignAll => LiveShare::sign_all(key, Some(name.clone())),
    };
    let mut share = share.map_err(Failure::input)?;
    (share.copies_max, share.begins_at) = (flags.copies, first_chunk(now_unix_s()));
    let _sandbox = Plan::live(&flags).enter(chatter)?;
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let reached = session::reach(&flags.session, std::iter::empty(), chatter);
        let Some((scion, peers)) = unless_interrupted(&interrupted, reached).await? else { return Ok(Code::Success) };
        let secure_identity = if flags.secure { Some(identity(None, chatter)?) } else { None };
        let config = SessionConfig { scion, secure_identity, keeps_ports_for_ppspp: true, ..SessionConfig::default() };
        let mut config = session::session_config(&flags.session, config, chatter)?;
        session::discover_nobody(&mut config);
        let (session, events) = session::start(&flags.session, config, chatter)?;
        let mut watch = Watch::new(&flags.session, chatter)?;
        let ended = match begin(&session, &flags, (share, name), &peers, &mut watch) {
            Ok(id) => {
                let mut source =
                    Broadcast { session: &session, watch: &mut watch, id, bytes: 0, since: Instant::now() };
                let ended = match read(input, head, &flags) {
                    Ok(reading) => source.follow(events, reading, &interrupted).await,
                    Err(failure) => Err(failure),
                };
                source.watch.clear();
                ended
            }
            Err(failure) => Err(failure),
        };
        watch.close();
        session.shutdown().await;
        ended
    })
}

/// Bytes a second for which a key signs each chunk, where that is no more than many streams have: RSA keys of 2048 bits and more take a
/// millisecond and more for each, ECDSA keys a small part of that.
fn rate_of_slow_key(key: &SigningKey) -> Option<u64> {
    let time = |_| {
        let since = Instant::now();
        key.sign(&[0; LIVE_CHUNK_LEN])?;
        Some(since.elapsed())
    };
    let least = (0..SIGNATURES_TIMED).filter_map(time).min()?;
    Some((LIVE_CHUNK_LEN as f64 / least.as_secs_f64()) as u64).filter(|rate| *rate < SLOW_RATE)
}

/// What viewers see it called.
fn name(flags: &LiveFlags) -> Result<String, Failure> {
    let by_file =
        || flags.input.file_name().filter(|_| !is_stdin(flags)).map(|name| name.to_string_lossy().into_owned());
    let name = flags.name.clone().or_else(by_file).unwrap_or_else(|| NAME_DEFAULT.to_owned());
    if name.is_empty() || name.len() > NAME_LEN_MAX {
        return Err(Failure::usage(format!("`--name {name}`: give 1 to {NAME_LEN_MAX} bytes")));
    }
    Ok(name)
}

/// The number of the first chunk of a stream that is begun now. Viewers know it for another than the one before of the same key by its lower
/// numbers: from 0 on it would soon be past those of one that had hardly begun.
fn first_chunk(unix_s: u64) -> u64 {
    (SECONDS - unix_s % SECONDS) * CHUNKS_A_SECOND
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn is_stdin(flags: &LiveFlags) -> bool {
    flags.input == Path::new("-")
}

/// The input with its first bytes, which tell how it is paced.
fn open(flags: &LiveFlags) -> Result<(Box<dyn Read + Send>, Vec<u8>), Failure> {
    let shown = flags.input.display();
    if is_stdin(flags) {
        if std::io::stdin().is_terminal() {
            let message =
                "standard input is a terminal: pipe what is to be broadcast into it, or name a file with --input";
            return Err(Failure::usage(message));
        }
        return Ok((Box::new(std::io::stdin()), Vec::new()));
    }
    let failed = |error: std::io::Error| {
        let remedy = match error.kind() {
            ErrorKind::NotFound => "give a file that is there, or - for standard input",
            ErrorKind::PermissionDenied => "make it readable, or give another",
            _ => "give a file, or - for standard input",
        };
        Failure::input(format!("cannot read {shown}: {error}; {remedy}"))
    };
    let mut file = File::open(&flags.input).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(Failure::input(format!(
            "cannot broadcast {shown}: it is a folder; give a file, or - for standard input"
        )));
    }
    // A pipe or a device goes at its own rate.
    if !metadata.is_file() {
        return Ok((Box::new(file), Vec::new()));
    }
    let mut head = Vec::new();
    (&mut file).take(pace::PROBE_LEN as u64).read_to_end(&mut head).map_err(failed)?;
    if head.is_empty() {
        return Err(Failure::input(format!("cannot broadcast {shown}: it is empty; give a file with something in it")));
    }
    if flags.rate.is_none() && !pace::is_transport_stream(&head) {
        return Err(Failure::usage(format!(
            "{shown} is no MPEG transport stream, whose clock would tell its rate: give --rate, in bytes a second, or make one of \
             it with `ffmpeg -re -i {shown} -f mpegts -`"
        )));
    }
    Ok((Box::new(file), head))
}

/// Reads the input on a thread of its own, at its pace: its end is the channel's. A read that hangs is not waited for.
fn read(
    mut input: Box<dyn Read + Send>,
    head: Vec<u8>,
    flags: &LiveFlags,
) -> Result<mpsc::Receiver<std::io::Result<Vec<u8>>>, Failure> {
    let (bytes, reading) = mpsc::channel(READS_WAITING);
    let rate = flags.rate.map(|rate| rate.0);
    let work = move || {
        let mut head = head;
        let mut buffer = vec![0; READ_LEN];
        let mut next = |least: usize, head: &mut Vec<u8>| -> std::io::Result<bool> {
            while head.len() < least.max(1) {
                match input.read(&mut buffer) {
                    Ok(0) => return Ok(false),
                    Ok(count) => head.extend_from_slice(&buffer[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(true)
        };
        let mut paced = || -> std::io::Result<()> {
            if rate.is_none() {
                next(pace::PROBE_LEN, &mut head)?;
            }
            let mut pace = Pace::of(rate, &head);
            while next(1, &mut head)? {
                for (due, part) in pace.cut(&std::mem::take(&mut head), Instant::now()) {
                    let wait = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()));
                    if !wait.is_zero() {
                        std::thread::sleep(wait);
                    }
                    if bytes.blocking_send(Ok(part)).is_err() {
                        return Ok(());
                    }
                }
            }
            // Where nobody listens any more, nobody misses it.
            let _ = bytes.blocking_send(Ok(pace.rest()));
            Ok(())
        };
        if let Err(error) = paced() {
            let _ = bytes.blocking_send(Err(error));
        }
    };
    std::thread::Builder::new().name("live-input".to_owned()).spawn(work).map_err(Failure::runtime)?;
    Ok(reading)
}

/// The stream is in the session, and its link is told.
fn begin(
    session: &Session,
    flags: &LiveFlags,
    (mut share, name): (LiveShare, String),
    peers: &[Endpoint],
    watch: &mut Watch,
) -> Result<ContentId, Failure> {
    share.link.secure = share::secure_link(session, &flags.session);
    let mut link = share.link.clone();
    let options = AddOptions {
        allowed: guard::allowed(&flags.session)?,
        peers: peers.to_vec(),
        trackers: flags.tracker.clone(),
        limit_down: flags.session.torrent_limit_down.map(|rate| rate.0),
        limit_up: flags.session.torrent_limit_up.map(|rate| rate.0),
        ..AddOptions::default()
    };
    let id = session.add(Source::Live(Box::new(share)), options).map_err(Failure::input)?;
    // The port is known only now.
    link.trackers.clone_from(&flags.tracker);
    link.peers = share::ppspp_addresses(session);
    let swarm_id = anabranch_content::hex::encode(link.params.swarm_id());
    watch.contents.insert(id, Content::live(name.clone(), swarm_id.clone(), Map::new()));
    let link = link.to_string();
    if flags.session.json {
        watch.tell(
            id,
            "started",
            json!({ "link": link, "swarm_id": swarm_id, "input": flags.input.to_string_lossy() }),
        )?;
    } else {
        watch.note(format_args!("broadcasting {name}"));
        output::line(link)?;
    }
    Ok(id)
}

/// A broadcast.
struct Broadcast<'a> {
    session: &'a Session,
    watch: &'a mut Watch,
    id: ContentId,
    bytes: u64,
    since: Instant,
}

impl Broadcast<'_> {
    /// Until the input ends, or the user does; and until those who watch have it all.
    async fn follow(
        &mut self,
        mut events: Events,
        mut reading: mpsc::Receiver<std::io::Result<Vec<u8>>>,
        interrupted: &Notify,
    ) -> Result<Code, Failure> {
        let mut ticks = self.watch.ticks();
        let mut is_interrupted = false;
        let ended = loop {
            tokio::select! {
                biased;
                () = interrupted.notified() => {
                    is_interrupted = true;
                    break Ok(());
                }
                Some(event) = events.recv() => self.watch.on_event(self.session, &event)?,
                read = reading.recv() => match read {
                    Some(Ok(bytes)) => {
                        self.bytes += bytes.len() as u64;
                        self.session.push_live(self.id, &bytes);
                    }
                    Some(Err(error)) => break Err(error),
                    None => break Ok(()),
                },
                _ = ticks.tick() => self.watch.tick(self.session)?,
            }
            if let Some((kind, reason)) = self.watch.contents.get(&self.id).and_then(|content| content.failed.clone()) {
                return Err(Failure::new(kind.into(), reason));
            }
        };
        self.session.end_live(self.id);
        let lacking = self.linger().await;
        let seconds = self.since.elapsed().as_secs_f64();
        let sent = self.session.progress(self.id).map_or(0, |progress| progress.stats.uploaded_bytes);
        let fields = json!({ "bytes": self.bytes, "uploaded": sent, "seconds": seconds, "lacking_viewers": lacking });
        let (all, sent) = (units::bytes(self.bytes), units::bytes(sent));
        let mut text = format!("ended, {all} in {seconds:.1} s; {sent} sent");
        if lacking > 0 {
            let viewers = units::count(lacking, "viewer");
            let waited = LINGER_MAX.as_secs();
            text.push_str(&format!("; {viewers} did not get all of it within {waited} s after the end, and are left"));
        }
        self.watch.report(self.id, "ended", fields, &text)?;
        match ended {
            Err(error) => {
                let message = format!("the input cannot be read on: {error}; what came before was broadcast");
                Err(Failure::new(Code::Input, message))
            }
            Ok(()) if self.bytes == 0 && !is_interrupted => {
                Err(Failure::input("the input ended without a byte: see whether what writes it works"))
            }
            Ok(()) => Ok(Code::Success),
        }
    }

    /// Waits until all viewers have all of it; answers how many do not, in the end.
    async fn linger(&self) -> usize {
        let until = Instant::now() + LINGER_MAX;
        loop {
            let lacking = self.session.live_state(self.id).map_or(0, |state| state.lacking_peers);
            if lacking == 0 || Instant::now() >= until {
                return lacking;
            }
            tokio::time::sleep(LINGER_LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_count_from_further_down_each_second() {
        let begun = 1_800_000_000;
        assert_eq!(first_chunk(begun) - first_chunk(begun + 1), CHUNKS_A_SECOND);
        let top = begun.next_multiple_of(SECONDS);
        assert_eq!((first_chunk(top), first_chunk(top - 1)), (1 << 31, CHUNKS_A_SECOND), "from the top again");
        // Numbers have 32 bits, and those that are signed as one begin with a multiple of how many they are.
        assert!(first_chunk(top) <= u64::from(u32::MAX) / 2 + 1 && CHUNKS_A_SECOND.is_multiple_of(16));
    }
}
