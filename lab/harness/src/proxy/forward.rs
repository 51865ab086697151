//! Forwards the bytes of one direction of one connection, and applies the faults to them.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::tcp::{ReadHalf, WriteHalf},
    sync::watch,
};

use crate::proxy::faults::{Direction, Faults, Flow, IdleLimit, ProxyState};

/// The number of bytes in one piece of [`Flow::Trickle`].
const TRICKLE_BYTES: usize = 5;

/// The way in which waiting bytes continue.
enum Passage {
    Whole,
    /// A few bytes at a time, with a pause after each piece.
    Pieces(Duration),
    /// Never: the receiver misses these bytes.
    Lost,
}

/// Forwards one direction of one connection.
pub(super) struct Forwarder<'a> {
    pub(super) direction: Direction,
    /// Whether the last bytes of the connection came from the client.
    pub(super) client_spoke_last: &'a AtomicBool,
    pub(super) idle_limit: &'a IdleLimit,
    pub(super) faults: watch::Receiver<Faults>,
    pub(super) state: Arc<ProxyState>,
}

impl Forwarder<'_> {
    /// Forwards bytes until the end of the stream, and forwards the end as well. An error means
    /// that the connection must be reset.
    pub(super) async fn run(
        mut self,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
    ) -> io::Result<()> {
        let mut half_closed = self.faults.clone();
        let before = Self::half_close_count(&half_closed.borrow(), self.direction);
        let mut buffer = vec![0; 64 * 1024];
        let mut lost_bytes = false;
        loop {
            let closed = |faults: &Faults| Self::half_close_count(faults, self.direction) != before;
            let read = tokio::select! {
                read = from.read(&mut buffer) => Some(read?),
                // A stream that lost bytes must not continue after the fault, because the receiver
                // would see a gap.
                () = Self::wait_while_lossy(&mut self.faults, self.direction),
                    if lost_bytes =>
                {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                _ = half_closed.wait_for(closed) => None,
            };
            let Some(read) = read else {
                to.shutdown().await?;
                // The sender must not notice that its bytes are lost, so the proxy reads all of
                // them.
                tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
                return Ok(());
            };
            let bytes = u64::try_from(read).unwrap_or(u64::MAX);
            self.state.bytes.fetch_add(bytes, Ordering::SeqCst);
            let faults = *self.faults.borrow();
            if self.idle_limit.loses_bytes(faults) {
                if read == 0 {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                continue;
            }
            let asks = self.direction == Direction::ToServer && read > 0;
            if !self.client_spoke_last.swap(asks, Ordering::SeqCst) && asks {
                self.state.round_trips.fetch_add(1, Ordering::SeqCst);
            }
            if self.direction == Direction::ToClient
                && self.state.swallow_one_reply.swap(false, Ordering::SeqCst)
            {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let other = match self.direction {
                Direction::ToClient if read > 0 => self.state.replaced_reply.lock().take(),
                _ => None,
            };
            let mut rest = other.as_deref().unwrap_or(&buffer[..read]);
            // The end of the stream has no bytes, and the faults apply to it as well.
            while !lost_bytes {
                match self.wait_for_passage().await? {
                    Passage::Lost => lost_bytes = true,
                    Passage::Pieces(pause) if rest.len() > TRICKLE_BYTES => {
                        let (piece, later) = rest.split_at(TRICKLE_BYTES);
                        to.write_all(piece).await?;
                        rest = later;
                        tokio::select! {
                            () = tokio::time::sleep(pause) => {}
                            // The next fault applies to the remaining bytes.
                            _ = self.faults.changed() => {}
                        }
                    }
                    Passage::Whole | Passage::Pieces(_) => {
                        to.write_all(rest).await?;
                        break;
                    }
                }
            }
            if read == 0 && lost_bytes {
                // The end of the stream is lost as well, so the connection stays open until its
                // reset.
                Self::wait_while_lossy(&mut self.faults, self.direction).await;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if read == 0 {
                to.shutdown().await?;
                return Ok(());
            }
        }
    }

    /// Waits until the present fault lets bytes of this direction pass, or loses them. An error
    /// means that the proxy is being dropped.
    async fn wait_for_passage(&mut self) -> io::Result<Passage> {
        loop {
            match self.flow() {
                Flow::Pass => return Ok(Passage::Whole),
                Flow::Trickle(pause) => return Ok(Passage::Pieces(pause)),
                Flow::Swallow => return Ok(Passage::Lost),
                Flow::Delay(by) => {
                    tokio::time::sleep(by).await;
                    // A fault that came meanwhile applies to these bytes.
                    match self.flow() {
                        Flow::Stop | Flow::Swallow => {}
                        _ => return Ok(Passage::Whole),
                    }
                }
                Flow::Stop => self
                    .faults
                    .changed()
                    .await
                    .map_err(|_| io::ErrorKind::ConnectionReset)?,
            }
        }
    }

    /// Returns the number of half-closes of this direction that a test has requested.
    const fn half_close_count(faults: &Faults, direction: Direction) -> u64 {
        match direction {
            Direction::ToServer => faults.closed_to_server,
            Direction::ToClient => faults.closed_to_client,
        }
    }

    /// Returns the present fault of this direction.
    fn flow(&mut self) -> Flow {
        Self::flow_in(&self.faults.borrow_and_update(), self.direction)
    }

    fn flow_in(faults: &Faults, direction: Direction) -> Flow {
        match direction {
            Direction::ToServer => faults.to_server,
            Direction::ToClient => faults.to_client,
        }
    }

    /// Waits until the bytes of this direction are no longer lost.
    async fn wait_while_lossy(faults: &mut watch::Receiver<Faults>, direction: Direction) {
        let _ = faults
            .wait_for(|faults| Self::flow_in(faults, direction) != Flow::Swallow)
            .await;
    }
}
