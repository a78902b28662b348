//! `net check`: measures every link of a topology against what it asks for.

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::network::{Network, NetworkError, Options};
use anabranch_asnet::router::{DirectionReport, LinkEnd, RouterError, check_links};
use anabranch_asnet::topology::show_properties;
use anabranch_paths::Interface;
use serde_json::{Value, json};

use super::{load, not_started};
use crate::cli::NetCheckFlags;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::{system, units};

/// How often a link is measured that does not do what was asked.
const ROUNDS_MAX: usize = 4;

/// Runs the command.
pub(super) fn run(flags: &NetCheckFlags, chatter: Chatter) -> Result<Code, Failure> {
    let topology = load(&flags.topology)?;
    system::raise_open_files_limit();
    let network = Network::start(topology, Options::default()).map_err(|error| not_started(&error))?;
    let links = network.topology().links().iter().map(|link| {
        let [one, other] = link.ends.map(|end| link_end(&network, end));
        Ok((one?, other?))
    });
    let links = links.collect::<Result<Vec<_>, NetworkError>>().map_err(|error| not_started(&error))?;
    let reports = measure(&links, chatter)?;
    drop(network);
    let off = reports.iter().filter(|report| !report.is_as_asked()).count();
    if flags.json {
        let directions: Vec<Value> = reports.iter().map(direction_json).collect();
        output::line(json!({ "as_asked": off == 0, "directions": directions }))?;
    } else if !chatter.quiet {
        for report in &reports {
            output::line(format_args!("{} {report}", if report.is_as_asked() { "ok " } else { "OFF" }))?;
        }
        output::line(format_args!("{} of {} directions are as asked, within 5 %", reports.len() - off, reports.len()))?;
    }
    if off == 0 {
        return Ok(Code::Success);
    }
    let message =
        format!("{off} directions are not as asked: lower what they ask for, or try while the machine is idle");
    Err(Failure::new(Code::Incomplete, message))
}

/// Measures all links, and those that are off again: what the machine did to one measurement it seldom does to the next,
/// and a link that is wrong stays wrong. Two reports for each link.
fn measure(links: &[(LinkEnd, LinkEnd)], chatter: Chatter) -> Result<Vec<DirectionReport>, Failure> {
    let failed = |error: RouterError| not_started(&error.into());
    chatter.note(format_args!("measuring {} in both directions", units::count(links.len(), "link")));
    let mut reports = check_links(links).map_err(failed)?;
    for _ in 1..ROUNDS_MAX {
        let is_off = |link: &usize| !reports[2 * link..2 * link + 2].iter().all(DirectionReport::is_as_asked);
        let off: Vec<usize> = (0..links.len()).filter(is_off).collect();
        if off.is_empty() {
            break;
        }
        chatter.note(format_args!("measuring {} of them again", off.len()));
        let again: Vec<_> = off.iter().map(|link| links[*link].clone()).collect();
        let places = off.iter().flat_map(|link| [2 * link, 2 * link + 1]);
        for (place, report) in places.zip(check_links(&again).map_err(failed)?) {
            if !reports[place].is_as_asked() {
                reports[place] = report;
            }
        }
    }
    Ok(reports)
}

fn link_end(network: &Network, end: Interface) -> Result<LinkEnd, NetworkError> {
    let router = network.router(end.isd_as).ok_or(NetworkError::NotHere(end.isd_as))?;
    Ok(LinkEnd { router: router.clone(), interface: end.id })
}

fn direction_json(report: &DirectionReport) -> Value {
    let ms = |delay: std::time::Duration| delay.as_secs_f64() * 1e3;
    let LinkShape { rate_bps, delay, jitter, loss, .. } = report.asked;
    let measured = report.measured.map(|measured| {
        json!({
            "rate_bps": measured.rate_bps,
            "delay_ms": measured.delay.map(ms),
            "delay_ms_min": measured.delay_min.map(ms),
            "delay_ms_max": measured.delay_max.map(ms),
            "loss": measured.loss,
            "packets": measured.packets,
            "reordered": measured.reordered,
        })
    });
    json!({
        "from": report.from.to_string(),
        "to": report.to.to_string(),
        "as_asked": report.is_as_asked(),
        "asked": {
            "rate_bps": rate_bps,
            "delay_ms": ms(delay),
            "jitter_ms": ms(jitter),
            "loss": loss,
            "text": show_properties(&report.asked),
        },
        "measured": measured,
    })
}
