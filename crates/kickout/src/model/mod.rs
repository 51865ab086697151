//! The values of the flow and their rules.
//!
//! This module is pure: nothing here reads a clock, waits, or asks a store.

pub(crate) mod change;
pub(crate) mod event;
pub(crate) mod ident;
pub(crate) mod login;
pub(crate) mod node;
pub(crate) mod notice;
pub(crate) mod policy;
pub(crate) mod record;
pub(crate) mod request;
pub(crate) mod settings;
