//! Checks the promises of each store with the conformance suite.

use std::sync::Arc;

use distlock_cli::program::Outcome;
use distlock_conformance::{Case, CaseResult, Status, cases};
use distlock_report::compare::{PROPERTIES, PropertyResult};
use tokio::{sync::Semaphore, task::JoinSet};

use super::plan::ComparisonRun;

/// The most cases of one store that run at the same time. They mostly wait.
const MAX_RUNNING: usize = 4;

impl ComparisonRun {
    /// Runs the cases that decide the properties, store by store.
    pub(super) async fn check_properties(&mut self) -> Outcome<()> {
        for at in 0..self.stores.len() {
            let name = format!("properties.{}.json", self.stores[at].key());
            if let Some(kept) = self.kept.load::<Vec<PropertyResult>>(&name) {
                self.stores[at].facts.properties = kept;
                self.progress.finish_step();
                continue;
            }
            if self.stores[at].is_alive() {
                self.progress
                    .begin_part(&format!("probing {}", self.stores[at].facts.name));
                let results = self.check_store(at).await?;
                self.kept.save(&name, &results)?;
                self.stores[at].facts.properties = results;
            }
            self.progress.finish_step();
        }
        Ok(())
    }

    /// Runs the cases on one store, and sorts the results by property.
    async fn check_store(&self, at: usize) -> Outcome<Vec<PropertyResult>> {
        let subject = self.stores[at].subject()?;
        let wanted = |name: &str| {
            PROPERTIES.iter().any(|property| {
                let most = self.plan.cases;
                property.cases.iter().take(most).any(|case| *case == name)
            })
        };
        let chosen: Vec<Case> = cases(&subject)
            .into_iter()
            .filter(|case| wanted(case.name))
            .collect();
        let results = run_cases(chosen).await;
        Ok(PROPERTIES
            .iter()
            .map(|property| {
                let mut found = PropertyResult {
                    property: property.key.to_owned(),
                    ..PropertyResult::default()
                };
                for result in results
                    .iter()
                    .filter(|result| property.cases.contains(&result.name))
                {
                    let detail = result.detail.as_deref().unwrap_or_default();
                    let said = format!("{}: {detail}", result.name);
                    match result.status {
                        Status::Passed => found.passed += 1,
                        Status::NotApplicable => found.not_applicable.push(said),
                        _ => found.failed.push(said),
                    }
                }
                found
            })
            .collect())
    }
}

/// Runs cases, some of them at the same time.
async fn run_cases(cases: Vec<Case>) -> Vec<CaseResult> {
    let places = Arc::new(Semaphore::new(MAX_RUNNING));
    let mut running = JoinSet::new();
    for case in cases {
        let places = Arc::clone(&places);
        running.spawn(async move {
            let _place = places.acquire_owned().await;
            case.run().await
        });
    }
    running.join_all().await
}
