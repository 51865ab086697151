//! Checks the history of a group of kick-out nodes against the invariants of the flow.
//!
//! The nodes of one machine print their transitions (`distlock gateway run --events`), the clients
//! of a test record their observations, and the test records its actions. [`check`] evaluates all
//! of these after the run. [`check`] is a pure function over events, so a history can be kept in a
//! file, shortened by hand and checked again.
//!
//! ```
//! use distlock_checker::{History, Invariant, Rules, check};
//! let mut history = History::default();
//! // The node admits a client that the directory has never named.
//! history.read_node([
//!     r#"{"seq":1,"at_ms":0,"clock_us":10,"node":"n1","boot":7,"event":"admitted","uid":"anna",
//!         "gen":1,"session":"00000000-0000-4000-8000-000000000001","device":"phone"}"#,
//! ])?;
//! let report = check(&history, &Rules::default());
//! assert_eq!(report.violated(), [Invariant::I7]);
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! | invariants | file in `checks/` |
//! |---|---|
//! | one owner, one winner, the last grant wins (I1, I2, I3) | `ownership` |
//! | generations rise, a lost lock writes nothing (I4, I13) | `generations` |
//! | no late removal or kick, every step once (I5, I6, I16) | `stale` |
//! | a session leaves the directory once, and ends (I5, I6, I11, I17) | `removals` |
//! | a confirmed login is readable, a superseded session is silent (I7, I8, I17) | `confirmed` |
//! | notice before the end, order and time of closing (I9, I10, I11) | `ends` |
//! | dead nodes, unanswered logins, bystanders (I12, I14, I15) | `nodes` |
//! | every message has an outcome (I18) | `messages` |
//!
//! `evidence/allowances` has the allowances: after a fault, the checker accepts a late or missing
//! step. Each allowance holds only for the time and the node of its fault.
//!
//! A [`Judge`] checks a run while it happens, for runs whose history would be too long to keep. A
//! judge checks fewer invariants.
//!
//! # Occasions
//!
//! A report counts how often each invariant could have been broken ([`Report::looked_at`]). A step
//! that could not break an invariant is checked as well, but does not count. A run without a lost
//! lock proves nothing about lost locks (I13), and a run without a late delete proves nothing about
//! late deletes (I5).
//!
//! # Assumptions
//!
//! All times come from the boot-time clock of one machine. A paused node may report its earlier
//! actions late, so the time of a pause is not counted in any span of time.

mod check;
mod checks;
mod evidence;
mod judge;
mod report;

pub use check::check;
pub use evidence::history::{DeviceOutcome, Fact, History, Seen, What};
pub use judge::Judge;
pub use report::{Invariant, Report, Rules, Violation};
