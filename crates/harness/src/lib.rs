//! Development only: real processes, signals and a network that breaks on request, for tests of whole systems.
//!
//! ```no_run
//! use std::{process::Command, time::Duration};
//! use distlock_harness::{Process, Signal, distlock_binary};
//!
//! # fn main() -> anyhow::Result<()> {
//! let mut holder = Process::spawn(
//!     Command::new(distlock_binary()?).args(["run", "nightly", "--", "sleep", "60"]),
//! )?;
//! holder.wait_for_line(Duration::from_secs(5), |line| line.contains("acquired"))?;
//! holder.signal(Signal::STOP)?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | `process` | [`Process`]: a child in its own process group, its output as lines, [`signal`], [`distlock_binary`] |
//! | `output` | what a child writes, taken in line by line |
//! | `watchdog` | [`Watchdog`]: kills a process when the test goes away, however it goes away |
//! | `eventually` | waiting on a condition with a deadline: [`eventually`], [`eventually_async`] |
//! | `proxy` | [`FaultProxy`]: a TCP proxy that delays, stops, closes or loses what goes through it |
//! | `port` | [`free_port`] |
//! | `pki` | [`Pki`]: a private authority and its certificates |
//! | [`servers`] | real servers, started for the test |
//!
//! # Guarantees
//! No process started here outlives the test, not even when the test panics, is killed with SIGKILL, or the child is
//! stopped with SIGSTOP at that time.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of whole systems live in real time: there is no clock to inject into another process"
)]

mod eventually;
mod output;
mod pki;
mod port;
mod process;
mod proxy;
pub mod servers;
mod watchdog;

pub use eventually::{eventually, eventually_async};
pub use pki::Pki;
pub use port::free_port;
pub use process::{Process, Signal, distlock_binary, signal};
pub use proxy::{Direction, FaultProxy};
pub use watchdog::Watchdog;
