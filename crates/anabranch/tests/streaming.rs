//! `share --ppspp` and `get` of its link, on loopback.

mod common;

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use common::{Running, anabranch, noise, run, signal};
use serde_json::Value;

/// Shares files by PPSPP: the program and the links.
fn share(dir: &Path, count: usize, arguments: &[&str]) -> (Running, Vec<String>) {
    let mut running =
        Running::start(anabranch(dir).args(["share", "--ppspp", "--listen", "127.0.0.1:0", "--json"]).args(arguments));
    let links = (0..count).map(|_| running.event("started")["link"].as_str().unwrap().to_owned()).collect();
    (running, links)
}

fn get<'a>(link: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["get", link, "--listen", "127.0.0.1:0", "--json"], rest].concat()
}

fn events(stdout: &str, name: &str) -> Vec<Value> {
    let all = stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["event"] == name).collect()
}

#[test]
fn files_of_every_odd_length_arrive_in_chunks_of_every_length() {
    let dir = tempfile::tempdir().unwrap();
    let lengths = [1, 1023, 1024, 1025, 7 * 1024, 262_144, 300_001, 2_000_003];
    let names: Vec<String> = lengths.iter().map(|length| format!("{length}.bin")).collect();
    for (name, length) in names.iter().zip(lengths) {
        fs::write(dir.path().join(name), noise(length, length as u64)).unwrap();
    }
    for chunk in ["1KiB", "8KiB", "1000", "63KiB"] {
        let arguments: Vec<&str> = names.iter().map(String::as_str).chain(["--chunk-length", chunk]).collect();
        let (sharer, links) = share(dir.path(), names.len(), &arguments);
        let out = dir.path().join(format!("out-{chunk}"));
        let mut command = anabranch(dir.path());
        command.args(["get", "--listen", "127.0.0.1:0", "-o", out.to_str().unwrap()]).args(&links);
        let (code, _, stderr) = common::finish(&mut command);
        assert_eq!(code, 0, "{chunk}: {stderr}");
        for (name, length) in names.iter().zip(lengths) {
            assert!(fs::read(out.join(name)).unwrap() == noise(length, length as u64), "{chunk} {name}");
        }
        assert_eq!(fs::read_dir(&out).unwrap().count(), names.len(), "nothing but the files is left");
        assert_eq!(sharer.interrupt().0, 0);
    }
}

/// In libswift's dialect, by its own links, which say nothing of the length, and nothing is fetched twice for it: not what proved it
/// either.
#[test]
fn libswifts_dialect_and_links_without_a_length() {
    let dir = tempfile::tempdir().unwrap();
    for length in [1, 1024, 1025, 300_001, 1_000_000] {
        fs::write(dir.path().join("film"), noise(length, length as u64)).unwrap();
        let (sharer, links) = share(dir.path(), 1, &["film", "--dialect", "libswift"]);
        let link = links[0].split('?').next().unwrap();
        assert!(link.starts_with("tswift://127.0.0.1:") && link.len() < 80, "{link}");
        // What a machine that stands still for a moment asks for again is no fault: the best of three is looked at.
        let wasted = (0..3).map(|attempt| {
            let out = format!("out-{length}-{attempt}");
            let (code, stdout, stderr) = run(dir.path(), &get(link, &["-o", &out]));
            assert_eq!(code, 0, "{length}: {stderr}");
            let name = link.rsplit('/').next().unwrap();
            assert!(fs::read(dir.path().join(&out).join(name)).unwrap() == noise(length, length as u64), "{length}");
            events(&stdout, "finished")[0]["wasted"].as_u64().unwrap()
        });
        let wasted: Vec<u64> = wasted.collect();
        assert!(wasted.iter().any(|bytes| *bytes <= 1024), "{length}: {wasted:?} bytes came in vain");
        sharer.interrupt();
    }
}

#[test]
fn a_second_get_fetches_nothing_and_a_second_share_hashes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("film"), noise(1_500_000, 3)).unwrap();
    let (sharer, links) = share(dir.path(), 1, &["film"]);
    for received in [true, false] {
        let (code, stdout, stderr) = run(dir.path(), &get(&links[0], &["-o", "out"]));
        assert_eq!(code, 0, "{stderr}");
        let finished = events(&stdout, "finished");
        assert_eq!(finished[0]["downloaded"].as_u64().unwrap() >= 1_500_000, received, "{finished:?}");
    }
    sharer.interrupt();
    let trees: Vec<_> = fs::read_dir(dir.path().join("cache/anabranch/trees")).unwrap().collect();
    assert_eq!(trees.len(), 1);
    let (_sharer, again) = share(dir.path(), 1, &["film"]);
    assert_eq!(again[0].split('?').next(), links[0].split('?').next());
    let (code, _, stderr) = run(dir.path(), &get(&again[0], &["-o", "other"]));
    assert_eq!(code, 0, "{stderr}");
    // The same length, and other bytes: it is hashed again.
    fs::write(dir.path().join("film"), noise(1_500_000, 4)).unwrap();
    let (_sharer, changed) = share(dir.path(), 1, &["film"]);
    assert_ne!(changed[0].split('?').next(), links[0].split('?').next());
}

/// Nobody is there any more, and the same command finds that everything is: of a folder, too, whose list of files no peer tells.
#[test]
fn a_finished_get_run_again_needs_nobody() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
    fs::write(dir.path().join("tree/long"), noise(700_001, 1)).unwrap();
    fs::write(dir.path().join("tree/sub/short"), "short").unwrap();
    fs::write(dir.path().join("film"), noise(700_001, 2)).unwrap();
    let (sharer, links) = share(dir.path(), 2, &["film", "tree"]);
    let get_all = || links.iter().map(|link| run(dir.path(), &get(link, &["-o", "out"]))).collect::<Vec<_>>();
    for (code, _, stderr) in get_all() {
        assert_eq!(code, 0, "{stderr}");
    }
    assert_eq!(sharer.interrupt().0, 0);
    for (code, stdout, stderr) in get_all() {
        assert_eq!(code, 0, "{stderr}");
        assert_eq!(events(&stdout, "finished").len(), 1, "{stdout}");
    }
    // What is not as it was is not said to be there.
    fs::write(dir.path().join("out/tree/sub/short"), "shirt").unwrap();
    // Which of the two began first is nobody's promise.
    let tree = links.iter().find(|link| link.contains("dn=tree")).unwrap();
    let (code, _, stderr) = run(dir.path(), &get(tree, &["-o", "out", "--give-up", "2s"]));
    assert!(code == 5 && stderr.contains("not all the content's"), "{code}: {stderr}");
    assert_eq!(fs::read_to_string(dir.path().join("out/tree/sub/short")).unwrap(), "shirt");
    assert!(fs::read(dir.path().join("out/tree/long")).unwrap() == noise(700_001, 1));
}

/// Nothing tells of a part of a file whether it is the content's: what is not all of it is left alone, and the reason is no other.
#[test]
fn what_is_not_all_of_a_file_is_left_alone_unless_it_is_to_be_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(2_000_003, 9);
    let damaged = [&film[..1_900_000], b"damaged", &film[1_900_007..]].concat();
    fs::write(dir.path().join("film"), &film).unwrap();
    let (_sharer, links) = share(dir.path(), 1, &["film"]);
    for (number, there) in [&film[..300_000], &damaged, &noise(1000, 10), &noise(2_000_003, 10)].iter().enumerate() {
        let out = format!("out-{number}");
        let path = dir.path().join(&out).join("film");
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(&path, there).unwrap();
        let (code, _, stderr) = run(dir.path(), &get(&links[0], &["-o", &out]));
        assert!(
            code == 5 && stderr.contains("not all the content's") && stderr.contains("--force"),
            "{code}: {stderr}"
        );
        assert!(fs::read(&path).unwrap() == **there, "{number}");
        let (code, _, stderr) = run(dir.path(), &get(&links[0], &["-o", &out, "--force"]));
        assert_eq!(code, 0, "{stderr}");
        assert!(fs::read(&path).unwrap() == film, "{number}");
    }
}

#[test]
fn what_was_verified_survives_a_kill_and_is_not_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(6_000_000, 5);
    fs::write(dir.path().join("film"), &film).unwrap();
    let (_sharer, links) = share(dir.path(), 1, &["film"]);
    let arguments = get(&links[0], &["-o", "out", "--limit-down", "1M"]);
    let mut getter = Running::start(anabranch(dir.path()).args(&arguments));
    for _ in 0..8 {
        getter.event("piece");
    }
    signal(getter.child.id(), "KILL");
    getter.child.wait().unwrap();
    let (code, stdout, stderr) = run(dir.path(), &get(&links[0], &["-o", "out"]));
    assert_eq!(code, 0, "{stderr}");
    let started = &events(&stdout, "started")[0];
    let before = started["bytes_done"].as_u64().unwrap();
    // Eight pieces, of which one may be the last, which is short.
    assert!(before >= 7 * 256 * 1024, "{started}");
    let finished = &events(&stdout, "finished")[0];
    assert!(finished["downloaded"].as_u64().unwrap() - finished["wasted"].as_u64().unwrap() <= 6_000_000 - before);
    assert!(fs::read(dir.path().join("out/film")).unwrap() == film);
}

/// `kill -9` of either end, and the same command again, at the same address: nobody knows the old channel, and nobody waits for its end.
#[test]
fn either_end_is_killed_and_started_again_at_its_address() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = noise(6_000_000, 8);
    fs::write(dir.path().join("film"), &bytes).unwrap();
    let (sharer, links) = share(dir.path(), 1, &["film"]);
    let at = links[0].split(['?', '&']).find_map(|pair| pair.strip_prefix("pe=")).unwrap().to_owned();
    let own = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let slow = ["get", &links[0], "--json", "-o", "out", "--limit-down", "1M", "--listen", &own];
    let mut killed = Running::start(anabranch(dir.path()).args(slow));
    (0..4).for_each(|_| _ = killed.event("piece"));
    drop(killed);
    let mut getter = Running::start(anabranch(dir.path()).args(slow));
    assert_ne!(getter.event("started")["pieces_have"], 0);
    (0..4).for_each(|_| _ = getter.event("piece"));
    drop(sharer);
    let mut sharer =
        Running::start(anabranch(dir.path()).args(["share", "--ppspp", "film", "--json", "--listen", &at]));
    sharer.event("started");
    getter.event("finished");
    assert!(fs::read(dir.path().join("out/film")).unwrap() == bytes);
}

#[test]
fn who_fetches_serves_others_once_the_source_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(3_000_000, 6);
    fs::write(dir.path().join("film"), &film).unwrap();
    let (sharer, links) = share(dir.path(), 1, &["film"]);
    let mut seeder = Running::start(anabranch(dir.path()).args(get(&links[0], &["-o", "one", "--seed"])));
    let listening = seeder.event("listening")["address"].as_str().unwrap().to_owned();
    seeder.event("finished");
    sharer.interrupt();
    let (code, _, stderr) = run(dir.path(), &get(&links[0], &["-o", "two", "--peer", &listening]));
    assert_eq!(code, 0, "{stderr}");
    assert!(fs::read(dir.path().join("two/film")).unwrap() == film);
}

/// A peer that answers with bytes that are not the content's, of a right handshake: it is named and banned, and the honest one
/// is fetched from.
#[test]
fn a_liar_is_banned_and_the_honest_peer_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(200_000, 7);
    fs::write(dir.path().join("film"), &film).unwrap();
    let (_sharer, links) = share(dir.path(), 1, &["film"]);
    let liar = UdpSocket::bind("127.0.0.1:0").unwrap();
    liar.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let address = liar.local_addr().unwrap().to_string();
    let lying = std::thread::spawn(move || {
        let (mut datagram, mut sent) = ([0; 2048], 0);
        for _ in 0..600 {
            let Ok((length, from)) = liar.recv_from(&mut datagram) else { continue };
            let message = &datagram[..length];
            if message.len() > 9 && message[..5] == [0, 0, 0, 0, 0] {
                // The caller's own handshake with our channel, and everything to be had.
                let mut answer = message[5..9].to_vec();
                answer.extend([0, 0, 0, 0, 77]);
                answer.extend(&message[9..]);
                answer.extend([3, 0, 0, 0, 0, 0, 0, 0, 195]);
                liar.send_to(&answer, from).unwrap();
                // Chunk 0 as it is not, with what would prove it if that were right.
                let mut data = message[5..9].to_vec();
                data.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                data.extend([9; 1024]);
                let mut proof = message[5..9].to_vec();
                for (start, end) in [(0u32, 127u32), (128, 191), (192, 195)] {
                    proof.push(4);
                    proof.extend(start.to_be_bytes());
                    proof.extend(end.to_be_bytes());
                    proof.extend([8; 32]);
                }
                liar.send_to(&proof, from).unwrap();
                liar.send_to(&data, from).unwrap();
                sent += 1;
            }
        }
        sent
    });
    let (code, stdout, stderr) = run(dir.path(), &get(&links[0], &["-o", "out", "--peer", &address]));
    assert_eq!(code, 0, "{stderr}");
    assert!(fs::read(dir.path().join("out/film")).unwrap() == film);
    for banned in events(&stdout, "banned") {
        assert_eq!(banned["peer"], address, "nobody else is accused");
    }
    drop(lying);
}

/// Strangers' datagrams: noise, handshakes that are cut, repeated, or of other swarms, and channels that nobody opened. Nobody is
/// answered with more than came, and who means it is served meanwhile.
/// Whoever shares edits a file and puts it back, before and while others fetch, where it is only shared and where it was fetched.
#[test]
fn an_edited_file_is_not_sent_and_nobody_is_banned_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let (original, other) = (noise(2_000_000, 1), noise(2_000_000, 2));
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("a.bin"), &original).unwrap();
    fs::write(data.join("b.bin"), noise(300_000, 3)).unwrap();
    let (mut sharer, links) = share(dir.path(), 1, &["data"]);
    // Nobody asks for it: it is noticed all the same.
    fs::write(data.join("a.bin"), &other).unwrap();
    let error = sharer.event("error");
    assert!(error["message"].as_str().unwrap().contains("a.bin changed while it was shared"), "{error}");
    let slow = ["-o", "out", "--seed", "--limit-down", "1M", "--give-up", "50s"];
    let mut getter = Running::start(anabranch(dir.path()).args(get(&links[0], &slow)));
    // What is still the content is had by others.
    getter.event("piece");
    fs::write(data.join("a.bin"), &original).unwrap();
    sharer.event("resumed");
    for _ in 0..3 {
        getter.event("piece");
    }
    // And once more while it is sent, as an editor that saves beside and renames does.
    fs::write(dir.path().join("edited"), &other).unwrap();
    fs::rename(dir.path().join("edited"), data.join("a.bin")).unwrap();
    sharer.event("error");
    fs::write(data.join("a.bin"), &original).unwrap();
    sharer.event("resumed");
    loop {
        let event: Value = serde_json::from_str(&getter.line()).unwrap();
        assert_ne!(event["event"], "peer_banned", "{event}");
        if event["event"] == "finished" {
            break;
        }
    }
    assert!(fs::read(dir.path().join("out/data/a.bin")).unwrap() == original);
    // Who fetched it does not send what it is not, nor fetches it again over what its owner made of it.
    drop(sharer);
    fs::write(dir.path().join("out/data/a.bin"), &other).unwrap();
    let paused = getter.event("paused");
    assert!(paused["reason"].as_str().unwrap().contains("a.bin was changed since it was verified"), "{paused}");
    assert!(fs::read(dir.path().join("out/data/a.bin")).unwrap() == other);
    fs::write(dir.path().join("out/data/a.bin"), &original).unwrap();
    getter.event("resumed");
}

#[test]
fn noise_and_forged_handshakes_are_answered_with_little_and_disturb_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(900_000, 10);
    fs::write(dir.path().join("film"), &film).unwrap();
    let (_sharer, links) = share(dir.path(), 1, &["film"]);
    let (id, query) = links[0].strip_prefix("ppspp:").unwrap().split_once('?').unwrap();
    let peer = query.split('&').find_map(|pair| pair.strip_prefix("pe=")).unwrap().to_owned();
    let id: Vec<u8> = (0..32).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap()).collect();
    // RFC 7574, section 7: version, swarm, Merkle tree, SHA-256, 32-bit ranges, chunks of 1 KiB.
    let mut handshake = vec![0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 1, 1, 2, 0, 32];
    handshake.extend(&id);
    handshake.extend([3, 1, 4, 2, 6, 2, 9, 0, 0, 4, 0, 255]);
    let flood = std::thread::spawn(move || {
        for round in 0..40u8 {
            // Another port each time, as forged addresses would be.
            let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
            stranger.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let mut sent = 0;
            let mut say = |datagram: &[u8]| sent += stranger.send_to(datagram, &peer).unwrap();
            (0..20).for_each(|cut| say(&handshake[..handshake.len() * cut / 20]));
            (0..3).for_each(|_| say(&handshake));
            let mut other = handshake.clone();
            other[20] ^= 1;
            say(&other);
            (1..40).for_each(|length| say(&noise(length * 9, u64::from(round) + length as u64)));
            let (mut answer, mut received) = ([0; 2048], 0);
            while let Ok(length) = stranger.recv(&mut answer) {
                received += length;
            }
            assert!(received <= 3 * handshake.len(), "{received} bytes for {sent}");
        }
    });
    let (code, stdout, stderr) = run(dir.path(), &get(&links[0], &["-o", "out"]));
    assert_eq!(code, 0, "{stderr}");
    assert!(events(&stdout, "banned").is_empty());
    assert!(fs::read(dir.path().join("out/film")).unwrap() == film);
    flood.join().unwrap();
    let (code, _, stderr) = run(dir.path(), &get(&links[0], &["-o", "again"]));
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn several_files_torrents_and_both_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(700_000, 8);
    fs::write(dir.path().join("film"), &film).unwrap();
    let mut sharer = Running::start(anabranch(dir.path()).args([
        "share",
        "film",
        "--ppspp",
        "--with-torrent",
        "--version",
        "2",
        "--listen",
        "127.0.0.1:0",
        "--json",
    ]));
    let (one, two) = (sharer.event("started"), sharer.event("started"));
    let value = |key: &str| one[key].as_str().or(two[key].as_str()).unwrap().to_owned();
    let (link, magnet) = (value("link"), value("magnet"));
    for (source, out) in [(&link, "by-link"), (&magnet, "by-magnet")] {
        let (code, _, stderr) = run(dir.path(), &get(source, &["-o", out]));
        assert_eq!(code, 0, "{stderr}");
        assert!(fs::read(dir.path().join(out).join("film")).unwrap() == film);
    }
}

#[test]
fn limits_are_kept_and_memory_may_be_little() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(1_200_000, 9);
    fs::write(dir.path().join("film"), &film).unwrap();
    let (_sharer, links) = share(dir.path(), 1, &["film", "--limit-up", "600K"]);
    let (code, stdout, stderr) = run(dir.path(), &get(&links[0], &["-o", "out", "--memory", "1MiB"]));
    assert_eq!(code, 0, "{stderr}");
    assert!(fs::read(dir.path().join("out/film")).unwrap() == film);
    let seconds = events(&stdout, "finished")[0]["seconds"].as_f64().unwrap();
    // Not faster than allowed, but for what a limit saves up.
    assert!(seconds > 1.2, "{seconds}");
}

/// A file as it should be, and in every way that it should not: with a byte changed, too short, too long, gone, a folder of that name;
/// found in a folder by the link's name and by its own, and told in words and in JSON.
#[test]
fn a_file_is_verified_against_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for length in [1, 1024, 1025, 300_001] {
        fs::write(at("film"), noise(length, length as u64)).unwrap();
        let (sharer, links) = share(dir.path(), 1, &["film"]);
        let mut damaged = fs::read(at("film")).unwrap();
        damaged[length / 2] ^= 1;
        fs::write(at("damaged"), &damaged).unwrap();
        fs::write(at("short"), &damaged[1..]).unwrap();
        fs::write(at("long"), [&damaged[..], b"x"].concat()).unwrap();
        let without_length = links[0].split('&').filter(|part| !part.starts_with("cl=")).collect::<Vec<_>>().join("&");
        let without_length = without_length.replace("?cl=", "?x-cl=");
        for (file, code, words) in [
            ("film", 0, "complete"),
            (".", 0, "complete"),
            ("damaged", 4, "damaged"),
            ("short", 4, "short"),
            ("long", 4, "long"),
            ("gone", 4, "missing"),
        ] {
            let (ended, stdout, stderr) = run(dir.path(), &["verify", &links[0], file]);
            assert!(ended == code && stdout.contains(words), "{length} {file}: {ended} {stdout}{stderr}");
            let (ended, stdout, _) = run(dir.path(), &["verify", &links[0], file, "--json"]);
            let told: Value = serde_json::from_str(&stdout).unwrap();
            assert_eq!((ended, &told["complete"]), (code, &Value::from(code == 0)), "{told}");
            let (ended, stdout, stderr) = run(dir.path(), &["verify", &links[0], file, "--quiet"]);
            assert!(
                ended == code && stdout.is_empty() && stderr.is_empty() == (code == 0),
                "{length} {file}: {stdout}{stderr}"
            );
            assert_eq!(
                run(dir.path(), &["verify", &without_length, file]).0,
                code,
                "{length} {file}: {without_length}"
            );
        }
        assert_eq!(sharer.interrupt().0, 0);
    }
    let id = "ab".repeat(32);
    for (link, needle) in [(format!("ppspp:{id}?cp=0&cl=300001"), "no hash"), ("ppspp:zz".into(), "hexadecimal")] {
        let (code, _, stderr) = run(dir.path(), &["verify", &link, "film"]);
        assert!(code == 3 && stderr.contains(needle), "{link}: {code} {stderr}");
    }
}

#[test]
fn what_a_link_says_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a film"), noise(5_000, 5)).unwrap();
    let (_sharer, links) = share(dir.path(), 1, &["a film"]);
    let (code, stdout, stderr) = run(dir.path(), &["show", &links[0]]);
    assert_eq!(code, 0, "{stderr}");
    for needle in ["a film", "5000 bytes", "of 1024 bytes", "a Merkle tree", "127.0.0.1:", &links[0]] {
        assert!(stdout.contains(needle), "{needle}: {stdout}");
    }
    let (_, stdout, _) = run(dir.path(), &["show", &links[0], "--json"]);
    let told: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&told["kind"], &told["name"], &told["size"]),
        (&"ppspp".into(), &"a film".into(), &5_000.into()),
        "{told}"
    );
    assert_eq!(told["link"], links[0].as_str());
}

#[test]
fn mistakes_are_told_with_their_remedy() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("folder")).unwrap();
    fs::write(dir.path().join("empty"), "").unwrap();
    fs::write(dir.path().join("film"), "x").unwrap();
    let id = "ab".repeat(32);
    let unproven = format!("ppspp:{id}?cp=0&cl=5");
    let nobody = format!("ppspp:{id}?cl=5");
    let folder = format!("ppspp:{id}?cl=5000&ml=5");
    for (arguments, code, needle) in [
        (&["share", "--ppspp", "folder"][..], 3, "holds no bytes"),
        (&["share", "--ppspp", "/"], 3, "share folders in it"),
        (&["share", "--ppspp", "/dev/null"], 3, "neither a file nor a folder"),
        (&["share", "--ppspp", "empty"], 3, "is empty"),
        (&["share", "--ppspp", "nowhere"], 3, "cannot read nowhere"),
        (&["share", "film", "--chunk-length", "1KiB"], 2, "give --ppspp too"),
        (&["share", "film", "--with-torrent"], 2, "give --ppspp too"),
        (&["share", "film", "--dialect", "libswift"], 2, "give --ppspp too"),
        (&["share", "--ppspp", "film", "--dialect", "draft-10"], 2, "libswift"),
        (&["share", "--ppspp", "film", "--chunk-length", "64KiB"], 2, "a chunk has 256 to 63KiB"),
        (&["share", "--ppspp", "film", "--version", "2"], 2, "--with-torrent"),
        (&["get", "ppspp:zz"], 3, "hexadecimal"),
        (&["get", "ppspp:"], 3, "hexadecimal"),
        (&["get", "tswift://x"], 3, "hexadecimal"),
        (&["get", &nobody, "--save-torrent", "x"], 2, "leave it out"),
        (&["get", &nobody, "--list"], 2, "has no torrent"),
        (&["get", &folder, "--files", "x"], 2, "fetched whole"),
        (&["get", &folder, "--select-file", "1"], 2, "fetched whole"),
        (&["get", &format!("{nobody}&ml=0")], 3, "value of ml"),
        (&["get", &format!("{nobody}&ml=5"), "--listen", "127.0.0.1:0"], 3, "which cannot be"),
        (&["show", &nobody, "--save-torrent", "x"], 2, "has no torrent"),
        (&["get", &unproven, "--listen", "127.0.0.1:0"], 3, "nothing proves"),
        (&["get", &nobody, "--listen", "127.0.0.1:0", "--give-up", "1s"], 6, "nobody is known"),
    ] {
        let (ended, _, stderr) = run(dir.path(), arguments);
        assert!(stderr.contains(needle), "{arguments:?}: {stderr}");
        assert_eq!(ended, code, "{arguments:?}: {stderr}");
    }
}
