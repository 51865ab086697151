//! Configuration: the sources of a backend URL and its options, and errors that name the source.
//!
//! | source | how |
//! |---|---|
//! | a URL in the program | [`Target::new`](crate::Target::new), or simply a `&str`; [`Target::credentials`](crate::Target::credentials) sets a provider of passwords |
//! | `distlock.toml` | [`Config::load`]; [`Config::from_env`], which reads the file that `DISTLOCK_CONFIG` names |
//! | `DISTLOCK_BACKEND` | [`Config::from_env`]; replaces the file's `[backend]` table as a whole |
//! | `DISTLOCK_RECORDS` | [`Config::from_env`]; replaces the file's `[records]` table as a whole |
//!
//! A user and a password that were read from a file are read again for each new connection, so they
//! can change while a program runs.
//!
//! The records are in the backend, unless a `[records]` table or `DISTLOCK_RECORDS` names another
//! store; in a program, [`Target::records_in`](crate::Target::records_in) does. The two stores are
//! configured independently of each other.
//!
//! A source that replaces another source replaces the URL and all options together, because options
//! belong to the store for which they were written.

mod file;
mod file_credentials;

pub use distlock_backend_kit::{
    CredentialProvider, Credentials, Given, Options, Origin, mask, nearest,
};
pub use distlock_core::parse_duration;
pub use file::Config;
