//! Which events of a plan are going on, pure: times and progress in, what begins and ends out.

use std::time::Duration;

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::topology::set_property;

use crate::plan::{Change, Event, LinkChange, When};

/// The events of a plan and how they stand.
#[derive(Debug)]
pub(super) struct Script<'a> {
    events: &'a [Event],
    states: Vec<State>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waiting,
    Since(Duration),
    Over,
}

/// What a direction of a link is at the moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Condition {
    /// Its shape.
    pub shape: LinkShape,
    /// Whether anything passes.
    pub up: bool,
    /// Cross traffic by UDP, bits a second.
    pub udp_bps: u64,
}

impl<'a> Script<'a> {
    pub(super) fn new(events: &'a [Event]) -> Self {
        Self { events, states: vec![State::Waiting; events.len()] }
    }

    /// What begins (`true`) and ends by now, by the places of the events.
    pub(super) fn due(&mut self, elapsed: Duration, progress: f64) -> Vec<(usize, bool)> {
        let mut due = Vec::new();
        for (number, (event, state)) in self.events.iter().zip(&mut self.states).enumerate() {
            match *state {
                State::Waiting => {
                    let is_due = match event.when {
                        When::At(at) => elapsed >= at,
                        When::Progress(share) => progress >= share,
                    };
                    if is_due {
                        *state = State::Since(elapsed);
                        due.push((number, true));
                    }
                }
                State::Since(since) => {
                    if event.length.is_some_and(|length| elapsed >= since + length) {
                        *state = State::Over;
                        due.push((number, false));
                    }
                }
                State::Over => {}
            }
        }
        due
    }

    /// What a direction of a link is, given what it is when nothing happens; of two that set the same, the later in the plan
    /// goes before.
    pub(super) fn condition(&self, link: usize, way: usize, usual: LinkShape) -> Condition {
        let mut now = Condition { shape: usual, up: true, udp_bps: 0 };
        let active = self.events.iter().zip(&self.states).filter(|(_, state)| matches!(state, State::Since(_)));
        for (event, _) in active {
            let Change::Link { link: which, ways, to } = &event.change else { continue };
            if *which != link || !ways[way] {
                continue;
            }
            match to {
                LinkChange::Set(properties) => {
                    // The plan was checked with them.
                    properties.iter().for_each(|(key, value)| drop(set_property(&mut now.shape, key, value)));
                }
                LinkChange::Down => now.up = false,
                LinkChange::Udp(rate_bps) => now.udp_bps += rate_bps,
                LinkChange::Tcp(_) => {}
            }
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(when: When, length: Option<u64>, to: LinkChange) -> Event {
        let change = Change::Link { link: 3, ways: [true, false], to };
        Event { when, length: length.map(Duration::from_secs), change }
    }

    #[test]
    fn events_begin_when_due_and_are_undone() {
        let set = |key: &str, value: &str| LinkChange::Set(vec![(key.into(), value.into())]);
        let events = [
            event(When::At(Duration::from_secs(2)), Some(5), set("rate", "1 Mbit/s")),
            event(When::Progress(0.5), None, set("delay", "7 ms")),
            event(When::At(Duration::from_secs(3)), Some(1), LinkChange::Udp(4_000)),
            event(When::At(Duration::from_secs(3)), Some(1), LinkChange::Down),
        ];
        let mut script = Script::new(&events);
        let at = Duration::from_secs;
        let usual = LinkShape::default();
        let plain = Condition { shape: usual, up: true, udp_bps: 0 };
        assert_eq!(script.due(Duration::from_millis(1999), 0.49), []);
        assert_eq!(script.condition(3, 0, usual), plain);
        assert_eq!(script.due(at(2), 0.49), [(0, true)]);
        assert_eq!(script.due(at(3), 0.5), [(1, true), (2, true), (3, true)]);
        let shape = LinkShape { rate_bps: Some(1_000_000), delay: Duration::from_millis(7), ..usual };
        assert_eq!(script.condition(3, 0, usual), Condition { shape, up: false, udp_bps: 4_000 });
        // Neither the other direction nor another link.
        assert_eq!((script.condition(3, 1, usual), script.condition(2, 0, usual)), (plain, plain));
        assert_eq!(script.due(at(4), 0.6), [(2, false), (3, false)]);
        // Progress that falls, as when peers come back, undoes nothing.
        assert_eq!(script.due(at(7), 0.1), [(0, false)]);
        let shape = LinkShape { delay: Duration::from_millis(7), ..usual };
        assert_eq!(script.condition(3, 0, usual), Condition { shape, up: true, udp_bps: 0 });
        assert_eq!(script.due(at(700), 1.0), []);
    }
}
