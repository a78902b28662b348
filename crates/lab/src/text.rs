//! Amounts as people read them.

use std::time::Duration;

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

/// `20 ms`, `1.5 s`, `90 s`.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 && seconds < 1.0 {
        format!("{} ms", trimmed(seconds * 1e3))
    } else {
        format!("{} s", trimmed(seconds))
    }
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

/// `2026-11-22 07:55 UTC`, of the time since 1970.
pub(crate) fn utc(since_1970: Duration) -> String {
    let minutes = since_1970.as_secs() / 60;
    let (year, month, day) = date(minutes / 1440);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60 % 24, minutes % 60)
}

/// Year, month and day of a number of days since 1970 (Gregorian calendar; years begin in March, so that leap days come last).
pub fn date(days: u64) -> (u64, u64, u64) {
    // From 0000-03-01, in eras of 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    if month < 10 { (era * 400 + year, month + 3, day) } else { (era * 400 + year + 1, month - 9, day) }
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
        assert_eq!([20, 1500, 90_000, 0].map(|ms| time(Duration::from_millis(ms))), ["20 ms", "1.5 s", "90 s", "0 s"]);
        assert_eq!(short_as("1-ff00:0:110".parse().unwrap()), "110");
        assert_eq!(short_as("64-559".parse().unwrap()), "559");
        let day = |days: u64| utc(Duration::from_secs(days * 86_400 + 3_660));
        assert_eq!([day(0), day(11_016)], ["1970-01-01 01:01 UTC", "2000-02-29 01:01 UTC"]);
        assert_eq!([day(20_779), day(364)], ["2026-11-22 01:01 UTC", "1970-12-31 01:01 UTC"]);
        assert_eq!((letter(0), letter(25), letter(26)), ("A".into(), "Z".into(), "A2".into()));
    }
}
