//! The fronts: what carries frames between a client and its session.

mod close;
mod close_code;
mod connection;
mod context;
mod conversation;
mod deliver;
#[cfg(test)]
pub(crate) mod fixtures;
pub(crate) mod frames;
mod kept;
mod limits;
mod login;
mod outbox;
mod outcome;
mod send;
mod tcp;
mod transport;
mod ws;

pub(crate) use context::Front;
pub(crate) use deliver::{Fate, check, deliver};
pub(crate) use limits::Limits;
pub(crate) use outcome::{DeviceOutcome, Outcome};
#[cfg(feature = "fuzzing")]
pub(crate) use tcp::TcpReader;
pub(crate) use tcp::serve_tcp;
pub(crate) use transport::{FrameReader, FrameWriter, Incoming};
pub(crate) use ws::serve_websocket;
