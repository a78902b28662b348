//! Paths that share a bottleneck: one controller for all of them, so that together they take what one flow would.
//!
//! The group's controller plans intervals for the sum, and hears of the sum. Each path goes at its part of the rate. A path that
//! delivers less of what it is given than the others loses part of its part to them: it has a bottleneck of its own, and the
//! traffic moves away from there. Slowly all parts draw level again, which finds out when that is over.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Congestion, INTERVAL_MAX, Interval, PathView, Plan, plan};

/// By how much parts draw level in each interval.
const LEVELLING: f64 = 0.02;
/// The smallest part of a path, of an equal one: less would not show when it is free again.
const PART_MIN: f64 = 0.05;
/// Room for parts that are smaller than others.
const SLACK: f64 = 1.5;
/// How much of what a path delivers of late is of the last interval.
const REMEMBERED: f64 = 0.1;
/// A path that delivers less than the best by this has a bottleneck of its own.
const PRIVATE: f64 = 0.02;
/// How much of what a path was given counts as delivered at least: one bad interval does not empty it.
const DELIVERED_MIN: f64 = 0.5;

/// Paths that share a bottleneck.
#[derive(Clone, Debug)]
pub struct Group(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    inner: Box<dyn Congestion>,
    id: u32,
    plan: Option<(Plan, Instant)>,
    /// Plans before this interval's are stale.
    fresh: u32,
    /// Intervals of the group that are not known whole, the oldest first; the last is being sent.
    open: VecDeque<Open>,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Open {
    id: u32,
    pending: u32,
    idle: bool,
    /// Of each member: bytes sent and lost, and for how long they were sent, arrived and waited, weighted by bytes.
    sums: Vec<Sum>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sent: f64,
    lost: f64,
    sent_for: f64,
    received_for: f64,
    waited: f64,
}

#[derive(Debug)]
struct Member {
    live: bool,
    gone: bool,
    part: f64,
    /// What was delivered of what was sent, of late.
    delivered: f64,
    /// Its last interval.
    last: Sum,
    view: Option<PathView>,
    /// Its intervals, and the group's that they belong to.
    planned: VecDeque<(u32, u32)>,
}

/// What a path of a group has for a controller.
#[derive(Debug)]
struct Share {
    group: Group,
    member: usize,
}

impl Group {
    /// Around the controller of the sum.
    pub fn new(inner: Box<dyn Congestion>) -> Self {
        let (open, members) = (VecDeque::new(), Vec::new());
        Self(Arc::new(Mutex::new(State { inner, id: 0, plan: None, fresh: 0, open, members })))
    }

    /// The controller of one more path. Who drops it leaves.
    pub fn join(&self) -> Box<dyn Congestion> {
        let mut state = self.lock();
        // Who left makes room: paths come and go for as long as a transfer lasts.
        let member = state.members.iter().position(|member| member.gone).unwrap_or(state.members.len());
        let new = Member {
            live: true,
            gone: false,
            part: 1.0,
            delivered: 1.0,
            last: Sum::default(),
            view: None,
            planned: VecDeque::new(),
        };
        match state.members.get_mut(member) {
            Some(slot) => *slot = new,
            None => state.members.push(new),
        }
        Box::new(Share { group: self.clone(), member })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way through a change; and what is in it is a rate, not a promise.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Of all live members, for the sum: the longest round trip, so that an interval spans one of each; and the latest such that a
    /// window over it is the rate of all parts of the window over theirs.
    fn view(&self, of: &PathView) -> PathView {
        let views =
            || self.members.iter().filter(|member| member.live).filter_map(|member| Some((member.part, member.view?)));
        let longest = |sum: PathView, (_, view): (f64, PathView)| PathView {
            rtt_min: sum.rtt_min.max(view.rtt_min),
            rtt: sum.rtt.max(view.rtt),
            reorders: sum.reorders || view.reorders,
            ..sum
        };
        let (parts, frequency) = views().fold((0.0, 0.0), |(parts, frequency), (part, view)| {
            (parts + part, frequency + part / view.rtt_latest.as_secs_f64())
        });
        let rtt_latest = if frequency > 0.0 { Duration::from_secs_f64(parts / frequency) } else { of.rtt_latest };
        // Each path has to get as many packets as an interval has at least.
        let live = self.members.iter().filter(|member| member.live).count() as f64;
        let interval_bytes_min = SLACK * live * of.interval_bytes_min;
        PathView { interval_bytes_min, rtt_latest, ..views().fold(*of, longest) }
    }

    fn on_lost(&mut self, member: usize, id: u32, path: &PathView) {
        let planned = self.members[member].planned.iter().rev().find(|(planned, _)| *planned <= id);
        if let Some(group) = planned.map(|(_, group)| *group) {
            let view = self.view(path);
            self.inner.on_lost(group, &view);
            self.renew();
        }
    }

    /// Ends the plan of all, if the group's controller wants a new one.
    fn renew(&mut self) {
        if self.inner.is_stale() {
            (self.plan, self.fresh) = (None, self.id);
        }
    }

    fn plan(&mut self, member: usize, id: u32, path: &PathView) -> Plan {
        self.members[member].view = Some(*path);
        if !self.members[member].live {
            return plan(0.0, path.rtt, f64::INFINITY);
        }
        let all: f64 = self.members.iter().filter(|member| member.live).map(|member| member.part).sum();
        let part = self.members[member].part / all;
        if self.inner.takes_parts() {
            return self.plan_part(member, id, part, path);
        }
        let current = self.plan.filter(|(_, ends)| path.now < *ends);
        let (sum, ends) = current.unwrap_or_else(|| {
            let view = self.view(path);
            let mut sum = self.inner.plan(self.id, &view);
            let time = Duration::from_secs_f64(view.interval_bytes_min / sum.rate_bytes);
            sum.length = sum.length.max(time.min(INTERVAL_MAX));
            let sums = vec![Sum::default(); self.members.len()];
            self.open.push_back(Open { id: self.id, pending: 0, idle: false, sums });
            self.id += 1;
            (sum, path.now + sum.length)
        });
        self.plan = Some((sum, ends));
        if let Some(open) = self.open.back_mut() {
            open.pending += 1;
            self.members[member].planned.push_back((id, open.id));
        }
        plan(sum.rate_bytes * part, ends - path.now, sum.window_bytes * part)
    }

    /// An interval of one member, of its own length, for a controller that hears of each by itself.
    fn plan_part(&mut self, member: usize, id: u32, part: f64, path: &PathView) -> Plan {
        let view = PathView { interval_bytes_min: path.interval_bytes_min, ..self.view(path) };
        let sum = self.inner.plan(self.id, &view);
        self.members[member].planned.push_back((id, self.id));
        self.id += 1;
        let rate = sum.rate_bytes * part;
        let length = sum.length.max(Duration::from_secs_f64(path.interval_bytes_min / rate).min(INTERVAL_MAX));
        // The part of the window grows by what is not known of a longer interval.
        let unknown = rate * (length - sum.length).as_secs_f64();
        plan(rate, length, sum.window_bytes * part + unknown)
    }

    fn on_part(&mut self, member: usize, interval: &Interval, path: &PathView) {
        let all: f64 = self.members.iter().filter(|member| member.live).map(|member| member.part).sum();
        while let Some((id, group)) = self.members[member].planned.front().copied().filter(|(id, _)| *id <= interval.id)
        {
            self.members[member].planned.pop_front();
            if id != interval.id || interval.sent_bytes == 0 {
                continue;
            }
            let part = self.members[member].part / all;
            self.members[member].last = Sum::of(interval);
            let felt = interval.idle || self.level_part(member);
            // As if the sum had sent so much, in the time that it takes the sum.
            let interval = Interval {
                id: group,
                lost_bytes: if felt { interval.lost_bytes } else { 0 },
                sent_for: interval.sent_for.mul_f64(part),
                received_for: interval.received_for.map(|time| time.mul_f64(part)),
                waited: interval.waited.filter(|_| felt),
                ..*interval
            };
            let view = self.view(path);
            self.inner.on_interval(&interval, &view);
            self.renew();
        }
    }

    /// As [`State::level`], after an interval of one member. Whether what it felt is the shared bottleneck's.
    fn level_part(&mut self, at: usize) -> bool {
        let live = self.members.iter().filter(|member| member.live);
        let all = live.map(|member| &member.last).fold(Sum::default(), Sum::and);
        let member = &mut self.members[at];
        let delivered = member.last.delivered();
        member.delivered += REMEMBERED * (delivered - member.delivered);
        let part = member.part * delivered / all.delivered();
        member.part = part + LEVELLING * (1.0 - part);
        let felt = member.delivered;
        self.normalise();
        felt >= self.lately() - PRIVATE
    }

    /// Parts are one on average.
    fn normalise(&mut self) {
        let live = self.members.iter().filter(|member| member.live);
        let mean = live.clone().map(|member| member.part).sum::<f64>() / (live.count() as f64).max(1.0);
        self.members.iter_mut().for_each(|member| member.part = (member.part / mean).max(PART_MIN));
    }

    fn on_interval(&mut self, member: usize, interval: &Interval, path: &PathView) {
        if self.inner.takes_parts() {
            return self.on_part(member, interval, path);
        }
        while let Some((id, group)) = self.members[member].planned.front().copied().filter(|(id, _)| *id <= interval.id)
        {
            self.members[member].planned.pop_front();
            let Some(open) = self.open.iter_mut().find(|open| open.id == group) else { continue };
            open.pending -= 1;
            if id == interval.id && interval.sent_bytes > 0 {
                open.idle |= interval.idle;
                if open.sums.len() <= member {
                    open.sums.resize(member + 1, Sum::default());
                }
                open.sums[member] = open.sums[member].and(&Sum::of(interval));
            }
        }
        self.finish(path);
    }

    /// Tells the group's controller of intervals of which everything is known.
    fn finish(&mut self, path: &PathView) {
        while self.open.len() > 1 && self.open[0].pending == 0 {
            let Some(open) = self.open.pop_front() else { break };
            // A path whose packets are few has longer intervals than the group: it went on as it did.
            let mut sum = Sum::default();
            for (at, member) in self.members.iter_mut().enumerate() {
                match open.sums.get(at).filter(|sum| sum.sent > 0.0) {
                    Some(known) => member.last = *known,
                    None if !member.live => continue,
                    None => {}
                }
                sum = sum.and(&member.last);
            }
            // What one path alone suffers is its own bottleneck's: it loses part for it, the sum does not slow down. What the
            // shared one does, all of them feel.
            let felt = self.level(&open, &sum);
            let sent = sum.sent.max(1.0);
            let waited = Duration::from_secs_f64(felt.waited / felt.sent.max(1.0));
            let interval = Interval {
                id: open.id,
                sent_bytes: sum.sent as u64,
                lost_bytes: (sum.sent * felt.loss()) as u64,
                sent_for: Duration::from_secs_f64(sum.sent_for / sent),
                received_for: Some(Duration::from_secs_f64(sum.sent_for / sent * felt.stretch())),
                waited: Some(waited),
                idle: open.idle || sum.sent == 0.0,
            };
            let view = self.view(path);
            self.inner.on_interval(&interval, &view);
        }
        self.renew();
    }

    /// Moves parts to where they are delivered, and a little towards each other. Returns what the shared bottleneck
    /// did: what those felt that have no bottleneck of their own.
    fn level(&mut self, open: &Open, all: &Sum) -> Sum {
        let mut felt = Sum::default();
        if open.idle || all.sent == 0.0 {
            return *all;
        }
        let mean = all.delivered();
        let lately = self.lately();
        for (member, sum) in self.members.iter_mut().zip(&open.sums).filter(|(_, sum)| sum.sent > 0.0) {
            member.delivered += REMEMBERED * (sum.delivered() - member.delivered);
            let part = member.part * sum.delivered() / mean;
            member.part = part + LEVELLING * (1.0 - part);
            if member.delivered >= lately - PRIVATE {
                felt = felt.and(sum);
            }
        }
        self.normalise();
        if felt.sent > 0.0 { felt } else { *all }
    }

    /// What the member that delivers most has delivered of late.
    fn lately(&self) -> f64 {
        self.members.iter().filter(|member| member.live).map(|member| member.delivered).fold(0.0, f64::max)
    }

    fn set_live(&mut self, member: usize, live: bool) {
        let planned = std::mem::take(&mut self.members[member].planned);
        for (_, group) in planned {
            if let Some(open) = self.open.iter_mut().find(|open| open.id == group) {
                (open.pending, open.idle) = (open.pending - 1, true);
            }
        }
        self.members[member].live = live;
        if let Some(view) = self.members[member].view {
            self.finish(&view);
        }
    }
}

impl Sum {
    fn of(interval: &Interval) -> Self {
        let sent = interval.sent_bytes as f64;
        Self {
            sent,
            lost: interval.lost_bytes as f64,
            sent_for: sent * interval.sent_for.as_secs_f64(),
            received_for: sent * interval.received_for.unwrap_or(interval.sent_for).as_secs_f64(),
            waited: sent * interval.waited.unwrap_or_default().as_secs_f64(),
        }
    }

    fn and(self, other: &Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            lost: self.lost + other.lost,
            sent_for: self.sent_for + other.sent_for,
            received_for: self.received_for + other.received_for,
            waited: self.waited + other.waited,
        }
    }

    fn loss(&self) -> f64 {
        self.lost / self.sent.max(1.0)
    }

    /// How much longer it arrived than it was sent.
    fn stretch(&self) -> f64 {
        if self.sent_for > 0.0 { self.received_for / self.sent_for } else { 1.0 }
    }

    /// Of what was sent, what arrived in the time that it was sent in.
    fn delivered(&self) -> f64 {
        ((1.0 - self.loss()) / self.stretch().max(1.0)).clamp(DELIVERED_MIN, 1.0)
    }
}

impl Congestion for Share {
    fn plan(&mut self, id: u32, path: &PathView) -> Plan {
        self.group.lock().plan(self.member, id, path)
    }

    fn on_interval(&mut self, interval: &Interval, path: &PathView) {
        self.group.lock().on_interval(self.member, interval, path);
    }

    fn on_lost(&mut self, id: u32, path: &PathView) {
        self.group.lock().on_lost(self.member, id, path);
    }

    fn on_room(&mut self, rate_bytes: f64, path: &PathView) {
        let mut state = self.group.lock();
        let view = state.view(path);
        state.inner.on_room(rate_bytes, &view);
        state.renew();
    }

    fn is_stale(&self) -> bool {
        let state = self.group.lock();
        let member = &state.members[self.member];
        member.live && member.planned.back().is_some_and(|(_, group)| *group < state.fresh)
    }

    fn on_silent(&mut self) {
        self.group.lock().set_live(self.member, false);
    }

    fn on_return(&mut self) {
        self.group.lock().set_live(self.member, true);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.group.lock();
        state.set_live(self.member, false);
        state.members[self.member].gone = true;
    }
}
