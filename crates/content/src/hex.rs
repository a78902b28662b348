//! Hexadecimal: how info-hashes are written for people and in links.

/// Lower case, two digits a byte.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `N` bytes of two digits each, in either case; `None` for anything else.
pub fn decode<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|nibble| nibble as u8);
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut out = [0; N];
    for (byte, [high, low]) in out.iter_mut().zip(pairs) {
        *byte = nibble(*high)? << 4 | nibble(*low)?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_it_writes() {
        let bytes: [u8; 256] = std::array::from_fn(|byte| byte as u8);
        assert_eq!(decode(&encode(&bytes)), Some(bytes));
        assert_eq!(decode(&encode(&bytes).to_uppercase()), Some(bytes));
        assert_eq!(encode(&[0x00, 0xaf]), "00af");
    }

    #[test]
    fn anything_else_is_none() {
        for bad in ["", "0", "000", "0g", "+1", "é"] {
            assert_eq!(decode::<1>(bad), None, "{bad}");
        }
    }
}
