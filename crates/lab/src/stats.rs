//! Means of few runs, and how sure they are.

/// Two-sided 95 % quantiles of Student's t, for 1 to 30 degrees of freedom.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The same for as many as one likes.
const T_95_FAR: f64 = 1.960;

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

impl Summary {
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
    // Welch and Satterthwaite.
    let freedom = error.powi(2) / (parts[0].powi(2) / (a.count - 1) as f64 + parts[1].powi(2) / (b.count - 1) as f64);
    Some((a.mean - b.mean).abs() / error.sqrt() > t_95(freedom))
}

fn t_95(freedom: f64) -> f64 {
    // Rounded down: rather too wide than too narrow.
    let whole = (freedom.max(1.0)) as usize;
    T_95.get(whole - 1).copied().unwrap_or(T_95_FAR)
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
        assert_eq!((t_95(1.0), t_95(30.9), t_95(31.0)), (12.706, 2.042, 1.960));
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
