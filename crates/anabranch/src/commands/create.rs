//! `create`: makes a torrent of a file or folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use anabranch_content::create::create;
use anabranch_content::metainfo::Metainfo;

use super::{create_failure, create_options};
use crate::cli::CreateFlags;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::status::Meter;
use crate::units;

/// Runs the command.
pub fn run(flags: &CreateFlags, chatter: Chatter) -> Result<Code, Failure> {
    let mut options = create_options(&flags.make)?;
    options.name = flags.name.clone();
    if !flags.no_date {
        options.creation_date = Some(SystemTime::now());
        options.created_by = Some(format!("Anabranch {}", env!("CARGO_PKG_VERSION")));
    }
    if let Some(output) = &flags.output {
        refuse_overwriting(output, flags.force)?;
    }
    let mut meter = Meter::new(chatter, "hashing");
    let created = create(&flags.path, &options, &AtomicBool::new(false), |done, total| meter.show(done, total));
    meter.clear();
    let created = created.map_err(|error| create_failure(&error))?;
    let output = flags.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.torrent", created.name)));
    refuse_overwriting(&output, flags.force)?;
    save(&output, &created.metainfo)?;
    let metainfo = Metainfo::parse(&created.metainfo)
        .map_err(|error| Failure::input(format!("{} can be hashed but not shared: {error}", flags.path.display())))?;
    chatter.note(format_args!(
        "{}: {} in {} files and links, {} pieces of {}",
        output.display(),
        units::bytes(created.length),
        created.entry_count,
        created.piece_count,
        units::bytes(created.piece_length.into()),
    ));
    output::line(metainfo.magnet())?;
    Ok(Code::Success)
}

fn refuse_overwriting(output: &Path, force: bool) -> Result<(), Failure> {
    if !force && output.symlink_metadata().is_ok() {
        return Err(Failure::usage(format!("{} exists; give --force to overwrite it", output.display())));
    }
    Ok(())
}

/// Writes the file whole or not at all.
pub fn save(output: &Path, bytes: &[u8]) -> Result<(), Failure> {
    super::spare_content(output, bytes)?;
    let failed = |error: std::io::Error| {
        let message =
            format!("cannot write {}: {error}; make room and the folder writable, or give another", output.display());
        Failure::new(Code::Storage, message)
    };
    // Devices and pipes are written to as they are.
    if fs::metadata(output).is_ok_and(|found| !found.is_file()) {
        return fs::write(output, bytes).map_err(failed);
    }
    let mut partial = output.as_os_str().to_owned();
    partial.push(format!(".{}.part", std::process::id()));
    let partial = PathBuf::from(partial);
    let written = fs::File::create(&partial)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&partial, output));
    written.map_err(|error| {
        // What is half written is of no use.
        let _ = fs::remove_file(&partial);
        failed(error)
    })
}
