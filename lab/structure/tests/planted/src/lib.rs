//! Two folders that import each other, for each form of an import: by `use`, by an inline path and
//! through a re-export (`hall`, `room`); through another name of a module (`alias_one`,
//! `alias_two`); through globs (`glob_one`, `glob_two`); by a re-export (`re_export_one`,
//! `re_export_two`). `all` is beside the folders, so it is in no circle.

mod alias_one;
mod alias_two;
mod all;
mod glob_one;
mod glob_two;
mod hall;
mod re_export_one;
mod re_export_two;
mod room;

pub use hall::First;
pub use room::{Second, Third};
