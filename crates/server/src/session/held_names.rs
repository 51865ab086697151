//! The names that one session holds, if their number is limited.
//!
//! A lease that ends without a release is forgotten after its time. A lock that another session of
//! the same client has taken is not counted here.

use std::{collections::HashMap, sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Moment, Result, micros, sync::Mutex};
use distlock_wire::v1::{acquire_answer, answer, operation::Operation as Asked, renew_answer};

use crate::meters;

/// The names of a session. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct HeldNames {
    most: usize,
    /// For leases of which only the longest life is known.
    longest: Duration,
    clock: Arc<dyn Clock>,
    /// Each name with the end of its lease; `None` while the first answer about it is on its way.
    names: Arc<Mutex<HashMap<String, Option<Moment>>>>,
}

impl HeldNames {
    pub(super) fn new(most: usize, longest: Duration, clock: Arc<dyn Clock>) -> Self {
        Self {
            most,
            longest,
            clock,
            names: Arc::default(),
        }
    }

    /// Reserves a place for this name, if the operation may take its lock.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if no place is left.
    pub(super) fn admit(&self, name: &str) -> Result<()> {
        let now = self.clock.now();
        let mut names = self.names.lock();
        if names.contains_key(name) {
            return Ok(());
        }
        if names.len() >= self.most {
            names.retain(|_, until| until.is_none_or(|until| until > now));
        }
        if names.len() >= self.most {
            meters::count_refusal("names_of_session");
            let most = self.most;
            let problem = format!("this session holds {most} locks, and no more are allowed");
            return Err(Error::new(ErrorKind::LimitExceeded, problem).passing());
        }
        names.insert(name.to_owned(), None);
        Ok(())
    }

    /// The name whose lock an operation may take or free.
    pub(super) fn name_of(operation: &Asked) -> Option<(String, bool)> {
        match operation {
            Asked::Acquire(it) => Some((it.name.clone(), true)),
            Asked::Renew(it) => Some((it.lease.as_ref()?.name.clone(), false)),
            Asked::Release(it) => Some((it.lease.as_ref()?.name.clone(), false)),
            _ => None,
        }
    }

    /// Notes what an answer says about this name.
    pub(super) fn note(&self, name: &str, answer: &answer::Answer) {
        let until = match answer {
            answer::Answer::Acquire(it) => match &it.answer {
                Some(acquire_answer::Answer::Granted(grant)) => Some(grant.valid_for_us),
                _ => return self.forget_reserved(name),
            },
            answer::Answer::Renew(it) => match &it.answer {
                Some(renew_answer::Answer::Extended(extended)) => Some(extended.valid_for_us),
                _ => None,
            },
            answer::Answer::Release(_) => None,
            // The lock may be held, for as long as a lease can last.
            _ => Some(micros(self.longest)),
        };
        let mut names = self.names.lock();
        match until {
            Some(micros) => {
                let until = self.clock.now() + Duration::from_micros(micros);
                names.insert(name.to_owned(), Some(until));
            }
            None => {
                names.remove(name);
            }
        }
    }

    /// The lock was busy. Another caller of this session may be its holder.
    fn forget_reserved(&self, name: &str) {
        let mut names = self.names.lock();
        if let Some(None) = names.get(name) {
            names.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;
    use distlock_wire::v1;

    use super::*;

    #[test]
    fn names_are_counted_until_their_release_or_the_end_of_their_lease() {
        let clock = ManualClock::new();
        let longest = Duration::from_secs(60);
        let held = HeldNames::new(2, longest, Arc::new(clock.clone()));
        let acquired = |answer| {
            let answer = Some(answer);
            answer::Answer::Acquire(v1::AcquireAnswer { answer })
        };
        let granted = acquired(acquire_answer::Answer::Granted(v1::Grant {
            valid_for_us: 10_000_000,
            ..v1::Grant::default()
        }));
        let busy = acquired(acquire_answer::Answer::Busy(v1::Busy::default()));
        for name in ["a", "b"] {
            held.admit(name).unwrap();
            held.note(name, &granted);
        }
        held.admit("a").unwrap();
        held.note("a", &busy);
        let told = held.admit("c").unwrap_err().to_string();
        assert!(told.contains("holds 2 locks"), "{told}");
        held.note("b", &answer::Answer::Release(v1::ReleaseAnswer::default()));
        held.admit("c").unwrap();
        held.note("c", &busy);
        held.admit("c").unwrap();
        // No answer came, so the lock may be held.
        held.note("c", &answer::Answer::Error(v1::Error::default()));
        clock.advance(Duration::from_secs(11));
        held.admit("d").unwrap();
        assert!(held.admit("e").is_err());
        clock.advance(longest);
        held.admit("e").unwrap();
    }
}
