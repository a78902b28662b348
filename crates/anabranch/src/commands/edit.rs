//! `edit`: changes what a torrent says beside its content.

use anabranch_content::info::InfoHashes;
use anabranch_content::metainfo::{Edits, Metainfo};
use serde_json::json;

use super::create::{is_stdout, refuse_overwriting, save, tell_v1_link};
use super::{check_web_seeds, tiers};
use crate::cli::EditFlags;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::source;

/// Runs the command.
pub(crate) fn run(flags: &EditFlags, chatter: Chatter) -> Result<Code, Failure> {
    let edits = edits(flags)?;
    if edits == Edits::default() {
        return Err(Failure::usage(
            "nothing is to be changed: give --tracker, --add-tracker, --remove-tracker, --web-seed, --comment, --source or --private",
        ));
    }
    let output = flags.output.as_deref().unwrap_or(&flags.torrent);
    let to_stdout = flags.output.is_some() && is_stdout(output);
    if to_stdout && flags.json {
        return Err(Failure::usage("`-o -` and `--json` both write to standard output: give one of them"));
    }
    if flags.output.is_some() && !to_stdout {
        refuse_overwriting(output, flags.force)?;
    }
    let before = source::torrent(&flags.torrent)?;
    let absent = edits.trackers_removed.iter().find(|url| !before.trackers.iter().flatten().any(|other| other == *url));
    let bytes = source::torrent_bytes(&flags.torrent)?;
    let unusable = |error| Failure::input(format!("{} cannot be changed so: {error}", flags.torrent.display()));
    let edited = edits.apply(&bytes).map_err(unusable)?;
    // A tracker that this program does not speak with is none of its list, and can be taken out all the same.
    if let Some(url) = absent.filter(|url| !contains(&bytes, url.as_bytes())) {
        return Err(Failure::input(format!(
            "{} has no tracker {url}: `show` lists those it has",
            flags.torrent.display()
        )));
    }
    let after = Metainfo::parse(&edited).map_err(unusable)?;
    let (old, new) = (before.info.hashes, after.info.hashes);
    if to_stdout {
        output::raw(&edited)?;
    } else {
        save(output, &edited)?;
    }
    if flags.json {
        let names = |hashes: InfoHashes| {
            let hex = |hash: Option<&[u8]>| json!(hash.map(anabranch_content::hex::encode));
            (hex(hashes.v1.as_ref().map(|hash| &hash[..])), hex(hashes.v2.as_ref().map(|hash| &hash[..])))
        };
        let ((v1, v2), (old_v1, old_v2), magnet) = (names(new), names(old), after.magnet());
        return output::line(json!({
            "torrent_file": output.to_string_lossy(),
            "info_hash_changed": old != new,
            "info_hash_v1": v1,
            "info_hash_v2": v2,
            "info_hash_v1_before": old_v1,
            "info_hash_v2_before": old_v2,
            "magnet": magnet.to_string(),
            "magnet_v1": magnet.v1_only().map(|magnet| magnet.to_string()),
            "magnet_v2": magnet.v2_only().map(|magnet| magnet.to_string()),
        }))
        .map(|()| Code::Success);
    }
    if old == new {
        chatter.note("the info-hash stays: whoever has the torrent already is in the same swarm");
    } else {
        chatter.note(format_args!(
            "the info-hash was {} and is {} now: another torrent, which those who have the old one do not find",
            source::hash_name(&old),
            source::hash_name(&new)
        ));
    }
    if !to_stdout {
        output::line(after.magnet())?;
        tell_v1_link(&after.magnet(), |note| chatter.note(note));
    }
    Ok(Code::Success)
}

fn edits(flags: &EditFlags) -> Result<Edits, Failure> {
    // An empty value stands for none.
    let given = |urls: &[String]| -> Option<Vec<String>> {
        (!urls.is_empty()).then(|| urls.iter().filter(|url| !url.is_empty()).cloned().collect())
    };
    let web_seeds = given(&flags.web_seed);
    check_web_seeds(web_seeds.as_deref().unwrap_or_default())?;
    Ok(Edits {
        trackers: given(&flags.tracker).map(|urls| tiers("tracker", &urls)).transpose()?,
        trackers_added: tiers("add-tracker", &flags.add_tracker)?,
        trackers_removed: flags.remove_tracker.clone(),
        web_seeds,
        comment: flags.comment.clone(),
        source: flags.source.clone(),
        private: flags.private,
    })
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && bytes.windows(part.len()).any(|window| window == part)
}
