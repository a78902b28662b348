//! A zoo of mistakes: every flag of every command, as its help lists them, with values that cannot be meant, on the command line,
//! in the environment and in the configuration file. Each must end at once, with a word that names what was wrong; and what is
//! printed must go where it cannot be printed.

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use common::{anabranch, finish, noise, run};

/// How many mistakes a usual run makes; the long one makes all.
const SAMPLE: usize = 240;

/// Commands, and arguments with which each ends at once by itself.
const COMMANDS: [(&[&str], &[&str]); 42] = [
    (&["create"], &["nowhere"]),
    (&["show"], &["nowhere.torrent"]),
    (&["get"], &["nowhere.torrent"]),
    (&["play"], &["nowhere.torrent"]),
    (&["share"], &["nowhere"]),
    (&["live"], &["--input", "nowhere"]),
    (&["verify"], &["nowhere.torrent", "."]),
    (&["tracker"], &["--listen", "192.0.2.7:0"]),
    (&["daemon"], &["--api", "192.0.2.7:0", "--listen", "127.0.0.1:0"]),
    (&["add"], &["nowhere.torrent"]),
    (&["list"], &["--daemon", "127.0.0.1:1"]),
    (&["status"], &["--daemon", "127.0.0.1:1"]),
    (&["pause"], &["--all", "--daemon", "127.0.0.1:1"]),
    (&["limit"], &["--daemon", "127.0.0.1:1"]),
    (&["resume"], &["1", "--daemon", "127.0.0.1:1"]),
    (&["remove"], &["1", "--daemon", "127.0.0.1:1"]),
    (&["watch"], &["--daemon", "127.0.0.1:1"]),
    (&["password"], &["--daemon", "127.0.0.1:1"]),
    (&["paths"], &["1-1", "--sciond", "127.0.0.1:1"]),
    (&["ping"], &["1-1,10.0.0.1", "--sciond", "127.0.0.1:1"]),
    (&["traceroute"], &["1-1", "--sciond", "127.0.0.1:1"]),
    (&["address"], &["--sciond", "127.0.0.1:1"]),
    (&["send"], &["nowhere"]),
    (&["receive"], &["bulk1-nowhere"]),
    (&["receipt"], &["nowhere"]),
    (&["keys", "own"], &["--key", "."]),
    (&["keys", "list"], &["--known-keys", "."]),
    (&["keys", "forget"], &["[1-1,10.0.0.1]:1"]),
    (&["net", "up"], &["nowhere.toml"]),
    (&["net", "status"], &["--control", "127.0.0.1:1"]),
    (&["net", "link"], &["1-1", "1-2", "down", "--control", "127.0.0.1:1"]),
    (&["net", "check"], &["nowhere.toml"]),
    (&["demo"], &["--size", "1"]),
    (&["lab", "run"], &["nowhere.toml"]),
    (&["lab", "check"], &["nowhere.toml"]),
    (&["lab", "list"], &["nowhere"]),
    (&["lab", "report"], &["nowhere"]),
    (&["lab", "compare"], &["nowhere", "nowhere"]),
    (&["lab", "submit"], &["nowhere.toml", "--slurm"]),
    (&["lab", "collect"], &["nowhere"]),
    (&["lab", "routes"], &["nowhere"]),
    (&["man"], &["nowhere"]),
];

/// What cannot be meant by anybody.
const ABSURD: [&str; 9] = [
    "",
    "-1",
    "9999999999999999999999999999999999999999999999999999999999999999999999",
    "n\u{f6}nsense",
    "1,5e9",
    "0x10",
    "a\nb",
    "--json",
    "1-ff00:0:110#x",
];

/// Names of values that may be any text.
const FREE: [&str; 10] = ["FILE", "DIR", "TEXT", "NAME", "TAG", "GLOB", "OUT.torrent", "COMMAND", "PATH", "KEY|FILE"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    CommandLine,
    Environment,
    File,
}

#[derive(Clone, Debug)]
struct Mistake {
    command: usize,
    flag: String,
    is_free: bool,
    value: &'static str,
    place: Place,
}

/// The flags that take a value, and whether it may be any text, out of a command's help.
fn flags(help: &str) -> BTreeSet<(String, bool)> {
    let with_value = |line: &str| {
        let rest = line.trim_start();
        let rest = rest
            .strip_prefix('-')
            .filter(|rest| !rest.starts_with('-'))
            .map_or(rest, |rest| rest[1..].trim_start_matches(", "));
        let (flag, value) = rest.strip_prefix("--")?.split_once(" <")?;
        let value = value.split('>').next()?;
        Some((flag.to_owned(), FREE.contains(&value) || flag == "passkey"))
    };
    help.lines().filter_map(with_value).collect()
}

fn all_mistakes(dir: &Path) -> Vec<Mistake> {
    let help_of = |(name, _): &(&[&str], &[&str])| {
        let (code, help, _) = run(dir, &[*name, &["--help"]].concat());
        assert_eq!(code, 0, "{name:?}");
        flags(&help)
    };
    let flags: Vec<BTreeSet<(String, bool)>> = COMMANDS.iter().map(help_of).collect();
    // A variable that only another command's flag of that name takes is passed over.
    let is_free_somewhere = |flag: &String| flags.iter().any(|flags| flags.contains(&(flag.clone(), true)));
    let mut mistakes = Vec::new();
    for (command, flags) in flags.iter().enumerate() {
        for (flag, is_free) in flags {
            for value in ABSURD {
                for place in [Place::CommandLine, Place::Environment, Place::File] {
                    let is_free = *is_free || place == Place::Environment && is_free_somewhere(flag);
                    mistakes.push(Mistake { command, flag: flag.clone(), is_free, value, place });
                }
            }
        }
    }
    assert!(mistakes.len() > 2000, "the help was read: {}", mistakes.len());
    mistakes
}

/// Makes a mistake and judges the answer.
fn make(dir: &Path, at: usize, mistake: &Mistake, bases: &[(i32, String)]) -> Result<(), String> {
    let Mistake { command, flag, is_free, value, place } = mistake;
    let (name, arguments) = COMMANDS[*command];
    // An empty variable is as good as none, and so is an empty text that may be any; where the file is is not in the file.
    let is_none = *place == Place::Environment && value.is_empty() || flag == "config" && *place == Place::File;
    if is_none {
        return Ok(());
    }
    let mut program = anabranch(dir);
    program.args(name);
    match place {
        Place::CommandLine => {
            program.arg(format!("--{flag}={value}"));
        }
        Place::Environment => {
            program.env(format!("ANABRANCH_{}", flag.to_uppercase().replace('-', "_")), value);
        }
        Place::File => {
            let file = dir.join(format!("{at}.toml"));
            fs::write(&file, format!("[{}]\n{flag} = {}\n", name[0], serde_json::Value::from(*value))).unwrap();
            program.arg("--config").arg(file);
        }
    }
    let (code, out, stderr) = finish(program.args(arguments));
    if *is_free && !value.is_empty() {
        // A file that was named to be written (`--path-log`) is no trace of a mistake.
        let _ = fs::remove_file(dir.join(value));
    }
    let told = || format!("{mistake:?}: {code}\n{out}{stderr}");
    let (base_code, base) = &bases[*command];
    if stderr.contains("panicked") || !(2..=6).contains(&code) {
        return Err(format!("no proper end: {}", told()));
    }
    if stderr.lines().filter(|line| line.starts_with("error: ")).count() != 1 {
        return Err(format!("one error was expected: {}", told()));
    }
    let given_twice = arguments.contains(&format!("--{flag}").as_str());
    if (code, &stderr) == (*base_code, base) {
        let passed = *is_free || given_twice && *place != Place::CommandLine;
        return if passed { Ok(()) } else { Err(format!("it passed: {}", told())) };
    }
    let variable = flag.to_uppercase().replace('-', "_");
    // What could break the line is replaced.
    let shown = value.replace('\n', "\u{fffd}");
    let first_of_list = value.split_whitespace().next().unwrap_or_default().to_owned();
    let named = [flag, &variable, &shown, &first_of_list].iter().any(|word| !word.is_empty() && stderr.contains(*word));
    if named || stderr.contains("it is empty") {
        Ok(())
    } else {
        Err(format!("what is wrong is not named: {}", told()))
    }
}

fn make_all(mistakes: &[Mistake]) {
    let dir = tempfile::tempdir().unwrap();
    let bases: Vec<(i32, String)> = COMMANDS
        .iter()
        .map(|(name, arguments)| {
            let (code, _, stderr) = run(dir.path(), &[*name, *arguments].concat());
            (code, stderr)
        })
        .collect();
    let wrong: Vec<String> =
        mistakes.iter().enumerate().filter_map(|(at, mistake)| make(dir.path(), at, mistake, &bases).err()).collect();
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let made: Vec<_> = left.iter().filter(|name| !name.to_string_lossy().ends_with(".toml")).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), mistakes.len(), wrong.join("\n"));
    assert!(made.is_empty(), "a mistake left these behind: {made:?}");
}

#[test]
fn mistakes_are_named_wherever_they_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let mut mistakes = all_mistakes(dir.path());
    let seed = std::env::var("ANABRANCH_ZOO_SEED").ok().and_then(|text| text.parse().ok());
    let mut state: u64 = seed.unwrap_or_else(|| std::process::id().into());
    println!("ANABRANCH_ZOO_SEED={state}");
    // Fisher and Yates, as far as the sample goes.
    for place in 0..SAMPLE {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let other = place + (state >> 33) as usize % (mistakes.len() - place);
        mistakes.swap(place, other);
    }
    make_all(&mistakes[..SAMPLE]);
}

#[test]
fn numbers_below_zero_are_no_flags() {
    let dir = tempfile::tempdir().unwrap();
    let mut made = 0;
    for (name, _) in COMMANDS {
        let (_, help, _) = run(dir.path(), &[name, &["--help"]].concat());
        let is_number = |line: &&str| {
            ["<N>", "<RATE>", "<RATIO>", "<SIZE>", "<TIME>", "<PORT>"].iter().any(|value| line.contains(value))
        };
        let flags = help
            .lines()
            .filter(is_number)
            .filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
        for (flag, value) in flags.flat_map(|flag| ["-1", "-1s", "-2.5M"].map(|value| (flag, value))) {
            let (code, _, stderr) = run(dir.path(), &[name, &[flag, value]].concat());
            let told = format!("invalid value '{value}' for '{flag} <");
            assert!(code == 2 && stderr.contains(&told) && !stderr.contains("tip:"), "{name:?} {flag}: {stderr}");
            made += 1;
        }
    }
    assert!(made > 100, "the help was read: {made}");
}

#[test]
#[ignore = "makes every mistake, which takes minutes"]
fn every_mistake_is_named() {
    let dir = tempfile::tempdir().unwrap();
    make_all(&all_mistakes(dir.path()));
}

#[test]
fn what_cannot_be_printed_is_no_panic_and_no_success() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    assert_eq!(run(dir.path(), &["create", "one.bin"]).0, 0);
    let cases: [&[&str]; 12] = [
        &["show", "one.bin.torrent"],
        &["show", "one.bin.torrent", "--json"],
        &["verify", "one.bin.torrent", "."],
        &["create", "one.bin", "--force"],
        &["share", "one.bin", "--listen", "127.0.0.1:0"],
        &["share", "one.bin", "--listen", "127.0.0.1:0", "--json"],
        &["send", "one.bin", "--listen", "127.0.0.1:0"],
        &["receive", "--listen", "127.0.0.1:0"],
        &["keys", "own"],
        &["tracker", "--listen", "127.0.0.1:0"],
        &["man", "get"],
        &["get", "--help"],
    ];
    for arguments in cases {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let done = anabranch(dir.path()).args(arguments).stdout(full).stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains("error: cannot write to standard output"), "{arguments:?}: {stderr}");
        // Nobody reads.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = anabranch(dir.path()).args(arguments).stdout(writer).stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.code() == Some(141) && !stderr.contains("error"), "{arguments:?}: {stderr}");
    }
}
