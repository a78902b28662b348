use std::net::IpAddr;
use std::time::SystemTime;

use anabranch_paths::ScionPath;
use anabranch_scion_wire::scmp::EchoId;
use anabranch_scion_wire::{HeaderFields, HeaderTemplate, Ports};
use proptest::prelude::*;

use super::super::path::Path;
use super::*;

const REMOTE: ([u8; 4], u16) = ([10, 0, 0, 2], 31_000);

fn address(host: u8, port: u16) -> ScionAddr {
    ScionAddr::new("1-ff00:0:110".parse().unwrap(), SocketAddr::from(([10, 0, 0, host], port)))
}

fn local() -> ScionAddr {
    address(1, 443)
}

/// A table with one path, which packets of these tests come by.
fn table() -> (Table, PathKey) {
    let inside = ScionPath::inside(local().isd_as, 9000, SystemTime::UNIX_EPOCH);
    let path = Path::scion(local(), address(2, REMOTE.1), &inside).unwrap();
    let mut table = Table::default();
    let key = table.add(&path).unwrap();
    (table, key)
}

fn fields(from: u8, to: u8) -> HeaderFields<'static> {
    let host = |host: u8| Address::new(local().isd_as, IpAddr::from([10, 0, 0, host]));
    HeaderFields { source: host(from), destination: host(to), path: PathRef::Empty, flow_id: 1, traffic_class: 0b10 }
}

fn packet(fields: &HeaderFields<'_>, source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let template = HeaderTemplate::new(fields, Ports { source, destination }).unwrap();
    let mut packet = vec![0; template.header_len()];
    template.write(payload.len(), checksum::sum(payload), &mut packet).unwrap();
    packet.extend(payload);
    packet
}

fn scmp(message: &Message<'_>) -> Vec<u8> {
    let mut packet = vec![0; 2000];
    let len = message.write(&fields(2, 1), &mut packet).unwrap();
    packet.truncate(len);
    packet
}

#[test]
fn packets_of_a_path_are_known_and_others_are_strangers() {
    let (mut table, key) = table();
    let mut inbound = Inbound::new(local());
    let ours = packet(&fields(2, 1), 31_000, 443, b"hello");
    let data = |path| Ok(Meaning::Data { path, headers_len: ours.len() - 5, ecn: 0b10 });
    assert_eq!(inbound.take(&table, &ours, REMOTE.into()), data(Some(key)));
    let (headers, payload) = ours.split_at(ours.len() - 5);
    for cut in 0..=5 {
        let (head, body) = payload.split_at(cut);
        assert_eq!(inbound.recall(headers, head, body, REMOTE.into()), Some(data(Some(key))));
        assert_eq!(inbound.recall(headers, head, b"", REMOTE.into()).is_some(), cut == 5, "the length says more");
        let other = [body, b"!"].concat();
        assert_eq!(
            inbound.recall(headers, head, &other[1..], REMOTE.into()),
            if cut < 5 { Some(Err(Dropped::BadChecksum)) } else { Some(data(Some(key))) }
        );
    }
    // Somebody else hands it over.
    assert_eq!(inbound.recall(headers, payload, b"", SocketAddr::from(([10, 0, 0, 3], 31_000))), None);
    assert_eq!(inbound.take(&table, &ours, SocketAddr::from(([10, 0, 0, 3], 31_000))), Err(Dropped::WrongSource));
    let stranger = packet(&fields(2, 1), 31_001, 443, b"hello");
    assert_eq!(inbound.take(&table, &stranger, REMOTE.into()), data(None));
    for (wrong, reason) in [
        (packet(&fields(2, 1), 31_000, 444, b""), Dropped::WrongDestination),
        (packet(&fields(2, 3), 31_000, 443, b""), Dropped::WrongDestination),
        (packet(&fields(2, 1), 0, 443, b""), Dropped::WrongSource),
        (
            scmp(&Message::EchoRequest { id: EchoId { identifier: 1, sequence: 1 }, data: b"" }),
            Dropped::UnknownProtocol,
        ),
    ] {
        assert_eq!(inbound.take(&table, &wrong, REMOTE.into()), Err(reason));
    }
    // What was remembered goes with the path.
    table.remove(key);
    inbound.keep_up(1);
    assert_eq!(inbound.recall(headers, payload, b"", REMOTE.into()), None);
    assert_eq!(inbound.take(&table, &ours, REMOTE.into()), data(None));
}

#[test]
fn only_scmp_that_quotes_a_packet_over_a_path_of_ours_is_told() {
    let (table, key) = table();
    let mut inbound = Inbound::new(local());
    let about = |quote: &[u8]| scmp(&Message::PacketTooBig { mtu: 1400, quote });
    let told = PathEvent { path: key, from: fields(2, 1).source, kind: ScmpKind::PacketTooBig { mtu: 1400 } };
    let quote = packet(&fields(1, 2), 443, 31_000, b"hello");
    assert_eq!(inbound.take(&table, &about(&quote), REMOTE.into()), Ok(Meaning::Event(told)));
    for foreign in [
        packet(&fields(1, 2), 444, 31_000, b""),
        packet(&fields(1, 2), 443, 31_001, b""),
        packet(&fields(1, 3), 443, 31_000, b""),
        packet(&fields(3, 2), 443, 31_000, b""),
        scmp(&Message::EchoRequest { id: EchoId { identifier: 443, sequence: 1 }, data: b"" }),
    ] {
        assert_eq!(inbound.take(&table, &about(&foreign), REMOTE.into()), Err(Dropped::ForeignQuote));
    }
    assert_eq!(inbound.take(&table, &about(b"nonsense"), REMOTE.into()), Err(Dropped::Malformed));
    // An interface that is not on the way.
    let down = Message::ExternalInterfaceDown { isd_as: local().isd_as, interface: 5, quote: &quote };
    assert_eq!(inbound.take(&table, &scmp(&down), REMOTE.into()), Err(Dropped::ForeignQuote));
}

proptest! {
    // Whatever is changed in a packet of a known flow: the quick look does not vouch for what a full look refuses.
    #[test]
    fn the_quick_look_agrees_with_the_full_one(
        payload in proptest::collection::vec(any::<u8>(), 0..60), at in 0..120_usize, flip: u8, cut in 0..60_usize, longer in 0..3_usize
    ) {
        let (table, _) = table();
        let mut inbound = Inbound::new(local());
        let mut changed = packet(&fields(2, 1), 31_000, 443, &payload);
        prop_assert!(inbound.take(&table, &changed, REMOTE.into()).is_ok());
        let headers_len = changed.len() - payload.len();
        let at = at % changed.len();
        changed[at] ^= flip;
        changed.resize(changed.len() + longer, 0);
        let (headers, payload) = changed.split_at(headers_len);
        let (head, body) = payload.split_at(cut.min(payload.len()));
        let quick = inbound.recall(headers, head, body, REMOTE.into());
        let full = inbound.take(&table, &changed, REMOTE.into());
        prop_assert!(quick.is_none_or(|quick| quick == full), "{quick:?} {full:?}");
        prop_assert_eq!(inbound.read(&table, &changed, REMOTE.into()), full);
        if let Ok(Meaning::Data { headers_len, .. }) = full {
            prop_assert!(Path::back(local(), &changed[..headers_len], REMOTE.into(), 0).is_ok());
        }
    }

    #[test]
    fn nothing_that_arrives_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0..200_usize) {
        let (table, _) = table();
        let mut inbound = Inbound::new(local());
        let (headers, rest) = bytes.split_at(cut.min(bytes.len()));
        prop_assert_eq!(inbound.recall(headers, rest, b"", REMOTE.into()), None);
        let _ = inbound.take(&table, &bytes, REMOTE.into());
        let _ = Path::back(local(), &bytes, REMOTE.into(), 0);
    }
}
