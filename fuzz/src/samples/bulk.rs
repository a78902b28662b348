//! Samples of bulk transfer.

use anabranch_hercules::PacketWindow;
use anabranch_hercules::wire::control::{Answer, Control, Mark, Report};
use anabranch_hercules::wire::manifest::{Entry, EntryKind};
use anabranch_hercules::wire::message::{Message as BulkMessage, Offer};
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_hercules::wire::ticket::{KeyPrint, Ticket};

/// The first byte says what the rest is.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let mut window = PacketWindow::default();
    (0..40).filter(|number| number % 7 != 3).for_each(|number| _ = window.insert(number));
    let answer = Answer { mark: 1, sender_us: 2, receiver_us: 3, delay_us: 4 };
    let controls = [
        Control::Hello { sender_us: 1 },
        Control::Echo { sender_us: 1, receiver_us: 2 },
        Control::Confirm { receiver_us: 2, rtt_us: 3 },
        Control::Mark(Mark { mark: 1, sender_us: 2, oldest: 3, next: 40, interval_us: 5 }),
        Control::Report(Report::of(&window, 1, Some(answer), 0, 40)),
        Control::Report(Report::of(&window, 1, None, 3, 12)),
        Control::Knock,
    ];
    let (kind, modified) = (EntryKind::File { len: 90, extents: vec![1..20, 30..80] }, (7, 8));
    let entry = Entry { name: b"a/b".to_vec(), mode: 0o644, modified, kind };
    let mut entries = vec![2];
    entry.write(&mut entries).expect("an entry");
    let receipt = Receipt {
        transfer: 1,
        root: [2; 32],
        content_len: 3,
        manifest_hash: [4; 32],
        entries: 5,
        finished: 6,
        sender: [7; 32],
        receiver: [8; 32],
        signature: [9; 64],
    };
    let mut receipt_bytes = vec![3];
    receipt.write(&mut receipt_bytes);
    let offer = Offer { transfer: 1, chunk_len: 1400, content_len: 9, manifest_len: 8, manifest_hash: [4; 32] };
    let messages = [
        BulkMessage::Offer(offer),
        BulkMessage::Entries(entries[1..].to_vec()),
        BulkMessage::Kept(vec![0..3, 5..9]),
        BulkMessage::Ready,
        BulkMessage::Hashes { first: 1, hashes: vec![[1; 32]; 2] },
        BulkMessage::Root([1; 32]),
        BulkMessage::Again(vec![1..2, 5..6]),
        BulkMessage::Receipt(Box::new(receipt)),
        BulkMessage::Open { sends: true, chunk_len_max: 0, proof: Some([1; 32]) },
        BulkMessage::Path(3),
        BulkMessage::Limit(1_000_000),
        BulkMessage::End { code: 1, reason: "the disk is full".into() },
    ];
    let ticket = Ticket {
        holder_sends: false,
        addresses: vec!["192.0.2.7:1".parse().expect("IP"), "[1-ff00:0:110,10.0.0.1]:80".parse().expect("SCION")],
        key: KeyPrint([1; 16]),
        secret: [2; 12],
        expires: 3,
    };
    let with = |what: u8, write: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = vec![what];
        write(&mut bytes);
        bytes
    };
    let controls = controls.iter().map(|control| with(0, &|out| control.write(out)));
    let messages = messages.iter().map(|message| with(1, &|out| message.write(out)));
    let ticket = with(4, &|out| out.extend(ticket.to_string().bytes()));
    let mut packet = vec![5, 8, 2, 0, 0, 0, 7];
    packet.resize(60, 0);
    controls.chain(messages).chain([entries, receipt_bytes, ticket, packet]).collect()
}

/// A controller; then steps: what, how long, and bytes. An honest start, a batch, a while, and what [`bulk`] has.
pub(crate) fn ends() -> Vec<Vec<u8>> {
    let start = [5, 0, 7, 1, 10, 5, 0, 6, 0, 7, 1, 20, 5, 0];
    let step = |what: u8, body: &[u8]| {
        let body = &body[..body.len().min(255)];
        [&[what, body.len() as u8][..], body].concat()
    };
    let then = |at: u8, sample: &[u8]| {
        let (to_sender, to_receiver) = if sample[0] == 0 { (0, 1) } else { (3, 4) };
        let steps = [step(to_sender, &sample[1..]), step(to_receiver, &sample[1..])].concat();
        [&[at][..], &start, &steps, &start].concat()
    };
    let samples = messages();
    (0..).zip(samples.iter().filter(|sample| sample[0] < 2)).map(|(at, sample)| then(at, sample)).collect()
}
