//! Any bytes as what the other end of a bulk transfer may send, the first byte says as what: read or refused, and what is read
//! is written and the same again.
#![no_main]

use anabranch_hercules::wire::control::{CONTROL_BODY_MAX, Control};
use anabranch_hercules::wire::manifest::{Layout, parse_entries};
use anabranch_hercules::wire::message::Message;
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_hercules::wire::seal::{Head, Kind, Opener, SECRET_LEN, Secret};
use anabranch_hercules::wire::ticket::Ticket;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((what, data)) = data.split_first() else { return };
    match what % 6 {
        0 => control(data),
        1 => message(data),
        2 => {
            let Ok(entries) = parse_entries(data) else { return };
            let (mut layout, mut again) = (Layout::default(), Vec::new());
            for entry in &entries {
                entry.write(&mut again).expect("what was read may be written");
                let _ = layout.push(entry);
            }
            assert_eq!(parse_entries(&again), Ok(entries));
            let len = layout.content_len();
            let pieces: u64 = layout.pieces(len / 3..len / 2).map(|piece| piece.len).sum();
            assert_eq!(pieces, len / 2 - len / 3);
        }
        3 => {
            if let Ok(receipt) = Receipt::parse(data) {
                let mut again = Vec::new();
                receipt.write(&mut again);
                assert_eq!(again, data);
                assert!(!receipt.verify());
            }
        }
        4 => {
            let Ok(text) = std::str::from_utf8(data) else { return };
            let Ok(ticket) = text.parse::<Ticket>() else { return };
            assert_eq!(ticket.to_string().parse(), Ok(ticket));
        }
        _ => {
            let _ = Head::peek(data);
            let secret = Secret::new(7, &[3; SECRET_LEN]);
            let (head, body) = data.split_at(data.len().min(34));
            assert!(Opener::new(&secret, Kind::Data, 2).open(head, &mut body.to_vec()).is_err());
        }
    }
});

fn control(data: &[u8]) {
    let Ok(control) = Control::parse(data) else { return };
    if let Control::Report(report) = &control {
        // Runs touch and fill the report.
        let end = report.runs().fold(report.low, |at, (_, run)| {
            assert_eq!(run.start, at);
            run.end
        });
        assert_eq!(end, report.high);
    }
    let mut again = Vec::new();
    control.write(&mut again);
    assert!(again.len() <= data.len().max(CONTROL_BODY_MAX));
    assert_eq!(Control::parse(&again), Ok(control));
}

fn message(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some((message, len))) = Message::parse(rest) {
        rest = &rest[len..];
        let mut again = Vec::new();
        message.write(&mut again);
        let len = again.len();
        assert_eq!(Message::parse(&again), Ok(Some((message, len))));
    }
}
