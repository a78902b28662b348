use std::path::Path;

use proptest::prelude::*;

use super::*;

const TOPOLOGY: &str = "[as.'1-1']\ncore = true\n[as.'1-2']\n[as.'1-3']\n[[link]]\nparent = '1-1'\nchild = '1-2'\nrate = '10 Mbit/s'\n\
                        [[link]]\nparent = '1-1'\nchild = '1-3'\n";

const PLAN: &str = r#"id = "two"
title = "Two"
topology = "net.toml"
repetitions = 3
[content]
size = "1 MB"
[sweep]
connections = [3, 7]
[quick]
repetitions = 1
size = "100 kB"
[[candidate]]
name = "bgp"
routing = "bgp"
[[candidate]]
name = "scion"
routing = "scion"
selector = "disjoint"
flags = ["--congestion", "cubic"]
[[peers]]
in = ["1-3"]
count = 2
join = "5 s"
[[peers]]
role = "seed"
in = ["1-2"]
limit_up = "500K"
[[event]]
at = "2 s"
link = ["1-2", "1-1"]
direction = "there"
set = { rate = "1 Mbit/s" }
[[event]]
at = "3 s"
link = ["1-1", "1-3"]
cross = "4 Mbit/s"
length = "1 s"
[[figure]]
id = "fig"
title = "Goodput"
measure = "goodput"
groups = "connections"
relative_to = "bgp"
[figure.paper]
3 = { bgp = 100, scion = 148 }
[[must]]
that = "1 < goodput(scion, 7) / goodput(bgp, 7) <= 1 + 2 * 3"
"#;

fn read(text: &str) -> Result<Plan, PlanError> {
    Plan::read(Path::new("two.toml"), text, |source| {
        let topology = Topology::from_toml(source.name(), TOPOLOGY).map_err(|error| error.to_string())?;
        Ok((topology, TOPOLOGY.to_owned()))
    })
}

#[test]
fn a_plan_says_what_runs() {
    let plan = read(PLAN).unwrap();
    let names: Vec<String> = plan.cells().iter().map(|cell| plan.name(cell)).collect();
    assert_eq!(names, ["swarm/bgp/3", "swarm/scion/3", "swarm/bgp/7", "swarm/scion/7"]);
    let peers = &plan.placements[0].peers;
    assert_eq!(
        peers.iter().map(|peer| (peer.home, peer.role)).collect::<Vec<_>>(),
        [(1, Role::Seed), (2, Role::Leecher), (2, Role::Leecher)]
    );
    assert_eq!(peers[0].limits, [Some("500K".to_owned()), None]);
    // From 1-2, which is the second end of its link.
    let set = LinkChange::Set(vec![("rate".into(), "1 Mbit/s".into())]);
    assert_eq!(plan.events[0].change, Change::Link { link: 0, ways: [false, true], to: set });
    let cross = Change::Link { link: 1, ways: [true, true], to: LinkChange::Udp(4_000_000) };
    assert_eq!((&plan.events[1].change, plan.events[1].length), (&cross, Some(Duration::from_secs(1))));
    assert_eq!(plan.figures[0].paper[1], ("3".into(), "scion".into(), 148.0));
    let quick = plan.in_form(Form::Quick);
    assert_eq!((quick.repetitions, quick.content_bytes), (1, 100_000));
    let at = Duration::from_millis;
    assert_eq!((quick.placements[0].peers[1].join, quick.events[1].when), (at(500), When::At(at(300))));
    assert_eq!(quick.events[1].length, Some(at(100)));
}

#[test]
fn a_scale_slows_links_and_who_comes_and_nothing_else() {
    let without = |text: &str, from: &str, to: &str| {
        let (start, end) = (text.find(from).unwrap(), text.find(to).unwrap());
        format!("{}{}", &text[..start], &text[end..])
    };
    let plain = without(&PLAN.replace("limit_up = \"500K\"\n", ""), "[[event]]", "[[figure]]");
    let scaled =
        |text: &str, scale: &str| read(&text.replace("repetitions = 3", &format!("repetitions = 3\nscale = {scale}")));
    // As its only cells have it.
    let run = |plan: &Plan| plan.under(&plan.cells()[0]);
    let (usual, slow) = (run(&read(&plain).unwrap()), run(&scaled(&plain, "4").unwrap()));
    let (before, after) = (usual.topology.links()[0].shapes[0], slow.topology.links()[0].shapes[0]);
    assert_eq!((before.rate_bps, after.rate_bps), (Some(10_000_000), Some(2_500_000)));
    assert_eq!((after.queue_bytes, after.delay, after.mtu), (before.queue_bytes / 4, before.delay, before.mtu));
    // Without a rate there is nothing to divide.
    assert_eq!(usual.topology.links()[1].shapes, slow.topology.links()[1].shapes);
    assert_eq!(slow.topology.links()[1].ends, usual.topology.links()[1].ends);
    let join = |plan: &Plan| plan.placements[0].peers[1].join;
    assert_eq!((join(&usual), join(&slow)), (Duration::from_secs(5), Duration::from_secs(20)));
    assert_eq!(run(&scaled(&plain, "1").unwrap()).topology.links()[0].shapes, usual.topology.links()[0].shapes);
    for (text, scale, part) in [
        (plain.as_str(), "0", "whole number from 1"),
        (&plain, "101", "at most 100"),
        (PLAN, "4", "of the topology alone"),
        (&plain.replace("role = \"seed\"", "role = \"seed\"\nlimit_up = \"500K\""), "4", "of the topology alone"),
        (&plain, "{ crowd = 4 }", "use one of swarm"),
        (&plain, "{ swarm = 0 }", "whole number from 1"),
    ] {
        let error = scaled(text, scale).unwrap_err().to_string();
        assert!(error.contains("two.toml:5:") && error.contains(part), "{error}");
    }
}

#[test]
fn placements_and_the_quick_form_have_scales_of_their_own() {
    let start = PLAN.find("[[event]]").unwrap();
    let end = PLAN.find("[[figure]]").unwrap();
    let crowd = "[[peers]]\nplacement = \"crowd\"\nin = [\"1-3\"]\njoin = \"1 s\"\n[[peers]]\nplacement = \"crowd\"\nrole = \"seed\"\nin = [\"1-2\"]\n";
    let text = format!("{}{crowd}", &PLAN[..start].replace("limit_up = \"500K\"\n", ""));
    let text = text
        .replace("repetitions = 3", "repetitions = 3\njobs = 2\nscale = { crowd = 4 }")
        .replace("[quick]", "[quick]\nscale = { crowd = 8, swarm = 2 }");
    assert!(end > start);
    let plan = read(&text).unwrap();
    let told = |plan: &Plan| -> Vec<(String, Option<u64>, Duration)> {
        let of = |cell: &Cell| {
            let under = plan.under(cell);
            let placement = &under.placements[cell.placement];
            (placement.name.clone(), under.topology.links()[0].shapes[0].rate_bps, placement.peers[1].join)
        };
        plan.cells().iter().filter(|cell| cell.candidate == 0 && cell.connections == Some(3)).map(of).collect()
    };
    let ms = Duration::from_millis;
    let row = |name: &str, rate, join| (name.to_owned(), Some(rate), join);
    assert_eq!(told(&plan), [row("swarm", 10_000_000, ms(5000)), row("crowd", 2_500_000, ms(4000))]);
    assert_eq!((plan.jobs, plan.scale.to_string().as_str()), (2, "4 in crowd"));
    // A tenth of the content.
    let quick = plan.in_form(Form::Quick);
    assert_eq!(told(&quick), [row("swarm", 5_000_000, ms(1000)), row("crowd", 1_250_000, ms(800))]);
}

#[test]
fn the_quick_form_has_fewer_cells_and_what_is_claimed_of_them() {
    let more =
        "[[must]]\nthat = \"goodput(bgp, 7) > 0\"\n[[must]]\nthat = \"max(goodput(bgp, 3), time(scion, 7)) > 0\"\n";
    let keep = |what: &str| read(&format!("{PLAN}{more}").replace("[quick]", &format!("[quick]\n{what}")));
    let quick = keep("connections = [7]").unwrap().in_form(Form::Quick);
    let names: Vec<String> = quick.cells().iter().map(|cell| quick.name(cell)).collect();
    assert_eq!(names, ["swarm/bgp/7", "swarm/scion/7"]);
    assert_eq!((quick.claims.len(), quick.claims_left_out), (2, 1));
    let known = |_, cell: &Cell| Some(if quick.name(cell) == "swarm/bgp/7" { 1.0 } else { 3.0 });
    assert_eq!(quick.claims[0].judge(&known), Verdict::Holds(vec![1.0, 3.0, 7.0]));
    assert_eq!(quick.claims[1].judge(&known), Verdict::Holds(vec![1.0, 0.0]));
    // The others are counted from the first of those that are left.
    let quick = keep("candidates = [\"bgp\"]").unwrap().in_form(Form::Quick);
    assert_eq!((quick.cells().len(), quick.claims.len(), quick.claims_left_out), (2, 1, 2));
    let said = |what: &str| keep(what).unwrap_err().to_string();
    assert!(
        said("candidates = [\"scion\"]").contains("figures are in relation to `bgp`"),
        "{}",
        said("candidates = [\"scion\"]")
    );
    assert!(said("connections = [5]").contains("use one of 3, 7"));
    assert!(said("variants = []").contains("`variants` is empty"));
}

#[test]
fn a_plan_that_says_so_has_a_standard_form() {
    let forms = |text: &str| Form::ALL.map(|form| read(text).unwrap().in_form(form));
    let told = |plan: &Plan| (plan.form, plan.repetitions, plan.content_bytes, plan.cells().len());
    let text = PLAN.replace("[quick]", "[standard]\nsize = \"500 kB\"\nconnections = [7]\n[quick]");
    let [full, standard, quick] = forms(&text);
    assert_eq!(told(&full), (Form::Full, 3, 1_000_000, 4));
    assert_eq!(told(&standard), (Form::Standard, 3, 500_000, 2));
    assert_eq!(standard.placements[0].peers[1].join, Duration::from_millis(2500));
    assert_eq!(told(&quick), (Form::Quick, 1, 100_000, 4));
    assert_eq!(standard.full_bytes, 1_000_000);
    // Of others, all is run.
    assert_eq!(forms(PLAN).map(|plan| plan.form), [Form::Full, Form::Full, Form::Quick]);
    let gone = PLAN.replace("[quick]", "[standard]\ncandidates = [\"scion\"]\n[quick]");
    assert!(read(&gone).unwrap_err().to_string().contains("figures are in relation to `bgp`"));
}

#[test]
fn who_runs_alone_takes_nobody_beside() {
    let of = |alone: &str| PLAN.replace("routing = \"scion\"", &format!("routing = \"scion\"\nalone = {alone}"));
    let seconds = |plan: &Plan, jobs| {
        let cells = plan.cells();
        crate::trial::estimate(plan, &cells, &crate::fluid::Bounds::of_all(plan, &cells), 1, jobs).as_secs_f64()
    };
    let [all, some] = [PLAN.to_owned(), of("true")].map(|text| read(&text).unwrap());
    assert_eq!((all.candidates[1].alone, some.candidates[1].alone), (false, true));
    assert_eq!(seconds(&all, 1), seconds(&some, 1));
    assert!((seconds(&all, 2) - seconds(&all, 1) / 2.0).abs() < 1e-6);
    assert!(seconds(&all, 2) < seconds(&some, 2) && seconds(&some, 2) < seconds(&some, 1));
    assert!(read(&of("\"often\"")).unwrap_err().to_string().contains("true or false"));
}

#[test]
fn a_figure_names_the_cells_that_it_is_of() {
    let of =
        |name: &str| PLAN.replace("groups = \"connections\"", &format!("groups = \"placement\"\nof = [\"{name}\"]"));
    let plan = read(&of("7").replace("3 = { bgp", "swarm = { bgp")).unwrap();
    let figure = &plan.figures[0];
    let drawn: Vec<String> =
        plan.cells().iter().filter(|cell| figure.has(&plan, cell)).map(|cell| plan.name(cell)).collect();
    assert_eq!(
        (&figure.of, drawn),
        (&vec!["7".to_owned()], vec!["swarm/bgp/7".to_owned(), "swarm/scion/7".to_owned()])
    );
    // The quick form leaves those out that it has no cells for.
    let text = of("7").replace("3 = { bgp", "swarm = { bgp").replace("[quick]", "[quick]\nconnections = [3]");
    assert_eq!((read(&text).unwrap().figures.len(), read(&text).unwrap().in_form(Form::Quick).figures.len()), (1, 0));
}

#[test]
fn times_of_a_smaller_content_do_not_stand_beside_those_of_the_paper() {
    let shown = |text: String| {
        let [full, quick] = [read(&text).unwrap(), read(&text).unwrap().in_form(Form::Quick)];
        [full, quick].map(|plan| plan.figures[0].shows_paper(&plan))
    };
    let absolute =
        |measure: &str| PLAN.replace("relative_to = \"bgp\"\n", "").replace("\"goodput\"", &format!("\"{measure}\""));
    assert_eq!(shown(absolute("time")), [true, false]);
    assert_eq!(shown(absolute("time-max")), [true, false]);
    // Rates and ratios are none of the content's.
    assert_eq!(shown(absolute("goodput")), [true, true]);
    assert_eq!(shown(PLAN.replace("\"goodput\"", "\"time\"")), [true, true]);
    assert_eq!(shown(absolute("time").replace("size = \"100 kB\"", "")), [true, true]);
}

#[test]
fn rates_are_read_as_the_flags_of_the_program() {
    assert_eq!(
        ["500K", "1.5MiB", "7", "2X", "-3K", ""].map(rate_bytes),
        [Some(500_000), Some(1_572_864), Some(7), None, None, None]
    );
}

#[test]
fn events_are_about_links_and_peers() {
    let more = "[[event]]\nprogress = \"30 %\"\nlink = [\"1-3\", \"1-1\"]\ndown = true\nlength = \"500 ms\"\n\
                [[event]]\nat = \"1 s\"\nlink = [\"1-1\", \"1-3\"]\nflows = 4\n\
                [[event]]\nprogress = \"50 %\"\nleave = 1\nin = [\"1-3\"]\nlength = \"2 s\"\n";
    let plan = read(&format!("{PLAN}{more}")).unwrap();
    let about: Vec<String> = plan.events.iter().map(|event| event.about(&plan.topology)).collect();
    assert_eq!(
        about,
        [
            "after 2 s: 1-2 > 1-1 has rate 1 Mbit/s",
            "after 3 s for 1 s: 1-1 - 1-3 carries 4.0 Mbit/s of cross traffic",
            "at 30 % for 500 ms: 1-1 - 1-3 is down",
            "after 1 s: 1-1 - 1-3 carries 4 TCP connections of others",
            "at 50 % for 2 s: 1 leechers of 1-3 leave",
        ]
    );
}

#[test]
fn claims_are_judged_by_means() {
    let plan = read(PLAN).unwrap();
    let judge = |scion: f64| {
        plan.claims[0].judge(&|_, cell| match (cell.candidate, cell.connections) {
            (0, Some(7)) => Some(10.0),
            (1, Some(7)) => Some(scion),
            _ => None,
        })
    };
    assert_eq!(judge(15.0), Verdict::Holds(vec![1.0, 1.5, 7.0]));
    assert_eq!(judge(10.0), Verdict::Fails(vec![1.0, 1.0, 7.0]));
    assert_eq!(judge(70.0), Verdict::Holds(vec![1.0, 7.0, 7.0]));
    assert_eq!(judge(71.0), Verdict::Fails(vec![1.0, 7.1, 7.0]));
    assert_eq!(plan.claims[0].judge(&|_, _| None), Verdict::Unknown);
    let text = "[[must]]\nthat = \"max(goodput(bgp, 3), fluid(scion, 7), 5) < bound(scion, 7)\"\n";
    let best = read(&format!("{PLAN}{text}")).unwrap();
    let known = |quantity: Quantity, _: &Cell| match quantity {
        Quantity::Mean(_) => Some(7.0),
        Quantity::Fluid => Some(8.0),
        Quantity::Bound => Some(9.0),
    };
    assert_eq!(best.claims[1].judge(&known), Verdict::Holds(vec![8.0, 9.0]));
    // What is divided by nothing is no value.
    assert_eq!(plan.claims[0].judge(&|_, _| Some(0.0)), Verdict::Unknown);
}

#[test]
fn errors_name_line_and_remedy() {
    for (was, is, says) in [
        ("title = \"Two\"", "titel = \"Two\"", "two.toml:1: the plan needs `title`: write title ="),
        ("repetitions = 3", "repetition = 3", "two.toml:4: `repetition` means nothing in the plan: use one of"),
        (
            "repetitions = 3",
            "repetitions = 0",
            "two.toml:4: `0` is no value for `repetitions`: write a whole number from 1",
        ),
        ("repetitions = 3", "repetitions = 1001", "two.toml:4: `repetitions` is 1001: give at most 1000"),
        ("size = \"1 MB\"", "size = \"1 kB\"", "two.toml:6: `1 kB` is no value for `size`: write a size from 16 KiB"),
        ("routing = \"bgp\"", "routing = \"ospf\"", "two.toml:14: `ospf` is no value for `routing`: write scion, bgp,"),
        ("routing = \"bgp\"", "routing = \"bgp\"\nselector = \"all\"", "two.toml:15: `selector` has no effect"),
        ("\"--congestion\", \"cubic\"", "\"--peer\", \"x\"", "`--peer` is for the lab to set: leave it out"),
        ("name = \"scion\"", "name = \"bgp\"", "`bgp` names two things: give each"),
        ("in = [\"1-3\"]", "in = [\"1-4\"]", "two.toml:21: AS 1-4 is not in the topology: name one"),
        ("role = \"seed\"", "role = \"leecher\"", "nobody in `swarm` has the content: give"),
        ("in = [\"1-3\"]", "in = [\"1-2\"]", "everybody in `swarm` who fetches is in a seed's AS: put"),
        ("count = 2", "count = 501", "`count` is 501: give at most 500"),
        (
            "limit_up = \"500K\"",
            "limit_up = \"500 Kbit\"",
            "`500 Kbit` is no value for `limit_up`: write bytes a second",
        ),
        (
            "limit_up = \"500K\"",
            "limit_up = \"0.5\"",
            "`0.5` is no value for `limit_up`: write bytes a second as flags have them, from 1K",
        ),
        ("limit_up = \"500K\"", "limit_up = \"999\"", "`999` is no value for `limit_up`: write bytes a second"),
        ("limit_up = \"500K\"", "limit_up = \"13G\"", "`13G` is no value for `limit_up`: write bytes a second"),
        (
            "routing = \"bgp\"",
            "routing = \"bgp\"\nclient = \"libtorrent\"\nleecher_flags = [\"x=1\"]",
            "two.toml:16: `leecher_flags` has no effect with libtorrent, whose flags are settings of all its peers: use `flags`",
        ),
        (
            "groups = \"connections\"",
            "",
            "several cells would be one bar of figure `fig`, `swarm/bgp/7` among them: say which it is of",
        ),
        ("groups = \"connections\"", "of = [\"5\"]", "`5` is no value for `of`: use one of bgp, scion, swarm, 3, 7"),
        ("link = [\"1-2\", \"1-1\"]", "link = [\"1-2\", \"1-3\"]", "there are 0 links between the two: name two"),
        ("rate = \"1 Mbit/s\"", "rate = \"1 bit/s\"", "rate of 1 bit/s: give 1 kbit/s"),
        ("cross = \"4 Mbit/s\"", "", "an event has one of `set`, `down`, `cross`, `flows` (with `link`) and"),
        ("at = \"3 s\"", "", "an event has either `at` or `progress`: write"),
        ("at = \"3 s\"", "progress = \"3\"", "`3` is no value for `progress`: write a share of what"),
        ("cross = \"4 Mbit/s\"", "flows = 65", "`flows` is 65: give at most 64"),
        ("set = { rate = \"1 Mbit/s\" }", "down = true", "a link that is down is down both ways: leave"),
        (
            "link = [\"1-1\", \"1-3\"]\ncross = \"4 Mbit/s\"",
            "leave = 3",
            "3 leave, and `swarm` has 2 of them: let fewer",
        ),
        (
            "link = [\"1-1\", \"1-3\"]\ncross = \"4 Mbit/s\"\nlength = \"1 s\"",
            "leave = 2",
            "everybody in `swarm` who fetches leaves for",
        ),
        ("connections = [3, 7]", "connections = [3, 3]", "`connections` has 1 to 64 values, each once: correct"),
        ("scion = 148", "tor = 148", "`tor` is no candidate here: use one of bgp, scion"),
        ("3 = { bgp", "4 = { bgp", "`4` is no group here: use one of 3, 7"),
        ("goodput(scion, 7)", "goodput(scion)", "two.toml:47: 2 cells are (scion): name the placement"),
        ("goodput(scion, 7)", "goodput(tor, 7)", "`tor` is no candidate, placement, variant or number"),
        ("goodput(scion, 7)", "speed(scion, 7)", "`speed` is no measure: use bound, fluid, max, goodput,"),
        ("goodput(scion, 7)", "max(goodput(scion, 7), 3", "a `)` is missing: close"),
        ("goodput(scion, 7)", "goodput", "`goodput` needs a cell behind it: write"),
        (" <= 1 + 2 * 3", " = 3", "`= 3` cannot stand there: write"),
        ("1 < goodput(scion, 7) / goodput(bgp, 7) <= 1 + 2 * 3", "goodput(scion, 7)", "a claim compares: write"),
        ("1 + 2 * 3", "(1 + 2", "a `)` is missing: close"),
        ("id = \"two\"", "id = \"../two\"", "two.toml:1: `../two` is no value for `id`: write up to 40"),
        ("id = \"two\"", "id = ", "two.toml:1: "),
    ] {
        assert!(PLAN.contains(was), "{was}");
        let error = read(&PLAN.replacen(was, is, 1)).map(drop).unwrap_err().to_string();
        assert!(error.contains(says), "{was} -> {is}: {error}");
    }
    let wide = |count: usize| (0..count).map(|each| format!("[[variant]]\nname = \"v{each}\"\n")).collect::<String>();
    let many = format!("{PLAN}{}", wide(64)).replace("goodput(scion, 7) / goodput(bgp, 7)", "1");
    let error = read(&many).unwrap_err().to_string();
    assert!(error.contains("several cells would be one bar of figure `fig`, `swarm/bgp/3/v1` among them"), "{error}");
    assert!(read(&many.replace("groups = \"connections\"", "groups = \"connections\"\nof = [\"v63\"]")).is_ok());
    let placements: String = (0..33)
        .map(|each| {
            let peers = |role: &str, home: &str| {
                format!("[[peers]]\nplacement = \"p{each}\"\nrole = \"{role}\"\nin = [\"{home}\"]\n")
            };
            peers("seed", "1-2") + &peers("leecher", "1-3")
        })
        .collect();
    let error = read(&format!("{PLAN}{placements}{}", wide(64))).unwrap_err().to_string();
    assert!(error.contains("there are 8704 cells, and at most 4096 are run"), "{error}");
    let nested = format!("{}1{} < 2", "(".repeat(30), ")".repeat(30));
    let error = read(&PLAN.replace("1 < goodput(scion, 7) / goodput(bgp, 7) <= 1 + 2 * 3", &nested)).unwrap_err();
    assert!(error.to_string().contains("the claim is too long: split it"), "{error}");
}

#[test]
fn a_file_that_is_missing_is_named() {
    let error = Plan::load(Path::new("/nonexistent/plan.toml")).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/plan.toml: the file cannot be read"), "{error}");
}

/// A plan whose network is drawn, as files have it.
fn drawn(network: &str) -> Result<Plan, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drawn.toml");
    let text = PLAN.replace("topology = \"net.toml\"\n", "");
    let text = ["1-1", "1-2", "1-3"]
        .iter()
        .zip(["1-101", "1-1001", "1-1002"])
        .fold(text, |text, (was, is)| text.replace(&format!("\"{was}\""), &format!("\"{is}\"")));
    std::fs::write(&path, format!("{text}{network}")).unwrap();
    Plan::load(&path).map_err(|error| error.to_string())
}

#[test]
fn a_network_is_drawn_as_the_plan_says() {
    let star = "[network]\nkind = \"tiers\"\ncore = 1\ncustomers = 3\nproviders = 1\npeerings = 0\nlink = { rate = \"4 Mbit/s\" }\n";
    let plan = drawn(star).unwrap();
    assert_eq!((plan.topology.ases().len(), plan.topology.links().len()), (4, 3));
    assert!(plan.topology_text.contains("rate = \"4 Mbit/s\""), "{}", plan.topology_text);
    look_through(plan);
    for (was, is, says) in [
        ("core = 1", "core = 1\nleaves = 3", ".toml:50: `leaves` means nothing in the network: use one of kind, core,"),
        ("customers = 3", "customers = 1", "AS 1-1002 is not in the topology: name one that is"),
        ("[network]", "topology = \"net.toml\"\n[network]", "`topology` means nothing in what must hold: use one of"),
        ("[network]\nkind", "[network]\nkinds", "kind = \"tiers\""),
    ] {
        let error = drawn(&star.replace(was, is)).map(drop).unwrap_err();
        assert!(error.contains(says), "{is}: {error}");
    }
    let both = format!("{PLAN}{star}");
    let error = read(&both).map(drop).unwrap_err().to_string();
    assert!(error.contains("two.toml:3: a plan has one network: leave out either `topology` or [network]"), "{error}");
}

#[test]
fn the_plans_of_this_repository_are_sound() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let plan = Plan::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(path.file_stem().unwrap().to_str(), Some(plan.id.as_str()), "a plan is named by its id");
        count += 1;
    }
    assert!(count >= 3);
}

/// Every claim of times is one of their proportions: the quick form has a smaller content, and all of them are shorter there.
#[test]
fn claims_of_times_hold_for_a_content_of_any_size() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
    for entry in std::fs::read_dir(folder).unwrap() {
        let plan = Plan::load(&entry.unwrap().path()).unwrap();
        let judged = |claim: &Claim, seed: u64, times_longer: f64| {
            let known = |quantity: Quantity, cell: &Cell| {
                let place = plan.cells().iter().position(|each| each == cell)? as u64;
                let value = 10.0 + fastrand::Rng::with_seed(seed.wrapping_mul(4099) + place).f64();
                let is_time = matches!(quantity, Quantity::Mean(Measure::Time | Measure::TimeMax));
                Some(if is_time { value * times_longer } else { value })
            };
            matches!(claim.judge(&known), Verdict::Holds(_))
        };
        for claim in &plan.claims {
            for seed in 0..50 {
                let [short, long] = [1.0, 1000.0].map(|times_longer| judged(claim, seed, times_longer));
                assert_eq!(short, long, "{}: {}", plan.id, claim.text);
            }
        }
    }
}

/// Looks at all of a plan that `lab check` shows, in each of its forms.
fn look_through(plan: Plan) {
    for plan in Form::ALL.map(|form| plan.clone().in_form(form)) {
        let cells = plan.cells();
        let time = crate::trial::estimate(&plan, &cells, &crate::fluid::Bounds::of_all(&plan, &cells), u32::MAX, 1);
        // Those of as many plans as one likes are added up.
        assert!(time.checked_mul(10_000).is_some(), "{time:?}");
        for cell in &cells {
            let bounds = crate::fluid::Bounds::new(&plan, cell);
            assert!(
                [bounds.goodput_mbit, bounds.fluid_mbit].iter().flatten().all(|mbit| mbit.is_finite()),
                "{bounds:?}"
            );
            plan.name(cell);
        }
        plan.events.iter().for_each(|event| drop(event.about(&plan.topology)));
    }
}

#[test]
fn the_slowest_plan_there_can_be_has_an_estimate() {
    let slow = PLAN.replace("limit_up = \"500K\"", "limit_up = \"1K\"").replace("size = \"1 MB\"", "size = \"100 GB\"");
    look_through(read(&slow.replace("count = 2", "count = 240")).unwrap());
}

/// Amounts as plans may have them, and as they may not.
fn amount() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        "[0-9]{1,12}",
        "[0-9]{0,3}\\.[0-9]{0,6}",
        Just("0".to_owned()),
        Just("1e9".to_owned()),
        Just("-1".to_owned()),
        Just("inf".to_owned()),
        Just("NaN".to_owned()),
    ];
    let unit = prop_oneof![
        Just(""),
        Just("K"),
        Just("M"),
        Just("G"),
        Just("KiB"),
        Just(" MB"),
        Just(" GB"),
        Just(" s"),
        Just(" ms"),
        Just(" h"),
        Just(" %"),
        Just(" bit/s"),
        Just(" Mbit/s")
    ];
    (number, unit).prop_map(|(number, unit)| format!("{number}{unit}"))
}

proptest! {
    #[test]
    fn no_amount_breaks_what_is_shown_of_a_plan(amounts in proptest::collection::vec((0..10usize, amount()), 1..4)) {
        const PLACES: [&str; 10] = [
            "\"500K\"", "\"1 MB\"", "\"100 kB\"", "\"5 s\"", "\"2 s\"", "\"3 s\"", "\"1 s\"", "\"1 Mbit/s\"", "\"4 Mbit/s\"", "= 3\n",
        ];
        let mut text = PLAN.to_owned();
        for (place, amount) in amounts {
            let of_number = PLACES[place].starts_with('=');
            let put = if of_number { format!("= {amount}\n") } else { format!("\"{amount}\"") };
            text = text.replacen(PLACES[place], &put, 1);
        }
        if let Ok(plan) = read(&text) {
            look_through(plan);
        }
    }

    #[test]
    fn no_text_breaks_it(cut in 0..PLAN.len(), junk in "\\PC{0,20}", claim in "[a-z0-9()+*/<>=., -]{0,60}") {
        let mut text = PLAN.to_owned();
        text.insert_str(cut, &junk);
        drop(read(&text));
        drop(read(&PLAN[..cut]));
        drop(read(&PLAN.replace("1 < goodput(scion, 7) / goodput(bgp, 7) <= 1 + 2 * 3", &claim)));
    }
}
