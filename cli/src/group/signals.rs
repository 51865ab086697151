//! Catches signals that are sent to this process and meant for its command.

use std::{fs, io, ops::RangeInclusive, pin::Pin, task::Poll};

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::terminal::stop_this_process;

/// The signals that are forwarded to the command. Without a handler, each of them would end this
/// process and leave the command running without a lock.
const FORWARDED: [Signal; 13] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
    Signal::SYS,
    Signal::STKFLT,
];

/// Real-time signals that the C library leaves to programs. They have no names here, so the command
/// gets TERM instead.
const REAL_TIME: RangeInclusive<i32> = 32..=64;

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// A signal for the command.
    ForCommand(Signal),
    /// The user or another program asks to pause, for example with Ctrl-Z.
    Pause,
    /// This process was continued, for example by `fg` of the shell.
    Continued,
    /// A child changed its state.
    Child,
}

/// A stream of the signals that arrive after its creation.
#[derive(Debug)]
pub struct Signals {
    streams: Vec<(Arrived, Stream)>,
}

impl Signals {
    /// Starts to catch signals. A signal that was ignored when this process started stays ignored,
    /// here and in the command: `nohup` ignores HUP on purpose, and a shell ignores INT and QUIT
    /// for commands that a script starts in the background.
    pub fn catch() -> io::Result<Self> {
        let catch = |arrived, kind: SignalKind| Ok((arrived, signal(kind)?));
        let ignored = IgnoredSignals::read();
        let mut streams = FORWARDED
            .iter()
            .filter(|signal| !ignored.contains(**signal))
            .map(|&passed| {
                catch(
                    Arrived::ForCommand(passed),
                    SignalKind::from_raw(passed.as_raw()),
                )
            })
            .collect::<io::Result<Vec<_>>>()?;
        // XCPU says that the processor time is used up. The system kills a process that still runs
        // some time later.
        if !ignored.contains(Signal::XCPU) {
            let used_up = SignalKind::from_raw(Signal::XCPU.as_raw());
            streams.push(catch(Arrived::ForCommand(Signal::TERM), used_up)?);
        }
        for number in REAL_TIME.filter(|number| !ignored.contains_number(*number)) {
            // The C library reserves the first of these numbers and refuses to catch them.
            if let Ok(stream) = signal(SignalKind::from_raw(number)) {
                streams.push((Arrived::ForCommand(Signal::TERM), stream));
            }
        }
        if !ignored.contains(Signal::TSTP) {
            let pause = SignalKind::from_raw(Signal::TSTP.as_raw());
            streams.push(catch(Arrived::Pause, pause)?);
        }
        let continued = SignalKind::from_raw(Signal::CONT.as_raw());
        streams.push(catch(Arrived::Continued, continued)?);
        streams.push(catch(Arrived::Child, SignalKind::child())?);
        Ok(Self { streams })
    }

    /// Waits for the next signal.
    ///
    /// Cancel safe: a signal that was not received is kept.
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

    /// Waits for the next signal that is meant for the command and would have ended this process.
    /// Handles pauses meanwhile.
    ///
    /// Cancel safe.
    pub async fn next_ending(&mut self) -> Signal {
        loop {
            match self.next().await {
                Arrived::ForCommand(signal) => return signal,
                Arrived::Pause => stop_this_process(),
                Arrived::Continued | Arrived::Child => {}
            }
        }
    }
}

/// Makes a write that exceeds the limit of the file size fail with an error. By default the signal
/// XFSZ would end this process.
///
/// The signal is caught, not ignored: programs that this process starts would inherit an ignored
/// signal, and their own limits would not end them.
pub(crate) fn survive_full_files() -> io::Result<()> {
    if !IgnoredSignals::read().contains(Signal::XFSZ) {
        // The handler stays after the stream is dropped.
        drop(signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?);
    }
    Ok(())
}

/// The set of signals that this process ignores. Bit n - 1 stands for signal n.
#[derive(Clone, Copy, Debug)]
struct IgnoredSignals(u64);

impl IgnoredSignals {
    /// Reads the set from the system. Where the system shows none, no signal counts as ignored.
    fn read() -> Self {
        let status = fs::read("/proc/self/status").unwrap_or_default();
        // The file also contains the name of this process, perhaps cut off in the middle of a
        // character.
        Self::parse(&String::from_utf8_lossy(&status))
    }

    /// Parses the text of `/proc/self/status`.
    fn parse(status: &str) -> Self {
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:"))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        Self(mask.unwrap_or(0))
    }

    /// Whether this signal is ignored.
    fn contains(self, signal: Signal) -> bool {
        self.contains_number(signal.as_raw())
    }

    /// Whether the signal of this number is ignored.
    fn contains_number(self, signal: i32) -> bool {
        u32::try_from(signal - 1)
            .ok()
            .and_then(|bit| self.0.checked_shr(bit))
            .is_some_and(|rest| rest & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_process_status() {
        // The mask below has the bits of HUP (1), INT (2) and PIPE (13).
        let ignored = IgnoredSignals::parse("Name:\tx\nSigBlk:\tffff\nSigIgn:\t0000000000001003\n");
        let is_ignored = |signal| ignored.contains(signal);
        assert!(is_ignored(Signal::HUP) && is_ignored(Signal::INT) && is_ignored(Signal::PIPE));
        assert!(
            !is_ignored(Signal::QUIT) && !is_ignored(Signal::TERM) && !is_ignored(Signal::TSTP)
        );
        assert!(!IgnoredSignals::parse("").contains(Signal::HUP));
    }
}
