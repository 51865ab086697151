//! The lock server from outside: its protocol on real sockets, hostile clients, and its restarts.

mod support;

mod hostile;
mod restart;
mod safety;
mod sessions;
