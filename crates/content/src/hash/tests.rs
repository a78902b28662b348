use proptest::prelude::*;
use sha1::Digest as _;

use super::*;
use crate::hex;

fn reference_sha1(message: &[u8]) -> Sha1Digest {
    sha1::Sha1::digest(message).into()
}

fn reference_sha256(message: &[u8]) -> Sha256Digest {
    sha2::Sha256::digest(message).into()
}

/// Hashes `messages` with every backend in every shape, and compares with the reference crates.
fn check(messages: &[Vec<u8>]) {
    let slices: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    let sha1_expected: Vec<_> = slices.iter().map(|message| reference_sha1(message)).collect();
    let sha256_expected: Vec<_> = slices.iter().map(|message| reference_sha256(message)).collect();
    // The same messages in slices of 64 and 192 bytes in turn, with an empty one in the middle.
    let pieces: Vec<Vec<&[u8]>> = slices
        .iter()
        .map(|message| {
            let (head, rest) = message.split_at(message.len().min(64));
            [head, &[]]
                .into_iter()
                .filter(|slice| slice.len() % 64 == 0)
                .chain(if head.len() < 64 { vec![*message] } else { rest.chunks(192).collect() })
                .collect()
        })
        .collect();
    let pieces: Vec<&[&[u8]]> = pieces.iter().map(Vec::as_slice).collect();
    for backend in Backend::supported() {
        let mut short = vec![[0; 20]; messages.len()];
        let mut long = vec![[0; 32]; messages.len()];
        backend.sha1_many_into(&slices, &mut short);
        assert_eq!(short, sha1_expected, "{backend:?}");
        backend.sha256_many_into(&slices, &mut long);
        assert_eq!(long, sha256_expected, "{backend:?}");
        short.fill([0; 20]);
        long.fill([0; 32]);
        backend.sha1_pieces_into(&pieces, &mut short);
        assert_eq!(short, sha1_expected, "{backend:?}, in slices");
        backend.sha256_pieces_into(&pieces, &mut long);
        assert_eq!(long, sha256_expected, "{backend:?}, in slices");
    }
}

#[test]
fn known_answers() {
    // FIPS 180-4 examples (NIST CSRC, "Example Values").
    let two_blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    let million = vec![b'a'; 1_000_000];
    let vectors: [(&[u8], &str, &str); 4] = [
        (
            b"",
            "da39a3ee5e6b4b0d3255bfef95601890afd80709",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        (
            b"abc",
            "a9993e364706816aba3e25717850c26c9cd0d89d",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        (
            two_blocks,
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
        (
            &million,
            "34aa973cd4c4daa4f61eeb2bdbad27316534016f",
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
        ),
    ];
    for (message, short, long) in vectors {
        assert_eq!(hex::encode(&sha1(message)), short);
        assert_eq!(hex::encode(&sha256(message)), long);
        for backend in Backend::supported() {
            for copies in [1, 2, 3, 16, 17] {
                let mut digests = vec![[0; 20]; copies];
                backend.sha1_many_into(&vec![message; copies], &mut digests);
                assert!(digests.iter().all(|digest| hex::encode(digest) == short), "{backend:?}");
                let mut digests = vec![[0; 32]; copies];
                backend.sha256_many_into(&vec![message; copies], &mut digests);
                assert!(digests.iter().all(|digest| hex::encode(digest) == long), "{backend:?}");
            }
        }
    }
}

#[test]
fn every_length_around_the_ends_of_blocks() {
    let message: Vec<u8> = (0..200u8).collect();
    let lengths = [0, 1, 54, 55, 56, 57, 63, 64, 65, 118, 119, 120, 121, 127, 128, 129, 183, 184, 192, 200];
    for count in 0..40 {
        let messages: Vec<Vec<u8>> = (0..count).map(|i| message[..lengths[i % lengths.len()]].to_vec()).collect();
        check(&messages);
    }
}

#[test]
fn lanes_refill_when_one_message_is_much_longer() {
    let messages: Vec<Vec<u8>> = (0..37).map(|i| vec![i as u8; if i % 5 == 0 { 10_000 + i } else { i }]).collect();
    check(&messages);
}

#[test]
#[should_panic(expected = "only the last slice")]
fn a_slice_that_ends_inside_a_block_is_refused() {
    sha1_pieces(&[&[&[0; 63], &[0; 64]]]);
}

#[test]
fn the_portable_backend_is_always_there() {
    assert_eq!(Backend::supported().last().map(Backend::name), Some("scalar"));
    assert_eq!(Backend::supported().next().map(Backend::name), Some(Backend::best().name()));
}

proptest! {
    #[test]
    fn many_equal_the_reference(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..40)) {
        check(&messages);
    }

    #[test]
    fn parts_equal_the_whole(
        messages in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 4), 0..40),
    ) {
        for backend in Backend::supported() {
            let mut short = vec![Sha1::new(); messages.len()];
            let mut long = vec![Sha256::new(); messages.len()];
            for part in 0..4 {
                let data: Vec<&[u8]> = messages.iter().map(|parts| parts[part].as_slice()).collect();
                backend.sha1_update_many(&mut short, &data);
                backend.sha256_update_many(&mut long, &data);
            }
            for ((short, long), parts) in short.into_iter().zip(long).zip(&messages) {
                prop_assert_eq!(short.finish(), reference_sha1(&parts.concat()));
                prop_assert_eq!(long.finish(), reference_sha256(&parts.concat()));
            }
        }
    }

    #[test]
    fn a_stream_equals_the_whole(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..10)) {
        let (mut short, mut long) = (Sha1::new(), Sha256::new());
        for part in &parts {
            short.update(part);
            long.update(part);
        }
        prop_assert_eq!(short.finish(), reference_sha1(&parts.concat()));
        prop_assert_eq!(long.finish(), reference_sha256(&parts.concat()));
    }
}
