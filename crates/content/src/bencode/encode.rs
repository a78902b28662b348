//! The encoder: builders whose output is canonical whatever the order of the calls.

use std::collections::BTreeMap;

/// A dictionary under construction; keys come out sorted (BEP 3).
#[derive(Clone, Debug, Default)]
pub struct DictBuilder {
    /// Values already encoded.
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A list under construction.
#[derive(Clone, Debug, Default)]
pub struct ListBuilder {
    /// Items already encoded, one after the other.
    items: Vec<u8>,
}

impl DictBuilder {
    /// No entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key` to an integer.
    pub fn int(&mut self, key: impl AsRef<[u8]>, value: impl Into<i64>) -> &mut Self {
        self.set(key, encode_int(value.into()))
    }

    /// Sets `key` to a string.
    pub fn bytes(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.set(key, encode_bytes(value.as_ref()))
    }

    /// Sets `key` to a list.
    pub fn list(&mut self, key: impl AsRef<[u8]>, value: &ListBuilder) -> &mut Self {
        self.set(key, value.encode())
    }

    /// Sets `key` to a dictionary.
    pub fn dict(&mut self, key: impl AsRef<[u8]>, value: &DictBuilder) -> &mut Self {
        self.set(key, value.encode())
    }

    /// Sets `key` to `value`, which is bencode already, and goes out byte for byte.
    pub fn raw(&mut self, key: impl AsRef<[u8]>, value: &[u8]) -> &mut Self {
        self.set(key, value.to_vec())
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The dictionary's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![b'd'];
        for (key, value) in &self.entries {
            out.extend(encode_bytes(key));
            out.extend_from_slice(value);
        }
        out.push(b'e');
        out
    }

    fn set(&mut self, key: impl AsRef<[u8]>, value: Vec<u8>) -> &mut Self {
        self.entries.insert(key.as_ref().to_vec(), value);
        self
    }
}

impl ListBuilder {
    /// No items.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an integer.
    pub fn int(&mut self, value: impl Into<i64>) -> &mut Self {
        self.raw(&encode_int(value.into()))
    }

    /// Appends a string.
    pub fn bytes(&mut self, value: impl AsRef<[u8]>) -> &mut Self {
        self.raw(&encode_bytes(value.as_ref()))
    }

    /// Appends a list.
    pub fn list(&mut self, value: &ListBuilder) -> &mut Self {
        self.raw(&value.encode())
    }

    /// Appends a dictionary.
    pub fn dict(&mut self, value: &DictBuilder) -> &mut Self {
        self.raw(&value.encode())
    }

    /// Appends `value`, which is bencode already, byte for byte.
    pub fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.items.extend_from_slice(value);
        self
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The list's bytes.
    pub fn encode(&self) -> Vec<u8> {
        [b"l", self.items.as_slice(), b"e"].concat()
    }
}

fn encode_int(value: i64) -> Vec<u8> {
    format!("i{value}e").into_bytes()
}

fn encode_bytes(value: &[u8]) -> Vec<u8> {
    let mut out = format!("{}:", value.len()).into_bytes();
    out.extend_from_slice(value);
    out
}
