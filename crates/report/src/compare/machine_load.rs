//! The load by other processes on the machine during a comparison.

use super::model::Comparison;
use crate::{render::text::number, results::statistics::Spread};

/// A round with this share or more counts as disturbed: a tenth is more than the spread of a quiet
/// machine.
pub const BUSY_PERCENT: f64 = 10.0;

/// A sentence that says that the machine was busy; `None` if it was not, or if nothing was
/// recorded.
#[must_use]
pub fn busy_warning(comparison: &Comparison) -> Option<String> {
    let shares: Vec<f64> = disturbed(comparison).collect();
    let median = Spread::of(shares.iter().copied())?.median;
    Some(format!(
        "The machine was busy: {} % of CPU went to others in {} of {} rounds. The figures are \
         indicative only.",
        number(median),
        shares.len(),
        comparison.loads.len(),
    ))
}

/// The same for the section on the method, which also mentions a quiet machine and a missing
/// record.
#[must_use]
pub fn load_sentence(comparison: &Comparison) -> String {
    let rounds = comparison.loads.len();
    let limit = number(BUSY_PERCENT);
    match disturbed(comparison).count() {
        _ if rounds == 0 => "CPU of others during the rounds: not measured.".to_owned(),
        0 => format!("CPU of others: less than {limit} % in each of {rounds} rounds."),
        many => format!(
            "CPU of others: {limit} % or more in {many} of {rounds} rounds, where the median is \
             printed above."
        ),
    }
}

fn disturbed(comparison: &Comparison) -> impl Iterator<Item = f64> {
    comparison
        .loads
        .iter()
        .map(|it| it.others_percent)
        .filter(|share| *share >= BUSY_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{fixtures::small, model::RoundLoad};

    fn with(shares: &[f64]) -> Comparison {
        let mut all = small();
        all.loads = shares
            .iter()
            .zip(0..)
            .map(|(share, round)| RoundLoad {
                experiment: "uncontended".into(),
                round,
                others_percent: *share,
            })
            .collect();
        all
    }

    #[test]
    fn a_busy_machine_is_named_with_its_share_and_its_rounds() {
        for (shares, named, method) in [
            (&[][..], None, "not measured"),
            (&[0.0, 9.9, 3.0], None, "less than 10 % in each of 3 rounds"),
            (
                &[2.0, 40.0, 60.0],
                Some("The machine was busy: 50 % of CPU went to others in 2 of 3 rounds."),
                "10 % or more in 2 of 3 rounds",
            ),
            (
                &[10.0],
                Some("The machine was busy: 10 % of CPU went to others in 1 of 1 rounds."),
                "10 % or more in 1 of 1 rounds",
            ),
        ] {
            let all = with(shares);
            let said = busy_warning(&all);
            match named {
                Some(named) => assert!(
                    said.as_ref().is_some_and(|it| it.starts_with(named)),
                    "{said:?}"
                ),
                None => assert_eq!(said, None),
            }
            assert!(
                load_sentence(&all).contains(method),
                "{}",
                load_sentence(&all)
            );
        }
    }
}
