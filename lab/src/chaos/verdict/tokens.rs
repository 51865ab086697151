//! Checks fencing tokens: each grant has a higher token than all earlier grants, and no writer has
//! a token between those of a writer and of the reader that it became.
//!
//! The times between losses of the store's data.
//!
//! A failover loses what the new primary had not received, and what the old primary acknowledged or
//! answered until its clients had left it. So an operation at that time proves nothing, and the
//! operations before it and after it are compared apart.

use std::collections::BTreeMap;

use super::{
    excuses::Excuses,
    judge::{Promise, Violation},
};
use crate::chaos::history::{Event, Excuse, HistoryEntry, HoldMode, HoldNumber, Micros, NO_TOKEN};

/// A grant to a process.
struct TokenGrant<'a> {
    worker: u32,
    token: u64,
    asked: Micros,
    at: Micros,
    resumed: bool,
    name: &'a str,
}

/// Finds tokens that did not rise although the order of the two grants is certain: the newer lock
/// was requested after the older request had been answered. No fault excuses such a token.
pub(super) fn check(history: &[HistoryEntry]) -> Vec<Violation> {
    let mut by_name: BTreeMap<&str, Vec<TokenGrant<'_>>> = BTreeMap::new();
    for HistoryEntry { worker, event } in history {
        if let Event::Granted {
            name,
            token,
            asked,
            at,
            resumed,
            ..
        } = event
            // A control has no tokens.
            && *token != NO_TOKEN
        {
            by_name.entry(name).or_default().push(TokenGrant {
                worker: *worker,
                token: *token,
                asked: *asked,
                at: *at,
                resumed: resumed.is_some(),
                name,
            });
        }
    }
    let mut found = Vec::new();
    for grants in by_name.values() {
        let mut answered: Vec<&TokenGrant<'_>> = grants.iter().collect();
        answered.sort_by_key(|it| it.at);
        let mut asked = answered.clone();
        asked.sort_by_key(|it| it.asked);
        let mut answered = answered.into_iter().peekable();
        let mut highest: Option<&TokenGrant<'_>> = None;
        for newer in asked {
            while let Some(older) = answered.next_if(|it| it.at < newer.asked) {
                if highest.is_none_or(|it| it.token < older.token) {
                    highest = Some(older);
                }
            }
            let Some(older) = highest else { continue };
            // A resumed ticket keeps its token.
            let goes_on = newer.resumed && newer.token == older.token;
            if newer.token <= older.token && !goes_on {
                found.push(Violation {
                    promise: Promise::TokensRise,
                    at: newer.at,
                    detail: format!(
                        "{:?}: process {} with token {} came after process {} with token {}",
                        newer.name, newer.worker, newer.token, older.worker, older.token
                    ),
                    excused_by: None,
                });
            }
        }
    }
    found
}

/// Finds writers whose tokens show that they held a lock while another writer became a reader. The
/// tokens of a shared lock form one rising sequence, so they show it also after the lock changed
/// hands between two observations.
pub(super) fn interrupted_downgrades(
    history: &[HistoryEntry],
    excuses: &Excuses<'_>,
) -> Vec<Violation> {
    let mut grants: BTreeMap<(u32, HoldNumber), TokenGrant<'_>> = BTreeMap::new();
    let mut writers: BTreeMap<&str, Vec<(u64, u32)>> = BTreeMap::new();
    let mut downgrades = Vec::new();
    for HistoryEntry { worker, event } in history {
        match event {
            Event::Granted {
                hold,
                name,
                token,
                asked,
                at,
                mode,
                ..
            } => {
                let grant = TokenGrant {
                    worker: *worker,
                    token: *token,
                    asked: *asked,
                    at: *at,
                    resumed: false,
                    name,
                };
                grants.insert((*worker, *hold), grant);
                if *mode == HoldMode::Writes {
                    writers.entry(name).or_default().push((*token, *worker));
                }
            }
            Event::Downgraded { from, to } => downgrades.push(((*worker, *from), (*worker, *to))),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for (from, to) in downgrades {
        let (Some(writer), Some(reader)) = (grants.get(&from), grants.get(&to)) else {
            continue;
        };
        let between = writer.token + 1..reader.token;
        let mut others = writers.get(writer.name).into_iter().flatten();
        if let Some((token, other)) = others.find(|(token, _)| between.contains(token)) {
            found.push(Violation {
                promise: Promise::NoWriterBetween,
                at: reader.at,
                detail: format!(
                    "{:?}: process {other} wrote with token {token} while the writer of process \
                     {} with token {} became a reader with token {}",
                    writer.name, writer.worker, writer.token, reader.token
                ),
                excused_by: excuses.of_lost_lock(writer.asked, reader.at),
            });
        }
    }
    found
}

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
