//! Whether an answer is as `openapi.json` says: as much of JSON Schema as that document uses.

use serde_json::Value;

/// The document.
pub(crate) fn document() -> Value {
    serde_json::from_str(include_str!("../../src/api/openapi.json")).unwrap()
}

/// The schema of an answer.
pub(crate) fn answer<'a>(document: &'a Value, method: &str, path: &str, status: u16) -> &'a Value {
    let operation = &document["paths"][path][method.to_lowercase()];
    assert!(!operation.is_null(), "{method} {path} is not described");
    let status = status.to_string();
    let described = &operation["responses"][&status];
    let kind = if described.is_null() { "application/problem+json" } else { "application/json" };
    let described = if described.is_null() { &operation["responses"]["default"] } else { described };
    &described["content"][kind]["schema"]
}

/// Fails where `value` is not as `schema` says.
pub(crate) fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let target = document.pointer(name.strip_prefix('#').unwrap()).unwrap();
        return check(document, target, value, at);
    }
    if let Some(options) = schema["oneOf"].as_array() {
        let fits = |option: &&Value| std::panic::catch_unwind(|| check(document, option, value, at)).is_ok();
        assert_eq!(options.iter().filter(fits).count(), 1, "{at}: {value}");
        return;
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => panic!("{at}: a schema without a type"),
    };
    let is = |name: &&str| match *name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{at}: {other}"),
    };
    assert!(types.iter().any(is), "{at}: {value} is none of {types:?}");
    if value.is_null() {
        return;
    }
    if let Some(named) = schema["enum"].as_array() {
        assert!(named.contains(value), "{at}: {value} is none of {named:?}");
    }
    for (limit, is_kept) in [
        ("minimum", value.as_f64() >= schema["minimum"].as_f64()),
        ("maximum", value.as_f64() <= schema["maximum"].as_f64()),
    ] {
        assert!(schema[limit].is_null() || is_kept, "{at}: {value} and {limit}");
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(document, &schema["items"], item, &format!("{at}[{index}]"));
    }
    let Some(object) = value.as_object() else { return };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        assert!(object.contains_key(name), "{at} lacks `{name}`: {value}");
    }
    for (name, value) in object {
        let property = &schema["properties"][name];
        let property = if property.is_null() { &schema["additionalProperties"] } else { property };
        assert!(property.is_object() || schema["properties"].is_null(), "{at} has `{name}`, which is not described");
        if property.is_object() {
            check(document, property, value, &format!("{at}.{name}"));
        }
    }
}
