//! `--files GLOB`: which files of a content are wanted.

use std::path::Path;
use std::str::FromStr;

use anabranch_content::info::{FileEntry, Info};
use glob::{MatchOptions, Pattern, PatternError};

/// Files named in an error, so that one sees what to write instead.
const LISTED_MAX: usize = 5;

/// A pattern. Without `/` it is compared with the name of a file and of each folder it is in; with `/`, with the path from the torrent's
/// folder or from its inside, where only `**` stands for several folders. A folder that matches stands for all in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePattern {
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
    pub fn matches(&self, path: &Path) -> bool {
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

/// Whether a file is wanted: any pattern matches, or there is none.
pub fn wanted(patterns: &[FilePattern], file: &FileEntry) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(&file.path))
}

/// Why `patterns` cannot be meant for `info`: one of them matches nothing.
pub fn check(patterns: &[FilePattern], info: &Info) -> Result<(), String> {
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
    fn broken_patterns_are_refused() {
        assert!("[".parse::<FilePattern>().is_err());
        assert!("a**".parse::<FilePattern>().is_err());
    }
}
