//! Bodies of requests, bounded in length and time.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use super::{Call, Problem};

/// Longest body in JSON.
pub(crate) const JSON_BYTES_MAX: usize = 256 << 10;
/// Longest torrent file that comes by the API: ten times the largest that are in use.
pub(crate) const TORRENT_BYTES_MAX: usize = 32 << 20;
/// Time for a body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

impl Call {
    /// The type of the body, without what goes with it, in small letters.
    pub(crate) fn content_type(&self) -> String {
        let kind = self.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// The bytes of the body.
    pub(crate) async fn bytes(&mut self, bytes_max: usize) -> Result<Vec<u8>, Problem> {
        let too_long = || {
            let detail = format!("the body has more than {bytes_max} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-long", detail)
        };
        let claimed = hyper::body::Body::size_hint(&self.body).lower();
        if claimed > bytes_max as u64 {
            return Err(too_long());
        }
        let limited = Limited::new(&mut self.body, bytes_max);
        match tokio::time::timeout(BODY_TIMEOUT, limited.collect()).await {
            Ok(Ok(collected)) => Ok(collected.to_bytes().into()),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_long()),
            Ok(Err(_)) => Err(Problem::bad("the body ends early")),
            Err(_) => Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "slow", "the body takes too long to arrive")),
        }
    }

    /// The body as an object; an empty one where there is none and that is all right.
    pub(crate) async fn object(&mut self, may_be_empty: bool) -> Result<Map<String, Value>, Problem> {
        let kind = self.content_type();
        let bytes = self.bytes(JSON_BYTES_MAX).await?;
        if bytes.is_empty() && may_be_empty {
            return Ok(Map::new());
        }
        if kind != "application/json" {
            let detail = "send JSON, and say so: Content-Type: application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media-type", detail));
        }
        object(&bytes)
    }
}

/// Reads an object.
pub(crate) fn object(bytes: &[u8]) -> Result<Map<String, Value>, Problem> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Problem::bad("the body must be a JSON object")),
        Err(error) => Err(Problem::bad(format!("the body is no JSON: {error}"))),
    }
}
