//! What is said to peers that try uTP (BEP 29) first: that it is not spoken here.
//!
//! libtorrent and its kin call over uTP, and over TCP only after three to four seconds of silence. A reset sends them on at once.
//! Every answer is as long as the call at most, and only calls are answered: nobody can be flooded by way of us, and two that answer
//! like this have nothing to say to each other.

/// Bytes of the header (BEP 29, "header format").
pub const HEADER_LEN: usize = 20;

/// Protocol version, in the low half of the first byte; the type is in the high half.
const VERSION: u8 = 1;
const ST_RESET: u8 = 3;
const ST_SYN: u8 = 4;

/// The answer to a datagram that opens a uTP connection; `None` to anything else.
pub fn refusal(datagram: &[u8]) -> Option<[u8; HEADER_LEN]> {
    let header: &[u8; HEADER_LEN] = datagram.first_chunk()?;
    if header[0] != ST_SYN << 4 | VERSION {
        return None;
    }
    let mut reset = [0; HEADER_LEN];
    reset[0] = ST_RESET << 4 | VERSION;
    // "connection_id": packets to who calls bear the number that its SYN bore.
    reset[2..4].copy_from_slice(&header[2..4]);
    // "ack_nr": callers heed a reset only where it answers something that they sent.
    reset[18..20].copy_from_slice(&header[16..18]);
    Some(reset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_call_is_answered_with_its_own_numbers() {
        let mut syn = [0; HEADER_LEN];
        syn[0] = 0x41;
        syn[2..4].copy_from_slice(&[0xab, 0xcd]);
        syn[16..18].copy_from_slice(&[0, 1]);
        let reset = refusal(&syn).unwrap();
        assert_eq!((reset[0], &reset[2..4], &reset[16..]), (0x31, &[0xab, 0xcd][..], &[0, 0, 0, 1][..]));
        // With extensions behind the header as well; cut short, not.
        assert_eq!(refusal(&[&syn[..], &[0; 10]].concat()), Some(reset));
        assert_eq!(refusal(&syn[..HEADER_LEN - 1]), None);
        // Another version, and every other type.
        for first in (0..=0xff).filter(|first| *first != 0x41) {
            syn[0] = first;
            assert_eq!(refusal(&syn), None, "{first:#x}");
        }
    }

    proptest! {
        #[test]
        fn answers_are_no_longer_than_calls_and_call_for_none(datagram: Vec<u8>, call: bool) {
            let datagram = if call { [&[0x41], &datagram[..]].concat() } else { datagram };
            if let Some(reset) = refusal(&datagram) {
                prop_assert!(reset.len() <= datagram.len());
                prop_assert_eq!(refusal(&reset), None);
            }
        }
    }
}
