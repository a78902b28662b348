//! SCION's names for networks: ISD-AS numbers and the interfaces of an AS.

use std::fmt;
use std::str::FromStr;

/// Bits of the AS number.
const ASN_BITS: u32 = 48;
/// AS numbers up to here are BGP's and written in decimal; above, in three hexadecimal groups.
const ASN_DECIMAL_MAX: u64 = u32::MAX as u64;
/// The largest AS number.
const ASN_MAX: u64 = (1 << ASN_BITS) - 1;

/// An isolation domain and an AS number in it: `1-ff00:0:110`, `64-559`. Zero in either half is the wildcard.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IsdAs(u64);

/// Why a text is no ISD-AS number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no ISD-AS number: write ISD-AS as in 1-ff00:0:110 or 64-559")]
pub struct IsdAsError(pub String);

impl IsdAs {
    /// From the two halves; `None` if the AS number exceeds 48 bits.
    pub fn new(isd: u16, asn: u64) -> Option<Self> {
        (asn <= ASN_MAX).then_some(Self(u64::from(isd) << ASN_BITS | asn))
    }

    /// The isolation domain.
    pub fn isd(self) -> u16 {
        (self.0 >> ASN_BITS) as u16
    }

    /// The AS number, 48 bits.
    pub fn asn(self) -> u64 {
        self.0 & ASN_MAX
    }

    /// From the 64 bits of the wire.
    pub const fn from_u64(bits: u64) -> Self {
        Self(bits)
    }

    /// The 64 bits of the wire.
    pub fn to_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for IsdAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (isd, asn) = (self.isd(), self.asn());
        if asn <= ASN_DECIMAL_MAX {
            return write!(f, "{isd}-{asn}");
        }
        write!(f, "{isd}-{:x}:{:x}:{:x}", asn >> 32, asn >> 16 & 0xffff, asn & 0xffff)
    }
}

impl fmt::Debug for IsdAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for IsdAs {
    type Err = IsdAsError;

    fn from_str(text: &str) -> Result<Self, IsdAsError> {
        let parsed =
            text.split_once('-').and_then(|(isd, asn)| Self::new(decimal(isd)?.try_into().ok()?, parse_asn(asn)?));
        parsed.ok_or_else(|| IsdAsError(text.to_owned()))
    }
}

fn parse_asn(text: &str) -> Option<u64> {
    if !text.contains(':') {
        return decimal(text).filter(|asn| *asn <= ASN_DECIMAL_MAX);
    }
    let mut groups = text.split(':');
    let mut asn = 0;
    for _ in 0..3 {
        let group = groups.next()?;
        if group.is_empty() || group.len() > 4 || !group.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        asn = asn << 16 | u64::from_str_radix(group, 16).ok()?;
    }
    groups.next().is_none().then_some(asn)
}

/// Digits only: `parse` alone would take a sign.
fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// One interface of one AS: an end of an inter-AS link. What a path passes, in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interface {
    /// The AS.
    pub isd_as: IsdAs,
    /// The number that the AS gave it; zero is no interface.
    pub id: u16,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.isd_as, self.id)
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_notations_round_trip() {
        for text in ["1-ff00:0:110", "64-559", "0-0", "65535-ffff:ffff:ffff", "2-1:0:0"] {
            assert_eq!(text.parse::<IsdAs>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", "1", "1-", "-1", "1-ff00:0", "1-ff00:0:0:1", "65536-1", "1-4294967296", "1-+5", "1-fffff:0:0"]
        {
            assert!(text.parse::<IsdAs>().is_err(), "{text}");
        }
    }
}
