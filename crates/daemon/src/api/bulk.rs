//! Bulk transfers as requests describe them.

use hyper::StatusCode;
use serde_json::Value;

use super::reply;
use super::value::{flag, keys, number, text};
use super::{Api, Call, Problem, Reply};
use crate::door::Access;
use crate::engine::NewBulk;

/// A bulk transfer to be added: `{"send": PATH}` or `{}`, to receive, and with whom.
pub(super) fn new_bulk(value: &Value) -> Result<NewBulk, Problem> {
    let object = value.as_object().ok_or_else(|| Problem::field("bulk", "an object"))?;
    let mut new = NewBulk::default();
    for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        match name.as_str() {
            "send" => new.send = Some(text("send", value)?.into()),
            "ticket" => new.ticket = Some(text("ticket", value)?.trim().to_owned()),
            "allow" => new.keys = Some(keys("allow", value)?),
            "times" => new.times = Some(number("times", value)?),
            "expires_seconds" => new.expires_seconds = Some(number("expires_seconds", value)?),
            "port" => new.port = Some(number("port", value)?),
            "overwrite" => new.overwrite = flag("overwrite", value)?,
            other => return Err(Problem::no_option(other, "a bulk transfer")),
        }
    }
    Ok(new)
}

impl Api {
    /// How others come to a content. For those who may do everything: who has a ticket may send, or receive.
    pub(super) fn reach(&self, call: &Call, name: &str) -> Result<Reply, Problem> {
        if !call.is_look() {
            return Err(call.wrong_method("GET and HEAD"));
        }
        call.need(Access::Full)?;
        let id = self.engine.find(name)?;
        Ok(reply::json(StatusCode::OK, &self.engine.reach(id)?))
    }
}
