//! Networks on one machine: namespaces, alone with their loopback or two of them at the ends of a [`crate::wire`].
//!
//! All of them pin TCP to cubic, whatever the machine's default is, and let its windows grow past the delay-bandwidth
//! product of the wires used here. The pin is on the routes: a namespace may not choose an algorithm that the machine's
//! owner did not allow to everybody, but a route may. Root is needed; [`available`] says whether it is worth trying.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::process::Process;
use crate::{Error, Result};

/// How long an `ip` or `sysctl` call may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);
/// Largest TCP window, bytes: ten times the 12.5 MB in flight of 1 Gbit/s at 100 ms.
const TCP_WINDOW_BYTES_MAX: u32 = 128 << 20;

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// Whether this process may make namespaces.
pub fn available() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// A network namespace, deleted when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A new namespace with its loopback up.
    ///
    /// # Errors
    /// When `ip` fails: not root, or not installed.
    pub fn new() -> Result<Self> {
        let name = format!("anabranch-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let made = Self { name };
        run(made.command("ip").args(["link", "set", "lo", "up"]))?;
        for network in ["127.0.0.0/8", "127.0.0.1"] {
            let route = ["route", "replace", "local", network, "dev", "lo", "table", "local"];
            let metrics = ["proto", "kernel", "scope", "host", "src", "127.0.0.1", "congctl", "cubic"];
            run(made.command("ip").args(route).args(metrics))?;
        }
        let window = format!("4096 1048576 {TCP_WINDOW_BYTES_MAX}");
        run(made.command("sysctl").args([
            "-qw",
            &format!("net.ipv4.tcp_rmem={window}"),
            &format!("net.ipv4.tcp_wmem={window}"),
            "net.ipv4.tcp_no_metrics_save=1",
        ]))?;
        Ok(made)
    }

    /// As `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs inside, as the process that `Command` starts (not as a child of it).
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Gives device `name` an address and MTU, turns it on, and routes `network` to it.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn device_up(&self, name: &str, address: &str, network: &str, mtu: u32) -> Result<()> {
        run(self.command("ip").args(["addr", "add", address, "dev", name]))?;
        run(self.command("ip").args(["link", "set", name, "mtu", &mtu.to_string(), "txqueuelen", "4096", "up"]))?;
        run(self.command("ip").args(["route", "replace", network, "dev", name, "congctl", "cubic"]))
    }

    /// Gives device `name` a further address; one of IPv6 is usable at once.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn add_address(&self, name: &str, address: &str) -> Result<()> {
        let mut command = self.command("ip");
        command.args(["addr", "add", address, "dev", name]);
        if address.contains(':') {
            command.arg("nodad");
        }
        run(&mut command)
    }

    /// Routes `network` to device `name`, by a gateway if there is one; of several routes, the one of the least metric is the
    /// system's choice.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn route(&self, network: &str, name: &str, gateway: Option<&str>, metric: u32) -> Result<()> {
        let mut command = self.command("ip");
        command.args(["route", "replace", network, "dev", name, "metric", &metric.to_string(), "congctl", "cubic"]);
        if let Some(gateway) = gateway {
            command.args(["via", gateway]);
        }
        run(&mut command)
    }

    /// Joins this namespace and `other` by a link without limits, whose devices are called `name`, are off, and have no addresses.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn link(&self, name: &str, other: &Self) -> Result<()> {
        let peer = ["peer", "name", name, "netns", &other.name];
        run(self.command("ip").args(["link", "add", name, "type", "veth"]).args(peer))
    }

    /// Sets a variable of `sysctl`.
    ///
    /// # Errors
    /// When `sysctl` fails.
    pub fn set(&self, variable: &str, value: &str) -> Result<()> {
        run(self.command("sysctl").args(["-qw", &format!("{variable}={value}")]))
    }

    /// Turns device `name` on or off.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn set_device(&self, name: &str, up: bool) -> Result<()> {
        run(self.command("ip").args(["link", "set", name, if up { "up" } else { "down" }]))
    }

    /// Runs `work` on a thread of its own that is inside the namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or `work` fails.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = PathBuf::from("/run/netns").join(&self.name);
        let file = File::open(&path).map_err(Error::file(path))?;
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                use std::os::fd::AsRawFd;
                // SAFETY: a valid descriptor of a namespace; only this thread moves, and it ends with `work`.
                if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                    return Err(Error::last_os("setns"));
                }
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        run(Command::new("ip").args(["netns", "del", &self.name])).ok();
    }
}

fn run(command: &mut Command) -> Result<()> {
    Process::run("ip", command, COMMAND_LIMIT).map(|_| ())
}
