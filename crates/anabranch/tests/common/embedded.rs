//! SCION networks that run in the process of the test.

use std::fs;
use std::path::Path;

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_paths::IsdAs;

/// Two leaves, and two core ASes that both are below: two paths without a link in common.
pub(crate) const DIAMOND: &str = "
    [as.'1-ff00:0:110']
    core = true
    [as.'1-ff00:0:120']
    core = true
    [as.'1-ff00:0:111']
    [as.'1-ff00:0:112']
    [[link]]
    parent = '1-ff00:0:110#1'
    child = '1-ff00:0:111#1'
    [[link]]
    parent = '1-ff00:0:110#2'
    child = '1-ff00:0:112#1'
    [[link]]
    parent = '1-ff00:0:120#1'
    child = '1-ff00:0:111#2'
    [[link]]
    parent = '1-ff00:0:120#2'
    child = '1-ff00:0:112#2'
    [[link]]
    core = ['1-ff00:0:110#3', '1-ff00:0:120#3']
";

/// Of these addresses, which no other test uses, so that tests run beside each other; `text` says the rest.
pub(crate) fn start(net: u8, text: &str) -> Network {
    let text = format!("network = '127.{net}.0.0'\n{text}");
    Network::start(Topology::from_toml("test.toml", &text).unwrap(), Options::default()).unwrap()
}

/// One of `topologies/`; `settings` go before the file's.
pub(crate) fn example(net: u8, file: &str, settings: &str) -> Network {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies").join(file);
    start(net, &format!("{settings}\n{}", fs::read_to_string(path).unwrap()))
}

/// The first host of an AS: its address for `--listen`, with any port, and its daemon's.
pub(crate) fn host(network: &Network, isd_as: &str) -> (String, String) {
    let isd_as: IsdAs = isd_as.parse().unwrap();
    let home = network.topology().get(isd_as).unwrap();
    (format!("[{isd_as},{}]:0", home.hosts[0].address), home.daemon.to_string())
}
