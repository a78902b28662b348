//! Errors as RFC 9457 has them.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::engine::Refusal;
use crate::folders::FolderError;
use crate::store::StoreError;

/// Something that went wrong with a request.
#[derive(Debug)]
pub(crate) struct Problem {
    /// Its status.
    pub(crate) status: StatusCode,
    /// What kind of problem it is: the end of its `type`.
    pub(crate) kind: &'static str,
    /// For people: what is wrong, and what helps.
    pub(crate) detail: String,
    /// The field that is wrong.
    pub(crate) field: Option<&'static str>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind, detail: detail.into(), field: None }
    }

    /// A request that makes no sense.
    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    /// A field that makes no sense.
    pub(crate) fn field(field: &'static str, must: &str) -> Self {
        Self {
            field: Some(field),
            ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("`{field}` must be {must}"))
        }
    }

    /// An option of `what` that there is none of.
    pub(super) fn no_option(name: &str, what: &str) -> Self {
        let name: String = name.chars().take(40).collect();
        Self::bad(format!("`{name}` is no option of {what}"))
    }

    /// There is nothing of that name.
    pub(crate) fn missing() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "there is nothing here: /api/v1/openapi.json says what there is")
    }

    /// Nobody may do that without a token.
    pub(crate) fn unauthorized() -> Self {
        let detail = "show the token of the daemon's state folder: Authorization: Bearer TOKEN";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    /// The body of the answer.
    pub(crate) fn body(&self) -> String {
        let mut body = json!({
            "type": format!("urn:anabranch:problem:{}", self.kind),
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if let Some(field) = self.field {
            body["field"] = Value::from(field);
        }
        body.to_string()
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let detail = refusal.to_string();
        let (status, kind) = match &refusal {
            Refusal::Unknown(_) => (StatusCode::NOT_FOUND, "not-found"),
            Refusal::Duplicate(..) => (StatusCode::CONFLICT, "duplicate"),
            Refusal::Busy(..) => (StatusCode::CONFLICT, "busy"),
            Refusal::Conflict(_) | Refusal::Session(_) => (StatusCode::CONFLICT, "conflict"),
            Refusal::Stalled => (StatusCode::REQUEST_TIMEOUT, "slow"),
            Refusal::Invalid { field, must } => return Self::field(field, must),
            Refusal::Fetch(_) => (StatusCode::BAD_GATEWAY, "not-fetched"),
            Refusal::Source(_) | Refusal::Torrent(_) => (StatusCode::UNPROCESSABLE_ENTITY, "bad-source"),
            Refusal::Full => (StatusCode::INSUFFICIENT_STORAGE, "full"),
            Refusal::Folder(FolderError::Outside(_)) => (StatusCode::FORBIDDEN, "folder-not-allowed"),
            Refusal::Folder(_) => (StatusCode::UNPROCESSABLE_ENTITY, "bad-folder"),
            Refusal::Store(StoreError::Gone) => (StatusCode::SERVICE_UNAVAILABLE, "ending"),
            Refusal::Store(_) => (StatusCode::INSUFFICIENT_STORAGE, "not-kept"),
        };
        Self::new(status, kind, detail)
    }
}
