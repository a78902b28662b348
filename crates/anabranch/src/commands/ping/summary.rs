//! What came of all requests of a `ping`.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

/// What came of all requests so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    sent: u64,
    received: u64,
    rtt_ms_min: f64,
    rtt_ms_max: f64,
    rtt_ms_sum: f64,
    /// Of the squares.
    rtt_ms2_sum: f64,
}

/// Round-trip times in milliseconds.
struct Rtts {
    min: f64,
    mean: f64,
    max: f64,
    /// Standard deviation, which ping(8) calls mdev.
    deviation: f64,
}

impl Summary {
    /// A request went out, and was answered after `rtt` if at all.
    pub(super) fn add(&mut self, rtt: Option<Duration>) {
        self.sent += 1;
        let Some(ms) = rtt.map(milliseconds) else { return };
        self.rtt_ms_min = if self.received == 0 { ms } else { self.rtt_ms_min.min(ms) };
        self.received += 1;
        self.rtt_ms_max = self.rtt_ms_max.max(ms);
        self.rtt_ms_sum += ms;
        self.rtt_ms2_sum += ms * ms;
    }

    /// Whether a request has come to an end.
    pub(super) fn is_empty(&self) -> bool {
        self.sent == 0
    }

    /// Whether there was an answer.
    pub(super) fn is_answered(&self) -> bool {
        self.received > 0
    }

    fn lost_percent(&self) -> f64 {
        (self.sent - self.received) as f64 * 100.0 / self.sent.max(1) as f64
    }

    fn rtts(&self) -> Option<Rtts> {
        let mean = self.rtt_ms_sum / self.received as f64;
        let variance = self.rtt_ms2_sum / self.received as f64 - mean * mean;
        // Rounding may leave less than nothing.
        let deviation = variance.max(0.0).sqrt();
        self.is_answered().then_some(Rtts { min: self.rtt_ms_min, mean, max: self.rtt_ms_max, deviation })
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let rtts = self.rtts();
        let ms = |value: fn(&Rtts) -> f64| rtts.as_ref().map(value);
        json!({
            "sent": self.sent,
            "received": self.received,
            "lost_percent": self.lost_percent(),
            "rtt_ms_min": ms(|rtts| rtts.min),
            "rtt_ms_mean": ms(|rtts| rtts.mean),
            "rtt_ms_max": ms(|rtts| rtts.max),
            "rtt_ms_deviation": ms(|rtts| rtts.deviation),
        })
    }
}

/// As programs and people get it.
pub(super) fn milliseconds(rtt: Duration) -> f64 {
    rtt.as_secs_f64() * 1e3
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sent, {} answered, {:.0} % lost", self.sent, self.received, self.lost_percent())?;
        let Some(Rtts { min, mean, max, deviation }) = self.rtts() else { return Ok(()) };
        write!(f, "\nrtt min/avg/max/mdev {min:.3}/{mean:.3}/{max:.3}/{deviation:.3} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_adds_up() {
        let mut summary = Summary::default();
        assert_eq!(summary.to_string(), "0 sent, 0 answered, 0 % lost");
        assert!(summary.is_empty());
        for rtt in [Some(20), None, Some(10), Some(30)] {
            summary.add(rtt.map(Duration::from_millis));
        }
        let text = "4 sent, 3 answered, 25 % lost\nrtt min/avg/max/mdev 10.000/20.000/30.000/8.165 ms";
        assert_eq!(summary.to_string(), text);
        assert_eq!(summary.json()["rtt_ms_mean"], 20.0);
        assert_eq!(summary.json()["lost_percent"], 25.0);
        assert!(summary.is_answered());
    }

    #[test]
    fn without_an_answer_there_are_no_times() {
        let mut summary = Summary::default();
        summary.add(None);
        assert_eq!(summary.to_string(), "1 sent, 0 answered, 100 % lost");
        assert_eq!(summary.json()["rtt_ms_min"], Value::Null);
        assert!(!summary.is_answered());
    }
}
