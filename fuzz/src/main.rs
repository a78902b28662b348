//! Writes valid samples for every target to `CORPUS/TARGET/seed-N`: fuzzing starts from them instead of from nothing.

#![forbid(unsafe_code)]

mod samples;

use std::path::PathBuf;
use std::{fs, io};

fn main() -> io::Result<()> {
    let corpus = PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| "corpus".into()));
    for (target, samples) in samples::all() {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        for (number, sample) in samples.iter().enumerate() {
            fs::write(folder.join(format!("seed-{number:02}")), sample)?;
        }
    }
    Ok(())
}
