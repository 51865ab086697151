//! The times between losses of the store's data.
//!
//! A failover loses what the new primary had not received, and what the old primary acknowledged or
//! answered until its clients had left it. So an operation at that time proves nothing, and the
//! operations before it and after it are compared apart.

use crate::chaos::history::{Excuse, Micros};

use super::excuses::Excuses;

/// A loss of data: a time in which the store may have acknowledged a change that it lacks later, or
/// may have answered without a change that it had acknowledged.
struct Loss {
    from: Micros,
    until: Micros,
    /// Whether older data may remain.
    keeps_older: bool,
    fault: String,
}

/// The losses of a run, in the order of their ends.
pub(super) struct Eras(Vec<Loss>);

impl Eras {
    /// Collects the losses.
    pub(super) fn of(excuses: &Excuses<'_>) -> Self {
        let losses = excuses.record_losses().map(|(fault, until)| Loss {
            from: fault.from,
            until,
            keeps_older: fault.excuse == Some(Excuse::FailedOver),
            fault: format!("{} of {}", fault.kind, fault.target),
        });
        let mut losses: Vec<_> = losses.collect();
        losses.sort_by_key(|it| it.until);
        Self(losses)
    }

    /// Returns the era of an operation from `asked` to `at`. `None` means that the store lost data
    /// during the operation.
    pub(super) fn era_of(&self, asked: Micros, at: Micros) -> Option<usize> {
        if self.loss_between(asked, at).is_some() {
            return None;
        }
        Some(self.0.iter().filter(|it| it.until < asked).count())
    }

    /// Returns the fault of the first loss between two moments.
    pub(super) fn loss_between(&self, from: Micros, to: Micros) -> Option<&str> {
        let mut losses = self.0.iter();
        let loss = losses.find(|it| it.from <= to && from <= it.until)?;
        Some(&loss.fault)
    }

    /// Tells whether an era may begin with data of the eras before it.
    pub(super) fn keeps_older(&self, era: usize) -> bool {
        era.checked_sub(1)
            .is_some_and(|last| self.0[last].keeps_older)
    }
}
