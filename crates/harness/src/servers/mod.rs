//! Real servers on free ports, each with a folder of its own that goes away with it.

pub mod mysql;
pub mod redis;
mod resp;
pub mod zookeeper;
