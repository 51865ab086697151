//! Real servers on free ports, each with a folder of its own that goes away with it.

pub mod mysql;
pub mod pgbouncer;
pub mod postgres;
pub mod redis;
mod resp;
mod template;
pub mod zookeeper;
