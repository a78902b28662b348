//! HANDSHAKE and its options (RFC 7574 §7), and the datagram that opens a channel.

use super::{Addressing, ChannelId, Dialect, Reader, SWARM_ID_LEN_MAX, WireError};
use crate::hash::HashFunction;
use crate::sign::SignatureAlgorithm;

/// How content is protected (RFC 7574 §7.5, table 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Integrity {
    /// Not at all: for closed networks.
    None,
    /// A Merkle tree whose root names the swarm: content that is complete.
    MerkleTree,
    /// The source signs every chunk.
    SignAll,
    /// The source signs subtrees of a growing Merkle tree: the default for live streams.
    UnifiedMerkleTree,
}

impl Integrity {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::None, Self::MerkleTree, Self::SignAll, Self::UnifiedMerkleTree];

    /// From its number in the handshake; `None` where it has none.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its number in the handshake.
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// Whether a source signs: live streams, and nothing else.
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::SignAll | Self::UnifiedMerkleTree)
    }

    /// Whether chunks are proven by their digests.
    pub const fn is_hashed(self) -> bool {
        matches!(self, Self::MerkleTree | Self::UnifiedMerkleTree)
    }
}

/// How much of a live stream a peer keeps behind its newest chunk (RFC 7574 §7.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardWindow {
    /// So many chunks; bytes where ranges of bytes are the addressing method.
    Last(u64),
    /// It keeps everything.
    All,
}

/// Types of messages that have a meaning: HANDSHAKE to PEX_REScert (RFC 7574 §8.2, table 7).
pub const MESSAGE_TYPES: u8 = 14;

/// Which types of messages a peer reads (RFC 7574 §7.10).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SupportedMessages([u8; 32]);

impl SupportedMessages {
    /// Those of RFC 7574.
    pub fn all() -> Self {
        (0..MESSAGE_TYPES).collect()
    }

    /// Whether messages of this type are read.
    pub fn contains(&self, kind: u8) -> bool {
        // "Numbering left to right": the first type is the highest bit.
        self.0[usize::from(kind / 8)] & 0x80 >> (kind % 8) != 0
    }

    fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut bitmap = [0; 32];
        bitmap.get_mut(..bytes.len()).ok_or(WireError::TooLong(bytes.len()))?.copy_from_slice(bytes);
        Ok(Self(bitmap))
    }

    fn put(&self, out: &mut Vec<u8>) {
        let len = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        out.push(len as u8);
        out.extend_from_slice(&self.0[..len]);
    }
}

impl FromIterator<u8> for SupportedMessages {
    fn from_iter<T: IntoIterator<Item = u8>>(kinds: T) -> Self {
        let mut bitmap = [0; 32];
        kinds.into_iter().for_each(|kind| bitmap[usize::from(kind / 8)] |= 0x80 >> (kind % 8));
        Self(bitmap)
    }
}

impl std::fmt::Debug for SupportedMessages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries((0..=u8::MAX).filter(|kind| self.contains(*kind))).finish()
    }
}

/// A HANDSHAKE message: the sender's channel and what it says of the swarm. Everything may be missing: what has to be there
/// depends on who opens the channel, which [`super::SwarmParams::check`] knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    /// Where the sender wants its answers; 0 closes the channel (RFC 7574 §8.4).
    pub channel: ChannelId,
    /// The highest version that it speaks.
    pub version: Option<u8>,
    /// The lowest version that it speaks.
    pub version_min: Option<u8>,
    /// The swarm: a root hash, or a source's public key.
    pub swarm_id: Option<Box<[u8]>>,
    /// How content is protected.
    pub integrity: Option<Integrity>,
    /// The hash function of the tree.
    pub hash: Option<HashFunction>,
    /// How a live source signs.
    pub signature: Option<SignatureAlgorithm>,
    /// How chunks are named.
    pub addressing: Option<Addressing>,
    /// How much of a live stream the sender keeps. Written only after an addressing method.
    pub window: Option<DiscardWindow>,
    /// Which messages it reads; all where it does not say.
    pub supported: Option<SupportedMessages>,
    /// Length of a chunk in bytes; `u32::MAX` where chunks differ (RFC 7574 §7.11).
    pub chunk_len: Option<u32>,
    /// PyPPSPP's own option 10, the program's number.
    pub uuid: Option<[u8; 16]>,
}

/// Codes of the options (RFC 7574 §7, table 2); 10 is PyPPSPP's.
mod code {
    pub(super) const VERSION: u8 = 0;
    pub(super) const VERSION_MIN: u8 = 1;
    pub(super) const SWARM_ID: u8 = 2;
    pub(super) const INTEGRITY: u8 = 3;
    pub(super) const HASH: u8 = 4;
    pub(super) const SIGNATURE: u8 = 5;
    pub(super) const ADDRESSING: u8 = 6;
    pub(super) const WINDOW: u8 = 7;
    pub(super) const SUPPORTED: u8 = 8;
    pub(super) const CHUNK_LEN: u8 = 9;
    pub(super) const UUID: u8 = 10;
    pub(super) const END: u8 = 255;
}

impl Handshake {
    /// Says that the channel is closed (RFC 7574 §8.4: no channel, and no options).
    pub fn closing() -> Self {
        Self::default()
    }

    /// Reads what follows the message's type.
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut handshake = Self { channel: reader.u32()?, ..Self::default() };
        let mut seen = 0u32;
        loop {
            let option = reader.u8()?;
            if option == code::END {
                return Ok(handshake);
            }
            let bit = 1u32.checked_shl(u32::from(option)).ok_or(WireError::UnknownOption(option))?;
            if seen & bit != 0 {
                return Err(WireError::RepeatedOption(option));
            }
            seen |= bit;
            handshake.option(option, reader)?;
        }
    }

    fn option(&mut self, option: u8, reader: &mut Reader<'_>) -> Result<(), WireError> {
        match option {
            code::VERSION => self.version = Some(reader.u8()?),
            code::VERSION_MIN => self.version_min = Some(reader.u8()?),
            code::SWARM_ID => {
                let len = usize::from(reader.u16()?);
                if len > SWARM_ID_LEN_MAX {
                    return Err(WireError::TooLong(len));
                }
                self.swarm_id = Some(reader.bytes(len)?.into());
            }
            // libswift sends a byte that it never set: one that means nothing is not there.
            code::INTEGRITY => self.integrity = Integrity::from_u8(reader.u8()?),
            code::HASH => self.hash = Some(known(option, reader, HashFunction::from_u8)?),
            code::SIGNATURE => self.signature = Some(known(option, reader, SignatureAlgorithm::from_u8)?),
            code::ADDRESSING => self.addressing = Some(known(option, reader, Addressing::from_u8)?),
            code::WINDOW => {
                let addressing = self.addressing.ok_or(WireError::WindowBeforeAddressing)?;
                self.window = Some(if addressing.is_32_bit() {
                    let window = reader.u32()?;
                    if window == u32::MAX { DiscardWindow::All } else { DiscardWindow::Last(window.into()) }
                } else {
                    let window = reader.u64()?;
                    if window == u64::MAX { DiscardWindow::All } else { DiscardWindow::Last(window) }
                });
            }
            code::SUPPORTED => {
                let len = usize::from(reader.u8()?);
                self.supported = Some(SupportedMessages::parse(reader.bytes(len)?)?);
            }
            code::CHUNK_LEN => self.chunk_len = Some(reader.u32()?),
            code::UUID => self.uuid = Some(reader.array()?),
            _ => return Err(WireError::UnknownOption(option)),
        }
        Ok(())
    }

    /// Appends the message, type and all, in the order of the options' codes: the version has to be the first (§7.2), the
    /// addressing method before the window.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(super::message::kind::HANDSHAKE);
        out.extend_from_slice(&self.channel.to_be_bytes());
        let mut short = |code: u8, value: Option<u8>| out.extend(value.into_iter().flat_map(|value| [code, value]));
        short(code::VERSION, self.version);
        short(code::VERSION_MIN, self.version_min);
        if let Some(id) = &self.swarm_id {
            out.push(code::SWARM_ID);
            out.extend_from_slice(&(id.len().min(SWARM_ID_LEN_MAX) as u16).to_be_bytes());
            out.extend_from_slice(&id[..id.len().min(SWARM_ID_LEN_MAX)]);
        }
        let mut short = |code: u8, value: Option<u8>| out.extend(value.into_iter().flat_map(|value| [code, value]));
        short(code::INTEGRITY, self.integrity.map(Integrity::to_u8));
        short(code::HASH, self.hash.map(HashFunction::to_u8));
        short(code::SIGNATURE, self.signature.map(SignatureAlgorithm::to_u8));
        short(code::ADDRESSING, self.addressing.map(Addressing::to_u8));
        if let (Some(window), Some(addressing)) = (self.window, self.addressing) {
            out.push(code::WINDOW);
            let all = if addressing.is_32_bit() { u64::from(u32::MAX) } else { u64::MAX };
            let window = match window {
                // A window wider than the field can say is everything.
                DiscardWindow::Last(window) => window.min(all),
                DiscardWindow::All => all,
            };
            out.extend_from_slice(&window.to_be_bytes()[if addressing.is_32_bit() { 4 } else { 0 }..]);
        }
        if let Some(supported) = &self.supported {
            out.push(code::SUPPORTED);
            supported.put(out);
        }
        if let Some(len) = self.chunk_len {
            out.push(code::CHUNK_LEN);
            out.extend_from_slice(&len.to_be_bytes());
        }
        if let Some(uuid) = &self.uuid {
            out.push(code::UUID);
            out.extend_from_slice(uuid);
        }
        out.push(code::END);
    }
}

fn known<T>(option: u8, reader: &mut Reader<'_>, from_u8: fn(u8) -> Option<T>) -> Result<T, WireError> {
    let value = reader.u8()?;
    from_u8(value).ok_or(WireError::UnknownValue(option, value))
}

/// The messages of a datagram that opens a channel, up to and with its handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening<'a> {
    /// What the opener speaks.
    pub dialect: Dialect,
    /// What it says. In the oldest dialect, the swarm alone.
    pub handshake: Handshake,
    /// The messages after it.
    pub rest: &'a [u8],
}

impl<'a> Opening<'a> {
    /// Reads the messages of a datagram for channel 0, or the first one for a channel whose peer has not yet answered.
    pub fn parse(messages: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader(messages);
        match reader.u8()? {
            super::message::kind::HANDSHAKE => {
                let handshake = Handshake::parse(&mut reader)?;
                // RFC 7574 §7.11: a peer MUST include the chunk size. Draft 10 does not have that option.
                let dialect = if handshake.chunk_len.is_some() { Dialect::Rfc7574 } else { Dialect::Draft10 };
                Ok(Self { dialect, handshake, rest: reader.0 })
            }
            super::message::kind::INTEGRITY => {
                // The oldest dialect: the root hash of everything, then a handshake without options.
                if reader.u32()? != u32::MAX >> 1 {
                    return Err(WireError::NoHandshake);
                }
                let root = reader.bytes(HashFunction::Sha1.len())?;
                if reader.u8()? != super::message::kind::HANDSHAKE {
                    return Err(WireError::NoHandshake);
                }
                let handshake = Handshake { channel: reader.u32()?, swarm_id: Some(root.into()), ..Default::default() };
                Ok(Self { dialect: Dialect::Legacy, handshake, rest: reader.0 })
            }
            _ => Err(WireError::NoHandshake),
        }
    }

    /// Appends the messages that open a channel in `dialect`; `handshake` names the swarm.
    pub fn encode(dialect: Dialect, handshake: &Handshake, out: &mut Vec<u8>) {
        if dialect != Dialect::Legacy {
            return handshake.encode(out);
        }
        if let Some(root) = handshake.swarm_id.as_deref().and_then(|id| HashFunction::Sha1.digest(id)) {
            out.push(super::message::kind::INTEGRITY);
            out.extend_from_slice(&(u32::MAX >> 1).to_be_bytes());
            out.extend_from_slice(root.as_bytes());
        }
        out.push(super::message::kind::HANDSHAKE);
        out.extend_from_slice(&handshake.channel.to_be_bytes());
    }
}
