//! Live streams whose source is here, as requests describe and feed them.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::reply;
use super::{Api, Call, Problem, Reply};
use crate::door::Access;
use crate::engine::NewBroadcast;

/// A live stream to be added: `{}`, or how it is to be sent, and what from.
pub(super) fn new_broadcast(value: &Value) -> Result<NewBroadcast, Problem> {
    let object = value.as_object().ok_or_else(|| Problem::field("live", "an object"))?;
    let mut new = NewBroadcast::default();
    let text = |field: &'static str, value: &Value| {
        value.as_str().map(str::to_owned).ok_or_else(|| Problem::field(field, "a text"))
    };
    let number =
        |field: &'static str, value: &Value| value.as_u64().ok_or_else(|| Problem::field(field, "a whole number"));
    for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        match name.as_str() {
            "name" => new.name = Some(text("name", value)?),
            "input" => new.input = Some(text("input", value)?.into()),
            "key" => new.key = Some(text("key", value)?),
            "rate" => new.rate = Some(number("rate", value)?),
            "copies" => new.copies = Some(number("copies", value)?),
            "secure" => new.secure = value.as_bool().ok_or_else(|| Problem::field("secure", "true or false"))?,
            "allow" => {
                let keys =
                    value.as_array().and_then(|keys| keys.iter().map(|key| key.as_str().map(str::to_owned)).collect());
                new.keys = Some(keys.ok_or_else(|| Problem::field("allow", "a list of keys"))?);
            }
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(Problem::bad(format!("`{other}` is no option of a live stream")));
            }
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
