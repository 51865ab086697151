//! The guard of a resource: it remembers the highest fence that was let through.
//!
//! This module owns the decision "let through or refuse" and its state. Invariant: the tokens that
//! pass never fall, and one token passes for one owner only; readers may share a token, and pass in
//! any order until a writer passes. The decision depends on the state alone: it must never read a
//! clock or a store.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Fence, FenceError};
use crate::types::{
    error::{Error, ErrorKind},
    token::{Epoch, FencingToken},
};

/// Number of earlier histories that are remembered. A holder from an even older history has long
/// passed its deadline.
const REMEMBERED: usize = 16;

/// Lets the latest holder through and refuses earlier ones.
///
/// The check must be one step with the change that it protects. Hold the guard in the same mutex as
/// the data, or store its [`state`](Self::state) beside the data and write both in one transaction.
/// A holder that reads, computes and writes should be checked when it *reads*, too: the guard then
/// refuses earlier holders from the read on, so none of them can write between the read and the
/// write.
///
/// The decision for each fence:
///
/// | token, compared with the highest one seen | answer |
/// |---|---|
/// | higher | let through, and it is the highest one from now on |
/// | equal, the same owner | let through |
/// | equal, another owner | [`FenceRefusal::SameTokenOtherOwner`] |
/// | lower | [`FenceRefusal::Older`] |
/// | lower, under an epoch that was not seen before | [`FenceRefusal::LowerInNewEpoch`] |
///
/// Readers of a shared lock, which do not exclude each other, are let through by
/// [`check_read`](Self::check_read).
///
/// The last case means that the store lost its history, and its new tokens are lower than the
/// tokens it gave out before. Only the operator can know whether the old holders are gone. So the
/// guard refuses the new epoch until a call of [`reset_to`](Self::reset_to) names that epoch.
///
/// ```
/// # use distlock::{Epoch, Fence, FenceGuard, FencingToken, OwnerId};
/// # fn fence(token: u64) -> Fence {
/// #     Fence::new(FencingToken::new(token).unwrap(), OwnerId::new().tag(), Epoch::new("e"))
/// # }
/// let mut guard = FenceGuard::new();
/// let (paused, latest) = (fence(7), fence(8));
/// assert!(guard.check(&paused).is_ok());
/// assert!(guard.check(&latest).is_ok());
/// assert!(guard.check(&paused).is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceGuard {
    state: FenceState,
}

/// The memory of a [`FenceGuard`], for storing beside the data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FenceState {
    // The field must be present in the JSON. Otherwise a damaged state, `{}`, would be read as the
    // state of a new guard.
    #[serde(deserialize_with = "Option::deserialize")]
    highest: Option<Fence>,
    /// The highest fence of a reader, if its token is not below that of `highest`. The owner is nil
    /// if several readers have shown this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read: Option<Fence>,
    /// Earlier histories, the latest one last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    past: Vec<Past>,
    /// The epoch that a reset named. A fence of that epoch clears this field when it passes. While
    /// the field is set, fences of all other epochs are refused, also of epochs that were never
    /// seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reset: Option<Epoch>,
}

/// What a holder does to the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Past {
    epoch: Epoch,
    /// Whether a reset ended this history. All tokens of an ended history are refused, also tokens
    /// that are higher than those of the present history.
    void: bool,
}

impl FenceGuard {
    /// The same check for a row of a database, as one condition of the `UPDATE` that changes the
    /// row.
    ///
    /// The condition expects two columns in the protected row, `fence_token` (64 bits, `NOT NULL
    /// DEFAULT 0`) and `fence_owner` (nullable), and these parameters: token, token, owner. Write
    /// the token and the owner in the same statement:
    ///
    /// ```sql
    /// UPDATE account SET balance = ?, fence_token = ?, fence_owner = ?
    ///  WHERE id = ? AND (fence_token < ? OR (fence_token = ? AND fence_owner = ?))
    /// ```
    ///
    /// If no row changed, the fence was refused, or there is no such row. A lower token of a new
    /// epoch is refused like any lower token.
    pub const SQL_CONDITION: &'static str =
        "(fence_token < ? OR (fence_token = ? AND fence_owner = ?))";

    /// Creates a guard that has admitted no fence yet. The guard admits the first fence.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: FenceState {
                highest: None,
                read: None,
                past: Vec::new(),
                reset: None,
            },
        }
    }

    /// A guard with a stored state.
    #[must_use]
    pub const fn from_state(state: FenceState) -> Self {
        Self { state }
    }

    /// The state, for storing beside the data.
    #[must_use]
    pub const fn state(&self) -> &FenceState {
        &self.state
    }

    /// The highest fence that was let through, without those of readers.
    #[must_use]
    pub const fn highest(&self) -> Option<&Fence> {
        self.state.highest.as_ref()
    }

    /// Lets a holder through and remembers its fence as the highest one, or refuses the holder and
    /// changes nothing.
    ///
    /// # Errors
    /// The refusal; see the table above.
    pub fn check(&mut self, offered: &Fence) -> Result<(), FenceRefusal> {
        self.decide(offered, Access::Write)?;
        let read = self.state.read.take();
        if let Some(read) = read.filter(|read| read.epoch != offered.epoch) {
            self.remember(read.epoch, false);
        }
        let left = match self.state.highest.replace(offered.clone()) {
            Some(seen) if seen.epoch != offered.epoch => Some(seen.epoch),
            _ => None,
        };
        self.state.past.retain(|past| past.epoch != offered.epoch);
        self.state.reset = None;
        if let Some(epoch) = left {
            self.remember(epoch, false);
        }
        Ok(())
    }

    /// Lets a reader through, or refuses it. A reader is one of several holders that do not exclude
    /// each other: those of a lock of readers and writers. It must not change the resource.
    ///
    /// A reader is refused if a holder with a higher token was let through by
    /// [`check`](Self::check). From then on `check` refuses tokens lower than the reader's. Readers
    /// pass each other in any order, and several may show the same token.
    ///
    /// ```
    /// # use distlock::{Epoch, Fence, FenceGuard, FencingToken, OwnerId};
    /// # fn fence(token: u64) -> Fence {
    /// #     Fence::new(FencingToken::new(token).unwrap(), OwnerId::new().tag(), Epoch::new("e"))
    /// # }
    /// let mut guard = FenceGuard::new();
    /// let (paused, one, another, writer) = (fence(6), fence(7), fence(8), fence(9));
    /// assert!(guard.check_read(&another).is_ok() && guard.check_read(&one).is_ok());
    /// assert!(guard.check(&paused).is_err()); // a writer that held the lock before them
    /// assert!(guard.check(&writer).is_ok());
    /// assert!(guard.check_read(&another).is_err());
    /// ```
    ///
    /// # Errors
    /// The refusal. The guard is as before.
    pub fn check_read(&mut self, offered: &Fence) -> Result<(), FenceRefusal> {
        self.decide(offered, Access::Read)?;
        match &mut self.state.read {
            Some(seen) if seen.token > offered.token => {}
            Some(seen) if seen.token == offered.token => {
                if seen.owner != offered.owner {
                    seen.owner = Uuid::nil();
                }
            }
            read => {
                let left = read.replace(offered.clone());
                if let Some(left) = left.filter(|left| left.epoch != offered.epoch) {
                    self.remember(left.epoch, false);
                }
            }
        }
        Ok(())
    }

    /// The same check for a state that is stored as a text. Returns the text that replaces `kept`;
    /// `kept` is `None` for a resource that has seen no fence. Replace the text in one step with
    /// the change to the protected data, and only if the stored text is still `kept`. Errors name
    /// `resource`.
    ///
    /// # Errors
    /// [`FenceError::Refused`] for an earlier holder. [`FenceError::Failed`] with
    /// [`ErrorKind::Corrupt`] when `kept` is not the text of a guard.
    pub fn raised(
        kept: Option<&str>,
        resource: &str,
        offered: &Fence,
    ) -> Result<String, FenceError> {
        let state = kept.map_or_else(|| Ok(FenceState::default()), serde_json::from_str);
        let state = state.map_err(|error| {
            let problem = format!("the fence of {resource:?} cannot be read");
            Error::new(ErrorKind::Corrupt, problem).caused_by(error)
        })?;
        let mut guard = Self::from_state(state);
        guard.check(offered)?;
        Ok(guard.to_text()?)
    }

    /// The [state](Self::state) as a text, for [`Self::raised`].
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] when the state cannot be written as JSON. No such state is known.
    pub fn to_text(&self) -> crate::Result<String> {
        serde_json::to_string(&self.state).map_err(|error| {
            Error::new(ErrorKind::Internal, "a fence cannot be written").caused_by(error)
        })
    }

    /// Forgets everything: any next fence is let through.
    ///
    /// Call this for a resource that was emptied, or when all former holders are known to be gone.
    /// [`Self::reset_to`] is safer.
    pub fn reset(&mut self) {
        *self = Self::new();
    }

    /// Accepts that the store has started a new history: the next token of `epoch` is let through,
    /// also a low one. Until then, fences of every other epoch are refused, also those with a
    /// higher token. Fences of an epoch that was seen before this call are refused for ever.
    pub fn reset_to(&mut self, epoch: &Epoch) {
        let seen = self.state.highest.take();
        let read = self.state.read.take();
        for past in &mut self.state.past {
            past.void = true;
        }
        for seen in [read, seen].into_iter().flatten() {
            self.remember(seen.epoch, true);
        }
        self.state.past.retain(|past| past.epoch != *epoch);
        self.state.reset = Some(epoch.clone());
    }

    fn decide(&self, offered: &Fence, access: Access) -> Result<(), FenceRefusal> {
        let past = self
            .state
            .past
            .iter()
            .find(|past| past.epoch == offered.epoch);
        let reset = self.state.reset.as_ref();
        let outside = reset.is_some_and(|reset| *reset != offered.epoch);
        if outside || past.is_some_and(|past| past.void) {
            return Err(FenceRefusal::VoidEpoch {
                offered: offered.token,
                epoch: offered.epoch.clone(),
            });
        }
        let (highest, read) = (self.state.highest.as_ref(), self.state.read.as_ref());
        // A reader only has to be above writers.
        let read = read.filter(|_| access == Access::Write);
        let known = |epoch: &Epoch| {
            let mut seen = highest.into_iter().chain(&self.state.read);
            past.is_some() || seen.any(|seen| seen.epoch == *epoch)
        };
        for seen in read.into_iter().chain(highest) {
            if offered.token > seen.token {
                continue;
            }
            if offered.token == seen.token {
                if offered.owner == seen.owner || access == Access::Read {
                    continue;
                }
                return Err(FenceRefusal::SameTokenOtherOwner {
                    token: offered.token,
                });
            }
            return Err(if known(&offered.epoch) {
                FenceRefusal::Older {
                    seen: seen.token,
                    offered: offered.token,
                }
            } else {
                FenceRefusal::LowerInNewEpoch {
                    seen: seen.token,
                    seen_epoch: seen.epoch.clone(),
                    offered: offered.token,
                    offered_epoch: offered.epoch.clone(),
                }
            });
        }
        Ok(())
    }

    fn remember(&mut self, epoch: Epoch, void: bool) {
        let past = &mut self.state.past;
        past.retain(|past| past.epoch != epoch);
        past.push(Past { epoch, void });
        if past.len() > REMEMBERED {
            past.remove(0);
        }
    }
}

/// The reason why a [`FenceGuard`] refused a fence. The guard has not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FenceRefusal {
    /// A later holder was let through already.
    Older {
        /// The highest token that was let through.
        seen: FencingToken,
        /// The refused token.
        offered: FencingToken,
    },
    /// Two owners show one token: the store granted that token twice.
    SameTokenOtherOwner {
        /// That token.
        token: FencingToken,
    },
    /// The store has a new history with tokens lower than those of the old one. The refusal stays
    /// until [`FenceGuard::reset_to`].
    LowerInNewEpoch {
        /// The highest token that was let through.
        seen: FencingToken,
        /// The history of that token.
        seen_epoch: Epoch,
        /// The refused token.
        offered: FencingToken,
        /// The history of that token.
        offered_epoch: Epoch,
    },
    /// The fence belongs to a history that [`FenceGuard::reset_to`] ended, or to another history
    /// than that call named.
    VoidEpoch {
        /// The refused token.
        offered: FencingToken,
        /// The history of that token.
        epoch: Epoch,
    },
}

impl fmt::Display for FenceRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Older { seen, offered } => write!(
                f,
                "fencing token {offered} is older than {seen}, which was seen already"
            ),
            Self::SameTokenOtherOwner { token } => {
                write!(
                    f,
                    "fencing token {token} was seen already, from another owner"
                )
            }
            Self::LowerInNewEpoch {
                seen,
                seen_epoch,
                offered,
                offered_epoch,
            } => write!(
                f,
                "fencing token {offered} of the new epoch \"{}\" is lower than {seen} of \"{}\": \
                 the store lost its history, reset the fence once all former holders are gone",
                offered_epoch.as_str().escape_debug(),
                seen_epoch.as_str().escape_debug()
            ),
            Self::VoidEpoch { offered, epoch } => write!(
                f,
                "fencing token {offered} belongs to the epoch \"{}\", which was left behind by a \
                 reset",
                epoch.as_str().escape_debug()
            ),
        }
    }
}

impl std::error::Error for FenceRefusal {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fence(token: u64, owner: u128, epoch: &str) -> Fence {
        Fence::new(
            FencingToken::new(token).unwrap(),
            Uuid::from_u128(owner),
            Epoch::new(epoch),
        )
    }

    fn token(value: u64) -> FencingToken {
        FencingToken::new(value).unwrap()
    }

    #[test]
    fn after_a_reset_only_fences_of_the_named_epoch_pass() {
        let mut guard = FenceGuard::new();
        guard.check(&fence(100, 1, "a")).unwrap();
        // The guard refuses the fence and does not remember the epoch "b".
        assert!(guard.check(&fence(60, 2, "b")).is_err());
        guard.reset_to(&Epoch::new("c"));
        let kept = serde_json::to_string(guard.state()).unwrap();
        let mut guard = FenceGuard::from_state(serde_json::from_str(&kept).unwrap());
        assert!(matches!(
            guard.check(&fence(60, 2, "b")),
            Err(FenceRefusal::VoidEpoch { .. })
        ));
        guard.check(&fence(50, 3, "c")).unwrap();
        // After a fence of epoch "c" has passed, a higher token of a new epoch passes.
        guard.check(&fence(70, 4, "d")).unwrap();
    }

    #[test]
    fn the_epoch_of_readers_is_past_once_readers_of_a_later_one_have_passed() {
        let mut guard = FenceGuard::new();
        guard.check_read(&fence(100, 1, "a")).unwrap();
        guard.check_read(&fence(101, 2, "b")).unwrap();
        guard.reset_to(&Epoch::new("c"));
        guard.check(&fence(5, 3, "c")).unwrap();
        // Holders of both were stopped, and resume.
        for (number, epoch) in [(90, "a"), (102, "b")] {
            assert!(guard.check(&fence(number, 4, epoch)).is_err(), "{epoch}");
        }
    }

    #[test]
    fn a_refusal_names_its_reason_and_changes_nothing() {
        let mut guard = FenceGuard::new();
        guard.check(&fence(5, 1, "a")).unwrap();
        let before = guard.clone();
        assert_eq!(
            guard.check(&fence(4, 1, "a")),
            Err(FenceRefusal::Older {
                seen: token(5),
                offered: token(4)
            })
        );
        assert_eq!(
            guard.check(&fence(5, 2, "a")),
            Err(FenceRefusal::SameTokenOtherOwner { token: token(5) })
        );
        assert_eq!(
            guard.check(&fence(5, 2, "b")),
            Err(FenceRefusal::SameTokenOtherOwner { token: token(5) })
        );
        assert_eq!(
            guard.check(&fence(4, 1, "b")),
            Err(FenceRefusal::LowerInNewEpoch {
                seen: token(5),
                seen_epoch: Epoch::new("a"),
                offered: token(4),
                offered_epoch: Epoch::new("b"),
            })
        );
        assert_eq!(guard, before);
        guard.check(&fence(5, 1, "a")).unwrap();
        guard.check(&fence(6, 2, "a")).unwrap();
    }

    #[test]
    fn one_owner_passes_with_one_token_after_the_epoch_changed() {
        let mut guard = FenceGuard::new();
        guard.check(&fence(5, 1, "a")).unwrap();
        guard.check(&fence(5, 1, "b")).unwrap();
        guard.check(&fence(6, 2, "b")).unwrap();
        // A paused holder from the earlier epoch "a" is refused as older, not as a holder from a
        // lost history.
        assert!(matches!(
            guard.check(&fence(4, 9, "a")),
            Err(FenceRefusal::Older { .. })
        ));
    }

    #[test]
    fn a_lower_token_of_a_new_epoch_is_refused_until_a_reset_ends_the_old_epoch() {
        let mut guard = FenceGuard::new();
        guard.check(&fence(100, 1, "a")).unwrap();
        for _ in 0..3 {
            assert!(matches!(
                guard.check(&fence(3, 2, "b")),
                Err(FenceRefusal::LowerInNewEpoch { .. })
            ));
        }
        guard.reset_to(&Epoch::new("b"));
        assert_eq!(
            guard.check(&fence(101, 1, "a")),
            Err(FenceRefusal::VoidEpoch {
                offered: token(101),
                epoch: Epoch::new("a")
            })
        );
        guard.check(&fence(3, 2, "b")).unwrap();
        assert!(matches!(
            guard.check(&fence(101, 1, "a")),
            Err(FenceRefusal::VoidEpoch { .. })
        ));
        assert!(matches!(
            guard.check(&fence(2, 2, "b")),
            Err(FenceRefusal::Older { .. })
        ));
        guard.reset();
        guard.check(&fence(1, 1, "a")).unwrap();
    }

    #[test]
    fn the_number_of_remembered_epochs_is_bounded() {
        let mut guard = FenceGuard::new();
        for n in 1..1000 {
            guard.check(&fence(n, 1, &format!("e{n}"))).unwrap();
        }
        assert_eq!(guard.state.past.len(), REMEMBERED);
    }

    #[test]
    fn a_stored_state_is_read_back_and_a_damaged_one_is_refused() {
        let mut guard = FenceGuard::new();
        guard.check(&fence(5, 1, "a")).unwrap();
        guard.check(&fence(6, 1, "b")).unwrap();
        let text = serde_json::to_string(guard.state()).unwrap();
        let again = FenceGuard::from_state(serde_json::from_str(&text).unwrap());
        assert_eq!(again, guard);
        for bad in [
            "",
            "{}",
            "{}x",
            "null",
            r#"{"highest":{"token":0,"owner":"00000000-0000-0000-0000-000000000001","epoch":"a"}}"#,
            r#"{"highest":null,"surprise":1}"#,
        ] {
            assert!(
                serde_json::from_str::<FenceState>(bad).is_err(),
                "{bad} was accepted"
            );
        }
    }

    /// Checks every sequence of five fences from two tokens, two owners and two epochs.
    #[test]
    fn every_short_sequence_of_fences_is_decided_by_token_and_owner() {
        let all: Vec<Fence> = (1..=2)
            .flat_map(|token| (1..=2).map(move |owner| (token, owner)))
            .flat_map(|(token, owner)| ["a", "b"].map(|epoch| fence(token, owner, epoch)))
            .collect();
        let length = 5;
        for number in 0..all.len().pow(length) {
            let mut guard = FenceGuard::new();
            let mut passed: Vec<&Fence> = Vec::new();
            let mut rest = number;
            for _ in 0..length {
                let offered = &all[rest % all.len()];
                rest /= all.len();
                let answer = guard.check(offered);
                let highest = passed.iter().max_by_key(|fence| fence.token);
                match highest {
                    None => assert!(answer.is_ok()),
                    Some(seen) => assert_eq!(
                        answer.is_ok(),
                        offered.token > seen.token
                            || (offered.token == seen.token && offered.owner == seen.owner),
                        "{offered:?} after {passed:?}"
                    ),
                }
                if answer.is_ok() {
                    passed.push(offered);
                }
            }
        }
    }

    #[test]
    fn readers_pass_each_other_and_no_earlier_writer_passes_them() {
        let mut guard = FenceGuard::new();
        guard.check(&fence(4, 1, "a")).unwrap();
        guard.check_read(&fence(8, 2, "a")).unwrap();
        guard.check_read(&fence(7, 3, "a")).unwrap();
        let before = guard.clone();
        let older = |seen| {
            let (seen, offered) = (token(seen), token(5));
            Err(FenceRefusal::Older { seen, offered })
        };
        assert_eq!(guard.check(&fence(5, 4, "a")), older(8));
        assert_eq!(guard, before);
        let text = serde_json::to_string(guard.state()).unwrap();
        let mut guard = FenceGuard::from_state(serde_json::from_str(&text).unwrap());
        assert_eq!(guard.highest(), Some(&fence(4, 1, "a")));
        guard.check(&fence(9, 5, "a")).unwrap();
        assert_eq!(guard.check_read(&fence(5, 2, "a")), older(9));
        guard.check_read(&fence(9, 6, "a")).unwrap();
    }

    /// A reader of another history counts like one of the present one, and a reset ends its epoch.
    #[test]
    fn readers_of_a_new_history_refuse_earlier_writers() {
        let mut guard = FenceGuard::new();
        guard.check(&fence(4, 1, "a")).unwrap();
        assert!(matches!(
            guard.check_read(&fence(3, 2, "b")),
            Err(FenceRefusal::LowerInNewEpoch { .. })
        ));
        guard.check_read(&fence(6, 2, "b")).unwrap();
        assert!(guard.check(&fence(5, 1, "a")).is_err());
        guard.reset_to(&Epoch::new("c"));
        assert!(matches!(
            guard.check_read(&fence(7, 2, "b")),
            Err(FenceRefusal::VoidEpoch { .. })
        ));
        guard.check_read(&fence(1, 3, "c")).unwrap();
        guard.check(&fence(1, 3, "c")).unwrap();
    }

    /// Checks every sequence of five reads and writes with two tokens and two owners.
    #[test]
    fn every_short_sequence_of_reads_and_writes_is_decided_by_token_and_owner() {
        let all: Vec<(bool, Fence)> = [false, true]
            .into_iter()
            .flat_map(|reads| (1..=2).map(move |token| (reads, token)))
            .flat_map(|(reads, token)| [1, 2].map(|owner| (reads, fence(token, owner, "a"))))
            .collect();
        let length = 5;
        for number in 0..all.len().pow(length) {
            let mut guard = FenceGuard::new();
            let mut passed: Vec<&(bool, Fence)> = Vec::new();
            let mut rest = number;
            for _ in 0..length {
                let step = &all[rest % all.len()];
                rest /= all.len();
                let (reads, offered) = step;
                let excludes = |(before_reads, before): &&(bool, Fence)| {
                    let is_newer = before.token > offered.token;
                    let is_other = before.token == offered.token && before.owner != offered.owner;
                    match (reads, before_reads) {
                        (true, true) => false,
                        (true, false) => is_newer,
                        (false, _) => is_newer || is_other,
                    }
                };
                let may_pass = !passed.iter().any(excludes);
                let answer = match reads {
                    true => guard.check_read(offered),
                    false => guard.check(offered),
                };
                assert_eq!(answer.is_ok(), may_pass, "{step:?} after {passed:?}");
                if may_pass {
                    passed.push(step);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn passing_tokens_never_fall_and_keep_their_owner(
            offers in prop::collection::vec((1u64..20, 0u128..4, 0usize..3), 1..100)
        ) {
            let mut guard = FenceGuard::new();
            let mut last: Option<Fence> = None;
            for (token, owner, epoch) in offers {
                let offered = fence(token, owner, ["a", "b", "c"][epoch]);
                // Storing and reading the state between two checks changes nothing.
                let text = serde_json::to_string(guard.state()).unwrap();
                guard = FenceGuard::from_state(serde_json::from_str(&text).unwrap());
                if guard.check(&offered).is_ok() {
                    if let Some(last) = &last {
                        prop_assert!(offered.token >= last.token);
                        prop_assert!(offered.token > last.token || offered.owner == last.owner);
                    }
                    last = Some(offered);
                }
                prop_assert_eq!(guard.highest(), last.as_ref());
            }
        }
    }
}
