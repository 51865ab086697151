//! Joins names and sentences.

use crate::compare::model::StoreFacts;

/// Joins the names of stores: `a, b or c`, where `last` is the "or".
pub(super) fn join_store_names(stores: &[&StoreFacts], last: &str) -> String {
    let names: Vec<&str> = stores.iter().map(|it| it.name.as_str()).collect();
    match names.as_slice() {
        [many @ .., end] if !many.is_empty() => format!("{} {last} {end}", many.join(", ")),
        all => all.concat(),
    }
}

/// Joins all sentences that are not empty.
pub(super) fn join_sentences(all: impl IntoIterator<Item = String>) -> String {
    let all: Vec<String> = all.into_iter().filter(|it| !it.is_empty()).collect();
    all.join(" ")
}
