//! Any bytes as a torrent to be changed: what is outside of the info dictionary never changes the info-hash, and what comes out is a
//! torrent that says what was asked for.
#![no_main]

use anabranch_content::metainfo::{Edits, Metainfo};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(before) = Metainfo::parse(data) else { return };
    let tracker = "udp://tracker.example:80".to_owned();
    let outside = Edits {
        trackers_added: vec![vec![tracker.clone()]],
        comment: Some("a remark".into()),
        web_seeds: Some(Vec::new()),
        ..Edits::default()
    };
    let edited = outside.apply(data).expect("a torrent stays one");
    let after = Metainfo::parse(&edited).expect("our own encoding");
    assert_eq!(after.info, before.info);
    assert_eq!((after.comment.as_deref(), after.web_seeds.len()), (Some("a remark"), 0));
    assert_eq!(outside.apply(&edited).expect("twice"), edited);
    let inside = Edits { source: Some("tag".into()), private: Some(true), ..Edits::default() };
    // An info dictionary out of order becomes one in order, which may be one too many for its limits.
    let Ok(edited) = inside.apply(data) else { return };
    let info = Metainfo::parse(&edited).expect("our own encoding").info;
    assert!(info.private && info.source_tag().as_deref() == Some("tag"));
    assert_eq!(info.files.len(), before.info.files.len());
});
