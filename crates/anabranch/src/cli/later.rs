//! Flags that are defined once their command is asked for: those of all commands are many, and a command line has one command.

use clap::builder::Resettable;
use clap::{ArgMatches, Args, Command, FromArgMatches, Id};

use super::usual;

/// The flags `T` of a command. A [`Command`] knows of them when it is built, or asked for this command.
#[derive(Debug)]
pub(crate) struct Later<T>(pub Box<T>);

impl<T: FromArgMatches> FromArgMatches for Later<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(Box::new).map(Self)
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches_mut(matches).map(Box::new).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<T: Args> Args for Later<T> {
    fn group_id() -> Option<Id> {
        T::group_id()
    }

    fn augment_args(command: Command) -> Command {
        command.defer(define::<T>)
    }

    /// As they are otherwise, but at once. Nothing is updated by a command line: who asks for this wants all flags of all commands.
    fn augment_args_for_update(command: Command) -> Command {
        define::<T>(command)
    }
}

fn define<T: Args>(command: Command) -> Command {
    // What the command is for is said where all commands are; the flags have words of their own.
    let about = Resettable::from(command.get_about().cloned());
    let long_about = Resettable::from(command.get_long_about().cloned());
    let defined = T::augment_args(command).about(about).long_about(long_about);
    defined.mut_args(usual).mut_subcommands(|below| below.mut_args(usual))
}
