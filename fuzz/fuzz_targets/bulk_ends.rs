//! Both ends of a bulk transfer against another end that has the keys and lies: a typed error or nothing, never a panic, nor more to
//! send or to keep than the limits say. Each step is a byte that says what, and bytes for it.
#![no_main]

use std::time::{Duration, Instant};

use anabranch_hercules::congestion::Kind as Congestion;
use anabranch_hercules::wire::message::{Message, Offer};
use anabranch_hercules::wire::seal::{CONTROL_HEAD_LEN, DATA_HEAD_LEN, Kind, Sealer, Secret};
use anabranch_hercules::{Batch, CONTROL_PACKET_MAX, ChunkSet, Everything, Receiver, Refused, Sender, tree};
use libfuzzer_sys::fuzz_target;

const CONTENT_LEN: u64 = 5 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((kind, mut data)) = data.split_first() else { return };
    let kind = [Congestion::Fair, Congestion::Bbr, Congestion::Vivace, Congestion::Allegro, Congestion::Fixed(1e6)]
        [usize::from(*kind) % 5];
    let (mut now, secret) = (Instant::now(), Secret::new(7, &[3; 32]));
    let offer =
        Offer { transfer: 7, chunk_len: 1400, content_len: CONTENT_LEN, manifest_len: 0, manifest_hash: [0; 32] };
    let mut sender = Sender::new(offer, secret.clone(), kind, 1, now).expect("a fair offer");
    let spans = tree::span_count(CONTENT_LEN);
    let mut receiver = Receiver::new(offer, ChunkSet::new(spans), now).expect("a fair offer");
    for path in 0..2 {
        sender.add_path(path, Some(0), now).expect("it is free");
        receiver.add_path(path, &secret, now);
    }
    let (mut number, mut batch, mut packet) = (0, Batch::default(), [0; CONTROL_PACKET_MAX]);
    while let Some((what, rest)) = data.split_first() {
        let len = rest.first().map_or(0, |len| usize::from(*len)).min(rest.len().saturating_sub(1));
        let body = rest.get(1..1 + len).unwrap_or_default();
        data = rest.get(1 + len..).unwrap_or_default();
        let path = what >> 3 & 1;
        number += 1;
        let done = match what % 8 {
            0 | 1 => {
                let to_sender = what % 8 == 0;
                let kind = if to_sender { Kind::FromReceiver } else { Kind::FromSender };
                let (mut head, mut body) = ([0; CONTROL_HEAD_LEN], body.to_vec());
                Sealer::new(&secret, kind, path).seal_control(number, &mut body, &mut head);
                let mut bytes = [&head[..], &body].concat();
                if to_sender {
                    sender.on_datagram(&mut bytes, now).map(|_| ())
                } else {
                    receiver.on_datagram(&mut bytes, now).map(|_| ())
                }
            }
            2 => {
                let (mut head, chunk) = ([0; DATA_HEAD_LEN], body.first().map_or(0, |byte| u64::from(*byte) * 16));
                let mut body = vec![0; if body.len() % 2 == 0 { 1400 } else { body.len() }];
                Sealer::new(&secret, Kind::Data, path).seal_chunk(number, chunk, &mut body, &mut head);
                receiver.on_datagram(&mut [&head[..], &body].concat(), now).map(|_| ())
            }
            3 | 4 => match Message::parse(body) {
                Ok(Some((message, _))) if what % 8 == 3 => sender.on_message(message).map_err(Refused::from),
                Ok(Some((message, _))) => receiver.on_message(message).map_err(Refused::from),
                _ => Ok(()),
            },
            // An honest receiver between the lies: what it says reaches the sender, and the other way round.
            5 => {
                while let Some(message) = receiver.poll_message() {
                    let _ = sender.on_message(message);
                }
                while let Some((_, len)) = sender.poll_control(now, &mut packet) {
                    let _ = receiver.on_datagram(&mut packet[..len], now);
                }
                while let Some((_, len)) = receiver.poll_control(now, &mut packet) {
                    let _ = sender.on_datagram(&mut packet[..len], now);
                }
                Ok(())
            }
            6 => {
                let mut batches = 0;
                while sender.poll_batch(now, &mut Everything, &mut batch) {
                    assert!(batch.chunks.iter().all(|chunk| *chunk < offer.chunks()));
                    batches += 1;
                    assert!(batches < 10_000, "it sends without end");
                }
                Ok(())
            }
            _ => {
                now += Duration::from_millis(body.first().map_or(1, |ms| u64::from(*ms) * 8));
                Ok(())
            }
        };
        while sender.poll_event().is_some() || receiver.poll_event().is_some() {}
        let progress = sender.progress();
        assert!(progress.came <= progress.chunks && receiver.progress().0 <= offer.chunks());
        if let Err(Refused::Misbehaviour(_)) = done {
            return;
        }
    }
});
