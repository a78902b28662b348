//! The other end lies, or somebody in between does: a typed error or nothing at all, never a panic or work without end.
#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what messages carry")]

use std::time::{Duration, Instant};

use anabranch_hercules::congestion::Kind as Congestion;
use anabranch_hercules::wire::control::{Answer, Control, Mark, Report};
use anabranch_hercules::wire::message::{Message, Offer};
use anabranch_hercules::wire::seal::{CONTROL_HEAD_LEN, DATA_HEAD_LEN, Dropped, Kind, Sealer, Secret};
use anabranch_hercules::{
    Arrived, Batch, CONTROL_PACKET_MAX, ChunkSet, Event, Everything, Misbehaviour, PacketWindow, REPORTS_PER_MARK_MAX,
    Receiver, ReceiverEvent, Refused, Sender, tree,
};

const CHUNK_LEN: u16 = 1400;

struct Ends {
    now: Instant,
    secret: Secret,
    sender: Sender,
    receiver: Receiver,
    data: Sealer,
    /// Of packets that are made here.
    number: u64,
}

/// A path is open, nothing was sent.
fn ends(content_len: u64) -> Ends {
    let (now, secret) = (Instant::now(), Secret::new(7, &[3; 32]));
    let offer = Offer { transfer: 7, chunk_len: CHUNK_LEN, content_len, manifest_len: 0, manifest_hash: [0; 32] };
    let mut sender = Sender::new(offer, secret.clone(), Congestion::Vivace, 1, now).unwrap();
    let spans = tree::span_count(content_len);
    let mut receiver = Receiver::new(offer, ChunkSet::new(spans), now).unwrap();
    let data = sender.add_path(0, None, now).unwrap();
    assert!(receiver.add_path(0, &secret, now));
    while let Some(message) = receiver.poll_message() {
        sender.on_message(message).unwrap();
    }
    let mut ends = Ends { now, secret, sender, receiver, data, number: 1000 };
    ends.talk();
    assert!(matches!(ends.sender.poll_event(), Some(Event::PathUp { path: 0, .. })));
    ends.now += Duration::from_millis(50);
    ends
}

impl Ends {
    /// Carries all control there and back; how many packets the receiver sent.
    fn talk(&mut self) -> usize {
        let (mut packet, mut count) = ([0; CONTROL_PACKET_MAX], 0);
        while let Some((_, len)) = self.sender.poll_control(self.now, &mut packet) {
            self.receiver.on_datagram(&mut packet[..len], self.now).unwrap();
            while let Some((_, len)) = self.receiver.poll_control(self.now, &mut packet) {
                count += 1;
                self.sender.on_datagram(&mut packet[..len], self.now).unwrap();
            }
        }
        count
    }

    /// Sends one batch that nobody gets.
    fn lose_batch(&mut self) -> Batch {
        let mut batch = Batch::default();
        assert!(self.sender.poll_batch(self.now, &mut Everything, &mut batch));
        batch
    }

    /// A control packet of the end that has gone bad, sealed as it should be.
    fn sealed(&mut self, kind: Kind, control: &Control) -> Vec<u8> {
        let (mut head, mut body) = ([0; CONTROL_HEAD_LEN], Vec::new());
        control.write(&mut body);
        self.number += 1;
        Sealer::new(&self.secret, kind, 0).seal_control(self.number, &mut body, &mut head);
        [&head[..], &body].concat()
    }

    fn lie(&mut self, control: &Control) -> Result<u8, Refused> {
        let mut packet = self.sealed(Kind::FromReceiver, control);
        self.sender.on_datagram(&mut packet, self.now)
    }

    fn data(&mut self, number: u64, chunk: u64, len: usize) -> Vec<u8> {
        let (mut head, mut body) = ([0; DATA_HEAD_LEN], vec![1; len]);
        self.data.seal_chunk(number, chunk, &mut body, &mut head);
        [&head[..], &body].concat()
    }
}

fn window(numbers: impl Iterator<Item = u64>) -> PacketWindow {
    let mut window = PacketWindow::default();
    numbers.for_each(|number| _ = window.insert(number));
    window
}

fn misbehaved(result: Result<u8, Refused>) -> Misbehaviour {
    match result {
        Err(Refused::Misbehaviour(misbehaviour)) => misbehaviour,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_receiver_that_reports_what_was_never_sent_is_told_so() {
    let mut ends = ends(1 << 30);
    let sent = ends.lose_batch();
    let next = sent.first + sent.chunks.len() as u64;
    let all = window(0..1 << 20);
    // Just inside, and just outside.
    assert_eq!(ends.lie(&Control::Report(Report::of(&all, 0, None, 0, next))), Ok(0));
    assert_eq!(ends.sender.progress().came, next);
    let report = Control::Report(Report::of(&all, 0, None, 0, next + 1));
    assert_eq!(misbehaved(ends.lie(&report)), Misbehaviour::ReportedUnsent { path: 0 });
    let report = Control::Report(Report::of(&all, 0, None, (1 << 48) - 5, 1 << 48));
    assert_eq!(misbehaved(ends.lie(&report)), Misbehaviour::ReportedUnsent { path: 0 });
    // A path that does not exist, and a mark that was not sent, or in the future.
    let report = Control::Report(Report::of(&all, 9, None, 0, 1));
    assert_eq!(misbehaved(ends.lie(&report)), Misbehaviour::ReportedUnsent { path: 9 });
    let answer = Answer { mark: 1 << 30, sender_us: 0, receiver_us: 0, delay_us: 0 };
    let report = Control::Report(Report::of(&all, 0, Some(answer), 0, 1));
    assert_eq!(misbehaved(ends.lie(&report)), Misbehaviour::ReportedUnsent { path: 0 });
    let echo = Control::Echo { sender_us: u64::MAX, receiver_us: 0 };
    assert!(matches!(misbehaved(ends.lie(&echo)), Misbehaviour::OutOfTurn(_)));
    let hello = Control::Hello { sender_us: 0 };
    assert!(matches!(misbehaved(ends.lie(&hello)), Misbehaviour::OutOfTurn(_)));
    assert_eq!(ends.sender.progress().came, next);
    // A mark that is on its way: who does not have it does not know what it says. Nor what a hello said.
    let mut packet = [0; CONTROL_PACKET_MAX];
    ends.now += Duration::from_secs(1);
    assert!(ends.sender.poll_control(ends.now, &mut packet).is_some(), "a mark");
    let answer = Answer { mark: 0, sender_us: 1_000_000, receiver_us: 0, delay_us: 0 };
    let report = Control::Report(Report::of(&all, 0, Some(answer), 0, 1));
    assert_eq!(misbehaved(ends.lie(&report)), Misbehaviour::AnsweredUnsent { path: 0 });
    let echo = Control::Echo { sender_us: 1, receiver_us: 0 };
    assert!(matches!(misbehaved(ends.lie(&echo)), Misbehaviour::OutOfTurn(_)));
}

#[test]
fn a_receiver_that_takes_everything_back_is_heard_once_for_each_packet() {
    let mut ends = ends(1 << 30);
    let sent = ends.lose_batch();
    let count = sent.chunks.len() as u64;
    let (none, all) = (window(std::iter::empty()), window(0..count));
    for _ in 0..3 {
        assert_eq!(ends.lie(&Control::Report(Report::of(&none, 0, None, 0, count))), Ok(0));
    }
    assert_eq!((ends.sender.progress().lost_packets, ends.sender.progress().came), (count, 0));
    for _ in 0..3 {
        assert_eq!(ends.lie(&Control::Report(Report::of(&all, 0, None, 0, count))), Ok(0));
        assert_eq!(ends.lie(&Control::Report(Report::of(&none, 0, None, 0, count))), Ok(0));
    }
    assert_eq!((ends.sender.progress().lost_packets, ends.sender.progress().came), (0, count));
}

#[test]
fn spans_that_do_not_exist_or_are_refused_for_ever_end_it() {
    let mut ends = ends(10 << 20);
    assert_eq!(ends.sender.on_message(Message::Again(vec![10..11])), Err(Misbehaviour::OutOfRange("spans")));
    let refused = (0..100).map(|_| ends.sender.on_message(Message::Again(vec![0..10]))).find(Result::is_err);
    assert_eq!(refused, Some(Err(Misbehaviour::AgainTooOften)));
    assert!(matches!(ends.sender.on_message(Message::Kept(vec![0..1])), Err(Misbehaviour::OutOfTurn(_))));
    assert!(matches!(ends.sender.on_message(Message::Root([0; 32])), Err(Misbehaviour::OutOfTurn(_))));
    assert!(matches!(ends.receiver.on_message(Message::Ready), Err(Misbehaviour::OutOfTurn(_))));
    let hashes = Message::Hashes { first: 0, hashes: vec![[0; 32]; 11] };
    assert_eq!(ends.receiver.on_message(hashes), Err(Misbehaviour::OutOfRange("hashes")));
    let hashes = Message::Hashes { first: 0, hashes: vec![[0; 32]; 10] };
    assert_eq!(ends.receiver.on_message(hashes), Ok(()));
    assert_eq!(ends.receiver.on_message(Message::Root([0; 32])), Err(Misbehaviour::WrongRoot));
}

#[test]
fn forged_replayed_and_cut_packets_leave_no_trace() {
    let mut ends = ends(1 << 30);
    let good = ends.data(0, 5, CHUNK_LEN.into());
    for bit in (0..good.len() * 8).step_by(13) {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(ends.receiver.on_datagram(&mut bad, ends.now), Err(Refused::Dropped(_))), "bit {bit}");
    }
    for len in 0..good.len() {
        let mut cut = good[..len].to_vec();
        assert!(matches!(ends.receiver.on_datagram(&mut cut, ends.now), Err(Refused::Dropped(_))), "{len} bytes");
    }
    assert_eq!(ends.receiver.progress().0, 0);
    assert!(ends.receiver.poll_control(ends.now, &mut [0; CONTROL_PACKET_MAX]).is_none());
    assert!(ends.receiver.on_datagram(&mut good.clone(), ends.now).is_ok());
    let again = ends.receiver.on_datagram(&mut good.clone(), ends.now);
    assert_eq!(again, Err(Refused::Dropped(Dropped::Replayed)));
    assert_eq!(ends.receiver.progress().0, 1);
    // What the receiver itself sealed does not come back to it as the sender's.
    let mut reflected = ends.sealed(Kind::FromReceiver, &Control::Hello { sender_us: 1 });
    let refused = ends.receiver.on_datagram(&mut reflected, ends.now);
    assert_eq!(refused, Err(Refused::Dropped(Dropped::NotOurs)));
}

#[test]
fn a_sender_that_names_chunks_or_lengths_that_are_not_is_told_so() {
    let mut ends = ends(3000);
    let mut packet = ends.data(0, 3, CHUNK_LEN.into());
    let refused = ends.receiver.on_datagram(&mut packet, ends.now);
    assert_eq!(refused, Err(Misbehaviour::OutOfRange("a chunk").into()));
    let mut packet = ends.data(1, 2, 201);
    let refused = ends.receiver.on_datagram(&mut packet, ends.now);
    assert_eq!(refused, Err(Misbehaviour::ChunkLength(2).into()));
    let mut packet = ends.data(2, 2, 200);
    let taken = ends.receiver.on_datagram(&mut packet, ends.now);
    assert_eq!(taken, Ok(Arrived::Chunk { path: 0, chunk: 2, write: 2800..3000 }));
}

#[test]
fn a_mark_asks_for_a_bounded_answer_whatever_was_lost() {
    let mut ends = ends(1 << 40);
    // Every second packet of a whole window came.
    for number in (0..1 << 20).step_by(2) {
        let mut packet = ends.data(number, number, CHUNK_LEN.into());
        ends.receiver.on_datagram(&mut packet, ends.now).unwrap();
    }
    let mut packet = [0; CONTROL_PACKET_MAX];
    let mut drain = |ends: &mut Ends| std::iter::from_fn(|| ends.receiver.poll_control(ends.now, &mut packet)).count();
    assert!(drain(&mut ends) <= 2, "gaps were reported as often as time allows");
    let mark = Mark { mark: 900, sender_us: 0, oldest: 0, next: 1 << 40, interval_us: 1000 };
    let mut marked = ends.sealed(Kind::FromSender, &Control::Mark(mark));
    ends.receiver.on_datagram(&mut marked, ends.now).unwrap();
    assert_eq!(drain(&mut ends), REPORTS_PER_MARK_MAX);
    // The same mark under another number is no new question.
    let mut marked = ends.sealed(Kind::FromSender, &Control::Mark(mark));
    ends.receiver.on_datagram(&mut marked, ends.now).unwrap();
    assert_eq!(drain(&mut ends), 0);
}

#[test]
fn a_span_that_is_not_what_its_hash_says_comes_again() {
    let mut ends = ends(3 << 20);
    let hashes = Message::Hashes { first: 0, hashes: vec![[1; 32]; 3] };
    ends.receiver.on_message(hashes).unwrap();
    for chunk in 0..(3u64 << 20).div_ceil(CHUNK_LEN.into()) {
        let len = ((3 << 20) - chunk as usize * usize::from(CHUNK_LEN)).min(CHUNK_LEN.into());
        let mut packet = ends.data(chunk, chunk, len);
        ends.receiver.on_datagram(&mut packet, ends.now).unwrap();
    }
    ends.receiver.on_span_hash(0, [1; 32]);
    ends.receiver.on_span_hash(1, [2; 32]);
    assert_eq!(ends.receiver.poll_message(), Some(Message::Again(vec![1..2])));
    let (came, all) = ends.receiver.progress();
    assert_eq!(all - came, 750);
    // Chunks on the edge come again for the second span, and leave the first alone, which is kept.
    let first = (1u64 << 20) / u64::from(CHUNK_LEN);
    let mut packet = ends.data(9000, first, CHUNK_LEN.into());
    let Ok(Arrived::Chunk { write, .. }) = ends.receiver.on_datagram(&mut packet, ends.now) else { panic!() };
    assert_eq!(write, 1 << 20..(first + 1) * u64::from(CHUNK_LEN));
}

#[test]
fn what_seems_to_be_there_is_looked_at_once_its_hash_is_known_and_sent_where_it_is_another() {
    let (now, secret) = (Instant::now(), Secret::new(7, &[3; 32]));
    let offer =
        Offer { transfer: 7, chunk_len: CHUNK_LEN, content_len: 3 << 20, manifest_len: 0, manifest_hash: [0; 32] };
    let mut sender = Sender::new(offer, secret.clone(), Congestion::Vivace, 1, now).unwrap();
    let mut receiver = Receiver::with_claims(offer, ChunkSet::new(3), ChunkSet::full(3), now).unwrap();
    assert!(receiver.add_path(0, &secret, now));
    let data = sender.add_path(0, None, now).unwrap();
    while let Some(message) = receiver.poll_message() {
        sender.on_message(message).unwrap();
    }
    assert!(receiver.kept().is_empty(), "nothing is verified");
    receiver.on_message(Message::Hashes { first: 0, hashes: vec![[1; 32]; 3] }).unwrap();
    let asked: Vec<ReceiverEvent> = std::iter::from_fn(|| receiver.poll_event()).collect();
    assert_eq!(asked, [0, 1, 2].map(ReceiverEvent::SpanCame));
    let mut ends = Ends { now, secret, sender, receiver, data, number: 1000 };
    ends.talk();
    // A chunk on the edge is written nowhere as long as both sides may be had, and is asked for again with the span.
    let edge = (1u64 << 20) / u64::from(CHUNK_LEN);
    let mut packet = ends.data(2000, edge, CHUNK_LEN.into());
    let Ok(Arrived::Chunk { write, .. }) = ends.receiver.on_datagram(&mut packet, ends.now) else { panic!() };
    assert!(write.is_empty(), "{write:?}");
    for (span, hash) in [(0, [1; 32]), (1, [2; 32]), (2, [1; 32])] {
        ends.receiver.on_span_hash(span, hash);
    }
    let again = ends.receiver.poll_message().unwrap();
    assert_eq!(again, Message::Again(vec![1..2]));
    ends.sender.on_message(again).unwrap();
    let chunks = edge..(2u64 << 20).div_ceil(CHUNK_LEN.into());
    for (number, chunk) in (3000..).zip(chunks) {
        let mut packet = ends.data(number, chunk, CHUNK_LEN.into());
        let Ok(Arrived::Chunk { write, .. }) = ends.receiver.on_datagram(&mut packet, ends.now) else { panic!() };
        assert!(write.start >= 1 << 20 && write.end <= 2 << 20 && !write.is_empty(), "{write:?}");
    }
    ends.receiver.on_span_hash(1, [1; 32]);
    let events: Vec<ReceiverEvent> = std::iter::from_fn(|| ends.receiver.poll_event()).collect();
    assert!(events.contains(&ReceiverEvent::SpanCame(1)) && events.contains(&ReceiverEvent::SpanKept(1)), "{events:?}");
    assert!(ends.receiver.kept().is_full());
}

#[test]
fn a_path_that_was_taken_out_gives_back_its_chunks_and_never_its_index() {
    let mut ends = ends(1 << 30);
    let sent = ends.lose_batch();
    ends.sender.remove_path(0);
    assert_eq!(ends.sender.deadline(), None);
    assert!(ends.sender.add_path(0, None, ends.now).is_none());
    ends.data = ends.sender.add_path(1, None, ends.now).unwrap();
    assert!(ends.receiver.add_path(1, &ends.secret, ends.now));
    ends.talk();
    // A late report about it, over the other, is no lie.
    let report = Report::of(&window(0..9), 0, None, 0, 9);
    let (mut head, mut body) = ([0; CONTROL_HEAD_LEN], Vec::new());
    Control::Report(report).write(&mut body);
    Sealer::new(&ends.secret, Kind::FromReceiver, 1).seal_control(1000, &mut body, &mut head);
    assert_eq!(ends.sender.on_datagram(&mut [&head[..], &body].concat(), ends.now), Ok(1));
    ends.now += Duration::from_millis(50);
    let (mut chunks, mut batch) = (Vec::new(), Batch::default());
    while ends.sender.poll_batch(ends.now, &mut Everything, &mut batch) {
        assert_eq!(batch.path, 1);
        chunks.extend(&batch.chunks);
    }
    assert!(!chunks.is_empty() && chunks.iter().all(|chunk| !sent.chunks.contains(chunk)), "this round goes on");
    assert_eq!(ends.sender.progress().round, 1);
}
