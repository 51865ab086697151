//! The fronts: what carries frames between a client and its session.

pub(crate) mod frames;
mod greet;
mod limits;
mod machine;
mod outbox;
pub(crate) mod send;
#[cfg(test)]
pub(crate) mod stage;
mod tcp;
mod ws;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::Clock;
use distlock_kickout::{Class, KickOut};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{inbox::OfflineStore, may_send::MaySend, token::TokenKey};
use frames::ErrorCode;

pub(crate) use frames::{DeviceOutcome, Outcome};
pub(crate) use limits::Limits;
#[cfg(feature = "fuzzing")]
pub(crate) use tcp::TcpReader;
pub(crate) use tcp::serve_tcp;
pub(crate) use ws::serve_websocket;

/// What every session's task needs.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    pub(crate) kick: KickOut,
    pub(crate) key: TokenKey,
    /// The classes that a client may name; `None` = any.
    pub(crate) classes: Option<Arc<[Class]>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) inbox: Arc<dyn OfflineStore>,
    pub(crate) limits: Arc<Limits>,
    /// Who may send to whom; everybody unless set.
    pub(crate) may_send: Option<Arc<dyn MaySend>>,
    pub(crate) heartbeat: Duration,
    pub(crate) grace: Duration,
    pub(crate) login_timeout: Duration,
    pub(crate) max_frame: usize,
    pub(crate) connections: TaskTracker,
    /// Ends every connection at once.
    pub(crate) cut: CancellationToken,
    /// A proxy says in `X-Forwarded-For` whose WebSocket it passes on.
    pub(crate) forwarded: bool,
}

/// What came from a client.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A frame's text, and the message id in front of it where the front has one.
    Frame(String, Option<u16>),
    /// A sign of life without a frame.
    Alive,
    /// Something that is no frame. Nothing that follows can be trusted, and of a frame over the limit not even the
    /// connection's end need follow.
    Bad(ErrorCode, &'static str),
    /// The client said that it closes; the connection still stands.
    Closing,
    /// The connection is over.
    Gone,
}

/// The reading half of a connection.
#[async_trait]
pub(crate) trait FrameReader: Send + 'static {
    /// What comes next. After [`Incoming::Gone`] it is `Gone` for ever.
    ///
    /// Cancel safety: safe; nothing that arrived is lost.
    async fn next(&mut self) -> Incoming;
}

/// The writing half of a connection.
#[async_trait]
pub(crate) trait FrameWriter: Send + 'static {
    /// Writes a frame and flushes it.
    async fn send(&mut self, frame: &frames::Frame) -> std::io::Result<()>;

    /// Says that this side closes, where the front has words for that.
    async fn close(&mut self, code: u16, reason: &str) -> std::io::Result<()>;
}
