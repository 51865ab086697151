//! One round: the attempt of one owner to hold the lock at a majority of the members.
//!
//! This module owns the votes of a round and decides from them: which tokens are raised, when the
//! round holds the lock, and when it has failed. It sends nothing and reads no clock, so each
//! decision depends on the answers alone.
//!
//! Invariants:
//!
//! - A member is counted only after its marker was read, by a request that was sent after its grant
//!   was answered.
//! - The token of a held round is at most the token that each counted member has confirmed. So each
//!   later grant of a counted member, and with it each later majority, has a higher token.
//! - Every member that granted, or that may have granted, is released when the round has failed,
//!   and none before.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, FencingToken, HolderInfo, Moment, Result};

use crate::marker::{Standing, clock_limit};

/// The longest pause of a caller that waits for members to vote.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The votes of a round, one for each member.
#[derive(Debug)]
pub(crate) struct Round {
    max_lease: Duration,
    votes: Vec<Vote>,
    /// The members that are counted, as soon as a majority has granted.
    counted: Vec<usize>,
    /// The token that the counted members are raised to.
    token: Option<FencingToken>,
    outcome: Option<Outcome>,
}

#[derive(Debug, Default)]
struct Vote {
    answer: Answer,
    /// What the marker says, once it was read.
    marker: Option<Result<Standing>>,
    /// Whether a raise is in flight.
    raising: bool,
    /// Whether the member is not counted before it has answered its request in flight.
    slow: bool,
}

/// The answer of a member to the request for the lock.
#[derive(Debug, Default)]
enum Answer {
    #[default]
    None,
    Granted(Granted),
    Busy(Option<HolderInfo>),
    /// The member cannot be counted.
    Failed {
        error: Error,
        /// Whether the member may hold the lock for this round: it has granted, or its answer was
        /// lost.
        may_hold: bool,
    },
}

/// The grant of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    /// The token that the member has confirmed: that of the grant, or a raised one.
    pub(crate) token: FencingToken,
    /// The moment from which the lease is counted.
    pub(crate) from: Moment,
    pub(crate) valid_for: Duration,
}

/// The result of a round.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// A majority is confirmed.
    Held {
        token: FencingToken,
        /// The earliest moment from which a counted lease is counted.
        from: Moment,
        /// The shortest lease, counted from `from`.
        valid_for: Duration,
    },
    /// Other owners hold the lock at so many members that no majority is left.
    Busy {
        /// A holder, if a member told one.
        holder: Option<HolderInfo>,
        /// Whether nobody may have a majority, or a release is on its way: a member granted, or was
        /// asked alone, and no majority told the same holder.
        split: bool,
    },
    /// So many members failed, or may not vote, that no majority is left.
    Failed(Error),
    /// All members have answered, and no majority agrees in its clocks.
    ClocksApart {
        /// The member whose clock is the earliest.
        behind: usize,
        /// The member whose clock is the latest.
        ahead: usize,
        /// The difference of the two.
        by: Duration,
    },
    /// The caller has gone away.
    Abandoned,
}

/// A request that a task sends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Raises the token of this member to at least this one.
    Raise(usize, FencingToken),
    /// Raises the token of a member that is not counted to that of the lease, a moment later.
    RaiseLater(usize),
    /// Releases the lock at this member, in the name of the round's owner.
    Release(usize),
    /// The same where the answer to the grant was lost: the grant may arrive after the release.
    ReleaseLate(usize),
}

impl Vote {
    /// Whether a request to the member is in flight.
    fn waits(&self) -> bool {
        match self.answer {
            Answer::None => true,
            Answer::Granted(_) => self.marker.is_none() || self.raising,
            Answer::Busy(_) | Answer::Failed { .. } => false,
        }
    }
}

impl Round {
    pub(crate) fn new(members: usize, max_lease: Duration) -> Self {
        Self {
            max_lease,
            votes: std::iter::repeat_with(Vote::default)
                .take(members)
                .collect(),
            counted: Vec::new(),
            token: None,
            outcome: None,
        }
    }

    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    fn majority(&self) -> usize {
        self.votes.len() / 2 + 1
    }

    pub(crate) fn granted(&mut self, member: usize, granted: Granted) -> Vec<Step> {
        // A grant of a slow member does not count before its marker was read: both are late.
        self.votes[member].answer = Answer::Granted(granted);
        match self.outcome {
            // The grant came too late. A round that holds the lock keeps it: the member is one more
            // that nobody else can get, and counts from the next renewal on.
            None => self.decide(),
            Some(Outcome::Held { token, .. }) if granted.token < token => {
                vec![Step::RaiseLater(member)]
            }
            Some(Outcome::Held { .. }) => Vec::new(),
            Some(_) => vec![Step::Release(member)],
        }
    }

    pub(crate) fn busy(&mut self, member: usize, holder: Option<HolderInfo>) -> Vec<Step> {
        self.votes[member].answer = Answer::Busy(holder);
        self.decide()
    }

    /// Ends a round whose first member has another holder, before the others were asked.
    pub(crate) fn refused(&mut self, holder: Option<HolderInfo>) -> Vec<Step> {
        if self.outcome.is_some() {
            return Vec::new();
        }
        // What the first member has may be the rest of a failed round, or a late grant that was
        // never a part of a majority. Only more members can tell.
        self.end(Outcome::Busy {
            holder,
            split: true,
        })
    }

    /// Notes that a member did not answer the request for the lock, or refused it.
    pub(crate) fn failed(&mut self, member: usize, error: Error) -> Vec<Step> {
        let may_hold = !error.did_not_happen();
        self.drop_out(member, error, may_hold)
    }

    /// Leaves a member out. Nothing is released before the round is decided: if the round gets the
    /// lock, a release that is still on its way could free the member after the lease has taken it
    /// again, under the same owner.
    fn drop_out(&mut self, member: usize, error: Error, may_hold: bool) -> Vec<Step> {
        self.votes[member].answer = Answer::Failed { error, may_hold };
        match self.outcome {
            None => self.decide(),
            Some(Outcome::Held { .. }) => Vec::new(),
            Some(_) if may_hold => vec![Step::ReleaseLate(member)],
            Some(_) => Vec::new(),
        }
    }

    pub(crate) fn marker(&mut self, member: usize, read: Result<Standing>) -> Vec<Step> {
        let vote = &mut self.votes[member];
        vote.marker = Some(read);
        vote.slow &= vote.raising;
        self.decide()
    }

    /// Notes the answer to a raise: the token that the member has confirmed, or why it has not.
    pub(crate) fn raised(&mut self, member: usize, result: Result<FencingToken>) -> Vec<Step> {
        let vote = &mut self.votes[member];
        vote.raising = false;
        vote.slow &= vote.marker.is_none();
        match (result, &mut vote.answer) {
            (Ok(token), Answer::Granted(granted)) => granted.token = granted.token.max(token),
            (Err(error), _) => return self.drop_out(member, error, true),
            (Ok(_), _) => {}
        }
        self.decide()
    }

    /// Counts others in place of the members that have not answered a request, if a majority of
    /// others has granted and votes. A slow member that answers may still be counted: if one of the
    /// others fails now, the round would otherwise fail without need.
    pub(crate) fn pass_by_slow(&mut self) -> Vec<Step> {
        let ready = (0..self.votes.len()).filter(|&member| {
            self.candidate(member).is_some()
                && self.clock(member).is_some()
                && !self.votes[member].raising
        });
        if self.outcome.is_some() || ready.count() < self.majority() {
            return Vec::new();
        }
        for vote in &mut self.votes {
            vote.slow = vote.waits();
        }
        self.decide()
    }

    /// Gives up the members that have not answered a request. The round is decided afterwards, or
    /// after the raises that it still needs.
    pub(crate) fn give_up_late(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for member in 0..self.votes.len() {
            if self.votes[member].waits() && self.outcome.is_none() {
                let problem = "a member did not answer in time";
                let error = Error::new(ErrorKind::OutcomeUnknown, problem);
                steps.extend(self.drop_out(member, error, true));
            }
        }
        steps
    }

    /// Gives the round up: nobody takes its outcome. A lock that it holds is released.
    pub(crate) fn abandon(&mut self) -> Vec<Step> {
        match self.outcome {
            None | Some(Outcome::Held { .. }) => self.end(Outcome::Abandoned),
            // Everything is released already.
            Some(_) => Vec::new(),
        }
    }

    fn end(&mut self, outcome: Outcome) -> Vec<Step> {
        self.outcome = Some(outcome);
        let release = |member: usize| match self.votes[member].answer {
            Answer::Granted(_) => Some(Step::Release(member)),
            Answer::Failed { may_hold: true, .. } => Some(Step::ReleaseLate(member)),
            // A member without an answer is released when its answer comes.
            Answer::Failed { .. } | Answer::None | Answer::Busy(_) => None,
        };
        (0..self.votes.len()).filter_map(release).collect()
    }

    /// The grant of a member that may still be counted.
    fn candidate(&self, member: usize) -> Option<Granted> {
        let vote = &self.votes[member];
        match (&vote.answer, &vote.marker) {
            (Answer::Granted(granted), None | Some(Ok(Standing::Votes(_)))) if !vote.slow => {
                Some(*granted)
            }
            _ => None,
        }
    }

    fn candidates(&self) -> impl Iterator<Item = (usize, Granted)> {
        (0..self.votes.len()).filter_map(|member| Some((member, self.candidate(member)?)))
    }

    /// The clock of a member whose marker was read and counts.
    fn clock(&self, member: usize) -> Option<Duration> {
        match self.votes[member].marker {
            Some(Ok(Standing::Votes(clock))) => Some(clock),
            _ => None,
        }
    }

    /// The largest group of candidates whose markers were read and whose clocks agree.
    fn agreeing(&self) -> Vec<usize> {
        let mut read: Vec<_> = self
            .candidates()
            .filter_map(|(member, _)| Some((self.clock(member)?, member)))
            .collect();
        read.sort_unstable();
        let mut largest: &[(Duration, usize)] = &[];
        for first in 0..read.len() {
            let rest = &read[first..];
            let near = rest
                .iter()
                .take_while(|it| self.agree(&[rest[0].0, it.0]))
                .count();
            if near > largest.len() {
                largest = &rest[..near];
            }
        }
        largest.iter().map(|&(_, member)| member).collect()
    }

    fn decide(&mut self) -> Vec<Step> {
        if self.outcome.is_some() {
            return Vec::new();
        }
        if let Some(outcome) = self.no_majority_left() {
            return self.end(outcome);
        }
        if !self.choose() {
            return Vec::new();
        }
        let counted: Vec<_> = self
            .candidates()
            .filter(|(it, _)| self.counted.contains(it))
            .collect();
        let tokens = || counted.iter().map(|(_, granted)| granted.token);
        let (Some(highest), Some(lowest)) = (tokens().max(), tokens().min()) else {
            return Vec::new();
        };
        // A token that was asked for stays: a raise to it may be in flight, and the members would
        // have another token than the lease.
        let token = self.token.map_or(highest, |before| before.max(highest));
        let read = counted
            .iter()
            .all(|&(member, _)| self.clock(member).is_some());
        let step = Duration::from_micros(token.get() - lowest.get());
        if step > clock_limit(self.max_lease) && !read {
            // A token is about the clock of its member. If one clock were far ahead and the others
            // were raised to it, tokens would fall when the clock was repaired and the raised
            // members were emptied. So a large step waits until the clocks are known to agree.
            return Vec::new();
        }
        self.token = Some(token);
        if read && counted.iter().all(|(_, granted)| granted.token >= token) {
            let grants: Vec<_> = counted.iter().map(|&(_, granted)| granted).collect();
            self.outcome = Some(held(token, &grants));
            return self.raises_of_others(token);
        }
        let mut steps = Vec::new();
        for (member, granted) in counted {
            let vote = &mut self.votes[member];
            // One raise of a member is in flight at a time; its answer leads to the next decision.
            if granted.token < token && !vote.raising {
                vote.raising = true;
                steps.push(Step::Raise(member, token));
            }
        }
        steps
    }

    /// The raises of the members that have granted, but were not counted. Until they are raised, an
    /// inspection without one of the counted members cannot tell which token is that of the lease.
    fn raises_of_others(&self, token: FencingToken) -> Vec<Step> {
        let is_below = |member: &usize| match &self.votes[*member].answer {
            Answer::Granted(granted) => granted.token < token,
            _ => false,
        };
        let below = (0..self.votes.len()).filter(is_below);
        below.map(Step::RaiseLater).collect()
    }

    /// Chooses the members that are counted: the first majority that has granted, and others only
    /// in place of those that drop out. Returns false while there is no such majority.
    fn choose(&mut self) -> bool {
        let candidates: Vec<_> = self.candidates().map(|(member, _)| member).collect();
        self.counted.retain(|member| candidates.contains(member));
        for &member in &candidates {
            if self.counted.len() < self.majority() && !self.counted.contains(&member) {
                self.counted.push(member);
            }
        }
        if self.counted.len() < self.majority() {
            return false;
        }
        let clocks: Vec<_> = self
            .counted
            .iter()
            .filter_map(|&it| self.clock(it))
            .collect();
        if self.agree(&clocks) {
            return true;
        }
        // Two clocks that differ do not tell which of them is wrong. A majority that agrees does.
        let agreeing = self.agreeing();
        if agreeing.len() < self.majority() {
            return false;
        }
        self.counted = agreeing;
        self.counted.truncate(self.majority());
        // The token of a member that is left out does not count either. Nothing was raised to it: a
        // large step waits for the clocks of those that are counted.
        self.token = None;
        true
    }

    /// Whether all of these clocks are near each other.
    fn agree(&self, clocks: &[Duration]) -> bool {
        match (clocks.iter().min(), clocks.iter().max()) {
            (Some(&first), Some(&last)) => last - first <= clock_limit(self.max_lease),
            _ => true,
        }
    }

    /// The outcome of a round that can no longer get a majority.
    fn no_majority_left(&self) -> Option<Outcome> {
        let undecided = |vote: &&Vote| match (&vote.answer, &vote.marker) {
            (Answer::None, _) => true,
            // Also a slow one.
            (Answer::Granted(_), marker) => matches!(marker, None | Some(Ok(Standing::Votes(_)))),
            (Answer::Busy(_) | Answer::Failed { .. }, _) => false,
        };
        let possible = self.votes.iter().filter(undecided).count();
        if possible >= self.majority() {
            return self.clocks_apart();
        }
        let (mut holders, mut granted) = (Vec::new(), false);
        for vote in &self.votes {
            match &vote.answer {
                Answer::Busy(told) => holders.push(told.as_ref()),
                Answer::Granted(_) => granted = true,
                Answer::None | Answer::Failed { .. } => {}
            }
        }
        let is_open = |vote: &Vote| matches!(vote.answer, Answer::None);
        let few = (1..self.majority()).contains(&holders.len());
        if few && self.votes.iter().any(is_open) {
            // What a few members have may be a late grant of a round that has failed. The answers
            // that are on their way can show that the lock is free.
            return None;
        }
        if !holders.is_empty() {
            // The members of a majority have the same token, because the round of their holder has
            // raised them to it.
            let tokens = || holders.iter().filter_map(|holder| holder.as_ref()?.token);
            let same = |token| tokens().filter(|it| *it == token).count() >= self.majority();
            return Some(Outcome::Busy {
                holder: holders.iter().copied().flatten().next().cloned(),
                split: granted && !tokens().any(same),
            });
        }
        Some(Outcome::Failed(self.why_not()))
    }

    /// The outcome when all answers and markers are there, and no majority agrees in its clocks.
    fn clocks_apart(&self) -> Option<Outcome> {
        let open = |vote: &Vote| match vote.answer {
            Answer::None => true,
            Answer::Granted(_) => vote.marker.is_none() || vote.slow,
            Answer::Busy(_) | Answer::Failed { .. } => false,
        };
        if self.votes.iter().any(open) || self.agreeing().len() >= self.majority() {
            return None;
        }
        // A member where somebody else holds the lock may be free soon, and may agree.
        let busy = self.votes.iter().find_map(|vote| match &vote.answer {
            Answer::Busy(holder) => Some(holder.clone()),
            _ => None,
        });
        if let Some(holder) = busy {
            let split = true;
            return Some(Outcome::Busy { holder, split });
        }
        let clocks = (0..self.votes.len()).filter_map(|it| Some((self.clock(it)?, it)));
        let ((first, behind), (last, ahead)) = (clocks.clone().min()?, clocks.max()?);
        let by = last - first;
        Some(Outcome::ClocksApart { behind, ahead, by })
    }

    /// The error of a round in which too many members failed.
    fn why_not(&self) -> Error {
        let errors = self
            .votes
            .iter()
            .filter_map(|vote| match (&vote.answer, &vote.marker) {
                (Answer::Failed { error, .. }, _) | (_, Some(Err(error))) => Some(error),
                _ => None,
            });
        if let Some(error) = errors.clone().next() {
            let problem = format!(
                "too few members of the quorum answer and may vote: {} of {} failed, the first \
                 with this error",
                errors.count(),
                self.votes.len()
            );
            return Error::new(ErrorKind::Unavailable, problem).caused_by(error.clone());
        }
        // The operator has moved the quorum, or all members were emptied and are a new one now.
        let foreign = self.votes.iter().find_map(|vote| match vote.marker {
            Some(Ok(Standing::Foreign(difference))) => Some(difference),
            _ => None,
        });
        if let Some(difference) = foreign {
            let problem = format!(
                "too few members of the quorum may vote, because the marker of one does not fit: \
                 {difference}. A program that was started before that has to be restarted"
            );
            return Error::new(ErrorKind::Unavailable, problem);
        }
        let waits = self.votes.iter().filter_map(|vote| match vote.marker {
            Some(Ok(Standing::Waits(left))) => Some(left),
            _ => None,
        });
        let error = Error::new(
            ErrorKind::Unavailable,
            match waits.clone().min() {
                Some(left) => format!(
                    "too few members of the quorum may vote: the next may in {} s. A quorum that \
                     has granted nothing yet votes at once after `distlock quorum init --new`",
                    left.as_secs() + 1
                ),
                None => "too few members of the quorum have a marker: `distlock quorum show` says \
                         which"
                    .to_owned(),
            },
        );
        match waits.min() {
            // An operator may say in the meantime that the quorum is new.
            Some(left) => error.retry_in(left.min(ASK_AGAIN)),
            None => error,
        }
    }
}

fn held(token: FencingToken, confirmed: &[Granted]) -> Outcome {
    let from = confirmed.iter().map(|it| it.from).min();
    let ends = confirmed.iter().map(|it| it.from + it.valid_for).min();
    let from = from.unwrap_or(Moment::from_boot(Duration::ZERO));
    Outcome::Held {
        token,
        from,
        valid_for: ends.map_or(Duration::ZERO, |end| end.since(from)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_LEASE: Duration = Duration::from_secs(60);
    const NOW: u64 = 1_800_000_000_000_000;

    fn token(after: u64) -> FencingToken {
        FencingToken::new(NOW + after).unwrap()
    }

    fn grant(after: u64) -> Granted {
        Granted {
            token: token(after),
            from: Moment::from_boot(Duration::from_secs(100)),
            valid_for: Duration::from_secs(10),
        }
    }

    fn votes(seconds: u64) -> Result<Standing> {
        Ok(Standing::Votes(Duration::from_secs(
            1_800_000_000 + seconds,
        )))
    }

    fn away() -> Error {
        Error::new(ErrorKind::Unavailable, "away")
    }

    fn held_token(round: &Round) -> Option<FencingToken> {
        match round.outcome() {
            Some(Outcome::Held { token, .. }) => Some(*token),
            _ => None,
        }
    }

    #[test]
    fn a_majority_is_held_when_it_has_confirmed_the_highest_token() {
        let mut round = Round::new(3, MAX_LEASE);
        assert_eq!(round.granted(0, grant(5)), []);
        assert_eq!(round.granted(2, grant(9)), [Step::Raise(0, token(9))]);
        assert_eq!(round.marker(0, votes(0)), []);
        assert_eq!(round.marker(2, votes(0)), []);
        assert!(round.outcome().is_none());
        assert_eq!(round.raised(0, Ok(token(9))), []);
        assert_eq!(held_token(&round), Some(token(9)));
        // The late grant of the third member is kept.
        assert_eq!(round.granted(1, grant(20)), []);
        assert_eq!(held_token(&round), Some(token(9)));
    }

    #[test]
    fn a_member_that_was_not_counted_is_raised_later() {
        // The third member grants before the round is decided, or after.
        for grants_early in [true, false] {
            let mut round = Round::new(3, MAX_LEASE);
            round.granted(0, grant(5));
            round.granted(1, grant(5));
            round.marker(0, votes(0));
            let mut steps = Vec::new();
            if grants_early {
                steps.extend(round.granted(2, grant(4)));
            }
            steps.extend(round.marker(1, votes(0)));
            assert_eq!(held_token(&round), Some(token(5)));
            if !grants_early {
                steps.extend(round.granted(2, grant(4)));
            }
            steps.extend(round.marker(2, votes(0)));
            assert_eq!(steps, [Step::RaiseLater(2)], "early: {grants_early}");
        }
    }

    #[test]
    fn a_member_that_may_not_vote_is_not_counted() {
        for standing in [
            Standing::Blank,
            Standing::Restarted,
            Standing::Waits(Duration::from_secs(3)),
            Standing::Foreign("another quorum"),
        ] {
            let mut round = Round::new(3, MAX_LEASE);
            round.granted(0, grant(1));
            round.granted(1, grant(1));
            round.marker(0, votes(0));
            assert_eq!(round.marker(1, Ok(standing.clone())), []);
            assert!(round.outcome().is_none(), "{standing:?}");
            round.granted(2, grant(1));
            round.marker(2, votes(0));
            assert_eq!(held_token(&round), Some(token(1)), "{standing:?}");
        }
    }

    #[test]
    fn a_failed_round_releases_what_was_granted_and_what_comes_late() {
        let mut round = Round::new(3, MAX_LEASE);
        round.granted(0, grant(1));
        round.busy(1, None);
        assert_eq!(round.failed(2, away()), [Step::Release(0)]);
        assert!(matches!(
            round.outcome(),
            Some(Outcome::Busy { split: true, .. })
        ));

        let mut round = Round::new(3, MAX_LEASE);
        round.busy(0, None);
        assert_eq!(round.busy(1, None), []);
        assert!(matches!(
            round.outcome(),
            Some(Outcome::Busy { split: false, .. })
        ));
        assert_eq!(round.granted(2, grant(1)), [Step::Release(2)]);

        let mut round = Round::new(3, MAX_LEASE);
        round.granted(0, grant(1));
        assert_eq!(round.abandon(), [Step::Release(0)]);
        assert_eq!(round.granted(1, grant(1)), [Step::Release(1)]);
    }

    #[test]
    fn a_held_round_that_nobody_takes_is_released() {
        let mut round = Round::new(3, MAX_LEASE);
        for member in 0..2 {
            round.granted(member, grant(1));
            round.marker(member, votes(0));
        }
        assert_eq!(held_token(&round), Some(token(1)));
        assert_eq!(round.abandon(), [Step::Release(0), Step::Release(1)]);
        assert_eq!(round.granted(2, grant(1)), [Step::Release(2)]);
    }

    #[test]
    fn a_member_whose_answer_was_lost_is_released_only_if_the_round_fails() {
        let mut round = Round::new(3, MAX_LEASE);
        let lost = Error::new(ErrorKind::OutcomeUnknown, "no answer");
        assert_eq!(round.failed(0, lost.clone()), []);
        round.granted(1, grant(1));
        round.granted(2, grant(1));
        round.marker(1, votes(0));
        round.marker(2, votes(0));
        assert!(held_token(&round).is_some());

        let mut round = Round::new(3, MAX_LEASE);
        round.failed(0, lost.clone());
        assert_eq!(round.failed(1, away()), [Step::ReleaseLate(0)]);
        assert_eq!(round.failed(2, lost), [Step::ReleaseLate(2)]);
    }

    #[test]
    fn a_member_that_is_late_is_given_up() {
        let mut round = Round::new(3, MAX_LEASE);
        round.granted(0, grant(1));
        round.marker(0, votes(0));
        round.busy(1, None);
        let steps = round.give_up_late();
        assert!(steps.contains(&Step::Release(0)) && steps.contains(&Step::ReleaseLate(2)));
        assert!(matches!(
            round.outcome(),
            Some(Outcome::Busy { split: true, .. })
        ));
        assert_eq!(round.granted(2, grant(1)), [Step::Release(2)]);
    }

    #[test]
    fn a_slow_member_is_counted_after_all_if_another_one_fails() {
        let mut round = Round::new(5, MAX_LEASE);
        // The third member has granted, and its marker is late.
        for member in 0..3 {
            round.granted(member, grant(1));
        }
        round.marker(0, votes(0));
        round.marker(1, votes(0));
        round.granted(3, grant(5));
        assert_eq!(round.marker(3, votes(0)), []);
        let raises = round.pass_by_slow();
        assert_eq!(raises, [Step::Raise(0, token(5)), Step::Raise(1, token(5))]);
        assert_eq!(round.raised(1, Err(away())), []);
        assert_eq!(round.failed(4, away()), []);
        assert!(round.outcome().is_none(), "the third member may still vote");
        assert_eq!(round.marker(2, votes(0)), [Step::Raise(2, token(5))]);
        round.raised(0, Ok(token(5)));
        round.raised(2, Ok(token(5)));
        assert_eq!(held_token(&round), Some(token(5)));
    }

    #[test]
    fn one_busy_member_beside_a_dead_one_does_not_say_that_the_lock_is_held() {
        let mut round = Round::new(3, MAX_LEASE);
        round.failed(0, away());
        assert_eq!(round.busy(1, None), []);
        assert!(round.outcome().is_none(), "the third member may be free");
        assert_eq!(round.granted(2, grant(1)), [Step::Release(2)]);
        assert!(matches!(
            round.outcome(),
            Some(Outcome::Busy { split: true, .. })
        ));
    }

    #[test]
    fn a_majority_with_one_holder_is_no_split() {
        let holder = |token| {
            let mut holder = HolderInfo::new("other");
            holder.token = Some(token);
            Some(holder)
        };
        for (second, is_split) in [(7, false), (8, true)] {
            let mut round = Round::new(3, MAX_LEASE);
            round.granted(0, grant(9));
            round.busy(1, holder(token(7)));
            assert_eq!(round.busy(2, holder(token(second))), [Step::Release(0)]);
            match round.outcome() {
                Some(Outcome::Busy { split, .. }) => assert_eq!(*split, is_split),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn one_fast_clock_does_not_raise_the_others() {
        // The tokens of the first member are an hour ahead.
        let hour = 3600;
        let mut round = Round::new(3, MAX_LEASE);
        round.granted(0, grant(hour * 1_000_000));
        assert_eq!(round.granted(1, grant(1)), []);
        assert_eq!(round.granted(2, grant(2)), []);
        round.marker(0, votes(hour));
        assert_eq!(round.marker(1, votes(0)), []);
        assert_eq!(round.marker(2, votes(0)), [Step::Raise(1, token(2))]);
        round.raised(1, Ok(token(2)));
        assert_eq!(held_token(&round), Some(token(2)));
    }

    #[test]
    fn two_clocks_that_differ_do_not_say_which_is_wrong() {
        let mut round = Round::new(3, MAX_LEASE);
        round.granted(0, grant(3600 * 1_000_000));
        round.granted(1, grant(1));
        round.marker(0, votes(3600));
        assert_eq!(round.marker(1, votes(0)), []);
        let steps = round.failed(2, away());
        assert_eq!(steps, [Step::Release(0), Step::Release(1)]);
        match round.outcome() {
            Some(Outcome::ClocksApart { behind, ahead, by }) => {
                assert_eq!((*behind, *ahead, *by), (1, 0, Duration::from_secs(3600)));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_wrong_clock_and_a_busy_member_are_no_failure() {
        let mut round = Round::new(3, MAX_LEASE);
        round.granted(0, grant(3600 * 1_000_000));
        round.granted(1, grant(1));
        // The last holder is still being released at this member.
        round.busy(2, None);
        round.marker(0, votes(3600));
        assert_eq!(
            round.marker(1, votes(0)),
            [Step::Release(0), Step::Release(1)]
        );
        assert!(matches!(
            round.outcome(),
            Some(Outcome::Busy { split: true, .. })
        ));
    }

    #[test]
    fn a_member_that_loses_the_lock_before_its_raise_is_replaced() {
        let mut round = Round::new(3, MAX_LEASE);
        round.granted(0, grant(1));
        assert_eq!(round.granted(1, grant(4)), [Step::Raise(0, token(4))]);
        round.marker(0, votes(0));
        round.marker(1, votes(0));
        assert_eq!(round.raised(0, Err(away())), []);
        assert_eq!(round.granted(2, grant(7)), [Step::Raise(1, token(7))]);
        round.marker(2, votes(0));
        round.raised(1, Ok(token(7)));
        assert_eq!(held_token(&round), Some(token(7)));
    }

    #[test]
    fn the_lease_is_counted_from_the_first_request_and_ends_with_the_first_member() {
        let mut round = Round::new(3, MAX_LEASE);
        let at = |second: u64| Moment::from_boot(Duration::from_secs(second));
        let of = |from: u64, seconds: u64| Granted {
            token: token(1),
            from: at(from),
            valid_for: Duration::from_secs(seconds),
        };
        round.granted(0, of(100, 10));
        round.granted(1, of(101, 8));
        round.marker(0, votes(0));
        round.marker(1, votes(0));
        match round.outcome() {
            Some(Outcome::Held {
                from, valid_for, ..
            }) => {
                assert_eq!((*from, *valid_for), (at(100), Duration::from_secs(9)));
            }
            other => panic!("{other:?}"),
        }
    }
}
