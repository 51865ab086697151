//! The forms in which a statement receives its operations.

/// The texts for the row source, an owner, and the columns of a row.
pub(super) type Source = [(&'static str, &'static str); 6];

/// A batch of any operations.
pub(super) const MANY: Source = [
    ("{from}", "FROM json_each(?1) AS j"),
    ("{owner}", "substr(?2, j.key * 16 + 1, 16)"),
    ("{0}", "j.value ->> 0"),
    ("{1}", "j.value ->> 1"),
    ("{2}", "j.value ->> 2"),
    ("{3}", "j.value ->> 3"),
];

/// One operation, without JSON: a lone caller does not pay for the batches of others.
pub(super) const ONE: Source = [
    ("{from}", ""),
    ("{owner}", "?2"),
    ("{0}", "?1"),
    ("{1}", "?7"),
    ("{2}", "?8"),
    ("{3}", "?9"),
];

/// A batch of acquires that differ in name and owner only, as those of one process mostly do.
pub(super) const ALIKE: Source = [
    ("{from}", "FROM json_each(?1) AS j"),
    ("{owner}", "substr(?2, j.key * 16 + 1, 16)"),
    ("{0}", "j.value"),
    ("{1}", "?7"),
    ("{2}", "?8"),
    ("{3}", "?9"),
];

/// A batch of leases: names, owners, and tokens of 16 digits each in one blob, 0 for none.
pub(super) const LEASES: Source = [
    ("{from}", "FROM json_each(?1) AS j"),
    ("{owner}", "substr(?2, j.key * 16 + 1, 16)"),
    ("{0}", "j.value"),
    (
        "{1}",
        "nullif(CAST(substr(?7, j.key * 16 + 1, 16) AS INTEGER), 0)",
    ),
    ("{2}", "NULL"),
    ("{3}", "NULL"),
];

/// The same beside a batch of acquires.
pub(super) const LEASES_BESIDE: Source = [
    ("{from}", "FROM json_each(?10) AS j"),
    ("{owner}", "substr(?11, j.key * 16 + 1, 16)"),
    ("{0}", "j.value"),
    (
        "{1}",
        "nullif(CAST(substr(?12, j.key * 16 + 1, 16) AS INTEGER), 0)",
    ),
    ("{2}", "NULL"),
    ("{3}", "NULL"),
];

pub(super) fn filled(text: &str, source: &Source) -> String {
    source.iter().fold(text.to_owned(), |text, (slot, value)| {
        text.replace(slot, value)
    })
}
