//! Lookups in a comparison: a figure, its spread, the store that is clearly the best.
//!
//! Invariant: a store is called better only when the ranges of all rounds do not meet and the
//! printed figures differ.

use super::model::{Comparison, Measure, Missing, StoreFacts};
use crate::results::statistics::Spread;

impl Comparison {
    /// A store by its key.
    #[must_use]
    pub fn store(&self, key: &str) -> Option<&StoreFacts> {
        self.stores.iter().find(|store| store.key == key)
    }

    /// The median and the range of a figure; `None` when it has no number.
    #[must_use]
    pub fn spread(&self, store: &str, experiment: &str, measure: Measure) -> Option<Spread> {
        if self.missing(store, experiment).is_some() {
            return None;
        }
        let mut figures = self.figures.iter();
        let figure = figures
            .find(|it| it.store == store && it.experiment == experiment && it.measure == measure);
        Spread::from_values(figure?.rounds.iter().copied())
    }

    /// The reason why an experiment has no figure of a store, if there is one.
    pub(crate) fn missing(&self, store: &str, experiment: &str) -> Option<&Missing> {
        let mut all = self.missing.iter();
        all.find(|it| it.store == store && it.experiment == experiment)
    }

    /// Experiments that failed in stores that did not die.
    pub(crate) fn failures(&self) -> Vec<(&StoreFacts, &Missing)> {
        let all = self.missing.iter();
        all.filter_map(|it| Some((self.store(&it.store)?, it)))
            .filter(|(store, _)| store.stopped.is_none())
            .collect()
    }

    /// The sizes of all experiments of a family, in rising order: `independent-1`, `independent-16`
    /// and `independent-64` give 1, 16, 64.
    #[must_use]
    pub fn sizes(&self, family: &str) -> Vec<u32> {
        let mut sizes: Vec<u32> = self
            .figures
            .iter()
            .filter_map(|it| it.experiment.strip_prefix(family)?.strip_prefix('-'))
            .filter_map(|size| size.parse().ok())
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The store whose figure is clearly the best: its whole range is better than every other
    /// range, and its printed figure differs from all others. `None` when the ranges overlap, when
    /// another store has the same printed figure, or when only one store has a number. A store of
    /// one process is left out, because it does not arbitrate between processes.
    #[must_use]
    pub fn clear_best(&self, experiment: &str, measure: Measure) -> Option<&str> {
        let mut all: Vec<(&str, Spread)> = self
            .stores
            .iter()
            .filter(|store| !store.is_in_process())
            .filter_map(|store| {
                let spread = self.spread(&store.key, experiment, measure)?;
                Some((store.key.as_str(), spread))
            })
            .collect();
        let more = measure.more_is_better();
        all.sort_by(|(_, a), (_, b)| {
            let order = a.median.total_cmp(&b.median);
            if more { order.reverse() } else { order }
        });
        let [(best, first), _, ..] = all.as_slice() else {
            return None;
        };
        let printed = measure.show(first.median);
        let clear = all[1..].iter().all(|(_, other)| {
            let apart = if more {
                first.low > other.high
            } else {
                first.high < other.low
            };
            apart && measure.show(other.median) != printed
        });
        clear.then_some(best)
    }
}

/// Whether a ratio differs from 1 in every round, and `show` does not write it as 1: only then may
/// it be called a difference.
#[must_use]
pub fn is_difference(ratio: Spread, show: fn(f64) -> String) -> bool {
    (ratio.low > 1.0 || ratio.high < 1.0) && show(ratio.median) != show(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{compare::model::Figure, text::number};

    /// Two stores, three rounds.
    fn small() -> Comparison {
        let store = |key: &str| StoreFacts {
            key: key.into(),
            ..StoreFacts::default()
        };
        let figure = |store: &str, experiment: &str, measure, rounds: [f64; 3]| Figure {
            store: store.into(),
            experiment: experiment.into(),
            measure,
            rounds: rounds.into(),
        };
        Comparison {
            stores: vec![store("redis"), store("sqlite")],
            figures: vec![
                figure("redis", "uncontended", Measure::P50, [100.0, 110.0, 90.0]),
                figure("sqlite", "uncontended", Measure::P50, [50.0, 220.0, 45.0]),
                figure("redis", "independent-64", Measure::Rate, [40.0, 50.0, 60.0]),
                figure(
                    "sqlite",
                    "independent-64",
                    Measure::Rate,
                    [20.0, 25.0, 30.0],
                ),
            ],
            ..Comparison::default()
        }
    }

    #[test]
    fn a_store_is_the_best_only_when_no_other_range_meets_its_range() {
        let all = small();
        // The range of SQLite, 45 to 220, includes that of Redis, 90 to 110.
        assert_eq!(all.clear_best("uncontended", Measure::P50), None);
        assert_eq!(
            all.clear_best("independent-64", Measure::Rate),
            Some("redis")
        );
    }

    #[test]
    fn no_store_is_the_best_when_figures_are_printed_alike() {
        let mut all = small();
        // Ranges that do not meet: 245.6 to 245.8, and 246.0 to 246.4.
        all.figures[0].rounds = vec![245.6, 245.7, 245.8];
        all.figures[1].rounds = vec![246.0, 246.2, 246.4];
        assert_eq!(all.clear_best("uncontended", Measure::P50), None);
        all.figures[1].rounds = vec![247.0, 247.2, 247.4];
        assert_eq!(all.clear_best("uncontended", Measure::P50), Some("redis"));
    }

    #[test]
    fn a_ratio_printed_as_one_is_no_difference() {
        let ratio = |median, low, high| Spread { median, low, high };
        assert!(!is_difference(ratio(1.01, 1.005, 1.02), number));
        assert!(is_difference(ratio(1.01, 1.005, 1.02), |value| format!(
            "{value:.3}"
        )));
        assert!(
            !is_difference(ratio(2.0, 0.5, 2.0), number),
            "one round contradicts it"
        );
        assert!(is_difference(ratio(2.0, 2.0, 2.0), number));
    }

    #[test]
    fn a_missing_figure_has_no_spread_and_leaves_no_best() {
        let mut all = small();
        all.missing.push(Missing {
            store: "redis".into(),
            experiment: "independent-64".into(),
            why: "the server died".into(),
        });
        assert_eq!(all.spread("redis", "independent-64", Measure::Rate), None);
        assert_eq!(all.clear_best("independent-64", Measure::Rate), None);
    }

    #[test]
    fn sizes_are_read_from_the_names_of_experiments() {
        assert_eq!(small().sizes("independent"), [64]);
        assert!(small().sizes("idle").is_empty());
    }
}
