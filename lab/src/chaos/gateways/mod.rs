//! Gateways: real nodes, clients that throw each other out, and faults.
//!
//! Several processes run a node of the kick-out gateway over one store. Devices of a few accounts
//! log in again and again on any of them, send messages, log out and break off. What the nodes'
//! event lines, the clients and the nemesis say is judged by the checker of the flow,
//! `distlock-checker`: this part of the lab has no opinion of its own on what is right.
//!
//! | file | what is in it |
//! |---|---|
//! | `run` | one run from start to report |
//! | `node` | the process that is one node |
//! | `group` | the nodes, their lines to each other and to the store |
//! | `device`, `client` | what devices do, and one connection of theirs |
//! | `admin` | what is asked of a node by HTTP |
//! | `nemesis` | what breaks things, and the facts that tell the checker of it |
//! | `delay_meter` | how late a busy machine is |
//! | `planted_bugs` | bugs that are planted in a node |
//! | `command` | what is asked and printed |

mod admin;
mod client;
mod command;
mod delay_meter;
mod device;
mod kinds;
mod nemesis;
mod node;
mod node_group;
mod planted_bugs;
mod run;

pub(super) use command::{CommonOptions, GatewayOptions, run};
pub(crate) use node::{NodeSettings, serve};
