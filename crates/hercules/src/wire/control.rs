//! What travels in sealed datagrams, over the path it is about: it must not wait behind something that was lost.
//!
//! The sender opens a path with [`Control::Hello`], the receiver answers [`Control::Echo`], the sender [`Control::Confirm`]:
//! both know the round trip. While data flows, the sender ends each stretch of packets with a [`Control::Mark`]; the receiver
//! answers with [`Report`]s of all packets that the sender does not know the fate of. A lost mark or report costs nothing but
//! time, since the next one says the same and more. A gap is reported at once, without a mark.

use super::{Input, PATHS_MAX, VARINT_MAX, WireError, put_varint, varint_len};
use crate::window::PacketWindow;

/// Longest body of a control packet: fits every path.
pub const CONTROL_BODY_MAX: usize = 1100;
/// Longest stretch of packets that one report is about: as far as a receiver remembers.
pub const REPORT_SPAN_MAX: u64 = crate::window::WINDOW_PACKETS;

/// The body of a control packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Sender: may this path carry data? Its clock, in microseconds.
    Hello {
        /// The sender's clock.
        sender_us: u64,
    },
    /// Receiver: it may. Sent again for every hello.
    Echo {
        /// The sender's clock, from the hello.
        sender_us: u64,
        /// The receiver's clock.
        receiver_us: u64,
    },
    /// Sender: the answer to an echo, so that the receiver knows the round trip too.
    Confirm {
        /// The receiver's clock, from the echo.
        receiver_us: u64,
        /// The round trip that the sender measured, in microseconds.
        rtt_us: u32,
    },
    /// Sender: the end of a stretch of packets; also what keeps a path alive.
    Mark(Mark),
    /// Receiver: which packets of a path came.
    Report(Report),
    /// Receiver: here is where this path ends now. Opens the way through what only lets answers in.
    Knock,
}

/// The end of a stretch of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Counts the marks of this path.
    pub mark: u32,
    /// The sender's clock.
    pub sender_us: u64,
    /// Every packet before this one is known to have come, or given up.
    pub oldest: u64,
    /// One more than the last packet sent.
    pub next: u64,
    /// When the next mark is due at the latest; a receiver that waits twice as long reports unasked.
    pub interval_us: u32,
}

/// What a report says about the mark that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Which mark.
    pub mark: u32,
    /// The sender's clock, from the mark.
    pub sender_us: u64,
    /// The receiver's clock when the mark came.
    pub receiver_us: u64,
    /// Microseconds from the mark's arrival to this report.
    pub delay_us: u32,
}

/// Which of the packets `low..high` of a path came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The path that it is about; it may have come over another.
    pub path: u8,
    /// The mark that it answers; `None` for a gap reported at once.
    pub answer: Option<Answer>,
    /// The first packet that it is about.
    pub low: u64,
    /// One more than the last.
    pub high: u64,
    /// Varints: how many came, how many did not, how many came, ... from `low` on. They add up to `high - low`.
    runs: Vec<u8>,
}

impl Report {
    /// What `window` knows of `low..high`, as much of it as fits one packet.
    pub fn of(window: &PacketWindow, path: u8, answer: Option<Answer>, low: u64, high: u64) -> Self {
        // The head of a report is at most this long.
        let room = CONTROL_BODY_MAX - 48;
        let high = high.min(low.saturating_add(REPORT_SPAN_MAX));
        let (mut runs, mut at, mut came) = (Vec::new(), low, true);
        while at < high {
            let end = window.run_end(at, high, came);
            if runs.len() + varint_len(end - at) > room {
                break;
            }
            put_varint(&mut runs, end - at);
            (at, came) = (end, !came);
        }
        Self { path, answer, low, high: at, runs }
    }

    /// The runs, in order: whether the packets came, and which.
    pub fn runs(&self) -> impl Iterator<Item = (bool, std::ops::Range<u64>)> + '_ {
        let (mut input, mut at, mut came) = (Input(&self.runs), self.low, false);
        std::iter::from_fn(move || {
            // The parser saw that all of it can be read and adds up.
            let len = input.varint().ok()?;
            came = !came;
            at += len;
            Some((came, at - len..at))
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend([self.path, u8::from(self.answer.is_some())]);
        if let Some(answer) = self.answer {
            out.extend(answer.mark.to_be_bytes());
            out.extend(answer.sender_us.to_be_bytes());
            out.extend(answer.receiver_us.to_be_bytes());
            out.extend(answer.delay_us.to_be_bytes());
        }
        put_varint(out, self.low);
        put_varint(out, self.high - self.low);
        out.extend(&self.runs);
    }

    fn read(input: &mut Input<'_>) -> Result<Self, WireError> {
        let path = input.u8()?;
        if usize::from(path) >= PATHS_MAX {
            return Err(WireError::Invalid("path"));
        }
        let answer = match input.u8()? {
            0 => None,
            1 => Some(Answer {
                mark: input.u32()?,
                sender_us: input.u64()?,
                receiver_us: input.u64()?,
                delay_us: input.u32()?,
            }),
            _ => return Err(WireError::Invalid("report flags")),
        };
        let (low, span) = (input.varint()?, input.varint()?);
        if span > REPORT_SPAN_MAX || low > VARINT_MAX - span {
            return Err(WireError::Invalid("report span"));
        }
        let runs = input.take(input.0.len())?;
        let (mut rest, mut sum, mut first) = (Input(runs), 0, true);
        while !rest.0.is_empty() {
            let run = rest.varint()?;
            // Only the first may be empty: nothing came of what is first.
            if (run == 0 && !first) || run > span - sum {
                return Err(WireError::Invalid("report run"));
            }
            (sum, first) = (sum + run, false);
        }
        if sum != span {
            return Err(WireError::Invalid("report length"));
        }
        Ok(Self { path, answer, low, high: low + span, runs: runs.to_vec() })
    }
}

impl Control {
    /// Appends the body to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { sender_us } => {
                out.push(1);
                out.extend(sender_us.to_be_bytes());
            }
            Self::Echo { sender_us, receiver_us } => {
                out.push(2);
                out.extend(sender_us.to_be_bytes());
                out.extend(receiver_us.to_be_bytes());
            }
            Self::Confirm { receiver_us, rtt_us } => {
                out.push(3);
                out.extend(receiver_us.to_be_bytes());
                out.extend(rtt_us.to_be_bytes());
            }
            Self::Mark(mark) => {
                out.push(4);
                out.extend(mark.mark.to_be_bytes());
                out.extend(mark.sender_us.to_be_bytes());
                out.extend(mark.interval_us.to_be_bytes());
                put_varint(out, mark.oldest);
                put_varint(out, mark.next - mark.oldest);
            }
            Self::Report(report) => {
                out.push(5);
                report.write(out);
            }
            Self::Knock => out.push(6),
        }
    }

    /// Reads a body, all of it.
    pub fn parse(body: &[u8]) -> Result<Self, WireError> {
        let mut input = Input(body);
        let control = match input.u8()? {
            1 => Self::Hello { sender_us: input.u64()? },
            2 => Self::Echo { sender_us: input.u64()?, receiver_us: input.u64()? },
            3 => Self::Confirm { receiver_us: input.u64()?, rtt_us: input.u32()? },
            4 => {
                let (mark, sender_us, interval_us) = (input.u32()?, input.u64()?, input.u32()?);
                let (oldest, span) = (input.varint()?, input.varint()?);
                if oldest > super::seal::PACKETS_MAX || span > super::seal::PACKETS_MAX - oldest {
                    return Err(WireError::Invalid("packet number"));
                }
                Self::Mark(Mark { mark, sender_us, oldest, next: oldest + span, interval_us })
            }
            5 => Self::Report(Report::read(&mut input)?),
            6 => Self::Knock,
            other => return Err(WireError::UnknownType(other)),
        };
        input.finish()?;
        Ok(control)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(control: &Control) -> Vec<u8> {
        let mut out = Vec::new();
        control.write(&mut out);
        out
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(a in any::<u64>(), b in any::<u64>(), c in any::<u32>(), oldest in 0..1u64 << 40, span in 0..1u64 << 40) {
            for control in [
                Control::Knock,
                Control::Hello { sender_us: a },
                Control::Echo { sender_us: a, receiver_us: b },
                Control::Confirm { receiver_us: a, rtt_us: c },
                Control::Mark(Mark { mark: c, sender_us: a, oldest, next: oldest + span, interval_us: c }),
            ] {
                let bytes = written(&control);
                prop_assert_eq!(Control::parse(&bytes), Ok(control));
                prop_assert!((0..bytes.len()).all(|len| Control::parse(&bytes[..len]).is_err()));
            }
        }

        #[test]
        fn a_report_says_what_came_whatever_was_lost(lost in prop::collection::vec(0..20_000u64, 0..3000), answered in any::<bool>()) {
            let mut window = PacketWindow::default();
            (0..20_000).filter(|number| !lost.contains(number)).for_each(|number| _ = window.insert(number));
            let answer = answered.then_some(Answer { mark: 1, sender_us: 2, receiver_us: 3, delay_us: 4 });
            let (mut low, mut said) = (0, Vec::new());
            while low < 20_000 {
                let report = Report::of(&window, 3, answer, low, 20_000);
                let bytes = written(&Control::Report(report.clone()));
                prop_assert!(bytes.len() <= CONTROL_BODY_MAX && report.high > low);
                low = report.high;
                said.extend(report.runs().filter(|(came, _)| !came).flat_map(|(_, run)| run));
                prop_assert_eq!(Control::parse(&bytes), Ok(Control::Report(report)));
            }
            let mut lost = lost;
            lost.sort_unstable();
            lost.dedup();
            prop_assert_eq!(said, lost);
        }

        #[test]
        fn any_bytes_are_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..64), kind in 0..8u8) {
            let body = [&[kind][..], &body].concat();
            if let Ok(control) = Control::parse(&body) {
                prop_assert_eq!(Control::parse(&written(&control)), Ok(control));
            }
        }
    }
}
