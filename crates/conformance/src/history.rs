//! The recorded holds of all tasks and processes, and the check that holds of one lock do not
//! overlap.
//!
//! Invariant: all times are of one clock, the boot-time clock of the machine, so holds of different
//! processes can be compared.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use distlock_core::sync::Mutex;
use serde::{Deserialize, Serialize};

/// One period in which a holder believed that it held a lock. Times are counted from boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The lock.
    pub lock: String,
    /// The holder: a task or a process.
    pub who: String,
    /// The fencing token of the holder.
    pub token: u64,
    /// The moment after the answer to the acquire.
    pub from: Duration,
    /// The last moment at which the holder knew that it held the lock: before the release was sent,
    /// or before the loss was noticed.
    pub until: Duration,
}

/// The recorded holds of any number of tasks.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Vec<Hold>>>);

impl History {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one hold.
    pub fn record(&self, hold: Hold) {
        self.0.lock().push(hold);
    }

    /// Adds holds that another process recorded.
    pub fn extend(&self, holds: impl IntoIterator<Item = Hold>) {
        self.0.lock().extend(holds);
    }

    /// All recorded holds, in order of time.
    #[must_use]
    pub fn holds(&self) -> Vec<Hold> {
        let mut holds = self.0.lock().clone();
        holds.sort_by_key(|hold| (hold.from, hold.until));
        holds
    }

    /// Checks all recorded holds; see [`check`].
    ///
    /// # Errors
    /// The first broken promise with its two holds, or a hold that ends before it starts.
    pub fn check(&self) -> Result<(), String> {
        check(&self.0.lock())
    }
}

/// Checks that the holds of each lock never overlap, and that their tokens rise in order of time.
///
/// # Errors
/// The first broken promise with its two holds, or a hold that ends before it starts.
pub fn check(holds: &[Hold]) -> Result<(), String> {
    let mut locks = BTreeMap::<&str, Vec<&Hold>>::new();
    for hold in holds {
        if hold.until < hold.from {
            return Err(format!("a hold that ends before it starts: {hold:?}"));
        }
        locks.entry(&hold.lock).or_default().push(hold);
    }
    for (_, mut holds) in locks {
        holds.sort_by_key(|hold| (hold.from, hold.until));
        for pair in holds.windows(2) {
            let [earlier, later] = pair else { continue };
            if earlier.until > later.from {
                return Err(format!(
                    "two holders at once for {:?}: {earlier:?} and {later:?}",
                    earlier.until.min(later.until) - later.from
                ));
            }
            if earlier.token >= later.token {
                return Err(format!(
                    "the later grant has no higher token: {earlier:?} and {later:?}"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(lock: &str, token: u64, from: u64, until: u64) -> Hold {
        Hold {
            lock: lock.into(),
            who: format!("holder of {token}"),
            token,
            from: Duration::from_millis(from),
            until: Duration::from_millis(until),
        }
    }

    #[test]
    fn holds_one_after_the_other_pass_in_any_order_of_recording() {
        let holds = [
            hold("a", 5, 30, 40),
            hold("a", 1, 10, 20),
            hold("b", 1, 12, 35),
            hold("a", 2, 20, 30),
        ];
        check(&holds).unwrap();
    }

    #[test]
    fn overlapping_holds_of_one_lock_are_refused() {
        let holds = [hold("a", 1, 10, 21), hold("a", 2, 20, 30)];
        assert!(check(&holds).unwrap_err().contains("at once"));
        // The first hold lasts from before the second hold until after the end of the second hold.
        let holds = [hold("a", 1, 10, 90), hold("a", 2, 20, 30)];
        assert!(check(&holds).unwrap_err().contains("at once"));
    }

    #[test]
    fn equal_and_falling_tokens_are_refused() {
        for second in [1, 2] {
            let holds = [hold("a", 2, 10, 20), hold("a", second, 20, 30)];
            assert!(check(&holds).unwrap_err().contains("token"), "{second}");
        }
    }
}
