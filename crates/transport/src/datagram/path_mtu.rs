//! How long packets on a path may be: Datagram Packetization Layer Path MTU Discovery (RFC 8899) as a pure state machine.
//!
//! No message of a router is needed for it, and none is believed without a probe. The sender asks [`PathMtu::probe`] what to
//! send (a packet of that length, padded, which the receiver acknowledges), and tells what became of it; and of data, as far
//! as it knows, so that a path whose MTU has shrunk is noticed ([`PathMtu::on_data_lost`]). Probes carry nothing that would
//! be missed, and one that is lost says nothing about congestion (RFC 8899 §3, 7).
//!
//! Lengths are those of whole packets, in bytes: with the IP header over IP, with the SCION header over SCION
//! ([`super::Path::payload_len`] says what of that is payload).
//!
//! The search tries what the path claims first: that is right most often and then takes one probe. Else it tries what links
//! commonly have, and halves what remains between the longest packet that came through and the shortest that did not, until
//! they are [`STEP`] bytes apart.

#[cfg(test)]
#[path = "path_mtu_tests.rs"]
mod tests;

use std::time::{Duration, Instant};

/// The packet that is taken for granted once it was acknowledged (RFC 8899 §5.1.2, "BASE_PLPMTU"): what every link of IPv6,
/// and nearly every one of IPv4, takes.
pub const BASE_MTU: u16 = 1280;
/// What is tried where even that does not come through (RFC 8899 §5.1.2, "MIN_PLPMTU"): all that hosts have to take over
/// IPv4 (RFC 1122 §3.3.2).
pub const MIN_MTU: u16 = 576;
/// Probes of one length that have to be lost before it counts as too long (RFC 8899 §5.1.2, "MAX_PROBES").
pub const PROBES_MAX: u32 = 3;
/// Longest and shortest time that a probe's acknowledgement is waited for (RFC 8899 §5.1.1, "PROBE_TIMER"; a packetization
/// layer with a round-trip time may go below the second).
pub const PROBE_TIMEOUT_MAX: Duration = Duration::from_secs(15);
/// See [`PROBE_TIMEOUT_MAX`].
pub const PROBE_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// The same while no round trip was measured.
const PROBE_TIMEOUT_INITIAL: Duration = Duration::from_secs(1);
/// After so long a path that was searched is searched again (RFC 8899 §5.1.1, "PMTU_RAISE_TIMER").
pub const RAISE_AFTER: Duration = Duration::from_secs(600);
/// The search ends when it would gain less: a hundredth of a packet.
pub const STEP: u16 = 8;
/// Long packets lost in a row, none delivered, before a probe asks whether the path still takes them. Congestion loses as
/// many now and then; the probe tells the two apart.
pub const SUSPICIOUS_LOSSES: u32 = 16;
/// What links take, the longest first: jumbo frames, Ethernet, PPPoE, WireGuard, the least of IPv6. Where a path narrows, it
/// is mostly to one of these.
const COMMON: [u16; 5] = [9000, 1500, 1492, 1420, 1280];

/// What packet lengths are possible at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Never less than this is tried.
    pub min: u16,
    /// What the search starts from.
    pub base: u16,
    /// What the path, or the interface, claims to take. Never more than this is tried.
    pub max: u16,
}

impl Bounds {
    /// For a path that claims to take packets of `claimed` bytes.
    pub fn up_to(claimed: u16) -> Self {
        Self { min: MIN_MTU.min(claimed), base: BASE_MTU.min(claimed), max: claimed }
    }
}

/// Where the search stands (RFC 8899 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Whether packets of the base length come through is being found out.
    Base,
    /// Longer ones are tried.
    Searching,
    /// Nothing longer comes through, or nothing longer is claimed.
    SearchComplete,
    /// Not even the base length comes through; it is tried again and again.
    Error,
}

/// A packet to send, to see whether it comes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Which one it is; never that of another one.
    pub id: u32,
    /// The whole packet's length, in bytes.
    pub len: u16,
}

/// One probe on its way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    probe: Probe,
    /// When it counts as lost.
    deadline: Instant,
}

/// The search on one path.
#[derive(Clone, Debug)]
pub struct PathMtu {
    bounds: Bounds,
    phase: Phase,
    /// What data may have.
    len: u16,
    /// The shortest length that did not come through; one beyond the bound where all did.
    too_long: u32,
    pending: Option<Pending>,
    /// Probes of the present length that were lost.
    lost: u32,
    next_id: u32,
    /// When a probe is due though none is on its way.
    next_probe: Option<Instant>,
    timeout: Duration,
    /// Long data packets lost since one was delivered.
    data_lost: u32,
    /// The present length is in doubt: the next probe has that length.
    in_doubt: bool,
    /// The length that the search wants to try next because somebody named it.
    hint: Option<u16>,
}

impl PathMtu {
    /// Nothing is known of the path but what is claimed. Until the base length is confirmed, data may have that.
    pub fn new(bounds: Bounds, now: Instant) -> Self {
        let max = bounds.max;
        let base = bounds.base.min(max);
        Self {
            bounds: Bounds { min: bounds.min.min(base), base, max },
            phase: Phase::Base,
            len: base,
            too_long: u32::from(max) + 1,
            pending: None,
            lost: 0,
            next_id: 0,
            next_probe: Some(now),
            timeout: PROBE_TIMEOUT_INITIAL,
            data_lost: 0,
            in_doubt: false,
            hint: None,
        }
    }

    /// Where the search stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The longest packet that data may have now ("PLPMTU").
    pub fn packet_len_max(&self) -> u16 {
        self.len
    }

    /// What is possible at all.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// A round trip was measured: probes are waited for accordingly.
    pub fn set_rtt(&mut self, rtt: Duration) {
        // RFC 8899 §5.1.1: "longer than the maximum time to receive an acknowledgment".
        self.timeout = rtt.saturating_mul(3).clamp(PROBE_TIMEOUT_MIN, PROBE_TIMEOUT_MAX);
    }

    /// When to call [`PathMtu::probe`] again.
    pub fn deadline(&self) -> Option<Instant> {
        self.pending.map(|pending| pending.deadline).or(self.next_probe)
    }

    /// A probe to send now, if one is due.
    pub fn probe(&mut self, now: Instant) -> Option<Probe> {
        if let Some(pending) = self.pending.filter(|pending| pending.deadline <= now) {
            self.pending = None;
            self.lose(pending.probe.len, now);
        }
        if self.pending.is_some() || self.next_probe.is_none_or(|due| now < due) {
            return None;
        }
        if self.phase == Phase::SearchComplete && !self.in_doubt {
            // RFC 8899 §5.2: "PMTU_RAISE_TIMER expired".
            self.too_long = u32::from(self.bounds.max) + 1;
            self.enter(Phase::Searching, now);
        }
        let Some(len) = self.next_len() else {
            self.enter(Phase::SearchComplete, now);
            return None;
        };
        let probe = Probe { id: self.next_id, len };
        self.next_id = self.next_id.wrapping_add(1);
        self.pending = Some(Pending { probe, deadline: now + self.timeout });
        self.next_probe = Some(now);
        Some(probe)
    }

    /// The receiver has acknowledged probe `id`; true if that was one that is waited for.
    pub fn on_probe_acked(&mut self, id: u32, now: Instant) -> bool {
        let Some(pending) = self.take_pending(id) else { return false };
        let len = pending.probe.len;
        self.lost = 0;
        self.hint = self.hint.filter(|hint| *hint > len);
        if self.in_doubt {
            (self.in_doubt, self.data_lost) = (false, 0);
            self.rest(now);
            return true;
        }
        self.len = len;
        self.data_lost = 0;
        self.enter(Phase::Searching, now);
        true
    }

    /// Probe `id` is lost for sure: later packets were acknowledged, or the system refused it as too long.
    pub fn on_probe_lost(&mut self, id: u32, now: Instant) {
        if let Some(pending) = self.take_pending(id) {
            self.lose(pending.probe.len, now);
        }
    }

    /// Probe `id` could not be sent, for reasons that have nothing to do with its length (no room in a buffer). It is tried
    /// again after the timeout.
    pub fn on_probe_unsent(&mut self, id: u32, now: Instant) {
        if self.take_pending(id).is_some() {
            self.next_probe = Some(now + self.timeout);
        }
    }

    /// A packet with data, of `len` bytes, was acknowledged.
    pub fn on_data_acked(&mut self, len: u16) {
        if len > self.suspicious_above() {
            self.data_lost = 0;
        }
    }

    /// A packet with data, of `len` bytes, was lost. Where that goes on with no long packet acknowledged, probes find out
    /// whether it is their length (RFC 8899 §4.3, "black hole").
    pub fn on_data_lost(&mut self, len: u16, now: Instant) {
        if !self.is_settled() || len <= self.suspicious_above() || len > self.len {
            return;
        }
        self.data_lost = self.data_lost.saturating_add(1);
        if self.data_lost >= SUSPICIOUS_LOSSES && !self.in_doubt {
            self.in_doubt = true;
            self.lost = 0;
            // One that tries a longer packet has to wait.
            self.pending = None;
            self.next_probe = Some(now);
        }
    }

    /// Somebody on the path says that packets have at most `mtu` bytes (RFC 8899 §4.6.2). Only call it with messages that
    /// quote what was really sent. They may be forged all the same: what is claimed is tried, never just believed.
    pub fn on_too_big(&mut self, mtu: u16, now: Instant) {
        let probed = self.pending.map(|pending| pending.probe);
        match probed {
            // What fits is worth a try; else the message counts as the probe's loss.
            Some(probe) if mtu < probe.len && mtu >= self.len && !self.in_doubt => {
                self.pending = None;
                self.next_probe = Some(now);
                if mtu > self.len && self.hint.is_none() {
                    self.hint = Some(mtu);
                    self.lost = 0;
                } else {
                    self.lose(probe.len, now);
                }
            }
            // Data does not fit any more, if that is true: a probe of that length tells, and only one such question is open.
            _ if mtu < self.len && mtu >= self.bounds.min && !self.in_doubt && self.is_settled() => {
                self.in_doubt = true;
                self.hint = Some(mtu);
                self.lost = 0;
                self.pending = None;
                self.next_probe = Some(now);
            }
            _ => {}
        }
    }

    /// The path claims another length: it was refreshed, or the interface has changed.
    pub fn set_claimed(&mut self, claimed: u16, now: Instant) {
        if claimed == self.bounds.max {
            return;
        }
        self.bounds = Bounds::up_to(claimed);
        self.too_long = u32::from(claimed) + 1;
        (self.pending, self.hint, self.lost) = (None, None, 0);
        self.next_probe = Some(now);
        self.len = self.len.min(claimed);
        if self.len < self.bounds.base {
            (self.phase, self.len, self.in_doubt) = (Phase::Base, self.bounds.base, false);
        } else if self.phase == Phase::SearchComplete {
            self.phase = Phase::Searching;
        }
    }

    /// What data may have was acknowledged once.
    fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Searching | Phase::SearchComplete)
    }

    /// Data of this length passes wherever the search could have fallen back to, so its loss accuses nothing.
    fn suspicious_above(&self) -> u16 {
        self.bounds.base
    }

    fn take_pending(&mut self, id: u32) -> Option<Pending> {
        self.pending.take_if(|pending| pending.probe.id == id)
    }

    /// A probe of this length is lost.
    fn lose(&mut self, len: u16, now: Instant) {
        self.lost += 1;
        self.next_probe = Some(now);
        if self.lost < PROBES_MAX {
            return;
        }
        self.lost = 0;
        match self.phase {
            // RFC 8899 §5.2: "Base: PROBE_COUNT reaches MAX_PROBES".
            Phase::Base => {
                self.len = self.bounds.min;
                self.phase = Phase::Error;
                self.next_probe = Some(now + self.timeout);
            }
            Phase::Error => self.next_probe = Some(now + PROBE_TIMEOUT_MAX),
            _ if self.in_doubt => {
                // "Black hole detected": all over again, from what is taken for granted.
                (self.in_doubt, self.data_lost) = (false, 0);
                self.too_long = len.into();
                self.len = self.bounds.base;
                self.hint = self.hint.filter(|hint| *hint > self.bounds.base);
                self.phase = Phase::Base;
            }
            _ => {
                self.too_long = self.too_long.min(len.into());
                self.hint = None;
            }
        }
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        (self.lost, self.pending) = (0, None);
        self.rest(now);
    }

    /// When the next probe is due in this phase.
    fn rest(&mut self, now: Instant) {
        let wait = if self.phase == Phase::SearchComplete { RAISE_AFTER } else { Duration::ZERO };
        self.next_probe = Some(now + wait);
    }

    /// The length to try; `None` if nothing is left to be found out.
    fn next_len(&self) -> Option<u16> {
        match self.phase {
            Phase::Base | Phase::Error => return Some(self.bounds.base),
            _ if self.in_doubt => return Some(self.len),
            _ => {}
        }
        // Lengths that may still come through.
        let (low, high) = (self.len, (self.too_long - 1).min(self.bounds.max.into()) as u16);
        if high <= low {
            return None;
        }
        if let Some(hint) = self.hint.filter(|hint| (low + 1..=high).contains(hint)) {
            return Some(hint);
        }
        // What is claimed, however little it is beyond what is known.
        if u32::from(self.bounds.max) + 1 == self.too_long {
            return Some(self.bounds.max);
        }
        if high - low < STEP {
            return None;
        }
        if let Some(common) = COMMON.into_iter().find(|common| (low + 1..=high).contains(common)) {
            return Some(common);
        }
        // A link that takes a common length takes that and no more; if so, one length too long ends the search.
        if COMMON.contains(&low) {
            return Some(low + STEP);
        }
        Some(low + (high - low).div_ceil(2))
    }
}
