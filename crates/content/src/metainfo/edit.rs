//! Changes a torrent that is there: what is not named stays as it is, byte for byte.
//!
//! Trackers, web seeds and the comment stand outside of the info dictionary, so the info-hashes stay with them. The private flag
//! and the source tag stand inside: with another of these it is another torrent, whose swarm is another one.

use super::error::MetainfoError;
use super::limits::METAINFO_BYTES_MAX;
use super::{Metainfo, strings};
use crate::bencode::{self, DictBuilder, Limits, ListBuilder, Value};

/// What is to be changed; `None` and empty lists leave things as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Trackers in tiers instead of those that are there; empty for none.
    pub trackers: Option<Vec<Vec<String>>>,
    /// Tiers of trackers to add behind those that are there.
    pub trackers_added: Vec<Vec<String>>,
    /// Trackers to take out.
    pub trackers_removed: Vec<String>,
    /// Web seeds (BEP 19) instead of those that are there; empty for none.
    pub web_seeds: Option<Vec<String>>,
    /// The comment; empty for none.
    pub comment: Option<String>,
    /// "source", which is part of the info-hash; empty for none.
    pub source: Option<String>,
    /// "private" (BEP 27), which is part of the info-hash.
    pub private: Option<bool>,
}

impl Edits {
    /// The bytes of the `.torrent` file `bytes`, changed.
    ///
    /// # Errors
    /// When `bytes` are no torrent, or would be none any more.
    pub fn apply(&self, bytes: &[u8]) -> Result<Vec<u8>, MetainfoError> {
        Metainfo::parse(bytes)?;
        let limits = Limits { bytes: METAINFO_BYTES_MAX, ..Limits::default() };
        let (tree, _end) = bencode::parse_prefix(bytes, &limits)?;
        let root = tree.root();
        let mut replaced = Vec::new();
        let trackers = self.tiers(root);
        if trackers.is_some() {
            replaced.extend(["announce", "announce-list"]);
        }
        if self.web_seeds.is_some() {
            replaced.push("url-list");
        }
        if self.comment.is_some() {
            replaced.extend(["comment", "comment.utf-8"]);
        }
        let mut out = copy(root, &replaced);
        if let Some(tiers) = trackers {
            put_trackers(&mut out, &tiers);
        }
        if let Some(urls) = self.web_seeds.as_ref().filter(|urls| !urls.is_empty()) {
            out.list("url-list", &strings(urls));
        }
        if let Some(comment) = self.comment.as_ref().filter(|comment| !comment.is_empty()) {
            out.bytes("comment", comment);
        }
        if let Some(info) = root.get("info").filter(|info| self.changes_info(*info)) {
            out.raw("info", &self.info(info));
        }
        let edited = out.encode();
        Metainfo::parse(&edited)?;
        Ok(edited)
    }

    /// Whether the info dictionary, and so the info-hash, becomes another.
    fn changes_info(&self, info: Value<'_>) -> bool {
        let source = info.get("source").and_then(|source| source.as_bytes()).unwrap_or_default();
        let private = info.get("private").and_then(|private| private.as_int()).unwrap_or(0) != 0;
        self.source.as_ref().is_some_and(|wanted| wanted.as_bytes() != source)
            || self.private.is_some_and(|wanted| wanted != private)
    }

    fn info(&self, info: Value<'_>) -> Vec<u8> {
        let mut replaced = Vec::new();
        replaced.extend(self.source.as_ref().map(|_| "source"));
        replaced.extend(self.private.map(|_| "private"));
        let mut out = copy(info, &replaced);
        if let Some(source) = self.source.as_ref().filter(|source| !source.is_empty()) {
            out.bytes("source", source);
        }
        if self.private == Some(true) {
            out.int("private", 1);
        }
        out.encode()
    }

    /// The tiers as they are to be; `None` where nothing is said of trackers. Those that this program does not speak with stay.
    fn tiers(&self, root: Value<'_>) -> Option<Vec<Vec<Vec<u8>>>> {
        let own = |tiers: &[Vec<String>]| -> Vec<Vec<Vec<u8>>> {
            tiers.iter().map(|tier| tier.iter().map(|url| url.clone().into_bytes()).collect()).collect()
        };
        if self.trackers.is_none() && self.trackers_added.is_empty() && self.trackers_removed.is_empty() {
            return None;
        }
        let mut tiers = self.trackers.as_deref().map_or_else(|| tiers_of(root), own);
        for tier in own(&self.trackers_added) {
            let known = |url: &Vec<u8>| tiers.iter().flatten().any(|other| other == url);
            let new: Vec<Vec<u8>> = tier.into_iter().filter(|url| !known(url)).collect();
            tiers.push(new);
        }
        for tier in &mut tiers {
            tier.retain(|url| !self.trackers_removed.iter().any(|removed| removed.as_bytes() == url));
        }
        tiers.retain(|tier| !tier.is_empty());
        Some(tiers)
    }
}

/// All entries but those of `left_out`, each as it is.
fn copy(dict: Value<'_>, left_out: &[&str]) -> DictBuilder {
    let mut out = DictBuilder::new();
    let entries = dict.as_dict().into_iter().flatten();
    for (key, value) in entries.filter(|(key, _)| !left_out.iter().any(|name| name.as_bytes() == *key)) {
        out.raw(key, value.source());
    }
    out
}

/// BEP 12, "announce-list", or else the one tracker of BEP 3.
fn tiers_of(root: Value<'_>) -> Vec<Vec<Vec<u8>>> {
    let urls = |tier: Value<'_>| -> Vec<Vec<u8>> {
        tier.as_list().into_iter().flatten().filter_map(|url| url.as_bytes().map(<[u8]>::to_vec)).collect()
    };
    let listed = root.get("announce-list").and_then(|tiers| tiers.as_list()).into_iter().flatten().map(urls);
    let listed: Vec<_> = listed.filter(|tier| !tier.is_empty()).collect();
    if !listed.is_empty() {
        return listed;
    }
    let announce = root.get("announce").and_then(|url| url.as_bytes()).filter(|url| !url.is_empty());
    announce.map(|url| vec![vec![url.to_vec()]]).unwrap_or_default()
}

fn put_trackers(out: &mut DictBuilder, tiers: &[Vec<Vec<u8>>]) {
    if let Some(first) = tiers.first().and_then(|tier| tier.first()) {
        out.bytes("announce", first);
    }
    if tiers.iter().map(Vec::len).sum::<usize>() > 1 {
        let mut list = ListBuilder::new();
        for tier in tiers {
            let mut urls = ListBuilder::new();
            tier.iter().for_each(|url| _ = urls.bytes(url));
            list.list(&urls);
        }
        out.list("announce-list", &list);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn torrent(outside: &[(&str, &str)]) -> Vec<u8> {
        let mut info = DictBuilder::new();
        info.bytes("name", "a")
            .int("length", 5)
            .int("piece length", 16384)
            .bytes("pieces", [7; 20])
            .bytes("x-ours", "kept");
        let mut out = DictBuilder::new();
        outside.iter().for_each(|(key, value)| _ = out.raw(key, value.as_bytes()));
        out.dict("info", &info).encode()
    }

    fn read(edits: &Edits, bytes: &[u8]) -> Metainfo {
        Metainfo::parse(&edits.apply(bytes).expect("a torrent")).expect("readable")
    }

    #[test]
    fn what_is_outside_keeps_the_hash_and_all_else() {
        let bytes = torrent(&[
            ("announce", "12:http://one/a"),
            ("announce-list", "ll12:http://one/ael11:ws://two/xyel12:http://two/aee"),
            ("comment.utf-8", "3:old"),
            ("publisher", "2:me"),
        ]);
        let before = Metainfo::parse(&bytes).unwrap();
        let edits = Edits {
            trackers_added: vec![vec!["udp://three:1".into(), "http://two/a".into()]],
            trackers_removed: vec!["http://one/a".into()],
            comment: Some("new".into()),
            web_seeds: Some(vec!["http://w/".into()]),
            ..Edits::default()
        };
        let after = read(&edits, &bytes);
        assert_eq!(after.info, before.info);
        assert_eq!(after.trackers, [["http://two/a"], ["udp://three:1"]]);
        assert_eq!((after.comment.as_deref(), &after.web_seeds[..]), (Some("new"), &["http://w/".to_owned()][..]));
        let text = String::from_utf8_lossy(&edits.apply(&bytes).unwrap()).into_owned();
        assert!(text.contains("9:publisher2:me") && text.contains("11:ws://two/xy"), "{text}");
        let none = Edits { trackers: Some(Vec::new()), comment: Some(String::new()), ..Edits::default() };
        let after = read(&none, &bytes);
        assert!(after.trackers.is_empty() && after.comment.is_none());
        assert_eq!(Edits::default().apply(&bytes).unwrap(), bytes);
    }

    #[test]
    fn what_is_inside_makes_another_torrent() {
        let bytes = torrent(&[]);
        let before = Metainfo::parse(&bytes).unwrap().info;
        let edits = Edits { source: Some("TRACKER".into()), private: Some(true), ..Edits::default() };
        let marked = edits.apply(&bytes).unwrap();
        let after = Metainfo::parse(&marked).unwrap().info;
        assert!(after.private && after.hashes != before.hashes && after.files == before.files);
        assert_eq!(after.source_tag().as_deref(), Some("TRACKER"));
        assert!(String::from_utf8_lossy(&marked).contains("6:x-ours4:kept"));
        assert_eq!(edits.apply(&marked).unwrap(), marked);
        let back = Edits { source: Some(String::new()), private: Some(false), ..Edits::default() };
        assert_eq!(back.apply(&marked).unwrap(), bytes);
    }

    proptest! {
        #[test]
        fn any_edit_of_any_torrent_keeps_its_promises(
            key in "[a-z]{1,9}", value in "\\PC{0,9}", tiers in prop::collection::vec(prop::collection::vec("udp://[a-z]{1,5}:80", 0..3), 0..4),
            removed in prop::collection::vec("udp://[a-z]:80", 0..3), comment in prop::option::of("\\PC{0,9}"),
            source in prop::option::of("\\PC{0,9}"), private in any::<Option<bool>>(),
        ) {
            prop_assume!(!["info", "announce", "comment"].contains(&key.as_str()));
            let bytes = torrent(&[(&key, &format!("{}:{value}", value.len()))]);
            let before = Metainfo::parse(&bytes).unwrap().info;
            let edits = Edits { trackers_added: tiers, trackers_removed: removed, comment, source, private, ..Edits::default() };
            let after = edits.apply(&bytes).unwrap();
            prop_assert_eq!(edits.apply(&after).unwrap(), after.clone());
            let read = Metainfo::parse(&after).unwrap();
            let tagged = edits.source.as_deref().is_some_and(|source| !source.is_empty()) || private == Some(true);
            prop_assert_eq!(read.info.hashes != before.hashes, tagged);
            prop_assert!(read.trackers.iter().flatten().all(|url| !edits.trackers_removed.contains(url)));
            let kept = format!("{}:{key}{}:{value}", key.len(), value.len());
            prop_assert!(after.windows(kept.len()).any(|window| window == kept.as_bytes()));
        }
    }
}
