//! Gateways: real nodes, clients that end each other's sessions, and faults.
//!
//! Several processes run a node of the kick-out gateway over one store. Devices of a few accounts
//! log in again and again on any node, send messages, log out and break their connections. The
//! checker of the flow, `distlock-checker`, judges the events of the nodes, the records of the
//! clients and the facts of the nemesis. This part of the lab must never decide by itself whether
//! an event is right.
//!
//! | file | content |
//! |---|---|
//! | `run` | one run from start to report |
//! | `node` | the process that is one node |
//! | `node_group` | the nodes, and the proxies between the nodes and the store |
//! | `device`, `client` | the devices, one connection of a device, and the delay of a busy machine |
//! | `nemesis` | injects faults, and records a fact for the checker about each |
//! | `planted_bugs` | bugs that are planted in a node |
//! | `command` | the options, and the printed results |

mod client;
mod command;
mod device;
mod nemesis;
mod node;
mod node_group;
mod planted_bugs;
mod run;

pub(super) use command::{CommonOptions, GatewayOptions, run};
pub(crate) use node::{NodeSettings, serve};
