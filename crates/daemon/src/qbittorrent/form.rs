//! What a request says: in its address, or in a form.

use std::collections::BTreeMap;

use hyper::Method;
use hyper::header::CONTENT_TYPE;

use super::Fault;
use super::{boundary, parts};
use crate::api::{Call, Query, TORRENT_BYTES_MAX};

/// Bytes of a form without files: as many hashes as there may be contents.
const FORM_BYTES_MAX: usize = 5 << 20;

/// What a request says.
#[derive(Debug, Default)]
pub(super) struct Form {
    fields: BTreeMap<String, String>,
    /// Files, with what they are called where they come from.
    pub(super) files: Vec<(String, Vec<u8>)>,
}

impl Form {
    /// Reads it. As qBittorrent has it, a GET says what it wants in its address, and a POST in its body.
    pub(super) async fn read(call: &mut Call) -> Result<Self, Fault> {
        if call.method != Method::POST {
            return Ok(Self::of(&call.query));
        }
        let kind = call.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
        match call.content_type().as_str() {
            "multipart/form-data" => {
                let boundary = boundary(&kind).ok_or_else(|| Fault::bad("the form has no boundary"))?;
                let body = call.bytes(TORRENT_BYTES_MAX).await?;
                Self::of_parts(&body, boundary).ok_or_else(|| Fault::bad("the form is malformed"))
            }
            _ => {
                let body = call.bytes(FORM_BYTES_MAX).await?;
                let text = String::from_utf8(body).map_err(|_| Fault::bad("the form is malformed"))?;
                Ok(Self::of(&Query::parse(&text).ok_or_else(|| Fault::bad("the form is malformed"))?))
            }
        }
    }

    fn of(query: &Query) -> Self {
        let fields = query.fields().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { fields, files: Vec::new() }
    }

    /// Reads a form with files.
    pub(super) fn of_parts(body: &[u8], boundary: &str) -> Option<Self> {
        let mut form = Self::default();
        for part in parts(body, boundary)? {
            let bytes = body[part.bytes].to_vec();
            match part.file {
                Some(file) => form.files.push((file, bytes)),
                None => {
                    form.fields.insert(part.name, String::from_utf8(bytes).ok()?);
                }
            }
        }
        Some(form)
    }

    /// A field, where it is there.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// A field, empty where it is not there.
    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// A field that has to be there.
    pub(super) fn need(&self, name: &str) -> Result<&str, Fault> {
        self.get(name).ok_or_else(|| Fault::bad(format!("`{name}` is missing")))
    }

    /// Yes or no, where it says either.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        let text = self.get(name)?;
        let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
        if is(&["true", "1", "yes", "on"]) { Some(true) } else { is(&["false", "0", "no", "off"]).then_some(false) }
    }

    /// A number, where it is one.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.get(name)?.trim().parse().ok()
    }

    /// A number that has to be there.
    pub(super) fn need_number<T: std::str::FromStr>(&self, name: &str) -> Result<T, Fault> {
        self.need(name)?.trim().parse().map_err(|_| Fault::bad(format!("`{name}` must be a number")))
    }

    /// Parts of a field between separators, without empty ones.
    pub(super) fn list(&self, name: &str, separator: char) -> Vec<String> {
        self.text(name).split(separator).map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }
}
