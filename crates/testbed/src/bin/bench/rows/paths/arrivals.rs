//! What arrived when, from a path log. Seconds are those of the log: since the start of the program that fetched.

use anabranch_lab::run::{PathLog, Series};

/// Arrivals of payload, over all paths or over one.
pub(super) struct Arrivals<'a>(Vec<&'a Series>);

impl<'a> Arrivals<'a> {
    /// Over every path of every peer.
    pub(super) fn all(log: &'a PathLog) -> Self {
        Self(log.series.iter().collect())
    }

    /// Over one path.
    pub(super) fn over(series: &'a Series) -> Self {
        Self(vec![series])
    }

    /// Bytes by `seconds`. A path that was opened anew counts from zero again: what it carried before stays.
    pub(super) fn bytes_at(&self, seconds: f64) -> f64 {
        self.0.iter().map(|series| bytes_at(series, seconds)).sum()
    }

    /// When the first byte had come, and when the last.
    pub(super) fn span(&self) -> Option<(f64, f64)> {
        let moments = || self.moments();
        Some((moments().reduce(f64::min)?, moments().reduce(f64::max)?))
    }

    /// Bytes a second between two moments.
    pub(super) fn rate(&self, from: f64, to: f64) -> f64 {
        (self.bytes_at(to) - self.bytes_at(from)) / (to - from)
    }

    /// When `share` of all bytes had come.
    pub(super) fn time_of_share(&self, share: f64) -> Option<f64> {
        let (first, last) = self.span()?;
        let wanted = share * self.bytes_at(last);
        let mut times: Vec<f64> = self.moments().collect();
        times.sort_by(f64::total_cmp);
        times.into_iter().find(|&time| self.bytes_at(time) >= wanted).or(Some(first))
    }

    /// The longest time between `from` and `to` in which nothing came.
    pub(super) fn longest_gap(&self, from: f64, to: f64) -> f64 {
        let mut times: Vec<f64> = self.moments().filter(|time| (from..=to).contains(time)).collect();
        times.extend([from, to]);
        times.sort_by(f64::total_cmp);
        times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
    }

    /// The first moment after `from` since which `window` seconds brought `rate` bytes a second or more.
    pub(super) fn first_at_rate(&self, from: f64, rate: f64, window: f64) -> Option<f64> {
        let (_, last) = self.span()?;
        let steps = ((last - window - from) / 0.05).max(0.0) as usize;
        (0..steps).map(|step| from + step as f64 * 0.05).find(|&start| self.rate(start, start + window) >= rate)
    }

    /// The rows by which something had come.
    fn moments(&self) -> impl Iterator<Item = f64> + '_ {
        let of_one = |series: &&'a Series| {
            let points = &series.points;
            let grew = (0..points.len()).filter(|&at| {
                let before = at.checked_sub(1).map_or(0, |before| points[before].downloaded);
                points[at].downloaded != before && points[at].downloaded > 0
            });
            grew.map(|at| points[at].seconds).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_one)
    }
}

fn bytes_at(series: &Series, seconds: f64) -> f64 {
    let points = &series.points;
    let after = points.partition_point(|point| point.seconds <= seconds);
    // Whatever stood before the count fell to a lower one.
    let earlier = |end: usize| -> u64 {
        (1..end)
            .filter(|&at| points[at].downloaded < points[at - 1].downloaded)
            .map(|at| points[at - 1].downloaded)
            .sum()
    };
    let Some(before) = after.checked_sub(1) else { return 0.0 };
    let base = earlier(after) as f64 + points[before].downloaded as f64;
    match points.get(after) {
        Some(next) if next.downloaded > points[before].downloaded => {
            let along = (seconds - points[before].seconds) / (next.seconds - points[before].seconds);
            base + along * (next.downloaded - points[before].downloaded) as f64
        }
        _ => base,
    }
}

#[cfg(test)]
mod tests {
    use anabranch_lab::run::Point;

    use super::*;

    fn series(path: &str, downloaded: &[(f64, u64)]) -> Series {
        let point = |&(seconds, downloaded): &(f64, u64)| Point {
            seconds,
            active: true,
            downloaded,
            down_rate: 0,
            rtt_ms: None,
            lost: 0,
            share: 0.0,
        };
        Series { peer: "p".into(), path: path.into(), points: downloaded.iter().map(point).collect() }
    }

    #[test]
    fn rates_add_up_over_paths_and_gaps_are_what_no_path_fills() {
        let log = PathLog {
            series: vec![
                series("a", &[(0.0, 0), (1.0, 100), (2.0, 200), (3.0, 200), (4.0, 200)]),
                series("b", &[(0.0, 0), (1.0, 0), (2.0, 50), (3.0, 50), (4.0, 150)]),
            ],
        };
        let arrivals = Arrivals::all(&log);
        assert_eq!(arrivals.span(), Some((1.0, 4.0)));
        assert_eq!(arrivals.rate(1.0, 2.0), 150.0);
        assert_eq!(arrivals.rate(0.5, 1.0), 100.0);
        assert_eq!(arrivals.longest_gap(1.0, 4.0), 2.0);
        assert_eq!(arrivals.time_of_share(0.7), Some(2.0));
        assert_eq!(Arrivals::over(&log.series[1]).span(), Some((2.0, 4.0)));
        let first = arrivals.first_at_rate(0.0, 140.0, 1.0).unwrap();
        assert!((first - 0.8).abs() < 1e-9, "{first}");
    }

    #[test]
    fn a_path_that_is_opened_anew_goes_on_counting() {
        let log = PathLog { series: vec![series("a", &[(0.0, 0), (1.0, 100), (2.0, 0), (3.0, 40)])] };
        let arrivals = Arrivals::all(&log);
        assert_eq!((arrivals.bytes_at(1.0), arrivals.bytes_at(2.0), arrivals.bytes_at(3.0)), (100.0, 100.0, 140.0));
        assert_eq!(arrivals.longest_gap(1.0, 3.0), 2.0);
    }
}
