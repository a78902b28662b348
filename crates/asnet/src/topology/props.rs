//! What one direction of a link does to packets, as people write it.

use std::time::Duration;

use super::limits::MTU_MAX;
use crate::link::{LinkShape, MTU_MIN};

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
    ("rate", "a rate, as in \"10 Mbit/s\", or \"none\""),
    ("delay", "a time, as in \"20 ms\""),
    ("jitter", "a time, as in \"2 ms\""),
    ("loss", "a share from 0 % to 100 %, as in \"0.5 %\""),
    ("queue", "a size, as in \"256 KiB\""),
    ("mtu", "bytes from 1280 to 9216"),
];

/// Sets one property from text, as topology files and `net link ... set` write it: `rate` to `10 Mbit/s`. Whether the
/// properties together make a link is for [`LinkShape::checked`] to say, once all are set.
pub fn set_property(shape: &mut LinkShape, key: &str, value: &str) -> Result<(), PropError> {
    let Some((key, expected)) = PROPS.into_iter().find(|(name, _)| *name == key) else {
        return Err(PropError::Unknown(key.to_owned()));
    };
    let text = value.trim();
    let done = match key {
        "rate" if text == "none" => {
            shape.rate_bps = None;
            Some(())
        }
        "rate" => parse_rate(text).map(|rate| shape.rate_bps = Some(rate)),
        "delay" => parse_duration(text).map(|delay| shape.delay = delay),
        "jitter" => parse_duration(text).map(|jitter| shape.jitter = jitter),
        "loss" => parse_share(text).map(|loss| shape.loss = loss),
        "queue" => parse_size(text).map(|queue| shape.queue_bytes = queue),
        _ => parse_mtu(text).map(|mtu| shape.mtu = mtu),
    };
    done.ok_or_else(|| PropError::Value { key, value: value.to_owned(), expected })
}

/// The properties, each as [`set_property`] reads it: `rate=10Mbit/s delay=20ms jitter=0 loss=0% queue=512KiB mtu=1472`.
pub fn show_properties(shape: &LinkShape) -> String {
    let rate = shape.rate_bps.map_or("none".to_owned(), rate_text);
    let LinkShape { delay, jitter, loss, queue_bytes, mtu, .. } = shape;
    let (percent, queue) = (loss * 100.0, size_text(*queue_bytes));
    let [delay, jitter] = [*delay, *jitter].map(duration_text);
    format!("rate={rate} delay={delay} jitter={jitter} loss={percent}% queue={queue} mtu={mtu}")
}

fn duration_text(time: Duration) -> String {
    if time.is_zero() { "0".to_owned() } else { format!("{time:?}") }
}

/// In the largest unit of which it is a whole number.
fn size_text(bytes: usize) -> String {
    let units = [(1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

fn rate_text(bits: u64) -> String {
    let units = [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1_000, "kbit/s")];
    match units.into_iter().find(|(unit, _)| bits >= *unit && bits.is_multiple_of(unit / 1000)) {
        Some((unit, name)) => format!("{}{name}", bits as f64 / unit as f64),
        None => format!("{bits}bit/s"),
    }
}

/// A decimal number and the unit behind it, in lower case.
fn number_and_unit(text: &str) -> Option<(f64, String)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].parse::<f64>().ok().filter(|number| number.is_finite())?;
    Some((number, text[end..].trim().to_ascii_lowercase()))
}

fn parse_rate(text: &str) -> Option<u64> {
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
    Some((number * factor).round() as u64)
}

/// A time with its unit, from `us` to `h`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
    let seconds = match unit.as_str() {
        "" if number == 0.0 => 0.0,
        "ns" => number / 1e9,
        "us" | "µs" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return None,
    };
    // Whole nanoseconds, so that 0.3 ms is 300 us and not a nanosecond less.
    Duration::try_from_secs_f64(seconds).ok()
}

fn parse_share(text: &str) -> Option<f64> {
    let (number, unit) = number_and_unit(text)?;
    // A bare 0.02 could be meant either way.
    (unit == "%" || (unit.is_empty() && number == 0.0)).then_some(number / 100.0).filter(|share| *share <= 1.0)
}

/// Bytes with their unit, from `B` to `GiB`.
pub fn parse_size(text: &str) -> Option<usize> {
    let (number, unit) = number_and_unit(text)?;
    let factor = match unit.as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gb" => 1e9,
        "gib" => 1_073_741_824.0,
        _ => return None,
    };
    Some((number * factor).round() as usize)
}

pub(super) fn parse_mtu(text: &str) -> Option<u16> {
    text.parse().ok().filter(|mtu| (MTU_MIN..=MTU_MAX).contains(mtu))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, value: &str) -> Result<LinkShape, PropError> {
        let mut shape = LinkShape::default();
        set_property(&mut shape, key, value).map(|()| shape)
    }

    #[test]
    fn units_are_read_as_people_write_them() {
        for text in ["10 Mbit/s", "10mbit", "10Mbps", "10000 kbit/s", "10000000"] {
            assert_eq!(set("rate", text).unwrap().rate_bps, Some(10_000_000), "{text}");
        }
        assert_eq!(set("rate", "none").unwrap().rate_bps, None);
        assert_eq!(set("delay", "1.5 ms").unwrap().delay, Duration::from_micros(1500));
        assert_eq!(set("jitter", "0").unwrap().jitter, Duration::ZERO);
        assert_eq!(set("loss", "2 %").unwrap().loss, 0.02);
        assert_eq!(set("queue", "64 KiB").unwrap().queue_bytes, 65536);
        assert_eq!(set("mtu", "9216").unwrap().mtu, 9216);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_what_can() {
        let refused = [
            ("rate", "10 MB/s"),
            ("rate", "fast"),
            ("delay", "5"),
            ("delay", "-5 ms"),
            ("loss", "0.02"),
            ("loss", "101%"),
            ("queue", "20 ms"),
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
        let (mut shape, mut copy) = (LinkShape::default(), LinkShape::default());
        let values =
            [("rate", "1.5 Mbit/s"), ("delay", "1.5ms"), ("jitter", "7us"), ("queue", "64KiB"), ("loss", "0.5%")];
        for (key, value) in values {
            set_property(&mut shape, key, value).unwrap();
        }
        for part in show_properties(&shape).split(' ') {
            let (key, value) = part.split_once('=').unwrap();
            set_property(&mut copy, key, value).unwrap();
        }
        assert_eq!(copy, shape);
        let usual = show_properties(&LinkShape::default());
        assert_eq!(usual, "rate=none delay=0 jitter=0 loss=0% queue=512KiB mtu=1472");
    }
}
