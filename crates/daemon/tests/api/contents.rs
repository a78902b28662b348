//! Contents are added, watched, changed, moved and removed; and what is kept of them.

use serde_json::{Value, json};

use crate::fixture::{Fixture, noise};

const CONTENTS: &str = "/api/v1/contents";
const CONTENT: &str = "/api/v1/contents/{id}";

fn part(name: &str) -> String {
    format!("{CONTENT}/{name}")
}

/// A daemon that shares a folder of two files, the link of that, and where it listens.
fn sharer() -> (Fixture, String, String, Vec<u8>) {
    let fixture = Fixture::new();
    let bytes = noise(700_000, 7);
    let dir = fixture.files().join("album");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("one.mp3"), &bytes).unwrap();
    std::fs::write(dir.join("two.txt"), noise(50_000, 8)).unwrap();
    let id = fixture.share(&dir);
    let content = fixture.ask("GET", CONTENT, &id, None).json();
    let session = fixture.ask("GET", "/api/v1/session", "", None).json();
    let link = content["link"].as_str().unwrap().to_owned();
    let peer = session["listening"][0].as_str().unwrap().to_owned();
    (fixture, link, peer, bytes)
}

#[test]
fn what_is_shared_by_one_is_fetched_played_moved_and_removed_by_another() {
    let (sharer, link, peer, bytes) = sharer();
    let fixture = Fixture::new();
    let body = json!({ "source": link, "peers": [peer], "category": "music", "tags": ["new"], "paused": true });
    let added = fixture.ask("POST", CONTENTS, "", Some(&body));
    assert_eq!(added.status, 201, "{}", added.json());
    let id = added.json()["id"].to_string();
    assert_eq!(added.field("location"), Some(format!("/api/v1/contents/{id}").as_str()));
    assert_eq!(added.json()["state"], "paused");
    let again = fixture.ask("POST", CONTENTS, "", Some(&body));
    assert_eq!((again.status, again.json()["type"].as_str()), (409, Some("urn:anabranch:problem:duplicate")));
    let resumed = fixture.ask("POST", &part("resume"), &id, None);
    assert_eq!(resumed.status, 202);
    let whole = fixture.wait(&id, |content| content["completed"].is_u64());
    assert_eq!(whole["done"], whole["size"]);
    assert_eq!(std::fs::read(fixture.files().join("album/one.mp3")).unwrap(), bytes);
    for name in ["files", "pieces", "peers", "trackers", "paths", "log"] {
        assert_eq!(fixture.ask("GET", &part(name), &id, None).status, 200, "{name}");
    }
    let files = fixture.ask("GET", &part("files"), &id, None).json();
    let file = files["files"].as_array().unwrap().iter().find(|file| file["playable"] == true).unwrap().clone();
    assert_eq!((file["done"].as_u64(), file["length"].as_u64()), (Some(700_000), Some(700_000)));
    let fields = format!("{}Range: bytes=1000-1999\r\n", fixture.fields());
    let played = fixture.send("GET", &format!("/api/v1/contents/{id}/play/{}", file["index"]), &fields, b"");
    assert_eq!((played.status, played.body.as_slice()), (206, &bytes[1000..2000]));
    let pieces = fixture.ask("GET", &part("pieces"), &id, None).json();
    assert_eq!(pieces["have"], pieces["count"]);

    let there = fixture.files().join("elsewhere");
    let moved = fixture.ask("POST", &part("move"), &id, Some(&json!({ "dir": there })));
    assert_eq!(moved.status, 202, "{}", moved.json());
    fixture
        .wait(&id, |content| content["state"] == "seeding" && content["dir"].as_str().unwrap().ends_with("elsewhere"));
    assert_eq!(std::fs::read(there.join("album/one.mp3")).unwrap(), bytes);

    let hash = whole["hashes"][0].as_str().unwrap().to_owned();
    let checked = fixture.ask("POST", &part("recheck"), &hash, None);
    assert_eq!((checked.status, checked.json()["state"].as_str()), (202, Some("checking")));
    fixture.wait(&id, |content| content["state"] == "seeding");

    let removed = fixture.send("DELETE", &format!("{CONTENTS}/{id}?data=delete"), &fixture.fields(), b"");
    assert_eq!((removed.status, removed.json()), (200, json!({ "left": [] })));
    assert!(!there.join("album").exists());
    assert_eq!(fixture.ask("GET", CONTENT, &id, None).status, 404);
    drop(sharer);
}

#[test]
fn options_are_checked_changed_and_kept() {
    let fixture = Fixture::new();
    let link = |digit: char| format!("magnet:?xt=urn:btih:{}&dn=x", digit.to_string().repeat(40));
    let add = |body: Value| fixture.ask("POST", CONTENTS, "", Some(&body));
    for (body, status) in [
        (json!({}), 400),
        (json!({ "source": "nonsense" }), 422),
        (json!({ "source": 5 }), 422),
        (json!({ "source": "magnet:?dn=x" }), 422),
        (json!({ "source": link('a'), "path": "/x" }), 400),
        (json!({ "source": link('a'), "speed": 5 }), 400),
        (json!({ "source": link('a'), "limit_up": -5 }), 422),
        (json!({ "source": link('a'), "tags": "x" }), 422),
        (json!({ "source": link('a'), "tags": ["a,b"] }), 422),
        (json!({ "source": link('a'), "category": "" }), 422),
        (json!({ "source": link('a'), "trackers": ["file:///etc/passwd"] }), 422),
        (json!({ "source": link('a'), "peers": ["nobody"] }), 422),
        (json!({ "source": link('a'), "paused": "yes" }), 422),
    ] {
        assert_eq!(add(body.clone()).status, status, "{body}");
    }
    for digit in ['a', 'b', 'c'] {
        let body =
            json!({ "source": link(digit), "paused": digit != 'b', "tags": [format!("tag {digit}")], "category": "x" });
        assert_eq!(add(body).status, 201);
    }
    let listed = |query: &str| {
        let answer = fixture.send("GET", &format!("{CONTENTS}?{query}"), &fixture.fields(), b"");
        fixture.hold("GET", CONTENTS, &answer);
        let answer = answer.json();
        (answer["contents"].as_array().map_or(0, Vec::len), answer["next"].as_u64())
    };
    assert_eq!(listed(""), (3, None));
    assert_eq!((listed("limit=2"), listed("limit=2&after=2")), ((2, Some(2)), (1, None)));
    assert_eq!(
        (listed("state=paused"), listed("tag=tag+b"), listed("category=y"), listed("q=X")),
        ((2, None), (1, None), (0, None), (3, None))
    );
    for bad in ["limit=0", "limit=x", "after=-1", "state=best", "q=%ff", "limit=10001"] {
        let refused = fixture.send("GET", &format!("{CONTENTS}?{bad}"), &fixture.fields(), b"");
        assert!(matches!(refused.status, 400 | 422), "{bad}");
    }
    let changed = fixture.ask(
        "PATCH",
        CONTENT,
        "1",
        Some(&json!({ "category": null, "limit_up": 1000, "ratio_max": 2.5, "tags": ["z"] })),
    );
    assert_eq!(changed.status, 200, "{}", changed.json());
    for bad in [
        json!({ "nam": "x" }),
        json!({ "name": "" }),
        json!({ "trackers": ["x"] }),
        json!({ "tags": [1] }),
        json!({ "ratio_max": -1 }),
    ] {
        assert_eq!(fixture.ask("PATCH", CONTENT, "1", Some(&bad)).status, 422, "{bad}");
    }
    assert_eq!(fixture.ask("POST", &part("queue"), "3", Some(&json!({ "to": "front" }))).status, 202);
    assert_eq!(fixture.ask("POST", &part("queue"), "3", Some(&json!({ "to": "middle" }))).status, 422);
    let before: Vec<Value> = ["1", "2", "3"].map(|id| fixture.ask("GET", CONTENT, id, None).json()).into();
    let again = Fixture::over(fixture.end());
    for (id, before) in ["1", "2", "3"].into_iter().zip(before) {
        let after = again.ask("GET", CONTENT, id, None).json();
        for field in ["name", "hashes", "category", "tags", "paused", "limit_up", "ratio_max", "rank", "added", "dir"] {
            assert_eq!(after[field], before[field], "{id} {field}");
        }
    }
    // Numbers are not given again.
    assert_eq!(again.ask("DELETE", CONTENT, "3", None).status, 200);
    let again = Fixture::over(again.end());
    let added = again.ask("POST", CONTENTS, "", Some(&json!({ "source": link('d'), "paused": true })));
    assert_eq!(added.json()["id"], 4);
}

#[test]
fn a_torrent_file_is_added_with_options_in_the_address_and_only_its_wanted_files_are_fetched() {
    let (sharer, _, peer, bytes) = sharer();
    let torrent = std::fs::read(sharer.dir.path().join("state/torrents/1.torrent")).unwrap();
    let fixture = Fixture::new();
    let fields = format!("Authorization: Bearer {}\r\nContent-Type: application/x-bittorrent\r\n", fixture.token);
    let added =
        fixture.send("POST", &format!("{CONTENTS}?paused=true&peers={peer}&tags=a,b&ratio_max=1.5"), &fields, &torrent);
    fixture.hold("POST", CONTENTS, &added);
    assert_eq!(added.status, 201, "{}", added.json());
    let id = added.json()["id"].to_string();
    assert_eq!((added.json()["tags"].clone(), added.json()["ratio_max"].as_f64()), (json!(["a", "b"]), Some(1.5)));
    let files = fixture.ask("GET", &part("files"), &id, None).json();
    let unwanted =
        files["files"].as_array().unwrap().iter().find(|file| file["playable"] == false).unwrap()["index"].to_string();
    let chosen = fixture.ask("PATCH", &part("files"), &id, Some(&json!({ "priorities": { unwanted.clone(): 0 } })));
    assert_eq!(chosen.status, 202, "{}", chosen.json());
    for bad in [
        json!({ "priorities": { "99": 4 } }),
        json!({ "priorities": { "0": 8 } }),
        json!({ "priorities": { "x": 1 } }),
        json!({}),
    ] {
        assert_eq!(fixture.ask("PATCH", &part("files"), &id, Some(&bad)).status, 422, "{bad}");
    }
    fixture.ask("POST", &part("resume"), &id, None);
    fixture.wait(&id, |content| content["completed"].is_u64());
    assert_eq!(std::fs::read(fixture.files().join("album/one.mp3")).unwrap(), bytes);
    assert!(!fixture.files().join("album/two.txt").exists());
    for bad in [&b""[..], b"nonsense", b"d4:infoi1ee", &torrent[..torrent.len() - 1]] {
        let refused = fixture.send("POST", CONTENTS, &fields, bad);
        assert_eq!(refused.status, 422);
        fixture.hold("POST", CONTENTS, &refused);
    }
}
