//! The fronts: they carry frames between a client and its session.

mod close;
mod connection;
mod deliver;
mod deliver_kept;
#[cfg(test)]
pub(crate) mod fixtures;
pub(crate) mod frames;
mod login;
mod outbox;
mod send;
mod session_connection;
mod tcp;
mod ws;

pub(crate) use connection::{FrameReader, FrameWriter, FrontContext, Incoming};
pub(crate) use deliver::{
    DeviceOutcome, MessageOutcome, Outcome, check_message, deliver, deliver_to_many,
};
pub(crate) use send::SendLimits;
#[cfg(feature = "fuzzing")]
pub(crate) use tcp::TcpReader;
pub(crate) use tcp::serve_tcp;
pub(crate) use ws::serve_websocket;
