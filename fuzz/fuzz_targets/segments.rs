//! Any bytes as a path segment, and as what a control service answers: checked, combined, and passed on unchanged.
//!
//! Input: a byte that chooses, then the message.
#![no_main]

use anabranch_paths::IsdAs;
use anabranch_scion_wire::StandardPath;
use anabranch_scion_wire::combine::{PATHS_MAX, combine};
use anabranch_scion_wire::proto::control_plane::{PathSegment, SegmentsResponse};
use anabranch_scion_wire::proto::grpc::unframe;
use anabranch_scion_wire::segment::{AS_ENTRIES_MAX, Segment};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, message)) = data.split_first() else { return };
    match choice % 3 {
        0 => {
            let Ok(segment) = PathSegment::decode(message) else { return };
            let Ok(segment) = Segment::from_proto(&segment) else { return };
            assert!((2..=AS_ENTRIES_MAX).contains(&segment.entries().len()));
            assert_eq!(Segment::from_proto(&segment.to_proto(Segment::unsigned)).as_ref(), Ok(&segment));
        }
        1 => combined(SegmentsResponse::decode(message).unwrap_or_default()),
        _ => combined(unframe(message).unwrap_or_default()),
    }
});

/// From the end of the first up segment to the ends of all others.
fn combined(answer: SegmentsResponse) {
    let of_kind = |kind: i32| -> Vec<Segment> {
        let messages = answer.segments.get(&kind).map(|segments| &segments.segments[..]).unwrap_or_default();
        messages.iter().filter_map(|message| Segment::from_proto(message).ok()).collect()
    };
    let [up, down, core] = [of_kind(1), of_kind(2), of_kind(3)];
    let ends = |segments: &[Segment]| -> Vec<IsdAs> {
        segments.iter().flat_map(|segment| [segment.first(), segment.last()]).take(8).collect()
    };
    let Some(source) = ends(&up).pop().or(ends(&core).pop()) else { return };
    for destination in ends(&down).into_iter().chain(ends(&core)) {
        let paths = combine(source, destination, &up, &core, &down);
        assert!(paths.len() <= PATHS_MAX);
        for path in paths {
            let header = StandardPath::parse(&path.dataplane).expect("a path header");
            assert!(header.interfaces().eq(path.interfaces.iter().map(|interface| interface.id)));
            assert_eq!(
                (path.latency.len() + 1, path.link_kinds.len() * 2),
                (path.interfaces.len(), path.interfaces.len())
            );
            assert_eq!((path.source, path.destination), (source, destination));
        }
    }
}
