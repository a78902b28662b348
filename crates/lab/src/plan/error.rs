//! What is wrong with a plan, and where.

/// A plan that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {problem}", at(*line))]
pub struct PlanError {
    /// The file as its reader named it.
    pub file: String,
    /// Line in it, from 1; 0 where the file cannot be read at all.
    pub line: usize,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl PlanError {
    pub(super) fn new(file: &str, line: usize, problem: String) -> Self {
        Self { file: file.to_owned(), line: line.max(1), problem }
    }

    pub(super) fn unreadable(file: &str, problem: String) -> Self {
        Self { file: file.to_owned(), line: 0, problem }
    }
}

fn at(line: usize) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}
