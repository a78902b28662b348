//! A home's router in a namespace of its own: it translates addresses as its [`Kind`] does, and miniupnpd opens ports there.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::net::Namespace;
use crate::process::Process;
use crate::{Error, Result};

/// Where the home's host is, in every home.
pub const HOST: &str = "192.168.1.2";
/// Where its router is.
pub const GATEWAY: &str = "192.168.1.1";
/// How long a program of the router's may take to begin, or to end.
const LIMIT: Duration = Duration::from_secs(20);

/// What is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each port of the host's is the same one outside, for everybody, once it was sent from ("full cone").
    FullCone,
    /// The same, but only who was sent to may answer, from the same port ("port-restricted cone"): what Linux does.
    Restricted,
    /// Each destination sees another port, and it alone may answer ("symmetric").
    Symmetric,
}

/// The Internet, as far as these homes know it. Who is in it has the address [`Internet::address`] of any of its homes.
#[derive(Debug)]
pub struct Internet {
    /// Its middle.
    pub middle: Namespace,
}

/// A home: a host behind a router.
#[derive(Debug)]
pub struct Home {
    /// The host.
    pub host: Namespace,
    /// Its router.
    pub router: Namespace,
    /// The router's address outside.
    pub outside: String,
}

impl Internet {
    /// Without homes.
    ///
    /// # Errors
    /// When namespaces cannot be made.
    pub fn new() -> Result<Self> {
        let middle = Namespace::new()?;
        middle.set("net.ipv4.ip_forward", "1")?;
        Ok(Self { middle })
    }

    /// The middle's address in the network of home `number`.
    pub fn address(number: u8) -> String {
        format!("9.9.{number}.1")
    }

    /// One more home, of another `number` than the others.
    ///
    /// # Errors
    /// When namespaces cannot be made, or `nft` fails.
    pub fn home(&self, number: u8, kind: Kind) -> Result<Home> {
        let (host, router) = (Namespace::new()?, Namespace::new()?);
        let (wan, outside) = (format!("wan{number}"), format!("9.9.{number}.2"));
        let network = format!("9.9.{number}.0/24");
        self.middle.link(&wan, &router)?;
        self.middle.device_up(&wan, &format!("{}/24", Self::address(number)), &network, 1500)?;
        router.device_up(&wan, &format!("{outside}/24"), &network, 1500)?;
        router.route("default", &wan, Some(&Self::address(number)), 1)?;
        router.link("lan", &host)?;
        router.device_up("lan", &format!("{GATEWAY}/24"), "192.168.1.0/24", 1500)?;
        host.device_up("lan", &format!("{HOST}/24"), "192.168.1.0/24", 1500)?;
        host.route("default", "lan", Some(GATEWAY), 1)?;
        router.set("net.ipv4.ip_forward", "1")?;
        let home = Home { host, router, outside };
        home.translate(&wan, kind)?;
        Ok(home)
    }
}

impl Home {
    fn translate(&self, wan: &str, kind: Kind) -> Result<()> {
        let (masquerade, forward, dnat) = match kind {
            Kind::FullCone => {
                let dnat = format!("iifname \"{wan}\" udp dport 1024-65535 dnat ip to {HOST}");
                ("masquerade", "meta l4proto udp accept", dnat)
            }
            Kind::Restricted => ("masquerade", "", String::new()),
            Kind::Symmetric => ("masquerade fully-random", "", String::new()),
        };
        // miniupnpd fills the chains that bear its name.
        let rules = format!(
            "table inet filter {{
                chain input {{
                    type filter hook input priority 0; policy accept;
                    iifname \"{wan}\" ct state new drop
                }}
                chain forward {{
                    type filter hook forward priority 0; policy drop;
                    jump miniupnpd
                    iifname \"lan\" accept
                    ct state established,related accept
                    {forward}
                }}
                chain miniupnpd {{ }}
                chain prerouting {{
                    type nat hook prerouting priority -100; policy accept;
                    jump prerouting_miniupnpd
                    {dnat}
                }}
                chain postrouting {{
                    type nat hook postrouting priority 100; policy accept;
                    jump postrouting_miniupnpd
                    oifname \"{wan}\" {masquerade}
                }}
                chain prerouting_miniupnpd {{ }}
                chain postrouting_miniupnpd {{ }}
            }}\n"
        );
        self.nft(&[&rules]).map(|_| ())
    }

    /// Runs `nft` at the router; the lines that it printed.
    ///
    /// # Errors
    /// When it fails.
    pub fn nft(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let (lines, _) = Process::run("nft", self.router.command("nft").args(arguments), LIMIT)?;
        Ok(lines.into_iter().map(|line| line.text).collect())
    }

    /// Ports that are open at the router, as it prints them.
    ///
    /// # Errors
    /// When `nft` fails.
    pub fn open_ports(&self) -> Result<Vec<String>> {
        let mut lines = self.nft(&["list", "chain", "inet", "filter", "prerouting_miniupnpd"])?;
        lines.retain(|line| line.contains("dnat"));
        Ok(lines)
    }

    /// Starts miniupnpd, which opens ports by UPnP and, where `speaks_pcp`, by PCP and NAT-PMP. Its files go into `folder`.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn miniupnpd(&self, number: u8, folder: &Path, speaks_pcp: bool) -> Result<Process> {
        let yes = if speaks_pcp { "yes" } else { "no" };
        let config = format!(
            "ext_ifname=wan{number}\nlistening_ip=lan\nport=5555\nenable_natpmp={yes}\nenable_upnp=yes\n\
             secure_mode=yes\nuuid=11111111-2222-3333-4444-555555555555\nupnp_table_name=filter\nupnp_nat_table_name=filter\n\
             allow 1024-65535 192.168.1.0/24 1024-65535\ndeny 0-65535 0.0.0.0/0 0-65535\n"
        );
        let (file, pid) = (folder.join("miniupnpd.conf"), folder.join("miniupnpd.pid"));
        std::fs::write(&file, config).map_err(Error::file(&file))?;
        let mut command = self.router.command("miniupnpd");
        command.arg("-d").arg("-f").arg(&file).arg("-P").arg(&pid);
        let process = Process::spawn("miniupnpd", &mut command)?;
        let end = Instant::now() + LIMIT;
        while !process.log().contains("HTTP listening") {
            if Instant::now() > end {
                let (name, waited_for) = ("miniupnpd".to_owned(), "its port".to_owned());
                return Err(Error::Timeout { name, waited_for, limit: LIMIT, log: process.log() });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }
}
