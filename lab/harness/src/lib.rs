//! For development only: starts and breaks real processes, servers and connections, for tests of
//! whole systems.
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
//! | module | content |
//! |---|---|
//! | `process` | [`Process`]: a child process and its output; [`signal`], [`distlock_binary`] |
//! | `output` | reads the output of a child line by line |
//! | `watchdog` | [`Watchdog`]: kills a process when the test ends or is killed |
//! | `eventually` | waits for a condition with a time limit: [`eventually`], [`eventually_async`] |
//! | `proxy` | [`FaultProxy`]: a TCP proxy that delays, stops, closes or loses bytes |
//! | `port` | [`free_port`] |
//! | `log_capture` | [`LogCapture`]: the log lines of a thread |
//! | `pki` | [`Pki`]: a private authority and its certificates |
//! | [`servers`] | real servers, started for the test |
//!
//! # Guarantees
//! No process that is started here outlives the test. This is also true if the test panics, if the
//! test is killed with SIGKILL, or if the child is stopped with SIGSTOP at that time.
#![expect(
    clippy::disallowed_methods,
    reason = "tests of whole systems live in real time: there is no clock to inject into another \
              process"
)]

mod eventually;
mod log_capture;
mod output;
mod pki;
mod port;
mod process;
mod proxy;
pub mod servers;
mod watchdog;

pub use eventually::{eventually, eventually_async};
pub use log_capture::LogCapture;
pub use pki::Pki;
pub use port::free_port;
pub use process::{Process, Signal, distlock_binary, signal};
pub use proxy::{Direction, FaultProxy};
pub use watchdog::Watchdog;
