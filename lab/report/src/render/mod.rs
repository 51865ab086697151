//! Pages: Markdown with charts, and the same as one HTML file.
//!
//! Invariant: the same data always gives the same bytes.
//!
//! | file | content |
//! |---|---|
//! | `document.rs` | a page of any kind: the files of a rendered template |
//! | `charts.rs` | the two kinds of charts |
//! | `comparison.rs`, `costs.rs` | the page of a [`Comparison`](crate::Comparison), and its tables |
//! | `published.rs` | the figures of another lock server |

mod charts;
mod comparison;
mod costs;
mod document;
mod published;

pub use charts::{Chart, RangeRow};
pub use comparison::comparison;
pub use document::{Document, images};

pub use crate::text::{cell, escape};
