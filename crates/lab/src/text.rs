//! Amounts as people read them.

use anabranch_paths::IsdAs;

/// `12.3 Mbit/s`, of bits per second.
pub(crate) fn rate(bits_per_second: f64) -> String {
    format!("{} Mbit/s", mbit(bits_per_second))
}

/// `12.3`: megabits, of bits; no decimals where there are three digits before the point.
pub(crate) fn mbit(bits: f64) -> String {
    let value = bits / 1e6;
    if value >= 99.95 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// `128 MiB`, or with one decimal where it is no whole number.
pub(crate) fn mib(bytes: u64) -> String {
    let value = bytes as f64 / 1_048_576.0;
    if bytes.is_multiple_of(1 << 20) || value >= 1000.0 { format!("{value:.0} MiB") } else { format!("{value:.1} MiB") }
}

/// `27.1 s`, `0.84 s`.
pub(crate) fn seconds(seconds: f64) -> String {
    if seconds < 9.995 { format!("{seconds:.2} s") } else { format!("{seconds:.1} s") }
}

/// `2`, `2.5`: no zeros behind.
pub(crate) fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What tells an AS from its neighbours at a glance: the last group of its number.
pub(crate) fn short_as(isd_as: IsdAs) -> String {
    let text = isd_as.to_string();
    text.rsplit([':', '-']).next().unwrap_or(&text).to_owned()
}

/// `A` to `Z`, then `A2`, `B2`, ...: the names of paths in one report.
pub(crate) fn letter(index: usize) -> String {
    let letter = char::from(b'A' + (index % 26) as u8);
    if index < 26 { letter.to_string() } else { format!("{letter}{}", index / 26 + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short_and_have_units() {
        assert_eq!(rate(38_040_000.0), "38.0 Mbit/s");
        assert_eq!(rate(140_000_000.0), "140 Mbit/s");
        assert_eq!((mib(128 << 20).as_str(), mib(1_500_000).as_str()), ("128 MiB", "1.4 MiB"));
        assert_eq!((seconds(0.844).as_str(), seconds(27.13).as_str()), ("0.84 s", "27.1 s"));
        assert_eq!(short_as("1-ff00:0:110".parse().unwrap()), "110");
        assert_eq!(short_as("64-559".parse().unwrap()), "559");
        assert_eq!((letter(0), letter(25), letter(26)), ("A".into(), "Z".into(), "A2".into()));
    }
}
