//! `--files GLOB`: which files of a content are wanted. `--exclude GLOB` and `--include GLOB`: which become one.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_content::info::Info;
use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use glob::{MatchOptions, Pattern, PatternError};

use crate::output::Chatter;

/// Files named in an error, so that one sees what to write instead.
const LISTED_MAX: usize = 5;

/// A pattern. Without `/` it is compared with the name of a file and of each folder it is in; with `/`, with the path from the torrent's
/// folder or from its inside, where only `**` stands for several folders. A folder that matches stands for all in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePattern {
    pattern: Pattern,
    names_only: bool,
}

impl FromStr for FilePattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let text = text.strip_prefix("./").unwrap_or(text);
        let text = text.strip_suffix('/').unwrap_or(text);
        Ok(Self { pattern: Pattern::new(text)?, names_only: !text.contains('/') })
    }
}

impl FilePattern {
    /// Whether `path`, as it is below the download folder, is meant.
    pub(crate) fn matches(&self, path: &Path) -> bool {
        let options =
            MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };
        let hit = |path: &Path| self.pattern.matches_path_with(path, options);
        if self.names_only {
            return path.iter().any(|name| hit(Path::new(name)));
        }
        let mut inside = path.components();
        // The torrent's folder; or its only file, and nothing is left.
        inside.next();
        path.ancestors().chain(inside.as_path().ancestors()).any(hit)
    }
}

/// `--exclude` and `--include`, in the order they were given.
///
/// As grep has it: the last pattern that matches decides; what none matches is taken, unless the first one is an `--include`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// Whether what matches is taken.
    rules: Vec<(bool, FilePattern)>,
    /// Of each rule, whether it decided about anything.
    decided: Arc<[AtomicBool]>,
    /// Flags that are on the command line: a pattern of the configuration file need not match everywhere.
    given: Vec<&'static str>,
}

impl Selection {
    /// Whether nothing was said.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether `path`, as it is below the folder that holds the content, is left out; of a folder, whether all in it is.
    pub(crate) fn leaves_out(&self, path: &Path, is_folder: bool) -> bool {
        // Patterns are text, and names need not be.
        let path = Path::new(&*path.to_string_lossy()).to_path_buf();
        let deciding = self.rules.iter().rposition(|(_, pattern)| pattern.matches(&path));
        let taken = match deciding {
            Some(rule) => {
                self.decided[rule].store(true, Ordering::Relaxed);
                self.rules[rule].0
            }
            None => self.rules.first().is_none_or(|(takes, _)| !takes),
        };
        // Something in the folder may match a pattern that the folder does not.
        let later = &self.rules[deciding.map_or(0, |rule| rule + 1)..];
        !(taken || is_folder && later.iter().any(|(takes, _)| *takes))
    }

    /// Says which patterns on the command line made no difference, once all was looked through: they may be mistyped.
    pub(crate) fn tell_idle(&self, chatter: Chatter) {
        let rules = self.rules.iter().zip(self.decided.iter());
        for ((takes, pattern), _) in rules.filter(|(_, decided)| !decided.load(Ordering::Relaxed)) {
            let (flag, what) = if *takes { ("include", "took nothing in") } else { ("exclude", "left nothing out") };
            if self.given.contains(&flag) {
                chatter.note(format_args!("`--{flag} {}` {what}", pattern.pattern.as_str()));
            }
        }
    }

    fn new(rules: Vec<(bool, FilePattern)>, given: Vec<&'static str>) -> Self {
        let decided = rules.iter().map(|_| AtomicBool::new(false)).collect();
        Self { rules, decided, given }
    }
}

/// Flags that take part in a [`Selection`], and whether they take what matches.
const SELECTION: [(&str, bool, &str); 2] = [
    (
        "exclude",
        false,
        "Leave out what matches, such as '*.tmp', 'cache/' or 'build/**/*.o'; may be given several times",
    ),
    (
        "include",
        true,
        "Take what matches, though an --exclude before it does too; given first, only that. May be given several times",
    ),
];

impl FromArgMatches for Selection {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (mut rules, mut given) = (Vec::new(), Vec::new());
        for (flag, takes, _) in SELECTION {
            if matches.value_source(flag) == Some(ValueSource::CommandLine) {
                given.push(flag);
            }
            let indices = matches.indices_of(flag).into_iter().flatten();
            let patterns = matches.get_many::<FilePattern>(flag).into_iter().flatten();
            rules.extend(indices.zip(patterns).map(|(index, pattern)| (index, (takes, pattern.clone()))));
        }
        rules.sort_by_key(|(index, _)| *index);
        Ok(Self::new(rules.into_iter().map(|(_, rule)| rule).collect(), given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Selection {
    fn augment_args(command: Command) -> Command {
        SELECTION.into_iter().fold(command, |command, (flag, _, help)| {
            let parser = ValueParser::from(|text: &str| text.parse::<FilePattern>());
            command.arg(
                Arg::new(flag).long(flag).value_name("GLOB").action(ArgAction::Append).value_parser(parser).help(help),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Why `patterns` cannot be meant for `info`: one of them matches nothing.
pub(crate) fn check(patterns: &[FilePattern], info: &Info) -> Result<(), String> {
    let hits = |pattern: &FilePattern| info.regular_files().any(|(_, file)| pattern.matches(&file.path));
    let Some(idle) = patterns.iter().find(|pattern| !hits(pattern)) else { return Ok(()) };
    let names: Vec<String> =
        info.regular_files().take(LISTED_MAX).map(|(_, file)| file.path.display().to_string()).collect();
    let more = info.regular_files().count().saturating_sub(names.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(format!("`{}` matches no file of {}, which has {}{more}", idle.pattern.as_str(), info.name, names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(pattern: &str, path: &str) -> bool {
        pattern.parse::<FilePattern>().unwrap().matches(Path::new(path))
    }

    #[test]
    fn names_match_in_any_folder() {
        assert!(hits("*.mkv", "show/season 1/a.mkv"));
        assert!(hits("season ?", "show/season 1/a.mkv"));
        assert!(hits("a.mkv", "show/season 1/a.mkv"));
        assert!(!hits("*.mkv", "show/a.srt"));
        assert!(!hits("a.MKV", "show/a.mkv"));
    }

    #[test]
    fn paths_match_from_inside_and_outside_of_the_folder() {
        for pattern in ["show/one/a.mkv", "one/a.mkv", "one/*", "one/", "./one/a.mkv", "**/a.mkv", "show/**"] {
            assert!(hits(pattern, "show/one/a.mkv"), "{pattern}");
        }
        assert!(!hits("show/*.mkv", "show/one/a.mkv"));
        assert!(!hits("two/a.mkv", "show/one/a.mkv"));
    }

    #[test]
    fn the_last_pattern_that_matches_decides() {
        let taken = |flags: &[&str], path: &str| {
            let command = Selection::augment_args(Command::new("x").no_binary_name(true));
            let selection = Selection::from_arg_matches(&command.get_matches_from(flags)).unwrap();
            !selection.leaves_out(Path::new(path), false)
        };
        assert!(taken(&[], "t/a"));
        assert!(!taken(&["--exclude", "*.tmp"], "t/a.tmp") && taken(&["--exclude", "*.tmp"], "t/a"));
        assert!(!taken(&["--exclude", "sub/"], "t/sub/a"));
        assert!(taken(&["--include", "*.mkv"], "t/a.mkv") && !taken(&["--include", "*.mkv"], "t/a.srt"));
        let but = ["--exclude", "*", "--include", "*.mkv"];
        assert!(taken(&but, "t/sub/a.mkv") && !taken(&but, "t/a.srt"));
        let no_samples = ["--include", "*.mkv", "--exclude", "sample*"];
        assert!(taken(&no_samples, "t/a.mkv") && !taken(&no_samples, "t/sample.mkv") && !taken(&no_samples, "t/a"));
        let readme = ["--exclude", "*.txt", "--include", "README.txt"];
        assert!(taken(&readme, "t/README.txt") && !taken(&readme, "t/a.txt") && taken(&readme, "t/a"));
    }

    #[test]
    fn folders_are_looked_into_where_something_in_them_may_be_taken() {
        let rule = |takes, text: &str| (takes, text.parse().unwrap());
        let pruned = |rules: &[(bool, FilePattern)]| {
            Selection::new(rules.to_vec(), Vec::new()).leaves_out(Path::new("t/sub"), true)
        };
        assert!(pruned(&[rule(false, "sub")]) && !pruned(&[rule(false, "*.o")]));
        assert!(
            !pruned(&[rule(false, "sub"), rule(true, "*.mkv")]) && pruned(&[rule(true, "*.mkv"), rule(false, "sub")])
        );
        assert!(!pruned(&[rule(true, "*.mkv")]));
    }

    #[cfg(unix)]
    #[test]
    fn names_that_are_no_text_can_be_left_out() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"t/caf\xe9.txt"));
        let rules = vec![(false, "caf?.txt".parse().unwrap())];
        assert!(Selection::new(rules, Vec::new()).leaves_out(path, false));
    }

    #[test]
    fn broken_patterns_are_refused() {
        assert!("[".parse::<FilePattern>().is_err());
        assert!("a**".parse::<FilePattern>().is_err());
    }
}
