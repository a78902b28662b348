//! Network namespaces of the lab, with the errors of tests.

use std::process::Command;

use anabranch_lab::netns;

pub use netns::available;

use crate::{Error, Result};

/// Nothing, where this process may make networks.
///
/// # Errors
/// Where it may not.
pub fn need_root() -> Result<()> {
    if available() {
        return Ok(());
    }
    let remedy = "run as root: namespaces and TUN devices need it".into();
    Err(Error::Missing { what: "the right to make networks".into(), remedy })
}

/// A network namespace, deleted when dropped; see [`netns::Namespace`].
#[derive(Debug)]
pub struct Namespace(netns::Namespace);

impl Namespace {
    /// A new namespace with its loopback up.
    ///
    /// # Errors
    /// When `ip` fails: not root, or not installed.
    pub fn new() -> Result<Self> {
        Ok(Self(netns::Namespace::new()?))
    }

    /// As `ip netns` knows it.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// A command that runs inside, as the process that `Command` starts (not as a child of it).
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.0.command(program)
    }

    /// Gives device `name` an address and MTU, turns it on, and routes `network` to it.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn device_up(&self, name: &str, address: &str, network: &str, mtu: u32) -> Result<()> {
        Ok(self.0.device_up(name, address, network, mtu)?)
    }

    /// Gives device `name` a further address; one of IPv6 is usable at once.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn add_address(&self, name: &str, address: &str) -> Result<()> {
        Ok(self.0.add_address(name, address)?)
    }

    /// Routes `network` to device `name`, by a gateway if there is one; of several routes, the one of the least metric is the
    /// system's choice.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn route(&self, network: &str, name: &str, gateway: Option<&str>, metric: u32) -> Result<()> {
        Ok(self.0.route(network, name, gateway, metric)?)
    }

    /// Joins this namespace and `other` by a link without limits, whose devices are called `name`, are off, and have no addresses.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn link(&self, name: &str, other: &Self) -> Result<()> {
        Ok(self.0.link(name, &other.0)?)
    }

    /// Sets a variable of `sysctl`.
    ///
    /// # Errors
    /// When `sysctl` fails.
    pub fn set(&self, variable: &str, value: &str) -> Result<()> {
        Ok(self.0.set(variable, value)?)
    }

    /// Turns device `name` on or off.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn set_device(&self, name: &str, up: bool) -> Result<()> {
        Ok(self.0.set_device(name, up)?)
    }

    /// Runs `work` on a thread of its own that is inside the namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or `work` fails.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.0.enter(work)
    }
}
