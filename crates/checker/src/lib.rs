//! Checks what happened in a group of kick-out nodes against the invariants of the flow.
//!
//! The nodes of one machine print their transitions (`distlock gateway run --events`), the clients of a test write down what
//! they saw, and the test what it did. [`check`] looks at all of it together, after the fact: pure functions over events, so
//! that a history can be kept in a file, shortened by hand and checked again.
//!
//! ```
//! use distlock_checker::{History, Invariant, Rules, check};
//! let mut history = History::default();
//! // A node that lets a client in which the directory has never named.
//! history.read_node([
//!     r#"{"seq":1,"at_ms":0,"boot_us":10,"node":"n1","boot":7,"event":"admitted","uid":"anna","gen":1,
//!         "session":"00000000-0000-4000-8000-000000000001","device":"phone"}"#,
//! ])?;
//! let report = check(&history, &Rules::default());
//! assert_eq!(report.violated(), [Invariant::I7]);
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! | invariants | file |
//! |---|---|
//! | one owner, one winner, the last one (I1, I2, I3) | `ownership` |
//! | generations rise, a lost lock writes nothing (I4, I13) | `generations` |
//! | nothing stale erases or kicks, everything once (I5, I6, I16) | `stale` |
//! | whoever leaves the directory leaves it once, and goes (I5, I6, I11, I17) | `removals` |
//! | a confirmed login is readable, the superseded are mute (I7, I8, I17) | `confirmed` |
//! | told before closed, who closes, for how long (I9, I10, I11) | `ends` |
//! | dead nodes, stuck accounts, bystanders (I12, I14, I15) | `nodes` |
//! | every message has an account (I18) | `messages` |
//!
//! What a fault allows, around its own time and for its own node, is in `allowances`.
//!
//! A run too long to be kept is watched by a [`Judge`] while it lasts: fewer invariants, and no history.
//!
//! # What counts
//! A report says how often each invariant could have been broken ([`Report::looked_at`]). What put
//! an invariant at no risk is checked as well, and does not count: a run in which nobody lost a
//! lock proves nothing about lost locks (I13), and one without a late delete nothing about these
//! (I5).
//!
//! # What it takes for granted
//! All times come from one machine's boot-time clock. A node that was paused may write down late what it did before the pause,
//! so a pause is left out of every span of time.

mod check;
mod checks;
mod evidence;
mod judge;
mod report;
mod scene;

pub use check::check;
pub use evidence::history::{DeviceOutcome, Fact, History, Seen, What};
pub use judge::Judge;
pub use report::{Invariant, Report, Rules, Violation};
