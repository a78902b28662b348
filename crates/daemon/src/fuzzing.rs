//! Ways in for the fuzz targets: what is read of requests and of files, without a daemon.

use serde_json::Value;

use crate::api::{Query, new_content_of};
use crate::library::{Settings, restore};
use crate::store::read_kept;

/// Behind the `?` of a request: what is accepted is the same after being written.
pub fn query(data: &[u8]) {
    let Some(query) = Query::parse(&String::from_utf8_lossy(data)) else { return };
    let encoded = anabranch_swarm::http::names::url_encoded;
    let written: Vec<String> =
        query.fields().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
    assert_eq!(Query::parse(&written.join("&")), Some(query));
}

/// The options of a new content.
pub fn new_content(data: &[u8]) {
    if let Ok(Value::Object(object)) = serde_json::from_slice(data) {
        // What is refused is refused.
        let _ = new_content_of(&object);
    }
}

/// A snapshot or journal, and what was kept in it.
pub fn kept(data: &[u8]) {
    let kept = read_kept(data);
    let restored = restore(&kept, "/".into());
    for (entry, _) in restored.entries {
        assert_eq!(crate::library::Entry::from_json(entry.id, &entry.to_json()), Some(entry));
    }
}

/// Changes of the settings: what is accepted is accepted again.
pub fn changes(data: &[u8]) {
    let Ok(Value::Object(object)) = serde_json::from_slice(data) else { return };
    if let Ok(changed) = Settings::new("/".into()).with(&object) {
        let Value::Object(written) = changed.to_json() else { return };
        assert_eq!(changed.with(&written), Ok(changed));
    }
}

/// A form with files: what is accepted lies within it.
pub fn form(data: &[u8]) {
    let Some(parts) = crate::qbittorrent::parts(data, "x") else { return };
    for part in parts {
        // A range that is out of it fails here.
        let _ = &data[part.bytes];
    }
    let _ = crate::qbittorrent::boundary(&String::from_utf8_lossy(data));
}
