//! `completions` and `man`: what shells and manuals know of the commands, from the definitions that parse them.

use std::fs;

use clap_mangen::Man;

use crate::cli::{CompletionsFlags, ManFlags, command, whole};
use crate::exit::{Code, Failure};
use crate::output;

/// Prints completions.
pub(crate) fn completions(flags: &CompletionsFlags) -> Result<Code, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut whole(), "anabranch", &mut script);
    output::raw(&script)?;
    Ok(Code::Success)
}

/// Prints the pages that are asked for, or writes one file a command.
pub(crate) fn man(flags: &ManFlags) -> Result<Code, Failure> {
    let mut root = command();
    root.build();
    let (mut asked, mut name) = (&root, root.get_name().to_owned());
    for word in flags.command.iter().flat_map(|words| words.split([' ', '-'])) {
        asked = asked.find_subcommand(word).filter(|found| found.get_name() != "help").ok_or_else(|| {
            let command = flags.command.join(" ");
            Failure::usage(format!(
                "`{command}` is no command: `anabranch help` lists them; to write all pages to a folder, give --dir {command}"
            ))
        })?;
        name = format!("{name}-{word}");
    }
    let mut pages = Vec::new();
    add_pages(asked, name, &mut pages)?;
    match &flags.dir {
        None => output::raw(&pages.into_iter().flat_map(|(_, page)| page).collect::<Vec<u8>>())?,
        Some(dir) => {
            let failed = |error| {
                Failure::new(Code::Storage, format!("cannot write to {}: {error}; give another folder", dir.display()))
            };
            fs::create_dir_all(dir).map_err(failed)?;
            for (name, page) in pages {
                fs::write(dir.join(format!("{name}.1")), page).map_err(failed)?;
            }
        }
    }
    Ok(Code::Success)
}

/// The page of a command, and those of the commands below it: `net up` is `anabranch-net-up`.
fn add_pages(command: &clap::Command, name: String, pages: &mut Vec<(String, Vec<u8>)>) -> Result<(), Failure> {
    let titled = command.clone().name(name.clone()).display_name(name.clone());
    pages.push((name.clone(), render(titled)?));
    let below = command.get_subcommands().filter(|sub| sub.get_name() != "help");
    below.into_iter().try_for_each(|sub| add_pages(sub, format!("{name}-{}", sub.get_name()), pages))
}

fn render(command: clap::Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    let rendered = Man::new(command.disable_help_subcommand(true)).render(&mut page);
    rendered.map(|()| page).map_err(|error| Failure::stdout(&error))
}
