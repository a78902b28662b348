//! Bencode, the writing half: dictionaries come out sorted (BEP 3).

use std::collections::BTreeMap;

/// A value to be written.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Integer(u64),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Dict(Dict),
    /// Written already.
    Raw(Vec<u8>),
}

/// Keys are raw bytes and sorted as such.
pub(super) type Dict = BTreeMap<Vec<u8>, Value>;

impl Value {
    pub(super) fn text(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Integer(number) => out.extend_from_slice(format!("i{number}e").as_bytes()),
            Self::Bytes(bytes) => write_bytes(bytes, out),
            Self::List(items) => {
                out.push(b'l');
                items.iter().for_each(|item| item.write(out));
                out.push(b'e');
            }
            Self::Dict(dict) => {
                out.push(b'd');
                for (key, value) in dict {
                    write_bytes(key, out);
                    value.write(out);
                }
                out.push(b'e');
            }
            Self::Raw(bytes) => out.extend_from_slice(bytes),
        }
    }
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(bytes.len().to_string().as_bytes());
    out.push(b':');
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_come_out_sorted() {
        let dict =
            [(&b"b"[..], Value::Integer(0)), (b"a", Value::List(vec![Value::text("x"), Value::Raw(b"le".to_vec())]))];
        let dict = Value::Dict(dict.into_iter().map(|(key, value)| (key.to_vec(), value)).collect());
        assert_eq!(dict.encode(), b"d1:al1:xlee1:bi0ee");
    }
}
