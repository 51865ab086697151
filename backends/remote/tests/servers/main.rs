//! Tests through lock servers over real stores, and through connections that break.

mod conformance;
mod connections;
