//! What others have to answer before a command can go on: the SCION daemon, the DNS. Where that is long in coming, it is told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anabranch_paths::{IsdAs, ScionPath};
use anabranch_scion::lookup::{LookupError, PathLookup, Source};
use serde_json::json;

use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};

/// How long an answer may take before somebody is told what is waited for: longer than it takes as a rule.
const TOLD_AFTER: Duration = Duration::from_secs(1);

/// Where it is told what is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Teller {
    /// How much to say.
    pub chatter: Chatter,
    /// Whether programs read events on standard output.
    pub has_events: bool,
}

impl Teller {
    /// What `work` comes to; `reason` says what it waits for.
    pub(crate) async fn awaits<T>(
        self,
        reason: impl fmt::Display,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut work = std::pin::pin!(work);
        match tokio::time::timeout(TOLD_AFTER, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                self.tell(reason)?;
                work.await
            }
        }
    }

    fn tell(self, reason: impl fmt::Display) -> Result<(), Failure> {
        if self.has_events {
            return output::json_event("waiting", json!({ "reason": reason.to_string() }));
        }
        self.chatter.note(reason);
        Ok(())
    }

    /// Who is asked says where this host is, and can be asked for paths then.
    pub(crate) async fn start(self, source: Source) -> Result<PathLookup, Failure> {
        let asked = match &source {
            Source::Daemon(daemon) => format!("SCION daemon at {}", daemon.address()),
            Source::ControlService(_) => "SCION control service".to_owned(),
        };
        let starting = async { PathLookup::start(source).await.map_err(|error| unreachable(&error)) };
        self.awaits(format_args!("the {asked} does not answer: waits for that"), starting).await
    }

    /// The paths to `destination`; `refresh`: from nobody's cache.
    pub(crate) async fn paths(
        self,
        lookup: &PathLookup,
        destination: IsdAs,
        refresh: bool,
    ) -> Result<Arc<[Arc<ScionPath>]>, Failure> {
        let asking = async {
            let found = match refresh {
                true => lookup.paths_afresh(destination).await,
                false => lookup.paths(destination).await,
            };
            found.map_err(|error| unreachable(&error))
        };
        let reason =
            format_args!("the SCION daemon or control service tells no paths to {destination}: waits for that");
        self.awaits(reason, asking).await
    }

    /// What a host's name stands for, as `work` looks it up.
    pub(crate) async fn name<T>(
        self,
        name: &str,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        self.awaits(format_args!("the DNS does not say what `{name}` stands for: waits for that"), work).await
    }
}

fn unreachable(error: &LookupError) -> Failure {
    Failure::new(Code::Network, error)
}
