//! Somebody on the wire who hears every packet and has no key: what else arrives because of that. Pure.
//!
//! Packets come and go behind their `virtio_net_hdr`, one by one, so that what is made of them arrives as they would. Only those of UDP
//! over IPv4 are of interest; all others pass as they are.

use std::collections::VecDeque;

/// Bytes before the IP packet.
const FRAMING_LEN: usize = 10;
/// Of IPv4 without options, and UDP.
const IP_LEN: usize = 20;
const UDP_LEN: usize = 8;
const HEADERS_LEN: usize = FRAMING_LEN + IP_LEN + UDP_LEN;
const UDP: u8 = 17;
/// Packets that are kept to be replayed: what came just now, and what is long settled.
const KEPT_MAX: usize = 4096;
/// How many packets one that is held up is overtaken by, at most.
const OVERTAKEN_MAX: usize = 32;
/// First bytes of a payload by which a receiver tells whose packet it is: forged ones leave them.
const NAME_LEN: usize = 6;

/// What is done to a stream of packets, as often as packets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Each packet is followed by one that passed before.
    Replay,
    /// Each packet is followed by one like it with other bits, or of another number.
    Forge,
    /// Each packet is followed by its first part.
    Truncate,
    /// Every second packet is held up, so that others overtake it: where many follow it, or it would be held up for long.
    Reorder,
    /// All of it.
    All,
}

/// One direction.
pub struct Attacker {
    attack: Attack,
    random: fastrand::Rng,
    kept: VecDeque<Vec<u8>>,
    /// Held up, each until so many more have passed.
    held: VecDeque<(usize, Vec<u8>)>,
    turn: usize,
    reorders: bool,
    /// Packets that would not have come.
    pub added: u64,
}

impl Attacker {
    /// Nothing has passed yet. Of a direction in which few packets go, none is held up.
    pub fn new(attack: Attack, seed: u64, has_few: bool) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { attack, random, kept: VecDeque::new(), held: VecDeque::new(), turn: 0, reorders: !has_few, added: 0 }
    }

    /// A packet passes: what arrives now, in order.
    pub fn pass(&mut self, packet: &[u8], out: &mut Vec<Vec<u8>>) {
        out.clear();
        if !is_udp(packet) {
            out.push(packet.to_vec());
            return;
        }
        self.turn += 1;
        let attack = match self.attack {
            Attack::All => [Attack::Replay, Attack::Forge, Attack::Truncate, Attack::Reorder][self.turn / 2 % 4],
            one => one,
        };
        self.held.iter_mut().for_each(|(left, _)| *left = left.saturating_sub(1));
        if attack == Attack::Reorder && self.reorders && self.turn.is_multiple_of(2) {
            self.held.push_back((self.random.usize(1..=OVERTAKEN_MAX), packet.to_vec()));
        } else {
            out.push(packet.to_vec());
        }
        let added = match attack {
            Attack::Replay => self.replayed(packet),
            Attack::Forge => Some(self.forged(packet)),
            Attack::Truncate => self.truncated(packet),
            Attack::Reorder | Attack::All => None,
        };
        self.added += u64::from(added.is_some());
        out.extend(added);
        let mut at = 0;
        while at < self.held.len() {
            match self.held[at].0 {
                0 => out.extend(self.held.remove(at).map(|(_, packet)| packet)),
                _ => at += 1,
            }
        }
    }

    fn replayed(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        if self.kept.len() >= KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(packet.to_vec());
        self.kept.get(self.random.usize(..self.kept.len())).cloned()
    }

    fn forged(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut forged = packet.to_vec();
        let payload = &mut forged[HEADERS_LEN..];
        // What names the transfer stays, so that its receiver has to find out.
        let rest = payload.len().min(NAME_LEN);
        for byte in payload[rest..].iter_mut().take(if self.random.bool() { 6 } else { 0 }) {
            *byte = self.random.u8(..);
        }
        if let Some(bit) = (payload.len() * 8).checked_sub(rest * 8).filter(|bits| *bits > 0) {
            let bit = rest * 8 + self.random.usize(..bit);
            payload[bit / 8] ^= 1 << (bit % 8);
        }
        forged
    }

    fn truncated(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let payload_len = packet.len() - HEADERS_LEN;
        if payload_len == 0 {
            return None;
        }
        let left = self.random.usize(..payload_len);
        let mut cut = packet[..HEADERS_LEN + left].to_vec();
        let (ip_len, udp_len) = ((IP_LEN + UDP_LEN + left) as u16, (UDP_LEN + left) as u16);
        cut[FRAMING_LEN + 2..FRAMING_LEN + 4].copy_from_slice(&ip_len.to_be_bytes());
        cut[FRAMING_LEN + IP_LEN + 4..FRAMING_LEN + IP_LEN + 6].copy_from_slice(&udp_len.to_be_bytes());
        // The header's checksum (RFC 791) with the new length; UDP's is not looked at between two ends of one machine.
        cut[FRAMING_LEN + 10..FRAMING_LEN + 12].fill(0);
        let sum = checksum(&cut[FRAMING_LEN..FRAMING_LEN + IP_LEN]);
        cut[FRAMING_LEN + 10..FRAMING_LEN + 12].copy_from_slice(&sum.to_be_bytes());
        Some(cut)
    }
}

fn is_udp(packet: &[u8]) -> bool {
    // Version 4, a header of five words.
    packet.len() >= HEADERS_LEN && packet[FRAMING_LEN] == 0x45 && packet[FRAMING_LEN + 9] == UDP
}

fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u8) -> Vec<u8> {
        let mut packet = vec![0; FRAMING_LEN];
        packet.extend([0x45, 0, 0, 128, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend([0, 1, 0, 2, 0, 108, 0, 0]);
        packet.extend([number; 100]);
        packet
    }

    fn arrive(attack: Attack) -> (Vec<Vec<u8>>, u64) {
        let (mut attacker, mut all, mut out) = (Attacker::new(attack, 7, false), Vec::new(), Vec::new());
        for number in 0..200 {
            attacker.pass(&packet(number), &mut out);
            all.append(&mut out);
        }
        (all, attacker.added)
    }

    #[test]
    fn every_packet_arrives_and_what_is_added_is_of_its_kind() {
        let genuine: Vec<_> = (0..200).map(packet).collect();
        for attack in [Attack::Replay, Attack::Forge, Attack::Truncate] {
            let (all, added) = arrive(attack);
            assert_eq!((all.len(), added), (400, 200), "{attack:?}");
            for pair in all.chunks(2).zip(&genuine) {
                let ([first, second], wanted) = (pair.0, pair.1) else { panic!("pairs") };
                assert_eq!(first, wanted);
                match attack {
                    Attack::Replay => assert!(genuine.contains(second)),
                    Attack::Forge => {
                        assert_eq!(second.len(), first.len());
                        assert!(second[..HEADERS_LEN + NAME_LEN] == first[..HEADERS_LEN + NAME_LEN] && second != first);
                    }
                    _ => {
                        assert!(second.len() < first.len());
                        let header = &second[FRAMING_LEN..FRAMING_LEN + IP_LEN];
                        assert_eq!(checksum(header), 0, "it is valid");
                    }
                }
            }
        }
    }

    #[test]
    fn packets_that_are_held_up_are_overtaken_and_not_lost() {
        let (all, added) = arrive(Attack::Reorder);
        assert_eq!(added, 0);
        // The last ones wait for what comes next.
        assert!((200 - OVERTAKEN_MAX..=200).contains(&all.len()), "{}", all.len());
        let numbers: Vec<u8> = all.iter().map(|packet| packet[HEADERS_LEN]).collect();
        assert!(numbers.windows(2).filter(|pair| pair[0] > pair[1]).count() > 40);
    }

    #[test]
    fn what_is_not_udp_passes_as_it_is() {
        let mut out = Vec::new();
        Attacker::new(Attack::All, 1, false).pass(&[0; 60], &mut out);
        assert_eq!(out, [vec![0; 60]]);
    }
}
