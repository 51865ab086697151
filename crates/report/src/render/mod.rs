//! Pages from a [`Comparison`]: the same data always gives the same bytes.
//!
//! | file | what is in it |
//! |---|---|
//! | `html.rs`, `sections.rs`, `failures.rs` | the page |
//! | `markdown.rs` | the same as Markdown |
//! | `document.rs` | a report of any kind, in both forms |
//! | `figures.rs` | which figure shows what |
//! | `svg.rs` | how a figure is drawn |
//! | `style.rs` | colours and typography |
//! | `text.rs` | numbers for people |

mod document;
mod failures;
mod figures;
mod html;
mod markdown;
mod sections;
mod style;
mod svg;
pub(crate) mod text;

pub use document::{Document, Times};
pub use html::html;
pub use markdown::markdown;

use crate::compare::Comparison;

/// Throughput by number of callers as a picture of its own, for a README.
#[must_use]
pub fn throughput_svg(comparison: &Comparison) -> String {
    figures::throughput(comparison).standalone()
}
