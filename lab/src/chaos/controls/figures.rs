//! Counts the results of a control and of its twin from their verdicts.

use crate::{
    chaos::verdict::{Promise, Verdict},
    report::ControlFigures,
};

/// Promises that no control makes, because it has no tokens, notices, tickets or records.
pub(super) const NOT_APPLICABLE: [Promise; 5] = [
    Promise::TokensRise,
    Promise::FencedUpdates,
    Promise::LossIsTold,
    Promise::TicketsOnce,
    Promise::Linearizable,
];

/// Returns the results of a control. All its violations count, because an excuse holds for distlock
/// only.
pub(super) fn control_figures(verdict: &Verdict) -> ControlFigures {
    let all = &verdict.violations;
    let excusable = all.iter().filter(|it| it.excused_by.is_some());
    ControlFigures {
        violations: all.len(),
        after_documented: excusable.count(),
        fenced_lost: None,
        example: all.first().map(|it| it.detail.clone()),
        ..shared_figures(verdict)
    }
}

/// Returns the results of a twin. Its excused violations are counted apart.
pub(super) fn twin_figures(verdict: &Verdict) -> ControlFigures {
    let broken = verdict.broken().count();
    let fenced = verdict
        .violations
        .iter()
        .filter(|it| it.promise == Promise::FencedUpdates);
    ControlFigures {
        violations: broken,
        after_documented: verdict.violations.len() - broken,
        fenced_lost: Some(fenced.count()),
        example: verdict.broken().next().map(|it| it.detail.clone()),
        ..shared_figures(verdict)
    }
}

/// Returns the results that a control and its twin count in the same way.
fn shared_figures(verdict: &Verdict) -> ControlFigures {
    ControlFigures {
        operations: verdict.operations,
        grants: verdict.grants,
        faults: verdict.faults.values().sum(),
        violations: 0,
        after_documented: 0,
        longest_overlap_us: verdict.longest_overlap_us,
        unfenced_lost: verdict.unfenced_lost,
        fenced_lost: None,
        example: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::verdict::Violation;

    fn verdict(promise: Promise, excused_by: Option<&str>) -> Verdict {
        Verdict {
            violations: vec![Violation {
                promise,
                at: 1,
                detail: "two at once".into(),
                excused_by: excused_by.map(Into::into),
            }],
            ..Verdict::default()
        }
    }

    #[test]
    fn an_excused_violation_counts_for_a_control_and_separately_for_a_twin() {
        let wiped = verdict(Promise::Exclusion, Some("wipe-server of redis"));
        let (control, twin) = (control_figures(&wiped), twin_figures(&wiped));
        assert_eq!((control.violations, control.after_documented), (1, 1));
        assert_eq!((twin.violations, twin.after_documented), (0, 1));
        assert_eq!((control.fenced_lost, twin.fenced_lost), (None, Some(0)));
        let broken = twin_figures(&verdict(Promise::FencedUpdates, None));
        assert_eq!((broken.violations, broken.fenced_lost), (1, Some(1)));
    }
}
