use proptest::prelude::*;

use super::*;
use crate::testing::path;

fn allows(sequence: &str, way: &str) -> bool {
    sequence.parse::<Sequence>().unwrap_or_else(|error| panic!("{error}")).allows(&path(way))
}

const TWO: &str = "1-1 1>2 1-2";
const THREE: &str = "1-1 1>2 1-2 3>4 2-3";

#[test]
fn each_operator_means_what_it_says() {
    for (sequence, two, three) in [
        ("", true, true),
        ("0", false, false),
        ("0 0", true, false),
        ("0 0 0", false, true),
        ("0*", true, true),
        ("0+", true, true),
        ("0 0 0*", true, true),
        ("0 0 0+", false, true),
        ("0 0 0?", true, true),
        ("0 0 0 ?  ", true, true),
        ("0 0?", true, false),
        ("0?", false, false),
        ("(0 0)?", true, false),
        ("(0 0)? 0", false, true),
        ("1-1 (1-2 | 1-9) 0?", true, true),
        ("1-1 1-2|64-12345 0?", true, true),
        ("0 1-9|1-2", true, false),
        ("1+ 2?", true, true),
        ("1+ 2", false, true),
        ("(1|2)*", true, true),
        ("((0)*)*", true, true),
        ("((0?)+)+", true, true),
    ] {
        assert_eq!(allows(sequence, TWO), two, "{sequence} on {TWO}");
        assert_eq!(allows(sequence, THREE), three, "{sequence} on {THREE}");
    }
}

#[test]
fn interfaces_are_matched_as_hops_pass_them() {
    for (sequence, expected) in [
        ("1-1#1 1-2#2,3 2-3#4", true),
        ("0 1-2#2 0", true),
        ("0 1-2#3 0", true),
        ("0 1-2#4 0", false),
        ("0 1-2#2,0 0", true),
        ("0 1-2#3,0 0", false),
        ("0 1-2#0,3 0", true),
        ("0 1-2#0,2 0", false),
        ("1-1#0,1 0 2-3#4,0", true),
        ("1-1#1,0 0 0", false),
        ("0-0#2,3 0 0", false),
        ("0 0-0#2,3 0", true),
    ] {
        assert_eq!(allows(sequence, THREE), expected, "{sequence}");
    }
}

#[test]
fn inside_one_as_there_are_no_hops() {
    for (sequence, expected) in
        [("", true), ("0", false), ("0*", true), ("0* 0?", true), ("0+", false), ("1-9#1,2*", true)]
    {
        assert_eq!(allows(sequence, "1-1"), expected, "{sequence}");
    }
}

#[test]
fn errors_name_the_place() {
    let error = |text: &str| text.parse::<Sequence>().unwrap_err();
    for (text, column, part) in [
        ("0-0-0#0", 3, "`0-0` is no AS"),
        ("0#0#0", 2, "1-ff00:0:110#0"),
        ("1#0", 2, "write ISD-AS#0"),
        ("0* 1-ff00#1", 6, "`ff00` is no AS"),
        ("(0", 1, "never closed"),
        ("0 (1 (2)", 3, "never closed"),
        ("0)", 2, "no parenthesis is open"),
        ("()", 2, "comes first"),
        ("0 |", 4, "should follow"),
        ("| 0", 1, "comes first"),
        ("0 ! 1", 3, "`!` has no place"),
        ("* 0", 1, "comes first"),
        ("é 0", 1, "`é` has no place"),
        ("0 é", 3, "`é` has no place"),
    ] {
        let found = error(text);
        assert_eq!(found.column, column, "{text}: {found}");
        assert!(found.to_string().contains(part), "{text}: {found}");
    }
}

#[test]
fn sizes_are_bounded() {
    let hops = |count: usize| vec!["0?"; count].join(" ");
    assert!(allows(&hops(SEQUENCE_HOPS_MAX), THREE));
    let over = hops(SEQUENCE_HOPS_MAX + 1).parse::<Sequence>().unwrap_err();
    assert_eq!(over.kind, PolicyErrorKind::TooMany { what: "hop predicates", limit: SEQUENCE_HOPS_MAX });
    let nested = |depth: usize| format!("{}0{}+", "(".repeat(depth), ")".repeat(depth));
    assert!(allows(&nested(SEQUENCE_DEPTH_MAX), THREE));
    assert!(nested(SEQUENCE_DEPTH_MAX + 1).parse::<Sequence>().is_err());
    let long = |len: usize| format!("{:len$}", "0*").parse::<Sequence>();
    assert!(long(super::super::TEXT_BYTES_MAX).is_ok());
    let over = long(super::super::TEXT_BYTES_MAX + 1).unwrap_err();
    assert_eq!(over.kind, PolicyErrorKind::TooLong(super::super::TEXT_BYTES_MAX));
    assert!(over.to_string().len() < 300, "an error does not repeat all of it");
}

/// What makes a backtracking matcher take longer than anybody waits.
#[test]
fn no_expression_makes_matching_slow() {
    let way: String = (2..64).map(|asn| format!(" 1>2 1-{asn}")).collect();
    let way = format!("1-1{way}");
    assert!(!allows("((0*)*)* 2", &way));
    assert!(!allows(&format!("{} 2", "(0?)*".repeat(100)), &way));
    assert!(allows(&format!("{} {}", "0? ".repeat(64), "0 ".repeat(63)), &way));
}

/// An expression as a tree, and the plainest way to match it: all ends that it can reach from a start.
#[derive(Clone, Debug)]
enum Tree {
    Isd(u16),
    Then(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
    Times(Box<Tree>, char),
}

impl Tree {
    fn print(&self) -> String {
        match self {
            Self::Isd(isd) => isd.to_string(),
            Self::Then(a, b) => format!("({} {})", a.print(), b.print()),
            Self::Or(a, b) => format!("({}|{})", a.print(), b.print()),
            Self::Times(a, operator) => format!("{}{operator}", a.print()),
        }
    }

    fn ends(&self, hops: &[u16], start: usize) -> Vec<usize> {
        let mut ends = match self {
            Self::Isd(isd) => {
                hops.get(start).filter(|hop| *isd == 0 || *isd == **hop).map(|_| start + 1).into_iter().collect()
            }
            Self::Then(a, b) => a.ends(hops, start).into_iter().flat_map(|middle| b.ends(hops, middle)).collect(),
            Self::Or(a, b) => [a.ends(hops, start), b.ends(hops, start)].concat(),
            Self::Times(a, operator) => {
                let mut ends = a.ends(hops, start);
                for _ in 0..if *operator == '?' { 0 } else { hops.len() } {
                    let more: Vec<usize> = ends.iter().flat_map(|end| a.ends(hops, *end)).collect();
                    ends.extend(more);
                    ends.sort_unstable();
                    ends.dedup();
                }
                if *operator != '+' {
                    ends.push(start);
                }
                ends
            }
        };
        ends.sort_unstable();
        ends.dedup();
        ends
    }
}

fn any_tree() -> impl Strategy<Value = Tree> {
    (0..4u16).prop_map(Tree::Isd).prop_recursive(5, 24, 2, |inner| {
        let pair = (inner.clone(), inner.clone());
        prop_oneof![
            pair.clone().prop_map(|(a, b)| Tree::Then(a.into(), b.into())),
            pair.prop_map(|(a, b)| Tree::Or(a.into(), b.into())),
            (inner, prop::sample::select(vec!['?', '+', '*']))
                .prop_map(|(a, operator)| Tree::Times(a.into(), operator)),
        ]
    })
}

proptest! {
    #[test]
    fn the_automaton_agrees_with_the_plainest_matcher(tree in any_tree(), hops in prop::collection::vec(1..4u16, 2..7)) {
        let way: Vec<String> = hops.iter().map(|isd| format!("{isd}-1")).collect();
        let expected = tree.ends(&hops, 0).contains(&hops.len());
        prop_assert_eq!(allows(&tree.print(), &way.join(" 1>2 ")), expected, "{} on {:?}", tree.print(), hops);
    }

    #[test]
    fn any_text_is_a_sequence_or_an_error_within_it(text in "[-+0-9a-f:#,?*|() ]{0,40}|\\PC{0,20}") {
        match text.parse::<Sequence>() {
            Ok(sequence) => prop_assert_eq!(sequence.to_string().parse::<Sequence>(), Ok(sequence)),
            Err(error) => prop_assert!((1..=text.chars().count() + 1).contains(&error.column)),
        }
    }
}
