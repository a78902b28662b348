//! Network namespaces: networks on one machine, alone with their loopback until something joins them.
//!
//! All of them pin TCP to cubic, whatever the machine's default is, and let its windows grow past the delay-bandwidth
//! product of the wires used here. The pin is on the routes: a namespace may not choose an algorithm that the machine's
//! owner did not allow to everybody, but a route may. Root is needed; [`available`] says whether it is worth trying.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

type Result<T> = std::result::Result<T, NetnsError>;

/// Largest TCP window, bytes: ten times the 12.5 MB in flight of 1 Gbit/s at 100 ms.
const TCP_WINDOW_BYTES_MAX: u32 = 128 << 20;

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// Why a network on this machine does not come about.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// A program is missing or cannot be started.
    #[error("cannot run {program}: {source}; install it (Debian: iproute2, procps)")]
    Missing {
        /// Which.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A program says no.
    #[error("`{command}` failed: {said}")]
    Refused {
        /// What was asked.
        command: String,
        /// What it said.
        said: String,
    },
    /// The system says no.
    #[error("{what}: {source}")]
    System {
        /// What was asked.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

impl NetnsError {
    /// A system call on `what` just failed: takes `errno`.
    pub(crate) fn last_os(what: impl Into<String>) -> Self {
        Self::System { what: what.into(), source: io::Error::last_os_error() }
    }
}

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
        Self::named(format!("anabranch-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed)))
    }

    /// The same with a name of the caller's choice.
    ///
    /// # Errors
    /// As for [`Self::new`], or the name is taken.
    pub fn named(name: String) -> Result<Self> {
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let made = Self { name };
        // As few processes as there can be: networks have hundreds of namespaces.
        let local = ["127.0.0.0/8", "127.0.0.1"].map(|network| {
            format!(
                "route replace local {network} dev lo table local proto kernel scope host src 127.0.0.1 congctl cubic\n"
            )
        });
        made.ip_batch(&format!("link set lo up\n{}", local.concat()))?;
        made.enter(tcp_settings)?;
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

    /// Lets `ip` do what the lines of `batch` say, inside.
    ///
    /// # Errors
    /// When it fails at one of them.
    pub fn ip_batch(&self, batch: &str) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["-n", &self.name, "-batch", "-"]);
        feed(&mut command, batch)
    }

    /// The namespace itself, for `setns`.
    ///
    /// # Errors
    /// When somebody has removed it.
    pub fn open(&self) -> Result<File> {
        let path = PathBuf::from("/run/netns").join(&self.name);
        File::open(&path).map_err(|source| NetnsError::System { what: path.display().to_string(), source })
    }

    /// Runs `work` on a thread of its own that is inside the namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or `work` fails.
    pub fn enter<T, E>(&self, work: impl FnOnce() -> std::result::Result<T, E> + Send) -> std::result::Result<T, E>
    where
        T: Send,
        E: From<NetnsError> + Send,
    {
        let file = self.open()?;
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                use std::os::fd::AsRawFd;
                // SAFETY: a valid descriptor of a namespace; only this thread moves, and it ends with `work`.
                if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                    return Err(NetnsError::last_os("setns").into());
                }
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Namespace {
    /// Deletes many at once, which one process does as quickly as one of them.
    pub(crate) fn remove(all: Vec<Self>) {
        let mut batch = String::new();
        for each in all {
            batch += &format!("netns del {}\n", each.name);
            // It goes with the others.
            std::mem::forget(each);
        }
        let mut command = Command::new("ip");
        // Those that somebody else deleted keep nothing from the others.
        command.args(["-force", "-batch", "-"]);
        feed(&mut command, &batch).ok();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        run(Command::new("ip").args(["netns", "del", &self.name])).ok();
    }
}

/// Lets TCP's windows grow in the namespace that the thread is in, and every connection begin alike.
fn tcp_settings() -> Result<()> {
    let window = format!("4096 1048576 {TCP_WINDOW_BYTES_MAX}");
    for (name, value) in [("tcp_rmem", window.as_str()), ("tcp_wmem", window.as_str()), ("tcp_no_metrics_save", "1")] {
        let path = Path::new("/proc/sys/net/ipv4").join(name);
        let what = || path.display().to_string();
        fs::write(&path, value).map_err(|source| NetnsError::System { what: what(), source })?;
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let missing =
        |source| NetnsError::Missing { program: command.get_program().to_string_lossy().into_owned(), source };
    let output = output.map_err(missing)?;
    checked(command, &output.status, &output.stderr)
}

/// Runs `ip` with what it is to do.
fn feed(command: &mut Command, batch: &str) -> Result<()> {
    use io::Write;
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let missing = |source| NetnsError::Missing { program: "ip".into(), source };
    let mut child = command.spawn().map_err(missing)?;
    // Ended early, it says why itself.
    child.stdin.take().map(|mut stdin| stdin.write_all(batch.as_bytes()));
    let output = child.wait_with_output().map_err(missing)?;
    checked(command, &output.status, &output.stderr)
}

fn checked(command: &Command, status: &std::process::ExitStatus, said: &[u8]) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let command = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    Err(NetnsError::Refused { command, said: String::from_utf8_lossy(said).trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_namespaces_are_removed_whatever_became_of_one() {
        if !available() {
            eprintln!("not run: namespaces need root");
            return;
        }
        let all: Vec<Namespace> = (0..3).map(|_| Namespace::new().unwrap()).collect();
        let paths: Vec<PathBuf> = all.iter().map(|each| Path::new("/run/netns").join(each.name())).collect();
        run(Command::new("ip").args(["netns", "del", all[0].name()])).unwrap();
        Namespace::remove(all);
        assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
    }

    #[test]
    fn a_new_namespace_has_its_loopback_and_settings_of_its_own() {
        if !available() {
            eprintln!("not run: namespaces need root");
            return;
        }
        let made = Namespace::new().unwrap();
        let said = |program: &str, words: &[&str]| {
            let output = made.command(program).args(words).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert!(said("ip", &["link", "show", "lo"]).contains("UP"));
        let routes = said("ip", &["route", "show", "table", "local"]);
        assert_eq!(routes.matches("congctl cubic").count(), 2, "{routes}");
        let read = |name: &str| said("cat", &[&format!("/proc/sys/net/ipv4/{name}")]);
        let window = read("tcp_rmem").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(window, format!("4096 1048576 {TCP_WINDOW_BYTES_MAX}"));
        assert_eq!((read("tcp_wmem"), read("tcp_no_metrics_save").trim()), (read("tcp_rmem"), "1"));
    }
}
