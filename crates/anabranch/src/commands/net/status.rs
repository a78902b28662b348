//! `net status`: what a running network is like.

use anabranch_asnet::network::client;
use serde_json::Value;

use super::up::{table, unusual};
use crate::cli::NetStatusFlags;
use crate::exit::{Code, Failure};
use crate::output;
use crate::units;

/// Runs the command.
pub(super) fn run(flags: &NetStatusFlags) -> Result<Code, Failure> {
    let network = client::network(flags.control).map_err(|error| Failure::new(Code::Network, error))?;
    if flags.json {
        output::line(network)?;
    } else {
        output::raw(show(&network).as_bytes())?;
    }
    Ok(Code::Success)
}

/// The ASes and links as tables. What came over the wire is printed as text, whatever it is.
fn show(network: &Value) -> String {
    let text = |value: &Value| output::one_line(value.as_str().unwrap_or("?"));
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (ases, links) = (list(&network["ases"]), list(&network["links"]));
    let down = links.iter().filter(|link| link["up"] != true).count();
    let mut shown =
        format!("{}: {}, {down} of them down\n\n", text(&network["name"]), units::network(ases.len(), links.len()));
    let rows = ases.iter().map(|each| {
        let hosts: Vec<String> = list(&each["hosts"])
            .iter()
            .map(|host| format!("{} {}", text(&host["name"]), text(&host["address"])))
            .collect();
        let core = if each["core"] == true { " core" } else { "" };
        let elsewhere = if each["here"] == true { "" } else { " (in another process)" };
        [format!("{}{core}{elsewhere}", text(&each["isd_as"])), text(&each["daemon"]), hosts.join(", ")]
    });
    shown += &table(["AS", "daemon", "hosts"].map(str::to_owned), rows);
    shown.push('\n');
    let rows = links.iter().map(|link| {
        let state = if link["up"] == true { "up" } else { "down" };
        let [there, back] = ["there", "back"].map(|direction| unusual(&text(&link[direction]["text"])));
        let shape = if there == back { there } else { format!("> {there}  < {back}") };
        let sent = |end: usize| {
            link["counters"][end]["sent_packets"].as_u64().map_or("?".to_owned(), |count| count.to_string())
        };
        [text(&link["a"]), text(&link["b"]), state.to_owned(), sent(0), sent(1), shape]
    });
    shown += &table(["link", "", "state", "packets >", "packets <", "properties"].map(str::to_owned), rows);
    shown
}
