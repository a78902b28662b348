//! What stands in front of a folder's files: the list of them, which is in no file of the folder. It is fetched before anything else,
//! lies in memory, and is served from there.

use std::ops::Range;

use anabranch_ppspp::binmap::Binmap;
use anabranch_ppspp::link::Link;

/// The chunks of a folder's manifest.
#[derive(Debug)]
pub(super) struct Head {
    /// All of its chunks; zeros where one is missing.
    bytes: Vec<u8>,
    chunk_len: usize,
    /// Bytes of the manifest, without what fills its last chunk.
    len: usize,
    have: Binmap,
}

impl Head {
    /// That of a link, before anything of it is known; `None` where the link is of a file.
    pub(super) fn of(link: &Link) -> Option<Self> {
        let (len, chunk_len) = (link.manifest_len? as usize, link.params.chunk_len()? as usize);
        Some(Self { bytes: vec![0; len.next_multiple_of(chunk_len)], chunk_len, len, have: Binmap::new() })
    }

    /// The same with all its bytes, with what fills the last chunk or without.
    pub(super) fn whole(link: &Link, bytes: &[u8]) -> Option<Self> {
        let mut head = Self::of(link).filter(|head| (head.len..=head.bytes.len()).contains(&bytes.len()))?;
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head.have = Binmap::full(head.chunk_count());
        Some(head)
    }

    fn chunk_count(&self) -> u64 {
        (self.bytes.len() / self.chunk_len) as u64
    }

    /// Chunks that are not there yet.
    pub(super) fn missing(&self) -> u64 {
        self.chunk_count() - self.have.count()
    }

    /// What is there of it.
    pub(super) fn have(&self) -> &Binmap {
        &self.have
    }

    /// All chunks, one behind the other.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The manifest, once all of it is there.
    pub(super) fn manifest(&self) -> Option<&[u8]> {
        (self.missing() == 0).then_some(&self.bytes[..self.len])
    }

    /// Chunks that are there, one behind the other.
    pub(super) fn get(&self, chunks: Range<u64>) -> Option<&[u8]> {
        let is_there = self.have.next_clear(chunks.start) >= chunks.end && chunks.end <= self.chunk_count();
        is_there.then(|| &self.bytes[chunks.start as usize * self.chunk_len..chunks.end as usize * self.chunk_len])
    }

    /// A chunk that holds. `false` where it has not the length that all of them have.
    pub(super) fn put(&mut self, chunk: u64, payload: &[u8]) -> bool {
        let at = chunk as usize * self.chunk_len;
        let Some(place) = self.bytes.get_mut(at..at + self.chunk_len).filter(|place| place.len() == payload.len())
        else {
            return false;
        };
        place.copy_from_slice(payload);
        self.have.insert_range(chunk..chunk + 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_put_together_from_its_chunks() {
        let link: Link = format!("ppspp:{}?cs=10&cl=99&ml=25", "ab".repeat(32)).parse().unwrap();
        let mut head = Head::of(&link).unwrap();
        assert_eq!((head.missing(), head.manifest(), head.get(0..1)), (3, None, None));
        assert!(!head.put(0, &[1; 9]) && !head.put(3, &[1; 10]) && !head.put(1 << 40, &[1; 10]));
        for chunk in [2, 0, 2, 1] {
            assert!(head.put(chunk, &[chunk as u8; 10]));
        }
        let whole = [[0; 10], [1; 10], [2; 10]].concat();
        assert_eq!((head.missing(), head.manifest(), head.get(1..3)), (0, Some(&whole[..25]), Some(&whole[10..])));
        assert_eq!(head.get(2..4), None);
        let again = Head::whole(&link, &whole).unwrap();
        assert_eq!((again.manifest(), again.bytes()), (head.manifest(), head.bytes()));
        assert_eq!(Head::whole(&link, &whole[..25]).unwrap().bytes()[25..], [0; 5]);
        assert!(Head::whole(&link, &whole[..24]).is_none() && Head::whole(&link, &[0; 31]).is_none());
        let file: Link = format!("ppspp:{}?cs=10&cl=99", "ab".repeat(32)).parse().unwrap();
        assert!(Head::of(&file).is_none());
    }
}
