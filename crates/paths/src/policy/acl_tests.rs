use proptest::prelude::*;

use super::*;
use crate::testing::path;

fn allows(acl: &str, way: &str) -> bool {
    acl.parse::<Acl>().unwrap_or_else(|error| panic!("{error}")).allows(&path(way))
}

#[test]
fn the_first_matching_entry_decides() {
    const WAY: &str = "1-ff00:0:133 1>2 1-ff00:0:120 3>4 2-ff00:0:210";
    assert!(allows("+", WAY));
    assert!(!allows("-", WAY));
    assert!(allows("+ 1-ff00:0:133 + 1-ff00:0:120 - 1 +", WAY));
    assert!(!allows("+ 1-ff00:0:133 - 1 +", WAY), "120 is of ISD 1");
    assert!(!allows("- 1-ff00:0:120 + 1-ff00:0:120 +", WAY), "denied first");
    assert!(!allows("- 2 + 0", WAY));
    assert!(allows("- 3 + 0-0#0,0", WAY));
    assert!(allows("+ 0-ff00:0:133 + 0-ff00:0:120 + 2 -", WAY));
}

#[test]
fn interfaces_are_told_apart_by_direction() {
    const WAY: &str = "1-1 1>2 1-2 3>4 1-3";
    assert!(!allows("- 1-2#2 +", WAY));
    assert!(!allows("- 1-2#3 +", WAY));
    assert!(allows("- 1-2#4 +", WAY));
    assert!(!allows("- 1-2#2,0 +", WAY), "zero is any interface, so going out is denied too");
    assert!(allows("- 1-2#3,2 +", WAY), "in by 3 and out by 2 is the other way");
    assert!(!allows("- 1-2#3,3 +", WAY), "out by 3 matches, interface by interface");
    assert!(allows("+ 1-1 + 1-2#2,3 + 1-3 -", WAY));
}

#[test]
fn inside_one_as_nothing_is_denied() {
    assert!(allows("-", "1-1"));
}

#[test]
fn errors_name_the_place() {
    let error = |text: &str| text.parse::<Acl>().unwrap_err();
    for (text, column, part) in [
        ("", 1, "`+` or `-` should follow"),
        ("1-ff00:0:133 +", 1, "`1` has no place here"),
        ("+ 1-ff00:0:133", 15, "end it with `+`"),
        ("+ - 1", 3, "never looked at"),
        ("- 0 +", 5, "never looked at"),
        ("+ 1-ff00:0:x +", 5, "`ff00:0:x` is no AS"),
        ("+ 1-ff00:0 +", 5, "`ff00:0` is no AS"),
        ("+ 99999 +", 3, "`99999` is no ISD"),
        ("+ 1#2 +", 4, "1-ff00:0:110#2"),
        ("+ 1-0#2 +", 3, "interface 2 means something else"),
        ("+ 1-2#3,x +", 9, "`x` is no interface"),
        ("+ 1-2#3, +", 9, "`` is no interface"),
        ("+ 1-2#70000 +", 7, "`70000` is no interface"),
        ("é", 1, "`é` has no place"),
    ] {
        let found = error(text);
        assert_eq!(found.column, column, "{text}: {found}");
        assert!(found.to_string().contains(part), "{text}: {found}");
    }
}

#[test]
fn the_number_of_entries_is_bounded() {
    let with = |count: usize| format!("{}+", "- 1-1 ".repeat(count - 1)).parse::<Acl>();
    assert!(with(ACL_ENTRIES_MAX).is_ok());
    let over = with(ACL_ENTRIES_MAX + 1).unwrap_err();
    assert_eq!(over.kind, PolicyErrorKind::TooMany { what: "entries", limit: ACL_ENTRIES_MAX });
}

#[test]
fn entries_of_a_list_are_one_each() {
    assert!(Acl::from_entries(["+ 1-1", "-"]).is_ok());
    let failing = |entries: &[&str]| {
        let (index, error) = Acl::from_entries(entries.iter().copied()).unwrap_err();
        (index, error.to_string())
    };
    assert_eq!(failing(&["+ 1-1 - 2", "-"]).0, 0);
    assert!(failing(&["+ 1-1", "+ 1-2"]).1.contains("end it with"));
    assert_eq!(failing(&["+ 1-1", "+", "-"]).0, 2);
    assert!(failing(&[]).1.contains("end it with"));
}

proptest! {
    #[test]
    fn what_is_printed_parses_to_the_same(entries in prop::collection::vec((any::<bool>(), any::<u16>(), 1..1u64 << 48, 0..4u8, any::<[u16; 2]>()), 0..8), last: bool) {
        let sign = |allow| if allow { '+' } else { '-' };
        let mut text = String::new();
        for (allow, isd, asn, form, [a, b]) in entries {
            let isd_as = crate::IsdAs::new(isd, asn).unwrap();
            text += &match form {
                0 if isd != 0 => format!("{} {isd} ", sign(allow)),
                1 => format!("{} {isd_as}#{a} ", sign(allow)),
                2 => format!("{} {isd_as}#{a},{b} ", sign(allow)),
                _ => format!("{} {isd_as} ", sign(allow)),
            };
        }
        text.push(sign(last));
        let acl: Acl = text.parse().unwrap();
        prop_assert_eq!(acl.to_string().parse::<Acl>(), Ok(acl));
    }

    #[test]
    fn any_text_is_an_acl_or_an_error_within_it(text in "[-+0-9a-f:#, \n]{0,40}|\\PC{0,20}") {
        match text.parse::<Acl>() {
            Ok(acl) => prop_assert_eq!(acl.to_string().parse::<Acl>(), Ok(acl)),
            Err(error) => prop_assert!((1..=text.chars().count() + 1).contains(&error.column)),
        }
    }
}
