//! Messages of rtnetlink(7): questions to the kernel, and its answers. Pure.

use std::net::IpAddr;

/// Bytes of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// Bytes of `struct rtattr`.
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// Messages and attributes start at multiples of so many bytes.
const ALIGN: usize = 4;
/// A flag in an attribute's kind (`NLA_F_NESTED`), and another one beside it.
const KIND_MASK: u16 = 0x3fff;

/// A question.
#[derive(Debug)]
pub(crate) struct Question(Vec<u8>);

impl Question {
    /// Of this kind, with the flags `flags` beside `NLM_F_REQUEST`; `body` is the kind's own structure.
    pub(crate) fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
        bytes.extend_from_slice(body);
        Self(bytes)
    }

    /// With one attribute more, of less than 64 KiB.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
        self.0.extend_from_slice(&((ATTRIBUTE_HEADER_LEN + value.len()) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn with_ip(self, kind: u16, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => self.with(kind, &ip.octets()),
            IpAddr::V6(ip) => self.with(kind, &ip.octets()),
        }
    }

    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// One message of the kernel's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) body: &'a [u8],
}

/// The messages in what was received at once; what is not whole is left out.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let message = bytes.get(..len).filter(|message| message.len() >= HEADER_LEN)?;
        bytes = bytes.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(Message { kind: u16_at(message, 4)?, body: &message[HEADER_LEN..] })
    })
}

impl<'a> Message<'a> {
    /// The attributes behind the kind's own structure of `len` bytes.
    pub(crate) fn attributes(&self, len: usize) -> impl Iterator<Item = (u16, &'a [u8])> {
        attributes(self.body.get(len..).unwrap_or_default())
    }

    /// The attribute of this kind.
    pub(crate) fn attribute(&self, len: usize, kind: u16) -> Option<&'a [u8]> {
        self.attributes(len).find_map(|(own, value)| (own == kind).then_some(value))
    }

    /// The kernel's error, a positive number, or zero where it agrees; `None` if this is no answer of that kind.
    pub(crate) fn error(&self) -> Option<i32> {
        let is_error = self.kind == libc::NLMSG_ERROR as u16;
        let number = self.body.first_chunk().map_or(0, |number| i32::from_ne_bytes(*number));
        is_error.then(|| number.saturating_neg())
    }
}

/// Kinds and values of attributes, nested ones too.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & KIND_MASK;
        let value = bytes.get(ATTRIBUTE_HEADER_LEN..len)?;
        bytes = bytes.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|number| u16::from_ne_bytes(*number))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|number| u32::from_ne_bytes(*number))
}

/// An address of either family.
pub(crate) fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn questions_are_read_as_they_were_written() {
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        let bytes = Question::new(26, 0x300, &[1; 12]).with(4, b"link0\0").with_ip(1, address).into_bytes();
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!((all.len(), all[0].kind, &all[0].body[..12]), (1, 26, &[1; 12][..]));
        assert_eq!(all[0].attribute(12, 4), Some(&b"link0\0"[..]));
        assert_eq!(all[0].attribute(12, 1).and_then(ip), Some(address));
        assert_eq!((all[0].attribute(12, 2), all[0].error()), (None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200), skip in 0usize..20) {
            for message in messages(&bytes) {
                let _ = (message.error(), message.attributes(skip).count(), message.attribute(skip, 1));
            }
            prop_assert!(attributes(&bytes).count() <= bytes.len() / ATTRIBUTE_HEADER_LEN);
        }
    }
}
