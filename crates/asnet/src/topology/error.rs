//! What can be wrong with a topology file, and what to do about it.

use anabranch_paths::IsdAs;

use super::limits::*;

/// A topology that cannot be used, and where in its file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {kind}", at(*line))]
pub struct TopologyError {
    /// The file as its reader named it.
    pub file: String,
    /// Line in it, from 1; 0 where the file cannot be read at all.
    pub line: usize,
    /// What is wrong.
    pub kind: TopologyErrorKind,
}

fn at(line: usize) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

/// What is wrong with a topology. Every message ends in what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyErrorKind {
    /// The file cannot be read.
    #[error("the file cannot be read ({0}): name a topology in TOML or a .topo file in YAML")]
    Unreadable(String),
    /// More bytes than a topology needs.
    #[error("the file has more than {FILE_SIZE_MAX} bytes: split the topology")]
    FileTooLarge,
    /// The text is no TOML or YAML.
    #[error("{0}")]
    Syntax(String),
    /// Tables in tables in tables.
    #[error("values are nested more than {DEPTH_MAX} deep: a topology needs no more")]
    TooDeep,
    /// A key that nobody reads is a typing error.
    #[error("`{key}` means nothing in {place}: use one of {known}")]
    UnknownKey {
        /// The key.
        key: String,
        /// What it stands in.
        place: &'static str,
        /// What may stand there.
        known: String,
    },
    /// The same key or AS twice.
    #[error("`{0}` is given twice: keep one")]
    Twice(String),
    /// A key that has no default.
    #[error("{place} needs `{key}`: write {example}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What needs it.
        place: &'static str,
        /// How to write it.
        example: &'static str,
    },
    /// A value that cannot be read.
    #[error("`{value}` is no value for `{key}`: write {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// What stands there.
        value: String,
        /// What can stand there.
        expected: &'static str,
    },
    /// No ASes, so no network.
    #[error("no AS is defined: write [as.\"1-ff00:0:110\"] and core = true under it")]
    NoAs,
    /// Zero is the wildcard.
    #[error("`{0}` is a wildcard: give the AS an ISD and a number above zero")]
    Wildcard(IsdAs),
    /// A link's end that is not defined.
    #[error("AS {0} is not defined: write [as.\"{0}\"], or correct the number")]
    UnknownAs(IsdAs),
    /// A link from an AS to itself.
    #[error("both ends of the link are in {0}: links join two ASes")]
    SelfLink(IsdAs),
    /// A core link needs two core ASes.
    #[error("a core link joins core ASes, and {0} is none: write core = true under it, or make it a parent-child link")]
    CoreLinkOfNonCore(IsdAs),
    /// A core AS has no parent.
    #[error("{0} is a core AS and cannot be a child: make this a core link, or drop core = true there")]
    CoreChild(IsdAs),
    /// Peering is for where no other relation holds.
    #[error("{0} and {1} are both core ASes and cannot peer: make this a core link")]
    CorePeers(IsdAs, IsdAs),
    /// Parents are in the same ISD.
    #[error("the parent {0} and the child {1} are in different ISDs: use a core or peering link, or move one of them")]
    IsdMismatch(IsdAs, IsdAs),
    /// A chain of parents that comes back.
    #[error("{0} is its own ancestor by the parent-child links {1}: turn or remove one of them")]
    ParentLoop(IsdAs, String),
    /// An ISD without a core.
    #[error("ISD {isd} has no core AS: write core = true under one of its ASes, say {0}", isd = .0.isd())]
    NoCore(IsdAs),
    /// Nobody can reach this AS.
    #[error("{0} has no way up to a core AS: give it a link to a parent")]
    NoWayToCore(IsdAs),
    /// Cores in two islands.
    #[error("the core ASes {0} and {1} cannot reach each other: join them by core links")]
    CoreSplit(IsdAs, IsdAs),
    /// An interface number twice in an AS.
    #[error(
        "interface {id} of {isd_as} is already used by the link on line {line}: give this one another number, or none"
    )]
    InterfaceTwice {
        /// The AS.
        isd_as: IsdAs,
        /// Its interface.
        id: u16,
        /// Where it is used first.
        line: usize,
    },
    /// Two parallel links cannot have one number.
    #[error(
        "`count` makes several links, which cannot all have interface {0}: leave the numbers out, or write the links one by one"
    )]
    CountWithInterface(u16),
    /// One address for two things.
    #[error("the address {address} is already used by {user}: choose another, or leave it out")]
    AddressTwice {
        /// The address.
        address: String,
        /// What uses it.
        user: String,
    },
    /// Properties that no link can have together.
    #[error("{0}")]
    Shape(String),
    /// Two ends of a link that cannot talk.
    #[error("the two ends {0} and {1} are of different address families: use IPv4 or IPv6 on both")]
    UnderlayFamilies(std::net::SocketAddr, std::net::SocketAddr),
    /// Two hosts of one name.
    #[error("{0} has two hosts named `{1}`: rename one")]
    HostTwice(IsdAs, String),
    /// More than a limit of this program.
    #[error("there are more than {max} {what}: use fewer")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// Addresses ran out of 127.0.0.0/8.
    #[error("the loopback addresses from {0} on do not suffice for all ASes: choose a lower `network`")]
    NetworkTooHigh(std::net::Ipv4Addr),
}
