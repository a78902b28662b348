//! What each AS runs for its end hosts: a daemon, and a control service.
//!
//! Both speak gRPC over HTTP/2 without TLS. The control service answers Connect over HTTP/1.1 on the same address, and
//! hands out the AS's `topology.json` (`GET /topology`), for end hosts that combine segments themselves.
//!
//! Answering is plain and synchronous ([`Services::answer`]); [`serve`] puts sockets and HTTP around it.

mod daemon;
mod http;
mod segments;
mod topology_json;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use anabranch_paths::{Interface, IsdAs};
use anabranch_scion_wire::proto::grpc::{Status, frame, unframe};
use prost::Message;

use super::{ControlPlane, LookupError};
use crate::topology::As;

pub use http::serve;
pub(crate) use http::{MISDIRECTED, is_meant_for_an_address};
pub use topology_json::topology_json;

/// Which of an AS's services is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Paths and the AS's facts, for applications.
    Daemon,
    /// Segments, for those who combine them.
    Control,
}

/// How messages stand in bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// gRPC: a prefix before the message.
    Grpc,
    /// Connect: the bare message.
    Connect,
}

/// The services of one AS.
pub struct Services {
    plane: Arc<ControlPlane>,
    home: As,
    /// Interfaces that applications found down, and when.
    notified: Mutex<VecDeque<(Interface, SystemTime)>>,
}

impl Services {
    /// Those of `local`.
    pub fn new(plane: Arc<ControlPlane>, local: IsdAs) -> Result<Self, LookupError> {
        let home = plane.topology().get(local).ok_or(LookupError::NotHere(local))?.clone();
        Ok(Self { plane, home, notified: Mutex::new(VecDeque::new()) })
    }

    /// The AS.
    pub fn home(&self) -> &As {
        &self.home
    }

    /// Answers one call: `method` is the path of the request, the result the body of the answer.
    pub fn answer(
        &self,
        role: Role,
        method: &str,
        encoding: Encoding,
        body: &[u8],
        now: SystemTime,
    ) -> Result<Vec<u8>, Status> {
        let call = Call { encoding, body };
        match role {
            Role::Daemon => self.daemon(method, call, now),
            Role::Control => self.control(method, call, now),
        }
    }
}

/// A request's body, until its type is known.
#[derive(Clone, Copy)]
struct Call<'a> {
    encoding: Encoding,
    body: &'a [u8],
}

impl Call<'_> {
    fn with<M: Message + Default, R: Message>(
        self,
        answer: impl FnOnce(M) -> Result<R, Status>,
    ) -> Result<Vec<u8>, Status> {
        let invalid = |error: &dyn std::fmt::Display| Status::new(Status::INVALID_ARGUMENT, error);
        match self.encoding {
            Encoding::Grpc => Ok(frame(&answer(unframe(self.body).map_err(|error| invalid(&error))?)?)),
            Encoding::Connect => Ok(answer(M::decode(self.body).map_err(|error| invalid(&error))?)?.encode_to_vec()),
        }
    }
}

fn unimplemented(method: &str) -> Status {
    Status::new(Status::UNIMPLEMENTED, format_args!("{method} is not answered here"))
}
