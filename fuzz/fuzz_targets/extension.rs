//! Any bytes as extended messages, any order of events at the metadata fetch, and what is heard of paths.
//!
//! Input: a byte that chooses, then the payload or the events.
#![no_main]

use std::time::{Duration, Instant};

use anabranch_bittorrent::ConnId;
use anabranch_bittorrent::extension::{
    ADDRESSES_MAX, ExtensionHandshake, HolepunchMessage, METADATA_PIECE_LEN, MetadataFetch, MetadataMessage,
    MetadataProgress, PathTalk, PathsMessage, PexMessage, Wish, parse_dont_have, parse_upload_only,
};
use anabranch_content::hash::sha1;
use anabranch_content::info::InfoHashes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, payload)) = data.split_first() else { return };
    match choice % 7 {
        0 => {
            let Ok(handshake) = ExtensionHandshake::parse(payload) else { return };
            assert!(handshake.addresses.iter().flatten().count() <= ADDRESSES_MAX);
            assert_eq!(ExtensionHandshake::parse(&handshake.encode()), Ok(handshake));
        }
        1 => {
            let Ok(Some(message)) = MetadataMessage::parse(payload) else { return };
            assert_eq!(MetadataMessage::parse(&message.encode()), Ok(Some(message)));
        }
        2 => {
            let Ok(message) = PexMessage::parse(payload) else { return };
            assert_eq!(PexMessage::parse(&message.encode()), Ok(message));
        }
        3 => {
            let _ = (parse_dont_have(payload), parse_upload_only(payload));
        }
        4 => fetch(payload),
        5 => {
            let Ok(Some(message)) = HolepunchMessage::parse(payload) else { return };
            let again = HolepunchMessage::parse(&message.encode()).expect("written whole").expect("known");
            assert_eq!(again.address, message.address);
        }
        _ => {
            let Ok(message) = PathsMessage::parse(payload) else { return };
            assert_eq!(PathsMessage::parse(&message.encode()), Ok(message.clone()));
            let (mut talk, now) = (PathTalk::default(), Instant::now());
            talk.wish(Some(Wish { paths: 2, dial: false, selector: None }));
            talk.on_message(message.clone(), now);
            assert!(talk.granted().len() <= 2);
            let wished = talk.their_wish().map_or(0, |wish| usize::from(wish.paths));
            assert!(talk.grant(message.used.unwrap_or_default()) <= wished);
        }
    }
});

/// Four peers of which one is honest; three bytes an event.
fn fetch(events: &[u8]) {
    const SIZE: usize = METADATA_PIECE_LEN as usize + 100;
    const HONEST: ConnId = ConnId(0);
    let metadata = vec![1; SIZE];
    let lie = vec![2; SIZE];
    let mut fetch = MetadataFetch::new(InfoHashes { v1: Some(sha1(&metadata)), v2: None });
    let mut now = Instant::now();
    for &[action, conn, detail] in events.as_chunks::<3>().0 {
        let conn = ConnId(u32::from(conn % 4));
        match action % 6 {
            0 => drop(fetch.add_peer(
                conn,
                if detail == 0 { SIZE as u64 } else { u64::from(detail) << (detail % 40) },
                now,
            )),
            1 => fetch.remove_peer(conn),
            2 => drop(fetch.next_request(conn, now)),
            3 => fetch.rejected(conn, u32::from(detail % 3), now),
            4 => now += Duration::from_secs(u64::from(detail)),
            _ => {
                let content = if conn == HONEST { &metadata } else { &lie };
                let piece = detail % 3;
                let data = content.chunks(METADATA_PIECE_LEN as usize).nth(piece.into()).unwrap_or(&[]);
                match fetch.received(conn, piece.into(), None, data, now) {
                    Ok(MetadataProgress::Complete(complete)) => return assert_eq!(complete, metadata),
                    Ok(MetadataProgress::Failed { blamed }) => assert_ne!(blamed, Some(HONEST)),
                    Ok(MetadataProgress::Going) | Err(_) => {}
                }
            }
        }
        fetch.deadline();
    }
}
