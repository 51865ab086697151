//! A gateway node: its listeners, its start and its end.

mod builder;
mod gateway;
mod listeners;

pub use builder::{Builder, run};
pub use gateway::{Gateway, Ready, Reloader};
