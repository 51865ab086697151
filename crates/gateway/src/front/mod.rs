//! The fronts: they carry frames between a client and its session.

mod close;
mod close_code;
mod connection;
mod context;
mod deliver;
mod deliver_kept;
#[cfg(test)]
pub(crate) mod fixtures;
mod frame_io;
pub(crate) mod frames;
mod login;
mod outbox;
mod outcome;
mod send;
mod send_limits;
mod session_connection;
mod tcp;
mod ws;

pub(crate) use context::FrontContext;
pub(crate) use deliver::{MessageOutcome, check_message, deliver};
pub(crate) use frame_io::{FrameReader, FrameWriter, Incoming};
pub(crate) use outcome::{DeviceOutcome, Outcome};
pub(crate) use send_limits::SendLimits;
#[cfg(feature = "fuzzing")]
pub(crate) use tcp::TcpReader;
pub(crate) use tcp::serve_tcp;
pub(crate) use ws::serve_websocket;
