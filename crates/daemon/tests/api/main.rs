//! The API as its users meet it, in one process: every answer is held against `openapi.json`.

mod attacks;
mod automatic;
mod bulk;
mod contents;
mod events;
mod live;
mod many;
mod qbittorrent;
mod schema;
mod tls;
mod world;

use serde_json::{Value, json};
use world::World;

#[test]
fn every_path_of_the_document_is_served_and_answers_as_it_says() {
    let world = World::new();
    std::fs::write(world.files().join("a.txt"), world::noise(100_000, 1)).unwrap();
    let id = world.share(&world.files().join("a.txt"));
    let document = world.document.clone();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "patch", "delete"].iter().filter(|method| operations[**method].is_object())
        {
            // A wrong method, a missing content and a wrong body are problems; what is there answers as described.
            let shown = path.replace("{file}", "0");
            if path == "/api/v1/events" || *method != "get" {
                let missing = world.send("OPTIONS", &shown.replace("{id}", &id), &world.fields(), b"{}");
                assert_eq!(missing.status, 405, "{path}");
                world.hold(method, path, &missing);
                continue;
            }
            let fields = world.fields();
            let answer = world.send("GET", &shown.replace("{id}", &id), &fields, b"");
            assert!(answer.status < 300, "{path}: {answer:?}");
            world.hold("GET", path, &answer);
            if path.contains("{id}") {
                let missing = world.send("GET", &shown.replace("{id}", "999"), &fields, b"");
                assert_eq!(missing.status, 404, "{path}");
                world.hold("GET", path, &missing);
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
        assert_eq!(world.send("GET", strange, &world.fields(), b"").status, 404, "{strange}");
    }
}

#[test]
fn settings_are_kept_and_what_they_must_be_is_said() {
    let world = World::new();
    let set = |body: Value| world.ask("PATCH", "/api/v1/settings", "", Some(&body));
    let films = world.files().join("films");
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
    let dir = world.end();
    let again = World::over(dir);
    let kept = again.ask("GET", "/api/v1/settings", "", None).json();
    assert_eq!((kept["limit_up"].as_u64(), kept["downloads_max"].as_u64()), (Some(5_000_000), Some(3)));
    assert!(kept["categories"]["films"].as_str().unwrap().ends_with("films"));
}

#[test]
fn the_page_is_whole_and_asks_for_nothing_from_elsewhere() {
    let world = World::new();
    let page = world.send("GET", "/", "", b"");
    assert_eq!(page.status, 200);
    let text = String::from_utf8(page.body.clone()).unwrap();
    assert!(page.field("content-security-policy").unwrap().contains("default-src 'none'"));
    for part in text.split(['"', '\'']).filter(|part| part.starts_with('/') && part.len() > 1 && part.contains('.')) {
        let answer = world.send("GET", part, "", b"");
        // A folder that is shown as an example is none of its parts.
        assert!(answer.status == 200 || part == "/srv/photos", "{part}");
        let text = String::from_utf8_lossy(&answer.body);
        let elsewhere: Vec<&str> = text.matches("://").collect();
        let named = text.matches("http://www.w3.org/").count();
        assert_eq!(elsewhere.len(), named, "{part} names something elsewhere");
        if let Some(tag) = answer.field("etag") {
            let fields = format!("If-None-Match: {tag}\r\n");
            assert_eq!(world.send("GET", part, &fields, b"").status, 304);
        }
    }
    assert!(!text.contains(" style=") && !text.contains("<script>"), "the policy forbids it");
}

#[test]
fn metrics_are_in_prometheus_text_with_few_labels() {
    let world = World::new();
    let metrics = world.send("GET", "/metrics", &world.fields(), b"");
    let text = String::from_utf8(metrics.body.clone()).unwrap();
    assert!(metrics.field("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("anabranch_") && value.parse::<u64>().is_ok(), "{line}");
    }
    assert!(text.contains("anabranch_contents{state=\"seeding\"} 0") && text.lines().count() < 100);
}
