//! Values of fields, of the kinds that several requests have.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Problem;

pub(super) fn text(field: &'static str, value: &Value) -> Result<String, Problem> {
    value.as_str().map(str::to_owned).ok_or_else(|| Problem::field(field, "a text"))
}

pub(super) fn number(field: &'static str, value: &Value) -> Result<u64, Problem> {
    value.as_u64().ok_or_else(|| Problem::field(field, "a whole number"))
}

pub(super) fn flag(field: &'static str, value: &Value) -> Result<bool, Problem> {
    value.as_bool().ok_or_else(|| Problem::field(field, "true or false"))
}

/// Keys of others.
pub(super) fn keys(field: &'static str, value: &Value) -> Result<BTreeSet<String>, Problem> {
    let keys = value.as_array().and_then(|keys| keys.iter().map(|key| key.as_str().map(str::to_owned)).collect());
    keys.ok_or_else(|| Problem::field(field, "a list of keys"))
}
