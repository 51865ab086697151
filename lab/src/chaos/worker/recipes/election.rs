//! The recipe of elections: the work of one leader ends before the work of the next leader begins.

use anyhow::Result;
use distlock::{Clock as _, SystemClock};
use distlock_recipes::election::Election;

use crate::chaos::{
    history::{Event, Micros, RecipeStep, now},
    worker::{referee_client::HistoryWriter, task::WorkerTask},
};

/// Number of elections. With few elections, each election has several candidates at a time.
const ELECTIONS: u32 = 2;

impl WorkerTask {
    /// Takes part in an election for a while, and works as the leader.
    pub(super) async fn campaign(&mut self) -> Result<()> {
        let election = format!("chaos-{}", self.rng.u32(..ELECTIONS));
        let candidate = |worker: u32, task: u32| format!("{worker}-{task}");
        let me = candidate(self.settings.worker, self.number);
        let ttl = self.settings.longest_ttl();
        let candidacy = Election::new(&self.store, &election, &me)?.ttl(ttl);
        // Some terms last longer than a lease, so that the lease needs a renewal or the work stops.
        let time = match self.rng.u32(..4) {
            0 => ttl * 2,
            _ => ttl / 10,
        };
        let (history, mut stop) = (&*self.history, self.stop.clone());
        let asked = now();
        let works = async |term: u64| {
            let _term = LeaderWork::begin(history, &election, term, asked);
            SystemClock.sleep(time).await;
        };
        let patience = self.settings.longest_ttl() * 3;
        let nominee = candidate(self.rng.u32(1..=4), self.rng.u32(..self.settings.tasks));
        let nominates = self.rng.u32(..4) == 0;
        let leads = async {
            if !nominates {
                let led = candidacy
                    .run_while_leader(async |term| works(term.number.get()).await)
                    .await;
                drop(led);
                return;
            }
            let Ok(leadership) = candidacy.campaign().await else {
                return;
            };
            let term = leadership.term().number.get();
            // The work must end before the leader resigns, so dropping the work comes first.
            tokio::select! {
                biased;
                _ = leadership.must_stop() => {}
                () = async {
                    // The nominee may be no candidate; then the nomination fails.
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

/// The work of a leader. Dropping the value records the end of the work.
struct LeaderWork<'a> {
    history: &'a HistoryWriter,
    election: &'a str,
    term: u64,
}

impl<'a> LeaderWork<'a> {
    /// Records that the work of a leader begins.
    fn begin(history: &'a HistoryWriter, election: &'a str, term: u64, asked: Micros) -> Self {
        history.record(Event::Recipe(RecipeStep::Leads {
            election: election.to_owned(),
            term,
            asked,
            at: now(),
        }));
        Self {
            history,
            election,
            term,
        }
    }
}

impl Drop for LeaderWork<'_> {
    fn drop(&mut self) {
        self.history.record(Event::Recipe(RecipeStep::LedUntil {
            election: self.election.to_owned(),
            term: self.term,
            at: now(),
        }));
    }
}
