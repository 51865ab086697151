//! The generated code.

include!("../generated/distlock.v1.rs");
