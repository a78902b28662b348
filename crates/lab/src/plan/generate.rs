//! Networks that a plan describes by their kind and size, drawn from a seed.
//!
//! All have a core that is in one piece, customers below it, and peering links beside. They differ in who is whose provider:
//! in `tiers`, as in the small Internet of "BitTorrent over SCION", any core AS, one as likely as another; in
//! `barabasi-albert`, any AS that was there before, the likelier the more links it has (Barabási and Albert, "Emergence of
//! Scaling in Random Networks", 1999; BRITE's model of ASes), so that few have many links and most have few.
//!
//! A recipe makes a topology file, which results keep: they outlive a change of what is drawn here.

use std::collections::BTreeSet;
use std::fmt::Write;

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::topology::document::{Fields, Node};

use super::event::properties;
use super::limits::{GENERATED_ASES_MAX, GENERATED_LINKS_MAX};
use super::read::{Located, count, told};
use super::variant::Properties;

/// ASes of the core are `1-101` and on, the others `1-1001` and on.
const CORE_FIRST: usize = 101;
const CUSTOMER_FIRST: usize = 1001;

/// Who becomes whose provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Core ASes, all alike.
    Tiers,
    /// ASes that were there before, by how many links they have.
    BarabasiAlbert,
}

impl Kind {
    const ALL: [(&'static str, Self); 2] = [("tiers", Self::Tiers), ("barabasi-albert", Self::BarabasiAlbert)];
}

/// What a network is drawn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    kind: Kind,
    seed: u64,
    /// How many core ASes and other ASes there are.
    core: usize,
    customers: usize,
    /// Links among the core in all, providers of each customer, peering links among customers in all.
    core_links: usize,
    providers: usize,
    peerings: usize,
    /// Properties of all links, and of those in the core besides.
    link: Properties,
    core_link: Properties,
}

/// Reads `[network]`.
pub(super) fn recipe(node: &Node) -> Located<Recipe> {
    let mut fields = told(Fields::new(node, "the network"))?;
    let kind = told(fields.need("kind", "kind = \"tiers\""))?;
    let kind = told(kind.read("kind", "tiers or barabasi-albert", |text| {
        Kind::ALL.into_iter().find(|(name, _)| *name == text).map(|(_, kind)| kind)
    }))?;
    let ases = GENERATED_ASES_MAX as u32;
    let core_node = told(fields.need("core", "core = 5"))?;
    let core = count(core_node, "core", ases)? as usize;
    let customers_node = told(fields.need("customers", "customers = 10"))?;
    let customers = count(customers_node, "customers", ases)? as usize;
    if core + customers > GENERATED_ASES_MAX {
        let problem =
            format!("there are {} ASes, and at most {GENERATED_ASES_MAX} are made: ask for fewer", core + customers);
        return Err((customers_node.line, problem));
    }
    let seed = fields.get("seed").map(|node| count(node, "seed", u32::MAX)).transpose()?.unwrap_or(1);
    let mut number = |key, least: usize, most: usize, default: usize, of: &str| -> Located<usize> {
        let Some(node) = fields.get(key) else { return Ok(default.clamp(least, most)) };
        let what = "a whole number";
        let value = told(node.read(key, what, |text| text.parse::<usize>().ok()))?;
        match (least..=most).contains(&value) {
            true => Ok(value),
            false => Err((node.line, format!("`{key}` is {value}: {of} have {least} to {most}"))),
        }
    };
    let pairs = |ases: usize| ases * ases.saturating_sub(1) / 2;
    let core_links =
        number("core_links", core - 1, pairs(core), core + core / 2, &format!("{core} core ASes in one piece"))?;
    // The first customer has the core alone to choose from.
    let providers = number("providers", 1, core, 2, &format!("customers below {core} core ASes"))?;
    // Not all pairs: those of provider and customer are taken.
    let free = pairs(customers).saturating_sub(if kind == Kind::Tiers { 0 } else { customers * providers });
    let peerings = number("peerings", 0, free, customers / 2, &format!("{customers} customers"))?;
    let links = core_links + customers * providers + peerings;
    if links > GENERATED_LINKS_MAX {
        let problem = format!("there are {links} links, and at most {GENERATED_LINKS_MAX} are made: ask for fewer");
        return Err((node.line, problem));
    }
    let mut set = |key| {
        let node = fields.get(key);
        Ok(node.map(|node| properties(node, [LinkShape::default(); 2])).transpose()?.unwrap_or_default())
    };
    let (link, core_link) = (set("link")?, set("core_link")?);
    told(fields.finish())?;
    Ok(Recipe { kind, seed: u64::from(seed), core, customers, core_links, providers, peerings, link, core_link })
}

impl Recipe {
    /// The network as a topology file: the same for the same recipe.
    pub fn draw(&self) -> String {
        let mut drawing = Drawing { recipe: self, random: fastrand::Rng::with_seed(self.seed), degrees: Vec::new() };
        let core = drawing.core();
        let transit = drawing.transit();
        let peering = drawing.peering(&transit);
        self.write(&core, &transit, &peering)
    }

    fn write(&self, core: &[Pair], transit: &[Pair], peering: &[Pair]) -> String {
        // Writing to a string does not fail, here and below.
        let mut text =
            format!("# Drawn from seed {}.\nname = \"generated\"\n\n[defaults]\n{}", self.seed, lines(&self.link));
        for at in 0..self.core + self.customers {
            let _ = writeln!(text, "\n[as.\"{}\"]", self.name(at));
            if at < self.core {
                text.push_str("core = true\n");
            }
        }
        for (one, other) in core {
            let _ = writeln!(text, "\n[[link]]\ncore = [\"{}\", \"{}\"]", self.name(*one), self.name(*other));
            text.push_str(&lines(&self.core_link));
        }
        for (parent, child) in transit {
            let _ =
                writeln!(text, "\n[[link]]\nparent = \"{}\"\nchild = \"{}\"", self.name(*parent), self.name(*child));
        }
        for (one, other) in peering {
            let _ = writeln!(text, "\n[[link]]\npeering = [\"{}\", \"{}\"]", self.name(*one), self.name(*other));
        }
        text
    }

    fn name(&self, at: usize) -> String {
        match at < self.core {
            true => format!("1-{}", CORE_FIRST + at),
            false => format!("1-{}", CUSTOMER_FIRST + at - self.core),
        }
    }
}

/// Two ASes by their places, the core first.
type Pair = (usize, usize);

struct Drawing<'a> {
    recipe: &'a Recipe,
    random: fastrand::Rng,
    /// Links of each AS that is there.
    degrees: Vec<usize>,
}

impl Drawing<'_> {
    /// A tree, so that the core is in one piece, and then any other pairs.
    fn core(&mut self) -> Vec<Pair> {
        let mut pairs = BTreeSet::new();
        self.degrees.push(0);
        for fresh in 1..self.recipe.core {
            let old = self.one_of(&[]);
            self.degrees.push(0);
            self.join(&mut pairs, (old, fresh));
        }
        while pairs.len() < self.recipe.core_links {
            let one = self.one_of(&[]);
            // Who has a link to all others has none to give.
            let taken: Vec<usize> = (0..self.recipe.core)
                .filter(|other| *other == one || pairs.contains(&(one.min(*other), one.max(*other))))
                .collect();
            if taken.len() < self.recipe.core {
                let other = self.one_of(&taken);
                self.join(&mut pairs, (one.min(other), one.max(other)));
            }
        }
        pairs.into_iter().collect()
    }

    /// The providers of each customer.
    fn transit(&mut self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for customer in self.recipe.core..self.recipe.core + self.recipe.customers {
            let mut chosen = Vec::new();
            while chosen.len() < self.recipe.providers {
                let provider = self.one_of(&chosen);
                chosen.push(provider);
            }
            chosen.sort_unstable();
            chosen.iter().for_each(|provider| self.degrees[*provider] += 1);
            pairs.extend(chosen.into_iter().map(|provider| (provider, customer)));
            if self.recipe.kind == Kind::BarabasiAlbert {
                self.degrees.push(self.recipe.providers);
            }
        }
        pairs
    }

    /// Pairs of customers that no link joins, one as likely as another.
    fn peering(&mut self, transit: &[Pair]) -> Vec<Pair> {
        let Recipe { core, customers, peerings, .. } = *self.recipe;
        let all = (core..core + customers).flat_map(|one| (one + 1..core + customers).map(move |other| (one, other)));
        let mut free: Vec<Pair> = all.filter(|pair| !transit.contains(pair)).collect();
        self.random.shuffle(&mut free);
        free.truncate(peerings);
        free.sort_unstable();
        free
    }

    fn join(&mut self, pairs: &mut BTreeSet<Pair>, (one, other): Pair) {
        pairs.insert((one, other));
        self.degrees[one] += 1;
        self.degrees[other] += 1;
    }

    /// One of those that are there, but for some of them.
    fn one_of(&mut self, but: &[usize]) -> usize {
        // The first AS has no link when the second one comes.
        let weight = |at: usize| match self.recipe.kind {
            _ if but.contains(&at) => 0,
            Kind::Tiers => 1,
            Kind::BarabasiAlbert => self.degrees[at].max(1),
        };
        let weights: Vec<usize> = (0..self.degrees.len()).map(weight).collect();
        let mut drawn = self.random.usize(0..weights.iter().sum::<usize>().max(1));
        weights
            .iter()
            .position(|weight| {
                let is_here = drawn < *weight;
                drawn = drawn.saturating_sub(*weight);
                is_here
            })
            // Callers leave one to draw.
            .unwrap_or_default()
    }
}

fn lines(properties: &Properties) -> String {
    properties.iter().map(|(key, value)| format!("{key} = \"{value}\"\n")).collect()
}

#[cfg(test)]
mod tests {
    use anabranch_asnet::topology::document::from_toml;
    use anabranch_asnet::topology::{LinkType, Topology};
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Recipe, String> {
        recipe(&from_toml(text).unwrap()).map_err(|(line, problem)| format!("{line}: {problem}"))
    }

    fn count_of(topology: &Topology, kind: LinkType) -> usize {
        topology.links().iter().filter(|link| link.kind == kind).count()
    }

    #[test]
    fn a_recipe_is_what_it_says_and_the_same_each_time() {
        let text = "kind = 'tiers'\ncore = 5\ncustomers = 10\ncore_links = 7\nproviders = 2\npeerings = 6\nseed = 3\n\
                    link = { rate = '10 Mbit/s', delay = '10 ms' }\ncore_link = { rate = '15 Mbit/s' }\n";
        let drawn = read(text).unwrap().draw();
        assert_eq!(drawn, read(text).unwrap().draw());
        assert_ne!(drawn, read(&text.replace("seed = 3", "seed = 4")).unwrap().draw());
        let topology = Topology::from_toml("net", &drawn).unwrap();
        let kinds = [LinkType::Core, LinkType::ParentChild, LinkType::Peering].map(|kind| count_of(&topology, kind));
        assert_eq!((topology.ases().len(), kinds), (15, [7, 20, 6]));
        for link in topology.links() {
            let rate = if link.kind == LinkType::Core { 15_000_000 } else { 10_000_000 };
            assert_eq!((link.shapes[1].rate_bps, link.shapes[0].delay.as_millis()), (Some(rate), 10));
        }
        assert!(
            topology.index("1-105".parse().unwrap()).is_some() && topology.index("1-1010".parse().unwrap()).is_some()
        );
    }

    #[test]
    fn links_attract_links_in_one_kind_and_the_core_alone_has_customers_in_the_other() {
        for seed in 1..=5 {
            let customers = |kind: &str| {
                let text =
                    format!("kind = '{kind}'\ncore = 4\ncustomers = 100\nproviders = 2\npeerings = 0\nseed = {seed}\n");
                let topology = Topology::from_toml("net", &read(&text).unwrap().draw()).unwrap();
                let of = |at: usize| {
                    let parents = topology.links().iter().filter(|link| link.kind == LinkType::ParentChild);
                    parents.filter(|link| link.ends[0].isd_as == topology.ases()[at].isd_as).count()
                };
                (0..104).map(of).collect::<Vec<usize>>()
            };
            assert_eq!(customers("tiers")[..4].iter().sum::<usize>(), 200);
            let attracted = customers("barabasi-albert");
            // A few of those who came first have half of all; who came last has hardly any.
            let (early, late): (usize, usize) = (attracted[..26].iter().sum(), attracted[78..].iter().sum());
            assert!(
                attracted[4..].iter().any(|count| *count > 0) && early > 2 * late.max(1) && early > 100,
                "{attracted:?}"
            );
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        let text = "kind = \"tiers\"\ncore = 3\ncustomers = 4\n";
        for (more, says) in [
            ("core_links = 1", "`core_links` is 1: 3 core ASes in one piece have 2 to 3"),
            ("core_links = 4", "`core_links` is 4: 3 core ASes in one piece have 2 to 3"),
            ("providers = 0", "`providers` is 0: customers below 3 core ASes have 1 to 3"),
            ("providers = 4", "4: `providers` is 4: customers below 3 core ASes have 1 to 3"),
            ("peerings = 7", "`peerings` is 7: 4 customers have 0 to 6"),
            ("peerings = \"all\"", "`all` is no value for `peerings`: write a whole number"),
            ("seed = 0", "`0` is no value for `seed`: write a whole number from 1"),
            ("link = { rate = \"fast\" }", "rate"),
            ("links = 3", "`links` means nothing in the network: use one of kind,"),
        ] {
            let error = read(&format!("{text}{more}\n")).unwrap_err();
            assert!(error.contains(says), "{more}: {error}");
        }
        for (was, is, says) in [
            ("\"tiers\"", "\"ring\"", "`ring` is no value for `kind`: write tiers or barabasi-albert"),
            ("core = 3", "core = 0", "`0` is no value for `core`: write a whole number from 1"),
            ("customers = 4", "customers = 198", "there are 201 ASes, and at most 200 are made: ask for fewer"),
            ("core = 3\n", "", "core = 5"),
        ] {
            let error = read(&text.replace(was, is)).unwrap_err();
            assert!(error.contains(says), "{is}: {error}");
        }
        let error = read("kind = \"tiers\"\ncore = 100\ncustomers = 100\nproviders = 11\n").unwrap_err();
        assert!(error.contains("links, and at most 1000 are made: ask for fewer"), "{error}");
    }

    proptest! {
        #[test]
        fn every_recipe_makes_a_sound_network(
            scale_free in any::<bool>(), core in 1usize..20, customers in 1usize..40, numbers in any::<[u16; 3]>(), seed in 1u32..,
        ) {
            let kind = if scale_free { "barabasi-albert" } else { "tiers" };
            let [core_links, providers, peerings] = numbers.map(usize::from);
            let text = format!(
                "kind = '{kind}'\ncore = {core}\ncustomers = {customers}\nseed = {seed}\ncore_links = {}\nproviders = {}\npeerings = {}\n",
                core - 1 + core_links % (core * (core - 1) / 2 - (core - 1) + 1),
                1 + providers % core.min(5),
                peerings % (customers * (customers - 1) / 2 + 1).saturating_sub(5 * customers).max(1),
            );
            let recipe = read(&text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            let topology = Topology::from_toml("net", &recipe.draw());
            let topology = topology.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            prop_assert_eq!(topology.ases().len(), core + customers);
            let kinds = [LinkType::Core, LinkType::ParentChild, LinkType::Peering].map(|kind| count_of(&topology, kind));
            prop_assert_eq!(kinds, [recipe.core_links, customers * recipe.providers, recipe.peerings]);
        }
    }
}
