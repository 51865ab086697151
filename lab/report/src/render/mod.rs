//! Pages from a [`Comparison`](crate::Comparison).
//!
//! Invariant: the same data always gives the same bytes.
//!
//! | file | content |
//! |---|---|
//! | `html.rs`, `templates/` | the page |
//! | `markdown.rs` | the page as Markdown |
//! | `document.rs` | a report of any kind, in both forms |
//! | `costs.rs`, `peers.rs`, `figure_table.rs` | the tables of figures |
//! | `promises.rs`, `failures.rs` | promises; behaviour under failure |
//! | `charts.rs` | the data of each chart |
//! | `svg.rs`, `scale.rs` | the drawing of a chart |
//! | `style.rs` | colours and typography of charts |
//! | `text.rs` | texts of numbers |

mod charts;
mod costs;
mod document;
mod failures;
mod figure_table;
mod html;
mod markdown;
mod peers;
mod promises;
mod scale;
mod style;
mod svg;
pub(crate) mod text;

pub use charts::throughput_svg;
pub use document::{Document, Times};
pub use html::html;
pub use markdown::markdown;
