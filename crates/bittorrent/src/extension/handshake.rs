//! The extension handshake: extended message 0 (BEP 10).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anabranch_content::bencode::{DictBuilder, Value};
use anabranch_content::geometry::BLOCK_LEN;
use anabranch_paths::Endpoint;

use super::{Challenge, ExtensionError, IdentityProof, PeerIdentity, addresses, parse_dict};
use crate::compact::unpack_ip;
use crate::handshake::display_name;
use crate::wire::BLOCK_LEN_MAX;

/// The extended message number of the handshake (BEP 10).
pub const HANDSHAKE_ID: u8 = 0;

/// The extensions spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extension {
    /// BEP 9.
    Metadata,
    /// BEP 11.
    Pex,
    /// BEP 21, as libtorrent sends changes of it.
    UploadOnly,
    /// BEP 54.
    DontHave,
    /// Ours alone: see [`PathTalk`](super::PathTalk).
    Paths,
    /// BEP 55.
    Holepunch,
}

impl Extension {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Metadata, Self::Pex, Self::UploadOnly, Self::DontHave, Self::Paths, Self::Holepunch];

    /// The number that our handshake gives it: what peers send us.
    pub const fn our_id(self) -> u8 {
        self as u8 + 1
    }

    /// The extension of a message that a peer sent us.
    pub fn from_our_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|extension| extension.our_id() == id)
    }

    /// Its key in `m`.
    fn key(self) -> &'static str {
        match self {
            Self::Metadata => "ut_metadata",
            Self::Pex => "ut_pex",
            Self::UploadOnly => "upload_only",
            Self::DontHave => "lt_donthave",
            Self::Paths => "ab_paths",
            Self::Holepunch => "ut_holepunch",
        }
    }
}

/// Extended message numbers of one side (BEP 10, `m`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ExtensionIds {
    /// By `Extension as usize`: `None` where nothing was said, 0 where it is switched off.
    ids: [Option<u8>; Extension::ALL.len()],
}

impl ExtensionIds {
    /// What our handshake says.
    pub const OURS: Self = Self {
        ids: [
            Some(Extension::Metadata.our_id()),
            Some(Extension::Pex.our_id()),
            Some(Extension::UploadOnly.our_id()),
            Some(Extension::DontHave.our_id()),
            Some(Extension::Paths.our_id()),
            Some(Extension::Holepunch.our_id()),
        ],
    };

    /// The number to send this extension under; `None` where the other side does not speak it.
    pub fn get(&self, extension: Extension) -> Option<u8> {
        self.ids[extension as usize].filter(|id| *id != 0)
    }

    /// The same without `extension`: private contents exchange no peers (BEP 27).
    pub fn without(mut self, extension: Extension) -> Self {
        self.ids[extension as usize] = None;
        self
    }

    /// The same with `extension` switched off, also where an earlier handshake named it (BEP 10: "set to zero").
    pub fn switched_off(mut self, extension: Extension) -> Self {
        self.ids[extension as usize] = Some(0);
        self
    }

    /// Takes in a later handshake: what it leaves out stays (BEP 10: "handshakes ... are additive").
    pub fn update(&mut self, later: &Self) {
        for (id, later) in self.ids.iter_mut().zip(later.ids) {
            *id = later.or(*id);
        }
    }

    fn encode(&self) -> DictBuilder {
        let mut dict = DictBuilder::new();
        for extension in Extension::ALL {
            if let Some(id) = self.ids[extension as usize] {
                dict.int(extension.key(), id);
            }
        }
        dict
    }

    fn parse(m: Value<'_>) -> Self {
        let id = |extension: Extension| m.get(extension.key())?.as_uint().and_then(|id| u8::try_from(id).ok());
        Self { ids: Extension::ALL.map(id) }
    }
}

/// What the extension handshake says. Every field is optional; a later handshake updates what it names.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ExtensionHandshake {
    /// `m`: numbers of the extensions.
    pub ids: ExtensionIds,
    /// `v`: the sender's program; cleaned for display when parsed.
    pub client: Option<String>,
    /// `p`: the port the sender listens on.
    pub listen_port: Option<u16>,
    /// `e`: the sender would rather have its connections encrypted.
    pub prefers_encryption: Option<bool>,
    /// `reqq`: requests that the sender keeps at most without dropping any.
    pub request_queue_len: Option<u32>,
    /// `yourip`: the receiver's address as the sender sees it.
    pub your_ip: Option<IpAddr>,
    /// `ipv4`: the sender's own.
    pub ipv4: Option<Ipv4Addr>,
    /// `ipv6`: the sender's own.
    pub ipv6: Option<Ipv6Addr>,
    /// `metadata_size`, in bytes (BEP 9). Not trusted: [`MetadataFetch`](super::MetadataFetch) judges it.
    pub metadata_size: Option<u64>,
    /// `upload_only` (BEP 21): the sender will ask for nothing.
    pub upload_only: Option<bool>,
    /// `complete_ago`: seconds since the sender had all (libtorrent).
    pub complete_ago_secs: Option<u64>,
    /// `ab_block`, ours alone: the most bytes that one request to the sender may ask for, between one block and
    /// [`BLOCK_LEN_MAX`]. Peers that do not say it take one block at most.
    pub block_len_max: Option<u32>,
    /// `ab_id`, ours alone: see [`PeerIdentity`].
    pub identity: Option<PeerIdentity>,
    /// `ab_nonce`, ours alone: what the receiver has to sign to prove its `ab_id`.
    pub challenge: Option<Challenge>,
    /// `ab_proof`, ours alone: the sender's answer to the receiver's `ab_nonce`.
    pub proof: Option<IdentityProof>,
    /// `ab_scion`, ours alone: the sender takes SCION addresses in peer exchange, and listens on this UDP port of its host
    /// over SCION; 0 where it does not listen.
    pub scion_port: Option<u16>,
    /// `ab_addr`, ours alone: where the sender listens, beside where it is met; at most
    /// [`ADDRESSES_MAX`](super::ADDRESSES_MAX).
    pub addresses: Option<Vec<Endpoint>>,
    /// `ab_uplink`, ours alone: the sender's number for its uplink that this connection is at.
    pub uplink: Option<u32>,
}

impl ExtensionHandshake {
    /// The payload of extended message 0.
    pub fn encode(&self) -> Vec<u8> {
        let mut dict = DictBuilder::new();
        dict.dict("m", &self.ids.encode());
        if let Some(client) = &self.client {
            dict.bytes("v", client);
        }
        match self.your_ip {
            Some(IpAddr::V4(ip)) => drop(dict.bytes("yourip", ip.octets())),
            Some(IpAddr::V6(ip)) => drop(dict.bytes("yourip", ip.octets())),
            None => {}
        }
        if let Some(ip) = self.ipv4 {
            dict.bytes("ipv4", ip.octets());
        }
        if let Some(ip) = self.ipv6 {
            dict.bytes("ipv6", ip.octets());
        }
        if let Some(identity) = self.identity {
            dict.bytes("ab_id", identity.0);
        }
        if let Some(challenge) = self.challenge {
            dict.bytes("ab_nonce", challenge.0);
        }
        if let Some(proof) = self.proof {
            dict.bytes("ab_proof", proof.0);
        }
        if let Some(addresses) = &self.addresses {
            dict.bytes("ab_addr", addresses::encode(addresses));
        }
        let numbers = [
            ("e", self.prefers_encryption.map(u64::from)),
            ("p", self.listen_port.map(u64::from)),
            ("reqq", self.request_queue_len.map(u64::from)),
            ("metadata_size", self.metadata_size),
            ("upload_only", self.upload_only.map(u64::from)),
            ("complete_ago", self.complete_ago_secs),
            ("ab_block", self.block_len_max.map(u64::from)),
            ("ab_scion", self.scion_port.map(u64::from)),
            ("ab_uplink", self.uplink.map(u64::from)),
        ];
        for (key, number) in numbers {
            if let Some(number) = number.and_then(|number| i64::try_from(number).ok()) {
                dict.int(key, number);
            }
        }
        dict.encode()
    }

    /// Reads the payload of extended message 0. Fields of the wrong type or out of range count as left out.
    ///
    /// # Errors
    /// Where the payload is no bencoded dictionary.
    pub fn parse(payload: &[u8]) -> Result<Self, ExtensionError> {
        const MESSAGE: &str = "extension handshake";
        let tree = parse_dict(payload, MESSAGE)?;
        let dict = tree.root();
        let number = |key: &str| dict.get(key)?.as_uint();
        let ip = |key: &str| unpack_ip(dict.get(key)?.as_bytes()?);
        Ok(Self {
            ids: dict.get("m").map(ExtensionIds::parse).unwrap_or_default(),
            client: dict.get("v").and_then(|v| v.as_bytes()).map(display_name),
            listen_port: number("p").and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0),
            prefers_encryption: number("e").map(|flag| flag != 0),
            request_queue_len: number("reqq").map(|len| u32::try_from(len).unwrap_or(u32::MAX)),
            your_ip: ip("yourip"),
            ipv4: ip("ipv4").and_then(|ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None }),
            ipv6: ip("ipv6").and_then(|ip| if let IpAddr::V6(ip) = ip { Some(ip) } else { None }),
            metadata_size: number("metadata_size"),
            upload_only: number("upload_only").map(|flag| flag != 0),
            complete_ago_secs: number("complete_ago"),
            block_len_max: number("ab_block").map(|len| len.clamp(BLOCK_LEN.into(), BLOCK_LEN_MAX.into()) as u32),
            identity: dict.get("ab_id").and_then(|id| id.as_bytes()?.try_into().ok()).map(PeerIdentity),
            challenge: dict.get("ab_nonce").and_then(|nonce| nonce.as_bytes()?.try_into().ok()).map(Challenge),
            proof: dict.get("ab_proof").and_then(|proof| proof.as_bytes()?.try_into().ok()).map(IdentityProof),
            scion_port: number("ab_scion").and_then(|port| u16::try_from(port).ok()),
            addresses: dict.get("ab_addr").and_then(|list| list.as_bytes()).map(addresses::parse),
            uplink: number("ab_uplink").and_then(|number| u32::try_from(number).ok()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_libtorrent_sends_is_understood() {
        let payload =
            b"d1:ei0e4:ipv44:\x7f\0\0\x0112:complete_agoi5e1:md11:lt_donthavei7e10:share_modei8e11:upload_onlyi3e\
            12:ut_holepunchi4e11:ut_metadatai2e6:ut_pexi1ee13:metadata_sizei31235e1:pi6881e4:reqqi500e11:upload_onlyi1e\
            1:v17:libtorrent/2.1.1\x1b6:yourip4:\x0a\0\0\x02e";
        let handshake = ExtensionHandshake::parse(payload).unwrap();
        let ids = Extension::ALL.map(|extension| handshake.ids.get(extension));
        assert_eq!(ids, [Some(2), Some(1), Some(3), Some(7), None, Some(4)]);
        assert_eq!(handshake.client.as_deref(), Some("libtorrent/2.1.1"));
        assert_eq!((handshake.listen_port, handshake.request_queue_len), (Some(6881), Some(500)));
        assert_eq!((handshake.metadata_size, handshake.upload_only), (Some(31235), Some(true)));
        assert_eq!(handshake.your_ip, Some([10, 0, 0, 2].into()));
        assert_eq!((handshake.ipv4, handshake.complete_ago_secs), (Some(Ipv4Addr::LOCALHOST), Some(5)));
        assert_eq!(handshake.block_len_max, None);
    }

    #[test]
    fn fields_of_the_wrong_kind_count_as_left_out() {
        let handshake =
            ExtensionHandshake::parse(b"d1:mi3e13:metadata_sizei-1e1:pi70000e4:reqq1:x6:yourip3:abce").unwrap();
        assert_eq!(handshake, ExtensionHandshake::default());
        assert!(ExtensionHandshake::parse(b"le").is_err());
        assert!(ExtensionHandshake::parse(b"").is_err());
    }

    #[test]
    fn our_block_length_stays_in_its_bounds() {
        for (said, taken) in [(0, BLOCK_LEN), (65536, 65536), (1i64 << 40, BLOCK_LEN_MAX)] {
            let payload = DictBuilder::new().int("ab_block", said).encode();
            assert_eq!(ExtensionHandshake::parse(&payload).unwrap().block_len_max, Some(taken));
        }
    }

    #[test]
    fn our_scion_port_is_a_port() {
        for (said, taken) in [(0, Some(0)), (65535, Some(65535)), (65536, None), (-1, None)] {
            let payload = DictBuilder::new().int("ab_scion", said).encode();
            assert_eq!(ExtensionHandshake::parse(&payload).unwrap().scion_port, taken);
        }
    }

    #[test]
    fn later_handshakes_add_and_switch_off() {
        let mut ids = ExtensionIds::OURS;
        let later = ExtensionHandshake::parse(b"d1:md6:ut_pexi0e11:upload_onlyi9eee").unwrap().ids;
        ids.update(&later);
        let ids = Extension::ALL.map(|extension| ids.get(extension));
        let [metadata, _, _, lost, paths, holepunch] = Extension::ALL.map(|extension| Some(extension.our_id()));
        assert_eq!(ids, [metadata, None, Some(9), lost, paths, holepunch]);
        assert_eq!(ExtensionIds::OURS.without(Extension::Pex).get(Extension::Pex), None);
    }

    #[test]
    fn our_numbers_are_found_again() {
        for extension in Extension::ALL {
            assert_eq!(Extension::from_our_id(extension.our_id()), Some(extension));
        }
        assert_eq!(Extension::from_our_id(HANDSHAKE_ID), None);
        assert_eq!(Extension::from_our_id(7), None);
    }

    proptest! {
        #[test]
        fn handshakes_round_trip(
            ids: [Option<u8>; 6], client in proptest::option::of("[a-zA-Z/. ]{0,40}"),
            listen_port in proptest::option::of(1u16..), request_queue_len: Option<u32>,
            your_ip: Option<IpAddr>, ipv4: Option<Ipv4Addr>, ipv6: Option<Ipv6Addr>,
            [size, ago, uplink]: [Option<u32>; 3], [upload_only, prefers_encryption]: [Option<bool>; 2],
            block_len_max in proptest::option::of(BLOCK_LEN..=BLOCK_LEN_MAX), identity: Option<[u8; 32]>, scion_port: Option<u16>,
            address_bytes: Option<Vec<u8>>, challenge: Option<[u8; 16]>, proof: Option<([u8; 32], [u8; 32])>,
        ) {
            let [metadata_size, complete_ago_secs] = [size, ago].map(|number| number.map(u64::from));
            let handshake = ExtensionHandshake {
                ids: ExtensionIds { ids }, client, listen_port, prefers_encryption, request_queue_len, your_ip, ipv4, ipv6,
                metadata_size, upload_only, complete_ago_secs, block_len_max, identity: identity.map(PeerIdentity),
                challenge: challenge.map(Challenge),
                proof: proof.and_then(|(first, second)| [first, second].concat().try_into().ok()).map(IdentityProof),
                scion_port, addresses: address_bytes.as_deref().map(addresses::parse), uplink,
            };
            prop_assert_eq!(ExtensionHandshake::parse(&handshake.encode()), Ok(handshake));
        }
    }
}
