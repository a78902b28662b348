//! Rates and sizes as users write them and as they are shown.

use std::str::FromStr;
use std::time::Duration;

/// Bytes per second. `K`, `M`, `G` are powers of 1000, as links are measured; `KiB`, `MiB`, `GiB` powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate(pub u64);

/// Bytes. All letters are powers of 1024, as memory and pieces are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub u64);

/// Why a text is no rate or size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnitError {
    /// Something else.
    #[error("write a number and a unit, such as {0}")]
    Malformed(&'static str),
    /// No room in 64 bits.
    #[error("that is more than this program can count")]
    TooLarge,
    /// A limit of nothing moves nothing.
    #[error("it must be more than 0; leave the limit out for none")]
    Zero,
    /// A limit at which nothing moves either; or a number whose unit was forgotten.
    #[error("that is {bytes} bytes per second, and the least is 1K: add the unit, such as {RATE_EXAMPLES}")]
    TooSlow {
        /// What was written.
        bytes: u64,
    },
    /// Less memory than a transfer can do with; or a number whose unit was forgotten.
    #[error("that is {bytes} bytes, and the least is 1MiB: add the unit, such as 48MiB")]
    TooLittle {
        /// What was written.
        bytes: u64,
    },
    /// No datagram takes it, or its proofs are longer than itself.
    #[error("that is {bytes} bytes, and a chunk has 256 to 63KiB: write a length such as 1KiB or 8KiB")]
    Chunk {
        /// What was written.
        bytes: u64,
    },
}

/// Lengths of a chunk: a datagram takes it with its proofs, and those are not longer than itself.
const CHUNK_LENS: std::ops::RangeInclusive<u64> = 256..=63 * 1024;
/// Below this a block of 16 KiB takes longer than peers wait.
const RATE_MIN: u64 = 1000;
/// Four chunks of pieces under way.
pub(crate) const MEMORY_MIN: u64 = 1 << 20;
const RATE_EXAMPLES: &str = "500K, 10M or 1.5MiB (bytes per second)";
const SIZE_EXAMPLES: &str = "16KiB, 1MiB or 65536";

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let text = text.strip_suffix("/s").unwrap_or(text);
        let bytes = parse(text, 1000, RATE_EXAMPLES)?;
        if bytes < RATE_MIN { Err(UnitError::TooSlow { bytes }) } else { Ok(Self(bytes)) }
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text, 1024, SIZE_EXAMPLES).map(Self)
    }
}

/// Memory for pieces under way.
pub(crate) fn parse_memory(text: &str) -> Result<Size, UnitError> {
    let Size(bytes) = text.parse()?;
    if bytes < MEMORY_MIN { Err(UnitError::TooLittle { bytes }) } else { Ok(Size(bytes)) }
}

/// Length of a chunk of PPSPP.
pub(crate) fn parse_chunk(text: &str) -> Result<Size, UnitError> {
    let Size(bytes) = text.parse()?;
    if CHUNK_LENS.contains(&bytes) { Ok(Size(bytes)) } else { Err(UnitError::Chunk { bytes }) }
}

/// `base` is what a bare `K` stands for.
fn parse(text: &str, base: u64, examples: &'static str) -> Result<u64, UnitError> {
    let text = text.trim();
    let malformed = UnitError::Malformed(examples);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let (letter, binary) = match unit.strip_suffix("ib") {
        Some(letter) => (letter, true),
        None => (unit.strip_suffix('b').unwrap_or(&unit), false),
    };
    let power = match letter {
        "" if !binary => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(malformed),
    };
    let factor = if binary { 1024_u64 } else { base }.pow(power);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return Err(malformed);
    }
    let whole: u64 = whole.parse().map_err(|_| UnitError::TooLarge)?;
    let fraction: f64 = format!("0.{fraction}").parse().map_err(|_| malformed)?;
    let bytes = whole
        .checked_mul(factor)
        .and_then(|bytes| bytes.checked_add((fraction * factor as f64).round() as u64))
        .ok_or(UnitError::TooLarge)?;
    if bytes == 0 { Err(UnitError::Zero) } else { Ok(bytes) }
}

/// `1.5 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    scaled(count, 1024, ["KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// `1.5 MB/s`, in the units that limits are given in.
pub(crate) fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", scaled(bytes_per_second, 1000, ["kB", "MB", "GB", "TB", "PB"]))
}

fn scaled(count: u64, base: u64, units: [&str; 5]) -> String {
    if count < base {
        return format!("{count} B");
    }
    let mut value = count as f64 / base as f64;
    let mut unit = 0;
    // Above 999.95 of a unit there would be four digits before the point.
    while value >= 999.95 && unit + 1 < units.len() {
        value /= base as f64;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

/// `100.0 Mbit/s`, of kilobits per second.
pub(crate) fn bit_rate(kbps: u64) -> String {
    match kbps {
        0..1000 => format!("{kbps} kbit/s"),
        1000..1_000_000 => format!("{:.1} Mbit/s", kbps as f64 / 1e3),
        _ => format!("{:.1} Gbit/s", kbps as f64 / 1e6),
    }
}

/// `200ms`, `1.5s`, `2m`; up to an hour.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let factor = match &text[unit..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        _ => 0.0,
    };
    let seconds = text[..unit].parse::<f64>().unwrap_or(0.0) * factor;
    if (0.001..=TIME_MAX.as_secs_f64()).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(format!("write a time from 1ms to {}, with unit ms, s or m", self::duration(TIME_MAX)))
}

/// A time that people wait for: `90s`, `30m`, `1.5h`, `7d`.
pub(crate) fn parse_long_time(text: &str) -> Result<Duration, String> {
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let factor = match &text[unit..] {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => 0.0,
    };
    let seconds = text[..unit].parse::<f64>().unwrap_or(0.0) * factor;
    if (1.0..=LONG_TIME_MAX.as_secs_f64()).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(format!("write a time from 1s to {}d, with unit s, m, h or d", LONG_TIME_MAX.as_secs() / 86_400))
}

/// `1h02m`, `3m20s`, `8s`.
pub(crate) fn duration(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        seconds @ 3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `1 path`, `2 paths`.
pub(crate) fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// `1 AS and 2 links`.
pub(crate) fn network(ases: usize, links: usize) -> String {
    let ases = if ases == 1 { "1 AS".to_owned() } else { format!("{ases} ASes") };
    format!("{ases} and {}", count(links, "link"))
}

/// Percent, rounded down: 100 is said of what is complete only.
pub(crate) fn percent(done: u64, total: u64) -> f64 {
    if total == 0 {
        return 100.0;
    }
    (done as f64 / total as f64 * 1000.0).floor() / 10.0
}

/// Longest time that a flag about people's waiting takes.
const LONG_TIME_MAX: Duration = Duration::from_secs(1000 * 86_400);
/// Longest time that other flags take.
const TIME_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, ms) in [("200ms", 200), ("1s", 1000), ("1.5s", 1500), ("60m", 3_600_000)] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "1", "0s", "-1s", "61m", "1e3s", "1..5s", "nans", "0.1ms"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn long_times_have_a_unit() {
        for (text, seconds) in [("1s", 1), ("90s", 90), ("1.5h", 5400), ("7d", 604_800), ("1000d", 86_400_000)] {
            assert_eq!(parse_long_time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "5", "0s", "0.5s", "1001d", "1w", "-1s", "s", "1 h"] {
            assert!(parse_long_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_and_sizes_are_read() {
        for (text, bytes) in
            [("500K", 500_000), ("10m", 10_000_000), ("1.5MiB", 1_572_864), ("1000", 1000), ("2 GB/s", 2_000_000_000)]
        {
            assert_eq!(text.parse(), Ok(Rate(bytes)), "{text}");
        }
        for (text, bytes) in [("16KiB", 16384), ("16K", 16384), ("1MB", 1 << 20), ("65536", 65536)] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in ["", "K", "1.", ".5M", "-1", "1.2.3", "1X", "1iB", "1 0", "10 Mbit"] {
            assert!(matches!(text.parse::<Rate>(), Err(UnitError::Malformed(_))), "{text}");
        }
        assert_eq!("0".parse::<Rate>(), Err(UnitError::Zero));
        assert_eq!("999".parse::<Rate>(), Err(UnitError::TooSlow { bytes: 999 }));
        assert_eq!(parse_memory("1023KiB"), Err(UnitError::TooLittle { bytes: 1023 << 10 }));
        assert_eq!(parse_memory("1MiB"), Ok(Size(1 << 20)));
        assert_eq!("99999999999999999999".parse::<Rate>(), Err(UnitError::TooLarge));
        assert_eq!("99999999999T".parse::<Rate>(), Err(UnitError::TooLarge));
    }

    #[test]
    fn amounts_are_short() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1 << 31), "2.0 GiB");
        assert_eq!(bytes(1023 * 1024), "1.0 MiB");
        assert_eq!(rate(1_500_000), "1.5 MB/s");
        assert_eq!(rate(999), "999 B/s");
        assert_eq!(duration(Duration::from_secs(3725)), "1h02m");
        assert_eq!(bit_rate(999), "999 kbit/s");
        assert_eq!(bit_rate(1_500_000), "1.5 Gbit/s");
        assert_eq!(percent(999_999, 1_000_000), 99.9);
        assert_eq!(percent(0, 0), 100.0);
    }
}
