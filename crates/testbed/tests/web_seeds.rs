//! Web seeds (BEP 19 and 17): contents come from web servers alone, several connections at once, whatever their files are called; servers that
//! lie are found out, and cost nothing where somebody else has the content.

use std::time::Duration;

use anabranch_testbed::Result;
use anabranch_testbed::fixture::{Content, Fixture, Maker, PIECE_LENGTH, TRANSFER_LIMIT};
use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::anabranch::{self, Anabranch};
use anabranch_testbed::peers::nginx::Nginx;
use anabranch_testbed::process::{Line, Process};
use anabranch_testbed::web::{WebServer, WebTrick};
use serde_json::Value;

const ANY: &str = "127.0.0.1:0";
/// Some pieces of 64 KiB, so that ranges of several pieces are asked for.
const LEN: u64 = 12_000_007;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// A content whose torrent names no tracker that answers.
fn fixture(content: Content, version: &str) -> Fixture {
    must(Fixture::new(content, version, Maker::Ours, Some("http://127.0.0.1:9/announce")))
}

/// Fetches it from `servers` alone.
fn get(fixture: &Fixture, servers: &[&WebServer], extra: &[&str]) -> Anabranch {
    let urls: Vec<String> = servers.iter().map(|server| server.url()).collect();
    let mut flags = extra.to_vec();
    urls.iter().for_each(|url| flags.extend(["--web-seed", url]));
    must(Anabranch::get(&fixture.source(), &must(fixture.folder("out")), &[], None, &flags))
}

fn comes_from(fixture: &Fixture, servers: &[&WebServer]) {
    let mut get = get(fixture, servers, &[]);
    must(get.wait_finished(TRANSFER_LIMIT));
    must(fixture.check(&must(fixture.folder("out"))));
}

#[test]
fn files_and_folders_of_all_versions_come_from_servers_alone() {
    for (content, version) in [
        (Content::Bytes(LEN), "1"),
        (Content::Tree, "1"),
        (Content::Tree, "2"),
        (Content::Tree, "hybrid"),
        (Content::Single, "hybrid"),
    ] {
        let fixture = fixture(content, version);
        let servers = [WebTrick::Honest, WebTrick::HangsUp].map(|trick| must(WebServer::start(&fixture.data, trick)));
        comes_from(&fixture, &servers.each_ref());
        assert!(servers.iter().all(|server| server.requests() > 0), "{content:?} {version}");
    }
}

#[test]
fn one_server_is_asked_over_several_connections_and_may_take_one() {
    let fixture = fixture(Content::Bytes(24 << 20), "1");
    let server = must(WebServer::start(&fixture.data, WebTrick::Honest));
    comes_from(&fixture, &[&server]);
    assert!((2..=4).contains(&server.most_connections()), "{}", server.most_connections());
    // Nothing is fetched twice, but for what was on its way at the end.
    assert!(server.sent_bytes() < (24 << 20) * 11 / 10, "{}", server.sent_bytes());
    std::fs::remove_dir_all(must(fixture.folder("out"))).unwrap();
    let server = must(WebServer::start(&fixture.data, WebTrick::OneAtATime));
    comes_from(&fixture, &[&server]);
}

#[test]
fn redirects_are_followed_and_what_one_lacks_another_has() {
    let fixture = fixture(Content::Tree, "1");
    let there = must(WebServer::start(&fixture.data, WebTrick::Honest));
    let moved = must(WebServer::start(&fixture.data, WebTrick::Redirects(there.url())));
    comes_from(&fixture, &[&moved]);
    assert!(there.requests() > 0 && moved.requests() > 0);
    std::fs::remove_dir_all(must(fixture.folder("out"))).unwrap();
    let name = largest_file(&fixture);
    let lacks = must(WebServer::start(&fixture.data, WebTrick::Lacks(name)));
    comes_from(&fixture, &[&lacks, &there]);
}

fn largest_file(fixture: &Fixture) -> String {
    let mut files: Vec<(u64, String)> = Vec::new();
    let mut folders = vec![fixture.content.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push((entry.metadata().unwrap().len(), entry.file_name().to_string_lossy().into_owned()));
            }
        }
    }
    files.into_iter().max().unwrap().1
}

#[test]
fn servers_that_cannot_be_used_are_told_of_with_the_reason() {
    let fixture = fixture(Content::Bytes(LEN), "1");
    for (trick, reason, is_final) in [
        (WebTrick::WrongBytes, "wrong data", true),
        (WebTrick::WholeFiles, "whole files only", true),
        (WebTrick::OtherLength, "12000008 bytes", true),
        (WebTrick::OtherRange, "another part", false),
        (WebTrick::Busy(1000), "503", false),
        (WebTrick::Garbage, "HTTP", false),
        (WebTrick::Lacks(String::new()), "404", false),
    ] {
        let server = must(WebServer::start(&fixture.data, trick.clone()));
        let mut get = get(&fixture, &[&server], &[]);
        let error = loop {
            let (event, _) = must(get.process.wait_event("web_seed_error", TRANSFER_LIMIT));
            if event["reason"].as_str().is_some_and(|told| told.contains(reason)) {
                break event;
            }
        };
        assert_eq!(error["final"], is_final, "{trick:?}: {error}");
        assert_eq!(error["url"], server.url().trim_end_matches('/'), "{trick:?}");
    }
}

#[test]
fn liars_cost_nothing_that_others_have() {
    let fixture = fixture(Content::Bytes(LEN), "1");
    for trick in [
        WebTrick::WrongBytes,
        WebTrick::Endless,
        WebTrick::Short,
        WebTrick::Drips,
        WebTrick::Silent,
        WebTrick::OtherRange,
        WebTrick::Garbage,
    ] {
        let (_share, address) = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &[]));
        let server = must(WebServer::start(&fixture.data, trick.clone()));
        let out = must(fixture.folder("out"));
        let mut get = must(Anabranch::get(&fixture.source(), &out, &[address], None, &["--web-seed", &server.url()]));
        get.wait_finished(TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{trick:?}: {error}"));
        must(fixture.check(&out));
        std::fs::remove_dir_all(out).unwrap();
    }
}

#[test]
fn none_is_asked_where_the_user_wants_none() {
    let fixture = fixture(Content::Bytes(LEN), "1");
    let server = must(WebServer::start(&fixture.data, WebTrick::Honest));
    let mut off = get(&fixture, &[&server], &["--web-seeds", "off", "--give-up", "3s"]);
    let usage = must(off.process.wait(TRANSFER_LIMIT));
    assert_ne!(usage.status.code(), Some(0));
    assert_eq!(server.requests(), 0);
}

/// `create --web-seed` names it, and so a stranger may have.
fn named_by_torrent(fixture: &Fixture, url: &str) -> Process {
    let torrent = fixture.torrent.with_file_name("named.torrent");
    let mut create = must(anabranch::command(None));
    create.arg("create").arg(&fixture.content).arg("-o").arg(&torrent).args(["--force", "--web-seed", url]);
    must(Process::run("anabranch create", &mut create, TRANSFER_LIMIT));
    let mut get = must(anabranch::command(None));
    get.arg("get").arg(&torrent).arg("-o").arg(must(fixture.folder("out"))).arg("--json");
    must(Process::spawn("anabranch get", &mut get))
}

#[test]
fn a_torrent_names_none_in_the_local_network() {
    let fixture = fixture(Content::Bytes(LEN), "1");
    let server = must(WebServer::start(&fixture.data, WebTrick::Honest));
    let mut get = named_by_torrent(&fixture, &server.url());
    let (event, _) = must(get.wait_event("web_seed_error", TRANSFER_LIMIT));
    let reason = event["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("local network") && reason.contains("--web-seed"), "{event}");
    assert_eq!(event["final"], true);
    assert_eq!(server.requests(), 0);
}

#[test]
fn a_torrent_names_those_in_the_world_and_they_redirect_no_nearer() {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    let namespace = must(Namespace::new());
    for host in ["198.51.100.1", "198.51.100.2", "10.0.0.5"] {
        must(namespace.add_address("lo", &format!("{host}/32")));
    }
    let fixture = fixture(Content::Bytes(LEN), "1");
    must(namespace.enter(|| {
        let near = WebServer::start_at("127.0.0.1:8080", &fixture.data, WebTrick::Honest)?;
        let site = WebServer::start_at("10.0.0.5:8080", &fixture.data, WebTrick::Honest)?;
        let world = WebServer::start_at("198.51.100.1:80", &fixture.data, WebTrick::Honest)?;
        for (at, to, is_followed) in [
            ("198.51.100.2:8001", near.url(), false),
            ("198.51.100.2:8002", site.url(), false),
            ("198.51.100.2:8003", "http://localhost:8080/".to_owned(), false),
            ("198.51.100.2:8004", world.url(), true),
        ] {
            let moved = WebServer::start_at(at, &fixture.data, WebTrick::Redirects(to))?;
            let mut get = named_by_torrent(&fixture, &moved.url());
            if is_followed {
                get.wait_event("finished", TRANSFER_LIMIT)?;
            } else {
                let (event, _) = get.wait_event("web_seed_error", TRANSFER_LIMIT)?;
                assert!(event["reason"].as_str().is_some_and(|reason| reason.contains("redirects")), "{event}");
            }
        }
        assert_eq!(near.requests() + site.requests(), 0);
        Ok(())
    }));
    must(fixture.check(&must(fixture.folder("out"))));
}

/// A server of BEP 17, which a torrent names ("httpseeds"), hands out pieces; one in the local network is not asked.
#[test]
fn servers_of_pieces_are_asked_by_piece() {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    let namespace = must(Namespace::new());
    must(namespace.add_address("lo", "198.51.100.1/32"));
    let fixture = fixture(Content::Bytes(LEN), "1");
    let name = fixture.content.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let trick = WebTrick::Pieces(name, PIECE_LENGTH.into());
    let get = |server: &WebServer| {
        let made = std::fs::read(&fixture.torrent).unwrap();
        // The key goes where it belongs by its name: right before the info dictionary.
        let at = made.windows(7).position(|seven| seven == b"4:infod").unwrap();
        let url = format!("http://{}/seed.php", server.address);
        let key = format!("9:httpseedsl{}:{url}e", url.len());
        let torrent = fixture.torrent.with_file_name("pieces.torrent");
        std::fs::write(&torrent, [&made[..at], key.as_bytes(), &made[at..]].concat()).unwrap();
        let mut get = anabranch::command(None)?;
        get.arg("get").arg(&torrent).arg("-o").arg(fixture.folder("out")?).arg("--json");
        Process::spawn("anabranch get", &mut get)
    };
    must(namespace.enter(|| {
        let near = WebServer::start_at("127.0.0.1:0", &fixture.data, trick.clone())?;
        let (error, _) = get(&near)?.wait_event("web_seed_error", TRANSFER_LIMIT)?;
        assert!(error["reason"].as_str().is_some_and(|reason| reason.contains("local network")), "{error}");
        assert_eq!(near.requests(), 0);
        let world = WebServer::start_at("198.51.100.1:80", &fixture.data, trick)?;
        get(&world)?.wait_event("finished", TRANSFER_LIMIT)?;
        assert!(world.sent_bytes() < LEN * 11 / 10, "{}", world.sent_bytes());
        Ok(())
    }));
    must(fixture.check(&must(fixture.folder("out"))));
}

#[test]
fn over_https_what_the_server_speaks_best_is_spoken() {
    let fixture = fixture(Content::Bytes(LEN), "1");
    for (is_2, protocol) in [(true, "HTTP/2.0"), (false, "HTTP/1.1")] {
        let folder = must(fixture.folder(protocol.trim_start_matches("HTTP/")));
        let nginx = must(Nginx::start(&fixture.data, &folder, is_2));
        let mut get = must(anabranch::command(None));
        get.arg("get").arg(&fixture.torrent).arg("-o").arg(folder.join("out")).args(["--json", "--web-seed"]);
        get.arg(nginx.url()).env("SSL_CERT_FILE", &nginx.certificate);
        let mut get = must(Process::spawn("anabranch get", &mut get));
        must(get.wait_event("finished", TRANSFER_LIMIT));
        must(get.wait_success(TRANSFER_LIMIT));
        must(fixture.check(&folder.join("out")));
        let requests = must(nginx.requests());
        assert!(!requests.is_empty() && requests.iter().all(|(spoken, _)| spoken == protocol), "{requests:?}");
        // Connections are kept.
        let connections: std::collections::BTreeSet<u64> = requests.iter().map(|(_, connection)| *connection).collect();
        assert!(connections.len() <= 4 && connections.len() < requests.len(), "{requests:?}");
    }
}

#[test]
fn limits_hold_and_events_tell_as_for_peers() {
    let fixture = fixture(Content::Bytes(4 << 20), "1");
    let server = must(WebServer::start(&fixture.data, WebTrick::Honest));
    let mut get = get(&fixture, &[&server], &["--limit-down", "1M"]);
    let (connected, _) = must(get.process.wait_event("peer_connected", TRANSFER_LIMIT));
    assert_eq!((connected["client"].as_str(), &connected["encryption"]), (Some("-WS0000-"), &Value::Null));
    let (_, at) = must(get.process.wait_event("piece", TRANSFER_LIMIT));
    must(get.wait_finished(TRANSFER_LIMIT));
    // Four MiB at one a second: no machine is too slow for that.
    assert!(at.elapsed() > Duration::from_secs(2));
    let said: Vec<Value> = get.process.rest().iter().map(Line::json).collect();
    assert!(said.iter().all(|event| event["event"] != "web_seed_error"), "{said:?}");
}
