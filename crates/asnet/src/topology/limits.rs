//! How large a topology may be. Each limit is far above what one machine can run, and keeps a made-up file harmless.

/// Bytes of a topology file: the largest of scionproto's are 10 kB.
pub const FILE_SIZE_MAX: usize = 4 << 20;
/// Nesting of tables and lists; our formats need five.
pub const DEPTH_MAX: usize = 16;
/// Values in a file, aliases included.
pub const NODES_MAX: usize = 1 << 18;
/// ASes in one topology: each has its own /24 of loopback addresses.
pub const ASES_MAX: usize = 1000;
/// Links in one topology.
pub const LINKS_MAX: usize = 10_000;
/// Parallel links by one `count`.
pub const COUNT_MAX: usize = 64;
/// Interfaces of one AS: their ports start at [`LINK_PORT_FIRST`] and end before the hosts' range.
pub const INTERFACES_PER_AS_MAX: usize = 1000;
/// Border routers of one AS: they have the addresses .2 to .61.
pub const ROUTERS_PER_AS_MAX: usize = 60;
/// Hosts of one AS: they have the addresses .100 to .249.
pub const HOSTS_PER_AS_MAX: usize = 150;
/// Characters of a host's or router's name.
pub const NAME_LEN_MAX: usize = 64;

/// Largest MTU: jumbo frames.
pub const MTU_MAX: u16 = 9216;

/// The host of an AS whose file names none.
pub const HOST_NAME_DEFAULT: &str = "host";
/// First of the networks of loopback addresses; every AS takes a /24.
pub const NETWORK_DEFAULT: std::net::Ipv4Addr = std::net::Ipv4Addr::new(127, 16, 0, 0);
/// Port of control services, as scionproto has it.
pub const CONTROL_PORT: u16 = 30252;
/// Port of daemons, as scionproto has it.
pub const DAEMON_PORT: u16 = 30255;
/// Port of a border router towards its own AS, as scionproto has it.
pub const ROUTER_PORT: u16 = 30042;
/// Links take one port each from here on, below the kernel's range for ephemeral ports.
pub const LINK_PORT_FIRST: u16 = 20_000;
/// First UDP port of hosts that speak SCION without a dispatcher.
pub const HOST_PORT_FIRST: u16 = 31_000;
/// Last such port.
pub const HOST_PORT_LAST: u16 = 32_767;
/// Last byte of the address of the first host.
pub const HOST_ADDRESS_FIRST: usize = 100;
