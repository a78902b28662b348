//! Why a path was chosen, given up, or chosen anew: typed as far as the event that tells it.

use std::fmt;

use crate::select::{self, Choice, Selector};
use crate::{Endpoint, Interface, IsdAs, Path, ScionPath};

/// What becomes of a path, for people and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathCondition {
    /// It carries content.
    Active,
    /// Its connection is kept for when it is needed.
    Standby,
    /// Nothing gets through at present.
    Down,
    /// Its connection is closed.
    Gone,
}

/// A path to a peer, whether it was chosen, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct PathVerdict {
    /// The path.
    pub path: Path,
    /// What becomes of it.
    pub choice: Choice,
    /// Why.
    pub reason: VerdictReason,
}

/// Why a path was chosen or not.
#[derive(Clone, Debug, PartialEq)]
pub enum VerdictReason {
    /// A selector says so.
    Selected {
        /// Its reason.
        reason: select::Reason,
        /// Over plain IP: the interface that it leaves by.
        interface: Option<String>,
    },
    /// Over plain IP: it leads from and to the same uplinks as another path, and would bring no more.
    SameUplinks {
        /// The other one.
        other: Path,
    },
    /// Its packets are too small for what they have to hold.
    TooNarrow {
        /// The largest packet that it takes, in bytes.
        mtu: u16,
        /// The largest packet that it would have to take, in bytes.
        needed: u16,
    },
    /// The uploader, who chooses for all its downloaders, grants it.
    Granted,
    /// The uploader did not choose it.
    NotGranted,
}

impl PathVerdict {
    /// Whether the reason is that it does not work at the moment.
    pub fn is_down(&self) -> bool {
        matches!(self.reason, VerdictReason::Selected { reason: select::Reason::Down, .. })
    }
}

/// Why a path does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownCause {
    /// The network says that the link at an interface is down.
    LinkDown(Interface),
    /// The network says that two routers of an AS do not reach each other.
    AsPartitioned {
        /// The AS.
        isd_as: IsdAs,
        /// Where packets come in.
        ingress: u16,
        /// Where they would have gone out.
        egress: u16,
    },
    /// The network interface that it leaves by is gone.
    UplinkGone,
    /// Nothing comes while the peer's other paths work.
    Silent,
    /// Nothing comes at all, not even acknowledgements, though something is due.
    NoAnswer,
}

/// What made a choice necessary.
#[derive(Clone, Debug, PartialEq)]
pub enum Trigger {
    /// A connection opened.
    PeerConnected,
    /// A peer's last connection ended.
    PeerLeft,
    /// A peer wishes for paths.
    PeerWishes,
    /// A peer wishes for none any more.
    PeerHasEnough,
    /// A path stopped working.
    PathFails(Path, DownCause),
    /// What was thought to be down is not.
    PathWorksAfterAll(Path),
    /// A path that failed has a connection that works.
    PathWorksAgain(Path),
    /// It is known now which ASes a path passes.
    PathNamed(Path),
    /// A connection ended.
    ConnectionEnded(Path, EndCause),
    /// A path could not be opened.
    CouldNotOpen,
    /// Network interfaces of this machine came or went.
    UplinksChanged,
    /// It is the uploader's choice, and the uploader chose.
    UploaderChose,
    /// Time to look at what was measured.
    Measured,
}

/// Why a path's condition changed.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangeReason {
    /// It was chosen.
    Chosen,
    /// Others were.
    NotChosen,
    /// It is the first to its peer.
    First,
    /// The peer opened it.
    OpenedByPeer,
    /// It is as it was, and known now which ASes it passes.
    Named,
    /// Nothing comes over it.
    NothingComes,
    /// It stopped working.
    Fails(Path, DownCause),
    /// It was thought to be down and is not.
    WorksAfterAll(Path),
    /// Its connection ended.
    Ended(EndCause),
    /// It could not be opened.
    CouldNotOpen(EndCause),
}

/// Why a connection ended, or did not come about. Where there are words beside it, they are for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The peer closed it.
    ClosedByPeer,
    /// The peer is not who was called, or does not want us.
    Refused(String),
    /// The peer broke the protocol.
    Misbehaved(String),
    /// The network failed it, or nothing came in time.
    Network(String),
    /// No path leads there, or none may be taken.
    NoPath(String),
    /// We ended it.
    ByUs(String),
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Its path is down.
    PathDown,
    /// Its peer has connections over better paths.
    BetterPaths,
}

/// What is told of paths.
#[derive(Clone, Debug, PartialEq)]
pub enum PathNews {
    /// The paths to a peer were chosen, and not as before.
    Chosen {
        /// The peer.
        peer: Endpoint,
        /// Who decided; `None`: the peer did, and granted them.
        selector: Option<Selector>,
        /// What made the choice necessary.
        trigger: Trigger,
        /// Every candidate.
        verdicts: Vec<PathVerdict>,
    },
    /// A path's condition changed.
    Changed {
        /// The peer at its end.
        peer: Endpoint,
        /// The path.
        path: Path,
        /// What became of it.
        condition: PathCondition,
        /// Why.
        reason: ChangeReason,
    },
}

impl fmt::Display for PathCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Standby => "standby",
            Self::Down => "down",
            Self::Gone => "gone",
        })
    }
}

impl fmt::Display for VerdictReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Selected { reason, interface: None } => reason.fmt(f),
            Self::Selected { reason, interface: Some(interface) } => write!(f, "{reason}, by {interface}"),
            Self::SameUplinks { other } => write!(f, "leads from and to the same uplinks as {other}"),
            Self::TooNarrow { mtu, needed } => {
                write!(f, "too narrow: it takes packets of {mtu} bytes, and {needed} are needed")
            }
            Self::Granted => f.write_str("the uploader, who chooses for all its downloaders, grants it"),
            Self::NotGranted => f.write_str("the uploader did not choose it"),
        }
    }
}

impl DownCause {
    /// Whether a path fails by it, as far as its interfaces show.
    pub fn is_on(&self, path: &ScionPath) -> bool {
        match *self {
            Self::LinkDown(at) => path.interfaces.contains(&at),
            Self::AsPartitioned { isd_as, ingress, egress } => {
                let at = |interface: &Interface, id| *interface == Interface { isd_as, id };
                path.interfaces.windows(2).any(|pair| at(&pair[0], ingress) && at(&pair[1], egress))
            }
            Self::UplinkGone | Self::Silent | Self::NoAnswer => false,
        }
    }
}

impl fmt::Display for DownCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkDown(interface) => write!(f, "the link at {interface} is down"),
            Self::AsPartitioned { isd_as, ingress, egress } => {
                write!(f, "{isd_as} cannot forward from interface {ingress} to {egress}")
            }
            Self::UplinkGone => f.write_str("its interface is gone"),
            Self::Silent => f.write_str("nothing comes while other paths work"),
            Self::NoAnswer => f.write_str("the peer answers nothing, not even that something arrived"),
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerConnected => f.write_str("a peer connected"),
            Self::PeerLeft => f.write_str("a peer left"),
            Self::PeerWishes => f.write_str("a peer wishes for paths"),
            Self::PeerHasEnough => f.write_str("a peer has enough"),
            Self::PathFails(path, cause) => write!(f, "{path} fails: {cause}"),
            Self::PathWorksAfterAll(path) => write!(f, "{path} works after all"),
            Self::PathWorksAgain(path) => write!(f, "{path} works again"),
            Self::PathNamed(path) => write!(f, "{path} is known"),
            Self::ConnectionEnded(path, cause) => write!(f, "the connection over {path} ended: {cause}"),
            Self::CouldNotOpen => f.write_str("a path could not be opened"),
            Self::UplinksChanged => f.write_str("interfaces came or went"),
            Self::UploaderChose => f.write_str("the uploader chose"),
            Self::Measured => f.write_str("measured anew"),
        }
    }
}

impl fmt::Display for ChangeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chosen => f.write_str("chosen"),
            Self::NotChosen => f.write_str("not chosen"),
            Self::First => f.write_str("the first to its peer"),
            Self::OpenedByPeer => f.write_str("the peer opened it"),
            Self::Named => f.write_str("it is known now which ASes it passes"),
            Self::NothingComes => f.write_str("nothing comes through"),
            Self::Fails(path, cause) => write!(f, "{path} fails: {cause}"),
            Self::WorksAfterAll(path) => write!(f, "{path} works after all"),
            Self::Ended(cause) | Self::CouldNotOpen(cause) => cause.fmt(f),
        }
    }
}

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClosedByPeer => "closed by the peer",
            Self::Refused(words)
            | Self::Misbehaved(words)
            | Self::Network(words)
            | Self::NoPath(words)
            | Self::ByUs(words) => words,
        })
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PathDown => "its path is down",
            Self::BetterPaths => "its peer has connections over better paths",
        })
    }
}
