//! Live streams whose source is here, as requests describe and feed them.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::reply;
use super::value::{flag, keys, number, text};
use super::{Api, Call, Problem, Reply};
use crate::door::Access;
use crate::engine::NewBroadcast;

/// A live stream to be added: `{}`, or how it is to be sent, and what from.
pub(super) fn new_broadcast(value: &Value) -> Result<NewBroadcast, Problem> {
    let object = value.as_object().ok_or_else(|| Problem::field("live", "an object"))?;
    let mut new = NewBroadcast::default();
    for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        match name.as_str() {
            "name" => new.name = Some(text("name", value)?),
            "input" => new.input = Some(text("input", value)?.into()),
            "key" => new.key = Some(text("key", value)?),
            "rate" => new.rate = Some(number("rate", value)?),
            "copies" => new.copies = Some(number("copies", value)?),
            "secure" => new.secure = flag("secure", value)?,
            "allow" => new.keys = Some(keys("allow", value)?),
            other => return Err(Problem::no_option(other, "a live stream")),
        }
    }
    Ok(new)
}

impl Api {
    /// What a live stream is made of comes, for as long as it goes on.
    pub(super) async fn live(&self, call: Call, name: &str) -> Result<Reply, Problem> {
        if !matches!(call.method, Method::PUT | Method::POST) {
            return Err(call.wrong_method("PUT and POST"));
        }
        call.need(Access::Full)?;
        let id = self.engine.find(name)?;
        let bytes = self.engine.send_live(id, call.body).await?;
        Ok(reply::json(StatusCode::OK, &json!({ "bytes": bytes })))
    }
}
