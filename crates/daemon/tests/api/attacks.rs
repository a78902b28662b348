//! Those who should not get in, and those who ask for too much: each is answered with a plain error, and the daemon goes on.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::fixture::{Fixture, PATIENCE, read};

const CONTENTS: &str = "/api/v1/contents";

#[test]
fn nobody_gets_in_without_a_token_and_with_that_for_looking_nobody_changes_anything() {
    let fixture = Fixture::new();
    let wrong = [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Basic dXNlcjpwYXNz\r\n",
        "Cookie: anabranch=wrong\r\n",
        "Cookie: anabranch=\r\n",
    ];
    for fields in wrong {
        for path in
            [CONTENTS, "/api/v1/session", "/api/v1/settings", "/api/v1/events", "/metrics", "/api/v1/contents/1/play/0"]
        {
            if fields.contains("Authorization") && path != CONTENTS {
                continue;
            }
            let answer = fixture.send("GET", path, fields, b"");
            assert_eq!(answer.status, 401, "{fields} {path}");
            assert_eq!(answer.field("www-authenticate"), Some("Bearer"));
        }
    }
    let read_token = std::fs::read_to_string(fixture.dir.path().join("state/token-read")).unwrap();
    let fields = format!("Authorization: Bearer {}\r\nContent-Type: application/json\r\n", read_token.trim());
    assert_eq!(fixture.send("GET", CONTENTS, &fields, b"").status, 200);
    for (method, path) in [
        ("POST", CONTENTS),
        ("PATCH", "/api/v1/settings"),
        ("DELETE", "/api/v1/contents/1"),
        ("POST", "/api/v1/contents/1/pause"),
        ("PATCH", "/api/v1/contents/1/files"),
    ] {
        assert_eq!(fixture.send(method, path, &fields, b"{}").status, 403, "{method} {path}");
    }
    // The same user's programs come by the socket, and need none.
    assert_eq!(fixture.by_socket("GET", CONTENTS, "Host: x\r\n", b"").status, 200);
}

#[test]
fn a_token_gives_a_cookie_that_can_be_given_back() {
    let fixture = Fixture::new();
    let log_in = |token: &str| {
        fixture.send(
            "POST",
            "/api/v1/login",
            "Content-Type: application/json\r\n",
            json!({ "token": token }).to_string().as_bytes(),
        )
    };
    assert_eq!(log_in("wrong").status, 401);
    let answer = log_in(&fixture.token);
    fixture.hold("POST", "/api/v1/login", &answer);
    let cookie = answer.field("set-cookie").unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let shown = format!("Cookie: other=1; {}\r\n", cookie.split(';').next().unwrap());
    assert_eq!(fixture.send("GET", CONTENTS, &shown, b"").status, 200);
    assert_eq!(fixture.send("POST", "/api/v1/logout", &shown, b"").status, 204);
    assert_eq!(fixture.send("GET", CONTENTS, &shown, b"").status, 401);
}

#[test]
fn pages_of_others_are_sent_away_whatever_they_know() {
    let fixture = Fixture::new();
    for host in ["evil.example", "evil.example:6880", "localhost.evil.example", ""] {
        let answer = fixture.send_as("GET", CONTENTS, &format!("Host: {host}\r\n{}", fixture.fields()), b"");
        assert_eq!(answer.status, 421, "{host}");
    }
    for fields in ["Origin: http://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
        for (method, path) in [("POST", CONTENTS), ("GET", CONTENTS), ("POST", "/api/v1/login"), ("GET", "/")] {
            assert_eq!(
                fixture.send(method, path, &format!("{fields}{}", fixture.fields()), b"{}").status,
                403,
                "{fields} {method} {path}"
            );
        }
    }
    // What browsers send without asking first is no JSON.
    let simple = format!("Authorization: Bearer {}\r\nContent-Type: text/plain\r\n", fixture.token);
    assert_eq!(fixture.send("POST", CONTENTS, &simple, br#"{"source":"magnet:?x"}"#).status, 415);
    let own = format!("Origin: http://{}\r\n{}", fixture.address, fixture.fields());
    assert_eq!(fixture.send("GET", CONTENTS, &own, b"").status, 200);
}

#[test]
fn no_field_that_names_a_path_leads_out_of_the_folders() {
    let fixture = Fixture::new();
    let outside = fixture.dir.path().join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("secret"), "s").unwrap();
    symlink(&outside, fixture.files().join("link")).unwrap();
    let link = format!("magnet:?xt=urn:btih:{}", "a".repeat(40));
    let body = json!({ "source": link, "paused": true });
    assert_eq!(fixture.ask("POST", CONTENTS, "", Some(&body)).status, 201);
    let base = fixture.files().to_string_lossy().into_owned();
    let paths = [
        "/etc",
        "/",
        "",
        ".",
        "..",
        "files",
        "../outside",
        "/proc/self/root/etc",
        "/dev/shm",
        &format!("{base}/../outside"),
        &format!("{base}/link"),
        &format!("{base}/link/new"),
        &format!("{base}/x/../../outside"),
        &outside.to_string_lossy(),
        &format!("{base}\u{0}/x"),
        &format!("{base}-other"),
    ];
    let other = format!("magnet:?xt=urn:btih:{}", "b".repeat(40));
    for path in paths {
        let refused = |method: &str, of: &str, body: Value| {
            let answer = fixture.ask(method, of, "1", Some(&body));
            assert!(matches!(answer.status, 403 | 422), "{method} {of} {body}: {}", answer.status);
        };
        refused("POST", CONTENTS, json!({ "source": other, "dir": path }));
        refused("POST", CONTENTS, json!({ "path": path }));
        refused("POST", CONTENTS, json!({ "path": format!("{path}/secret") }));
        refused("POST", "/api/v1/contents/{id}/move", json!({ "dir": path }));
        refused("PATCH", "/api/v1/settings", json!({ "dir": path }));
        refused("PATCH", "/api/v1/settings", json!({ "categories": { "x": path } }));
    }
    for target in [
        "/../state/token",
        "/%2e%2e/state/token",
        "/page.js/../../../etc/passwd",
        "/api/v1/contents/1/play/..%2f..%2ftoken",
        "//etc/passwd",
        "/api/v1/contents/..%2f1",
    ] {
        let answer = fixture.send("GET", target, &fixture.fields(), b"");
        assert_eq!(answer.status, 404, "{target}");
    }
}

#[test]
fn huge_slow_and_malformed_requests_end_in_plain_errors() {
    let fixture = Fixture::new();
    // What it claims is enough to refuse it.
    let claims = |kind: &str, length: u64| {
        let mut stream = TcpStream::connect(fixture.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let token = &fixture.token;
        write!(stream, "POST {CONTENTS} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n", fixture.address).unwrap();
        read(&mut stream).status
    };
    assert_eq!(claims("application/json", 1 << 40), 413);
    assert_eq!(claims("application/x-bittorrent", 33 << 20), 413);
    // So is what comes without a claim.
    let chunked = |chunks: usize| {
        let mut stream = TcpStream::connect(fixture.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "POST {CONTENTS} HTTP/1.1\r\nHost: {}\r\n{}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
            fixture.address,
            fixture.fields()
        )
        .unwrap();
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(65536));
        for _ in 0..chunks {
            if stream.write_all(chunk.as_bytes()).is_err() {
                break;
            }
        }
        read(&mut stream).status
    };
    assert_eq!(chunked(8), 413);
    let nested = "[".repeat(100_000);
    for body in [
        "",
        "{",
        "[]",
        "null",
        "\"x\"",
        "{\"source\":",
        "{\"a\":1}x",
        "\u{0}",
        &nested,
        "{\"source\":{\"a\":[]}}",
        "{\"source\":\"\\ud800\"}",
    ] {
        let answer = fixture.send("POST", CONTENTS, &fixture.fields(), body.as_bytes());
        assert!(matches!(answer.status, 400 | 422), "{}: {}", &body[..body.len().min(20)], answer.status);
        fixture.hold("POST", CONTENTS, &answer);
    }
    let long = format!("X: {}\r\n", "x".repeat(60_000));
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\n{long}\r\n", fixture.address);
    let mut answer = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(fixture.send("GET", CONTENTS, &fixture.fields(), b"").status, 200);
}

#[test]
fn those_who_keep_all_connections_do_not_keep_the_same_users_programs_out() {
    let fixture = Fixture::new();
    let mut idle = Vec::new();
    for _ in 0..400 {
        let Ok(mut stream) = TcpStream::connect(fixture.address) else { break };
        let _ = write!(stream, "GET / HTTP/1.1\r\nHost:");
        idle.push(stream);
    }
    let answer = fixture.by_socket("GET", CONTENTS, "Host: x\r\n", b"");
    assert_eq!(answer.status, 200);
    drop(idle);
    assert_eq!(fixture.send("GET", CONTENTS, &fixture.fields(), b"").status, 200);
}

#[test]
fn guesses_are_answered_slowly_and_then_not_at_all_while_those_who_know_get_in() {
    let fixture = Fixture::new();
    let guesses: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(fixture.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            write!(
                stream,
                "GET {CONTENTS} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer guess\r\nConnection: close\r\n\r\n",
                fixture.address
            )
            .unwrap();
            stream
        })
        .collect();
    assert_eq!(fixture.send("GET", CONTENTS, &fixture.fields(), b"").status, 200);
    let statuses: Vec<u16> = guesses.into_iter().map(|mut stream| read(&mut stream).status).collect();
    assert!(statuses.iter().all(|status| matches!(status, 401 | 429)) && statuses.contains(&429), "{statuses:?}");
}
