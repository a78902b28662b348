//! What one direction of a link does to packets, and how people write it.

use std::fmt;
use std::time::Duration;

use super::limits::{MTU_DEFAULT, MTU_MAX, MTU_MIN};

/// The slowest link: below it one packet takes more than a second.
const RATE_BITS_MIN: u64 = 8_000;
/// The fastest link that is worth shaping.
const RATE_BITS_MAX: u64 = 400_000_000_000;
/// The longest delay: the Moon, twice, and then some.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// The smallest queue holds one jumbo packet.
const QUEUE_BYTES_MIN: u64 = MTU_MAX as u64;
/// The largest queue of one direction.
const QUEUE_BYTES_MAX: u64 = 1 << 30;

/// The properties of one direction of a link. The default passes everything at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkProps {
    /// Bits of SCION packets (header included) per second; `None`: as fast as the machine.
    pub rate_bits: Option<u64>,
    /// Time from one router to the other.
    pub delay: Duration,
    /// Up to so much more time, evenly spread; packets keep their order.
    pub jitter: Duration,
    /// The share of packets that is lost, from 0 to 1.
    pub loss: f64,
    /// Bytes that wait for the rate before packets are dropped; `None`: what the link finds right for its rate.
    pub queue_bytes: Option<u64>,
    /// Largest SCION packet, header included, in bytes.
    pub mtu: u16,
}

impl Default for LinkProps {
    fn default() -> Self {
        let (delay, jitter) = (Duration::ZERO, Duration::ZERO);
        Self { rate_bits: None, delay, jitter, loss: 0.0, queue_bytes: None, mtu: MTU_DEFAULT }
    }
}

/// A property that is none, or a value that it cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PropError {
    /// No such property.
    #[error("`{0}` is no property of a link: use rate, delay, jitter, loss, queue or mtu")]
    Unknown(String),
    /// No such value.
    #[error("`{value}` is no value for `{key}`: write {expected}")]
    Value {
        /// The property.
        key: &'static str,
        /// What was written.
        value: String,
        /// What can be.
        expected: &'static str,
    },
}

/// Every property and how it is written.
pub(super) const PROPS: [(&str, &str); 6] = [
    ("rate", "a rate from 8 kbit/s to 400 Gbit/s, as in \"10 Mbit/s\", or \"none\""),
    ("delay", "a time up to 10 s, as in \"20 ms\""),
    ("jitter", "a time up to 10 s, as in \"2 ms\""),
    ("loss", "a share from 0 % to 100 %, as in \"0.5 %\""),
    ("queue", "a size from 9216 B to 1 GiB, as in \"256 KiB\", or \"none\" for the link's own choice"),
    ("mtu", "bytes from 1280 to 9216"),
];

impl LinkProps {
    /// Sets one property from text, as topology files and `net link ... set` write it: `rate` to `10 Mbit/s`.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), PropError> {
        let Some((key, expected)) = PROPS.into_iter().find(|(name, _)| *name == key) else {
            return Err(PropError::Unknown(key.to_owned()));
        };
        let text = value.trim();
        let done = match key {
            "rate" => optional(text, parse_rate).map(|rate| self.rate_bits = rate),
            "delay" => parse_delay(text).map(|delay| self.delay = delay),
            "jitter" => parse_delay(text).map(|jitter| self.jitter = jitter),
            "loss" => parse_share(text).map(|loss| self.loss = loss),
            "queue" => optional(text, parse_queue).map(|queue| self.queue_bytes = queue),
            _ => parse_mtu(text).map(|mtu| self.mtu = mtu),
        };
        done.ok_or_else(|| PropError::Value { key, value: value.to_owned(), expected })
    }
}

impl fmt::Display for LinkProps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate_bits {
            Some(bits) => write!(f, "rate={} ", rate_text(bits))?,
            None => write!(f, "rate=none ")?,
        }
        write!(f, "delay={:?} jitter={:?} loss={}%", self.delay, self.jitter, self.loss * 100.0)?;
        if let Some(bytes) = self.queue_bytes {
            write!(f, " queue={bytes}B")?;
        }
        write!(f, " mtu={}", self.mtu)
    }
}

fn rate_text(bits: u64) -> String {
    let units = [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1_000, "kbit/s")];
    match units.into_iter().find(|(unit, _)| bits >= *unit && bits.is_multiple_of(unit / 1000)) {
        Some((unit, name)) => format!("{}{name}", bits as f64 / unit as f64),
        None => format!("{bits}bit/s"),
    }
}

fn optional<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if text == "none" { Some(None) } else { parse(text).map(Some) }
}

/// A decimal number and the unit behind it, in lower case.
fn number_and_unit(text: &str) -> Option<(f64, String)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].parse::<f64>().ok().filter(|number| number.is_finite())?;
    Some((number, text[end..].trim().to_ascii_lowercase()))
}

pub(super) fn parse_rate(text: &str) -> Option<u64> {
    // A capital B means bytes to most people; a link's rate is in bits.
    let (number, unit) = number_and_unit(text).filter(|_| !text.contains('B'))?;
    let unit = unit.strip_suffix("ps").or(unit.strip_suffix("/s")).unwrap_or(&unit);
    let factor = match unit.strip_suffix("bit").or(unit.strip_suffix('b')).unwrap_or(unit) {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        _ => return None,
    };
    Some((number * factor).round() as u64).filter(|bits| (RATE_BITS_MIN..=RATE_BITS_MAX).contains(bits))
}

/// A time with its unit, from `us` to `h`.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
    let seconds = match unit.as_str() {
        "" if number == 0.0 => 0.0,
        "ns" => number / 1e9,
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return None,
    };
    // Whole nanoseconds, so that 0.3 ms is 300 us and not a nanosecond less.
    Duration::try_from_secs_f64(seconds).ok()
}

fn parse_delay(text: &str) -> Option<Duration> {
    parse_duration(text).filter(|delay| *delay <= DELAY_MAX)
}

fn parse_share(text: &str) -> Option<f64> {
    let (number, unit) = number_and_unit(text)?;
    // A bare 0.02 could be meant either way.
    (unit == "%" || (unit.is_empty() && number == 0.0)).then_some(number / 100.0).filter(|share| *share <= 1.0)
}

fn parse_queue(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let factor = match unit.as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        _ => return None,
    };
    Some((number * factor).round() as u64).filter(|bytes| (QUEUE_BYTES_MIN..=QUEUE_BYTES_MAX).contains(bytes))
}

pub(super) fn parse_mtu(text: &str) -> Option<u16> {
    text.parse().ok().filter(|mtu| (MTU_MIN..=MTU_MAX).contains(mtu))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, value: &str) -> Result<LinkProps, PropError> {
        let mut props = LinkProps::default();
        props.set(key, value).map(|()| props)
    }

    #[test]
    fn units_are_read_as_people_write_them() {
        for text in ["10 Mbit/s", "10mbit", "10Mbps", "10000 kbit/s", "10000000"] {
            assert_eq!(set("rate", text).unwrap().rate_bits, Some(10_000_000), "{text}");
        }
        assert_eq!(set("rate", "none").unwrap().rate_bits, None);
        assert_eq!(set("delay", "1.5 ms").unwrap().delay, Duration::from_micros(1500));
        assert_eq!(set("jitter", "0").unwrap().jitter, Duration::ZERO);
        assert_eq!(set("loss", "2 %").unwrap().loss, 0.02);
        assert_eq!(set("queue", "64 KiB").unwrap().queue_bytes, Some(65536));
        assert_eq!(set("mtu", "9216").unwrap().mtu, 9216);
    }

    #[test]
    fn what_lies_outside_is_refused_with_what_lies_inside() {
        let refused = [
            ("rate", "7999"),
            ("rate", "401 Gbit/s"),
            ("rate", "10 MB/s"),
            ("delay", "10.1 s"),
            ("delay", "5"),
            ("delay", "-5 ms"),
            ("loss", "0.02"),
            ("loss", "101%"),
            ("queue", "9215"),
            ("queue", "1025 MiB"),
            ("mtu", "1279"),
            ("mtu", "9217"),
        ];
        for (key, value) in refused {
            let message = set(key, value).unwrap_err().to_string();
            assert!(message.contains(value) && message.contains("write"), "{message}");
        }
        assert!(set("speed", "1").unwrap_err().to_string().contains("use rate"));
    }

    #[test]
    fn what_is_shown_can_be_set() {
        let mut props = set("rate", "1.5 Mbit/s").unwrap();
        props.set("delay", "20ms").unwrap();
        props.set("queue", "64KiB").unwrap();
        props.set("loss", "0.5%").unwrap();
        let mut copy = LinkProps::default();
        for part in props.to_string().split(' ') {
            let (key, value) = part.split_once('=').unwrap();
            copy.set(key, value).unwrap();
        }
        assert_eq!(copy, props);
    }
}
