//! Means of few runs, and how sure they are.

/// Two-sided 95 % quantiles of Student's t, for 1 to 30 degrees of freedom.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The same beyond them: what they tend to, and the first term of the way there (Abramowitz and Stegun 26.7.5), rounded up for
/// those behind it: never narrower than the tables, and wider by less than 0.002.
const T_95_FAR: f64 = 1.960;
const T_95_NEAR: f64 = 2.5;

/// What is known of a value that was measured several times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// How often.
    pub count: usize,
    /// The mean.
    pub mean: f64,
    /// Variance of the values (of the population that they are a sample of).
    pub variance: f64,
    /// Half the width of the 95 % confidence interval of the mean; `None` for a single value, which has none.
    pub half_width: Option<f64>,
}

/// A value, and half the width of its 95 % confidence interval where it has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The value.
    pub mean: f64,
    /// See [`Summary::half_width`].
    pub half_width: Option<f64>,
}

impl Summary {
    /// Its mean.
    pub fn interval(&self) -> Interval {
        Interval { mean: self.mean, half_width: self.half_width }
    }

    /// Of these values; `None` where there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        if count == 1 {
            return Some(Self { count, mean, variance: 0.0, half_width: None });
        }
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
        let half_width = t_95((count - 1) as f64) * (variance / count as f64).sqrt();
        Some(Self { count, mean, variance, half_width: Some(half_width) })
    }
}

/// One mean over another, of values that have nothing to do with each other: both vary, and so does their ratio (delta method).
/// `None` where there is no ratio; no interval where one of them is of a single value.
pub fn ratio(a: &Summary, b: &Summary) -> Option<Interval> {
    let mean = Some(a.mean / b.mean).filter(|ratio| ratio.is_finite())?;
    let freedoms = [a, b].map(|each| each.count.saturating_sub(1) as f64);
    if freedoms.contains(&0.0) || a.mean == 0.0 {
        return Some(Interval { mean, half_width: None });
    }
    let parts = [a, b].map(|each| each.variance / each.count as f64 / each.mean.powi(2));
    let error = parts[0] + parts[1];
    let width = if error == 0.0 { 0.0 } else { t_95(freedom(parts, freedoms)) * error.sqrt() * mean.abs() };
    Some(Interval { mean, half_width: Some(width) })
}

/// How many values the sum of two variances is worth (Welch and Satterthwaite).
fn freedom(parts: [f64; 2], freedoms: [f64; 2]) -> f64 {
    (parts[0] + parts[1]).powi(2) / (parts[0].powi(2) / freedoms[0] + parts[1].powi(2) / freedoms[1])
}

/// Whether two means differ: Welch's test at 95 %. `None` where one of them is of a single value.
pub fn differ(a: &Summary, b: &Summary) -> Option<bool> {
    if a.count < 2 || b.count < 2 {
        return None;
    }
    let parts = [a, b].map(|each| each.variance / each.count as f64);
    let error = parts[0] + parts[1];
    if error == 0.0 {
        return Some(a.mean != b.mean);
    }
    let freedom = freedom(parts, [a, b].map(|each| (each.count - 1) as f64));
    Some((a.mean - b.mean).abs() / error.sqrt() > t_95(freedom))
}

fn t_95(freedom: f64) -> f64 {
    // Rounded down: rather too wide than too narrow.
    let whole = (freedom.max(1.0)) as usize;
    T_95.get(whole - 1).copied().unwrap_or(T_95_FAR + T_95_NEAR / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_books() {
        let summary = Summary::of(&[9.0, 10.0, 11.0]).unwrap();
        assert_eq!((summary.count, summary.mean, summary.variance), (3, 10.0, 1.0));
        // 4.303 / sqrt(3).
        assert!((summary.half_width.unwrap() - 2.4843).abs() < 1e-3);
        assert_eq!(Summary::of(&[7.0]).unwrap().half_width, None);
        assert_eq!(Summary::of(&[]), None);
        assert_eq!((t_95(1.0), t_95(30.9)), (12.706, 2.042));
    }

    #[test]
    fn many_runs_have_intervals_as_in_the_tables_or_a_little_wider() {
        for (freedom, of_the_books) in [
            (31.0, 2.0395),
            (35.0, 2.0301),
            (40.0, 2.0211),
            (60.0, 2.0003),
            (120.0, 1.9799),
            (1000.0, 1.9623),
            (1e9, 1.95996),
        ] {
            let wider = t_95(freedom) - of_the_books;
            assert!((0.0..0.002).contains(&wider), "{freedom}: {wider}");
        }
        assert!(t_95(31.0) < t_95(30.0), "more runs never make an interval wider");
    }

    #[test]
    fn a_ratio_is_as_unsure_as_both_of_its_sides() {
        let of = |values: &[f64]| Summary::of(values).unwrap();
        let (exact, spread) = (of(&[10.0, 10.0, 10.0]), of(&[4.0, 5.0, 6.0]));
        // Two degrees of freedom, all of the spread below: 2 * 4.303 * (1 / sqrt(3)) / 5.
        let below = ratio(&exact, &spread).unwrap();
        assert!((below.mean - 2.0).abs() < 1e-9 && (below.half_width.unwrap() - 0.99374).abs() < 1e-4, "{below:?}");
        let above = ratio(&spread, &exact).unwrap();
        assert!((above.mean - 0.5).abs() < 1e-9 && (above.half_width.unwrap() - 0.24843).abs() < 1e-4, "{above:?}");
        // With spread on both sides there are more degrees of freedom.
        let both = ratio(&spread, &spread).unwrap();
        assert!((both.half_width.unwrap() - 2.776 * (2.0f64 / 75.0).sqrt()).abs() < 1e-3, "{both:?}");
        assert_eq!(ratio(&exact, &exact), Some(Interval { mean: 1.0, half_width: Some(0.0) }));
        assert_eq!(ratio(&spread, &of(&[5.0])), Some(Interval { mean: 1.0, half_width: None }));
        assert_eq!(ratio(&spread, &of(&[0.0, 0.0])), None);
    }

    #[test]
    fn a_difference_needs_more_than_one_run_and_less_spread() {
        let of = |values: &[f64]| Summary::of(values).unwrap();
        assert_eq!(differ(&of(&[1.0]), &of(&[2.0, 2.0])), None);
        assert_eq!(differ(&of(&[1.0, 1.1, 0.9]), &of(&[2.0, 2.1, 1.9])), Some(true));
        assert_eq!(differ(&of(&[1.0, 3.0, 2.0]), &of(&[2.0, 4.0, 3.0])), Some(false));
        assert_eq!(differ(&of(&[1.0, 1.0]), &of(&[1.0, 1.0])), Some(false));
    }
}
