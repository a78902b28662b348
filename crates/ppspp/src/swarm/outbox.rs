//! Datagrams that are to leave. What is said to one peer before the driver fetches them goes in one datagram, as far as that holds it: each costs
//! both ends more than what is in it.

use std::collections::VecDeque;

use super::Transmit;

/// Bytes of the channel's number in front of the messages.
pub(super) const CHANNEL_LEN: usize = 4;
/// Nothing is added to a datagram beyond what every network takes: IPv6's least MTU, less IP and UDP (RFC 8200 §5).
const TOGETHER_LEN_MAX: usize = 1280 - 48;

#[derive(Debug)]
pub(super) struct Outbox<P> {
    /// In this order.
    ready: VecDeque<Transmit<P>>,
    /// Messages to which others may be added, one datagram a channel.
    open: Vec<Transmit<P>>,
}

impl<P: Clone + PartialEq> Outbox<P> {
    pub(super) fn new() -> Self {
        Self { ready: VecDeque::new(), open: Vec::new() }
    }

    /// A datagram as it is.
    pub(super) fn push(&mut self, peer: &P, datagram: Vec<u8>, chunk: Option<u64>) {
        self.ready.push_back(Transmit { peer: peer.clone(), datagram, chunk });
    }

    /// Messages behind the channel's number, which need no datagram of their own; it may have `len_max` bytes.
    pub(super) fn say(&mut self, peer: &P, datagram: Vec<u8>, len_max: usize) {
        let len_max = len_max.min(TOGETHER_LEN_MAX);
        match self.open_of(peer, &datagram) {
            Some(at) if self.open[at].datagram.len() + datagram.len() - CHANNEL_LEN <= len_max => {
                self.open[at].datagram.extend_from_slice(&datagram[CHANNEL_LEN..]);
            }
            Some(at) => {
                let full = std::mem::replace(&mut self.open[at].datagram, datagram);
                self.push(peer, full, None);
            }
            None => self.open.push(Transmit { peer: peer.clone(), datagram, chunk: None }),
        }
    }

    /// The head of a chunk of `chunk_len` bytes, behind what was said to the peer where both fit in `len_max` bytes.
    pub(super) fn push_behind(
        &mut self,
        peer: &P,
        datagram: Vec<u8>,
        (chunk, chunk_len): (u64, usize),
        len_max: usize,
    ) {
        let len_max = len_max.min(TOGETHER_LEN_MAX);
        let said = self.open_of(peer, &datagram).map(|at| self.open.swap_remove(at).datagram);
        match said {
            Some(mut said) if said.len() + datagram.len() - CHANNEL_LEN + chunk_len <= len_max => {
                said.extend_from_slice(&datagram[CHANNEL_LEN..]);
                self.push(peer, said, Some(chunk));
            }
            said => {
                said.into_iter().for_each(|said| self.push(peer, said, None));
                self.push(peer, datagram, Some(chunk));
            }
        }
    }

    /// What was said to a peer leaves before what is pushed from now on.
    pub(super) fn release(&mut self, peer: &P) {
        let (gone, open) = std::mem::take(&mut self.open).into_iter().partition(|transmit| transmit.peer == *peer);
        self.open = open;
        self.ready.extend::<Vec<_>>(gone);
    }

    pub(super) fn pop(&mut self) -> Option<Transmit<P>> {
        if self.ready.is_empty() {
            self.ready.extend(self.open.drain(..));
        }
        self.ready.pop_front()
    }

    /// Where messages to the same channel wait.
    fn open_of(&self, peer: &P, datagram: &[u8]) -> Option<usize> {
        let is_of =
            |open: &Transmit<P>| open.peer == *peer && open.datagram.get(..CHANNEL_LEN) == datagram.get(..CHANNEL_LEN);
        self.open.iter().position(is_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(outbox: &mut Outbox<u8>) -> Vec<(u8, Vec<u8>, Option<u64>)> {
        std::iter::from_fn(|| outbox.pop()).map(|sent| (sent.peer, sent.datagram, sent.chunk)).collect()
    }

    #[test]
    fn what_is_said_to_one_channel_goes_together_as_far_as_it_fits() {
        let mut outbox = Outbox::new();
        outbox.say(&1, vec![0, 0, 0, 1, 10], 8);
        outbox.say(&2, vec![0, 0, 0, 1, 20], 8);
        outbox.say(&1, vec![0, 0, 0, 1, 11, 12, 13], 8);
        outbox.say(&1, vec![0, 0, 0, 9, 14], 8);
        outbox.say(&1, vec![0, 0, 0, 1, 15], 8);
        let expected = [
            (1, vec![0, 0, 0, 1, 10, 11, 12, 13], None),
            (1, vec![0, 0, 0, 1, 15], None),
            (2, vec![0, 0, 0, 1, 20], None),
            (1, vec![0, 0, 0, 9, 14], None),
        ];
        let mut sent = all(&mut outbox);
        sent.sort_by_key(|(peer, datagram, _)| (*peer, datagram[3]));
        assert_eq!(sent, [expected[0].clone(), expected[1].clone(), expected[3].clone(), expected[2].clone()]);
        // What is of no channel yet, or a sign of life, is a datagram too.
        outbox.say(&1, vec![0, 0, 0, 1], 8);
        assert_eq!(all(&mut outbox), [(1, vec![0, 0, 0, 1], None)]);
    }

    #[test]
    fn a_chunk_takes_along_what_fits_beside_it() {
        for (len_max, together) in [(4 + 2 + 1 + 5, true), (4 + 2 + 1 + 4, false)] {
            let mut outbox = Outbox::new();
            outbox.say(&1, vec![0, 0, 0, 1, 10, 11], 100);
            outbox.push_behind(&1, vec![0, 0, 0, 1, 99], (7, 5), len_max);
            outbox.push_behind(&1, vec![0, 0, 0, 1, 98], (8, 5), len_max);
            let sent = all(&mut outbox);
            let last = (1, vec![0, 0, 0, 1, 98], Some(8));
            match together {
                true => assert_eq!(sent, [(1, vec![0, 0, 0, 1, 10, 11, 99], Some(7)), last]),
                false => {
                    let first = [(1, vec![0, 0, 0, 1, 10, 11], None), (1, vec![0, 0, 0, 1, 99], Some(7))];
                    assert_eq!(sent, [first.as_slice(), &[last]].concat());
                }
            }
        }
        let mut outbox = Outbox::new();
        outbox.say(&1, vec![0, 0, 0, 1, 10], 100);
        outbox.say(&2, vec![0, 0, 0, 2, 20], 100);
        outbox.release(&1);
        outbox.push(&1, vec![0, 0, 0, 1, 99], Some(7));
        let order: Vec<_> = all(&mut outbox).into_iter().map(|(peer, _, chunk)| (peer, chunk)).collect();
        assert_eq!(order, [(1, None), (1, Some(7)), (2, None)]);
    }
}
