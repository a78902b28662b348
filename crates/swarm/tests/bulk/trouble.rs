//! What goes wrong on the way: ends that stop and come again, paths that fall silent, strangers, wrong tickets.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anabranch_swarm::bulk::{self, Admission, DestinationError, Event, Options, Peers, Waiting};
use anabranch_transport::Identity;

use crate::support::*;

const SECRET: [u8; 12] = [9; 12];
/// A rate at which a few MiB take seconds, so that something can happen meanwhile.
const SLOW: u64 = 4_000_000;

/// Hands datagrams on between whoever calls it and `to`, unless it is told to lose them.
struct Relay {
    address: SocketAddr,
    is_silent: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl Relay {
    fn to(to: SocketAddr) -> Self {
        Self::unless(Arc::default(), to)
    }

    /// One that says nothing while that is set.
    fn unless(is_silent: Arc<AtomicBool>, to: SocketAddr) -> Self {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        far.connect(to).unwrap();
        let address = near.local_addr().unwrap();
        let is_over = Arc::<AtomicBool>::default();
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        }
        let client = Arc::new(std::sync::Mutex::new(None::<SocketAddr>));
        let (silent, over) = (is_silent.clone(), is_over.clone());
        let (near_in, far_out, caller) = (near.try_clone().unwrap(), far.try_clone().unwrap(), client.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 65_536];
            while !over.load(Ordering::Relaxed) {
                let Ok((len, from)) = near_in.recv_from(&mut bytes) else { continue };
                *caller.lock().unwrap() = Some(from);
                if !silent.load(Ordering::Relaxed) {
                    let _ = far_out.send(&bytes[..len]);
                }
            }
        });
        let (silent, over) = (is_silent.clone(), is_over.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 65_536];
            while !over.load(Ordering::Relaxed) {
                let Ok(len) = far.recv(&mut bytes) else { continue };
                let caller = *client.lock().unwrap();
                if let Some(caller) = caller.filter(|_| !silent.load(Ordering::Relaxed)) {
                    let _ = near.send_to(&bytes[..len], caller);
                }
            }
        });
        Self { address, is_silent, is_over }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn slow() -> Options {
    Options { limit_up: Some(SLOW), ..options() }
}

/// Waits until so much was told to be verified.
async fn verified(ear: &mut Ear, bytes: u64) {
    ear.until(|event| match event {
        Event::Progress(progress) => (progress.verified_bytes >= Some(bytes)).then_some(()),
        Event::Failed { error, .. } => panic!("{error}"),
        _ => None,
    })
    .await;
}

#[tokio::test]
async fn a_receiver_that_stopped_fetches_what_is_missing() {
    let pattern = Pattern::new(12 << 20, 5);
    let (_sending, events) = bulk::send(slow(), Peers::Listen(by_ticket(SECRET, 1)), pattern.clone()).unwrap();
    let mut sender = Ear::new(events);
    let address = sender.listening().await;
    let (memory, mine) = (Memory::new(), Identity::ephemeral().unwrap());
    for _ in 0..2 {
        // The slower of both limits holds.
        let own = Options { identity: mine.clone(), limit_down: Some(SLOW / 2), ..options() };
        let to = Peers::Dial(vec![dial(address, Some(SECRET))]);
        let (receiving, events) = bulk::receive(own, to, memory.clone()).unwrap();
        let mut receiver = Ear::new(events);
        let kept = memory.kept();
        verified(&mut receiver, (kept + 2) << 20).await;
        receiving.cancel();
        assert_eq!(receiver.failed().await, "cancelled");
        while receiver.next().await.is_some() {}
    }
    let kept = memory.kept();
    assert!(kept >= 3, "{kept} spans are kept");
    let own = Options { identity: mine, ..options() };
    let to = Peers::Dial(vec![dial(address, Some(SECRET))]);
    let (_receiving, events) = bulk::receive(own, to, memory.clone()).unwrap();
    let mut receiver = Ear::new(events);
    let there = receiver
        .until(|event| match event {
            Event::Offered { kept_bytes, .. } => Some(*kept_bytes),
            _ => None,
        })
        .await;
    assert!(there >= kept << 20, "{there} bytes of {kept} spans");
    receiver.finished().await;
    memory.only().assert_is(&pattern);
}

/// A transfer whose only path has fallen silent.
struct Cut {
    sender: Ear,
    receiver: Ear,
    relay: Relay,
    pattern: Arc<Pattern>,
    memory: Arc<Memory>,
    _handles: [bulk::Handle; 2],
}

/// A transfer that was well on its way when its path fell silent.
async fn cut_on_its_way() -> Cut {
    let memory = Memory::new();
    let (receiving, events) = bulk::receive(options(), Peers::Listen(by_ticket(SECRET, 1)), memory.clone()).unwrap();
    let mut receiver = Ear::new(events);
    let relay = Relay::to(receiver.listening().await);
    let pattern = Pattern::new(8 << 20, 6);
    let to = Peers::Dial(vec![dial(relay.address, Some(SECRET))]);
    let (sending, events) = bulk::send(slow(), to, pattern.clone()).unwrap();
    let sender = Ear::new(events);
    verified(&mut receiver, 1 << 20).await;
    relay.is_silent.store(true, Ordering::Relaxed);
    Cut { sender, receiver, relay, pattern, memory, _handles: [receiving, sending] }
}

#[tokio::test]
async fn a_path_that_falls_silent_is_waited_for() {
    let Cut { mut sender, mut receiver, relay, pattern, memory, .. } = cut_on_its_way().await;
    sender.until(|event| matches!(event, Event::Waiting { what: Waiting::Paths, .. }).then_some(())).await;
    receiver.until(|event| matches!(event, Event::PathDown { .. }).then_some(())).await;
    relay.is_silent.store(false, Ordering::Relaxed);
    sender.until(|event| matches!(event, Event::GoesOn { .. }).then_some(())).await;
    sender.finished().await;
    receiver.finished().await;
    memory.only().assert_is(&pattern);
}

#[tokio::test]
#[ignore = "waits half a minute for QUIC to give up"]
async fn a_connection_that_was_lost_is_made_anew() {
    let Cut { mut sender, mut receiver, relay, pattern, memory, .. } = cut_on_its_way().await;
    sender.until(|event| matches!(event, Event::Waiting { what: Waiting::Peer(_), .. }).then_some(())).await;
    relay.is_silent.store(false, Ordering::Relaxed);
    sender.finished().await;
    receiver.finished().await;
    memory.only().assert_is(&pattern);
}

#[tokio::test]
async fn several_receivers_get_it_and_none_holds_up_the_others() {
    let pattern = Pattern::new(6 << 20, 7);
    let mut ends = Vec::new();
    let mut to = Vec::new();
    for _ in 0..3 {
        let memory = Memory::new();
        let (handle, events) = bulk::receive(options(), Peers::Listen(by_ticket(SECRET, 1)), memory.clone()).unwrap();
        let mut ear = Ear::new(events);
        to.push(dial(ear.listening().await, Some(SECRET)));
        ends.push((memory, handle, ear));
    }
    // Nobody is at this one, and another has a guess for a ticket.
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    to.push(dial(nobody.local_addr().unwrap(), Some(SECRET)));
    to[0].secret = Some([1; 12]);
    let (sending, events) = bulk::send(options(), Peers::Dial(to), pattern.clone()).unwrap();
    let mut sender = Ear::new(events);
    for (memory, _, ear) in &mut ends[1..] {
        ear.finished().await;
        memory.only().assert_is(&pattern);
    }
    let mut done = 0;
    while done < 3 {
        match sender.next().await {
            Some(Event::Finished { .. } | Event::Failed { .. }) => done += 1,
            Some(_) => {}
            None => panic!("{:#?}", sender.heard),
        }
    }
    // What is read is read for all; what no thread had time to hash is read once more.
    assert!(pattern.reads.load(Ordering::Relaxed) <= 2 * pattern.len);
    sending.cancel();
    while sender.next().await.is_some() {}
}

#[tokio::test]
async fn who_is_not_invited_is_turned_away() {
    let mine = Identity::ephemeral().unwrap();
    let expired = Admission { expires: Some(SystemTime::now() - Duration::from_secs(1)), ..by_ticket(SECRET, 1) };
    let other = Admission { keys: by_key(mine.node_id()).keys, ..expired };
    for (admission, secret, says) in [
        (by_ticket(SECRET, 1), None, "no ticket"),
        (by_ticket(SECRET, 1), Some([8; 12]), "not the ticket"),
        (by_key(mine.node_id()), Some(SECRET), "no ticket"),
        (other, Some(SECRET), "expired"),
    ] {
        let pattern = Pattern::new(1000, 8);
        let (sending, events) = bulk::send(options(), Peers::Listen(admission), pattern).unwrap();
        let mut sender = Ear::new(events);
        let to = Peers::Dial(vec![dial(sender.listening().await, secret)]);
        let (_receiving, events) = bulk::receive(options(), to, Memory::new()).unwrap();
        let error = Ear::new(events).failed().await;
        assert!(error.contains(says), "{error}");
        sender.until(|event| matches!(event, Event::Rejected { .. }).then_some(())).await;
        sending.cancel();
    }
}

#[tokio::test]
async fn a_ticket_is_good_for_as_many_as_it_says() {
    let pattern = Pattern::new(100_000, 8);
    let (_sending, events) = bulk::send(options(), Peers::Listen(by_ticket(SECRET, 2)), pattern.clone()).unwrap();
    let mut sender = Ear::new(events);
    let address = sender.listening().await;
    let first = Identity::ephemeral().unwrap();
    let fetch = |identity: &Identity| {
        let own = Options { identity: identity.clone(), ..options() };
        let to = Peers::Dial(vec![dial(address, Some(SECRET))]);
        let (handle, events) = bulk::receive(own, to, Memory::new()).unwrap();
        (handle, Ear::new(events))
    };
    let (_one, mut ear) = fetch(&first);
    ear.finished().await;
    sender.finished().await;
    // The same once more is not a second.
    let (_again, mut ear) = fetch(&first);
    assert!(ear.failed().await.contains("used already"));
    let (_two, mut ear) = fetch(&Identity::ephemeral().unwrap());
    ear.finished().await;
    sender.finished().await;
    while sender.next().await.is_some() {}
}

#[tokio::test]
async fn a_source_that_changed_is_noticed() {
    let mut pattern = Pattern { changed_from: 3 << 20, ..Arc::into_inner(Pattern::new(5 << 20, 4)).unwrap() };
    pattern.reads = 0.into();
    let (sending, events) = bulk::send(options(), Peers::Listen(by_ticket(SECRET, 1)), Arc::new(pattern)).unwrap();
    let mut sender = Ear::new(events);
    let to = Peers::Dial(vec![dial(sender.listening().await, Some(SECRET))]);
    let (_receiving, events) = bulk::receive(options(), to, Memory::new()).unwrap();
    let error = Ear::new(events).failed().await;
    assert!(error.contains("changed meanwhile"), "{error}");
    assert!(sender.failed().await.contains("pattern changed"));
    sending.cancel();
}

#[tokio::test]
async fn a_refusal_and_a_full_disk_are_told() {
    let pattern = Pattern::new(3 << 20, 4);
    let refusing = Arc::new(Memory { refuses: true, ..Memory::default() });
    let (_r, events) = bulk::receive(options(), Peers::Listen(by_ticket(SECRET, 1)), refusing).unwrap();
    let mut receiver = Ear::new(events);
    let to = Peers::Dial(vec![dial(receiver.listening().await, Some(SECRET))]);
    let (_s, events) = bulk::send(options(), to, pattern.clone()).unwrap();
    assert!(Ear::new(events).failed().await.contains("there is no place for that"));
    assert!(receiver.failed().await.contains("there is no place for that"));

    let memory = Arc::new(Memory { room: 1 << 20, ..Memory::default() });
    let (_r, events) = bulk::receive(options(), Peers::Listen(by_ticket(SECRET, 1)), memory.clone()).unwrap();
    let mut receiver = Ear::new(events);
    let to = Peers::Dial(vec![dial(receiver.listening().await, Some(SECRET))]);
    let (_s, events) = bulk::send(options(), to, pattern.clone()).unwrap();
    let mut sender = Ear::new(events);
    receiver.until(|event| matches!(event, Event::Waiting { what: Waiting::Room(_), .. }).then_some(())).await;
    memory.only().room.store(u64::MAX, Ordering::Relaxed);
    receiver.until(|event| matches!(event, Event::GoesOn { .. }).then_some(())).await;
    receiver.finished().await;
    sender.finished().await;
    memory.only().assert_is(&pattern);
}

/// A transfer of which the disk has taken a MiB, and the memory is full of what came behind that.
struct Full {
    sender: Ear,
    receiver: Ear,
    pattern: Arc<Pattern>,
    memory: Arc<Memory>,
    handles: [bulk::Handle; 2],
}

async fn full() -> Full {
    let memory = Arc::new(Memory { room: 1 << 20, ..Memory::default() });
    // Not much memory: it is full soon.
    let own = Options { memory_bytes: 4 << 20, ..options() };
    let (receiving, events) = bulk::receive(own, Peers::Listen(by_ticket(SECRET, 1)), memory.clone()).unwrap();
    let mut receiver = Ear::new(events);
    let pattern = Pattern::new(24 << 20, 4);
    let to = Peers::Dial(vec![dial(receiver.listening().await, Some(SECRET))]);
    let (sending, events) = bulk::send(options(), to, pattern.clone()).unwrap();
    let mut sender = Ear::new(events);
    receiver.until(|event| matches!(event, Event::Waiting { what: Waiting::Room(_), .. }).then_some(())).await;
    // Nothing is answered any more: a mark's answer would say that all is lost.
    sender.until(|event| matches!(event, Event::Waiting { what: Waiting::Paths, .. }).then_some(())).await;
    Full { sender, receiver, pattern, memory, handles: [sending, receiving] }
}

async fn goes_on_after(wait: Duration) {
    let Full { mut sender, mut receiver, pattern, memory, handles: _handles } = full().await;
    tokio::time::sleep(wait).await;
    memory.only().room.store(u64::MAX, Ordering::Relaxed);
    receiver.until(|event| matches!(event, Event::GoesOn { .. }).then_some(())).await;
    sender.until(|event| matches!(event, Event::GoesOn { .. }).then_some(())).await;
    receiver.finished().await;
    sender.finished().await;
    memory.only().assert_is(&pattern);
    let heard = [sender.heard, receiver.heard].concat();
    let is_wrong =
        |event: &&String| event.contains("do not come through") || event.contains("Waiting") && event.contains("Peer(");
    assert_eq!(heard.iter().find(is_wrong), None, "{heard:#?}");
}

#[tokio::test]
async fn a_full_disk_is_waited_for_and_what_came_meanwhile_comes_again() {
    goes_on_after(Duration::from_millis(1500)).await;
}

#[tokio::test]
#[ignore = "waits half a minute, which is longer than QUIC waits for an end that says nothing"]
async fn a_disk_that_is_full_for_long_ends_nothing() {
    goes_on_after(Duration::from_secs(30)).await;
}

#[tokio::test]
async fn an_end_whose_disk_is_full_hears_the_other_end() {
    let Full { mut receiver, handles: [sending, _receiving], .. } = full().await;
    // Until what waits in the receiver's socket is taken from there: before, there may be no room in it for more.
    tokio::time::sleep(Duration::from_secs(3)).await;
    sending.cancel();
    assert!(receiver.failed().await.contains("interrupted"));
}

/// What is lost of the last words is said again, as anything is.
#[tokio::test]
async fn an_end_that_is_interrupted_says_so_until_that_arrived() {
    let (_receiving, events) = bulk::receive(options(), Peers::Listen(by_ticket(SECRET, 1)), Memory::new()).unwrap();
    let mut receiver = Ear::new(events);
    let relay = Relay::to(receiver.listening().await);
    let to = Peers::Dial(vec![dial(relay.address, Some(SECRET))]);
    let (sending, _events) = bulk::send(slow(), to, Pattern::new(24 << 20, 4)).unwrap();
    verified(&mut receiver, 1 << 20).await;
    relay.is_silent.store(true, Ordering::Relaxed);
    sending.cancel();
    // Longer than it takes to say it once.
    tokio::time::sleep(Duration::from_millis(500)).await;
    relay.is_silent.store(false, Ordering::Relaxed);
    assert!(receiver.failed().await.contains("interrupted"));
}

#[tokio::test]
async fn an_end_whose_disk_is_full_says_that_it_was_interrupted() {
    let Full { mut sender, handles: [_sending, receiving], .. } = full().await;
    receiving.cancel();
    assert!(sender.failed().await.contains("interrupted"));
}

#[tokio::test]
async fn a_disk_that_is_full_at_the_very_end_is_waited_for() {
    let is_full = Arc::new(AtomicBool::new(true));
    let full = is_full.clone();
    let before_finish: BeforeFinish = Arc::new(move || match full.load(Ordering::Relaxed) {
        true => Err(DestinationError::Full("the disk is full".to_owned())),
        false => Ok(()),
    });
    let memory = Arc::new(Memory { before_finish: Some(before_finish), ..Memory::default() });
    let (_r, events) = bulk::receive(options(), Peers::Listen(by_ticket(SECRET, 1)), memory.clone()).unwrap();
    let mut receiver = Ear::new(events);
    let pattern = Pattern::new(1 << 20, 4);
    let to = Peers::Dial(vec![dial(receiver.listening().await, Some(SECRET))]);
    let (_s, events) = bulk::send(options(), to, pattern.clone()).unwrap();
    let mut sender = Ear::new(events);
    receiver.until(|event| matches!(event, Event::Waiting { what: Waiting::Room(_), .. }).then_some(())).await;
    is_full.store(false, Ordering::Relaxed);
    receiver.until(|event| matches!(event, Event::GoesOn { .. }).then_some(())).await;
    receiver.finished().await;
    sender.finished().await;
    memory.only().assert_is(&pattern);
}

/// Whoever hears that all is done ends the process, as the program does.
#[tokio::test]
async fn a_receiver_that_was_called_is_done_once_its_receipt_has_arrived() {
    let is_silent = Arc::<AtomicBool>::default();
    let silent = is_silent.clone();
    // What the receiver says from here on gets lost, the receipt first of all.
    let before_finish: BeforeFinish = Arc::new(move || {
        silent.store(true, Ordering::Relaxed);
        Ok(())
    });
    let memory = Arc::new(Memory { before_finish: Some(before_finish), ..Memory::default() });
    let (receiving, events) = bulk::receive(options(), Peers::Listen(by_ticket(SECRET, 1)), memory.clone()).unwrap();
    let mut receiver = Ear::new(events);
    let relay = Relay::unless(is_silent.clone(), receiver.listening().await);
    let to = Peers::Dial(vec![dial(relay.address, Some(SECRET))]);
    let (_s, events) = bulk::send(options(), to, Pattern::new(1 << 20, 4)).unwrap();
    let mut sender = Ear::new(events);
    let ending = tokio::spawn(async move {
        receiver.finished().await;
        receiving.cancel();
        while receiver.next().await.is_some() {}
    });
    while !is_silent.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Longer than it takes to end.
    tokio::time::sleep(Duration::from_millis(500)).await;
    relay.is_silent.store(false, Ordering::Relaxed);
    sender.finished().await;
    ending.await.unwrap();
}

#[tokio::test]
async fn strangers_packets_do_nothing() {
    let memory = Memory::new();
    let (_r, events) = bulk::receive(options(), Peers::Listen(by_ticket(SECRET, 1)), memory.clone()).unwrap();
    let mut receiver = Ear::new(events);
    let target = receiver.listening().await;
    let over = Arc::<AtomicBool>::default();
    let done = over.clone();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let spray = std::thread::spawn(move || {
        let (socket, mut rng) = (UdpSocket::bind("127.0.0.1:0").unwrap(), fastrand::Rng::with_seed(seed));
        while !done.load(Ordering::Relaxed) {
            let mut packet: Vec<u8> = (0..rng.usize(0..1472)).map(|_| rng.u8(..)).collect();
            if let Some(first) = packet.first_mut().filter(|_| rng.u8(..4) > 0) {
                *first = rng.u8(8..11);
            }
            let _ = socket.send_to(&packet, target);
            if rng.u8(..16) == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        socket.set_nonblocking(true).unwrap();
        let mut answers = 0;
        while let Ok((len, _)) = socket.recv_from(&mut [0; 2000]) {
            answers += len;
        }
        answers
    });
    let pattern = Pattern::new(6 << 20, 4);
    let to = Peers::Dial(vec![dial(target, Some(SECRET))]);
    let (_s, events) = bulk::send(options(), to, pattern.clone()).unwrap();
    Ear::new(events).finished().await;
    receiver.finished().await;
    over.store(true, Ordering::Relaxed);
    let _ = spray.join().unwrap();
    memory.only().assert_is(&pattern);
}
