//! qBittorrent's WebAPI as strangers and their programs meet it. That its answers are those of qBittorrent itself is tested beside it, in
//! the testbed.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::{Answer, Fixture, PATIENCE, noise};

const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";

fn hash(digit: char) -> String {
    digit.to_string().repeat(40)
}

fn link(digit: char) -> String {
    format!("magnet%3A%3Fxt%3Durn%3Abtih%3A{}%26dn%3Dname%2B{digit}", hash(digit))
}

impl Fixture {
    fn look(&self, target: &str) -> Answer {
        self.send("GET", &format!("/api/v2/{target}"), &self.bearer(), b"")
    }

    fn act(&self, target: &str, form: &str) -> Answer {
        self.send("POST", &format!("/api/v2/{target}"), &format!("{}{FORM}", self.bearer()), form.as_bytes())
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.token)
    }

    fn log_in(&self, user: &str, password: &str) -> Answer {
        self.send("POST", "/api/v2/auth/login", FORM, format!("username={user}&password={password}").as_bytes())
    }

    fn torrents(&self, query: &str) -> Vec<Value> {
        let answer = self.look(&format!("torrents/info?{query}"));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json().as_array().unwrap().clone()
    }
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[test]
fn a_name_and_a_password_or_a_token_let_in_and_nothing_else_does() {
    let fixture = Fixture::new();
    for target in ["app/version", "torrents/info", "sync/maindata", "transfer/info", "torrents/nothing", "x/y"] {
        let refused = fixture.send("GET", &format!("/api/v2/{target}"), "", b"");
        assert!(matches!(refused.status, 403 | 405), "{target}: {refused:?}");
    }
    // Nobody set a password: one of the tokens is one.
    assert_eq!(text(&fixture.log_in("admin", "adminadmin")), "Fails.");
    let by_token = fixture.log_in("anybody", &fixture.token);
    assert_eq!(text(&by_token), "Ok.");
    let cookie = by_token.field("set-cookie").unwrap();
    assert!(
        cookie.starts_with("SID=") && cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );

    let set = |body: Value| fixture.ask("PUT", "/api/v1/password", "", Some(&body));
    assert_eq!(set(json!({ "user": "me", "password": "short" })).status, 422);
    assert_eq!(set(json!({ "user": "me", "password": "correct horse" })).json(), json!({ "user": "me" }));
    for (user, password) in [("me", "wrong+horse"), ("you", "correct+horse"), ("", ""), ("me", "")] {
        assert_eq!(text(&fixture.log_in(user, password)), "Fails.", "{user} {password}");
    }
    let answer = fixture.log_in("me", "correct+horse");
    let cookie = answer.field("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let shown = format!("Cookie: {cookie}\r\n");
    assert_eq!(text(&fixture.send("GET", "/api/v2/app/webapiVersion", &shown, b"")), "2.11.4");
    assert_eq!(fixture.send("GET", "/api/v1/session", &shown, b"").status, 200);
    // Other pages have the cookie sent from nowhere, and are refused where it is.
    let foreign = format!("{shown}{FORM}Origin: http://evil.example\r\n");
    assert_eq!(fixture.send("POST", "/api/v2/app/shutdown", &foreign, b"").status, 403);
    assert_eq!(fixture.send("POST", "/api/v2/auth/logout", &shown, b"").status, 200);
    assert_eq!(fixture.send("GET", "/api/v2/app/version", &shown, b"").status, 403);
    assert_eq!(fixture.ask("DELETE", "/api/v1/password", "", None).json(), json!({ "user": null }));
    assert_eq!(text(&fixture.log_in("me", "correct+horse")), "Fails.");

    // Who may look may not act.
    let read_token = std::fs::read_to_string(fixture.dir.path().join("state/token-read")).unwrap();
    let shown = format!("Authorization: Bearer {}\r\n{FORM}", read_token.trim());
    assert_eq!(fixture.send("GET", "/api/v2/torrents/info", &shown, b"").status, 200);
    for target in ["torrents/add", "torrents/delete", "app/setPreferences", "app/shutdown", "transfer/setUploadLimit"] {
        assert_eq!(fixture.send("POST", &format!("/api/v2/{target}"), &shown, b"hashes=all").status, 403, "{target}");
        // Links elsewhere lead to what changes something.
        assert_eq!(fixture.look(target).status, 405, "{target}");
    }
}

#[test]
fn torrents_are_added_listed_in_pages_changed_and_removed() {
    let fixture = Fixture::new();
    let urls = ['c', 'a', 'b'].map(link).join("%0A");
    let added = fixture
        .act("torrents/add", &format!("urls={urls}&stopped=true&category=films&tags=x,y&ratioLimit=2&dlLimit=5"));
    assert_eq!((added.status, text(&added)), (200, "Ok.".into()));
    assert_eq!(text(&fixture.act("torrents/add", &format!("urls={}", link('a')))), "Fails.");
    assert_eq!(text(&fixture.act("torrents/add", "urls=nonsense")), "Fails.");
    assert_eq!(text(&fixture.act("torrents/add", &format!("urls={}&stopped=true", hash('d')))), "Ok.");
    assert_eq!(text(&fixture.look("torrents/count")), "4");
    let names = |query: &str| -> Vec<String> {
        let name = |torrent: &Value| torrent["hash"].as_str().unwrap()[..1].to_owned();
        fixture.torrents(query).iter().map(name).collect()
    };
    assert_eq!(names("sort=hash"), ["a", "b", "c", "d"]);
    assert_eq!(names("sort=hash&reverse=true&limit=2&offset=1"), ["c", "b"]);
    assert_eq!(names("sort=hash&offset=-1"), ["d"]);
    assert_eq!(names("filter=stopped&category=films&sort=hash"), ["a", "b", "c"]);
    assert_eq!(
        (names("category="), names("tag="), names("tag=x&sort=hash").len()),
        (vec!["d".into()], vec!["d".into()], 3)
    );
    assert_eq!(names(&format!("hashes={}%7C{}&sort=hash", hash('b').to_uppercase(), hash('f'))), ["b"]);
    assert_eq!(names("filter=downloading").len(), 4);
    assert_eq!(names("filter=running").len(), 0);
    for torrent in fixture.torrents("category=films") {
        assert_eq!((torrent["ratio_limit"].as_f64(), torrent["dl_limit"].as_u64()), (Some(2.0), Some(5)));
        assert_eq!((torrent["state"].as_str(), torrent["tags"].as_str()), (Some("stoppedDL"), Some("x, y")));
    }
    let rank = |to: &str| fixture.act(&format!("torrents/{to}"), &format!("hashes={}", hash('d'))).status;
    assert_eq!(names("sort=priority"), ["c", "a", "b", "d"]);
    assert_eq!((rank("increasePrio"), names("sort=priority")), (200, ["c", "a", "d", "b"].map(String::from).into()));
    assert_eq!((rank("topPrio"), names("sort=priority")), (200, ["d", "c", "a", "b"].map(String::from).into()));
    assert_eq!((rank("decreasePrio"), names("sort=priority")), (200, ["c", "d", "a", "b"].map(String::from).into()));
    for (target, form, status) in [
        ("torrents/setShareLimits", format!("hashes={}&ratioLimit=1", hash('a')), 400),
        ("torrents/setLocation", "hashes=all&location=/etc".to_owned(), 403),
        ("torrents/setLocation", "hashes=all&location=".to_owned(), 400),
        ("torrents/addTags", format!("hashes={}&tags=a%0Ab", hash('a')), 400),
        ("torrents/rename", format!("hash={}&name=", hash('a')), 409),
        ("torrents/rename", "hash=nothing&name=x".to_owned(), 404),
        ("torrents/addTrackers", format!("hash={}&urls=file:///etc/passwd", hash('a')), 400),
        ("torrents/createCategory", "category=a%2Cb".to_owned(), 409),
        ("torrents/createCategory", "category=x&savePath=/etc".to_owned(), 403),
        ("torrents/filePrio", format!("hash={}&id=0&priority=1", hash('a')), 409),
        ("torrents/add", format!("urls={}&savepath=/etc", link('e')), 403),
        ("app/setPreferences", "json=nonsense".to_owned(), 400),
        ("app/setPreferences", "json=%7B%22save_path%22%3A%22/etc%22%7D".to_owned(), 403),
        ("transfer/setSpeedLimitsMode", "mode=fast".to_owned(), 400),
        ("torrents/nothing", "hashes=all".to_owned(), 404),
        ("rss/items", String::new(), 404),
    ] {
        let answer = fixture.act(target, &form);
        assert_eq!(answer.status, status, "{target} {form}: {}", text(&answer));
    }
    assert_eq!(
        fixture.act("torrents/delete", &format!("hashes={}%7C{}&deleteFiles=true", hash('a'), hash('b'))).status,
        200
    );
    assert_eq!(names("sort=hash"), ["c", "d"]);
    let again = Fixture::over(fixture.end());
    assert_eq!(again.torrents("").len(), 2);
}

/// A form with one file in it.
fn with_file(file: &[u8], fields: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        body.extend(format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").bytes());
    }
    body.extend(b"--b\r\nContent-Disposition: form-data; name=\"torrents\"; filename=\"../../x.torrent\"\r\n\r\n");
    body.extend(file);
    body.extend(b"\r\n--b--\r\n");
    body
}

#[test]
fn torrent_files_come_in_forms_and_from_addresses_that_are_not_near() {
    let sharer = Fixture::new();
    std::fs::create_dir_all(sharer.files().join("album")).unwrap();
    std::fs::write(sharer.files().join("album/one"), noise(300_000, 1)).unwrap();
    std::fs::write(sharer.files().join("album/two"), noise(70_000, 2)).unwrap();
    sharer.share(&sharer.files().join("album"));
    let torrent = std::fs::read(sharer.dir.path().join("state/torrents/1.torrent")).unwrap();

    let fixture = Fixture::fetching_from(&["127.0.0.1"]);
    let fields = format!("{}Content-Type: multipart/form-data; boundary=b\r\n", fixture.bearer());
    let add = |body: &[u8]| fixture.send("POST", "/api/v2/torrents/add", &fields, body);
    let added = add(&with_file(&torrent, &[("stopped", "true"), ("rename", "renamed")]));
    assert_eq!((added.status, text(&added)), (200, "Ok.".into()));
    assert_eq!(add(&with_file(b"no torrent", &[])).status, 415);
    assert_eq!(add(b"--b\r\nnonsense").status, 400);
    let torrents = fixture.torrents("");
    let hash = torrents[0]["hash"].as_str().unwrap().to_owned();
    assert_eq!((torrents[0]["name"].as_str(), torrents[0]["size"].as_u64()), (Some("renamed"), Some(370_000)));
    assert!(torrents[0]["content_path"].as_str().unwrap().ends_with("files/album"));
    let files = fixture.look(&format!("torrents/files?hash={hash}")).json();
    assert_eq!((files[0]["name"].as_str(), files[1]["size"].as_u64()), (Some("album/one"), Some(70_000)));
    assert_eq!(fixture.look(&format!("torrents/files?hash={hash}&indexes=9")).status, 409);
    assert_eq!(fixture.look(&format!("torrents/export?hash={hash}")).body, torrent);
    assert_eq!(fixture.act("torrents/filePrio", &format!("hash={hash}&id=1&priority=0")).status, 200);
    assert_eq!(fixture.torrents("")[0]["size"].as_u64(), Some(300_000));
    assert_eq!(fixture.act("torrents/delete", &format!("hashes={hash}&deleteFiles=false")).status, 200);

    // A server that the user named serves it, also by a way around; one that nobody named is not asked.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap();
    let bytes = torrent.clone();
    std::thread::spawn(move || {
        for stream in server.incoming().take(4) {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            let len = stream.read(&mut head).unwrap();
            let head = String::from_utf8_lossy(&head[..len]).into_owned();
            let answer = match head.split(' ').nth(1).unwrap() {
                "/moved" => b"HTTP/1.1 302 Found\r\nLocation: /x.torrent\r\nContent-Length: 0\r\n\r\n".to_vec(),
                "/magnet" => {
                    let link = format!("magnet:?xt=urn:btih:{}", "e".repeat(40));
                    format!("HTTP/1.1 302 Found\r\nLocation: {link}\r\nContent-Length: 0\r\n\r\n").into_bytes()
                }
                _ => {
                    [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len()).as_bytes(), &bytes].concat()
                }
            };
            stream.write_all(&answer).unwrap();
        }
    });
    wait_until(|| fixture.torrents("").is_empty());
    assert_eq!(text(&fixture.act("torrents/add", &format!("urls=http://{at}/moved&stopped=true"))), "Ok.");
    assert_eq!(fixture.torrents("")[0]["hash"].as_str(), Some(hash.as_str()));
    assert_eq!(text(&fixture.act("torrents/add", &format!("urls=http://{at}/magnet&stopped=true"))), "Ok.");
    let other = Fixture::new();
    for url in [
        format!("http://{at}/x.torrent"),
        "http://localhost:1/".into(),
        "http://10.0.0.1:1/".into(),
        "http://[::1]:1/".into(),
    ] {
        let refused = other.act("torrents/add", &format!("urls={url}"));
        assert_eq!(refused.status, 502, "{url}");
        assert!(text(&refused).contains("--fetch-host"), "{}", text(&refused));
        let refused = other.ask("POST", "/api/v1/contents", "", Some(&json!({ "source": url })));
        assert_eq!(refused.status, 502, "{url}");
    }
}

fn wait_until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_changed_is_told_to_each_who_asks_from_where_it_is() {
    let fixture = Fixture::new();
    let sync = |rid: u64| fixture.look(&format!("sync/maindata?rid={rid}")).json();
    let rid = |answer: &Value| answer["rid"].as_u64().unwrap();
    let first = sync(0);
    assert_eq!((first["full_update"].as_bool(), first["torrents"].is_null()), (Some(true), true));
    assert!(first["server_state"]["queueing"].as_bool().unwrap());
    fixture.act("torrents/add", &format!("urls={}&stopped=true&category=films&tags=x", link('a')));
    let second = sync(rid(&first));
    assert!(second["full_update"].is_null());
    assert_eq!(second["torrents"][hash('a')]["category"], "films");
    assert_eq!((second["categories"]["films"]["name"].as_str(), &second["tags"]), (Some("films"), &json!(["x"])));
    fixture.act("torrents/setUploadLimit", "hashes=all&limit=77");
    let third = sync(rid(&second));
    assert_eq!(third["torrents"], json!({ hash('a'): { "up_limit": 77 } }));
    assert!(third["categories"].is_null() && third["tags"].is_null());
    // Another program is where it is, whoever else asked since.
    assert_eq!(sync(rid(&first))["torrents"][hash('a')]["up_limit"], 77);
    let trackers = format!("hash={}&urls=http://127.0.0.1:9/announce", hash('a'));
    assert_eq!(fixture.act("torrents/addTrackers", &trackers).status, 200);
    assert_eq!(sync(rid(&third))["trackers"], json!({ "http://127.0.0.1:9/announce": [hash('a')] }));
    let fourth = sync(0);
    fixture.act("torrents/delete", "hashes=all&deleteFiles=true");
    fixture.act("torrents/removeCategories", "categories=films");
    fixture.act("torrents/deleteTags", "tags=x");
    let last = sync(rid(&fourth));
    assert_eq!(last["torrents_removed"], json!([hash('a')]));
    assert_eq!((&last["categories_removed"], &last["tags_removed"]), (&json!(["films"]), &json!(["x"])));
    assert_eq!(last["trackers_removed"], json!(["http://127.0.0.1:9/announce"]));
    // Who names an answer that there was not gets everything.
    for strange in [rid(&last) + 100, 1, u64::from(u32::MAX), u64::MAX] {
        assert_eq!(sync(strange)["full_update"].as_bool(), Some(true), "{strange}");
    }
    let again = Fixture::over(fixture.end());
    let answer = again.look(&format!("sync/maindata?rid={}", rid(&last))).json();
    assert_eq!(answer["full_update"].as_bool(), Some(true), "numbers of another run mean nothing");
}

#[test]
fn super_seeding_is_turned_on_and_off_and_kept() {
    let sharer = Fixture::new();
    let file = sharer.files().join("film.mkv");
    std::fs::write(&file, noise(500_000, 9)).unwrap();
    let id = sharer.share(&file);
    let is_super = |fixture: &Fixture| fixture.torrents("")[0]["super_seeding"].as_bool();
    assert_eq!(is_super(&sharer), Some(false));
    assert_eq!(sharer.act("torrents/setSuperSeeding", "hashes=all&value=true").status, 200);
    assert_eq!(is_super(&sharer), Some(true));
    let sharer = Fixture::over(sharer.end());
    assert_eq!(is_super(&sharer), Some(true));
    sharer.wait(&id, |content| content["pieces"].is_u64() && content["state"] == "seeding");
    assert_eq!(sharer.act("torrents/setSuperSeeding", "hashes=all&value=false").status, 200);
    assert_eq!(is_super(&sharer), Some(false));
    assert_eq!(sharer.act("torrents/setSuperSeeding", "hashes=all&value=true").status, 200);
    // It is opened anew for that, serves as before, and is over when others have everything.
    sharer.wait(&id, |content| content["pieces"].is_null());
    let content = sharer.wait(&id, |content| content["pieces"].is_u64() && content["state"] == "seeding");
    let session = sharer.ask("GET", "/api/v1/session", "", None).json();
    let body = json!({ "source": content["link"], "peers": [session["listening"][0]] });
    let fixture = Fixture::new();
    let added = fixture.ask("POST", "/api/v1/contents", "", Some(&body)).json();
    fixture.wait(&added["id"].to_string(), |content| content["completed"].is_u64());
    sharer.wait(&id, |_| is_super(&sharer) == Some(false));
}
