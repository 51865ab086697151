//! Signals that are sent to this process and meant for the command it runs.

use std::{io, pin::Pin, task::Poll};

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::terminal::stop_ourselves;

/// Those that are passed on.
const PASSED_ON: [Signal; 6] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// What arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// A signal for the command.
    ForCommand(Signal),
    /// Ctrl-Z, or somebody asks us to pause.
    Pause,
    /// We were told to go on, by the shell's `fg` for example.
    Continued,
    /// A child changed its state.
    Child,
}

/// Catches signals from the moment it is made.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Arrived, Stream)>,
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        let catch = |arrived, kind: SignalKind| Ok((arrived, signal(kind)?));
        let mut streams = PASSED_ON
            .iter()
            .map(|&passed| {
                catch(
                    Arrived::ForCommand(passed),
                    SignalKind::from_raw(passed.as_raw()),
                )
            })
            .collect::<io::Result<Vec<_>>>()?;
        let pause = SignalKind::from_raw(Signal::TSTP.as_raw());
        streams.push(catch(Arrived::Pause, pause)?);
        let continued = SignalKind::from_raw(Signal::CONT.as_raw());
        streams.push(catch(Arrived::Continued, continued)?);
        streams.push(catch(Arrived::Child, SignalKind::child())?);
        Ok(Self { streams })
    }

    /// Waits for the next signal.
    ///
    /// Cancel safe: a signal that nobody received is kept.
    pub(crate) async fn next(&mut self) -> Arrived {
        std::future::poll_fn(|context| {
            for (arrived, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = Pin::new(stream).poll_recv(context) {
                    return Poll::Ready(*arrived);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for the next signal that would have ended this process.
    ///
    /// Cancel safe.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            match self.next().await {
                Arrived::ForCommand(signal) => return signal,
                Arrived::Pause => stop_ourselves(),
                Arrived::Continued | Arrived::Child => {}
            }
        }
    }
}
