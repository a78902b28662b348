//! Events, and how a watcher that was away goes on.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::fixture::{Fixture, PATIENCE};

/// A stream of events.
struct Watch {
    stream: TcpStream,
    read: String,
}

/// An event: its id, its name, what it says.
type Event = (String, String, Value);

impl Watch {
    fn new(fixture: &Fixture, fields: &str) -> Self {
        let mut stream = TcpStream::connect(fixture.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\n{}{fields}\r\n", fixture.address, fixture.fields())
            .unwrap();
        Self { stream, read: String::new() }
    }

    /// The next event of these names.
    fn next(&mut self, names: &[&str]) -> Event {
        loop {
            while let Some(end) = self.read.find("\n\n") {
                let text: String = self.read.drain(..end + 2).collect();
                let field =
                    |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
                if names.contains(&field("event: ").as_str()) {
                    return (field("id: "), field("event: "), serde_json::from_str(&field("data: ")).unwrap());
                }
            }
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes).unwrap();
            assert!(count > 0, "the stream ended");
            self.read.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }
}

fn add(fixture: &Fixture, digit: char) -> String {
    let body = json!({ "source": format!("magnet:?xt=urn:btih:{}", digit.to_string().repeat(40)), "paused": true });
    fixture.ask("POST", "/api/v1/contents", "", Some(&body)).json()["id"].to_string()
}

#[test]
fn watchers_hear_of_everything_once_also_after_a_while_away() {
    let fixture = Fixture::new();
    let mut watch = Watch::new(&fixture, "");
    assert!(watch.next(&["progress"]).0.is_empty(), "what passes has no number");
    let first = add(&fixture, 'a');
    let (id, _, data) = watch.next(&["content"]);
    assert_eq!((data["id"].to_string(), data["state"].as_str()), (first.clone(), Some("paused")));
    crate::schema::check(&fixture.document, &fixture.document["components"]["schemas"]["Content"], &data, "event");
    drop(watch);
    add(&fixture, 'b');
    fixture.ask("DELETE", "/api/v1/contents/{id}", &first, None);
    let mut again = Watch::new(&fixture, &format!("Last-Event-ID: {id}\r\n"));
    let (mut heard, mut last) = (Vec::new(), String::new());
    while !heard.contains(&"removed".to_owned()) {
        let (id, name, _) = again.next(&["content", "removed", "reset"]);
        let number = |id: &str| id.rsplit_once('-').unwrap().1.parse::<u64>().unwrap();
        assert!(last.is_empty() || number(&id) > number(&last));
        (last, _) = (id, heard.push(name));
    }
    assert!(heard.contains(&"content".to_owned()) && !heard.contains(&"reset".to_owned()), "{heard:?}");
    let mut strange = Watch::new(&fixture, "Last-Event-ID: another-5\r\n");
    assert_eq!(strange.next(&["reset", "content", "removed"]).1, "reset");
    let dir = fixture.end();
    let fixture = Fixture::over(dir);
    let mut other_run = Watch::new(&fixture, &format!("Last-Event-ID: {last}\r\n"));
    assert_eq!(other_run.next(&["reset", "content", "removed"]).1, "reset");
}

#[test]
fn only_so_many_watch() {
    let fixture = Fixture::new();
    let watches: Vec<Watch> = (0..32)
        .map(|_| {
            let mut watch = Watch::new(&fixture, "");
            watch.next(&["progress"]);
            watch
        })
        .collect();
    let refused = fixture.send("GET", "/api/v1/events", &fixture.fields(), b"");
    assert_eq!(refused.status, 503);
    fixture.hold("GET", "/api/v1/events", &refused);
    drop(watches);
    // Their places are free again once it is known that they left.
    let began = std::time::Instant::now();
    loop {
        let mut stream = TcpStream::connect(fixture.address).unwrap();
        write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\n{}\r\n", fixture.address, fixture.fields()).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        if head.ends_with(b"200") {
            break;
        }
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
