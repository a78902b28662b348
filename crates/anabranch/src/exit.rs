//! Errors as users meet them: one line that names the input and the remedy, and an exit code that scripts can rely on.

use std::fmt;
use std::io;
use std::process::ExitCode;

use anabranch_swarm::FailureKind;

/// What the program ends with. The numbers are stable; `docs/cli.md` documents them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Everything that was asked for is done.
    Success = 0,
    /// Something failed that no other code is for.
    Failed = 1,
    /// The command line, an environment variable or the configuration file is wrong.
    Usage = 2,
    /// A torrent, magnet link or path given cannot be read, or is refused.
    Input = 3,
    /// The content is not complete, or does not match its hashes.
    Incomplete = 4,
    /// Files cannot be written.
    Storage = 5,
    /// An address cannot be listened on or looked up; nobody is left to fetch from.
    Network = 6,
    /// Interrupted before it was complete.
    Interrupted = 130,
    /// Nobody reads standard output any more; the code of a program that SIGPIPE ended.
    StdoutClosed = 141,
}

impl Code {
    /// The code with this number; a failure where there is none.
    pub(crate) fn from_number(number: u8) -> Self {
        let known = [Self::Success, Self::Usage, Self::Input, Self::Incomplete, Self::Storage, Self::Network];
        known.into_iter().find(|code| *code as u8 == number).unwrap_or(Self::Failed)
    }
}

/// The code of a content that cannot be gone on with.
impl From<FailureKind> for Code {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Metadata => Self::Input,
            FailureKind::Content => Self::Incomplete,
            FailureKind::Storage => Self::Storage,
            FailureKind::Sources => Self::Network,
            FailureKind::Internal => Self::Failed,
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

/// Why the program ends without having done what it should.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What to end with.
    pub code: Code,
    /// One line, without "error:" before it.
    message: String,
    /// Where several things are wrong, a line for each.
    pub details: Vec<String>,
}

impl Failure {
    /// A failure of the kind `code`.
    pub(crate) fn new(code: Code, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string(), details: Vec::new() }
    }

    /// Wrong usage.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Code::Usage, message)
    }

    /// Bad input.
    pub(crate) fn input(message: impl fmt::Display) -> Self {
        Self::new(Code::Input, message)
    }

    /// Standard output cannot be written to.
    pub(crate) fn stdout(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Code::StdoutClosed, ""),
            _ => Self::new(Code::Failed, format!("cannot write to standard output: {error}")),
        }
    }

    /// The runtime does not start.
    pub(crate) fn runtime(error: io::Error) -> Self {
        Self::new(Code::Failed, format!("cannot start: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_contents_have_documented_codes() {
        let kinds = [
            FailureKind::Metadata,
            FailureKind::Content,
            FailureKind::Storage,
            FailureKind::Sources,
            FailureKind::Internal,
        ];
        assert_eq!(kinds.map(|kind| Code::from(kind) as u8), [3, 4, 5, 6, 1]);
    }
}
