//! Any frames at an interface that goes past the kernel: read or refused; and what is read can be written again, and says the same.
#![no_main]

use anabranch_scion_wire::checksum;
use anabranch_xdp::{Datagram, FrameError, FrameTemplate, IPV4_HEADERS_LEN};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    let datagram = match Datagram::parse(frame, 3) {
        Ok(datagram) => datagram,
        Err(error) => {
            let known = [FrameError::NotUdp, FrameError::Length, FrameError::Checksum, FrameError::Source];
            return assert!(known.contains(&error));
        }
    };
    assert!(datagram.payload.len() + IPV4_HEADERS_LEN <= frame.len());
    assert!(datagram.from.port() != 0 && !datagram.from.ip().is_multicast());
    // Mapped addresses are IPv4 once they are written.
    let (Some(from), Some(to)) = (plain(datagram.from), plain(datagram.to)) else { return };
    let template = FrameTemplate::new([2; 6], [4; 6], from, to).expect("of one family");
    let mut again = vec![0; template.headers_len() + datagram.payload.len()];
    let sum = checksum::sum(datagram.payload);
    assert!(template.write(datagram.payload.len(), sum, datagram.ecn, &mut again));
    again[template.headers_len()..].copy_from_slice(datagram.payload);
    assert_eq!(Datagram::parse(&again, 3), Ok(datagram));
});

fn plain(address: std::net::SocketAddr) -> Option<std::net::SocketAddr> {
    (address.ip().to_canonical() == address.ip()).then_some(address)
}
