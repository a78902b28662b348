//! What the process may do, asked before anything is tried: the kernel says `EPERM` and nothing else.

use std::fmt;

/// What AF_XDP needs, of capabilities(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// To attach a program to an interface.
    NetAdmin,
    /// To open a socket that sees frames.
    NetRaw,
    /// To load a program.
    Bpf,
}

// linux/capability.h
const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const SYS_ADMIN: u32 = 21;
const BPF: u32 = 39;

impl Capability {
    const ALL: [Self; 3] = [Self::NetAdmin, Self::NetRaw, Self::Bpf];

    /// Those that this thread lacks; none where the system does not tell.
    pub(crate) fn missing() -> Vec<Self> {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        lacking(&status)
    }

    fn bit(self) -> u32 {
        match self {
            Self::NetAdmin => NET_ADMIN,
            Self::NetRaw => NET_RAW,
            Self::Bpf => BPF,
        }
    }

    pub(crate) fn list(capabilities: &[Self]) -> String {
        capabilities.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
    }

    /// All of them, as setcap(8) takes them.
    pub(crate) fn setcap() -> String {
        Self::ALL.map(|capability| capability.to_string().to_lowercase()).join(",")
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::Bpf => "CAP_BPF",
        })
    }
}

/// What is not among the effective capabilities of a process whose `status` (proc(5)) this is.
fn lacking(status: &str) -> Vec<Capability> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(effective) = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()) else {
        return Vec::new();
    };
    let has = |bit: u32| effective >> bit & 1 == 1;
    // CAP_SYS_ADMIN stands for CAP_BPF, which is younger.
    let may = |capability: Capability| has(capability.bit()) || capability == Capability::Bpf && has(SYS_ADMIN);
    Capability::ALL.into_iter().filter(|capability| !may(*capability)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_named() {
        use Capability::{Bpf, NetAdmin, NetRaw};
        let lacking = |effective: &str| lacking(&format!("Name:\tx\nCapPrm:\t0\nCapEff:\t{effective}\n"));
        assert_eq!(lacking("000001fffeffffff"), []);
        assert_eq!(lacking("0000000000000000"), [NetAdmin, NetRaw, Bpf]);
        assert_eq!(lacking("0000000000002000"), [NetAdmin, Bpf]);
        assert_eq!(lacking("0000000000003000"), [Bpf]);
        assert_eq!(lacking("0000000000203000"), []);
        // Who does not tell is tried.
        assert_eq!(lacking("so much"), []);
        assert_eq!(Capability::list(&[NetRaw, Bpf]), "CAP_NET_RAW and CAP_BPF");
        assert_eq!(Capability::setcap(), "cap_net_admin,cap_net_raw,cap_bpf");
    }
}
