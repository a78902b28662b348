//! The codes of SCMP errors, by name.

use std::fmt;

/// Why a destination is unreachable (SCMP, "Destination Unreachable").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnreachableCode(pub u8);

impl UnreachableCode {
    /// No matching entry in the routing table, or no instance of the service.
    pub const NO_ROUTE: Self = Self(0);
    /// Forbidden by the administrator.
    pub const DENIED: Self = Self(1);
    /// Beyond the scope of the source address.
    pub const BEYOND_SCOPE: Self = Self(2);
    /// Any other reason.
    pub const ADDRESS: Self = Self(3);
    /// Nobody listens on the port.
    pub const PORT: Self = Self(4);
    /// The source address is not allowed.
    pub const SOURCE_POLICY: Self = Self(5);
    /// The route is rejected.
    pub const ROUTE_REJECTED: Self = Self(6);
}

impl fmt::Display for UnreachableCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NO_ROUTE => "no route",
            Self::DENIED => "administratively denied",
            Self::BEYOND_SCOPE => "beyond the scope of the source address",
            Self::ADDRESS => "address unreachable",
            Self::PORT => "port unreachable",
            Self::SOURCE_POLICY => "source address failed policy",
            Self::ROUTE_REJECTED => "route rejected",
            Self(code) => return write!(f, "code {code}"),
        })
    }
}

/// What is wrong with a header (SCMP, "Parameter Problem").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProblemCode(pub u8);

impl ProblemCode {
    /// A field, without more to say.
    pub const HEADER_FIELD: Self = Self(0);
    /// The next header.
    pub const UNKNOWN_NEXT_HEADER: Self = Self(1);
    /// The common header.
    pub const COMMON_HEADER: Self = Self(16);
    /// The SCION version.
    pub const UNKNOWN_VERSION: Self = Self(17);
    /// No flow id.
    pub const FLOW_ID_REQUIRED: Self = Self(18);
    /// The size is not what the header says.
    pub const PACKET_SIZE: Self = Self(19);
    /// The path type.
    pub const UNKNOWN_PATH_TYPE: Self = Self(20);
    /// The type of an address.
    pub const UNKNOWN_ADDRESS_FORMAT: Self = Self(21);
    /// The address header.
    pub const ADDRESS_HEADER: Self = Self(32);
    /// The source address.
    pub const SOURCE_ADDRESS: Self = Self(33);
    /// The destination address.
    pub const DESTINATION_ADDRESS: Self = Self(34);
    /// The path ends here, the destination is elsewhere.
    pub const NON_LOCAL_DELIVERY: Self = Self(35);
    /// The path.
    pub const PATH: Self = Self(48);
    /// ConsIngress names no interface.
    pub const UNKNOWN_CONS_INGRESS: Self = Self(49);
    /// ConsEgress names no interface.
    pub const UNKNOWN_CONS_EGRESS: Self = Self(50);
    /// The MAC of the hop field.
    pub const HOP_MAC: Self = Self(51);
    /// The hop field has expired.
    pub const PATH_EXPIRED: Self = Self(52);
    /// The segments must not follow each other.
    pub const SEGMENT_CHANGE: Self = Self(53);
    /// An extension header.
    pub const EXTENSION_HEADER: Self = Self(64);
    /// A hop-by-hop option.
    pub const UNKNOWN_HOP_BY_HOP_OPTION: Self = Self(65);
    /// An end-to-end option.
    pub const UNKNOWN_END_TO_END_OPTION: Self = Self(66);
}

impl fmt::Display for ProblemCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::HEADER_FIELD => "erroneous header field",
            Self::UNKNOWN_NEXT_HEADER => "unknown next header",
            Self::COMMON_HEADER => "invalid common header",
            Self::UNKNOWN_VERSION => "unknown SCION version",
            Self::FLOW_ID_REQUIRED => "flow id required",
            Self::PACKET_SIZE => "invalid packet size",
            Self::UNKNOWN_PATH_TYPE => "unknown path type",
            Self::UNKNOWN_ADDRESS_FORMAT => "unknown address format",
            Self::ADDRESS_HEADER => "invalid address header",
            Self::SOURCE_ADDRESS => "invalid source address",
            Self::DESTINATION_ADDRESS => "invalid destination address",
            Self::NON_LOCAL_DELIVERY => "non-local delivery",
            Self::PATH => "invalid path",
            Self::UNKNOWN_CONS_INGRESS => "unknown interface in ConsIngress",
            Self::UNKNOWN_CONS_EGRESS => "unknown interface in ConsEgress",
            Self::HOP_MAC => "invalid hop field MAC",
            Self::PATH_EXPIRED => "path expired",
            Self::SEGMENT_CHANGE => "invalid segment change",
            Self::EXTENSION_HEADER => "invalid extension header",
            Self::UNKNOWN_HOP_BY_HOP_OPTION => "unknown hop-by-hop option",
            Self::UNKNOWN_END_TO_END_OPTION => "unknown end-to-end option",
            Self(code) => return write!(f, "code {code}"),
        })
    }
}
