//! What the daemon does by itself: watched folders, the folder of what is not complete, limits by the clock, a configuration that is read
//! again.

use std::fs;

use serde_json::{Value, json};

use crate::fixture::{Fixture, PATIENCE, noise};

fn wait_for(is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn set(fixture: &Fixture, changes: Value) {
    let answer = fixture.ask("PATCH", "/api/v1/settings", "", Some(&changes));
    assert_eq!(answer.status, 200, "{}", answer.json());
}

fn contents(fixture: &Fixture) -> Vec<Value> {
    fixture.ask("GET", "/api/v1/contents", "", None).json()["contents"].as_array().unwrap().clone()
}

#[test]
fn torrents_and_links_that_appear_in_a_watched_folder_are_taken_once() {
    let fixture = Fixture::new();
    let (watched, films) = (fixture.files().join("watched"), fixture.files().join("films"));
    fs::create_dir_all(&watched).unwrap();
    for (changes, status) in [
        (json!({ "watched": { "/etc": null } }), 403),
        (json!({ "watched": { watched.to_string_lossy(): "/etc" } }), 403),
        (json!({ "watched": { "relative": null } }), 422),
    ] {
        assert_eq!(fixture.ask("PATCH", "/api/v1/settings", "", Some(&changes)).status, status, "{changes}");
    }
    set(&fixture, json!({ "watched": { watched.to_string_lossy(): films }, "add_paused": true }));
    let link = |digit: char| format!("magnet:?xt=urn:btih:{}&dn={digit}", digit.to_string().repeat(40));
    fs::write(watched.join("a.magnet"), link('a') + "\n").unwrap();
    fs::write(watched.join("again.magnet"), link('a')).unwrap();
    fs::write(watched.join("bad.torrent"), "no torrent").unwrap();
    fs::write(watched.join("other.txt"), link('b')).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", watched.join("link.torrent")).unwrap();
    wait_for(|| watched.join("a.magnet.added").exists() && watched.join("again.magnet.added").exists());
    wait_for(|| watched.join("bad.torrent.refused").exists());
    let there = contents(&fixture);
    assert_eq!((there.len(), there[0]["state"].as_str()), (1, Some("paused")));
    assert!(there[0]["dir"].as_str().unwrap().ends_with("files/films"));
    assert!(watched.join("other.txt").exists() && watched.join("link.torrent").is_symlink());
    let again = Fixture::over(fixture.end());
    fs::write(again.files().join("watched/c.magnet"), link('c')).unwrap();
    wait_for(|| contents(&again).len() == 2);
}

#[test]
fn what_is_not_complete_has_a_folder_of_its_own() {
    let sharer = Fixture::new();
    let bytes = noise(400_000, 3);
    fs::write(sharer.files().join("one.bin"), &bytes).unwrap();
    let id = sharer.share(&sharer.files().join("one.bin"));
    let shared = sharer.ask("GET", "/api/v1/contents/{id}", &id, None).json();
    let peer = sharer.ask("GET", "/api/v1/session", "", None).json()["listening"][0].clone();

    let fixture = Fixture::new();
    let incomplete = fixture.files().join("incomplete");
    set(&fixture, json!({ "incomplete_dir": incomplete }));
    let body = json!({ "source": shared["link"], "peers": [peer], "paused": true, "category": "x" });
    let added = fixture.ask("POST", "/api/v1/contents", "", Some(&body)).json();
    let id = added["id"].to_string();
    assert!(
        added["dir"].as_str().unwrap().ends_with("incomplete")
            && added["final_dir"].as_str().unwrap().ends_with("files")
    );
    // Where it goes may be changed until it is there.
    let films = fixture.files().join("films");
    let moved = fixture.ask("POST", "/api/v1/contents/{id}/move", &id, Some(&json!({ "dir": films })));
    assert_eq!((moved.status, moved.json()["state"].as_str()), (202, Some("paused")));
    fixture.ask("POST", "/api/v1/contents/{id}/resume", &id, None);
    let whole = fixture.wait(&id, |content| content["final_dir"].is_null() && content["state"] == "seeding");
    assert!(whole["dir"].as_str().unwrap().ends_with("films"));
    assert!(fs::read(films.join("one.bin")).unwrap() == bytes && !incomplete.join("one.bin").exists());
}

#[test]
fn the_slow_limits_go_by_the_clock_and_by_hand() {
    // The clock of these tests stands still on a Tuesday at noon.
    let fixture = Fixture::new();
    let slow = || fixture.ask("GET", "/api/v1/settings", "", None).json()["slow"].as_bool().unwrap();
    set(
        &fixture,
        json!({ "slow_limit_up": 5000, "slow_schedule": { "from": "08:00", "to": "16:00", "days": ["tue"] } }),
    );
    wait_for(slow);
    set(&fixture, json!({ "slow": false }));
    assert!(!slow(), "by hand it is so until the clock says otherwise");
    set(&fixture, json!({ "slow": true, "slow_schedule": { "from": "12:01", "to": "16:00", "days": ["tue"] } }));
    wait_for(|| !slow());
}
