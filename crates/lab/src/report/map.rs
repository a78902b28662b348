//! The map of the network: ASes, links, and what the links carried.

use std::collections::HashMap;

use super::layout::{Place, places};
use super::markup::{Px, escape, put};
use super::{LinkUse, Run};
use crate::network::{Bound, LinkType, Network};
use crate::text;

/// Pixels of the map and the margin that nodes and labels take.
const WIDTH: f64 = 1060.0;
const HEIGHT: f64 = 440.0;
const MARGIN_X: f64 = 76.0;
const MARGIN_Y: f64 = 66.0;
/// Pixels between parallel links.
const PARALLEL_GAP: f64 = 24.0;
/// Pixels of width of the widest and the narrowest link.
const LINE_WIDTH: (f64, f64) = (3.0, 9.0);
/// Half a node.
const NODE: (f64, f64) = (34.0, 17.0);
/// Less than this share of its capacity on a link is keeping in touch, not load.
const IDLE_LOAD: f64 = 0.01;
/// Upper ends of the steps of load that have a colour of their own; the last has no end.
const LOAD_STEPS: [f64; 4] = [0.25, 0.5, 0.7, 0.85];

/// How full a link was, on a scale of colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Nothing to speak of.
    Idle,
    /// Step of the scale, from 1.
    Step(usize),
}

impl Load {
    /// Of the share of a link's capacity, 0 to 1.
    pub(super) fn of(share: f64) -> Self {
        if share < IDLE_LOAD {
            return Self::Idle;
        }
        Self::Step(1 + LOAD_STEPS.iter().filter(|step| share > **step).count())
    }

    fn class(self) -> String {
        match self {
            Self::Idle => "idle".to_owned(),
            Self::Step(step) => format!("l{step}"),
        }
    }
}

/// What one link did in a run, in its busier direction.
pub(super) struct Busy {
    /// The end that the busier direction leaves.
    pub end: usize,
    /// Bits per second, the mean over the run.
    pub rate: f64,
    /// Share of the capacity; nothing of an unlimited link.
    pub share: f64,
}

/// The busier direction of a link over `seconds`.
pub(super) fn busy(rate_bps: [Option<u64>; 2], used: &[LinkUse; 2], seconds: f64) -> Busy {
    let end = usize::from(used[1].bytes > used[0].bytes);
    let rate = used[end].bytes as f64 * 8.0 / seconds.max(f64::MIN_POSITIVE);
    Busy { end, rate, share: rate_bps[end].map_or(0.0, |capacity| rate / capacity as f64) }
}

/// The map with what `run` made of it.
pub(super) fn draw(network: &Network, run: &Run, bound: Option<&Bound>) -> String {
    let at: Vec<(f64, f64)> = places(network).into_iter().map(pixels).collect();
    let mut svg = format!(r#"<svg class="map" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Map: "#);
    put!(svg, r#"{} ASes and {} links">"#, network.nodes.len(), network.lines.len());
    regions(&mut svg, network, &at);
    let widest = network.lines.iter().flat_map(|line| line.rate_bps).flatten().max().unwrap_or(1) as f64;
    let mut labels = String::new();
    for (index, (from, to)) in segments(network, &at).into_iter().enumerate() {
        let Some((from, to)) = from.zip(to) else { continue };
        let (line, nothing) = (&network.lines[index], [LinkUse::default(); 2]);
        let used = run.links.get(index).unwrap_or(&nothing);
        let busy = busy(line.rate_bps, used, run.seconds);
        let load = Load::of(busy.share);
        let capacity = line.rate_bps[busy.end];
        let width = LINE_WIDTH.0 + (LINE_WIDTH.1 - LINE_WIDTH.0) * capacity.map_or(1.0, |rate| rate as f64 / widest);
        let ((x1, y1), (x2, y2)) = if busy.end == 0 { (from, to) } else { (to, from) };
        let d = format!("M{} {}L{} {}", Px(x1), Px(y1), Px(x2), Px(y2));
        put!(
            svg,
            r#"<g class="link {}" data-link="{index}" data-tip="{}">"#,
            load.class(),
            escape(tip(network, index, used, run))
        );
        put!(svg, r#"<path class="wire{}" stroke-width="{}" d="{d}"/>"#, peering(line.kind), Px(width));
        if load != Load::Idle {
            put!(svg, r#"<path class="flow" d="{d}"/>"#);
        }
        put!(svg, r#"<path class="touch" d="{d}"/>"#);
        if bound.is_some_and(|bound| bound.cut.contains(&index)) {
            svg.push_str(&cut_mark(from, to, width));
        }
        svg.push_str("</g>");
        let label = match (load, capacity) {
            (Load::Idle, Some(rate)) => text::trimmed(rate as f64 / 1e6),
            (Load::Idle, None) => "\u{221e}".to_owned(),
            (_, Some(rate)) => format!("{} of {}", text::mbit(busy.rate), text::trimmed(rate as f64 / 1e6)),
            (_, None) => text::mbit(busy.rate),
        };
        let (x, y) = label_place(from, to);
        put!(
            labels,
            r#"<text class="load {}" data-link="{index}" x="{}" y="{}">{label}</text>"#,
            load.class(),
            Px(x),
            Px(y + 4.0)
        );
    }
    svg.push_str(&labels);
    nodes(&mut svg, network, &at);
    svg.push_str("</svg>");
    svg
}

fn pixels(place: Place) -> (f64, f64) {
    (MARGIN_X + (WIDTH - 2.0 * MARGIN_X) * place.x, MARGIN_Y + (HEIGHT - 2.0 * MARGIN_Y) * place.y)
}

fn peering(kind: LinkType) -> &'static str {
    if kind == LinkType::Peering { " peering" } else { "" }
}

type Spot = (f64, f64);

/// Both ends of every link; parallel links are apart. `None` for an end whose AS is not on the map.
fn segments(network: &Network, at: &[Spot]) -> Vec<(Option<Spot>, Option<Spot>)> {
    let index: HashMap<_, _> = network.nodes.iter().enumerate().map(|(index, node)| (node.isd_as, index)).collect();
    let pair = |line: &crate::network::Line| {
        let mut pair = line.ends.map(|end| end.isd_as);
        pair.sort_unstable();
        pair
    };
    let mut totals: HashMap<_, usize> = HashMap::new();
    for line in &network.lines {
        *totals.entry(pair(line)).or_default() += 1;
    }
    let mut seen: HashMap<_, usize> = HashMap::new();
    let lines = network.lines.iter().map(|line| {
        let place = seen.entry(pair(line)).or_default();
        let aside = (*place as f64 - (totals[&pair(line)] as f64 - 1.0) / 2.0) * PARALLEL_GAP;
        *place += 1;
        let [a, b] = line.ends.map(|end| index.get(&end.isd_as).map(|node| at[*node]));
        let Some((a, b)) = a.zip(b) else { return (None, None) };
        // To one side of the line between both, whichever of them comes first.
        let (from, to) = if a <= b { (a, b) } else { (b, a) };
        let length = (to.0 - from.0).hypot(to.1 - from.1).max(1.0);
        let off = (-(to.1 - from.1) / length * aside, (to.0 - from.0) / length * aside);
        let moved = |spot: Spot| (spot.0 + off.0, spot.1 + off.1);
        (Some(moved(a)), Some(moved(b)))
    });
    lines.collect()
}

/// In the middle of the link.
fn label_place(from: Spot, to: Spot) -> Spot {
    ((from.0 + to.0) / 2.0, (from.1 + to.1) / 2.0)
}

/// A short bar across the link: here is what would have to be wider.
fn cut_mark(from: Spot, to: Spot, width: f64) -> String {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy).max(1.0);
    let (x, y) = (from.0 + dx * 0.24, from.1 + dy * 0.24);
    let (ox, oy) = (-dy / length * (width / 2.0 + 5.0), dx / length * (width / 2.0 + 5.0));
    format!(r#"<path class="cut" d="M{} {}L{} {}"/>"#, Px(x - ox), Px(y - oy), Px(x + ox), Px(y + oy))
}

/// What a link is and did, in words.
fn tip(network: &Network, index: usize, used: &[LinkUse; 2], run: &Run) -> String {
    let line = &network.lines[index];
    let kind = match line.kind {
        LinkType::Core => "core link",
        LinkType::ParentChild => "parent and child",
        LinkType::Peering => "peering",
    };
    let mut tip = format!("{} \u{2013} {}\n{kind}", line.ends[0], line.ends[1]);
    for end in [0, 1] {
        let rate = used[end].bytes as f64 * 8.0 / run.seconds.max(f64::MIN_POSITIVE);
        put!(tip, "\nfrom {}: {}", text::short_as(line.ends[end].isd_as), text::rate(rate));
        match line.rate_bps[end] {
            Some(capacity) => put!(tip, " of {}", text::trimmed(capacity as f64 / 1e6)),
            None => put!(tip, ", no limit"),
        }
        put!(tip, ", {} ms, {} dropped", text::trimmed(line.delay[end].as_secs_f64() * 1e3), used[end].dropped);
    }
    tip
}

/// A box around each ISD, where ISDs stand apart.
fn regions(svg: &mut String, network: &Network, at: &[Spot]) {
    let mut isds: Vec<u16> = network.nodes.iter().map(|node| node.isd_as.isd()).collect();
    isds.sort_unstable();
    isds.dedup();
    let reach = |isd: u16| {
        let own = network.nodes.iter().zip(at).filter(move |(node, _)| node.isd_as.isd() == isd);
        own.fold((f64::MAX, f64::MIN), |(low, high), (_, spot)| (low.min(spot.0), high.max(spot.0)))
    };
    let boxes: Vec<(u16, f64, f64)> = isds.iter().map(|isd| (*isd, reach(*isd).0, reach(*isd).1)).collect();
    let overlap = |a: &(u16, f64, f64)| boxes.iter().any(|b| a.0 != b.0 && a.1 <= b.2 && b.1 <= a.2);
    if boxes.len() < 2 || boxes.iter().any(overlap) {
        return;
    }
    for (isd, left, right) in &boxes {
        let (x, width) = (left - NODE.0 - 24.0, right - left + 2.0 * NODE.0 + 48.0);
        put!(
            svg,
            r#"<rect class="isd" x="{}" y="8" width="{}" height="{}" rx="14"/>"#,
            Px(x),
            Px(width),
            HEIGHT - 16.0
        );
        put!(svg, r#"<text class="isd-name" x="{}" y="30">ISD {isd}</text>"#, Px(x + 14.0));
    }
}

fn nodes(svg: &mut String, network: &Network, at: &[Spot]) {
    for (node, (x, y)) in network.nodes.iter().zip(at) {
        let class = match () {
            () if node.isd_as == network.sender || node.isd_as == network.receiver => "node end",
            () if node.core => "node core",
            () => "node",
        };
        put!(svg, r#"<g class="{class}" data-tip="{}{}">"#, node.isd_as, if node.core { ", core AS" } else { "" });
        put!(svg, r#"<rect x="{}" y="{}" width="{}" "#, Px(x - NODE.0), Px(y - NODE.1), 2.0 * NODE.0);
        put!(svg, r#"height="{}" rx="{}"/>"#, 2.0 * NODE.1, if node.core { 5.0 } else { NODE.1 });
        put!(svg, r#"<text x="{}" y="{}">{}</text>"#, Px(*x), Px(y + 5.0), text::short_as(node.isd_as));
        if let Some(host) = &node.host {
            let verb = if node.isd_as == network.sender { "shares" } else { "fetches" };
            put!(
                svg,
                r#"<text class="host" x="{}" y="{}">{} {verb}</text>"#,
                Px(*x),
                Px(y + NODE.1 + 16.0),
                escape(host)
            );
        }
        svg.push_str("</g>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::tests::diamond;
    use crate::report::tests::run;

    #[test]
    fn load_has_steps() {
        let of = |share: f64| Load::of(share);
        assert_eq!([of(0.0), of(0.009), of(f64::NAN)], [Load::Idle, Load::Idle, Load::Step(1)]);
        assert_eq!([of(0.01), of(0.25), of(0.26), of(0.85), of(0.86), of(7.0)], [1, 1, 2, 4, 5, 5].map(Load::Step));
    }

    #[test]
    fn the_busier_direction_counts() {
        let used = |bytes| LinkUse { bytes, dropped: 0 };
        let there = busy([Some(8_000_000), None], &[used(1_000_000), used(10)], 2.0);
        assert_eq!((there.end, there.rate, there.share), (0, 4e6, 0.5));
        let back = busy([Some(8_000_000), None], &[used(0), used(10)], 2.0);
        assert_eq!((back.end, back.share), (1, 0.0));
    }

    #[test]
    fn every_link_is_there_and_parallel_ones_are_apart() {
        let network = diamond();
        let svg = draw(&network, &run("all", 4.0), network.bound().as_ref());
        assert_eq!(svg.matches("<g class=\"link ").count(), network.lines.len());
        assert_eq!(svg.matches("class=\"cut\"").count(), 3);
        let at: Vec<Spot> = places(&network).into_iter().map(pixels).collect();
        let segments = segments(&network, &at);
        let (a, b) = (segments[2].0.unwrap(), segments[3].0.unwrap());
        assert!(((a.0 - b.0).hypot(a.1 - b.1) - PARALLEL_GAP).abs() < 1e-6, "{a:?} {b:?}");
    }
}
