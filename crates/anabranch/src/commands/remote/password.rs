//! `password`: the name and the password of a daemon.

use std::io::{self, BufRead, IsTerminal, Write};

use anabranch_daemon::client::Body;
use serde_json::json;

use super::{Asks, asking, client, failure};
use crate::cli::PasswordFlags;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::system;

/// Runs the command.
pub(crate) fn run(flags: &PasswordFlags, chatter: Chatter) -> Result<Code, Failure> {
    let client = client(&flags.ask)?;
    let password = if flags.remove { None } else { Some(read()?) };
    asking(Asks::ForChange, async {
        let told = match &password {
            None => client.ask("DELETE", "/api/v1/password", Body::None).await,
            Some(password) => {
                let body = json!({ "user": flags.user, "password": password });
                client.ask("PUT", "/api/v1/password", Body::Json(&body)).await
            }
        };
        let told = told.map_err(failure)?;
        if flags.ask.json {
            output::line(&told)?;
        } else if flags.remove {
            chatter.note(format_args!("there is no password any more"));
        } else {
            chatter.note(format_args!("the password of {} is set", flags.user));
        }
        Ok(Code::Success)
    })
}

/// Asks for the password twice on a terminal, where it is not shown; else it is the first line.
fn read() -> Result<String, Failure> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return line(&mut stdin.lock());
    }
    let ask = |prompt: &str| {
        // Standard output is for results.
        let _ = write!(io::stderr(), "{prompt}: ").and_then(|()| io::stderr().flush());
        let read = system::without_echo(|| line(&mut stdin.lock()));
        let _ = writeln!(io::stderr());
        read
    };
    let password = ask("Password")?;
    match ask("Again")? == password {
        true => Ok(password),
        false => Err(Failure::input("these are two passwords: try again")),
    }
}

fn line(input: &mut impl BufRead) -> Result<String, Failure> {
    let mut text = String::new();
    let read = input.read_line(&mut text);
    read.map_err(|error| Failure::input(format!("cannot read the password: {error}; give it on standard input")))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
