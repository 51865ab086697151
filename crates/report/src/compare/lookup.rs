//! Lookups in a comparison: one figure, its spread, the clear best, the ratio of two stores.
//!
//! Invariant: a difference is claimed only when the ranges of all rounds support it and the printed
//! figures differ.

use super::model::{Comparison, Figure, Measure, StoreFacts};
use crate::results::statistics::Spread;

impl Comparison {
    /// A store by its key.
    #[must_use]
    pub fn store(&self, key: &str) -> Option<&StoreFacts> {
        self.stores.iter().find(|store| store.key == key)
    }

    /// One figure.
    #[must_use]
    pub fn figure(&self, store: &str, experiment: &str, measure: Measure) -> Option<&Figure> {
        self.figures
            .iter()
            .find(|it| it.store == store && it.experiment == experiment && it.measure == measure)
    }

    /// A figure's median and range, where there is a number.
    #[must_use]
    pub fn spread(&self, store: &str, experiment: &str, measure: Measure) -> Option<Spread> {
        self.figure(store, experiment, measure)?.spread()
    }

    /// Failures in stores that did not die: the store's name, the experiment, and the reason.
    #[must_use]
    pub fn failures(&self) -> Vec<(&str, &str, &str)> {
        let mut all = Vec::new();
        for figure in &self.figures {
            let (Some(why), Some(store)) = (&figure.missing, self.store(&figure.store)) else {
                continue;
            };
            let failure = (
                store.name.as_str(),
                figure.experiment.as_str(),
                why.as_str(),
            );
            if store.stopped.is_none() && !all.contains(&failure) {
                all.push(failure);
            }
        }
        all
    }

    /// The sizes of all experiments of a family, rising: `independent` may give 1, 16, 64.
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

    /// The store whose figure is clearly the best: its whole range beats every other range, and a
    /// reader sees the difference. `None` when the ranges overlap, when `show` prints the same for
    /// another store, or when only one store has a number. A store of one process is left out,
    /// because it does not arbitrate between processes.
    #[must_use]
    pub fn clear_best(
        &self,
        experiment: &str,
        measure: Measure,
        show: fn(f64) -> String,
    ) -> Option<&str> {
        let mut all: Vec<(&str, Spread)> = self
            .stores
            .iter()
            .filter(|store| {
                let promises = store.promises.as_ref();
                promises.is_none_or(|it| it.reach != "process")
            })
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
        let printed = show(first.median);
        let clear = all[1..].iter().all(|(_, other)| {
            let apart = if more {
                first.low > other.high
            } else {
                first.high < other.low
            };
            apart && show(other.median) != printed
        });
        clear.then_some(best)
    }

    /// One store's figure over another's, round by round.
    #[must_use]
    pub fn ratio(
        &self,
        store: &str,
        over: &str,
        experiment: &str,
        measure: Measure,
    ) -> Option<Spread> {
        let above = self.figure(store, experiment, measure)?;
        let below = self.figure(over, experiment, measure)?;
        if above.missing.is_some() || below.missing.is_some() {
            return None;
        }
        Spread::of(above.rounds.iter().zip(&below.rounds).map(|(a, b)| a / b))
    }
}

impl Figure {
    /// Median and range; `None` when there is no number.
    #[must_use]
    pub fn spread(&self) -> Option<Spread> {
        match self.missing {
            Some(_) => None,
            None => Spread::of(self.rounds.iter().copied()),
        }
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
    use crate::{compare::fixtures::small, render::text::number};

    #[test]
    fn the_best_is_only_named_when_no_other_range_reaches_it() {
        let all = small();
        // 45 to 220 around 90 to 110.
        assert_eq!(all.clear_best("uncontended", Measure::P50, number), None);
        assert_eq!(
            all.clear_best("independent-64", Measure::Rate, number),
            Some("redis")
        );
    }

    #[test]
    fn of_figures_that_are_printed_alike_none_is_the_best() {
        let mut all = small();
        // Ranges that do not meet: 245.6 to 245.8, and 246.0 to 246.4.
        all.figures[0].rounds = vec![245.6, 245.7, 245.8];
        all.figures[1].rounds = vec![246.0, 246.2, 246.4];
        for (show, best) in [
            (number as fn(f64) -> String, None),
            (|value| format!("{value:.1}"), Some("redis")),
        ] {
            assert_eq!(all.clear_best("uncontended", Measure::P50, show), best);
        }
    }

    #[test]
    fn a_ratio_that_is_printed_as_one_is_no_difference() {
        let hardly = Spread {
            median: 1.01,
            low: 1.005,
            high: 1.02,
        };
        assert!(!is_difference(hardly, number));
        assert!(is_difference(hardly, |value| format!("{value:.3}")));
    }

    #[test]
    fn ratios_pair_rounds_by_hand() {
        let all = small();
        // 100/50, 110/220, 90/45.
        let mixed = all
            .ratio("redis", "sqlite", "uncontended", Measure::P50)
            .unwrap();
        assert_eq!((mixed.low, mixed.median, mixed.high), (0.5, 2.0, 2.0));
        assert!(!is_difference(mixed, number));
        let clear = all
            .ratio("redis", "sqlite", "independent-64", Measure::Rate)
            .unwrap();
        assert_eq!((clear.low, clear.high), (2.0, 2.0));
        assert!(is_difference(clear, number));
    }

    #[test]
    fn a_figure_that_says_why_it_is_missing_has_no_number() {
        let mut all = small();
        all.figures[2].missing = Some("the server died".into());
        assert_eq!(all.spread("redis", "independent-64", Measure::Rate), None);
        assert_eq!(
            all.ratio("redis", "sqlite", "independent-64", Measure::Rate),
            None
        );
        assert_eq!(
            all.clear_best("independent-64", Measure::Rate, number),
            None
        );
    }

    #[test]
    fn sizes_of_a_family() {
        assert_eq!(small().sizes("independent"), [64]);
        assert!(small().sizes("idle").is_empty());
    }
}
