//! uTP through the front door: alone, beside TCP, off; floods of calls, and packets that others made up.

mod common;

use std::fs;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use common::{Running, get, noise, run, share};

const PATIENCE: Duration = Duration::from_secs(20);

/// A packet of BEP 29 without payload.
fn packet(kind: u8, id: u16, seq: u16, ack: u16) -> [u8; 20] {
    let mut packet = [0; 20];
    packet[0] = kind << 4 | 1;
    packet[2..4].copy_from_slice(&id.to_be_bytes());
    packet[12..16].copy_from_slice(&(1u32 << 20).to_be_bytes());
    packet[16..18].copy_from_slice(&seq.to_be_bytes());
    packet[18..20].copy_from_slice(&ack.to_be_bytes());
    packet
}

const STATE: u8 = 2;
const RESET: u8 = 3;
const SYN: u8 = 4;

fn answer(socket: &UdpSocket) -> [u8; 20] {
    let mut answer = [0; 64];
    let (length, _) = socket.recv_from(&mut answer).unwrap();
    assert_eq!(length, 20, "no more than was asked");
    *answer.first_chunk().unwrap()
}

fn caller() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn resident_bytes(running: &Running) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/statm", running.child.id())).unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_content_moves_over_utp_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(3_000_000, 2)).unwrap();
    let (mut sharer, address, magnet) = share(dir.path(), &["one.bin", "--utp", "only"]);
    assert!(TcpStream::connect(&address).is_err(), "nobody listens over TCP");
    let arguments = get(&address, &[&magnet, "-o", "out", "--utp", "only", "--json"]);
    let (code, out, errors) = run(dir.path(), &arguments);
    assert_eq!(code, 0, "{out}{errors}");
    assert!(out.contains("\"transport\":\"utp\""), "{out}");
    assert_eq!(sharer.event("peer_connected")["transport"], "utp");
    assert_eq!(fs::read(dir.path().join("out/one.bin")).unwrap(), noise(3_000_000, 2));
    assert_eq!(sharer.interrupt().0, 0);
}

#[test]
fn where_tcp_is_refused_utp_is_tried_and_else_tcp_stays() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(300_000, 3)).unwrap();
    for (theirs, ours, transport) in
        [("only", "on", "utp"), ("on", "on", "tcp"), ("in", "only", "utp"), ("in", "in", "tcp"), ("off", "on", "tcp")]
    {
        let (sharer, address, magnet) = share(dir.path(), &["one.bin", "--utp", theirs]);
        let arguments = get(&address, &[&magnet, "-o", "out", "--utp", ours, "--json"]);
        let (code, out, errors) = run(dir.path(), &arguments);
        assert_eq!(code, 0, "{theirs} {ours}: {out}{errors}");
        let expected = format!("\"transport\":\"{transport}\"");
        assert!(out.contains(&expected), "{theirs} {ours}: {out}");
        assert_eq!(sharer.interrupt().0, 0);
        fs::remove_dir_all(dir.path().join("out")).unwrap();
    }
}

#[test]
fn who_calls_where_it_is_off_is_sent_on_to_tcp_at_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(50_000, 2)).unwrap();
    let (sharer, address, _) = share(dir.path(), &["one.bin", "--utp", "off"]);
    let socket = caller();
    socket.send_to(&packet(SYN, 0x1234, 1, 0), &address).unwrap();
    let reset = answer(&socket);
    assert_eq!((reset[0], &reset[2..4], &reset[18..20]), (0x31, &[0x12, 0x34][..], &[0, 1][..]));
    assert!(TcpStream::connect(&address).is_ok());
    assert_eq!(sharer.interrupt().0, 0);
}

#[test]
fn floods_of_calls_and_forged_resets_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(400_000, 4)).unwrap();
    let (mut sharer, address, magnet) = share(dir.path(), &["one.bin"]);
    let to: SocketAddr = address.parse().unwrap();
    let socket = caller();
    socket.send_to(&packet(SYN, 7, 1, 0), to).unwrap();
    let first = answer(&socket);
    assert_eq!((first[0] >> 4, &first[2..4], &first[18..20]), (STATE, &[0, 7][..], &[0, 1][..]));
    // The same call has the same answer: nothing had to be remembered for it.
    socket.send_to(&packet(SYN, 7, 1, 0), to).unwrap();
    assert_eq!(answer(&socket)[16..20], first[16..20]);

    let before = resident_bytes(&sharer);
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    for number in 0..200_000u32 {
        // What finds no room is lost.
        let _ = flood.send_to(&packet(SYN, number as u16, (number >> 16) as u16, 0), to);
        let _ = flood.send_to(&packet(RESET, number as u16, 1, number as u16), to);
    }
    // It hears others still, and has kept nothing.
    let arguments = get(&address, &[&magnet, "-o", "out", "--utp", "only", "--json"]);
    let (code, out, errors) = run(dir.path(), &arguments);
    assert_eq!(code, 0, "{out}{errors}");
    assert!(resident_bytes(&sharer) < before + (16 << 20), "memory grew by a flood");
    sharer.event("peer_connected");
    assert_eq!(sharer.interrupt().0, 0);
}

#[test]
fn what_cannot_be_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let link = format!("magnet:?xt=urn:btih:{}", "ab".repeat(20));
    let (code, _, errors) = run(dir.path(), &["get", &link, "--utp", "sometimes"]);
    assert!(code == 2 && errors.contains("[possible values: on, in, only, off]"), "{errors}");
    let proxied = ["get", &link, "--utp", "only", "--proxy", "http://127.0.0.1:1"];
    let (code, _, errors) = run(dir.path(), &proxied);
    assert!(code == 2 && errors.contains("--utp only"), "{errors}");
}
