use std::rc::Rc;
use std::time::Instant;

use super::*;
use crate::config::SessionConfig;
use crate::ppspp::begin::complete;

/// A content of this link that nobody has begun with.
fn content(link: &str) -> Content {
    let link: Link = link.parse().unwrap();
    let (resources, _) = Resources::open(SessionConfig { disk_threads: 1, ..SessionConfig::default() }).unwrap();
    let core = complete(&link, Instant::now());
    Content::new(ContentId(1), link, core, AddOptions::default(), (Rc::new(resources), Rc::default()))
}

/// Runs `test` where there is a runtime.
fn run(test: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async { test() });
    runtime.shutdown_background();
}

/// A chunk of the list of files that comes before there is a place for it is fetched again.
#[test]
fn a_chunk_of_the_list_is_kept_or_fetched_again() {
    run(|| {
        let mut content = content(&format!("ppspp:{}?cs=10&cl=99&ml=25", "ab".repeat(32)));
        // It was handed out, and is told to be written: that counts only where it was not given up.
        let comes = |content: &mut Content, chunk: u64| {
            content.core.hold(chunk);
            content.keep_head(chunk, &[1; 10]);
            content.core.stored(chunk);
            content.core.have().contains(chunk)
        };
        assert!(!comes(&mut content, 0));
        content.head = Head::of(&content.link);
        assert!(comes(&mut content, 0));
        assert_eq!(content.head.as_ref().map(Head::missing), Some(2));
    });
}
