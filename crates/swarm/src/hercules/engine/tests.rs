use std::net::UdpSocket;

use anabranch_hercules::ChunkSet;
use anabranch_hercules::wire::seal::{DATA_HEAD_LEN, Kind, SECRET_LEN, Sealer};
use anabranch_transport::Identity;
use anabranch_transport::control::ControlEndpoint;
use tokio::sync::mpsc::unbounded_channel;

use super::*;
use crate::hercules::disk::tests::Nowhere;

/// Two senders to one receiver, over networks with different MTUs: who came last has the shorter chunks.
#[test]
fn chunks_of_each_length_come_whole_whoever_began_last() {
    const LENGTHS: [u16; 2] = [8000, 1400];
    let socket = Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local().to_string();
    let (_control, inlet) = ControlEndpoint::new(&socket, &Identity::ephemeral().unwrap(), b"test").unwrap();
    let common = Common {
        source: None,
        congestion: congestion::Kind::Bbr,
        memory_bytes: 16 << 20,
        limit_up: None,
        interfaces: Vec::new(),
    };
    let teller = start(vec![(socket, inlet)], common).unwrap();
    let (news, mut told) = unbounded_channel();
    for (transfer, chunk_len) in (0..).zip(LENGTHS) {
        let content_len = u64::from(chunk_len);
        let offer = Offer { transfer, chunk_len, content_len, manifest_len: 0, manifest_hash: [0; 32] };
        let (secret, destination) = (Secret::new(transfer, &[1; SECRET_LEN]), Arc::new(Nowhere));
        teller.tell(Command::Receive { offer, secret, claimed: ChunkSet::new(0), destination, news: news.clone() });
    }
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut missing, started, mut number) = (LENGTHS.map(u64::from).to_vec(), Instant::now(), 0);
    while !missing.is_empty() && started.elapsed() < Duration::from_secs(20) {
        for (transfer, chunk_len) in (0..).zip(LENGTHS) {
            let (mut head, mut body) = ([0; DATA_HEAD_LEN], vec![7; chunk_len.into()]);
            let mut sealer = Sealer::new(&Secret::new(transfer, &[1; SECRET_LEN]), Kind::Data, 0);
            sealer.seal_chunk(number, 0, &mut body, &mut head);
            from.send_to(&[&head[..], &body].concat(), &address).unwrap();
        }
        number += 1;
        std::thread::sleep(Duration::from_millis(50));
        while let Ok(one) = told.try_recv() {
            if let News::Progress(measured) = one {
                missing.retain(|len| *len != measured.done_bytes);
            }
        }
    }
    teller.tell(Command::Stop);
    assert!(missing.is_empty(), "chunks of {missing:?} bytes did not come");
}
