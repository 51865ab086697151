//! Pages from a [`Comparison`](crate::Comparison).
//!
//! Invariant: the same data always gives the same bytes.
//!
//! | file | content |
//! |---|---|
//! | `html.rs`, `frame.rs` | the page |
//! | `costs.rs`, `cost_table.rs`, `peer_table.rs` | the tables of figures |
//! | `sections.rs`, `failures.rs` | the tables of promises; behaviour under failure |
//! | `markdown.rs` | the page as Markdown |
//! | `document.rs` | a report of any kind, in both forms |
//! | `charts.rs` | the data of each chart |
//! | `svg.rs`, `scale.rs` | the drawing of a chart |
//! | `style.rs` | colours and typography |
//! | `text.rs` | texts of numbers |

mod charts;
mod cost_table;
mod costs;
mod document;
mod failures;
mod frame;
mod html;
mod markdown;
mod peer_table;
mod scale;
mod sections;
mod style;
mod svg;
pub(crate) mod text;

pub use charts::throughput_svg;
pub use document::{Document, Times};
pub use html::html;
pub use markdown::markdown;
