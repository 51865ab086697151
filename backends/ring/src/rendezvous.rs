//! The member to which a name belongs.
//!
//! Invariant: the result depends on the names alone, so that all clients agree, also those in other
//! languages. A member that is added takes names from each of the others, and a member that is
//! removed leaves its names to each of them; no other name moves.
//!
//! The weight of a member is XXH64 with the seed 0, over the name of the member, a line break and
//! the name of the lock. The member with the highest weight owns the name. Of two equal weights,
//! that of the member with the greater name counts, byte by byte.

use xxhash_rust::xxh64::Xxh64;

/// The member that owns a name; `None` without members.
pub(crate) fn owner<'a>(members: &'a [String], name: &str) -> Option<&'a str> {
    let members = members.iter().map(String::as_str);
    members.max_by_key(|member| (weight(member, name), *member))
}

/// The name of a member has no line break, so different pairs are different texts.
fn weight(member: &str, name: &str) -> u64 {
    let mut hash = Xxh64::new(0);
    hash.update(member.as_bytes());
    hash.update(b"\n");
    hash.update(name.as_bytes());
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("m{number}")).collect()
    }

    /// For clients in other languages.
    #[test]
    fn the_published_vectors_hold() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/stores/ring.md");
        let page = std::fs::read_to_string(page).unwrap();
        let table = page.split_once("| member | name of the lock | XXH64 |\n");
        let (_, table) = table.expect("a table of vectors");
        let rows: Vec<[&str; 3]> = table
            .lines()
            .skip(1)
            .map_while(|row| row.strip_prefix("| ")?.strip_suffix("` |"))
            .map(|row| row.split(" | `").collect::<Vec<_>>().try_into().unwrap())
            .collect();
        assert_eq!(rows.len(), 5, "{rows:?}");
        for [member, name, expected] in rows {
            let name = name.trim_end_matches('`');
            assert_eq!(format!("{:016x}", weight(member, name)), expected, "{name}");
        }
        let three = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(owner(&three, "order:42"), Some("b"));
    }

    #[test]
    fn names_are_spread_evenly_and_only_those_of_one_member_move() {
        let (three, four) = (members(3), members(4));
        let mut counts = [0; 4];
        let mut moved = 0;
        for number in 0..40_000 {
            let name = format!("order:{number}");
            let before = owner(&three, &name);
            let after = owner(&four, &name);
            let at = four.iter().position(|it| Some(it.as_str()) == after);
            counts[at.unwrap()] += 1;
            if before != after {
                assert_eq!(after, Some("m3"), "{name} moved between others");
                moved += 1;
            }
        }
        for count in counts {
            assert!((9_500..10_500).contains(&count), "{counts:?}");
        }
        assert_eq!(moved, counts[3]);
    }
}
