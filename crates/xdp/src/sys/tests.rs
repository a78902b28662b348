//! The program behind the driver, on a loopback of its own: what it takes, what it leaves, and what a queue makes of it.

use std::io;
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use super::bpf::{AttachMode, Map, Program};
use super::queue::{BATCH, Queue, TX_FRAMES};
use crate::program::{KEY_LEN, assemble, key};
use crate::{Capability, Datagram};

const LOOPBACK: u32 = 1;
const PATIENCE: Duration = Duration::from_secs(20);

/// Does something in a network namespace with a loopback only; not at all where none may be made.
fn alone(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if !Capability::missing().is_empty() {
                return eprintln!("left out: {:?} are missing", Capability::missing());
            }
            // SAFETY: no pointers; only this thread moves, and it ends with `work`.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return eprintln!("left out: not root");
            }
            for args in ["link set lo up", "addr add 10.7.0.1/32 dev lo", "addr add fd00:7::1/128 dev lo nodad"] {
                assert!(Command::new("ip").args(args.split(' ')).status().unwrap().success());
            }
            work();
        });
        thread.join().unwrap();
    });
}

fn send(from: &UdpSocket, payload: &[u8], to: &str) {
    from.send_to(payload, to).unwrap();
}

#[test]
fn the_program_takes_what_is_listed_and_leaves_the_rest() {
    alone(|| {
        let (addresses, sockets) = (Map::hash(KEY_LEN, 8).unwrap(), Map::sockets(1).unwrap());
        // So short that one of the datagrams below does not fit.
        let program = Program::load(&assemble(addresses.raw(), sockets.raw(), 600)).unwrap();
        let link = program.attach(LOOPBACK, AttachMode::Generic).unwrap();
        let queue = Queue::bind(LOOPBACK, 0, 1514).unwrap();
        assert!(!queue.is_zero_copy());
        let again = Queue::bind(LOOPBACK, 0, 1514).err().expect("a queue has one socket");
        assert_eq!(again.1.raw_os_error(), Some(libc::EBUSY));
        let from = UdpSocket::bind("[::]:0").unwrap();
        let systems = UdpSocket::bind("[::]:7000").unwrap();
        systems.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 4096];
        let mut left = |payload: &[u8]| {
            let len = systems.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], payload);
        };
        let taken = || {
            let (start, mut seen) = (Instant::now(), None);
            while seen.is_none() {
                assert!(start.elapsed() < PATIENCE);
                queue.receive(BATCH, |frame| {
                    let datagram = Datagram::parse(frame, LOOPBACK).unwrap();
                    seen = Some((datagram.to, datagram.payload.to_vec()));
                });
            }
            seen.unwrap()
        };
        let [v4, v6] = ["10.7.0.1:7000", "[fd00:7::1]:7000"];
        // Listed, and no socket at the queue yet.
        addresses.insert(&key(v4.parse().unwrap()), 1).unwrap();
        send(&from, b"nobody there", v4);
        left(b"nobody there");
        let raw = std::os::fd::AsRawFd::as_raw_fd(&queue.fd()).cast_unsigned();
        sockets.insert(&0u32.to_ne_bytes(), raw).unwrap();
        send(&from, b"four", v4);
        assert_eq!(taken(), (v4.parse().unwrap(), b"four".to_vec()));
        // Just within the limit, and just beyond it.
        for (len, is_taken) in [(600 - 42, true), (601 - 42, false)] {
            send(&from, &vec![7; len], v4);
            if is_taken {
                assert_eq!(taken().1.len(), len);
            } else {
                left(&vec![7; len]);
            }
        }
        // Not listed; then listed, and not any more.
        send(&from, b"six", v6);
        left(b"six");
        addresses.insert(&key(v6.parse().unwrap()), 1).unwrap();
        send(&from, b"six", v6);
        assert_eq!(taken(), (v6.parse().unwrap(), b"six".to_vec()));
        addresses.remove(&key(v6.parse().unwrap())).unwrap();
        send(&from, b"again", v6);
        left(b"again");
        drop(link);
        send(&from, b"detached", v4);
        left(b"detached");
    });
}

#[test]
fn all_frames_of_a_queue_come_back() {
    alone(|| {
        let queue = Queue::bind(LOOPBACK, 0, 1514).unwrap();
        let (start, mut sent) = (Instant::now(), 0);
        // Several times what there is, the longest frame among them.
        while sent < 4 * TX_FRAMES as usize {
            assert!(start.elapsed() < PATIENCE);
            let write = |at: usize, frame: &mut [u8]| {
                assert!(frame.len() >= 1514);
                frame[..60].fill(0);
                if at == 0 { 1514 } else { 60 }
            };
            match queue.send(BATCH + 1, write) {
                Ok(count) => {
                    assert!((1..=BATCH).contains(&count));
                    sent += count;
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert_eq!(queue.receive(BATCH, |_| panic!("there is no program")), 0);
        assert_eq!(queue.dropped(), 0);
    });
}
