//! A limit that a content may have of its own, instead of that of the settings.

use serde_json::{Value, json};

use super::settings::{Refused, whole};

/// A limit of a content.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Own<T> {
    /// That of the settings.
    #[default]
    Usual,
    /// None, whatever the settings say.
    None,
    /// This one.
    At(T),
}

/// What stands for no limit.
const NONE: &str = "none";

impl<T: Copy + Into<Value>> Own<T> {
    /// The limit that holds, where `usual` is that of the settings.
    pub(crate) fn or(self, usual: Option<T>) -> Option<T> {
        match self {
            Self::Usual => usual,
            Self::None => None,
            Self::At(limit) => Some(limit),
        }
    }

    pub(crate) fn to_json(self) -> Value {
        match self {
            Self::Usual => Value::Null,
            Self::None => NONE.into(),
            Self::At(limit) => json!(limit.into()),
        }
    }
}

/// A number of seconds, `"none"`, or null for the settings'.
pub(crate) fn own_whole(field: &'static str, value: &Value) -> Result<Own<u64>, Refused> {
    let must = "a whole number above 0, \"none\" for no limit, or null for that of the settings";
    match value {
        Value::Null => Ok(Own::Usual),
        Value::String(text) if text == NONE => Ok(Own::None),
        value => match whole(field, value) {
            Ok(Some(number)) => Ok(Own::At(number)),
            _ => Err(Refused { field, must }),
        },
    }
}

/// A ratio, `"none"`, or null for the settings'. One of 0 is reached as soon as everything is there.
pub(crate) fn own_ratio(field: &'static str, value: &Value) -> Result<Own<f64>, Refused> {
    let must = "a number that is not below 0, \"none\" for no limit, or null for that of the settings";
    match value {
        Value::Null => Ok(Own::Usual),
        Value::String(text) if text == NONE => Ok(Own::None),
        value => match value.as_f64().filter(|ratio| *ratio >= 0.0 && ratio.is_finite()) {
            Some(ratio) => Ok(Own::At(ratio)),
            None => Err(Refused { field, must }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_of_the_settings_none_or_ones_own() {
        for (own, limit) in [(Own::Usual, Some(5_u64)), (Own::None, None), (Own::At(7), Some(7))] {
            assert_eq!(own.or(Some(5)), limit);
            assert_eq!(own_whole("x", &own.to_json()), Ok(own));
        }
        assert_eq!(own_ratio("x", &json!(0)), Ok(Own::At(0.0)));
        for bad in [json!(-1), json!("never"), json!(true), json!([])] {
            assert!(own_whole("x", &bad).is_err() && own_ratio("x", &bad).is_err(), "{bad}");
        }
        assert!(own_whole("x", &json!(0)).is_err());
    }
}
