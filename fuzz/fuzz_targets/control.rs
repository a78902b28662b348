//! Any bytes as a call to a daemon or a control service: it is answered or refused, and what is answered is small.
#![no_main]

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use anabranch_asnet::control::services::{Encoding, Role, Services};
use anabranch_asnet::control::{ControlPlane, Keys, Options, SECRET_LEN};
use anabranch_asnet::topology::Topology;
use anabranch_scion_wire::proto::control_plane::SEGMENTS_METHOD;
use anabranch_scion_wire::proto::daemon::{
    AS_METHOD, INTERFACES_METHOD, NOTIFY_INTERFACE_DOWN_METHOD, PATHS_METHOD, PORT_RANGE_METHOD, SERVICES_METHOD,
};
use anabranch_scion_wire::proto::grpc::MESSAGE_BYTES_MAX;
use libfuzzer_sys::fuzz_target;

const METHODS: [&str; 8] = [
    PATHS_METHOD,
    AS_METHOD,
    INTERFACES_METHOD,
    SERVICES_METHOD,
    NOTIFY_INTERFACE_DOWN_METHOD,
    PORT_RANGE_METHOD,
    SEGMENTS_METHOD,
    "/nonsense",
];

static SERVICES: LazyLock<Services> = LazyLock::new(|| {
    let text = include_str!("../../topologies/two-isds.toml");
    let topology = Arc::new(Topology::from_toml("two-isds.toml", text).expect("our own example"));
    let keys = Arc::new(Keys::new(&topology, &[0; SECRET_LEN]));
    let plane = Arc::new(ControlPlane::new(topology.clone(), keys, Options::default()));
    Services::new(plane, topology.ases()[3].isd_as).expect("an AS of it")
});

fuzz_target!(|data: &[u8]| {
    let Some((how, body)) = data.split_first() else { return };
    let method = METHODS[usize::from(how % 8)];
    let role = if how & 8 == 0 { Role::Daemon } else { Role::Control };
    let encoding = if how & 16 == 0 { Encoding::Grpc } else { Encoding::Connect };
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_750_000_000 + u64::from(how >> 5));
    match SERVICES.answer(role, method, encoding, body, now) {
        Ok(answer) => assert!(answer.len() <= MESSAGE_BYTES_MAX),
        Err(status) => assert!(status.code != 0 && !status.message.is_empty()),
    }
});
