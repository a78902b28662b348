//! The daemon and qBittorrent itself, asked the same by the package that qBittorrent's clients in Python use: the same calls, the same
//! answers, of the same shapes. What is different is listed here, and in docs/daemon.md.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anabranch_testbed::fixture::{Content, Fixture, Maker};
use anabranch_testbed::peers::anabranch;
use anabranch_testbed::peers::libtorrent::python;
use anabranch_testbed::peers::qbittorrent::QBittorrent;
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, Result};
use serde_json::{Map, Value};

/// Nothing takes longer, with both cores busy elsewhere.
const LIMIT: Duration = Duration::from_secs(240);

/// Calls that qBittorrent 4.5, which Debian has, does not know, and later ones do.
const LATER: [&str; 1] = ["torrents/count"];
/// Fields of its answers that later ones have no more, or that are not here.
const NOT_HERE: [(&str, &[&str]); 1] = [("torrents/files", &["id"])];

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Asks a server all there is to ask.
fn ask(url: &str, password: &str, torrent: &Path, data: &Path, elsewhere: &Path) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/qbittorrent_calls.py");
    let magnet = format!("magnet:?xt=urn:btih:{}&dn=linked", "a".repeat(40));
    let mut command = Command::new(must(python()));
    command.arg("-B").arg(script).args(["--url", url, "--user", "admin", "--password", password, "--magnet", &magnet]);
    command.arg("--torrent").arg(torrent).arg("--data").arg(data).arg("--elsewhere").arg(elsewhere);
    let (lines, _) = must(Process::run("qbittorrent_calls.py", &mut command, LIMIT));
    lines.last().map(|line| line.json()).unwrap_or_default()
}

/// A copy of the content, and a folder for it to be moved to.
fn folders(fixture: &Fixture, name: &str) -> (PathBuf, PathBuf) {
    let (data, elsewhere) =
        (must(fixture.folder(&format!("{name}/data"))), must(fixture.folder(&format!("{name}/elsewhere"))));
    let copied = Command::new("cp").arg("-a").arg(fixture.data.join(".")).arg(&data).status();
    assert!(copied.is_ok_and(|status| status.success()));
    (data, elsewhere)
}

/// Where paths differ they differ by their folders alone.
fn without_folders(text: &str, folders: &[&PathBuf]) -> String {
    folders
        .iter()
        .enumerate()
        .fold(text.to_owned(), |text, (at, folder)| text.replace(&*folder.to_string_lossy(), &format!("FOLDER{at}")))
}

/// Everything that is in `theirs` is in `ours`, and of the same type.
fn compare(call: &str, theirs: &Value, ours: &Value, at: &str, odd: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            for (name, value) in theirs {
                let is_known = NOT_HERE.iter().any(|(other, fields)| *other == call && fields.contains(&name.as_str()));
                match ours.get(name) {
                    Some(own) => compare(call, value, own, &format!("{at}.{name}"), odd),
                    None if is_known => {}
                    None => odd.push(format!("{call}: {at}.{name} is not here")),
                }
            }
        }
        (Value::Array(theirs), Value::Array(ours)) => match (theirs.first(), ours.first()) {
            (Some(theirs), Some(ours)) => compare(call, theirs, ours, &format!("{at}[]"), odd),
            _ if theirs == ours => {}
            _ => odd.push(format!("{call}: {at} is {theirs:?} there and {ours:?} here")),
        },
        _ if theirs == ours => {}
        _ => odd.push(format!("{call}: {at} is {theirs} there and {ours} here")),
    }
}

/// With all numbers written in the same way.
fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().into(),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
        value => value.clone(),
    }
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}"))
}

#[test]
fn qbittorrents_clients_get_the_answers_that_qbittorrent_gives() {
    let fixture = must(Fixture::new(Content::Tree, "1", Maker::Ours, Some("http://127.0.0.1:1/announce")));
    let torrent = fixture.torrent.clone();

    let (data, elsewhere) = folders(&fixture, "theirs");
    let server = must(QBittorrent::empty(&must(fixture.folder("profile")), &data));
    let theirs = ask(&format!("http://{}", server.api), "adminadmin", &torrent, &data, &elsewhere);
    let theirs = without_folders(&theirs.to_string(), &[&data, &elsewhere]);
    drop(server);

    let (data, elsewhere) = folders(&fixture, "ours");
    let state = must(fixture.folder("state"));
    let mut command = must(anabranch::command(None));
    command.args(["daemon", "--json", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]);
    command.arg("--dir").arg(&data).arg("--allow-dir").arg(&elsewhere).arg("--state-dir").arg(&state);
    let mut daemon = must(Process::spawn("anabranch daemon", &mut command));
    let (serving, _) = must(daemon.wait_event("serving", LIMIT));
    let url = serving["url"].as_str().unwrap_or_default().to_owned();
    // One of the tokens is a password under any name.
    let token = std::fs::read_to_string(state.join("token")).map_err(Error::file(state.join("token")));
    let ours = ask(url.trim_end_matches('/'), must(token).trim(), &torrent, &data, &elsewhere);
    let ours = without_folders(&ours.to_string(), &[&data, &elsewhere]);
    // The last thing that it was asked is to end.
    must(daemon.wait_success(LIMIT));

    let (theirs, ours): (Value, Value) =
        (serde_json::from_str(&theirs).unwrap_or_default(), serde_json::from_str(&ours).unwrap_or_default());
    let mut odd = Vec::new();
    for (call, shape) in object(&theirs["calls"]) {
        let own = &ours["calls"][call];
        match call.as_str() {
            "app/preferences" => {
                // Those that there are here are called as there, but for those that came later.
                let (theirs, ours) = (object(shape), object(own));
                for (name, own) in ours.iter().filter(|(name, _)| theirs.contains_key(*name)) {
                    compare(call, &theirs[name], own, name, &mut odd);
                }
            }
            call if LATER.contains(&call) => {}
            call => compare(call, shape, own, "", &mut odd),
        }
    }
    for (name, value) in object(&theirs["values"]) {
        let own = &ours["values"][name];
        if plain(value) != plain(own) {
            odd.push(format!("{name}: {value} there, {own} here"));
        }
    }
    assert!(odd.is_empty(), "{}", odd.join("\n"));
}
