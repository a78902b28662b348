//! The little of gRPC that unary calls need: how a message stands in a body, and how a call ends.
//!
//! Whoever has an HTTP/2 connection speaks gRPC with this; tonic, with a load balancer, interceptors and a router below it,
//! would bring 25 more crates for the same two calls. Connect over HTTP/1.1 puts the bare message into the body instead
//! ([`CONNECT_CONTENT_TYPE`]).

use std::fmt;

use prost::Message;

/// `content-type` of gRPC requests and answers.
pub const CONTENT_TYPE: &str = "application/grpc";
/// `content-type` of Connect's unary requests and answers.
pub const CONNECT_CONTENT_TYPE: &str = "application/proto";
/// Bytes of one message, as gRPC implementations allow without further configuration.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Before each message: a flag for compression, and the length.
const PREFIX_LEN: usize = 5;
/// The flag of a plain message.
const PLAIN: u8 = 0;

/// How a call ended: `grpc-status` and `grpc-message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// One of the constants of this type.
    pub code: u32,
    /// For people.
    pub message: String,
}

impl Status {
    /// All is well.
    pub const OK: u32 = 0;
    /// The request makes no sense.
    pub const INVALID_ARGUMENT: u32 = 3;
    /// There is no such thing.
    pub const NOT_FOUND: u32 = 5;
    /// Nobody knows this method.
    pub const UNIMPLEMENTED: u32 = 12;
    /// The server is at fault.
    pub const INTERNAL: u32 = 13;
    /// Not now.
    pub const UNAVAILABLE: u32 = 14;

    /// A status of our own.
    pub fn new(code: u32, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }

    /// From the two headers or trailers; a status that is no number is a server's fault.
    pub fn from_headers(status: &[u8], message: Option<&[u8]>) -> Self {
        let number = std::str::from_utf8(status).ok().and_then(|status| status.parse().ok());
        Self { code: number.unwrap_or(Self::INTERNAL), message: percent_decoded(message.unwrap_or_default()) }
    }

    /// The value of `grpc-message`. // gRPC over HTTP/2, "Status-Message"
    pub fn message_header(&self) -> String {
        let mut header = String::with_capacity(self.message.len());
        for byte in self.message.bytes() {
            match byte {
                b'%' | 0..=0x1f | 0x7f.. => header.push_str(&format!("%{byte:02X}")),
                plain => header.push(char::from(plain)),
            }
        }
        header
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gRPC status {}: {}", self.code, self.message)
    }
}

/// Why a body holds no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not one whole message.
    #[error("the body is no single gRPC message")]
    Length,
    /// Compressed, which nobody asked for.
    #[error("the gRPC message is compressed")]
    Compressed,
    /// Above [`MESSAGE_BYTES_MAX`].
    #[error("the gRPC message exceeds {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// No message of this kind.
    #[error("the gRPC message cannot be decoded")]
    Undecodable,
}

/// A gRPC body with one message.
pub fn frame(message: &impl Message) -> Vec<u8> {
    let len = message.encoded_len();
    let mut body = Vec::with_capacity(PREFIX_LEN + len);
    body.push(PLAIN);
    body.extend((len as u32).to_be_bytes());
    body.extend(message.encode_to_vec());
    body
}

/// The one message of a gRPC body.
pub fn unframe<M: Message + Default>(body: &[u8]) -> Result<M, FrameError> {
    let (prefix, message) = body.split_first_chunk::<PREFIX_LEN>().ok_or(FrameError::Length)?;
    let [flag, len @ ..] = *prefix;
    if flag != PLAIN {
        return Err(FrameError::Compressed);
    }
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(FrameError::TooLong);
    }
    if message.len() != u32::from_be_bytes(len) as usize {
        return Err(FrameError::Length);
    }
    M::decode(message).map_err(|_| FrameError::Undecodable)
}

fn percent_decoded(bytes: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [byte, tail @ ..] = rest {
        let escaped = tail
            .first_chunk::<2>()
            .filter(|_| *byte == b'%')
            .and_then(|digits| std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok()));
        decoded.push(escaped.unwrap_or(*byte));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::control_plane::SegmentsRequest;
    use super::*;

    #[test]
    fn a_message_survives_its_frame() {
        let request = SegmentsRequest { src_isd_as: 7, dst_isd_as: u64::MAX };
        let body = frame(&request);
        assert_eq!(body[..5], [0, 0, 0, 0, body.len() as u8 - 5]);
        assert_eq!(unframe(&body), Ok(request));
        // An empty message has no bytes.
        assert_eq!(frame(&()), [0; 5]);
        assert_eq!(unframe::<()>(&[0; 5]), Ok(()));
    }

    #[test]
    fn other_bodies_are_refused() {
        assert_eq!(unframe::<()>(&[0; 4]), Err(FrameError::Length));
        assert_eq!(unframe::<()>(&[1, 0, 0, 0, 0]), Err(FrameError::Compressed));
        assert_eq!(unframe::<()>(&[0, 0, 0, 0, 1]), Err(FrameError::Length));
        assert_eq!(unframe::<()>(&[0, 0, 0, 0, 0, 0]), Err(FrameError::Length));
        assert_eq!(unframe::<SegmentsRequest>(&[0, 0, 0, 0, 1, 0xff]), Err(FrameError::Undecodable));
        let mut long = vec![0; PREFIX_LEN + MESSAGE_BYTES_MAX];
        long[1..5].copy_from_slice(&(MESSAGE_BYTES_MAX as u32).to_be_bytes());
        assert_eq!(unframe::<()>(&long), Err(FrameError::Undecodable), "as long as allowed, but no message");
        long.push(0);
        assert_eq!(unframe::<()>(&long), Err(FrameError::TooLong));
    }

    #[test]
    fn statuses_survive_their_headers() {
        let status = Status::new(Status::NOT_FOUND, "no path: 100 % down\nnäh");
        let header = status.message_header();
        assert_eq!(header, "no path: 100 %25 down%0An%C3%A4h");
        assert_eq!(Status::from_headers(b"5", Some(header.as_bytes())), status);
        assert_eq!(Status::from_headers(b"0", None), Status::new(Status::OK, ""));
        assert_eq!(Status::from_headers(b"x", Some(b"%zz%4")), Status::new(Status::INTERNAL, "%zz%4"));
    }
}
