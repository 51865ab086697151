//! Compares distlock with the plain way of each store: the statements that a program would send
//! without this library. Both arms run the same workloads and alternate in one run, so that both
//! arms run on the same machine in the same minute.
//!
//! | file | content |
//! |---|---|
//! | `options`, `command` | the command line, and one measurement |
//! | `sqlite`, `sql`, `redis`, `zookeeper`, `memory` | the arms of each store; the memory of a lock table |
//! | `plain` | the plain ways on a database server: one row for each lock, or a named lock |
//! | `raw_redis`, `scripts_redis`, `rslock` | the other ways on Redis |
//! | `quorum` | quorums beside one Redis server |
//! | `ring` | rings beside one Redis server, and a change of the members |
//! | `server`, `echo` | the lock server beside Redis, and empty calls by gRPC |
//! | `floor` | the lower bound in SQL: one durable `UPDATE` |
//! | `modes` | writers, readers and permits beside the exclusive lock |
//! | `hand_over` | several processes that pass one lock on, or share it |
//! | `waiting`, `idle` | the cost of waiters: statements of SQLite, and a lock server |
//! | `target` | the server, and a link to the server that delays all bytes |
#![expect(
    clippy::print_stdout,
    reason = "a command-line tool: its results go to stdout"
)]

mod command;
mod echo;
mod floor;
mod hand_over;
mod idle;
mod memory;
mod modes;
mod options;
mod plain;
mod quorum;
mod raw_redis;
mod redis;
mod ring;
mod rslock;
mod scripts_redis;
mod server;
mod sql;
mod sqlite;
mod target;
mod waiting;
mod zookeeper;

pub(crate) use command::{PeersOptions, run};
