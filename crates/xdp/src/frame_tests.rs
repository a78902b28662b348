use proptest::prelude::*;

use super::*;

const OWN: Mac = [2, 0, 0, 0, 0, 1];
const NEXT_HOP: Mac = [2, 0, 0, 0, 0, 2];

fn ends(is_v6: bool) -> [SocketAddr; 2] {
    match is_v6 {
        false => ["192.0.2.1:7000", "198.51.100.2:7001"],
        true => ["[2001:db8::1]:7000", "[2001:db8::2]:7001"],
    }
    .map(|address| address.parse().unwrap())
}

fn frame(is_v6: bool, payload: &[u8], ecn: u8) -> Vec<u8> {
    let [from, to] = ends(is_v6);
    let template = FrameTemplate::new(OWN, NEXT_HOP, from, to).unwrap();
    let mut frame = vec![0; template.headers_len() + payload.len()];
    assert!(template.write(payload.len(), checksum::sum(payload), ecn, &mut frame));
    frame[template.headers_len()..].copy_from_slice(payload);
    frame
}

#[test]
fn a_frame_is_what_the_standards_say() {
    let bytes = frame(false, b"hello", 2);
    let mut expected = Vec::new();
    expected.extend_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    expected.extend_from_slice(&[0x45, 2, 0, 33, 0, 0, 0x40, 0, 64, 17]);
    // Computed by hand: the header's and the datagram's checksum.
    let header: u32 = [0x4502u32, 33, 0, 0x4000, 0x4011, 0xc000, 0x0201, 0xc633, 0x6402].iter().sum();
    let fold = |sum: u32| !((sum & 0xffff) + (sum >> 16)) as u16;
    expected.extend_from_slice(&fold(header).to_be_bytes());
    expected.extend_from_slice(&[192, 0, 2, 1, 198, 51, 100, 2]);
    expected.extend_from_slice(&[0x1b, 0x58, 0x1b, 0x59, 0, 13]);
    let words = [0xc000u32, 0x0201, 0xc633, 0x6402, 17, 13, 0x1b58, 0x1b59, 13, 0x6865, 0x6c6c, 0x6f00];
    expected.extend_from_slice(&fold(words.iter().sum()).to_be_bytes());
    expected.extend_from_slice(b"hello");
    assert_eq!(bytes, expected);
}

#[test]
fn families_do_not_mix_and_mapped_addresses_are_ipv4() {
    let mixed = FrameTemplate::new(OWN, NEXT_HOP, ends(false)[0], ends(true)[1]);
    assert!(mixed.is_none());
    let mapped = FrameTemplate::new(OWN, NEXT_HOP, "[::ffff:192.0.2.1]:7000".parse().unwrap(), ends(false)[1]).unwrap();
    assert_eq!(mapped.headers_len(), IPV4_HEADERS_LEN);
    // No packet is so long, and no buffer so short.
    let mut out = [0; 100];
    assert!(!mapped.write(65_535, Sum::default(), 0, &mut out));
    assert!(!mapped.write(65_535 - 27, Sum::default(), 0, &mut out));
    assert!(mapped.write(65_535 - 28, Sum::default(), 0, &mut out));
    assert!(!mapped.write(1, Sum::default(), 0, &mut out[..41]));
}

#[test]
fn each_fault_has_its_name() {
    let changed = |is_v6, at: usize, to: u8| {
        let mut bytes = frame(is_v6, &[7; 100], 0);
        bytes[at] = to;
        Datagram::parse(&bytes, 1).map(|datagram| datagram.payload.len())
    };
    for (at, to, expected) in [
        (12, 0x81, FrameError::NotUdp),
        (14, 0x46, FrameError::NotUdp),
        (14, 0x55, FrameError::NotUdp),
        (20, 0x60, FrameError::NotUdp),
        (21, 1, FrameError::NotUdp),
        (23, 6, FrameError::NotUdp),
        (22, 63, FrameError::Checksum),
        (38, 1, FrameError::Length),
        (39, 7, FrameError::Length),
        (50, 8, FrameError::Checksum),
    ] {
        assert_eq!(changed(false, at, to), Err(expected), "byte {at}");
    }
    for (at, to, expected) in [
        (13, 0xde, FrameError::NotUdp),
        (14, 0x50, FrameError::NotUdp),
        (20, 44, FrameError::NotUdp),
        (18, 1, FrameError::Length),
        (22, 0xff, FrameError::Checksum),
        (70, 8, FrameError::Checksum),
    ] {
        assert_eq!(changed(true, at, to), Err(expected), "byte {at}");
    }
    // Padding behind the packet is none of it.
    let mut padded = frame(false, b"x", 0);
    padded.resize(60, 0);
    assert_eq!(Datagram::parse(&padded, 1).unwrap().payload, b"x");
}

#[test]
fn who_cannot_have_sent_it_has_not() {
    for from in [
        "0.0.0.1:7",
        "127.0.0.1:7",
        "224.0.0.1:7",
        "255.255.255.255:7",
        "192.0.2.1:0",
        "[::1]:7",
        "[::]:7",
        "[ff02::1]:7",
    ] {
        let from: SocketAddr = from.parse().unwrap();
        let template = FrameTemplate::new(OWN, NEXT_HOP, from, ends(from.is_ipv6())[1]).unwrap();
        let mut bytes = vec![0; template.headers_len()];
        template.write(0, Sum::default(), 0, &mut bytes);
        assert_eq!(Datagram::parse(&bytes, 1), Err(FrameError::Source), "{from}");
    }
}

#[test]
fn checksums_that_were_left_to_a_device_are_taken() {
    for is_v6 in [false, true] {
        let mut bytes = frame(is_v6, &[7; 100], 0);
        let at = bytes.len() - 100 - 2;
        // As the kernel leaves it (`udp4_hwcsum`): the pseudo header's sum, not its complement.
        let [from, to] = ends(is_v6).map(|end| match end.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        });
        let pseudo = checksum::sum(&from) + checksum::sum(&to) + Sum::from_u16(17) + Sum::from_u16(108);
        bytes[at..at + 2].copy_from_slice(&(!pseudo.checksum()).to_be_bytes());
        assert_eq!(Datagram::parse(&bytes, 1).unwrap().payload, [7; 100]);
        // None at all is only IPv4's.
        bytes[at..at + 2].fill(0);
        assert_eq!(Datagram::parse(&bytes, 1).is_ok(), !is_v6);
    }
}

#[test]
fn link_local_senders_have_their_interface() {
    let from: SocketAddr = "[fe80::1]:7000".parse().unwrap();
    let template = FrameTemplate::new(OWN, NEXT_HOP, from, ends(true)[1]).unwrap();
    let mut bytes = vec![0; template.headers_len()];
    template.write(0, Sum::default(), 0, &mut bytes);
    let expected: SocketAddr = "[fe80::1%5]:7000".parse().unwrap();
    assert_eq!(Datagram::parse(&bytes, 5).unwrap().from, expected);
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        is_v6: bool, payload in proptest::collection::vec(any::<u8>(), 0..1500), ecn in 0u8..4, padding in 0usize..50,
    ) {
        let mut bytes = frame(is_v6, &payload, ecn);
        bytes.resize(bytes.len() + padding, 0xaa);
        let [from, to] = ends(is_v6);
        prop_assert_eq!(Datagram::parse(&bytes, 1), Ok(Datagram { from, to, ecn, payload: &payload }));
    }

    // Whatever passes as a datagram can be sent, and says the same then.
    #[test]
    fn what_is_read_is_written(
        is_v6: bool, payload in proptest::collection::vec(any::<u8>(), 0..80),
        changes in proptest::collection::vec((14usize..70, any::<u8>()), 0..4),
    ) {
        let mut bytes = frame(is_v6, &payload, 0);
        for (at, to) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = to;
            }
        }
        // The header's checksum is right after all, and UDP's left out.
        if !is_v6 {
            bytes[24..26].fill(0);
            let header = checksum::sum(&bytes[14..34]).checksum();
            bytes[24..26].copy_from_slice(&header.to_be_bytes());
            bytes[40..42].fill(0);
        }
        if let Ok(datagram) = Datagram::parse(&bytes, 3) {
            let template = FrameTemplate::new(OWN, NEXT_HOP, datagram.from, datagram.to).unwrap();
            let mut again = vec![0; template.headers_len() + datagram.payload.len()];
            prop_assert!(template.write(datagram.payload.len(), checksum::sum(datagram.payload), datagram.ecn, &mut again));
            again[template.headers_len()..].copy_from_slice(datagram.payload);
            prop_assert_eq!(Datagram::parse(&again, 3), Ok(datagram));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        is_v6: bool, payload in proptest::collection::vec(any::<u8>(), 0..80), cut: usize,
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4), noise in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let _ = Datagram::parse(&noise, 1);
        let mut bytes = frame(is_v6, &payload, 0);
        for (at, to) in changes {
            let at = at % bytes.len();
            bytes[at] = to;
        }
        bytes.truncate(cut % (bytes.len() + 1));
        if let Ok(datagram) = Datagram::parse(&bytes, 1) {
            prop_assert!(datagram.payload.len() + IPV4_HEADERS_LEN <= bytes.len());
        }
    }
}
