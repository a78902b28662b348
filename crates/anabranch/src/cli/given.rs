//! Which flags stand on the command line itself. The environment and the configuration file say how things are done in general,
//! and may well say what one command has no use for; who writes a flag by hand means it.

use std::collections::BTreeSet;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// The flags on the command line. Of the fields of a command's flags it has to be the first: the others take out what they read.
#[derive(Debug)]
pub(crate) struct Given(BTreeSet<String>);

impl Given {
    /// The first of these flags that is on the command line.
    pub(crate) fn first_of<'a>(&self, flags: &[&'a str]) -> Option<&'a str> {
        flags.iter().copied().find(|flag| self.0.contains(&flag.replace('-', "_")))
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        Ok(Self(matches.ids().filter(is_given).map(ToString::to_string).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}
