//! Sources of a backend URL and its options, and the errors about them.
//!
//! | source | how |
//! |---|---|
//! | a URL in the program | [`Target::new`], or simply a `&str` |
//! | `distlock.toml` | [`Config::load`]; the file that `DISTLOCK_CONFIG` names with [`Config::from_env`] |
//! | `DISTLOCK_BACKEND` | [`Config::from_env`]; replaces the file's `[backend]` table as a whole |
//!
//! A later source replaces an earlier one entirely: options belong to the store for which they were
//! written.

mod file;
mod options;
mod secret;
mod suggest;
mod target;

pub use file::Config;
pub use options::{Given, Options, Origin};
pub use secret::mask;
pub use suggest::nearest;
pub use target::Target;

pub use distlock_core::parse_duration;

pub(crate) use target::Parts;
#[cfg(feature = "sqlite")]
pub(crate) use target::percent_decode;
