//! Crates whose folders stand in layers: a folder uses those below it, and never, by whatever way round, those above. The files at the top
//! of a crate are one folder each, but for those that are two halves of one idea. The same holds inside each folder.
//!
//! `cargo test -p anabranch-testbed --test layers -- --nocapture` prints which folder uses which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Those that keep to it.
const CRATES: [&str; 6] = ["swarm", "paths", "hercules", "ppspp", "transport", "scion"];

/// Which folder, or file at the top, uses which.
type Uses = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_folder_uses_one_above_it() {
    for name in CRATES {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        println!("{name}:");
        for layer in layers_of(&root, &mut Vec::new()) {
            for (folder, used) in layer {
                println!("    {folder}{}{used}", if used.is_empty() { "" } else { " uses " });
            }
        }
    }
}

/// The folders and files at the top of the module `at` of the crate in `root`, from below, each with what it uses. Those inside of them
/// are looked at too.
fn layers_of(root: &Path, at: &mut Vec<String>) -> Vec<Vec<(String, String)>> {
    let folder = at.iter().fold(root.to_owned(), |folder, name| folder.join(name));
    let uses = joined(uses(&folder, at), |name| folder.join(name).with_extension("rs").exists());
    let layers =
        layers(&uses).unwrap_or_else(|circle| panic!("{}: these use each other: {circle:?}", folder.display()));
    for name in uses.keys().filter(|name| folder.join(name).is_dir()) {
        at.push(name.clone());
        layers_of(root, at);
        at.pop();
    }
    let with_used = |name: String| {
        let used = uses[&name].iter().cloned().collect::<Vec<_>>().join(", ");
        (name, used)
    };
    layers.into_iter().map(|layer| layer.into_iter().map(with_used).collect()).collect()
}

#[test]
fn circles_are_found() {
    let of = |pairs: &[(&str, &[&str])]| -> Uses {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), b.iter().map(|b| (*b).to_owned()).collect())).collect()
    };
    assert_eq!(layers(&of(&[("a", &["b"]), ("b", &[])])).unwrap(), [["b"], ["a"]]);
    assert_eq!(layers(&of(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])])).unwrap_err(), ["a", "b", "c"]);
    let source = "use crate::a::B;\nfn f() { crate::c::g(); } // crate::d\nuse crate::{e, f::G};\nuse super::h;";
    assert_eq!(names(source, &[], 1), ["a", "c", "e", "f", "h"]);
    assert_eq!(names("use crate::a::b::C;\nuse crate::d;\nuse super::e;", &["a".to_owned()], 1), ["b", "e"]);
    assert_eq!(super_names("use super::super::a; use super::b;", 2), ["a"]);
    let at_root = at_root("pub use a::{\n    B, C as D,\n};\npub(crate) use e::f::G;");
    let at_root: Vec<(&str, &str)> = at_root.iter().map(|(name, folder)| (name.as_str(), folder.as_str())).collect();
    assert_eq!(at_root, [("B", "a"), ("D", "a"), ("G", "e")]);
}

/// Folders from below; or those that no order has.
fn layers(uses: &Uses) -> Result<Vec<Vec<String>>, Vec<String>> {
    let (mut left, mut layers) = (uses.clone(), Vec::new());
    while !left.is_empty() {
        let lowest: Vec<String> = left
            .iter()
            .filter(|(_, used)| !used.iter().any(|used| left.contains_key(used)))
            .map(|(folder, _)| folder.clone())
            .collect();
        if lowest.is_empty() {
            return Err(left.into_keys().collect());
        }
        left.retain(|folder, _| !lowest.contains(folder));
        layers.push(lowest);
    }
    Ok(layers)
}

/// Files at the top that use each other, by whatever way round among such files, as one.
fn joined(mut uses: Uses, is_file: impl Fn(&str) -> bool) -> Uses {
    let of_files: Uses = uses
        .iter()
        .filter(|(name, _)| is_file(name))
        .map(|(name, used)| (name.clone(), used.iter().filter(|used| is_file(used)).cloned().collect()))
        .collect();
    let reached = |from: &String| {
        let (mut reached, mut left) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(next) = left.pop() {
            left.extend(of_files[&next].iter().filter(|used| reached.insert((*used).clone())).cloned());
        }
        reached
    };
    let reached: Uses = of_files.keys().map(|name| (name.clone(), reached(name))).collect();
    for name in of_files.keys() {
        let halves: Vec<&String> = reached[name].iter().filter(|other| reached[*other].contains(name)).collect();
        let Some(first) = halves.first().filter(|first| **first < name) else { continue };
        let of_other = uses.remove(name).unwrap();
        uses.get_mut(*first).unwrap().extend(of_other);
        for used in uses.values_mut().filter(|used| used.contains(name)) {
            used.remove(name);
            used.insert((*first).clone());
        }
    }
    uses.iter_mut().for_each(|(name, used)| _ = used.remove(name));
    uses
}

/// Which of what is in `folder`, which is the module `at`, uses which.
fn uses(folder: &Path, at: &[String]) -> Uses {
    let mut uses = Uses::new();
    collect(folder, at, &mut Vec::new(), &mut uses);
    let folders: BTreeSet<String> = uses.keys().cloned().collect();
    let top = folder.join(if at.is_empty() { "lib.rs" } else { "mod.rs" });
    let at_root = at_root(&fs::read_to_string(top).unwrap());
    for (folder, used) in &mut uses {
        let named = used.iter().filter_map(|name| folders.get(name).or_else(|| at_root.get(name)).cloned());
        *used = named.filter(|name| folders.contains(name) && name != folder).collect();
    }
    uses
}

/// Which folder has what the crate's root names.
fn at_root(source: &str) -> BTreeMap<String, String> {
    let mut at_root = BTreeMap::new();
    for statement in source.split("use ").skip(1).filter_map(|rest| rest.split_once(';')).map(|(path, _)| path) {
        let (folder, names) = statement.split_once("::").unwrap_or((statement, ""));
        let names = names.rsplit_once('{').map_or(names, |(_, names)| names.trim_end_matches('}'));
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let name = name.rsplit("::").next().unwrap().rsplit(" as ").next().unwrap();
            at_root.insert(name.to_owned(), folder.trim().to_owned());
        }
    }
    at_root
}

/// Reads the sources below a folder, those of tests left out.
fn collect(dir: &Path, top: &[String], at: &mut Vec<String>, uses: &mut Uses) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name == "tests" || name.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            at.push(name);
            collect(&path, top, at, uses);
            at.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !(at.is_empty() && ["lib", "mod"].contains(&&*name))
        {
            let source = fs::read_to_string(&path).unwrap();
            let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let folder = at.first().unwrap_or(&name).clone();
            // The module's own depth below the top.
            let depth = at.len() + usize::from(name != "mod");
            let used = uses.entry(folder).or_default();
            used.extend(names(source, top, depth));
        }
    }
}

/// What a module that is so deep below the module `top` names there.
fn names(source: &str, top: &[String], depth: usize) -> Vec<String> {
    let source: String = source.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n");
    let prefix: String =
        ["crate"].into_iter().chain(top.iter().map(String::as_str)).map(|name| format!("{name}::")).collect();
    let mut names = after(&source, &prefix);
    names.extend(super_names(&source, depth));
    names
}

/// The same by way of its parents.
fn super_names(source: &str, depth: usize) -> Vec<String> {
    let root = "super::".repeat(depth);
    if depth == 0 { Vec::new() } else { after(source, &root) }
}

/// The names that follow `prefix` where a path begins with it: one, or those in braces.
fn after(source: &str, prefix: &str) -> Vec<String> {
    let is_part = |byte: char| byte.is_alphanumeric() || byte == '_' || byte == ':';
    let name = |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut names = Vec::new();
    for (at, _) in source.match_indices(prefix) {
        if source[..at].ends_with(is_part) {
            continue;
        }
        let rest = &source[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(rest) => names.extend(rest.split('}').next().unwrap().split(',').map(name)),
            None => names.push(name(rest)),
        }
    }
    names.retain(|name| !name.is_empty());
    names
}
