//! `proto.control_plane.v1.SegmentLookupService`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use anabranch_paths::IsdAs;
use anabranch_scion_wire::proto::control_plane::{SEGMENTS_METHOD, Segments, SegmentsRequest, SegmentsResponse};
use anabranch_scion_wire::proto::grpc::Status;
use anabranch_scion_wire::segment::Segment;

use super::{Call, Services, unimplemented};

/// gRPC's code for what has no better one: what scionproto's control service says to requests that make no sense, and
/// clients look for.
const UNKNOWN: u32 = 2;

impl Services {
    pub(super) fn control(&self, method: &str, call: Call<'_>, now: SystemTime) -> Result<Vec<u8>, Status> {
        match method {
            SEGMENTS_METHOD => call.with(|request| self.segments(request, now)),
            _ => Err(unimplemented(method)),
        }
    }

    fn segments(&self, request: SegmentsRequest, now: SystemTime) -> Result<SegmentsResponse, Status> {
        let [src, dst] = [request.src_isd_as, request.dst_isd_as].map(IsdAs::from_u64);
        let found = self.plane.segments(self.home.isd_as, src, dst, now);
        let (kind, segments) = found.map_err(|error| Status::new(UNKNOWN, error))?;
        let segments = segments.iter().map(|segment| segment.to_proto(Segment::unsigned)).collect();
        Ok(SegmentsResponse { segments: BTreeMap::from([(kind.into(), Segments { segments })]) })
    }
}
