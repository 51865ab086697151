//! The order of contenders in one queue, by the number that a server appends to a node's name.
//!
//! Invariant: the order is the order of creation, also across the wrap-around of the servers'
//! counter, as long as no two contenders of one queue are 2^31 or more apart.

use std::cmp::Ordering;

/// The text before the sequence number in the name of a contender's node. This library, Curator and
/// the lock recipe of `zookeeper-client` write the first text; kazoo writes the second.
const SEPARATORS: [&str; 2] = ["lock-", "__lock__"];

/// The number at the end of a sequential node's name.
///
/// Servers count in 32 bits and print `%010d`, so after 2,147,483,647 the numbers are negative and
/// start with a minus sign. Newer servers may count in 64 bits and print 19 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence(i64);

impl Sequence {
    #[cfg(test)]
    pub(crate) const fn new(number: i64) -> Self {
        Self(number)
    }

    /// Reads the number from a child's name; `None` when the child is no contender's node.
    pub(crate) fn parse(child: &str) -> Option<Self> {
        let known = SEPARATORS
            .iter()
            .filter_map(|separator| Some(child.rfind(separator)? + separator.len()))
            .max();
        let digits = match known {
            Some(at) => &child[at..],
            // Another recipe wrote this name. Every sequential node ends with at least ten digits.
            None => {
                let digits = child.rsplit(|c: char| !c.is_ascii_digit()).next()?;
                if digits.len() < 10 {
                    return None;
                }
                digits
            }
        };
        let unsigned = digits.strip_prefix('-').unwrap_or(digits);
        if unsigned.is_empty() || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        digits.parse().ok().map(Self)
    }

    /// Returns whether this number is the one right after `other`.
    pub(crate) fn follows(self, other: Self) -> bool {
        match (i32::try_from(self.0), i32::try_from(other.0)) {
            (Ok(this), Ok(other)) => this == other.wrapping_add(1),
            _ => other.0.checked_add(1) == Some(self.0),
        }
    }

    /// Returns whether this contender entered the queue before `other`. The answer is right if
    /// fewer than 2^31 contenders entered in between.
    pub(crate) fn is_before(self, other: Self) -> bool {
        match (i32::try_from(self.0), i32::try_from(other.0)) {
            (Ok(this), Ok(other)) => this.wrapping_sub(other) < 0,
            _ => self.0 < other.0,
        }
    }
}

/// Selects the contenders among a container's children, and sorts them in order of arrival.
///
/// The order is right if no two of the numbers are 2^31 or more apart.
pub(crate) fn sort_contenders(children: Vec<String>) -> Vec<(Sequence, String)> {
    let mut contenders: Vec<_> = children
        .into_iter()
        .filter_map(|child| Some((Sequence::parse(&child)?, child)))
        .collect();
    contenders.sort_unstable_by(|(a, a_name), (b, b_name)| {
        if a == b {
            // Two recipes with separate counters can give the same number. Any order is right if
            // all clients use the same order.
            a_name.cmp(b_name)
        } else if a.is_before(*b) {
            Ordering::Less
        } else {
            Ordering::Greater
        }
    });
    contenders
}

/// Returns the contenders ahead of the child `own`, in order of arrival; `None` when `own` is
/// absent.
pub(crate) fn contenders_ahead_of(own: &str, children: Vec<String>) -> Option<Vec<String>> {
    let mut ordered = sort_contenders(children);
    let at = ordered.iter().position(|(_, child)| child == own)?;
    ordered.truncate(at);
    Some(ordered.into_iter().map(|(_, child)| child).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the number in the form that a server appends to a name.
    fn server_format(number: i32) -> String {
        format!("{number:010}")
    }

    #[test]
    fn names_of_every_recipe_are_parsed() {
        for (child, number) in [
            (
                "_c_1b4e28ba-2fa1-11d2-883f-0016d3cca427-0000000100a1b2c3-lock-0000000007",
                7,
            ),
            ("_c_1b4e28ba-2fa1-11d2-883f-0016d3cca427-lock-0000000007", 7),
            ("_c_x-lock--2147483648", i64::from(i32::MIN)),
            ("_c_x-lock--000000005", -5),
            ("5f1f1e0d6e0c4d0f8f__lock__0000000012", 12),
            (
                "5f1f1e0d6e0c4d0f8f__lock__-2147483647",
                i64::from(i32::MIN) + 1,
            ),
            ("n-0000000003", 3),
            ("lock-0009223372036854775", 9_223_372_036_854_775),
        ] {
            assert_eq!(Sequence::parse(child), Some(Sequence(number)), "{child}");
        }
        for child in [
            "", "lock-", "lock-x", "config", "lock-12a", "12345", "lock--", "é",
        ] {
            assert_eq!(Sequence::parse(child), None, "{child}");
        }
    }

    #[test]
    fn only_contenders_before_ours_are_ahead() {
        let children = [
            "b-lock-0000000002",
            "config",
            "a-lock-0000000003",
            "c-lock-0000000001",
        ]
        .map(String::from)
        .to_vec();
        assert_eq!(
            contenders_ahead_of("a-lock-0000000003", children.clone()).unwrap(),
            ["c-lock-0000000001", "b-lock-0000000002"]
        );
        assert_eq!(contenders_ahead_of("gone-lock-0000000000", children), None);
    }

    proptest! {
        /// Nodes are sorted in the order of their creation, for each value of the counter and also
        /// across its wrap-around.
        #[test]
        fn contenders_are_sorted_by_creation_across_the_wrap(
            start in any::<i32>(),
            steps in prop::collection::vec(1u32..50_000, 1..40),
            seed in any::<u64>(),
        ) {
            let mut number = start;
            let mut made = vec![format!("x-lock-{}", server_format(number))];
            for step in steps {
                number = number.wrapping_add_unsigned(step);
                made.push(format!("x-lock-{}", server_format(number)));
            }
            let mut shuffled = made.clone();
            fastrand::Rng::with_seed(seed).shuffle(&mut shuffled);
            let ordered = sort_contenders(shuffled.clone()).into_iter();
            let ordered: Vec<_> = ordered.map(|(_, child)| child).collect();
            prop_assert_eq!(&ordered, &made);
            for (at, own) in made.iter().enumerate() {
                prop_assert_eq!(contenders_ahead_of(own, shuffled.clone()).unwrap(), &made[..at]);
            }
        }

        /// A number follows another one only if it is the next number, also across the wrap-around.
        #[test]
        fn only_the_next_number_follows(
            number in prop_oneof![
                any::<i32>(),
                Just(i32::MAX),
                Just(i32::MAX - 1),
                Just(i32::MIN),
                Just(-1),
            ],
            apart in prop_oneof![-3..=3, any::<i32>()],
        ) {
            let other = number.wrapping_add(apart);
            let name = |number| format!("x-lock-{}", server_format(number));
            let read = |number| Sequence::parse(&name(number)).unwrap();
            let [this, that] = [number, other].map(read);
            prop_assert_eq!(that.follows(this), apart == 1);
            prop_assert!(!that.follows(this) || this.is_before(that));
        }

        /// Servers that count in 64 bits do not wrap at 2^31.
        #[test]
        fn a_64_bit_counter_does_not_wrap_at_32_bits(
            number in i64::from(i32::MAX)..i64::MAX,
            apart in 0i64..3,
        ) {
            let other = number.saturating_add(apart);
            let follows = Sequence::new(other).follows(Sequence::new(number));
            prop_assert_eq!(follows, other - number == 1);
        }

        #[test]
        fn a_printed_number_is_read_back(number in any::<i32>(), prefix in "[a-z0-9-]{0,20}") {
            let child = format!("{prefix}-lock-{}", server_format(number));
            prop_assert_eq!(Sequence::parse(&child), Some(Sequence(i64::from(number))));
        }

        #[test]
        fn any_name_is_read_without_panic(name in "\\PC{0,60}") {
            let _ = Sequence::parse(&name);
        }
    }
}
