//! The program: reads the command line, the environment and the configuration file, and drives sessions.
//!
//! | module | what it does |
//! | --- | --- |
//! | `cli` | every command and flag; help, man pages and completions come from these definitions |
//! | `settings` | flags that are not given come from the environment, then from the configuration file |
//! | `units`, `address`, `source`, `patterns` | what users write: rates and sizes, addresses, torrents and links, file patterns |
//! | `choice` | which files of a content are wanted |
//! | `destination` | SCION destinations and ends of links as users write them |
//! | `path_lookup`, `health`, `path_list`, `ask` | the paths that flags let through; which of them carry anything; how they are shown and chosen |
//! | `awaited` | what others have to answer before a command goes on, and what is told meanwhile |
//! | `commands` | one file a command |
//! | `session` | a session as flags ask for it: what `get`, `share` and others have in common |
//! | `runtime` | the runtime that commands run on, and the signals that end them |
//! | `bulk` | what `send` and `receive` have in common: whom to deal with, what to say, receipts |
//! | `patience` | how long `get` waits for sources, and when it gives up |
//! | `sandbox` | which files each command is shut in with, and what is done outside for it |
//! | `player` | the user's player, and what is played where nothing is chosen |
//! | `seeding`, `hook` | when sharing ends by itself; the user's command for what is complete |
//! | `scion` | our place in the SCION network |
//! | `clients` | programs of peers that need a word about them |
//! | `events`, `status`, `path_log` | events as JSON or as notes; the progress lines of a terminal; paths as CSV |
//! | `output`, `exit` | standard output that may be closed; errors and their exit codes |
//!
//! Nothing here knows the protocol: that is the session's.

#![deny(unsafe_code)]

mod address;
mod ask;
mod awaited;
mod bulk;
mod choice;
mod cli;
mod clients;
mod commands;
mod destination;
mod events;
mod exit;
mod guard;
mod health;
mod hook;
mod output;
mod path_list;
mod path_log;
mod path_lookup;
mod patience;
mod patterns;
mod player;
mod runtime;
mod sandbox;
mod scion;
mod seeding;
mod session;
mod settings;
mod source;
mod status;
mod system;
mod units;
mod watch;

use std::process::ExitCode;

use clap::FromArgMatches;

use cli::{Cli, Command, Later};
use exit::{Code, Failure};

fn main() -> ExitCode {
    let code = match execute() {
        Ok(code) => code,
        Err(failure) => {
            output::complain(&failure);
            failure.code
        }
    };
    code.into()
}

fn execute() -> Result<Code, Failure> {
    let arguments: Vec<_> = std::env::args_os().collect();
    let matches = match settings::layered(cli::command, &arguments)? {
        Ok(matches) => matches,
        Err(shown) => {
            // Help and version are what was asked for, on standard output; everything else is a usage error.
            let code = if shown.use_stderr() { Code::Usage } else { Code::Success };
            return shown.print().map(|()| code).map_err(|error| Failure::stdout(&error));
        }
    };
    let cli = Cli::from_arg_matches(&matches).map_err(|error| Failure::usage(error.to_string().trim_end()))?;
    let chatter = output::Chatter { quiet: cli.quiet, verbose: cli.verbose };
    match cli.command {
        Command::Create(Later(flags)) => commands::create::run(&flags, chatter),
        Command::Edit(Later(flags)) => commands::edit::run(&flags, chatter),
        Command::Show(Later(flags)) => commands::show::run(flags, chatter),
        Command::Get(Later(flags)) => commands::get::run(flags, chatter),
        Command::Play(Later(flags)) => commands::play::run(flags, chatter),
        Command::Share(Later(flags)) => commands::share::run(flags, chatter),
        Command::Live(Later(flags)) => commands::live::run(flags, chatter),
        Command::Verify(Later(flags)) => commands::verify::run(&flags, chatter),
        Command::Send(Later(flags)) => commands::send::run(flags, chatter),
        Command::Receive(Later(flags)) => commands::receive::run(flags, chatter),
        Command::Receipt(Later(flags)) => commands::receipt::run(&flags),
        Command::Tracker(Later(flags)) => commands::tracker::run(&flags, chatter),
        Command::Daemon(Later(flags)) => commands::daemon::run(&flags, cli.config, chatter),
        Command::Add(Later(flags)) => commands::remote::add(&flags),
        Command::List(Later(flags)) => commands::remote::list(&flags),
        Command::Status(Later(flags)) => commands::remote::status(&flags),
        Command::Pause(Later(flags)) => commands::remote::turn(&flags, "pause"),
        Command::Resume(Later(flags)) => commands::remote::turn(&flags, "resume"),
        Command::Remove(Later(flags)) => commands::remote::remove(&flags),
        Command::Limit(Later(flags)) => commands::remote::limit(&flags),
        Command::Watch(Later(flags)) => commands::remote::watch(&flags, chatter),
        Command::Password(Later(flags)) => commands::remote::password(&flags, chatter),
        Command::Paths(Later(flags)) => commands::paths::run(&flags, chatter),
        Command::Ping(Later(flags)) => commands::ping::run(&flags, chatter),
        Command::Traceroute(Later(flags)) => commands::traceroute::run(&flags, chatter),
        Command::Address(Later(flags)) => commands::address::run(&flags, chatter),
        Command::Keys(Later(flags)) => commands::keys::run(&flags.command, chatter),
        Command::Net(Later(flags)) => commands::net::run(flags.command, chatter),
        Command::Demo(Later(flags)) => commands::demo::run(&flags, chatter),
        Command::Lab(Later(flags)) => commands::lab::run(&flags, chatter),
        Command::Completions(Later(flags)) => commands::generate::completions(&flags),
        Command::Man(Later(flags)) => commands::generate::man(&flags),
    }
}
