//! Why there is no way past the kernel, and what to do about it.

use std::io;

use crate::capabilities::Capability;

/// Why an interface cannot be used with AF_XDP. Datagrams go by the system's socket then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process lacks capabilities.
    #[error(
        "AF_XDP on {interface} needs {}, which this process lacks: run it as root, or allow it with `setcap {}+ep PROGRAM`",
        Capability::list(missing),
        Capability::setcap()
    )]
    Capabilities {
        /// Where.
        interface: String,
        /// What is missing.
        missing: Vec<Capability>,
    },
    /// The capabilities are there, and the kernel refuses all the same.
    #[error(
        "the kernel refuses {what} on {interface} ({source}): inside a container the capabilities have to be those of the \
         machine, and neither lockdown nor a seccomp filter may forbid bpf(2)"
    )]
    Forbidden {
        /// Where.
        interface: String,
        /// What was refused.
        what: &'static str,
        /// What the kernel says.
        source: io::Error,
    },
    /// The process may lock too little memory.
    #[error(
        "AF_XDP on {interface} locks {bytes} bytes of memory, and the limit is lower: raise `ulimit -l`, or allow cap_ipc_lock"
    )]
    LockedMemory {
        /// Where.
        interface: String,
        /// What one queue takes.
        bytes: usize,
    },
    /// No such interface.
    #[error("there is no network interface `{interface}` ({source}): name one that `ip link` shows")]
    Unknown {
        /// What was asked for.
        interface: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// An interface whose packets are not its own: they pass another one, with headers that AF_XDP would have to write.
    #[error(
        "{interface} is {kind}, which AF_XDP cannot be used on here: name an Ethernet interface without VLAN, bridge or tunnel"
    )]
    Kind {
        /// Which.
        interface: String,
        /// What it is.
        kind: String,
    },
    /// Somebody has a program or a socket there.
    #[error(
        "{what} is at work on {interface} already: end it (`ip link show {interface}` names programs), or use another interface"
    )]
    Occupied {
        /// Which.
        interface: String,
        /// What is there.
        what: &'static str,
    },
    /// This kernel, or its driver, has no AF_XDP.
    #[error(
        "{what} on {interface} fails: {source}: AF_XDP needs Linux 5.18 with CONFIG_XDP_SOCKETS and a driver that takes programs"
    )]
    Unsupported {
        /// Which.
        interface: String,
        /// What failed.
        what: &'static str,
        /// What the kernel says.
        source: io::Error,
    },
}

impl Error {
    /// What the kernel's answer to a step means.
    pub(crate) fn of_system(interface: &str, what: &'static str, source: io::Error) -> Self {
        let interface = interface.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Forbidden { interface, what, source },
            Some(libc::EBUSY | libc::EEXIST) => Self::Occupied { interface, what },
            _ => Self::Unsupported { interface, what, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_interface_and_a_remedy() {
        let error = |number| Error::of_system("up0", "another XDP program", io::Error::from_raw_os_error(number));
        for (error, part) in [
            (error(libc::EPERM), "container"),
            (error(libc::EBUSY), "ip link show up0"),
            (error(libc::EOPNOTSUPP), "driver"),
            (
                Error::Capabilities { interface: "up0".into(), missing: vec![Capability::NetRaw] },
                "setcap cap_net_admin,",
            ),
            (Error::LockedMemory { interface: "up0".into(), bytes: 1 }, "ulimit -l"),
            (Error::Kind { interface: "up0".into(), kind: "a bridge".into() }, "without VLAN"),
        ] {
            let text = error.to_string();
            assert!(text.contains("up0") && text.contains(part), "{text}");
        }
    }
}
