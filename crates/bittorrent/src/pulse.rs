//! Peers that answer in pulses: nothing for a while, then all they were asked, and nothing again.
//!
//! Clients that share their upload out every half second do so (Transmission), and so do programs that are seldom given a
//! processor. What such a peer sends a second is what it has been asked when its moment comes, so a pipeline has to cover
//! its silence, however short the path is. What is measured is silence while the peer owes an answer, and whether what came after it was
//! all that was owed: a peer that is short of upload and serves many by turns is silent as long, but answers one request of several
//! each time. To ask more of that one would bring nothing, and claim blocks that somebody else could fetch.

use std::time::{Duration, Instant};

/// Shorter silences are covered by the pipeline's margin.
const SILENCE_MIN: Duration = Duration::from_millis(20);

/// Longer ones are no pulse but a peer that stopped: requests time out soon after.
const SILENCE_MAX: Duration = Duration::from_secs(4);

/// A stream that lasts this many times the silence before it is no burst: what came before was a stall.
const STREAM_FACTOR: u32 = 2;

/// The rhythm of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse {
    /// When payload came last, or since when an answer is owed.
    quiet_since: Option<Instant>,
    burst_start: Option<Instant>,
    /// The silences before the last two bursts, the newest first.
    silences: [Option<Duration>; 2],
    burst_bytes: u64,
    /// What was owed when the burst began.
    burst_owed_bytes: u64,
}

impl Pulse {
    /// Silence before this was ours: a request goes out while none is under way, or we take up again what we left lying.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.quiet_since = Some(now);
    }

    /// Payload came, of `owed_bytes` that were asked for and not answered. Where that shows a rhythm much slower than was known,
    /// answers the rate of the burst before, its silence included: what was measured in shorter times was none.
    pub(crate) fn on_payload(&mut self, bytes: u64, owed_bytes: u64, now: Instant) -> Option<u64> {
        let known = self.silence().unwrap_or_default();
        let burst_bytes = self.take_in(bytes, owed_bytes, now)?;
        let silence = self.silence().filter(|silence| *silence > known * 2)?;
        Some((burst_bytes as f64 / silence.as_secs_f64()) as u64)
    }

    /// Answers the bytes of the burst that ended, where another one begins.
    fn take_in(&mut self, bytes: u64, owed_bytes: u64, now: Instant) -> Option<u64> {
        let since = self.quiet_since.replace(now)?;
        self.burst_bytes += bytes;
        let silence = now.saturating_duration_since(since);
        // Within a burst there are pauses, too.
        let shortest = self.silence().map_or(SILENCE_MIN, |silence| (silence / 2).max(SILENCE_MIN));
        if silence >= shortest {
            let burst_bytes = std::mem::replace(&mut self.burst_bytes, bytes) - bytes;
            let burst_owed_bytes = std::mem::replace(&mut self.burst_owed_bytes, owed_bytes);
            // Once a rhythm is known, more is asked than a burst brings: that keeps the rhythm, and makes it no slower.
            let silence = match self.silence() {
                _ if burst_bytes >= burst_owed_bytes / 8 * 7 => Some(silence.min(SILENCE_MAX)),
                known => known.map(|known| known.min(silence)),
            };
            self.silences = [silence, self.silences[0]];
            self.burst_start = Some(now);
            return Some(burst_bytes);
        } else if let (Some(start), [Some(silence), _]) = (self.burst_start, self.silences)
            && now.saturating_duration_since(start) > silence * STREAM_FACTOR
        {
            self.silences = [None; 2];
        }
        None
    }

    /// How long the peer is silent between two bursts; `None` where it streams, or too little is known. One silence is a stall,
    /// two are a rhythm.
    pub(crate) fn silence(&self) -> Option<Duration> {
        Some(self.silences[0]?.min(self.silences[1]?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn bursts(pulse: &mut Pulse, now: &mut Instant, count: u32, silence: Duration, burst: Duration) {
        for _ in 0..count {
            *now += silence;
            pulse.on_payload(1000, 0, *now);
            let end = *now + burst;
            while *now < end {
                *now += MS;
                pulse.on_payload(1000, 0, *now);
            }
        }
    }

    #[test]
    fn two_silences_are_a_rhythm_and_one_is_a_stall() {
        let (mut pulse, mut now) = (Pulse::default(), Instant::now());
        pulse.asked(now);
        bursts(&mut pulse, &mut now, 1, MS * 500, MS * 30);
        assert_eq!(pulse.silence(), None);
        bursts(&mut pulse, &mut now, 1, MS * 480, MS * 30);
        assert_eq!(pulse.silence(), Some(MS * 480));
        // Pauses within a burst are none between two.
        bursts(&mut pulse, &mut now, 3, MS * 100, MS * 10);
        assert_eq!(pulse.silence(), Some(MS * 480));
        bursts(&mut pulse, &mut now, 1, MS * 500, MS * 30);
        assert_eq!(pulse.silence(), Some(MS * 480));
        // It streams: whatever stalls it had before say nothing.
        bursts(&mut pulse, &mut now, 1, MS * 500, MS * 1100);
        assert_eq!(pulse.silence(), None);
        bursts(&mut pulse, &mut now, 9, MS * 300, MS * 700);
        assert_eq!(pulse.silence(), None, "a stream with stalls");
    }

    #[test]
    fn the_rate_of_a_slower_rhythm_is_that_of_a_burst_and_its_silence() {
        let (mut pulse, mut now) = (Pulse::default(), Instant::now());
        pulse.asked(now);
        bursts(&mut pulse, &mut now, 3, MS * 25, MS * 9);
        now += MS * 500;
        assert_eq!(pulse.on_payload(7000, 0, now), None, "one silence is a stall");
        now += MS * 500;
        assert_eq!(pulse.on_payload(1000, 0, now), Some(14_000));
        now += MS * 500;
        assert_eq!(pulse.on_payload(1000, 0, now), None, "known already");
    }

    #[test]
    fn silence_counts_while_an_answer_is_owed_and_to_a_limit() {
        let (mut pulse, mut now) = (Pulse::default(), Instant::now());
        for _ in 0..5 {
            now += MS * 2000;
            pulse.asked(now);
            bursts(&mut pulse, &mut now, 1, SILENCE_MIN - MS, MS * 10);
        }
        assert_eq!(pulse.silence(), None, "shorter than counts");
        bursts(&mut pulse, &mut now, 2, SILENCE_MIN, MS * 10);
        assert_eq!(pulse.silence(), Some(SILENCE_MIN));
        bursts(&mut pulse, &mut now, 2, SILENCE_MAX * 2, MS * 10);
        assert_eq!(pulse.silence(), Some(SILENCE_MAX));
        // A clock that steps back is no silence.
        pulse.on_payload(1000, 0, now - MS * 5000);
        assert_eq!(pulse.silence(), Some(SILENCE_MAX));
    }

    /// One block in a turn, of four that were asked for: the peer serves many, and has no rhythm to be covered.
    #[test]
    fn who_answers_one_request_of_several_each_time_has_a_queue() {
        let (mut pulse, mut now) = (Pulse::default(), Instant::now());
        pulse.asked(now);
        for _ in 0..50 {
            now += MS * 300;
            pulse.on_payload(16_384, 65_536, now);
            assert_eq!(pulse.silence(), None);
        }
        // A rhythm that is known stays when more is asked than a burst brings, but does not slow down.
        for owed in [0, 0, 65_536] {
            now += MS * 300;
            pulse.on_payload(16_384, owed, now);
        }
        for _ in 0..5 {
            assert_eq!(pulse.silence(), Some(MS * 300));
            now += MS * 900;
            pulse.on_payload(16_384, 65_536, now);
        }
    }
}
