//! Whom a user wants nothing to do with: single hosts, networks and ranges of IP, hosts and ASes of SCION.
//!
//! Lists come in the forms that other programs write, which may be mixed line by line:
//!
//! | form | a line |
//! | --- | --- |
//! | addresses, networks, ranges | `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32`, `192.0.2.0-192.0.2.255`, each with a remark behind `#` |
//! | eMule's `ipfilter.dat` | `192.000.002.000 - 192.000.002.255 , 100 , a remark`: blocked where the number is below 128 |
//! | PeerGuardian's P2P text | `a remark:192.0.2.0-192.0.2.255` |
//! | of SCION, our own | `1-ff00:0:110`, `1-ff00:0:110,10.0.0.1` |
//!
//! ```
//! use anabranch_bittorrent::ip_filter::{IpFilter, parse_list};
//!
//! let list = parse_list(b"# a list\n192.0.2.0/25\nSomebody:198.51.100.1-198.51.100.9\n");
//! assert_eq!(list.unread, []);
//! let filter = IpFilter::new(list.rules);
//! assert!(filter.blocks(&"192.0.2.127:6881".parse().unwrap()));
//! assert!(!filter.blocks(&"192.0.2.128:6881".parse().unwrap()));
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use anabranch_paths::{Endpoint, IsdAs};

use crate::reach::embedded_v4;

/// Longest line that is read: a remark and a range. Longer ones are no list's.
pub const LINE_BYTES_MAX: usize = 1024;
/// From this level on, `ipfilter.dat` lists whom to let through.
const LEVEL_ALLOWED: u32 = 128;
/// Lines that could not be read and are kept, for the user to see what is wrong.
const UNREAD_MAX: usize = 4;

/// Whom one line blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// From the first to the last address, both included.
    V4(Ipv4Addr, Ipv4Addr),
    /// The same.
    V6(Ipv6Addr, Ipv6Addr),
    /// An AS of SCION, or one host in it.
    Scion(IsdAs, Option<IpAddr>),
}

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names nobody to block: write an address (192.0.2.7), a network (192.0.2.0/24), a range (192.0.2.0-192.0.2.9), an AS (1-ff00:0:110) or a host in one (1-ff00:0:110,10.0.0.1)"
)]
pub struct RuleError(pub String);

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        parse_rule(text.trim()).ok_or_else(|| RuleError(text.chars().take(80).collect()))
    }
}

impl From<&Endpoint> for Rule {
    /// The host, whatever its port.
    fn from(endpoint: &Endpoint) -> Self {
        match endpoint {
            Endpoint::Scion(address) => Self::Scion(address.isd_as, Some(address.host.ip().to_canonical())),
            Endpoint::Ip(address) => match address.ip().to_canonical() {
                IpAddr::V4(ip) => Self::V4(ip, ip),
                IpAddr::V6(ip) => Self::V6(ip, ip),
            },
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(first, last) if first == last => first.fmt(f),
            Self::V4(first, last) => write!(f, "{first}-{last}"),
            Self::V6(first, last) if first == last => first.fmt(f),
            Self::V6(first, last) => write!(f, "{first}-{last}"),
            Self::Scion(isd_as, Some(host)) => write!(f, "{isd_as},{host}"),
            Self::Scion(isd_as, None) => isd_as.fmt(f),
        }
    }
}

/// What a list says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Whom it blocks, in its order.
    pub rules: Vec<Rule>,
    /// The first lines that could not be read, by their numbers from 1.
    pub unread: Vec<(usize, String)>,
    /// All that could not be read.
    pub unread_count: usize,
}

/// Reads a list. Remarks may be in any encoding.
pub fn parse_list(bytes: &[u8]) -> List {
    let mut list = List::default();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let text = String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES_MAX)]);
        let text = text.trim_start_matches('\u{feff}').trim();
        if text.is_empty() || text.starts_with(['#', ';']) || text.starts_with("//") {
            continue;
        }
        match parse_line(text).filter(|_| line.len() <= LINE_BYTES_MAX) {
            Some(rule) => list.rules.extend(rule),
            None => {
                list.unread_count += 1;
                if list.unread.len() < UNREAD_MAX {
                    list.unread.push((number + 1, text.chars().take(80).collect()));
                }
            }
        }
    }
    list
}

/// A line's rule; `Some(None)` where it lets somebody through, `None` where it makes no sense.
fn parse_line(line: &str) -> Option<Option<Rule>> {
    // eMule's before our own: both have commas, and only one of them a range in front.
    if let Some((range, rest)) = line.split_once(',')
        && let Some(rule) = parse_range(range.trim())
    {
        let level = rest.split(',').next().map(str::trim).unwrap_or_default();
        let blocks = if level.is_empty() { true } else { level.parse::<u32>().ok()? < LEVEL_ALLOWED };
        return Some(blocks.then_some(rule));
    }
    let plain = line.find('#').map_or(line, |at| &line[..at]).trim();
    if let Some(rule) = parse_rule(plain) {
        return Some(Some(rule));
    }
    // Remarks may have colons too; what is behind the first one that leaves a range is the range.
    line.match_indices(':').find_map(|(at, _)| parse_range(line[at + 1..].trim())).map(Some)
}

fn parse_rule(text: &str) -> Option<Rule> {
    parse_network(text).or_else(|| parse_range(text)).or_else(|| parse_scion(text)).or_else(|| {
        Some(match parse_ip(text)? {
            IpAddr::V4(ip) => Rule::V4(ip, ip),
            IpAddr::V6(ip) => Rule::V6(ip, ip),
        })
    })
}

fn parse_range(text: &str) -> Option<Rule> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (parse_written_ip(first.trim())?, parse_written_ip(last.trim())?);
    match (first, last) {
        (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => Some(of_v6(first, last)),
        _ => match (first.to_canonical(), last.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => Some(Rule::V4(first, last)),
            _ => None,
        },
    }
}

/// A range of IPv6, or of the IPv4 addresses that all of it stands for. In a wider one those are not meant: no list of IPv6 blocks all of IPv4.
fn of_v6(first: Ipv6Addr, last: Ipv6Addr) -> Rule {
    match (first.to_ipv4_mapped(), last.to_ipv4_mapped()) {
        (Some(first), Some(last)) => Rule::V4(first, last),
        _ => Rule::V6(first, last),
    }
}

/// RFC 4632 §3.1: the bits behind the prefix do not count.
fn parse_network(text: &str) -> Option<Rule> {
    let (ip, length) = text.split_once('/')?;
    let length: u32 = number(length)?;
    let written = parse_written_ip(ip)?;
    Some(match if length <= 32 { written.to_canonical() } else { written } {
        IpAddr::V4(ip) => {
            let rest = u32::MAX.checked_shr(length).unwrap_or(0);
            (length <= 32).then_some(Rule::V4((ip.to_bits() & !rest).into(), (ip.to_bits() | rest).into()))?
        }
        IpAddr::V6(ip) => {
            let rest = u128::MAX.checked_shr(length).unwrap_or(0);
            (length <= 128).then(|| of_v6((ip.to_bits() & !rest).into(), (ip.to_bits() | rest).into()))?
        }
    })
}

fn parse_scion(text: &str) -> Option<Rule> {
    let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let (isd_as, host) = match text.split_once(',') {
        Some((isd_as, host)) => (isd_as, Some(parse_ip(host.trim())?)),
        None => (text, None),
    };
    let isd_as: IsdAs = isd_as.trim().parse().ok()?;
    (isd_as.isd() != 0 && isd_as.asn() != 0).then_some(Rule::Scion(isd_as, host))
}

/// An address, where it is one of IPv6 that stands for one of IPv4 that one.
fn parse_ip(text: &str) -> Option<IpAddr> {
    Some(parse_written_ip(text)?.to_canonical())
}

/// An address as it is written; IPv4 also with zeros in front, as lists have it, which are no octal numbers there.
fn parse_written_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let digits = parts.next().filter(|digits| (1..=3).contains(&digits.len()))?;
        *octet = number(digits).and_then(|value| u8::try_from(value).ok())?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets).into())
}

/// Digits only: `parse` alone would take a sign.
fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Who is blocked. Asking takes time by the logarithm of the number of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpFilter {
    /// Sorted, apart from each other.
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
    scion: BTreeSet<(IsdAs, Option<IpAddr>)>,
}

impl IpFilter {
    /// Blocks whom any of the rules blocks.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut filter = Self::default();
        for rule in rules {
            match rule {
                Rule::V4(first, last) => filter.v4.push((first.to_bits(), last.to_bits())),
                Rule::V6(first, last) => filter.v6.push((first.to_bits(), last.to_bits())),
                Rule::Scion(isd_as, host) => drop(filter.scion.insert((isd_as, host))),
            }
        }
        join(&mut filter.v4);
        join(&mut filter.v6);
        filter
    }

    /// Whether nobody is blocked.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty() && self.scion.is_empty()
    }

    /// Ranges of addresses that are blocked, those that touch counted as one; and hosts and ASes of SCION.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len() + self.scion.len()
    }

    /// Whether a peer is blocked.
    pub fn blocks(&self, endpoint: &Endpoint) -> bool {
        match endpoint {
            Endpoint::Ip(address) => self.blocks_ip(address.ip()),
            Endpoint::Scion(address) => {
                let host = Some(address.host.ip().to_canonical());
                [None, host].into_iter().any(|host| self.scion.contains(&(address.isd_as, host)))
            }
        }
    }

    /// Whether an address is blocked, or the IPv4 address that it stands for.
    pub fn blocks_ip(&self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(ip) => holds(&self.v4, ip.to_bits()),
            IpAddr::V6(ip) => {
                holds(&self.v6, ip.to_bits()) || embedded_v4(ip).is_some_and(|ip| holds(&self.v4, ip.to_bits()))
            }
        }
    }
}

/// Sorts ranges, and makes one of those that overlap.
fn join<T: Copy + Ord>(ranges: &mut Vec<(T, T)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|(first, last), (_, before)| {
        let overlaps = *first <= *before;
        if overlaps {
            *before = (*before).max(*last);
        }
        overlaps
    });
    ranges.shrink_to_fit();
}

fn holds<T: Copy + Ord>(ranges: &[(T, T)], value: T) -> bool {
    let behind = ranges.partition_point(|(first, _)| *first <= value);
    behind.checked_sub(1).is_some_and(|at| value <= ranges[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules(text: &str) -> Vec<String> {
        let list = parse_list(text.as_bytes());
        assert_eq!(list.unread, [], "{text}");
        list.rules.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_usual_forms_are_read() {
        let text = "\u{feff}# a remark\r\n\r\n; another\n// and another\n\
            192.0.2.7 # who\n192.0.2.9/25\n2001:db8::/126\n 192.0.2.0 - 192.0.2.3 \n::ffff:192.0.2.1\n\
            001.002.003.000 - 001.002.003.255 , 000 , A range, with a comma\n\
            001.002.004.000 - 001.002.004.255 , 127 , The last level that blocks\n\
            001.002.005.000 - 001.002.005.255 , 128 , Let through\n\
            2001:db8::1 - 2001:db8::9 , 100 , IPv6\n\
            Some-body #1: a part:10.0.0.1-10.0.0.2\nIPv6 too:2001:db8::1-2001:db8::2\n\
            1-ff00:0:110\n1-ff00:0:110,10.0.0.1\n[1-ff00:0:110,::1]\n";
        let expected = [
            "192.0.2.7",
            "192.0.2.0-192.0.2.127",
            "2001:db8::-2001:db8::3",
            "192.0.2.0-192.0.2.3",
            "192.0.2.1",
            "1.2.3.0-1.2.3.255",
            "1.2.4.0-1.2.4.255",
            "2001:db8::1-2001:db8::9",
            "10.0.0.1-10.0.0.2",
            "2001:db8::1-2001:db8::2",
            "1-ff00:0:110",
            "1-ff00:0:110,10.0.0.1",
            "1-ff00:0:110,::1",
        ];
        assert_eq!(rules(text), expected);
        // All of IPv4 in the guise of IPv6, a part of it, and networks of IPv6 that end in it.
        let guises =
            "::ffff:0:0/96\n::ffff:192.0.2.0/120\n::ffff:192.0.2.1-::ffff:192.0.2.9\n::/80\n::fffe:0:0-::ffff:1.2.3.4";
        let expected = [
            "0.0.0.0-255.255.255.255",
            "192.0.2.0-192.0.2.255",
            "192.0.2.1-192.0.2.9",
            "::-::ffff:255.255.255.255",
            "::fffe:0:0-::ffff:1.2.3.4",
        ];
        assert_eq!(rules(guises), expected);
        assert_eq!(rules(&expected.join("\n")), expected);
        let blocks =
            |list: &str, ip: &str| IpFilter::new(parse_list(list.as_bytes()).rules).blocks_ip(ip.parse().unwrap());
        assert!(blocks("::/80", "::1") && !blocks("::/80", "192.0.2.1") && blocks("::ffff:0:0/96", "192.0.2.1"));
        assert_eq!(rules("0.0.0.0/0\n::/0"), ["0.0.0.0-255.255.255.255", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]);
    }

    #[test]
    fn what_makes_no_sense_is_named_and_the_rest_read() {
        let wrong = [
            "192.0.2",
            "192.0.2.256",
            "192.0.2.0/33",
            "::/129",
            "192.0.2.9-192.0.2.1",
            "192.0.2.1-::1",
            "192.0.2.1/+8",
        ];
        let text = format!("{}\n192.0.2.1\n1.1.1.1 - 1.1.1.2 , x , y\nname:only\n0-0\n", wrong.join("\n"));
        let list = parse_list(text.as_bytes());
        assert_eq!((list.rules.len(), list.unread_count, list.unread.len()), (1, 10, UNREAD_MAX));
        assert_eq!(list.unread[1], (2, "192.0.2.256".to_owned()));
        for text in wrong {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
        let long = |length: usize| format!("192.0.2.1 #{}", "x".repeat(length - "192.0.2.1 #".len()));
        assert_eq!(parse_list(long(LINE_BYTES_MAX).as_bytes()).rules.len(), 1);
        assert_eq!(parse_list(long(LINE_BYTES_MAX + 1).as_bytes()).unread_count, 1);
    }

    #[test]
    fn an_address_in_disguise_is_known() {
        let filter =
            IpFilter::new(["192.0.2.0/24", "1-ff00:0:110", "1-ff00:0:111,10.0.0.1"].map(|rule| rule.parse().unwrap()));
        let blocks = |text: &str| filter.blocks(&text.parse().unwrap());
        for blocked in [
            "192.0.2.0:1",
            "192.0.2.255:1",
            "[::ffff:192.0.2.7]:1",
            "[64:ff9b::192.0.2.7]:1",
            "[2002:c000:207::1]:1",
            "[1-ff00:0:110,10.9.9.9]:1",
            "[1-ff00:0:111,::ffff:10.0.0.1]:1",
            "[1-ff00:0:111,10.0.0.1]:1",
        ] {
            assert!(blocks(blocked), "{blocked}");
        }
        for free in [
            "192.0.1.255:1",
            "192.0.3.0:1",
            "[2001:db8::1]:1",
            "[1-ff00:0:111,192.0.2.1]:1",
            "[1-ff00:0:112,10.0.0.1]:1",
        ] {
            assert!(!blocks(free), "{free}");
        }
        assert_eq!((filter.len(), filter.is_empty(), IpFilter::default().is_empty()), (3, false, true));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let list = parse_list(&bytes);
            prop_assert!(list.unread.len() <= UNREAD_MAX);
            IpFilter::new(list.rules);
        }

        #[test]
        fn networks_of_any_length_read_back(bits: u64, shift in 0u32..128, length in 0u32..=128) {
            let text = format!("{}/{length}", Ipv6Addr::from(u128::from(bits).rotate_left(shift)));
            let rule: Rule = text.parse().unwrap();
            prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule), "{}", text);
        }

        #[test]
        fn lines_of_the_right_letters_are_read(text in "([0-9./:, #a-f-]{0,30}\n){0,10}") {
            let list = parse_list(text.as_bytes());
            for rule in &list.rules {
                // What is printed is read back as the same.
                prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(*rule));
            }
        }

        /// A filter against its rules, one by one.
        #[test]
        fn a_filter_blocks_whom_a_rule_blocks(pairs in proptest::collection::vec((0u8..40, 0u8..40), 0..12), value in 0u8..42) {
            let ip = |last: u8| Ipv4Addr::new(192, 0, 2, last);
            let rules: Vec<Rule> = pairs.iter().map(|(a, b)| Rule::V4(ip(*a.min(b)), ip(*a.max(b)))).collect();
            let expected = pairs.iter().any(|(a, b)| (a.min(b)..=a.max(b)).contains(&&value));
            prop_assert_eq!(IpFilter::new(rules.clone()).blocks_ip(ip(value).into()), expected);
            let wide: Vec<Rule> = rules.iter().map(|rule| match rule {
                Rule::V4(a, b) => Rule::V6(Ipv6Addr::from(u128::MAX - u128::from(b.to_bits())), Ipv6Addr::from(u128::MAX - u128::from(a.to_bits()))),
                other => *other,
            }).collect();
            let at = Ipv6Addr::from(u128::MAX - u128::from(ip(value).to_bits()));
            prop_assert_eq!(IpFilter::new(wide).blocks_ip(at.into()), expected);
        }
    }
}
