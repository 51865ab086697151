//! The page as HTML: `templates/comparison.html` with its data.

use askama::Template;

// The template calls functions of these modules.
use super::{charts, costs, failures, figure_table::Cell, peers, promises, style, text};
use crate::compare::{self, Comparison};

#[derive(Template)]
#[template(path = "comparison.html")]
struct ComparisonPage<'a> {
    title: &'static str,
    /// Key and product of each store; each store gets a colour.
    stores: Vec<(String, String)>,
    comparison: &'a Comparison,
}

/// The report as one self-contained page: it has no script, fetches nothing, and has colours for a
/// light and for a dark screen.
#[must_use]
pub fn html(comparison: &Comparison) -> String {
    let page = ComparisonPage {
        title: "Distributed locks, side by side",
        stores: charts::store_keys(comparison),
        comparison,
    };
    page.to_string()
}
