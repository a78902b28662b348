//! `topology.json`: what scionproto's tools, and end hosts without a daemon, know of their AS.

use serde_json::{Map, Value, json};

use crate::topology::{As, Neighbour, Topology};

/// The AS's `topology.json` in scionproto's format.
pub fn topology_json(topology: &Topology, home: &As) -> String {
    let label = home.isd_as.to_string().replace(':', "_");
    let control = json!({ format!("cs{label}-1"): { "addr": home.control.to_string() } });
    let attributes = if home.core { json!(["core"]) } else { json!([]) };
    let ports = format!("{}-{}", home.host_ports.start(), home.host_ports.end());
    let routers: Map<String, Value> = home
        .routers
        .iter()
        .enumerate()
        .map(|(at, router)| {
            let interfaces: Map<String, Value> = home
                .interfaces
                .iter()
                .filter(|interface| interface.router == at)
                .map(|interface| {
                    let link_to = match interface.neighbour {
                        Neighbour::Core => "core",
                        Neighbour::Parent => "parent",
                        Neighbour::Child => "child",
                        Neighbour::Peer => "peer",
                    };
                    let mut value = json!({
                        "underlay": {
                            "local": interface.local_address.to_string(),
                            "remote": interface.remote_address.to_string(),
                        },
                        "isd_as": interface.remote.isd_as.to_string(),
                        "link_to": link_to,
                        "mtu": topology.links()[interface.link].shapes[interface.end].mtu,
                    });
                    if interface.neighbour == Neighbour::Peer {
                        value["remote_interface_id"] = interface.remote.id.into();
                    }
                    (interface.id.to_string(), value)
                })
                .collect();
            let value = json!({ "internal_addr": router.internal.to_string(), "interfaces": interfaces });
            (format!("br{label}-{}", at + 1), value)
        })
        .collect();
    let all = json!({
        "attributes": attributes,
        "isd_as": home.isd_as.to_string(),
        "mtu": home.mtu,
        "dispatched_ports": ports,
        "control_service": control,
        "discovery_service": control,
        "border_routers": routers,
    });
    format!("{all:#}\n")
}
