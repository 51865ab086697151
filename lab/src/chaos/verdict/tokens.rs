//! Checks fencing tokens: each grant has a higher token than all earlier grants.

use std::collections::BTreeMap;

use crate::chaos::history::{Event, HistoryEntry, Micros, NO_TOKEN};

use super::promise::{Promise, Violation};

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
