//! Whether a router began anew, and forgot what it was asked (RFC 6887 §8.5, RFC 6886 §3.6).

use std::time::{Duration, Instant};

/// A router's clock may go so many seconds wrong before it counts as another one.
const SLACK: u64 = 2;
/// And so many parts of the time that passed: 16 means one sixteenth.
const DRIFT: u64 = 16;
/// A router is believed to have begun anew at most so often: one whose clock is nonsense must not have us ask without an end.
const ANEW_EVERY: Duration = Duration::from_secs(60);

/// The router's clock as it was told last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Epoch {
    last: Option<(Instant, u32)>,
    anew_at: Option<Instant>,
}

impl Epoch {
    /// The router says that its clock is at `seconds`; answers whether it began anew since it was heard last.
    pub(crate) fn is_anew(&mut self, now: Instant, seconds: u32) -> bool {
        let Some((then, before)) = self.last.replace((now, seconds)) else { return false };
        let ours = now.saturating_duration_since(then).as_secs();
        let is_one = match u64::from(seconds).checked_sub(u64::from(before)) {
            // RFC 6887 §8.5: one second less may be two answers that overtook each other.
            None => before - seconds > 1,
            Some(theirs) => {
                ours + SLACK < theirs.saturating_sub(theirs / DRIFT) || theirs + SLACK < ours - ours / DRIFT
            }
        };
        let is_anew = is_one && self.anew_at.is_none_or(|at| now >= at + ANEW_EVERY);
        if is_anew {
            self.anew_at = Some(now);
        }
        is_anew
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(times: &[(u64, u32)]) -> Vec<bool> {
        let (start, mut epoch) = (Instant::now(), Epoch::default());
        times.iter().map(|(at, seconds)| epoch.is_anew(start + Duration::from_secs(*at), *seconds)).collect()
    }

    #[test]
    fn a_clock_that_goes_on_is_the_same_one() {
        assert_eq!(heard(&[(0, 100), (1, 101), (1, 100), (1801, 1900), (3601, 3600)]), [false; 5]);
    }

    #[test]
    fn a_clock_that_went_back_or_leapt_is_another_one() {
        assert_eq!(heard(&[(0, 100), (100, 3)]), [false, true]);
        assert_eq!(heard(&[(0, 100), (10, 98)]), [false, true]);
        assert_eq!(heard(&[(0, 100), (10, 300)]), [false, true]);
        assert_eq!(heard(&[(0, 100), (1000, 900)]), [false, true]);
    }

    #[test]
    fn a_clock_of_nonsense_is_believed_once_a_minute() {
        assert_eq!(
            heard(&[(0, 100), (1, 0), (2, 900), (3, 1), (59, 5), (62, 900)]),
            [false, true, false, false, false, true]
        );
    }
}
