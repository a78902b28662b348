//! What the command line leaves open: environment, then configuration file.
//!
//! Both are put in as the defaults of flags before the command line is read for good, so that one set of definitions says
//! what a value may be. Each value is tried on its flag alone first: an error then names the file and line, or the variable.

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::de::{DeTable, DeValue};

use crate::exit::Failure;
use crate::seeding::Ratio;
use crate::units::{Rate, Size};

/// Bytes in a configuration file: far above what all flags take.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Commands that make no use of settings: those that must work to mend them, and `edit`, where a tracker that holds for what is
/// shared would be put into any torrent that is touched.
const UNSETTLED: [&str; 3] = ["completions", "man", "edit"];
/// Names the configuration file.
const CONFIG_VARIABLE: &str = "ANABRANCH_CONFIG";

/// Reads `arguments`, with what the environment and the configuration file say beneath them. The inner error is clap's own, help
/// and version among them. `define` makes the definitions of all commands: they are many, and a command line that stands alone
/// needs those of one.
pub(crate) fn layered(
    define: impl Fn() -> Command,
    arguments: &[OsString],
) -> Result<Result<ArgMatches, clap::Error>, Failure> {
    let first = match define().try_get_matches_from(arguments) {
        Ok(first) => first,
        Err(shown) => return Ok(Err(shown)),
    };
    let Some((name, _)) = first.subcommand() else { return Ok(Ok(first)) };
    if UNSETTLED.contains(&name) {
        return Ok(Ok(first));
    }
    let variables = || std::env::vars_os().map(|(name, _)| name);
    let written = read_config(first.get_one::<PathBuf>("config").cloned())?;
    if written.is_none() && !variables().any(|name| is_ours(&name)) {
        return Ok(Ok(first));
    }
    let command = built(define());
    check_environment(&command, variables())?;
    let file = match &written {
        Some((path, text)) => ConfigFile::parse(&command, &Place { path, text })?,
        None => ConfigFile::default(),
    };
    let fill = |arg: Arg| -> Result<Arg, Failure> {
        let Some(flag) = settable(&arg) else { return Ok(arg) };
        // What holds for all commands may be meant for a flag of this name that another one has.
        let fits = |values: &&Vec<OsString>| values.iter().all(|value| try_on(&arg, &flag, value, &"").is_ok());
        let for_all = || file.settings.get(&(None, flag.clone())).filter(fits);
        let from_file = || file.settings.get(&(Some(name.to_owned()), flag.clone())).or_else(for_all);
        match environment(&arg, &flag, &command)? {
            Some(values) => Ok(arg.default_values(values)),
            None => Ok(from_file().map_or(arg.clone(), |values| arg.default_values(values))),
        }
    };
    let mut failed = None;
    let mut fill = |arg: Arg| {
        fill(arg.clone()).unwrap_or_else(|failure| {
            failed.get_or_insert(failure);
            arg
        })
    };
    let filled = built(define()).mut_args(&mut fill).mut_subcommand(name, |command| {
        command.mut_args(&mut fill).mut_subcommands(|command| command.mut_args(&mut fill))
    });
    match failed {
        Some(failure) => Err(failure),
        None => Ok(filled.try_get_matches_from(arguments)),
    }
}

/// With the flags of all commands.
fn built(mut command: Command) -> Command {
    command.build();
    command
}

/// The long name of a flag that may be set from elsewhere. Where the configuration file is cannot be.
fn settable(arg: &Arg) -> Option<String> {
    let flag = arg.get_long().filter(|flag| !["config", "help"].contains(flag));
    flag.filter(|_| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)).map(str::to_owned)
}

/// What our variables begin with.
const VARIABLE_PREFIX: &str = "ANABRANCH_";

fn is_ours(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(VARIABLE_PREFIX.as_bytes())
}

/// A variable whose name is nearly that of a flag's was meant for it. What resembles none may be somebody else's.
fn check_environment(command: &Command, names: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let flags = all_args(command).filter_map(settable).map(|flag| variable(&flag));
    let known: BTreeSet<String> = flags.chain([CONFIG_VARIABLE.to_owned()]).collect();
    for name in names.filter(|name| is_ours(name)) {
        let Some(name) = name.to_str() else { continue };
        if let Some(meant) = nearest(name, known.iter().map(String::as_str)) {
            return Err(Failure::usage(format!(
                "{name}: no flag has this variable; did you mean {meant}? Else unset it"
            )));
        }
    }
    Ok(())
}

/// All flags of all commands.
fn all_args(command: &Command) -> impl Iterator<Item = &Arg> {
    let below = command.get_subcommands().flat_map(Command::get_subcommands);
    let commands = std::iter::once(command).chain(command.get_subcommands()).chain(below);
    commands.flat_map(Command::get_arguments)
}

/// The one of `known` that `written` is a misspelling of, if it is of any; none where it is one of them.
fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let bare = |name: &str| name.trim_start_matches(VARIABLE_PREFIX).to_ascii_lowercase().replace(['-', '_'], "");
    let meant = bare(written);
    // A slip for every four letters.
    let slips_max = meant.chars().count().div_ceil(4);
    let distances = known.map(|name| (strsim::osa_distance(&meant, &bare(name)), name));
    let (_, name) = distances.filter(|(distance, _)| *distance <= slips_max).min()?;
    (name != written).then_some(name)
}

fn variable(flag: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", flag.to_ascii_uppercase().replace('-', "_"))
}

/// What the environment says about a flag of one of the commands. An empty variable is as good as none, and so is one that only another
/// command's flag of that name takes; values of a list are separated by white space.
fn environment(arg: &Arg, flag: &str, command: &Command) -> Result<Option<Vec<OsString>>, Failure> {
    let name = variable(flag);
    let Some(value) = std::env::var_os(&name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let values: Vec<OsString> = match (arg.get_action(), value.to_str()) {
        (ArgAction::Append, Some(text)) => text.split_whitespace().map(OsString::from).collect(),
        _ => vec![value],
    };
    let fits = |arg: &Arg| values.iter().try_for_each(|value| try_on(arg, flag, value, &name));
    let others = || all_args(command).filter(|other| settable(other).as_deref() == Some(flag));
    match fits(arg) {
        Err(_) if others().any(|other| fits(other).is_ok()) => Ok(None),
        fits => fits.map(|()| Some(values)),
    }
}

/// Whether a flag would take `value`.
fn try_on(arg: &Arg, flag: &str, value: &OsStr, origin: &dyn fmt::Display) -> Result<(), Failure> {
    let mut given = OsString::from(format!("--{flag}="));
    given.push(value);
    // Its conflicts with other flags are for the whole command line to judge.
    let alone = Arg::new(flag.to_owned())
        .long(flag.to_owned())
        .action(arg.get_action().clone())
        .value_parser(arg.get_value_parser().clone())
        .allow_hyphen_values(arg.is_allow_hyphen_values_set());
    let alone = Command::new("setting").no_binary_name(true).disable_help_flag(true).arg(alone);
    alone.try_get_matches_from([given]).map(drop).map_err(|error| {
        let shown = value.display();
        let valid = match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(valid)) if !valid.is_empty() => {
                Some(format!("write one of {}", valid.join(", ")))
            }
            _ => None,
        };
        let is_switch = arg.get_value_parser().type_id() == TypeId::of::<bool>();
        let valid = if is_switch { Some("write yes or no".to_owned()) } else { valid };
        let why = valid.or_else(|| std::error::Error::source(&error).map(ToString::to_string));
        Failure::usage(format!(
            "{origin}: `{shown}` cannot be used for `{flag}`: {}",
            why.unwrap_or("it is no value".into())
        ))
    })
}

/// What the configuration file says, checked: values by command (`None`: all that have the flag) and flag.
#[derive(Debug, Default)]
struct ConfigFile {
    settings: BTreeMap<(Option<String>, String), Vec<OsString>>,
}

/// A place in the file, for errors.
struct Place<'a> {
    path: &'a PathBuf,
    text: &'a str,
}

impl Place<'_> {
    fn line(&self, span: Range<usize>) -> String {
        let line = self.text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1;
        format!("{}:{line}", self.path.display())
    }
}

/// The configuration file and its text; nothing where there is none and none was named.
fn read_config(given: Option<PathBuf>) -> Result<Option<(PathBuf, String)>, Failure> {
    let given = given.or_else(named_path);
    let must_exist = given.is_some();
    let Some(path) = given.or_else(default_path) else { return Ok(None) };
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Ok(length) if length as u64 <= CONFIG_BYTES_MAX => Ok(Some((path, text))),
        Ok(_) => {
            let message = format!("the configuration file {} has more than {CONFIG_BYTES_MAX} bytes", path.display());
            Err(Failure::usage(message))
        }
        // Not a directory: HOME is /dev/null, as that of accounts that services run under may be.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) && !must_exist => Ok(None),
        Err(error) => {
            let message =
                format!("cannot read the configuration file {}: {error}; correct or remove it", path.display());
            Err(Failure::usage(message))
        }
    }
}

impl ConfigFile {
    fn parse(command: &Command, place: &Place<'_>) -> Result<Self, Failure> {
        let table = DeTable::parse(place.text).map_err(|error| {
            Failure::usage(format!("{}: {}", place.line(error.span().unwrap_or_default()), error.message()))
        })?;
        let mut file = Self::default();
        for (key, value) in table.get_ref() {
            let (name, line) = (key.get_ref().as_ref(), place.line(key.span()));
            if let DeValue::Table(of_command) = value.get_ref() {
                let Some(command) = command.find_subcommand(name).filter(|found| found.get_name() != "help") else {
                    return Err(Failure::usage(format!(
                        "{line}: `{name}` is no command; tables are named like commands"
                    )));
                };
                for (key, value) in of_command {
                    let (flag, line) = (key.get_ref().as_ref(), place.line(key.span()));
                    let whose = || unknown(&line, flag, &format!("`{name}`"), all_args(command));
                    let arg = find(command, flag).ok_or_else(whose)?;
                    let values = values(arg, flag, value.get_ref(), &line)?;
                    file.settings.insert((Some(name.to_owned()), flag.to_owned()), values);
                }
            } else {
                let commands = std::iter::once(command).chain(command.get_subcommands());
                let args: Vec<&Arg> = commands.filter_map(|command| find(command, name)).collect();
                if args.is_empty() {
                    return Err(unknown(&line, name, "any command", all_args(command)));
                }
                // Commands may have flags of one name that take other things: one of them has to take it.
                let mut tried: Vec<_> = args.iter().map(|arg| values(arg, name, value.get_ref(), &line)).collect();
                tried.sort_by_key(Result::is_err);
                file.settings.insert((None, name.to_owned()), tried.swap_remove(0)?);
            }
        }
        Ok(file)
    }
}

/// A flag of a command or of those below it, which share its table.
fn find<'a>(command: &'a Command, flag: &str) -> Option<&'a Arg> {
    let below = command.get_subcommands().flat_map(Command::get_arguments);
    command.get_arguments().chain(below).find(|arg| settable(arg).is_some_and(|name| name == flag))
}

fn unknown<'a>(line: &str, key: &str, whose: &str, args: impl Iterator<Item = &'a Arg>) -> Failure {
    let flags: Vec<String> = args.filter_map(settable).collect();
    let remedy = match nearest(key, flags.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => "`anabranch help` lists them".to_owned(),
    };
    Failure::usage(format!("{line}: `{key}` is not a flag of {whose}; {remedy}"))
}

/// The values of a key, where they have the flag's type and the flag takes them.
fn values(arg: &Arg, flag: &str, value: &DeValue<'_>, line: &str) -> Result<Vec<OsString>, Failure> {
    let parser = arg.get_value_parser();
    let is = |kind: TypeId| parser.type_id() == kind;
    let (switch, number) = (is(TypeId::of::<bool>()), is(TypeId::of::<u32>()));
    let amount = is(TypeId::of::<Rate>()) || is(TypeId::of::<Size>());
    let decimal = is(TypeId::of::<Ratio>());
    let list = matches!(arg.get_action(), ArgAction::Append);
    let wanted = match () {
        () if switch => "true or false",
        () if number => "a whole number",
        () if decimal => "a number, such as 1.5",
        () if amount => "a whole number, or a text such as \"1MiB\"",
        () if is(TypeId::of::<Duration>()) => "a text with a unit, such as \"2s\"",
        () if list => "a text, or a list of texts",
        () => "a text",
    };
    let one = |value: &DeValue<'_>| match value {
        DeValue::Boolean(answer) if switch => Some(OsString::from(answer.to_string())),
        DeValue::Integer(digits) if number || amount || decimal => Some(OsString::from(digits.to_string())),
        DeValue::Float(digits) if decimal => Some(OsString::from(digits.to_string())),
        DeValue::String(text) if !switch && !number => Some(OsString::from(text.as_ref())),
        _ => None,
    };
    let found = match value {
        DeValue::Array(items) if list => items.iter().map(|item| one(item.get_ref())).collect(),
        other => one(other).map(|value| vec![value]),
    };
    let found =
        found.ok_or_else(|| Failure::usage(format!("{line}: `{flag}` must be {wanted}, not {}", value.type_str())))?;
    found.iter().try_for_each(|value| try_on(arg, flag, value, &line))?;
    Ok(found)
}

/// Where the configuration file is: as the flag says, or the environment, or else in its usual place.
pub(crate) fn config_file(given: Option<PathBuf>) -> Option<PathBuf> {
    given.or_else(named_path).or_else(default_path)
}

fn named_path() -> Option<PathBuf> {
    std::env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Where the XDG base directory specification puts it.
fn default_path() -> Option<PathBuf> {
    base_folder("XDG_CONFIG_HOME", ".config").map(|config| config.join("config.toml"))
}

/// Where what can be had again is kept, by the same specification.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    base_folder("XDG_CACHE_HOME", ".cache")
}

/// Where what the program has learned is kept, by the same specification.
pub(crate) fn state_folder() -> Option<PathBuf> {
    base_folder("XDG_STATE_HOME", ".local/state")
}

/// The file of known keys, where no other is named.
pub(crate) fn known_keys_file() -> Option<PathBuf> {
    state_folder().map(|folder| folder.join("known-keys"))
}

fn base_folder(variable: &str, below_home: &str) -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder(variable).or_else(|| folder("HOME").map(|home| home.join(below_home))).map(|base| base.join("anabranch"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn parse(text: &str) -> Result<ConfigFile, String> {
        let path = PathBuf::from("c.toml");
        ConfigFile::parse(&built(cli::command()), &Place { path: &path, text }).map_err(|failure| failure.to_string())
    }

    #[test]
    fn what_holds_for_all_commands_has_to_be_taken_by_one() {
        // `create --times` is a switch, and `send --times` a number.
        assert_eq!(parse("times = true\n").unwrap().settings[&(None, "times".into())], ["true"]);
        assert_eq!(parse("times = 3\n").unwrap().settings[&(None, "times".into())], ["3"]);
        assert!(parse("times = \"often\"\n").is_err() && parse("[send]\ntimes = true\n").is_err());
        assert!(parse("congestion = \"cubic\"\n").is_ok() && parse("congestion = \"cubik\"\n").is_err());
        assert!(parse("[send]\ncongestion = \"cubic\"\n").is_err());
    }

    #[test]
    fn keys_are_flags_at_the_top_or_in_a_commands_table() {
        let file = parse("stop-ratio = 1.5\n[share]\nstop-ratio = 2\n").unwrap();
        assert_eq!(file.settings[&(None, "stop-ratio".into())], ["1.5"]);
        assert_eq!(file.settings[&(Some("share".into()), "stop-ratio".into())], ["2"]);
        let file =
            parse("limit-up = \"1M\"\nquiet = true\n[get]\nlimit-up = 5000\npeer = [\"192.0.2.1:1\"]\n").unwrap();
        assert_eq!(file.settings[&(None, "limit-up".into())], ["1M"]);
        assert_eq!(file.settings[&(None, "quiet".into())], ["true"]);
        assert_eq!(file.settings[&(Some("get".into()), "limit-up".into())], ["5000"]);
        assert_eq!(file.settings[&(Some("get".into()), "peer".into())], ["192.0.2.1:1"]);
    }

    #[test]
    fn mistakes_are_named_with_file_line_and_key() {
        for (text, line, needle) in [
            ("\nlimitup = 1", 2, "`limitup` is not a flag of any command; did you mean `limit-up`?"),
            ("[gett]\n", 1, "`gett` is no command"),
            ("[help]\n", 1, "`help` is no command"),
            ("[verify]\nseed = true", 2, "`seed` is not a flag of `verify`"),
            ("seed = 1", 1, "`seed` must be true or false, not integer"),
            ("seed = \"yes\"", 1, "must be true or false, not string"),
            ("dir = 5", 1, "`dir` must be a text, not integer"),
            ("timeout = 5", 1, "`timeout` must be a text with a unit, such as \"2s\", not integer"),
            ("limit-up = [\"1M\"]", 1, "not array"),
            ("limit-down = 3", 1, "that is 3 bytes per second, and the least is 1K: add the unit"),
            ("memory = 1", 1, "the least is 1MiB"),
            ("stop-ratio = true", 1, "`stop-ratio` must be a number, such as 1.5, not boolean"),
            ("stop-ratio = -1.5", 1, "`-1.5` cannot be used for `stop-ratio`"),
            ("max-peers = \"5\"", 1, "must be a whole number"),
            ("max-peers = 0", 1, "`0` cannot be used for `max-peers`"),
            ("\n\nlimit-up = \"fast\"", 3, "`fast` cannot be used for `limit-up`: write a number"),
            ("strategy = \"best\"", 1, "write one of fastest, fuzzy, strict"),
            ("peer = [1]", 1, "a text, or a list of texts"),
            ("config = \"x\"", 1, "`config` is not a flag"),
            ("a = = b", 1, ""),
        ] {
            let message = parse(text).unwrap_err();
            assert!(
                message.starts_with(&format!("c.toml:{line}: ")) && message.contains(needle),
                "{text:?}: {message}"
            );
        }
    }

    #[test]
    fn misspelt_variables_are_named_with_what_was_meant() {
        let check = |name: &str| check_environment(&built(cli::command()), std::iter::once(OsString::from(name)));
        for (name, meant) in [
            ("ANABRANCH_LIMITUP", "ANABRANCH_LIMIT_UP"),
            ("ANABRANCH_LIMT_DOWN", "ANABRANCH_LIMIT_DOWN"),
            ("ANABRANCH_JOSN", "ANABRANCH_JSON"),
            ("ANABRANCH_limit_up", "ANABRANCH_LIMIT_UP"),
            ("ANABRANCH_CONFIGS", "ANABRANCH_CONFIG"),
        ] {
            let message = check(name).unwrap_err().to_string();
            assert!(message.starts_with(name) && message.contains(meant), "{message}");
        }
        for name in ["ANABRANCH_LIMIT_UP", "ANABRANCH_CONFIG", "ANABRANCH_BIN", "ANABRANCH_PYTHON", "LIMITUP"] {
            assert!(check(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn every_flag_that_can_be_set_has_one_variable() {
        assert_eq!(variable("limit-up"), "ANABRANCH_LIMIT_UP");
        for command in built(cli::command()).get_subcommands() {
            let by_us = |arg: &&Arg| arg.get_long().is_some_and(|long| !["help", "config"].contains(&long));
            for arg in command.get_arguments().filter(by_us) {
                assert!(settable(arg).is_some(), "{arg}");
            }
        }
    }
}
