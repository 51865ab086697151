//! The search of a model's states, with and without its rules.

use std::{
    fmt::Debug,
    hash::Hash,
    io::{self, Write as _},
};

use stateright::{Checker as _, Expectation, HasDiscoveries, Model, Path};

/// A model one of whose rules can be switched off.
pub(crate) trait Protocol:
    Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>
where
    Self: Clone + Send + Sync + 'static,
{
    /// The name of a rule.
    type Variant: Copy + Debug;

    /// The same setting without the rule.
    fn without(&self, rule: Self::Variant) -> Self;

    /// The steps of a path, one a line.
    fn in_words(path: Path<Self::State, Self::Action>) -> String;
}

/// What a search found.
struct Found {
    /// The property that does not hold, with the way to the state that shows it.
    broken: Option<(&'static str, String)>,
    states: usize,
}

/// Searches until a promise is broken: the given one, or any.
fn search<P: Protocol>(protocol: P, promise: Option<&'static str>) -> Found {
    let end = match promise {
        Some(promise) => HasDiscoveries::AllOf([promise].into()),
        None => HasDiscoveries::AnyFailures,
    };
    let checker = protocol
        .checker()
        .threads(2)
        .finish_when(end)
        .spawn_bfs()
        .join();
    let mut discoveries = checker.discoveries();
    let broken = checker
        .model()
        .properties()
        .into_iter()
        .find_map(|property| {
            let path = discoveries.remove(property.name);
            let is_wanted = promise.is_none_or(|promise| promise == property.name);
            match (property.expectation, path) {
                (Expectation::Always, Some(path)) if is_wanted => {
                    Some((property.name, P::in_words(path)))
                }
                (Expectation::Sometimes, None) if is_wanted => {
                    Some((property.name, "  (in no state)\n".to_owned()))
                }
                _ => None,
            }
        });
    Found {
        broken,
        states: checker.unique_state_count(),
    }
}

/// The protocol keeps its promises in the setting, and the search finds that each of the variants
/// breaks the one that is named with it.
pub(crate) fn check<P: Protocol>(setting: &P, broken: &[(P::Variant, &'static str)]) {
    let found = search(setting.clone(), None);
    say(&format!("{} states\n", found.states));
    if let Some((name, path)) = found.broken {
        panic!("the protocol does not keep \"{name}\":\n{path}");
    }
    let mut survived = Vec::new();
    for (rule, promise) in broken {
        let found = search(setting.without(*rule), Some(promise));
        match found.broken {
            Some((name, path)) => say(&format!("{rule:?} breaks \"{name}\":\n{path}")),
            None => survived.push(*rule),
        }
    }
    assert!(survived.is_empty(), "not found: {survived:?}");
}

/// For whoever reads the output of a test.
fn say(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
