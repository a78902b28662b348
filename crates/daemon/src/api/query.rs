//! What stands behind the `?` of a request, and in forms. Pure.

use super::problem::Problem;

/// Fields of one request.
const FIELDS_MAX: usize = 100;

/// Names and values, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=b&c=d`; `None` where that is malformed, or more than anybody means.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = Vec::new();
        for field in text.split('&').filter(|field| !field.is_empty()) {
            let (name, value) = field.split_once('=').unwrap_or((field, ""));
            fields.push((decode(name)?, decode(value)?));
            if fields.len() > FIELDS_MAX {
                return None;
            }
        }
        Some(Self(fields))
    }

    /// The value of a field, the first where there are several.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// All fields.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// A whole number.
    pub(crate) fn number(&self, name: &'static str) -> Result<Option<u64>, Problem> {
        let parse = |text: &str| text.parse().map_err(|_| Problem::field(name, "a whole number"));
        self.get(name).map(parse).transpose()
    }
}

/// Percent-encoding undone, `+` being a blank; `None` where what comes out is no text.
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text.bytes();
    while let Some(byte) = left.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(left.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_decoded_and_nonsense_is_refused() {
        let query = Query::parse("a=1&b=%C3%A4+%26&a=2&c&=d&&").unwrap();
        assert_eq!((query.get("a"), query.get("b"), query.get("c")), (Some("1"), Some("\u{e4} &"), Some("")));
        assert_eq!(query.get("d"), None);
        for bad in ["a=%", "a=%4", "a=%zz", "%ff=1", &"a=1&".repeat(101)] {
            assert_eq!(Query::parse(bad), None, "{bad}");
        }
    }
}
