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
//! | `machine` | how late a busy machine is |
//! | `plants` | bugs that are planted in a node |
//! | `command` | what is asked and printed |

mod admin;
mod client;
mod command;
mod device;
mod group;
mod kinds;
mod machine;
mod nemesis;
mod node;
mod plants;
mod run;

pub(super) use command::{Options, Run, run};
pub(crate) use node::{NodeSettings, serve};
