//! Which files of a content are wanted: by pattern (`--files`), by number (`--select-file`), as the user says when asked
//! (`--choose`), or as a magnet link says (BEP 53).
//!
//! A file's number is its place in the list that `get --list` and `get --choose` show: from 1, padding left out. A link counts
//! from 0, padding and all.

use std::ops::RangeInclusive;
use std::str::FromStr;

use anabranch_content::info::{FileEntry, FileKind, Info};
use anabranch_swarm::FileFilter;

use crate::output::one_line;
use crate::patterns::{self, FilePattern};
use crate::units;

/// Numbers and ranges of numbers, such as `1,3-5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileNumbers(Vec<RangeInclusive<u32>>);

impl FromStr for FileNumbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(|part| range(part.trim())).collect::<Result<_, _>>().map(Self)
    }
}

/// `3` or `3-5`.
fn range(text: &str) -> Result<RangeInclusive<u32>, String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    if !is_number(first) || !is_number(last) {
        return Err("write numbers of files and ranges of them, such as 1,3-5".to_owned());
    }
    match (first.parse::<u32>(), last.parse::<u32>()) {
        (Ok(0), _) => Err("files are numbered from 1".to_owned()),
        (Ok(first), Ok(last)) if first > last => Err(format!("the range {text} ends before it begins")),
        (Ok(first), Ok(last)) => Ok(first..=last),
        _ => Err("no torrent has so many files".to_owned()),
    }
}

/// Which files are wanted; all where nothing is said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    patterns: Vec<FilePattern>,
    numbers: Vec<RangeInclusive<u32>>,
    by_link: Vec<RangeInclusive<u32>>,
}

impl Choice {
    /// What the flags say; or else the link.
    pub(crate) fn new(patterns: &[FilePattern], numbers: &[FileNumbers], by_link: &[RangeInclusive<u32>]) -> Self {
        let numbers = numbers.iter().flat_map(|numbers| numbers.0.clone()).collect();
        let mut choice = Self { patterns: patterns.to_vec(), numbers, by_link: Vec::new() };
        if choice.patterns.is_empty() && choice.numbers.is_empty() {
            choice.by_link = by_link.to_vec();
        }
        choice
    }

    /// What a user answers: numbers, ranges and patterns with commas between them. What looks like a number is one: a file of such
    /// a name is `./3`.
    pub(crate) fn answer(text: &str) -> Result<Self, String> {
        let mut choice = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            if part.chars().all(|c| c.is_ascii_digit() || c == '-' || c == ' ') {
                for word in part.split_whitespace() {
                    choice.numbers.push(range(word).map_err(|error| format!("`{word}`: {error}"))?);
                }
            } else {
                choice.patterns.push(part.parse().map_err(|error| format!("`{part}` is no pattern: {error}"))?);
            }
        }
        if choice.patterns.is_empty() && choice.numbers.is_empty() {
            return Err("nothing was chosen: write numbers (1,3-5), patterns (*.mkv), or * for all".to_owned());
        }
        Ok(choice)
    }

    /// Whether each of the content's files is wanted; or which part of the choice cannot be meant, as it names no file.
    pub(crate) fn wanted(&self, info: &Info) -> Result<Vec<bool>, String> {
        if self.patterns.is_empty() && self.numbers.is_empty() && self.by_link.is_empty() {
            return Ok(vec![true; info.files.len()]);
        }
        patterns::check(&self.patterns, info)?;
        let count = numbered(info).count();
        if let Some(range) = self.numbers.iter().find(|range| *range.end() as usize > count) {
            let name = &info.name;
            return Err(format!("{} of {name}, which has {}", missing(range), units::count(count, "file")));
        }
        let by_pattern = |file: &FileEntry| self.patterns.iter().any(|pattern| pattern.matches(&file.path));
        let by_number = |number: u32| self.numbers.iter().any(|range| range.contains(&number));
        let by_link = |index: usize| self.by_link.iter().any(|range| range.contains(&(index as u32)));
        let mut wanted = vec![false; info.files.len()];
        for (number, index, file) in numbered(info) {
            wanted[index] = by_pattern(file) || by_number(number) || by_link(index);
        }
        if !wanted.contains(&true) {
            return Err(format!("the link chooses files by number (so=), and none of {} has such a number", info.name));
        }
        Ok(wanted)
    }
}

fn missing(range: &RangeInclusive<u32>) -> String {
    match (range.start(), range.end()) {
        (first, last) if first == last => format!("there is no file {last}"),
        (first, last) => format!("there are no files {first} to {last}"),
    }
}

/// `wanted`, as sessions take it.
pub(crate) fn filter(wanted: Vec<bool>) -> FileFilter {
    Box::new(move |index, _| wanted.get(index).copied().unwrap_or(false))
}

/// What can be chosen: each file and link with its number, and its place among all of the torrent's.
pub(crate) fn numbered(info: &Info) -> impl Iterator<Item = (u32, usize, &FileEntry)> {
    let files = info.files.iter().enumerate().filter(|(_, file)| file.kind != FileKind::Pad);
    (1..).zip(files).map(|(number, (index, file))| (number, index, file))
}

/// The files that are wanted, with their numbers and sizes.
pub(crate) fn list(info: &Info, wanted: &[bool]) -> String {
    let is_wanted = |index: usize| wanted.get(index).copied().unwrap_or(false);
    let total = numbered(info).count();
    let shown: Vec<_> = numbered(info).filter(|(_, index, _)| is_wanted(*index)).collect();
    let size = units::bytes(shown.iter().map(|(.., file)| file.length).sum());
    let of = if shown.len() < total { format!("{} of ", shown.len()) } else { String::new() };
    let mut text = format!("{of}{} of {}, {size}\n", units::count(total, "file"), one_line(&info.name));
    let width = total.to_string().len();
    for (number, _, file) in shown {
        let mut path = file.path.display().to_string();
        if let FileKind::Symlink { target } = &file.kind {
            path.push_str(&format!(" -> {}", target.display()));
        }
        let size = units::bytes(file.length);
        text.push_str(&format!("{number:>width$}  {size:>10}  {}\n", one_line(&path)));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use anabranch_content::create::{CreateOptions, create};

    use super::*;

    /// `t/3`, `t/a.mkv`, `t/b.srt`, `t/sub dir/c.mkv`, with padding between them.
    fn info(dir: &Path) -> Info {
        std::fs::create_dir_all(dir.join("t/sub dir")).unwrap();
        for (name, length) in [("3", 1), ("a.mkv", 20_000), ("b.srt", 100), ("sub dir/c.mkv", 5)] {
            std::fs::write(dir.join("t").join(name), vec![7; length]).unwrap();
        }
        let made = create(&dir.join("t"), &CreateOptions::default(), &AtomicBool::new(false), |_, _| {}).unwrap();
        Info::parse(&made.torrent.info.source).unwrap()
    }

    /// The numbers of the files that are wanted.
    fn chosen(choice: &Choice, info: &Info) -> Result<Vec<u32>, String> {
        let wanted = choice.wanted(info)?;
        Ok(numbered(info).filter(|(_, index, _)| wanted[*index]).map(|(number, ..)| number).collect())
    }

    #[test]
    fn answers_are_numbers_ranges_and_patterns() {
        let dir = tempfile::tempdir().unwrap();
        let info = info(dir.path());
        for (text, files) in [
            ("1", &[1][..]),
            ("1,3-4\n", &[1, 3, 4]),
            ("1 3 - ", &[]),
            (" 2 4 , 1", &[1, 2, 4]),
            ("*.mkv", &[2, 4]),
            ("*.srt,1", &[1, 3]),
            ("sub dir/", &[4]),
            ("./3", &[1]),
            ("*", &[1, 2, 3, 4]),
        ] {
            match Choice::answer(text) {
                Ok(choice) => assert_eq!(chosen(&choice, &info).unwrap(), files, "{text}"),
                Err(_) => assert!(files.is_empty(), "{text}"),
            }
        }
        for (text, needle) in [
            ("", "nothing was chosen"),
            (" , \n", "nothing was chosen"),
            ("0", "numbered from 1"),
            ("4-2", "ends before it begins"),
            ("99999999999", "so many"),
            ("[", "no pattern"),
        ] {
            assert!(Choice::answer(text).unwrap_err().contains(needle), "{text}");
        }
    }

    #[test]
    fn what_names_no_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let info = info(dir.path());
        let error = |text: &str| chosen(&Choice::answer(text).unwrap(), &info).unwrap_err();
        assert_eq!(error("5"), "there is no file 5 of t, which has 4 files");
        assert_eq!(error("1,3-9"), "there are no files 3 to 9 of t, which has 4 files");
        assert!(error("*.mkv,*.ogg").starts_with("`*.ogg` matches no file"));
        let by_link = |first, last| Choice::new(&[], &[], &[first..=last]);
        assert!(chosen(&by_link(90, 99), &info).unwrap_err().contains("so="));
        // Links count padding: the second file is the third of all.
        assert_eq!(chosen(&by_link(2, 2), &info), Ok(vec![2]));
        assert_eq!(chosen(&Choice::default(), &info), Ok(vec![1, 2, 3, 4]));
        // The user goes before the link.
        let both = Choice::new(&["b.srt".parse().unwrap()], &["1".parse().unwrap()], &[2..=2]);
        assert_eq!(chosen(&both, &info), Ok(vec![1, 3]));
    }

    #[test]
    fn the_list_has_numbers_and_sizes_on_one_line_each() {
        let dir = tempfile::tempdir().unwrap();
        let info = info(dir.path());
        let text = list(&info, &Choice::answer("1,4").unwrap().wanted(&info).unwrap());
        assert_eq!(text, "2 of 4 files of t, 6 B\n1         1 B  t/3\n4         5 B  t/sub dir/c.mkv\n");
        assert!(list(&info, &vec![true; info.files.len()]).starts_with("4 files of t, "));
    }
}
