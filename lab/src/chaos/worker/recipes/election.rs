//! One leader of many candidates, whose work is over before the next one's begins.

use anyhow::Result;
use distlock::{Clock as _, SystemClock};
use distlock_recipes::election::Election;

use crate::chaos::{
    history::{Event, RecipeStep, now},
    worker::{notes::Notes, task::Task},
};

/// Candidates take turns, so there are few elections.
const ELECTIONS: u32 = 2;

impl Task {
    /// Stands in an election for a while, and works while it leads.
    pub(super) async fn stand_for_election(&mut self) -> Result<()> {
        let election = format!("chaos-{}", self.rng.u32(..ELECTIONS));
        let candidate = |worker: u32, task: u32| format!("{worker}-{task}");
        let me = candidate(self.settings.worker, self.number);
        let ttl = self.settings.longest_ttl();
        let stands = Election::new(&self.store, &election, &me)?.ttl(ttl);
        // Also longer than a lease, so that it has to be renewed, or the work stopped.
        let time = match self.rng.u32(..4) {
            0 => ttl * 2,
            _ => ttl / 10,
        };
        let (notes, mut stop) = (&*self.notes, self.stop.clone());
        let works = async |term: u64| {
            let _term = InOffice::begins(notes, &election, term);
            SystemClock.sleep(time).await;
        };
        let patience = self.settings.longest_ttl() * 3;
        let nominee = candidate(self.rng.u32(1..=4), self.rng.u32(..self.settings.tasks));
        let nominates = self.rng.u32(..4) == 0;
        let leads = async {
            if !nominates {
                let led = stands
                    .run_while_leader(async |term| works(term.number.get()).await)
                    .await;
                drop(led);
                return;
            }
            let Ok(leadership) = stands.campaign().await else {
                return;
            };
            let term = leadership.term().number.get();
            // It is dropped, and the work with it, before the leadership is given up.
            tokio::select! {
                biased;
                _ = leadership.must_stop() => {}
                () = async {
                    // Nobody need stand who is named here; then it is refused.
                    drop(leadership.nominate(&nominee).await);
                    works(term).await;
                } => {}
            }
            let _ = leadership.resign().await;
        };
        tokio::select! {
            () = leads => {}
            () = SystemClock.sleep(patience) => {}
            _ = stop.wait_for(|over| *over) => {}
        }
        Ok(())
    }
}

/// A leader's work. Dropping it says that it is over.
struct InOffice<'a> {
    notes: &'a Notes,
    election: &'a str,
    term: u64,
}

impl<'a> InOffice<'a> {
    fn begins(notes: &'a Notes, election: &'a str, term: u64) -> Self {
        notes.note(Event::Recipe(RecipeStep::Leads {
            election: election.to_owned(),
            term,
            at: now(),
        }));
        Self {
            notes,
            election,
            term,
        }
    }
}

impl Drop for InOffice<'_> {
    fn drop(&mut self) {
        self.notes.note(Event::Recipe(RecipeStep::LedUntil {
            election: self.election.to_owned(),
            term: self.term,
            at: now(),
        }));
    }
}
