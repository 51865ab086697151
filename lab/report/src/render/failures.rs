//! The section on behaviour under failure.

use super::text::millis;
use crate::compare::{Comparison, Scenario, ScenarioKind};

/// Describes a kind of fault in sentences.
pub(crate) fn describe_fault(kind: ScenarioKind) -> &'static str {
    match kind {
        ScenarioKind::HolderKilled => {
            "A process holds the lock and is killed with SIGKILL; a client in another process \
             waits. Its lease must run out before anybody else may have it."
        }
        ScenarioKind::ServerKilled => {
            "The server is killed with SIGKILL while a client holds the lock and another waits, \
             and is started again on the same data a second later. The holder releases after a \
             while."
        }
        ScenarioKind::ServerPaused => {
            "The server is stopped with SIGSTOP for longer than the lease, then goes on. The \
             holder cannot renew, so it must stop believing before anybody else is granted the \
             lock."
        }
        ScenarioKind::LeaderLost => {
            "Of several servers that stand in for each other, the one that decides is killed \
             while a client holds the lock and another waits: the leader of ZooKeeper's three, \
             the primary that Redis' sentinels name, the primary of the lock's slot in Redis \
             Cluster."
        }
    }
}

/// Describes the outcome of one scenario in a sentence.
pub(crate) fn describe_outcome(scenario: &Scenario) -> String {
    if let Some(why) = &scenario.failed {
        return format!("could not be played: {why}");
    }
    let mut parts = Vec::new();
    match scenario.holder_kept {
        Some(true) => parts.push("the holder kept its lock".to_owned()),
        Some(false) if scenario.kind != ScenarioKind::HolderKilled => {
            parts.push("the holder was told that its lock is lost".to_owned());
        }
        _ => {}
    }
    if let Some(ms) = scenario.next_holder_ms {
        parts.push(format!("next holder {} after the fault", millis(ms)));
    }
    if let Some(ms) = scenario.usable_ms {
        parts.push(format!("locks again after {}", millis(ms)));
    }
    parts.push(match &scenario.broken {
        None => "never two at once, tokens rose".to_owned(),
        Some(how) => format!("BROKEN: {how}"),
    });
    parts.join("; ")
}

/// The scenarios of each kind of fault, in the order of the page.
pub(crate) fn scenarios_by_kind(comparison: &Comparison) -> Vec<(ScenarioKind, Vec<&Scenario>)> {
    let of_kind = |kind| {
        let scenarios = comparison.scenarios.iter();
        let scenarios: Vec<_> = scenarios.filter(|it| it.kind == kind).collect();
        (!scenarios.is_empty()).then_some((kind, scenarios))
    };
    ScenarioKind::ALL.into_iter().filter_map(of_kind).collect()
}
