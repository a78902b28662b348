use std::path::Path;

use super::*;

/// Two links of 10 and 100 Mbit/s behind one of 105.
pub(super) const SHARED: &str = "[as.'1-1']\ncore = true\n[as.'1-3']\n[as.'1-2']\n[[link]]\nparent = '1-1'\nchild = '1-3'\nrate = '105 Mbit/s'\n\
                      [[link]]\nparent = '1-3'\nchild = '1-2'\nrate = '10 Mbit/s'\n\
                      [[link]]\nparent = '1-3'\nchild = '1-2'\nrate = '100 Mbit/s'\n";

/// A plan with a candidate, a seed in one AS, and a leecher in each of others.
fn plan(topology: &str, candidate: &str, seed: &str, leechers: &[&str]) -> Plan {
    let text = format!(
        "id = \"x\"\ntitle = \"X\"\ntopology = \"net.toml\"\n[content]\nsize = \"1 MB\"\n\
         [[candidate]]\nname = \"c\"\n{candidate}\n[[peers]]\nrole = \"seed\"\nin = [\"{seed}\"]\n[[peers]]\nin = {leechers:?}\n"
    );
    let plan = Plan::read(Path::new("x.toml"), &text, |source| {
        Ok((Topology::from_toml(source.name(), topology).map_err(|error| error.to_string())?, topology.to_owned()))
    });
    plan.unwrap()
}

fn bounds(topology: &str, candidate: &str, seed: &str, leechers: &[&str]) -> Bounds {
    let plan = plan(topology, candidate, seed, leechers);
    Bounds::new(&plan, &plan.cells()[0])
}

/// The swarm of such a plan over SCION, and the maximum flows.
pub(super) fn swarm_of(topology: &str, seed: &str, leechers: &[&str]) -> (Swarm, BTreeMap<usize, f64>) {
    let plan = plan(topology, "routing = \"scion\"", seed, leechers);
    let swarm = Swarm::new(&plan.topology, &plan.placements[0], Routing::Scion);
    let most = swarm.most_bps().unwrap();
    (swarm, most)
}

/// About so many Mbit/s.
#[track_caller]
fn is_about(found: Option<f64>, wanted: f64) {
    assert!(found.is_some_and(|found| (found - wanted).abs() < 1e-3 * wanted), "{found:?} and not {wanted}");
}

#[test]
fn paths_that_share_a_wide_link_carry_together() {
    let both = bounds(SHARED, "routing = \"scion\"\npaths = 2", "1-1", &["1-2"]);
    assert_eq!((both.goodput_mbit, both.fluid_mbit), (Some(105.0), Some(105.0)));
    // One alone is the wide one, however long the list that it stands in. No choice of paths exceeds the bound.
    let one = bounds(SHARED, "routing = \"scion\"\npaths = 1", "1-1", &["1-2"]);
    assert_eq!((one.goodput_mbit, one.fluid_mbit), (Some(105.0), Some(100.0)));
    // Where the routing has one way, more is not to be had.
    let plain = bounds(SHARED, "routing = \"plain\"", "1-1", &["1-2"]);
    assert_eq!((plain.goodput_mbit, plain.fluid_mbit), (Some(10.0), Some(10.0)));
}

#[test]
fn what_nothing_limits_has_no_bound() {
    let open = SHARED.replace("rate = '105 Mbit/s'", "").replace("rate = '10 Mbit/s'", "");
    for routing in ["scion", "plain"] {
        let bounds = bounds(&open, &format!("routing = \"{routing}\""), "1-1", &["1-2"]);
        assert_eq!((bounds.goodput_mbit, bounds.fluid_mbit), (None, None), "{routing}");
    }
    let behind = SHARED.replace("rate = '105 Mbit/s'", "");
    assert_eq!(bounds(&behind, "routing = \"scion\"", "1-1", &["1-2"]).fluid_mbit, Some(110.0));
}

/// A core AS with a seed and others below it, whose links carry so much down and up.
fn star(seed_up: u32, leaves: usize, down: u32, up: u32) -> (String, Vec<String>) {
    let mut text = "[as.'1-1']\ncore = true\n[as.'1-9']\n".to_owned();
    text += &format!("[[link]]\nparent = '1-1'\nchild = '1-9'\nback = {{ rate = '{seed_up} kbit/s' }}\n");
    let names: Vec<String> = (0..leaves).map(|leaf| format!("1-{}", 100 + leaf)).collect();
    for name in &names {
        let rates = format!("there = {{ rate = '{down} kbit/s' }}\nback = {{ rate = '{up} kbit/s' }}\n");
        text += &format!("[as.'{name}']\n[[link]]\nparent = '1-1'\nchild = '{name}'\n{rates}");
    }
    (text, names)
}

/// Mbit/s at which so many of all leaves of a star can be served at once: what the seed sends, what one receives, and
/// what all send together, shared among those who are served. Whoever is not served passes on what it has to all of them, and takes one
/// copy of it from the seed. More may be served instead, each with a part of its time.
fn served(count: usize, seed_up: f64, leaves: usize, down: f64, up: f64) -> f64 {
    let sent = |served: usize| {
        let helped = up * (leaves - served) as f64 * (1.0 - 1.0 / served as f64);
        (served as f64 * seed_up.min(down)).min(seed_up + up * served as f64 + helped)
    };
    let most = (count..=leaves).map(sent).fold(0.0, f64::max);
    seed_up.min(down).min(most / count as f64)
}

#[test]
fn leaves_of_a_star_are_served_as_one_can_count() {
    for (seed_up, leaves, down, up) in
        [(10, 3, 20, 10), (10, 4, 6, 10), (4, 2, 9, 4), (10, 2, 20, 1), (10, 3, 20, 1), (20, 5, 30, 2), (20, 5, 6, 1)]
    {
        let (topology, names) = star(1000 * seed_up, leaves, 1000 * down, 1000 * up);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let found = bounds(&topology, "routing = \"scion\"", "1-9", &names);
        let rates = (1..=leaves).map(|count| served(count, seed_up.into(), leaves, down.into(), up.into()));
        is_about(found.goodput_mbit, rates.sum());
    }
}

#[test]
fn who_cannot_pass_on_leaves_less_to_others() {
    // 10 Mbit/s out of the seed, 1 out of each of two leaves. One alone is served at 10. Both at once: the seed sends 10 in all, and
    // each passes 1 on: 6 each.
    let (topology, names) = star(10_000, 2, 20_000, 1_000);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = bounds(&topology, "routing = \"scion\"", "1-9", &names);
    is_about(found.goodput_mbit, 10.0 + 6.0);
    // By the maximum flow alone, both would have 10.
    let (swarm, most) = swarm_of(&topology, "1-9", &names);
    assert_eq!(most.values().copied().collect::<Vec<_>>(), [1e7, 1e7]);
    is_about(Some(optimum::goodput(&swarm, &most) / 1e6), 16.0);
}

#[test]
fn limits_of_peers_count_as_their_links_do() {
    let (topology, names) = star(10_000, 3, 20_000, 10_000);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let limited = |peers: &str| {
        let text = format!(
            "id = \"x\"\ntitle = \"X\"\ntopology = \"net.toml\"\n[content]\nsize = \"1 MB\"\n[[candidate]]\nname = \"c\"\n\
             routing = \"plain\"\n[[peers]]\nrole = \"seed\"\nin = [\"1-9\"]\nlimit_up = \"100K\"\n[[peers]]\nin = {names:?}\n{peers}\n"
        );
        let plan = Plan::read(Path::new("x.toml"), &text, |source| {
            Ok((Topology::from_toml(source.name(), &topology).map_err(|error| error.to_string())?, topology.clone()))
        });
        let plan = plan.unwrap();
        Bounds::new(&plan, &plan.cells()[0])
    };
    // 0.8 Mbit/s from the seed to each of three, who pass it on.
    let open = limited("");
    is_about(open.goodput_mbit, 2.4);
    // Nobody passes more on than 0.08.
    let rates = (1..=3).map(|count| served(count, 0.8, 3, 20.0, 0.08));
    is_about(limited("limit_up = \"10K\"").goodput_mbit, rates.sum());
    is_about(limited("limit_down = \"20K\"").goodput_mbit, 0.48);
    assert!(open.fluid_mbit.unwrap() <= open.goodput_mbit.unwrap());
}

#[test]
fn without_the_program_bounds_are_wider_and_none_where_there_is_no_limit() {
    // More leaves than the program takes: what is sent in all counts only where all of it has limits.
    let (topology, names) = star(10_000, optimum::TARGETS_MAX + 1, 20_000, 1_000);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = bounds(&topology, "routing = \"plain\"", "1-9", &names);
    is_about(found.goodput_mbit, 10.0 * names.len() as f64);
}

/// Of the graph of "BitTorrent over SCION" it is known: over BGP 95 Mbit/s among five ASes, and 1.11 times as much with ECMP.
#[test]
fn the_papers_graph_carries_what_was_counted_and_scion_has_all_that_bgp_has() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
    let plan = Plan::load(&folder.join("000-fig4.toml")).unwrap();
    let cells = plan.cells();
    let bounds = Bounds::of_all(&plan, &cells);
    let of = |name: &str| bounds[cells.iter().position(|cell| plan.name(cell) == name).unwrap()];
    is_about(of("5as/bgp").fluid_mbit, 95.0);
    is_about(of("5as/bgp-multipath").fluid_mbit, 105.0);
    // Out of the seed's AS lead two links of 10 Mbit/s, of which BGP takes one; 16 peers elsewhere.
    is_about(of("5as/bgp").goodput_mbit, 16.0 * 10.0);
    is_about(of("5as/scion").goodput_mbit, 16.0 * 20.0);
    for (cell, of) in cells.iter().zip(&bounds) {
        let name = plan.name(cell);
        assert!(of.fluid_mbit.unwrap() <= of.goodput_mbit.unwrap(), "{name}: {of:?}");
        assert_eq!(*of, Bounds::new(&plan, cell), "{name}");
        let scion = cells.iter().zip(&bounds).find(|(other, _)| {
            other.placement == cell.placement && plan.candidates[other.candidate].routing == Routing::Scion
        });
        let scion = scion.unwrap().1;
        assert!(
            scion.fluid_mbit >= of.fluid_mbit && scion.goodput_mbit >= of.goodput_mbit,
            "{name}: {of:?}, {scion:?}"
        );
    }
}
