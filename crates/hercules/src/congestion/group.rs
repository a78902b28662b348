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
    /// Intervals of the group that are not known whole, the oldest first; the last is being sent.
    open: VecDeque<Open>,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Open {
    id: u32,
    pending: u32,
    idle: bool,
    /// Of each member: bytes sent and lost, and for how long they were sent and arrived, weighted by bytes.
    sums: Vec<Sum>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sent: f64,
    lost: f64,
    sent_for: f64,
    received_for: f64,
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
        Self(Arc::new(Mutex::new(State { inner, id: 0, plan: None, open, members })))
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
    /// Of all live members, for the sum: the longest round trip, so that an interval spans one of each.
    fn view(&self, of: &PathView) -> PathView {
        let views = self.members.iter().filter(|member| member.live).filter_map(|member| member.view);
        let longest = |sum: PathView, view: PathView| PathView {
            rtt_min: sum.rtt_min.max(view.rtt_min),
            rtt: sum.rtt.max(view.rtt),
            ..sum
        };
        // Each path has to get as many packets as an interval has at least.
        let live = self.members.iter().filter(|member| member.live).count() as f64;
        PathView { interval_bytes_min: SLACK * live * of.interval_bytes_min, ..views.fold(*of, longest) }
    }

    fn plan(&mut self, member: usize, id: u32, path: &PathView) -> Plan {
        self.members[member].view = Some(*path);
        if !self.members[member].live {
            return plan(0.0, path.rtt, f64::INFINITY);
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
        let all: f64 = self.members.iter().filter(|member| member.live).map(|member| member.part).sum();
        let part = self.members[member].part / all;
        plan(sum.rate_bytes * part, ends - path.now, sum.window_bytes * part)
    }

    fn on_interval(&mut self, member: usize, interval: &Interval, path: &PathView) {
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
                let sum = &mut open.sums[member];
                let (sent, received) = (interval.sent_bytes as f64, interval.received_for.unwrap_or(interval.sent_for));
                sum.sent += sent;
                sum.lost += interval.lost_bytes as f64;
                sum.sent_for += sent * interval.sent_for.as_secs_f64();
                sum.received_for += sent * received.as_secs_f64();
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
            let interval = Interval {
                id: open.id,
                sent_bytes: sum.sent as u64,
                lost_bytes: (sum.sent * felt.loss()) as u64,
                sent_for: Duration::from_secs_f64(sum.sent_for / sent),
                received_for: Some(Duration::from_secs_f64(sum.sent_for / sent * felt.stretch())),
                idle: open.idle || sum.sent == 0.0,
            };
            let view = self.view(path);
            self.inner.on_interval(&interval, &view);
        }
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
        let live = self.members.iter().filter(|member| member.live);
        let mean = live.clone().map(|member| member.part).sum::<f64>() / (live.count() as f64).max(1.0);
        self.members.iter_mut().for_each(|member| member.part = (member.part / mean).max(PART_MIN));
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
    fn and(self, other: &Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            lost: self.lost + other.lost,
            sent_for: self.sent_for + other.sent_for,
            received_for: self.received_for + other.received_for,
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
