//! The load that other processes put on the machine during a comparison.

use super::model::Comparison;
use crate::{render::text::number, results::statistics::Spread};

/// A round counts as disturbed if other processes used at least this share of the processors. A
/// tenth is more than the spread between rounds of a quiet machine.
pub const BUSY_PERCENT: f64 = 10.0;

/// A sentence that warns of a busy machine; `None` if no round was disturbed, or if nothing was
/// recorded.
#[must_use]
pub fn busy_warning(comparison: &Comparison) -> Option<String> {
    let shares: Vec<f64> = disturbed_rounds(comparison).collect();
    let median = Spread::from_values(shares.iter().copied())?.median;
    Some(format!(
        "The machine was busy: {} % of CPU went to others in {} of {} rounds. The figures are \
         indicative only.",
        number(median),
        shares.len(),
        comparison.loads.len(),
    ))
}

/// A sentence on the load for the section on the method. It also covers a quiet machine and a
/// missing record.
#[must_use]
pub fn load_sentence(comparison: &Comparison) -> String {
    let rounds = comparison.loads.len();
    let limit = number(BUSY_PERCENT);
    match disturbed_rounds(comparison).count() {
        _ if rounds == 0 => "CPU of others during the rounds: not measured.".to_owned(),
        0 => format!("CPU of others: less than {limit} % in each of {rounds} rounds."),
        many => format!(
            "CPU of others: {limit} % or more in {many} of {rounds} rounds, where the median is \
             printed above."
        ),
    }
}

/// The shares of other processes in all disturbed rounds.
fn disturbed_rounds(comparison: &Comparison) -> impl Iterator<Item = f64> {
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

    fn comparison_with_loads(shares: &[f64]) -> Comparison {
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
    fn a_busy_machine_is_reported_with_its_median_load_and_its_disturbed_rounds() {
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
            let all = comparison_with_loads(shares);
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
