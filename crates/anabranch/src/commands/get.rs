//! `get`: fetches content.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anabranch_content::metainfo::Metainfo;
use anabranch_paths::Endpoint;
use anabranch_swarm::{AddOptions, Aim, ContentId, Event, EventKind, Events, Session, SessionConfig};
use serde_json::{Map, Value, json};

use super::create::save;
use super::learn::{Question, add, learn, no_hashes, rules};
use super::show::torrent_json;
use super::{check_trackers, check_web_seeds, live};
use crate::ask;
use crate::choice::{self, Choice};
use crate::cli::GetFlags;
use crate::exit::{Code, Failure};
use crate::guard;
use crate::hook::{self, Ended, Hook};
use crate::output::{self, Chatter};
use crate::patience::Rules;
use crate::runtime::{self, unless_interrupted};
use crate::sandbox::{Plan, Sandbox};
use crate::seeding;
use crate::session;
use crate::settings;
use crate::source::{self, Source};
use crate::watch::{Content, Watch};

/// How long peers are asked for hashes that a torrent is saved with, once all that is wanted is there.
const HASHES_MAX: Duration = Duration::from_secs(10);

/// Runs the command.
pub(crate) fn run(mut flags: Box<GetFlags>, chatter: Chatter) -> Result<Code, Failure> {
    let link = |text: &std::ffi::OsString| source::link(text).ok().flatten();
    if flags.sources.iter().filter_map(link).any(|link| source::is_live(&link)) {
        check_trackers(&flags.find.tracker)?;
        guard::check_proxy(&flags.session)?;
        let _sandbox = Plan::get(&flags).enter(chatter)?;
        let sources = flags.sources.iter().map(|source| source::load(source)).collect::<Result<Vec<_>, _>>()?;
        return live::record(&flags, sources, chatter);
    }
    check(&flags)?;
    check_choose(&mut flags)?;
    let on_complete = flags.on_complete.clone().map(|command| hook::errand(Arc::new(Mutex::new(Some(command)))));
    let sandbox = Plan::get(&flags).starting(on_complete).enter(chatter)?;
    let sources = flags.sources.iter().map(|source| source::load(source)).collect::<Result<Vec<_>, _>>()?;
    for source in &sources {
        match source {
            Source::Torrent(metainfo) => _ = choice(&flags, source).wanted(&metainfo.info).map_err(Failure::input)?,
            Source::Ppspp(link) if link.manifest_len.is_some() => check_folder(&flags)?,
            _ => {}
        }
    }
    if flags.list {
        return list(&mut flags, sources, &sandbox, chatter);
    }
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let config = SessionConfig {
            strategy: flags.strategy.0,
            preallocate: flags.preallocate.0,
            state_dir: flags.find.state_dir.clone(),
            metadata_dir: flags.find.state_dir.clone().or_else(settings::cache_folder),
            ..SessionConfig::default()
        };
        let fetching = session::fetching(&flags.session, config, &sources, chatter);
        let Some((session, events, peers)) = unless_interrupted(&interrupted, fetching).await? else {
            return Ok(Code::Interrupted);
        };
        let mut fetching = Fetching {
            session: &session,
            flags: &flags,
            sandbox: &sandbox,
            rules: rules(&flags.session, &flags.find, chatter),
            watch: Watch::new(&flags.session, chatter)?,
            sources: BTreeMap::new(),
            hook: flags.on_complete.clone().map(Hook::new),
            failed_hook: None,
            saving: Saving::Wanted,
        };
        let ended = match fetching.add_all(sources, &peers) {
            Ok(()) => tokio::select! {
                ended = fetching.follow(events) => Some(ended),
                () = interrupted.notified() => None,
            },
            Err(failure) => Some(Err(failure)),
        };
        let ended = ended.unwrap_or_else(|| fetching.interruption());
        fetching.watch.close();
        drop(fetching);
        session.shutdown().await;
        ended
    })
}

/// Flags that cannot be meant together.
fn check(flags: &GetFlags) -> Result<(), Failure> {
    check_trackers(&flags.find.tracker)?;
    check_web_seeds(&flags.web_seed)?;
    guard::check_proxy(&flags.session)?;
    if flags.sources.len() != 1 {
        if !flags.web_seed.is_empty() {
            return Err(Failure::usage("`--web-seed` has the files of one SOURCE: give exactly one"));
        }
        if flags.find.save_torrent.is_some() {
            return Err(Failure::usage("`--save-torrent` saves the torrent of one SOURCE: give exactly one"));
        }
        if !flags.select_file.is_empty() {
            return Err(Failure::usage(
                "`--select-file` numbers the files of one SOURCE: give exactly one, or --files",
            ));
        }
    }
    let is_link = |source: &std::ffi::OsString| {
        let text = source.to_str().unwrap_or_default().to_ascii_lowercase();
        text.starts_with("ppspp:") || text.starts_with("tswift:")
    };
    if flags.find.save_torrent.is_some() && flags.sources.iter().any(is_link) {
        return Err(Failure::usage("`--save-torrent` saves a torrent, and a link of PPSPP has none: leave it out"));
    }
    match flags.given.first_of(&["stop-ratio", "stop-after"]).filter(|_| !flags.seed) {
        Some(flag) => Err(Failure::usage(format!(
            "`--{flag}` says when sharing ends, and `get` goes on sharing with --seed only: give that too"
        ))),
        None => Ok(()),
    }
}

/// A folder by PPSPP is fetched whole.
fn check_folder(flags: &GetFlags) -> Result<(), Failure> {
    match flags.given.first_of(&["files", "select-file", "choose"]) {
        Some(flag) => Err(Failure::usage(format!(
            "`--{flag}` chooses files of a torrent, and a folder's link of PPSPP is fetched whole: leave it out, or `play` the file"
        ))),
        None => Ok(()),
    }
}

/// Who chooses from the list chooses in no other way. What stands on the command line goes before what stands elsewhere.
fn check_choose(flags: &mut GetFlags) -> Result<(), Failure> {
    if !flags.choose {
        return Ok(());
    }
    let other = flags.given.first_of(&["list", "files", "select-file"]);
    match (flags.given.first_of(&["choose"]), other) {
        (Some(_), Some(other)) => {
            let message = format!("`--choose` asks which files to fetch: leave it out, or `--{other}`");
            return Err(Failure::usage(message));
        }
        (None, Some(_)) => {
            flags.choose = false;
            return Ok(());
        }
        (_, None) => (flags.list, flags.files, flags.select_file) = (false, Vec::new(), Vec::new()),
    }
    if ask::can_ask() {
        return Ok(());
    }
    Err(Failure::usage(
        "`--choose` asks in a terminal, and there is none: see the files with --list, and name them with --files or \
         --select-file",
    ))
}

fn choice(flags: &GetFlags, source: &Source) -> Choice {
    let by_link = match source {
        Source::Magnet(magnet) => magnet.select_only.as_slice(),
        Source::Torrent(_) | Source::Ppspp(_) => &[],
    };
    Choice::new(&flags.files, &flags.select_file, by_link)
}

/// `--list`: says what would be fetched.
fn list(flags: &mut GetFlags, sources: Vec<Source>, sandbox: &Sandbox, chatter: Chatter) -> Result<Code, Failure> {
    // One object a content is printed, and no events.
    let json = std::mem::take(&mut flags.session.json);
    let choices: Vec<Choice> = sources.iter().map(|source| choice(flags, source)).collect();
    let with_hashes = flags.find.save_torrent.is_some();
    let question = Question { session: &flags.session, find: &flags.find, with_hashes };
    let Some(learnt) = learn(sources, &question, chatter)? else { return Ok(Code::Interrupted) };
    for (metainfo, choice) in learnt.iter().zip(choices) {
        let wanted = choice.wanted(&metainfo.info).map_err(Failure::input)?;
        if let Some(path) = &flags.find.save_torrent {
            sandbox.save(save, path, &metainfo.encode())?;
        }
        if json {
            output::line(wanted_json(metainfo, &wanted))?;
        } else {
            output::line(choice::list(&metainfo.info, &wanted).trim_end())?;
        }
    }
    Ok(Code::Success)
}

/// What `show --json` prints, and of each file whether it would be fetched.
fn wanted_json(metainfo: &Metainfo, wanted: &[bool]) -> Value {
    let mut object = torrent_json(metainfo);
    for (file, wanted) in object["files"].as_array_mut().into_iter().flatten().zip(wanted) {
        file["wanted"] = (*wanted && file["number"].is_number()).into();
    }
    object
}

/// How far saving the torrent is.
enum Saving {
    /// It is to be saved as soon as all of it is known.
    Wanted,
    /// What is wanted of the content is complete, and hashes of the torrent are not known.
    Overdue(Instant),
    /// It is saved, or cannot be.
    Done(Result<(), Failure>),
}

/// What is fetched.
struct Fetching<'a> {
    session: &'a Session,
    flags: &'a GetFlags,
    sandbox: &'a Sandbox,
    rules: Rules,
    watch: Watch,
    /// What the user named, by content.
    sources: BTreeMap<ContentId, Source>,
    hook: Option<Hook>,
    /// The first command that failed, and how.
    failed_hook: Option<String>,
    saving: Saving,
}

impl Fetching<'_> {
    fn add_all(&mut self, sources: Vec<Source>, peers: &[Endpoint]) -> Result<(), Failure> {
        let flags = self.flags;
        for source in sources {
            let content = Content::new(source.name(), source.id(), folder(flags));
            let options = AddOptions {
                aim: Aim::ChosenFiles,
                dir: flags.dir.clone(),
                peers: peers.to_vec(),
                keys: session::keys(&flags.session),
                allowed: guard::allowed(&flags.session)?,
                trackers: flags.find.tracker.clone(),
                web_seeds: flags.web_seed.clone(),
                sequential: flags.sequential,
                limit_down: flags.session.torrent_limit_down.map(|rate| rate.0),
                limit_up: flags.session.torrent_limit_up.map(|rate| rate.0),
                recheck: flags.recheck,
                overwrite: flags.force,
                remove_resume_when_complete: !flags.seed,
                ..AddOptions::default()
            };
            let id = add(self.session, source.clone().into(), options)?;
            self.watch.contents.insert(id, content);
            self.sources.insert(id, source);
        }
        Ok(())
    }

    /// Until everything is there (with `--seed`: until it was shared enough) or nothing more can be had.
    async fn follow(&mut self, mut events: Events) -> Result<Code, Failure> {
        let mut ticks = self.watch.ticks();
        loop {
            tokio::select! {
                biased;
                Some(event) = events.recv() => self.on_event(&event).await?,
                ended = next(&mut self.hook, self.sandbox) => self.on_hook(ended)?,
                _ = ticks.tick() => {
                    self.watch.tick(self.session)?;
                    self.watch.look_for_sources(self.session, &self.rules)?;
                    if self.flags.seed {
                        seeding::stop(&mut self.watch, self.session, &self.flags.stop)?;
                    }
                    self.save_overdue();
                }
            }
            if let Some(ended) = self.ended() {
                return ended;
            }
        }
    }

    async fn on_event(&mut self, event: &Event) -> Result<(), Failure> {
        let id = event.content;
        let was_finished = self.watch.contents.get(&id).is_none_or(|content| content.finished);
        self.watch.on_event(self.session, event)?;
        match event.kind {
            EventKind::Metadata { .. } => self.choose(id).await?,
            EventKind::Started { .. } => self.save_torrent(self.session.metainfo(id), id),
            EventKind::Finished if !was_finished => {
                if let (Some(hook), Some(info)) = (&mut self.hook, self.session.info(id)) {
                    hook.complete(id, &info, &self.flags.dir);
                }
                if self.is_to_be_saved() {
                    self.save_torrent(self.session.metainfo_from_files(id).await, id);
                    if let Saving::Wanted = self.saving {
                        self.saving = Saving::Overdue(Instant::now());
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The names and sizes of the files are known: which are to be fetched?
    async fn choose(&mut self, id: ContentId) -> Result<(), Failure> {
        let (Some(info), Some(source)) = (self.session.info(id), self.sources.get(&id)) else { return Ok(()) };
        // All of it, which is what the link is for.
        if let Source::Ppspp(_) = source {
            return Ok(());
        }
        let wanted = match self.flags.choose {
            true => {
                self.watch.clear();
                ask::beside(move || ask::files(&info, std::io::stdin().lock(), std::io::stderr())).await?
            }
            false => choice(self.flags, source).wanted(&info).map_err(Failure::input)?,
        };
        self.session.choose(id, Some(choice::filter(wanted)));
        Ok(())
    }

    fn on_hook(&mut self, ended: Ended) -> Result<(), Failure> {
        let Ended { torrent, exit_code, failure } = ended;
        let name = self.watch.contents.get(&torrent).map_or("", |content| &content.name);
        let reason = failure.map(|failure| format!("the command of --on-complete {failure}"));
        let is_told = self.watch.tells_at_once(self.flags.seed);
        if let Some(reason) = &reason {
            self.failed_hook.get_or_insert_with(|| match is_told {
                true => "a command of --on-complete failed: see above".to_owned(),
                false => format!("{name}: {reason}"),
            });
        }
        let fields = json!({ "exit_code": exit_code, "reason": reason });
        match reason.filter(|_| is_told) {
            Some(reason) => self.watch.report(torrent, "on_complete", fields, &reason),
            None => self.watch.tell(torrent, "on_complete", fields),
        }
    }

    fn is_to_be_saved(&self) -> bool {
        self.flags.find.save_torrent.is_some() && !matches!(self.saving, Saving::Done(_))
    }

    /// Saves a content's torrent where the user wants it, if all of it is known.
    fn save_torrent(&mut self, found: Option<Metainfo>, id: ContentId) {
        let Some(path) = self.flags.find.save_torrent.as_deref().filter(|_| self.is_to_be_saved()) else { return };
        let (Some(found), Some(source)) = (found, self.sources.get(&id)) else { return };
        self.saving = Saving::Done(self.sandbox.save(save, path, &source.complete(found).encode()));
    }

    /// Peers may send what the files that are wanted do not tell.
    fn save_overdue(&mut self) {
        let Saving::Overdue(since) = self.saving else { return };
        // There is one source.
        let Some((id, content)) = self.watch.contents.first_key_value() else { return };
        let (id, name) = (*id, content.name.clone());
        self.save_torrent(self.session.metainfo(id), id);
        if self.is_to_be_saved() && since.elapsed() >= HASHES_MAX {
            self.saving = Saving::Done(Err(no_hashes(&name)));
        }
    }

    /// How it ended, if it did.
    fn ended(&mut self) -> Option<Result<Code, Failure>> {
        if matches!(self.saving, Saving::Done(Err(_)))
            && let Saving::Done(Err(failure)) = std::mem::replace(&mut self.saving, Saving::Done(Ok(())))
        {
            return Some(Err(failure));
        }
        let contents = || self.watch.contents.values();
        let is_busy = self.hook.as_ref().is_some_and(Hook::is_busy) || matches!(self.saving, Saving::Overdue(_));
        if is_busy || contents().any(|content| !content.is_over()) {
            return None;
        }
        if let Some(failure) = self.watch.failure() {
            return Some(Err(failure));
        }
        if self.flags.seed && contents().any(|content| !content.stopped) {
            return None;
        }
        Some(self.done())
    }

    /// Everything is there.
    fn done(&self) -> Result<Code, Failure> {
        match &self.failed_hook {
            Some(failed) => Err(Failure::new(Code::Failed, failed)),
            None => Ok(Code::Success),
        }
    }

    /// What being interrupted means: with `--seed`, that is the way to end.
    fn interruption(&mut self) -> Result<Code, Failure> {
        let is_busy = self.hook.as_ref().is_some_and(Hook::is_busy);
        if !is_busy && self.watch.contents.values().all(|content| content.finished) {
            return self.done();
        }
        self.watch.note("interrupted; the same command goes on where this one ended");
        Ok(Code::Interrupted)
    }
}

async fn next(hook: &mut Option<Hook>, sandbox: &Sandbox) -> Ended {
    match hook {
        Some(hook) => hook.next(sandbox).await,
        None => std::future::pending().await,
    }
}

fn folder(flags: &GetFlags) -> Map<String, Value> {
    Map::from_iter([("dir".to_owned(), json!(flags.dir.to_string_lossy()))])
}
