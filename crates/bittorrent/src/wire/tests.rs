//! The codec as a whole: everything that can be written is read back, however the stream is cut, and limits hold.

use anabranch_content::merkle;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A message with its own bytes, or a block.
#[derive(Clone, Debug)]
enum Sent {
    Simple(Message<'static>),
    Bitfield(Vec<u8>),
    Extended(u8, Vec<u8>),
    Hashes(TreeRequest, Vec<[u8; 32]>),
    Block(BlockRange, Vec<u8>),
    Unknown(u8, Vec<u8>),
}

impl Sent {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Simple(message) => message.encode(out),
            Self::Bitfield(bytes) => Message::Bitfield(bytes).encode(out),
            Self::Extended(id, payload) => Message::Extended { id: *id, payload }.encode(out),
            Self::Hashes(request, hashes) => Message::Hashes(Hashes::new(*request, hashes).unwrap()).encode(out),
            Self::Block(range, data) => {
                out.extend(piece_header(range.piece, range.begin, range.len));
                out.extend(data);
            }
            Self::Unknown(id, payload) => {
                out.extend((payload.len() as u32 + 1).to_be_bytes());
                out.push(*id);
                out.extend(payload);
            }
        }
    }

    /// What a receiver makes of it, as text: events borrow.
    fn expected(&self) -> Option<String> {
        Some(match self {
            Self::Simple(message) => format!("{message:?}"),
            Self::Bitfield(bytes) => format!("{:?}", Message::Bitfield(bytes)),
            Self::Extended(id, payload) => format!("{:?}", Message::Extended { id: *id, payload }),
            Self::Hashes(request, hashes) => format!("{:?}", Message::Hashes(Hashes::new(*request, hashes).unwrap())),
            Self::Block(range, data) => format!("{range:?} {data:?}"),
            Self::Unknown(..) => return None,
        })
    }
}

fn range() -> impl Strategy<Value = BlockRange> {
    any::<(u32, u32, u32)>().prop_map(|(piece, begin, len)| BlockRange { piece, begin, len })
}

fn hash_request() -> impl Strategy<Value = TreeRequest> {
    any::<([u8; 32], u32, u32, u32, u32)>().prop_map(|(root, base, index, length, proof_layers)| TreeRequest {
        root,
        part: merkle::HashRequest { base, index, length, proof_layers },
    })
}

fn hashes() -> impl Strategy<Value = Sent> {
    (any::<[u8; 32]>(), 0..20u32, 0..100u32, 0..6u32, 0..20u32, any::<u8>()).prop_map(
        |(root, base, run, log2, proof_layers, fill)| {
            let length = 1 << log2;
            let request =
                TreeRequest { root, part: merkle::HashRequest { base, index: run * length, length, proof_layers } };
            Sent::Hashes(request, vec![[fill; 32]; (length + request.part.uncle_count()) as usize])
        },
    )
}

fn sent() -> impl Strategy<Value = Sent> {
    use Message::*;
    prop_oneof![
        prop::sample::select(vec![KeepAlive, Choke, Unchoke, Interested, NotInterested, HaveAll, HaveNone])
            .prop_map(Sent::Simple),
        any::<u32>().prop_map(|piece| Sent::Simple(Have(piece))),
        any::<u32>().prop_map(|piece| Sent::Simple(Suggest(piece))),
        any::<u32>().prop_map(|piece| Sent::Simple(AllowedFast(piece))),
        any::<u16>().prop_map(|port| Sent::Simple(Port(port))),
        range().prop_map(|range| Sent::Simple(Request(range))),
        range().prop_map(|range| Sent::Simple(Cancel(range))),
        range().prop_map(|range| Sent::Simple(Reject(range))),
        hash_request().prop_map(|request| Sent::Simple(HashRequest(request))),
        hash_request().prop_map(|request| Sent::Simple(HashReject(request))),
        vec(any::<u8>(), 0..40).prop_map(Sent::Bitfield),
        (any::<u8>(), vec(any::<u8>(), 0..40)).prop_map(|(id, payload)| Sent::Extended(id, payload)),
        hashes(),
        (any::<(u32, u32)>(), vec(any::<u8>(), 1..60)).prop_map(|((piece, begin), data)| {
            Sent::Block(BlockRange { piece, begin, len: data.len() as u32 }, data)
        }),
        (24..=255u8, vec(any::<u8>(), 0..40)).prop_map(|(id, payload)| Sent::Unknown(id, payload)),
    ]
}

/// Feeds `stream` in parts of the lengths `cuts` says, over and over; where `outside`, block payload goes past the receiver.
fn receive(stream: &[u8], cuts: &[usize], outside: bool) -> Result<(Vec<String>, u32), WireError> {
    let (mut receiver, mut told, mut block) = (Receiver::default(), Vec::new(), (String::new(), Vec::<u8>::new()));
    let (mut rest, mut cuts) = (stream, cuts.iter().cycle());
    while !rest.is_empty() {
        if let (true, Some(left)) = (outside, receiver.payload_left()) {
            let len = rest.len().min(left as usize).min(*cuts.next().unwrap());
            block.1.extend(&rest[..len]);
            rest = &rest[len..];
            if receiver.payload_filled(len as u32) {
                told.push(format!("{} {:?}", block.0, block.1));
            }
            continue;
        }
        let cut = rest.len().min(*cuts.next().unwrap());
        let mut input = &rest[..cut];
        while let Some(event) = receiver.next(&mut input, &Limits::default())? {
            match event {
                Event::Message(message) => told.push(format!("{message:?}")),
                Event::BlockStart(range) => block = (format!("{range:?}"), Vec::new()),
                Event::BlockData(data) => block.1.extend(data),
                Event::BlockEnd => told.push(format!("{} {:?}", block.0, block.1)),
            }
            if outside && receiver.payload_left().is_some() {
                break;
            }
        }
        rest = &rest[cut - input.len()..];
    }
    Ok((told, receiver.take_unknown()))
}

proptest! {
    #[test]
    fn any_cut_of_the_stream_gives_the_same_events(
        sent in vec(sent(), 1..20), cuts in vec(1..50usize, 1..20), outside: bool,
    ) {
        let mut stream = Vec::new();
        sent.iter().for_each(|message| message.encode(&mut stream));
        let expected: Vec<_> = sent.iter().filter_map(Sent::expected).collect();
        let unknown = sent.len() - expected.len();
        prop_assert_eq!(receive(&stream, &[usize::MAX], false), Ok((expected.clone(), unknown as u32)));
        prop_assert_eq!(receive(&stream, &cuts, outside), Ok((expected, unknown as u32)));
    }

    #[test]
    fn noise_gives_the_same_answer_however_it_is_cut(
        // Small numbers where the length prefix stands, so that noise gets past it.
        noise in vec((vec(0..30u8, 1..9), vec(any::<u8>(), 0..40)), 0..20), cuts in vec(1..50usize, 1..20), outside: bool,
    ) {
        let stream: Vec<u8> = noise.into_iter().flat_map(|(low, any)| [vec![0, 0], low, any].concat()).collect();
        prop_assert_eq!(receive(&stream, &cuts, outside), receive(&stream, &[usize::MAX], false));
    }
}

/// The answer to the first five bytes of a message.
fn answer(number: u8, len: u32, limits: &Limits) -> Result<(), WireError> {
    let mut head = len.to_be_bytes().to_vec();
    head.push(number);
    Receiver::default().next(&mut &head[..], limits).map(|_| ())
}

#[test]
fn four_gibibytes_are_refused_at_once_whatever_the_number() {
    for number in 0..=255 {
        let error = answer(number, u32::MAX, &Limits::default()).unwrap_err();
        assert!(matches!(error, WireError::TooLong { len: u32::MAX, .. }), "{number}: {error}");
    }
}

#[test]
fn every_limit_has_an_inside_and_an_outside() {
    let limits = Limits::default();
    for (number, longest) in [
        (id::BITFIELD, 1 + BITFIELD_LEN_MAX),
        (id::PIECE, 9 + BLOCK_LEN_MAX),
        (id::EXTENDED, 2 + EXTENDED_LEN_MAX),
        (id::HASHES, 1 + 48 + 32 * (HASH_COUNT_MAX + 51)),
        (99, 1 + UNKNOWN_LEN_MAX),
        (id::HAVE, 5),
        (id::REQUEST, 13),
        (id::PORT, 3),
    ] {
        assert_eq!(answer(number, longest, &limits), Ok(()), "{number}");
        let error = answer(number, longest + 1, &limits).unwrap_err();
        assert!(matches!(error, WireError::TooLong { limit, .. } if limit == longest), "{number}: {error}");
    }
    for (number, shortest) in
        [(id::HAVE, 5), (id::PIECE, 9), (id::EXTENDED, 2), (id::HASHES, 49), (id::HASH_REJECT, 49)]
    {
        let error = answer(number, shortest - 1, &limits).unwrap_err();
        assert!(matches!(error, WireError::WrongLength { expected, .. } if expected == shortest), "{number}: {error}");
    }
}

#[test]
fn bitfields_fit_the_content_once_it_is_known() {
    let limits = Limits { piece_count: Some(17), ..Limits::default() };
    assert_eq!(answer(id::BITFIELD, 1 + 3, &limits), Ok(()));
    assert!(answer(id::BITFIELD, 1 + 2, &limits).is_err());
    assert!(answer(id::BITFIELD, 1 + 4, &limits).is_err());
}

#[test]
fn blocks_longer_than_asked_for_and_empty_ones_are_refused() {
    let limits = Limits { block_len_max: 16384, ..Limits::default() };
    assert_eq!(answer(id::PIECE, 9 + 16384, &limits), Ok(()));
    assert!(answer(id::PIECE, 9 + 16385, &limits).is_err());
    let error = Receiver::default().next(&mut &piece_header(3, 4, 0)[..], &limits).unwrap_err();
    assert_eq!(error, WireError::EmptyBlock { piece: 3, begin: 4 });
}

#[test]
fn messages_in_one_part_are_not_copied() {
    let mut stream = Vec::new();
    Message::Extended { id: 3, payload: b"payload" }.encode(&mut stream);
    let mut receiver = Receiver::default();
    let event = receiver.next(&mut &stream[..], &Limits::default());
    let Ok(Some(Event::Message(Message::Extended { payload, .. }))) = event else { panic!("{event:?}") };
    assert_eq!(payload.as_ptr(), stream[6..].as_ptr());
}

#[test]
fn the_end_of_a_block_filled_from_outside_is_told_once() {
    let (mut receiver, limits) = (Receiver::default(), Limits::default());
    receiver.next(&mut &piece_header(0, 0, 10)[..], &limits).unwrap();
    assert_eq!(receiver.payload_left(), Some(10));
    assert!(!receiver.payload_filled(9));
    assert!(receiver.payload_filled(1));
    assert_eq!(receiver.payload_left(), None);
    assert_eq!(receiver.next(&mut &[0, 0, 0, 0][..], &limits), Ok(Some(Event::Message(Message::KeepAlive))));
}
