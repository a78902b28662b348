//! The bytes in docs/bulk.md are those that this code writes, and reads.

use std::fmt::Write;
use std::net::SocketAddr;

use anabranch_hercules::wire::control::{Answer, Control, Mark, Report};
use anabranch_hercules::wire::manifest::{Entry, EntryKind, parse_entries};
use anabranch_hercules::wire::message::{Message, Offer};
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_hercules::wire::seal::{CONTROL_HEAD_LEN, DATA_HEAD_LEN, Kind, Opener, Sealer, Secret};
use anabranch_hercules::wire::ticket::{KeyPrint, Ticket, proof};
use anabranch_hercules::{PacketWindow, tree};
use anabranch_paths::Endpoint;
use ring::signature::{Ed25519KeyPair, KeyPair};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn controls() -> Vec<(&'static str, Kind, Control)> {
    let mut window = PacketWindow::default();
    (100..110).chain(112..115).for_each(|number| _ = window.insert(number));
    let answer = Answer { mark: 9, sender_us: 1_000_000, receiver_us: 77_000_000, delay_us: 5 };
    vec![
        ("hello", Kind::FromSender, Control::Hello { sender_us: 1_000_000 }),
        ("echo", Kind::FromReceiver, Control::Echo { sender_us: 1_000_000, receiver_us: 77_000_000 }),
        ("confirm", Kind::FromSender, Control::Confirm { receiver_us: 77_000_000, rtt_us: 20_000 }),
        (
            "mark",
            Kind::FromSender,
            Control::Mark(Mark { mark: 9, sender_us: 1_000_000, oldest: 100, next: 116, interval_us: 5000 }),
        ),
        (
            "report that answers it: 100 to 109 and 112 to 114 came, 110, 111 and 115 did not",
            Kind::FromReceiver,
            Control::Report(Report::of(&window, 2, Some(answer), 100, 116)),
        ),
        (
            "report of a gap: 110 and 111 did not come",
            Kind::FromReceiver,
            Control::Report(Report::of(&window, 2, None, 110, 112)),
        ),
        ("knock", Kind::FromReceiver, Control::Knock),
    ]
}

fn receipt(pair: &Ed25519KeyPair) -> Receipt {
    let mut receipt = Receipt {
        transfer: 7,
        root: [2; 32],
        content_len: 9000,
        manifest_hash: [4; 32],
        entries: 5,
        finished: 1_700_000_000,
        sender: [6; 32],
        receiver: pair.public_key().as_ref().try_into().unwrap(),
        signature: [0; 64],
    };
    receipt.signature = pair.sign(&receipt.signed_bytes()).as_ref().try_into().unwrap();
    receipt
}

fn messages(receipt: Receipt) -> Vec<(&'static str, Message)> {
    let offer = Offer { transfer: 7, chunk_len: 1400, content_len: 9000, manifest_len: 51, manifest_hash: [4; 32] };
    vec![
        ("offer", Message::Offer(offer)),
        ("entries of two bytes (no entry is so short)", Message::Entries(vec![0xab, 0xcd])),
        ("kept: spans 0, 1 and 5", Message::Kept(vec![0..2, 5..6])),
        ("ready", Message::Ready),
        ("hashes: of span 3", Message::Hashes { first: 3, hashes: vec![[1; 32]] }),
        ("root", Message::Root([2; 32])),
        ("again: span 300", Message::Again(vec![300..301])),
        ("receipt", Message::Receipt(Box::new(receipt))),
        ("end: turned away", Message::End { code: 1, reason: "no".into() }),
        (
            "open: the caller receives, with a ticket",
            Message::Open { sends: false, chunk_len_max: 1400, proof: Some(proof(&[5; 12], &[8; 32])) },
        ),
        ("path 3", Message::Path(3)),
        ("limit: a million bytes a second", Message::Limit(1_000_000)),
    ]
}

fn entries() -> Vec<(&'static str, Entry)> {
    let entry = |name: &str, kind| Entry { name: name.into(), mode: 0o644, modified: (1_700_000_000, 5), kind };
    vec![
        ("folder `a`", entry("a", EntryKind::Folder)),
        ("file `a/b` of 20 bytes, all data", entry("a/b", EntryKind::File { len: 20, extents: vec![0..20] })),
        (
            "file `c` of 9000 bytes, with data in 4096 to 8191",
            entry("c", EntryKind::File { len: 9000, extents: vec![4096..8192] }),
        ),
        ("link `d` to `a/b`", entry("d", EntryKind::Link(b"a/b".to_vec()))),
    ]
}

#[test]
fn the_page_has_the_bytes_that_are_written() {
    let secret = Secret::new(7, &[3; 32]);
    let mut page = String::from("Sealed packets, path 2, each with packet number 1:\n\n");
    let line = |page: &mut String, what: &str, bytes: &str| writeln!(page, "    {what}\n        {bytes}").unwrap();
    let (mut head, mut body) = ([0; DATA_HEAD_LEN], b"chunk".to_vec());
    Sealer::new(&secret, Kind::Data, 2).seal_chunk(1, 0x0102_0304_0506, &mut body, &mut head);
    line(&mut page, "data, of chunk 0x010203040506", &hex(&[&head[..], &body].concat()));
    for (name, kind, control) in controls() {
        let (mut head, mut body) = ([0; CONTROL_HEAD_LEN], Vec::new());
        control.write(&mut body);
        assert_eq!(Control::parse(&body), Ok(control));
        line(&mut page, &format!("{name}; its body"), &hex(&body));
        Sealer::new(&secret, kind, 2).seal_control(1, &mut body, &mut head);
        line(&mut page, "    sealed", &hex(&[&head[..], &body].concat()));
        Opener::new(&secret, kind, 2).open(&head, &mut body).unwrap();
    }
    let mut far = b"chunk".to_vec();
    Sealer::new(&secret, Kind::Data, 2).seal_chunk((1 << 22) + 1, 4, &mut far, &mut head);
    line(&mut page, "data of the next epoch: packet 0x400001, chunk 4", &hex(&[&head[..], &far].concat()));
    page += "\nMessages of the stream, whole:\n\n";
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    for (name, message) in messages(receipt(&pair)) {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        assert_eq!(Message::parse(&bytes), Ok(Some((message, bytes.len()))));
        line(&mut page, name, &hex(&bytes));
    }
    page += "\nEntries of a manifest:\n\n";
    for (name, entry) in entries() {
        let mut bytes = Vec::new();
        entry.write(&mut bytes).unwrap();
        assert_eq!(parse_entries(&bytes), Ok(vec![entry]));
        line(&mut page, name, &hex(&bytes));
    }
    page += "\nRoots, of so many bytes of which each is 42:\n\n";
    for len in [0, 1, 9000, 16_385, (1 << 20) + 1] {
        let mut hasher = tree::Hasher::new(len);
        hasher.update(&vec![42; len as usize]);
        line(&mut page, &format!("{len}"), &hex(&hasher.root().unwrap()));
    }
    page += "\nTickets, of which the holder receives: over IPv4; then over IPv4, IPv6 on the same port, and SCION on another:\n\n";
    let addresses = ["192.0.2.1:4433", "[2001:db8::1]:4433", "[1-ff00:0:110,192.0.2.1]:4434"];
    for count in [1, 3] {
        let addresses = addresses[..count].iter().map(|text| match text.parse::<SocketAddr>() {
            Ok(address) => Endpoint::from(address),
            Err(_) => Endpoint::Scion(text.parse().unwrap()),
        });
        let ticket = Ticket {
            holder_sends: false,
            addresses: addresses.collect(),
            key: KeyPrint::of(&[9; 32]),
            secret: [5; 12],
            expires: 1_800_000_000,
        };
        let text = ticket.to_string();
        assert_eq!(text.parse(), Ok(ticket));
        writeln!(page, "    {text}").unwrap();
    }
    let there = include_str!("../../../docs/bulk.md");
    assert!(there.contains(&page), "docs/bulk.md is to have, in its section of test vectors:\n{page}");
}
