//! RC4, as message stream encryption uses it: it hides what a stream is, and keeps nothing secret from who wants to know.

use std::fmt;

/// Bytes of the key stream that are thrown away, since they tell of the key.
const DROPPED_LEN: usize = 1024;

/// One direction of a stream.
#[derive(Clone)]
pub struct Rc4 {
    state: [u8; 256],
    i: u8,
    j: u8,
}

impl Rc4 {
    /// A key stream from its beginning. The key has 1 to 256 bytes.
    fn from_beginning(key: &[u8]) -> Self {
        let mut state: [u8; 256] = std::array::from_fn(|at| at as u8);
        let mut j = 0u8;
        for (at, key) in (0..256).zip(key.iter().cycle()) {
            j = j.wrapping_add(state[at]).wrapping_add(*key);
            state.swap(at, usize::from(j));
        }
        Self { state, i: 0, j: 0 }
    }

    /// A key stream without its first 1024 bytes.
    pub(super) fn new(key: &[u8]) -> Self {
        let mut cipher = Self::from_beginning(key);
        cipher.apply(&mut [0; DROPPED_LEN]);
        cipher
    }

    /// Encrypts the next bytes of the stream, or decrypts them.
    pub fn apply(&mut self, bytes: &mut [u8]) {
        let Self { state, i, j } = self;
        for byte in bytes {
            *i = i.wrapping_add(1);
            let a = state[usize::from(*i)];
            *j = j.wrapping_add(a);
            let b = state[usize::from(*j)];
            state[usize::from(*i)] = b;
            state[usize::from(*j)] = a;
            *byte ^= state[usize::from(a.wrapping_add(b))];
        }
    }
}

impl fmt::Debug for Rc4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rc4").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    /// The keys of RFC 6229: the key stream at 0 and at 1024.
    #[test]
    fn the_key_stream_is_the_rfcs() {
        for (key, begin, later) in [
            (
                "0102030405",
                "b2396305f03dc027ccc3524a0a1118a86982944f18fc82d589c403a47a0d0919",
                "30abbcc7c20b01609f23ee2d5f6bb7df73262dec31a8a8ff5f9f977001c90b72",
            ),
            (
                "0102030405060708090a0b0c0d0e0f10",
                "9ac7cc9a609d1ef7b2932899cde41b975248c4959014126a6e8a84f11d1a9e1c",
                "bdf0324e6083dcc6d3cedd3ca8c53c167e5cb90bc6802a7a3df2ddec55017396",
            ),
        ] {
            let mut stream = [0; 32];
            Rc4::from_beginning(&hex(key)).apply(&mut stream);
            assert_eq!(stream.to_vec(), hex(begin), "{key}");
            let mut stream = [0; 32];
            Rc4::new(&hex(key)).apply(&mut stream);
            assert_eq!(stream.to_vec(), hex(later), "{key}");
        }
    }

    #[test]
    fn it_does_not_matter_how_a_stream_is_cut() {
        let (mut whole, mut parts) = ([0; 100], [0; 100]);
        Rc4::new(b"key").apply(&mut whole);
        let mut cipher = Rc4::new(b"key");
        parts.chunks_mut(7).for_each(|part| cipher.apply(part));
        assert_eq!(whole, parts);
    }
}
