//! Destinations that keep together, so that what is read for one is in memory for all.
//!
//! Flows through one bottleneck draw level slowly: by CUBIC's law one that began with twice as much as another has more than it for a
//! quarter of a minute. Memory is short, so who is ahead would leave the others behind, and what they miss would be read again for
//! them. So a [`Convoy`] drops nothing from memory that somebody needs still: who is ahead waits, and what it does not take meanwhile is
//! offered to those who are waited for. Where all come through one link, they take it, and nobody loses by it.
//!
//! Where somebody is slow for a reason of its own, they do not, and less comes to all together than before. That is what is looked at: as
//! soon as the waiting has cost more than a moment, or a twentieth for long, those who were waited for are left behind. They take what they
//! can of what is in memory, and come back for the rest at the end. After a while they are waited for again, and twice as long after that.
//! And now and then nobody waits for a moment, to find out what all together would take now.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::sender::{Sender, hand_on};
use crate::shelf::{Read, SharedShelf};

/// How often it is looked at what came: in round trips, and at least and at most.
const LOOK_RTTS: u32 = 3;
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// A range is not asked about more often while it has to stay in memory.
const ASK_EVERY: Duration = Duration::from_millis(1);
/// What all take together without waiting is looked at over so long.
const FREE_SPAN: Duration = Duration::from_secs(1);
/// Of that, what they have to take while some wait.
const KEPT: f64 = 0.95;
/// Waiting may cost what all take together in this part of so many round trips and so long: those who are waited for find out in that time
/// what they can have.
const COST_PART: f64 = 0.2;
const COST_RTTS: u32 = 10;
const COST_TIME: Duration = Duration::from_millis(400);
/// Those who are waited for have stopped if nothing came to them for so long.
const STOPPED: Duration = Duration::from_secs(1);
/// How much of what comes to those who are waited for, of late, is what came since the last look.
const REMEMBERED: f64 = 0.2;
/// What nobody takes is offered to them no more often: they are to have found out.
const OFFER_TIME: Duration = Duration::from_millis(500);
const OFFER_RTTS: u32 = 10;
/// So long at most without a moment in which nobody waits; that lasts so long, and round trips.
const HELD_MAX: Duration = Duration::from_secs(10);
const FREE_TIME: Duration = Duration::from_millis(500);
const FREE_RTTS: u32 = 10;
/// Nobody had to wait for so long: it is over.
const OVER: Duration = Duration::from_secs(1);
/// One that was left behind is not waited for in this time, at first and at most.
const LEFT: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(320));
/// Ranges that some have still to hear of, as a part of all that fit memory: not on a long path does everything that is under way have to
/// stay in memory.
const UNDER_WAY_PART: u64 = 4;

/// Says which range of a [`SharedShelf`] falls out of memory for the next, and so who waits for whom.
#[derive(Debug, Default)]
pub struct Convoy {
    /// Those that have something to send.
    members: Vec<Member>,
    look_at: Option<Instant>,
    /// While nobody waits: how many bytes had come to all, and when.
    samples: VecDeque<(Instant, u64)>,
    /// Nobody waits before.
    free_until: Option<Instant>,
    held: Option<Held>,
    ask_at: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    transfer: u32,
    /// What had come to it at the last look.
    came: u64,
    left_until: Option<Instant>,
    left_next: Duration,
}

/// Some wait.
#[derive(Debug)]
struct Held {
    since: Instant,
    /// When somebody had to last, and for whom.
    last: Instant,
    behind: Vec<u32>,
    /// What came to all before, in bytes a second.
    free_rate: f64,
    looked: (Instant, u64),
    /// What came to those who are behind, of late, in bytes a second; and when something did.
    behind_rate: Option<f64>,
    moved: Instant,
    /// When what nobody took was offered to those who are behind.
    offered: Option<Instant>,
    /// What the waiting has cost, in bytes.
    cost: f64,
}

impl Convoy {
    /// The next range to read for `senders`, which are all that take their chunks from this shelf; and what falls out of memory for it.
    pub fn poll_read(&mut self, now: Instant, shelf: &mut SharedShelf, senders: &mut [&mut Sender]) -> Option<Read> {
        if let [sender] = senders {
            let released = shelf.release(|range| !sender.has_all_of(range));
            let read = shelf.poll_read(|_| Some(0))?;
            return Some(Read { dropped: released.or(read.dropped), ..read });
        }
        if senders.is_empty() {
            return shelf.poll_read(|_| Some(0));
        }
        if self.look_at.is_none_or(|at| now >= at) {
            self.look(now, senders);
        }
        if self.ask_at.is_some_and(|at| now < at) {
            return None;
        }
        let under_way = shelf.slots() as u64 / UNDER_WAY_PART * shelf.unit();
        let mut needed_by = Vec::new();
        let read = shelf.poll_read(|loaded| {
            let choice = self.choose(now, under_way, loaded, senders);
            choice.map_err(|behind| needed_by = behind).ok()
        });
        self.ask_at = None;
        if !needed_by.is_empty() {
            self.ask_at = Some(now + ASK_EVERY);
            self.hold(now, needed_by, senders);
        }
        read
    }

    /// Which of the ranges in memory, the oldest first, is to fall out of it; or who needs the oldest.
    fn choose(
        &self,
        now: Instant,
        under_way: u64,
        loaded: &[Range<u64>],
        senders: &[&mut Sender],
    ) -> Result<usize, Vec<u32>> {
        let active = || senders.iter().filter(|sender| sender.is_active());
        let unneeded = |range: &Range<u64>| !active().any(|sender| sender.needs(range, under_way));
        if let Some(at) = loaded.iter().position(unneeded) {
            return Ok(at);
        }
        // What was read lately may be for one that was left behind.
        let older = &loaded[..loaded.len().div_ceil(2)];
        let in_convoy = || active().filter(|sender| !self.is_left(sender, now));
        if let Some(at) = older.iter().position(|range| !in_convoy().any(|sender| sender.needs(range, under_way))) {
            return Ok(at);
        }
        if self.free_until.is_some_and(|until| now < until) || (self.held.is_none() && self.free_rate().is_none()) {
            return Ok(0);
        }
        let behind = in_convoy().filter(|sender| loaded.first().is_some_and(|range| sender.needs(range, under_way)));
        Err(behind.map(|sender| sender.offer().transfer).collect())
    }

    fn is_left(&self, sender: &Sender, now: Instant) -> bool {
        let member = self.members.iter().find(|member| member.transfer == sender.offer().transfer);
        member.and_then(|member| member.left_until).is_some_and(|until| now < until)
    }

    /// What comes to all while nobody waits, in bytes a second; not known where nothing does.
    fn free_rate(&self) -> Option<f64> {
        let ((from, before), (to, after)) = (self.samples.front()?, self.samples.back()?);
        let time = to.saturating_duration_since(*from).as_secs_f64();
        Some(after.saturating_sub(*before) as f64 / time).filter(|rate| time > 0.0 && *rate > 0.0)
    }

    fn hold(&mut self, now: Instant, behind: Vec<u32>, senders: &[&mut Sender]) {
        if let Some(held) = &mut self.held {
            (held.last, held.behind) = (now, behind);
        } else if let Some(free_rate) = self.free_rate() {
            let looked = (now, came_bytes(senders));
            self.since_last(senders);
            self.held = Some(Held {
                since: now,
                last: now,
                behind,
                free_rate,
                looked,
                behind_rate: None,
                moved: now,
                offered: None,
                cost: 0.0,
            });
            self.samples.clear();
        }
    }

    /// What came to those who are waited for since this was asked last.
    fn since_last(&mut self, senders: &[&mut Sender]) -> u64 {
        let mut sum = 0;
        for member in &mut self.members {
            let sender = senders.iter().find(|sender| sender.offer().transfer == member.transfer);
            let came = sender.map_or(member.came, |sender| sender.came_bytes());
            let before = std::mem::replace(&mut member.came, came);
            if self.held.as_ref().is_some_and(|held| held.behind.contains(&member.transfer)) {
                sum += came.saturating_sub(before);
            }
        }
        sum
    }

    fn look(&mut self, now: Instant, senders: &mut [&mut Sender]) {
        let rtt = senders.iter().filter(|sender| sender.is_active()).filter_map(|sender| sender.rtt()).max();
        let rtt = rtt.unwrap_or_default();
        self.look_at = Some(now + (rtt * LOOK_RTTS).clamp(LOOK.0, LOOK.1));
        self.meet(senders);
        let came = came_bytes(senders);
        let came_behind = self.since_last(senders);
        let Some(held) = &mut self.held else {
            self.samples.push_back((now, came));
            while self.samples.get(1).is_some_and(|(at, _)| *at + FREE_SPAN <= now) {
                self.samples.pop_front();
            }
            return;
        };
        let (at, before) = std::mem::replace(&mut held.looked, (now, came));
        let time = now.saturating_duration_since(at).as_secs_f64();
        let missing = held.free_rate - came.saturating_sub(before) as f64 / time.max(1e-6);
        // Where less came to those who are waited for, too, than does otherwise, all were held up: by a busy host, or a link that was down.
        let behind_rate = came_behind as f64 / time.max(1e-6);
        let usual = *held.behind_rate.get_or_insert(behind_rate);
        let part = if usual > 0.0 { (behind_rate / usual).min(1.0) } else { 0.0 };
        held.behind_rate = Some(usual + (behind_rate - usual) * REMEMBERED);
        if came_behind > 0 {
            held.moved = now;
        }
        held.cost = (held.cost + (missing * part - (1.0 - KEPT) * held.free_rate) * time).max(0.0);
        let cost_max = COST_PART * held.free_rate * (rtt * COST_RTTS + COST_TIME).as_secs_f64();
        let behind = |sender: &&mut &mut Sender| held.behind.contains(&sender.offer().transfer);
        if held.cost > cost_max || now >= held.moved + STOPPED + rtt * COST_RTTS {
            self.end(now, rtt, true);
        } else if now >= held.since + HELD_MAX {
            self.end(now, rtt, false);
        } else if now >= held.last + OVER {
            self.held = None;
        } else {
            let is_due = held.offered.is_none_or(|at| now >= at + OFFER_TIME + rtt * OFFER_RTTS);
            if is_due && missing > (1.0 - KEPT) * held.free_rate {
                held.offered = Some(now);
                hand_on(missing, senders.iter_mut().filter(behind).map(|sender| &mut **sender), now);
            }
        }
    }

    /// Nobody waits for a while; and not for those who are behind, if they are `left`.
    fn end(&mut self, now: Instant, rtt: Duration, left: bool) {
        let Some(held) = self.held.take() else { return };
        self.free_until = Some(now + FREE_TIME + rtt * FREE_RTTS);
        self.ask_at = None;
        for member in self.members.iter_mut().filter(|member| held.behind.contains(&member.transfer)) {
            let next = if left { (member.left_next * 2).min(LEFT.1) } else { LEFT.0 };
            member.left_until = left.then_some(now + member.left_next);
            member.left_next = next;
        }
    }

    /// Others may have come, and some be done: what was measured is not of these.
    fn meet(&mut self, senders: &[&mut Sender]) {
        let active = || senders.iter().filter(|sender| sender.is_active()).map(|sender| sender.offer().transfer);
        let (before, known) = (self.members.len(), active().count());
        self.members.retain(|member| active().any(|transfer| transfer == member.transfer));
        let is_one_less = self.members.len() < before;
        if is_one_less {
            self.members.iter_mut().for_each(|member| member.left_until = None);
        }
        for transfer in active() {
            if !self.members.iter().any(|member| member.transfer == transfer) {
                self.members.push(Member { transfer, came: 0, left_until: None, left_next: LEFT.0 });
            }
        }
        if is_one_less || known > before {
            self.samples.clear();
            self.held = None;
        }
    }
}

fn came_bytes(senders: &[&mut Sender]) -> u64 {
    senders.iter().filter(|sender| sender.is_active()).map(|sender| sender.came_bytes()).sum()
}
