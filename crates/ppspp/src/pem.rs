//! The keys of live streams in files: a PKCS#8 document in PEM (RFC 7468), as `openssl genpkey` writes them.

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";
const LINE_LEN: usize = 64;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 in lines (RFC 4648 §4), between the marks.
pub fn encode(document: &[u8]) -> String {
    let mut text = Vec::new();
    for group in document.chunks(3) {
        let bits = group.iter().enumerate().fold(0u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        let letter = |at: usize| ALPHABET[(bits >> (18 - 6 * at)) as usize & 63];
        text.extend((0..4).map(|at| if at <= group.len() { letter(at) } else { b'=' }));
    }
    let mut out = format!("{BEGIN}\n");
    for line in text.chunks(LINE_LEN) {
        out.extend(line.iter().map(|byte| char::from(*byte)));
        out.push('\n');
    }
    out + END + "\n"
}

/// The document between the marks; `None` where there is none.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once(BEGIN)?;
    let (body, _) = rest.split_once(END)?;
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for letter in body.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=') {
        bits = bits << 6 | ALPHABET.iter().position(|known| *known == letter)? as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::SigningKey;

    #[test]
    fn what_is_written_is_read_again() {
        for len in 0..200u8 {
            let document: Vec<u8> = (0..len).map(|byte| byte.wrapping_mul(83)).collect();
            assert_eq!(decode(&encode(&document)), Some(document));
        }
        assert_eq!(encode(b"Man"), format!("{BEGIN}\nTWFu\n{END}\n"));
        assert_eq!(encode(b"Ma"), format!("{BEGIN}\nTWE=\n{END}\n"));
        for bad in ["", BEGIN, &format!("{BEGIN}\n?\n{END}")] {
            assert_eq!(decode(bad), None);
        }
    }

    proptest::proptest! {
        /// Whatever a key file holds, it is a key or none.
        #[test]
        fn any_file_is_read(text in ".*", document in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            decode(&text);
            decode(&format!("{BEGIN}{text}{END}"));
            // What is no key is none.
            let _ = SigningKey::from_any_pkcs8(&document);
            proptest::prop_assert_eq!(decode(&encode(&document)), Some(document));
        }
    }
}
