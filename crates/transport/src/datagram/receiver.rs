//! Receiving to where the caller says.
//!
//! The system hands over datagrams of one flow coalesced: one message, cut into equal segments. So before a receive the
//! caller's places are laid out as segments will come if they have the length and number of the last ones: SCION's headers
//! into a buffer here, the first bytes into the place's head, the others into its body. Where the guess is right, payload lies
//! where it belongs and nothing is copied. Where it is wrong (another path's headers, a short packet in between), the bytes
//! are gathered in the buffer and handed out from there. Only speed depends on the guess.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_scion::socket::{DropCounts, Dropped};
use anabranch_udp::{Arrival, RECV_BUFFER_LEN, SEGMENTS_MAX, Scatter};
use anabranch_xdp::Datagram;

use super::inbound::{Inbound, Meaning, PathEvent};
use super::socket::Shared;
use super::table::PathKey;
use super::xdp::Inlet;

/// Messages received with one system call. Each may be 64 KiB of coalesced packets.
const MESSAGES: usize = 16;
/// As many, where the last ones were coalesced and packets are handed on where they lie: what is received with one call is still in
/// the processor's cache when its last packet is looked at.
const MESSAGES_COALESCED: usize = 4;
/// Messages longer than this on average are coalesced ones.
const COALESCED_LEN: usize = 1 << 14;
/// Parts of a place, and its headers.
const PARTS_OF_PLACE: usize = 3;
/// Events that wait to be taken. Equal ones wait once: a burst over a dead link brings as many errors as it has packets.
pub const EVENTS_MAX: usize = 64;
const CE: u8 = 0b11;

/// Where one packet's payload goes: its first bytes to `head`, the following ones to `body`. For a protocol whose packets
/// have a header of one length, that is the header's place and the chunk's.
#[derive(Debug)]
pub struct Place<'a> {
    /// Is filled first.
    pub head: &'a mut [u8],
    /// Is filled then.
    pub body: &'a mut [u8],
}

impl Place<'_> {
    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// A packet that was received.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Which of the places it is in; zero if it is told of where it lies ([`Receiver::recv_each`], [`Receiver::recv_lying`]).
    pub place: usize,
    /// Bytes of its payload. More than the place has: those beyond it are lost.
    pub len: usize,
    /// The path it came by, if that was added to the socket. Over IP nothing but addresses proves it.
    pub path: Option<PathKey>,
    /// Who handed it over: over SCION, a router most often.
    pub from: SocketAddr,
    /// The address of this machine it was sent to.
    pub local: Option<IpAddr>,
    /// The number of the interface it came in by.
    pub interface: u32,
    /// ECN bits; of SCION's header, or congestion that the underlay has marked.
    pub ecn: u8,
    /// When the kernel took it, or the first one of those it came with, from the device.
    pub arrived: Option<SystemTime>,
    /// Whether `len` is more than the place has.
    pub is_truncated: bool,
    /// Where its headers are in the image.
    headers: (usize, usize),
}

/// What one receive brought. Not in order of arrival where packets had to be moved.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    received: &'a [Received],
    image: &'a [u8],
    /// Payloads are in the image too.
    is_lying: bool,
}

impl<'a> Batch<'a> {
    /// The packets.
    pub fn iter(&self) -> std::slice::Iter<'a, Received> {
        self.received.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.received.len()
    }

    /// Whether nothing came but SCMP or what was dropped.
    pub fn is_empty(&self) -> bool {
        self.received.is_empty()
    }

    /// Over SCION: the headers of a packet of this batch, SCION's and UDP's. Empty over IP.
    pub fn headers(&self, received: &Received) -> &'a [u8] {
        self.image.get(received.headers.0..received.headers.1).unwrap_or_default()
    }

    /// After [`Receiver::recv_lying`]: the payload of a packet of this batch. Empty after another receive, which puts it elsewhere.
    pub fn payload(&self, received: &Received) -> &'a [u8] {
        let start = received.headers.1;
        self.image.get(start..start + received.len).filter(|_| self.is_lying).unwrap_or_default()
    }
}

impl<'a> IntoIterator for Batch<'a> {
    type Item = &'a Received;
    type IntoIter = std::slice::Iter<'a, Received>;

    fn into_iter(self) -> Self::IntoIter {
        self.received.iter()
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.received.fmt(f)
    }
}

/// What happened to packets, by count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed out.
    pub packets: u64,
    /// Of these, those that had to be copied to their place.
    pub packets_moved: u64,
    /// Of these, those that came past the kernel ([`super::Socket::attach_xdp`]).
    pub packets_xdp: u64,
    /// Dropped.
    pub dropped: DropCounts,
}

/// Receives from a socket.
pub struct Receiver {
    shared: Arc<Shared>,
    /// What arrived as it arrived, a part for each message; with holes where bytes are in the caller's places.
    image: Box<[u8]>,
    messages: [Message; MESSAGES],
    /// Keeps its memory between calls and is empty meanwhile.
    parts: Vec<IoSliceMut<'static>>,
    /// Places that hold a packet.
    taken: Vec<bool>,
    received: Vec<Received>,
    guess: Guess,
    /// Messages that the next receive without places asks for.
    messages_next: usize,
    /// Over SCION.
    inbound: Option<Inbound>,
    /// The last message's addresses over IP, and what they mean.
    recent: Option<Recent>,
    events: VecDeque<PathEvent>,
    counters: Counters,
    /// The way past the kernel, if there is one.
    inlet: Option<Inlet>,
}

/// Addresses of a message over IP, when the table had changed so often; and the path.
type Recent = ((SocketAddr, Option<IpAddr>, u32, u64), Option<PathKey>);

/// How the next packets will come.
#[derive(Clone, Copy)]
struct Guess {
    /// Coalesced in one message.
    packets: usize,
    /// Bytes of SCION's and UDP's headers; zero over IP.
    headers_len: usize,
}

/// One message of the system's.
#[derive(Clone, Copy)]
struct Message {
    arrival: Arrival,
    /// The places it was laid out for.
    first: usize,
    end: usize,
    /// The first of its bytes that was not handed out.
    next: usize,
}

impl Message {
    const NONE: Self = Self { arrival: Arrival::NONE, first: 0, end: 0, next: 0 };

    fn segment_at(&self, start: usize) -> usize {
        self.arrival.segment_len.min(self.arrival.len - start)
    }
}

impl Receiver {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let inbound = shared.local.as_scion().map(Inbound::new);
        let inlet = Inlet::new(shared.ports(), &shared.udp);
        Self {
            shared,
            image: vec![0; MESSAGES * RECV_BUFFER_LEN].into(),
            messages: [Message::NONE; MESSAGES],
            parts: Vec::new(),
            taken: Vec::new(),
            received: Vec::new(),
            guess: Guess { packets: 1, headers_len: 0 },
            messages_next: MESSAGES,
            inbound,
            recent: None,
            events: VecDeque::new(),
            counters: Counters::default(),
            inlet,
        }
    }

    /// Receives packets to `places`, each to one of them. A place at which a packet is expected next comes first: packets
    /// that arrive in order then lie in order, and nothing is copied. A receive of 64 places, each as long as the packets,
    /// takes a whole burst.
    ///
    /// What has arrived and fits in no place waits for the next call. A packet without payload is not told over IP.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there; else what the kernel says.
    pub fn recv(&mut self, places: &mut [Place<'_>]) -> io::Result<Batch<'_>> {
        self.begin();
        self.taken.clear();
        self.taken.resize(places.len(), false);
        self.hand_out(places);
        let mut frames = 0;
        if self.received.is_empty() && !places.is_empty() {
            frames = self.recv_either(
                places,
                |receiver, places| receiver.recv_system(places),
                |receiver, inlet, places| receiver.recv_frames(inlet, places),
            )?;
        }
        self.counters.packets += self.received.len() as u64;
        let of_frames = self.inlet.as_ref().filter(|_| frames > 0).map(Inlet::headers);
        Ok(Batch { received: &self.received, image: of_frames.unwrap_or(&self.image), is_lying: false })
    }

    /// Receives to memory of its own and tells of all packets at once, in the order in which the system has them, where they lie
    /// ([`Batch::payload`]). For callers who look at several packets together and copy what they keep.
    ///
    /// # Errors
    /// As [`Receiver::recv`].
    pub fn recv_lying(&mut self) -> io::Result<Batch<'_>> {
        self.begin();
        // What an earlier receive left.
        self.tell();
        let mut frames = 0;
        if self.received.is_empty() {
            frames = self.recv_either(
                &mut (),
                |receiver, ()| {
                    receiver.fetch_lying()?;
                    receiver.tell();
                    Ok(())
                },
                |receiver, inlet, ()| receiver.tell_frames(inlet),
            )?;
        }
        self.counters.packets += self.received.len() as u64;
        let of_frames = self.inlet.as_ref().filter(|_| frames > 0).map(Inlet::headers);
        Ok(Batch { received: &self.received, image: of_frames.unwrap_or(&self.image), is_lying: true })
    }

    /// Receives to memory of its own and hands each packet to `take`, in the order in which the system has them: what is known of it,
    /// its headers (as [`Batch::headers`]), and its payload, to be changed where it lies. For callers who open packets and copy what
    /// they keep: a place for each would cost more. Whether there may be more.
    ///
    /// # Errors
    /// As [`Receiver::recv`].
    pub fn recv_each(&mut self, mut take: impl FnMut(&Received, &[u8], &mut [u8])) -> io::Result<bool> {
        self.begin();
        let before = self.counters.packets;
        // What an earlier receive left.
        self.hand_on(&mut take);
        if self.counters.packets > before {
            return Ok(true);
        }
        let mut is_full = false;
        let frames = self.recv_either(
            &mut take,
            |receiver, take| {
                is_full = receiver.fetch_lying()?;
                receiver.hand_on(take);
                Ok(())
            },
            |receiver, inlet, take| receiver.hand_on_frames(inlet, take),
        )?;
        Ok(is_full || frames > 0)
    }

    /// A receive begins: nothing of it is there yet, and what is remembered of paths holds.
    fn begin(&mut self) {
        self.received.clear();
        if let Some(inbound) = &mut self.inbound {
            inbound.keep_up(self.shared.changes());
        }
    }

    /// One receive of the system's.
    fn recv_system(&mut self, places: &mut [Place<'_>]) -> io::Result<()> {
        let count = places.len().div_ceil(self.guess.packets).min(MESSAGES);
        self.fetch(places, count)?;
        for index in 0..MESSAGES {
            self.accept(index, places);
        }
        self.hand_out(places);
        Ok(())
    }

    /// What has come past the kernel, if there is such a way, or, if that is nothing or the system's turn, by the system. How many
    /// frames it were, zero by the system.
    fn recv_either<T: ?Sized>(
        &mut self,
        to: &mut T,
        mut system: impl FnMut(&mut Self, &mut T) -> io::Result<()>,
        mut past_kernel: impl FnMut(&mut Self, &mut Inlet, &mut T) -> usize,
    ) -> io::Result<usize> {
        let Some(mut inlet) = self.inlet.take() else { return system(self, to).map(|()| 0) };
        let is_systems_turn = inlet.take_turn();
        let mut frames = if is_systems_turn { 0 } else { past_kernel(self, &mut inlet, to) };
        let mut result = Ok(());
        if frames == 0 {
            result = system(self, to);
            let is_blocked = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            if is_blocked && is_systems_turn {
                frames = past_kernel(self, &mut inlet, to);
                result = if frames > 0 { Ok(()) } else { result };
            }
        }
        self.inlet = Some(inlet);
        result.map(|()| frames)
    }

    /// Takes frames from the rings; how many there were, whatever they were.
    fn recv_frames(&mut self, inlet: &mut Inlet, places: &mut [Place<'_>]) -> usize {
        let mut next = 0;
        inlet.receive(places.len(), |datagram, interface, arrived, headers| {
            let Some(place) = places.get_mut(next) else { return };
            let Some((datagram, arrival, meaning)) = self.look(datagram, interface, arrived) else { return };
            let (mut len, mut is_truncated, packet_at) = (0, false, headers.len());
            if let Ok(Meaning::Data { headers_len, .. }) = meaning {
                let (own, payload) = datagram.payload.split_at(headers_len);
                headers.extend_from_slice(own);
                let (head, body) = payload.split_at(payload.len().min(place.head.len()));
                let body = &body[..body.len().min(place.body.len())];
                place.head[..head.len()].copy_from_slice(head);
                place.body[..body.len()].copy_from_slice(body);
                (len, is_truncated) = (payload.len(), payload.len() > place.len());
            }
            if self.note(meaning, &arrival, next, packet_at, len, is_truncated) {
                self.counters.packets_moved += 1;
                self.counters.packets_xdp += 1;
                next += 1;
            }
        })
    }

    /// The same without places: each is copied to the image's start and handed on there.
    fn hand_on_frames(&mut self, inlet: &mut Inlet, take: &mut impl FnMut(&Received, &[u8], &mut [u8])) -> usize {
        inlet.receive(MESSAGES * SEGMENTS_MAX, |datagram, interface, arrived, _| {
            let Some((datagram, arrival, meaning)) = self.look(datagram, interface, arrived) else { return };
            let packet = datagram.payload.len();
            // A frame's payload is shorter than what the system coalesces.
            self.image[..packet].copy_from_slice(datagram.payload);
            if self.hand_on_one(meaning, &arrival, 0..packet, take) {
                self.counters.packets_moved += 1;
                self.counters.packets_xdp += 1;
            }
        })
    }

    /// What a frame is; `None` where that is nothing to be told of.
    fn look<'a>(
        &mut self,
        datagram: Result<Datagram<'a>, Dropped>,
        interface: u32,
        arrived: SystemTime,
    ) -> Option<(Datagram<'a>, Arrival, Result<Meaning, Dropped>)> {
        let port = self.shared.udp.local_addr().port();
        let datagram = match datagram {
            Ok(datagram) if datagram.to.port() == port => datagram,
            other => {
                self.counters.dropped.add(other.err().unwrap_or(Dropped::WrongDestination));
                return None;
            }
        };
        let arrival = Arrival {
            from: datagram.from,
            len: datagram.payload.len(),
            segment_len: datagram.payload.len().max(1),
            ecn: datagram.ecn,
            local: Some(datagram.to.ip()),
            interface,
            arrived: Some(arrived),
            ..Arrival::NONE
        };
        let meaning = match &mut self.inbound {
            Some(inbound) => inbound.read(&self.shared.table(), datagram.payload, datagram.from),
            // As the system's receive has it.
            None if datagram.payload.is_empty() => return None,
            None => Ok(Meaning::Data { path: self.path_of(&arrival), headers_len: 0, ecn: datagram.ecn }),
        };
        Some((datagram, arrival, meaning))
    }

    /// The next trouble on a path, as SCMP told.
    pub fn event(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Fills `count` messages from the system, laid out over the places. How many came, and of how many bytes.
    fn fetch(&mut self, places: &mut [Place<'_>], count: usize) -> io::Result<(usize, usize)> {
        self.messages = [Message::NONE; MESSAGES];
        let Guess { packets, headers_len } = self.guess;
        let mut parts = recycle(std::mem::take(&mut self.parts));
        parts.reserve(MESSAGES + PARTS_OF_PLACE * places.len().min(MESSAGES * packets));
        let mut counts = [0; MESSAGES];
        let mut remaining = places.iter_mut().peekable();
        let mut place = 0;
        let images = self.image.chunks_exact_mut(RECV_BUFFER_LEN).take(count);
        for ((mut image, message), parts_count) in images.zip(&mut self.messages).zip(&mut counts) {
            let parts_before = parts.len();
            message.first = place;
            for _ in 0..packets {
                let room = image.len();
                let fits = |place: &&mut Place<'_>| headers_len + place.len() <= room;
                let Some(Place { head, body }) = remaining.next_if(fits) else { break };
                let (headers, rest) = std::mem::take(&mut image).split_at_mut(headers_len);
                image = &mut rest[head.len() + body.len()..];
                // Every part costs, an empty one too.
                let of_place = [headers, &mut **head, &mut **body].into_iter().filter(|part| !part.is_empty());
                parts.extend(of_place.map(IoSliceMut::new));
                place += 1;
            }
            message.end = place;
            // What comes beyond the guess.
            parts.push(IoSliceMut::new(image));
            *parts_count = parts.len() - parts_before;
        }
        let mut rest = &mut parts[..];
        let mut scatters: [Scatter<'_, '_>; MESSAGES] = std::array::from_fn(|index| {
            let (parts, later) = std::mem::take(&mut rest).split_at_mut(counts[index]);
            rest = later;
            Scatter { parts, received: Arrival::NONE }
        });
        let result = self.shared.udp.recv_scattered(&mut scatters[..count]);
        for (message, scatter) in self.messages.iter_mut().zip(&scatters) {
            message.arrival = scatter.received;
        }
        self.parts = recycle(parts);
        let got = result?;
        self.messages[got..].fill(Message::NONE);
        let most = self.messages[..got].iter().map(|message| message.arrival.len.div_ceil(message.arrival.segment_len));
        self.guess.packets = most.max().unwrap_or(1).clamp(1, SEGMENTS_MAX);
        Ok((got, self.messages[..got].iter().map(|message| message.arrival.len).sum()))
    }

    /// Takes what is in its place already. From the first packet on that is not, the message is gathered in the image.
    fn accept(&mut self, index: usize, places: &[Place<'_>]) {
        let message = self.messages[index];
        let headers_len = self.guess.headers_len;
        let image_start = index * RECV_BUFFER_LEN;
        let mut start = 0;
        for (at, place) in places.iter().enumerate().take(message.end).skip(message.first) {
            let whole = headers_len + place.len();
            if start >= message.arrival.len {
                break;
            }
            let len = message.segment_at(start);
            let is_last = start + len == message.arrival.len;
            if len < headers_len || len > whole || (len < whole && !is_last) {
                break;
            }
            let payload_len = len - headers_len;
            let head = &place.head[..place.head.len().min(payload_len)];
            let body = &place.body[..payload_len - head.len()];
            let packet_at = image_start + start;
            let packet = &mut self.image[packet_at..packet_at + len];
            let known = match &self.inbound {
                None => None,
                Some(inbound) => inbound.recall(&packet[..headers_len], head, body, message.arrival.from),
            };
            if known.is_none() && self.inbound.is_some() {
                packet[headers_len..headers_len + head.len()].copy_from_slice(head);
                packet[headers_len + head.len()..].copy_from_slice(body);
            }
            let meaning = known.unwrap_or_else(|| self.meaning(&message.arrival, packet_at..packet_at + len));
            if let Ok(Meaning::Data { headers_len: actual, .. }) = meaning
                && actual != headers_len
            {
                break;
            }
            if self.note(meaning, &message.arrival, at, packet_at, payload_len, false) {
                self.taken[at] = true;
            }
            start += len;
        }
        self.messages[index].next = start;
        self.gather(index, start, places);
    }

    /// What the packet in this part of the image means.
    fn meaning(&mut self, arrival: &Arrival, packet: Range<usize>) -> Result<Meaning, Dropped> {
        match &mut self.inbound {
            Some(inbound) => inbound.read(&self.shared.table(), &self.image[packet], arrival.from),
            None => Ok(Meaning::Data { path: self.path_of(arrival), headers_len: 0, ecn: arrival.ecn }),
        }
    }

    /// Copies what of a message lies in places, from byte `start` on, to where it would be in the image without them.
    fn gather(&mut self, index: usize, start: usize, places: &[Place<'_>]) {
        let message = self.messages[index];
        if start >= message.arrival.len {
            return;
        }
        let image = &mut self.image[index * RECV_BUFFER_LEN..(index + 1) * RECV_BUFFER_LEN];
        let mut at = 0;
        for place in &places[message.first..message.end] {
            at += self.guess.headers_len;
            for part in [&*place.head, &*place.body] {
                // Only what came, and only what was not handed out.
                let end = (at + part.len()).min(message.arrival.len);
                let from = at.max(start);
                if from < end {
                    image[from..end].copy_from_slice(&part[from - at..end - at]);
                }
                at += part.len();
            }
            if at >= message.arrival.len {
                break;
            }
        }
    }

    /// Copies what waits in the image to places that are free, until there is none.
    fn hand_out(&mut self, places: &mut [Place<'_>]) {
        let mut free = 0;
        for index in 0..MESSAGES {
            while self.messages[index].next < self.messages[index].arrival.len {
                let message = self.messages[index];
                let len = message.segment_at(message.next);
                let packet_at = index * RECV_BUFFER_LEN + message.next;
                while self.taken.get(free) == Some(&true) {
                    free += 1;
                }
                let Some(place) = places.get_mut(free) else { return };
                let meaning = self.meaning(&message.arrival, packet_at..packet_at + len);
                if let Ok(Meaning::Data { headers_len, .. }) = meaning {
                    self.guess.headers_len = headers_len;
                    let payload = &self.image[packet_at + headers_len..packet_at + len];
                    let (head, body) = payload.split_at(payload.len().min(place.head.len()));
                    let body = &body[..body.len().min(place.body.len())];
                    place.head[..head.len()].copy_from_slice(head);
                    place.body[..body.len()].copy_from_slice(body);
                    let (payload_len, truncated) = (payload.len(), payload.len() > place.len());
                    self.note(meaning, &message.arrival, free, packet_at, payload_len, truncated);
                    self.counters.packets_moved += 1;
                    self.taken[free] = true;
                } else {
                    self.note(meaning, &message.arrival, free, packet_at, 0, false);
                }
                self.messages[index].next += len;
            }
        }
    }

    /// Fills the image from the system, to be told of where it lies; whether there may be more.
    fn fetch_lying(&mut self) -> io::Result<bool> {
        let asked = self.messages_next;
        let (got, bytes) = self.fetch(&mut [], asked)?;
        let is_coalesced = bytes / got.max(1) > COALESCED_LEN;
        self.messages_next = if is_coalesced { MESSAGES_COALESCED } else { MESSAGES };
        Ok(got == asked)
    }

    /// Hands on all that waits in the image, where it lies.
    fn hand_on(&mut self, take: &mut impl FnMut(&Received, &[u8], &mut [u8])) {
        self.each_lying(|receiver, meaning, arrival, packet| _ = receiver.hand_on_one(meaning, arrival, packet, take));
    }

    /// Writes down all that waits in the image.
    fn tell(&mut self) {
        self.each_lying(|receiver, meaning, arrival, packet| {
            let headers_len = headers_len(&meaning);
            receiver.note(meaning, arrival, 0, packet.start, packet.len() - headers_len, false);
        });
    }

    /// The same of frames, which are copied one behind the other.
    fn tell_frames(&mut self, inlet: &mut Inlet) -> usize {
        inlet.receive(MESSAGES * SEGMENTS_MAX, |datagram, interface, arrived, image| {
            let Some((datagram, arrival, meaning)) = self.look(datagram, interface, arrived) else { return };
            let (packet_at, len) = (image.len(), datagram.payload.len() - headers_len(&meaning));
            image.extend_from_slice(datagram.payload);
            if self.note(meaning, &arrival, 0, packet_at, len, false) {
                self.counters.packets_moved += 1;
                self.counters.packets_xdp += 1;
            }
        })
    }

    /// Goes through all packets that wait in the image: what each means, how its message came, and where in the image it is.
    fn each_lying(&mut self, mut each: impl FnMut(&mut Self, Result<Meaning, Dropped>, &Arrival, Range<usize>)) {
        for index in 0..MESSAGES {
            let message = self.messages[index];
            self.messages[index].next = message.arrival.len;
            let mut next = message.next;
            // Over IP all packets of a message mean the same.
            let mut known = None;
            while next < message.arrival.len {
                let start = index * RECV_BUFFER_LEN + next;
                let packet = start..start + message.segment_at(next);
                next += packet.len();
                let meaning = known.unwrap_or_else(|| self.meaning(&message.arrival, packet.clone()));
                known = Some(meaning).filter(|_| self.inbound.is_none());
                each(self, meaning, &message.arrival, packet);
            }
        }
    }

    /// Hands on the packet in this part of the image, if it is one to hand on.
    fn hand_on_one(
        &mut self,
        meaning: Result<Meaning, Dropped>,
        arrival: &Arrival,
        packet: Range<usize>,
        take: &mut impl FnMut(&Received, &[u8], &mut [u8]),
    ) -> bool {
        let headers_len = headers_len(&meaning);
        let Some(received) = self.describe(meaning, arrival, 0, packet.start, packet.len() - headers_len, false) else {
            return false;
        };
        let (headers, payload) = self.image[packet].split_at_mut(headers_len);
        take(&received, headers, payload);
        self.counters.packets += 1;
        true
    }

    /// Writes down what a packet was; whether it is one to hand out, in `place`.
    fn note(
        &mut self,
        meaning: Result<Meaning, Dropped>,
        arrival: &Arrival,
        place: usize,
        packet_at: usize,
        len: usize,
        is_truncated: bool,
    ) -> bool {
        let received = self.describe(meaning, arrival, place, packet_at, len, is_truncated);
        self.received.extend(received);
        received.is_some()
    }

    /// What is told of a packet, if it is one to hand out, in `place`. What else it is counts.
    fn describe(
        &mut self,
        meaning: Result<Meaning, Dropped>,
        arrival: &Arrival,
        place: usize,
        packet_at: usize,
        len: usize,
        is_truncated: bool,
    ) -> Option<Received> {
        let dropped = match meaning {
            Ok(Meaning::Data { path, headers_len, ecn }) => {
                // Marked on the underlay is marked on the way.
                let ecn = if arrival.ecn == CE && ecn != 0 { CE } else { ecn };
                return Some(Received {
                    place,
                    len,
                    path,
                    from: arrival.from,
                    local: arrival.local,
                    interface: arrival.interface,
                    ecn,
                    arrived: arrival.arrived,
                    is_truncated,
                    headers: (packet_at, packet_at + headers_len),
                });
            }
            Ok(Meaning::Event(event)) if self.events.contains(&event) => return None,
            Ok(Meaning::Event(event)) if self.events.len() < EVENTS_MAX => {
                self.events.push_back(event);
                return None;
            }
            Ok(Meaning::Event(_)) => Dropped::EventsPending,
            Err(dropped) => dropped,
        };
        self.counters.dropped.add(dropped);
        None
    }

    /// Over IP: the path that a message came by.
    fn path_of(&mut self, arrival: &Arrival) -> Option<PathKey> {
        let addresses = (arrival.from, arrival.local, arrival.interface, self.shared.changes());
        if let Some((known, path)) = self.recent
            && known == addresses
        {
            return path;
        }
        let path = self.shared.table().find_ip(arrival.from, arrival.local, arrival.interface);
        self.recent = Some((addresses, path));
        path
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("local", &self.shared.local).finish_non_exhaustive()
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inlet.as_ref().map_or_else(|| self.shared.udp.as_fd(), Inlet::descriptor)
    }
}

impl AsRawFd for Receiver {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Bytes in front of the payload; none of what is not handed out.
fn headers_len(meaning: &Result<Meaning, Dropped>) -> usize {
    if let Ok(Meaning::Data { headers_len, .. }) = meaning { *headers_len } else { 0 }
}

/// The memory of a list whose entries are gone, for entries that live differently long. Collecting in place keeps it.
fn recycle<'a>(mut parts: Vec<IoSliceMut<'_>>) -> Vec<IoSliceMut<'a>> {
    parts.clear();
    parts.into_iter().map(|_| IoSliceMut::new(&mut [])).collect()
}
