//! The properties that readers ask about, and the conformance cases that decide them.

use super::model::{Comparison, ScenarioKind, StoreFacts};

/// A property of locks, described for a reader who chooses a store.
#[derive(Clone, Copy, Debug)]
pub struct Property {
    /// The name in data.
    pub key: &'static str,
    /// The title that readers see.
    pub title: &'static str,
    /// The cases that decide whether a store has the property. A quick run runs only the first
    /// case.
    pub cases: &'static [&'static str],
}

/// All properties, in the order of the table.
pub const PROPERTIES: [Property; 13] = [
    Property {
        key: "exclusion",
        title: "exclusion",
        cases: &[
            "exclusion::processes_never_overlap",
            "exclusion::two_clients_never_overlap",
            "exclusion::race_has_one_winner",
            "exclusion::counter_under_the_lock_is_exact",
            "exclusion::five_processes_at_a_barrier",
        ],
    },
    Property {
        key: "crash_expiry",
        title: "a dead process frees its locks",
        cases: &["expiry::dead_process_frees_at_its_ttl"],
    },
    Property {
        key: "lock_expiry",
        title: "a lease ends, and not too early",
        cases: &[
            "expiry::dead_holder_frees_at_its_ttl",
            "expiry::no_grant_before_the_holders_deadline",
            "expiry::dead_holder_excludes_until_its_ttl",
            "expiry::expired_owner_cannot_renew",
            "expiry::late_release_harms_nobody",
        ],
    },
    Property {
        key: "try",
        title: "try without waiting",
        cases: &[
            "waiting::try_acquire_never_waits",
            "waiting::zero_wait_tries_once",
        ],
    },
    Property {
        key: "blocking_wait",
        title: "waiting, woken by a release",
        cases: &[
            "waiting::release_serves_a_waiter_of_another_client",
            "waiting::wake_up_is_as_promised",
            "waiting::every_waiter_is_served",
        ],
    },
    Property {
        key: "timeout",
        title: "a wait that ends in time",
        cases: &[
            "waiting::gives_up_when_the_wait_is_over",
            "waiting::timeout_names_the_holder",
        ],
    },
    Property {
        key: "reentrancy",
        title: "re-entry, only when asked",
        cases: &[
            "reentrancy::last_release_frees",
            "reentrancy::plain_lock_is_not_reentrant",
            "reentrancy::scope_can_take_its_lock_again",
            "reentrancy::other_scopes_are_excluded",
        ],
    },
    Property {
        key: "fairness",
        title: "order among waiting clients",
        cases: &["waiting::order_between_clients_is_as_promised"],
    },
    Property {
        key: "local_fairness",
        title: "order inside a client, others let in",
        cases: &[
            "handover::first_come_first_served",
            "handover::busy_tasks_let_another_client_in",
        ],
    },
    Property {
        key: "fencing_release",
        title: "fencing across releases",
        cases: &[
            "fencing::token_rises_between_clients",
            "fencing::token_rises_across_release",
            "fencing::token_rises_under_load",
            "fencing::resource_refuses_the_former_holder",
        ],
    },
    Property {
        key: "fencing_expiry",
        title: "fencing across expiry",
        cases: &["fencing::token_rises_across_expiry"],
    },
    Property {
        key: "fencing_reopen",
        title: "fencing when all clients left",
        cases: &["fencing::token_rises_across_reopening"],
    },
    Property {
        key: "loss",
        title: "a lost lock is told",
        cases: &[
            "loss::expiry_is_reported_in_time",
            "loss::takeover_is_reported",
            "loss::forced_release_is_reported",
            "loss::no_loss_without_cause",
        ],
    },
];

/// Properties that no case of the suite can show, because they need a fault of the server: the
/// title, and a mark for each store. Without scenarios there are none.
#[must_use]
pub fn shown_by_faults(comparison: &Comparison) -> Vec<(&'static str, Vec<&'static str>)> {
    if comparison.scenarios.is_empty() {
        return Vec::new();
    }
    let mark = |kinds: &[ScenarioKind], store: &StoreFacts| {
        let mut played = comparison
            .scenarios
            .iter()
            .filter(|it| it.store == store.key && kinds.contains(&it.kind))
            .peekable();
        if played.peek().is_none() {
            return "–";
        }
        // A store that did not recover after the fault has failed.
        if played.all(|it| it.broken.is_none() && it.failed.is_none() && it.usable_ms.is_some()) {
            "✓"
        } else {
            "✗"
        }
    };
    [
        (
            "one holder, rising tokens across a restart",
            &[ScenarioKind::ServerKilled][..],
        ),
        (
            "the same across a server that stood still",
            &[ScenarioKind::ServerPaused],
        ),
        ("goes on when a server is lost", &[ScenarioKind::LeaderLost]),
    ]
    .into_iter()
    .map(|(title, kinds)| {
        let marks = comparison.stores.iter().map(|store| mark(kinds, store));
        (title, marks.collect())
    })
    .collect()
}
