//! The kinds of use that the workers make of the store. Each kind has its own promises.

use clap::ValueEnum;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// One kind of use.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Locks, acquired, used and released in every way that the library offers
    Locks,
    /// Reads and conditional writes of records
    Records,
    /// Several tasks of one process that wait for one lock in the local queue
    #[value(name = "lines")]
    #[serde(rename = "lines")]
    LocalQueues,
    /// Elections, periodic jobs, effects that happen once, counters and fences
    Recipes,
}

impl Workload {
    /// Returns all kinds of use. A worker skips a use that its store does not support.
    pub(crate) fn all() -> Vec<Self> {
        Self::value_variants().to_vec()
    }

    /// Returns the weight of the kind in a random draw.
    const fn weight(self) -> u32 {
        match self {
            Self::Locks => 50,
            Self::Records => 20,
            Self::LocalQueues => 4,
            Self::Recipes => 16,
        }
    }

    /// Tells whether each use of this kind takes a moment only.
    pub(crate) const fn is_quick(self) -> bool {
        matches!(self, Self::Locks | Self::Records)
    }

    /// Draws one kind of use.
    pub(crate) fn draw(among: &[Self], rng: &mut Rng) -> Self {
        let all: u32 = among.iter().map(|it| it.weight()).sum();
        let mut left = rng.u32(..all.max(1));
        for it in among {
            if left < it.weight() {
                return *it;
            }
            left -= it.weight();
        }
        Self::Locks
    }

    /// Returns the name of the kind on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands and published reports contain this name.
    #[test]
    fn a_renamed_workload_keeps_its_name() {
        assert_eq!(Workload::LocalQueues.key(), "lines");
        assert_eq!(
            serde_json::to_value(Workload::LocalQueues).unwrap(),
            "lines"
        );
    }

    #[test]
    fn only_chosen_workloads_are_drawn() {
        let mut rng = Rng::with_seed(7);
        let chosen = [Workload::LocalQueues, Workload::Recipes];
        let mut seen = Vec::new();
        for _ in 0..200 {
            let drawn = Workload::draw(&chosen, &mut rng);
            if !seen.contains(&drawn) {
                seen.push(drawn);
            }
        }
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert!(chosen.iter().all(|it| seen.contains(it)), "{seen:?}");
    }
}
