//! `completions` and `man`: what shells and manuals know of the commands, from the definitions that parse them.

use std::fs;

use clap_mangen::Man;

use crate::cli::{CompletionsFlags, ManFlags, command};
use crate::exit::{Code, Failure};
use crate::output;

/// Prints completions.
pub fn completions(flags: &CompletionsFlags) -> Result<Code, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut command(), "anabranch", &mut script);
    output::raw(&script)?;
    Ok(Code::Success)
}

/// Prints all pages, or writes one file a command.
pub fn man(flags: &ManFlags) -> Result<Code, Failure> {
    let mut root = command();
    root.build();
    let mut pages = vec![(root.get_name().to_owned(), render(root.clone())?)];
    for sub in root.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let name = format!("anabranch-{}", sub.get_name());
        // A page's title wants a name that lives as long as the program; there are ten.
        let sub = sub.clone().name(name.clone()).display_name(name.clone());
        pages.push((name, render(sub)?));
    }
    match &flags.dir {
        None => output::raw(&pages.into_iter().flat_map(|(_, page)| page).collect::<Vec<u8>>())?,
        Some(dir) => {
            let failed = |error| Failure::new(Code::Storage, format!("cannot write to {}: {error}", dir.display()));
            fs::create_dir_all(dir).map_err(failed)?;
            for (name, page) in pages {
                fs::write(dir.join(format!("{name}.1")), page).map_err(failed)?;
            }
        }
    }
    Ok(Code::Success)
}

fn render(command: clap::Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    let rendered = Man::new(command.disable_help_subcommand(true)).render(&mut page);
    rendered.map(|()| page).map_err(|error| Failure::stdout(&error))
}
