//! Gives a reason for each missing figure.

use distlock_report::compare::{Figure, Measure};

use super::stores::StoreUnderTest;

/// The key of a store, an experiment, and the reason why the store has no figure there.
pub(super) type Missing = (String, String, String);

/// Adds the reason wherever a store has no figure and another store has one: the store stopped
/// answering, or it failed in that experiment.
pub(super) fn fill_gaps(
    figures: &mut Vec<Figure>,
    stores: &[StoreUnderTest],
    failures: &[Missing],
) {
    let mut wanted: Vec<(String, Measure, usize)> = Vec::new();
    for figure in figures.iter() {
        match wanted.iter_mut().find(|(experiment, measure, _)| {
            *experiment == figure.experiment && *measure == figure.measure
        }) {
            Some((.., most)) => *most = (*most).max(figure.rounds.len()),
            None => wanted.push((
                figure.experiment.clone(),
                figure.measure,
                figure.rounds.len(),
            )),
        }
    }
    for candidate in stores {
        for (experiment, measure, most) in &wanted {
            let failed = failures
                .iter()
                .find(|(store, failed, _)| store == candidate.key() && failed == experiment)
                .map(|(.., why)| why);
            let Some(why) = failed.or(candidate.facts.stopped.as_ref()) else {
                continue;
            };
            let own = figures.iter_mut().find(|it| {
                it.store == candidate.key()
                    && it.experiment == *experiment
                    && it.measure == *measure
            });
            match own {
                Some(figure) if figure.rounds.len() < *most => {
                    figure.missing.get_or_insert_with(|| why.clone());
                }
                Some(_) => {}
                None => figures.push(Figure {
                    store: candidate.key().to_owned(),
                    experiment: experiment.clone(),
                    measure: *measure,
                    rounds: Vec::new(),
                    missing: Some(why.clone()),
                }),
            }
        }
    }
}
