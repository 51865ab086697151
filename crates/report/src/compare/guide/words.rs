//! Lists and sentences.

use crate::compare::model::StoreFacts;

/// `a, b or c`.
pub(super) fn names(stores: &[&StoreFacts], last: &str) -> String {
    let names: Vec<&str> = stores.iter().map(|it| it.name.as_str()).collect();
    match names.as_slice() {
        [many @ .., end] if !many.is_empty() => format!("{} {last} {end}", many.join(", ")),
        all => all.concat(),
    }
}

pub(super) fn sentences(all: impl IntoIterator<Item = String>) -> String {
    let all: Vec<String> = all.into_iter().filter(|it| !it.is_empty()).collect();
    all.join(" ")
}
