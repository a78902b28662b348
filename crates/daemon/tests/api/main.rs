//! The API as its users meet it, in one process: every answer is held against `openapi.json`.

mod attacks;
mod automatic;
mod bulk;
mod contents;
mod events;
mod fixture;
mod live;
mod many;
mod qbittorrent;
mod schema;
mod tls;

use std::collections::{BTreeMap, BTreeSet};

use fixture::Fixture;
use serde_json::{Value, json};

#[test]
fn every_path_of_the_document_is_served_and_answers_as_it_says() {
    let fixture = Fixture::new();
    std::fs::write(fixture.files().join("a.txt"), fixture::noise(100_000, 1)).unwrap();
    let id = fixture.share(&fixture.files().join("a.txt"));
    let document = fixture.document.clone();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "patch", "delete"].iter().filter(|method| operations[**method].is_object())
        {
            // A wrong method, a missing content and a wrong body are problems; what is there answers as described.
            let shown = path.replace("{file}", "0");
            if path == "/api/v1/events" || *method != "get" {
                let missing = fixture.send("OPTIONS", &shown.replace("{id}", &id), &fixture.fields(), b"{}");
                assert_eq!(missing.status, 405, "{path}");
                fixture.hold(method, path, &missing);
                continue;
            }
            let fields = fixture.fields();
            let answer = fixture.send("GET", &shown.replace("{id}", &id), &fields, b"");
            assert!(answer.status < 300, "{path}: {answer:?}");
            fixture.hold("GET", path, &answer);
            if path.contains("{id}") {
                let missing = fixture.send("GET", &shown.replace("{id}", "999"), &fields, b"");
                assert_eq!(missing.status, 404, "{path}");
                fixture.hold("GET", path, &missing);
            }
        }
    }
    for strange in [
        "/api/v1/nothing",
        "/api/v2/contents",
        "/api/v1/contents/1/nothing",
        "/x/y",
        "/page.htm",
        "/api/v1/contents/1/files/2",
    ] {
        assert_eq!(fixture.send("GET", strange, &fixture.fields(), b"").status, 404, "{strange}");
    }
}

#[test]
fn settings_are_kept_and_what_they_must_be_is_said() {
    let fixture = Fixture::new();
    let set = |body: Value| fixture.ask("PATCH", "/api/v1/settings", "", Some(&body));
    let films = fixture.files().join("films");
    let changed = set(json!({ "limit_up": 5_000_000, "downloads_max": 3, "categories": { "films": films } }));
    assert_eq!(changed.status, 200, "{}", changed.json());
    for (body, status, field) in [
        (json!({ "limit_up": "fast" }), 422, "limit_up"),
        (json!({ "dir": "relative" }), 422, ""),
        (json!({ "dir": "/etc" }), 403, ""),
        (json!({ "categories": { "x": "/etc" } }), 403, ""),
        (json!({ "speed": 5 }), 422, "settings"),
    ] {
        let refused = set(body.clone());
        assert_eq!(refused.status, status, "{body}");
        assert_eq!(refused.json()["field"].as_str().unwrap_or_default(), field, "{body}");
    }
    let dir = fixture.end();
    let again = Fixture::over(dir);
    let kept = again.ask("GET", "/api/v1/settings", "", None).json();
    assert_eq!((kept["limit_up"].as_u64(), kept["downloads_max"].as_u64()), (Some(5_000_000), Some(3)));
    assert!(kept["categories"]["films"].as_str().unwrap().ends_with("films"));
}

#[test]
fn the_page_is_whole_and_asks_for_nothing_from_elsewhere() {
    let fixture = Fixture::new();
    let page = fixture.send("GET", "/", "", b"");
    assert_eq!(page.status, 200);
    let text = String::from_utf8(page.body.clone()).unwrap();
    assert!(page.field("content-security-policy").unwrap().contains("default-src 'none'"));
    for part in text.split(['"', '\'']).filter(|part| part.starts_with('/') && part.len() > 1 && part.contains('.')) {
        let answer = fixture.send("GET", part, "", b"");
        // A folder that is shown as an example is none of its parts.
        assert!(answer.status == 200 || part == "/srv/photos", "{part}");
        let text = String::from_utf8_lossy(&answer.body);
        let elsewhere: Vec<&str> = text.matches("://").collect();
        let named = text.matches("http://www.w3.org/").count();
        assert_eq!(elsewhere.len(), named, "{part} names something elsewhere");
        if let Some(tag) = answer.field("etag") {
            let fields = format!("If-None-Match: {tag}\r\n");
            assert_eq!(fixture.send("GET", part, &fields, b"").status, 304);
        }
    }
    assert!(!text.contains(" style=") && !text.contains("<script>"), "the policy forbids it");
}

/// Samples of `/metrics` by name and labels, each held against the text format: a head before its samples, no sample twice.
fn samples(fixture: &Fixture) -> BTreeMap<String, u64> {
    let metrics = fixture.send("GET", "/metrics", &fixture.fields(), b"");
    assert!(metrics.field("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let text = String::from_utf8(metrics.body).unwrap();
    let (mut samples, mut described) = (BTreeMap::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("# ") {
            let mut words = head.splitn(3, ' ');
            let (what, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            assert!(
                !rest.is_empty() && (what == "HELP" || what == "TYPE" && ["gauge", "counter"].contains(&rest)),
                "{line}"
            );
            assert!(described.insert((what.to_owned(), name.to_owned())), "{line} is there twice");
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) =
            sample.split_once('{').map_or((sample, ""), |(name, rest)| (name, rest.strip_suffix('}').unwrap()));
        assert!(name.starts_with("anabranch_"), "{line}");
        for what in ["HELP", "TYPE"] {
            assert!(described.contains(&(what.to_owned(), name.to_owned())), "{line} has no {what}");
        }
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            let (label, value) = label.split_once('=').unwrap();
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap();
            assert!(
                ["state", "protocol"].contains(&label) && value.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                "{line}"
            );
        }
        assert!(samples.insert(sample.to_owned(), value.parse().unwrap()).is_none(), "{line} is there twice");
    }
    samples
}

#[test]
fn metrics_are_in_prometheus_text_by_protocol_with_few_labels() {
    let (fixture, other) = (Fixture::new(), Fixture::new());
    let before = samples(&fixture);
    assert_eq!(before["anabranch_contents{state=\"seeding\",protocol=\"torrent\"}"], 0);
    std::fs::write(fixture.files().join("a.bin"), fixture::noise(100_000, 1)).unwrap();
    let add = |fixture: &Fixture, body: &Value| {
        let added = fixture.ask("POST", "/api/v1/contents", "", Some(body));
        assert_eq!(added.status, 201, "{}", added.json());
        added.json()["id"].to_string()
    };
    fixture.share(&fixture.files().join("a.bin"));
    let sent = add(&fixture, &json!({ "bulk": { "send": fixture.files().join("a.bin") } }));
    let live = add(&fixture, &json!({ "live": {} }));
    fixture.wait(&sent, |content| content["state"] == "waiting");
    fixture.wait(&live, |content| content["state"] == "waiting");
    let ticket =
        fixture.ask("GET", "/api/v1/contents/{id}/reach", &sent, None).json()["ticket"].as_str().unwrap().to_owned();
    let received = add(&other, &json!({ "source": ticket }));
    other.wait(&received, |content| content["state"] == "complete");
    fixture.wait(&sent, |content| content["state"] == "complete");
    let after = samples(&fixture);
    for (state, protocol, count) in [
        ("seeding", "torrent", 1),
        ("complete", "bulk", 1),
        ("waiting", "live", 1),
        ("waiting", "bulk", 0),
        ("seeding", "ppspp", 0),
    ] {
        assert_eq!(
            after[&format!("anabranch_contents{{state=\"{state}\",protocol=\"{protocol}\"}}")],
            count,
            "{state} {protocol}"
        );
    }
    for (protocol, bytes) in [("bulk", 100_000), ("torrent", 0), ("live", 0), ("ppspp", 0)] {
        assert_eq!(after[&format!("anabranch_sent_bytes_total{{protocol=\"{protocol}\"}}")], bytes, "{protocol}");
    }
    assert_eq!(samples(&other)["anabranch_received_bytes_total{protocol=\"bulk\"}"], 100_000);
    // Whatever there is, there are no more of them.
    assert!(before.keys().eq(after.keys()) && before.len() < 120, "{}", before.len());
}
