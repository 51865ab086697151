//! The verdict on the log of the candidates.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use anyhow::{Result, ensure};

/// The number of the server in the list of pauses, where candidates have their process id.
pub(crate) const SERVER: u32 = 0;

/// The start or the end of a pause of a process. A killed process has only a start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paused {
    process: u32,
    at_us: u64,
    goes_on: bool,
}

impl Paused {
    pub(crate) const fn from(process: u32, at_us: u64) -> Self {
        Self {
            process,
            at_us,
            goes_on: false,
        }
    }

    pub(crate) const fn goes_on(process: u32, at_us: u64) -> Self {
        Self {
            process,
            at_us,
            goes_on: true,
        }
    }
}

/// Whether the process of a term was paused at any time during the term. A pause may begin just
/// before the term, and the term may end just when the pause ends.
fn was_paused(paused: &[Paused], term: &Term, ends_us: u64) -> bool {
    let mut its = paused.iter().filter(|it| it.process == term.process);
    while let Some(from) = its.find(|it| !it.goes_on) {
        let goes_on = its.clone().find(|it| it.goes_on);
        let until_us = goes_on.map_or(u64::MAX, |it| it.at_us);
        if from.at_us <= ends_us && until_us >= term.begins_us {
            return true;
        }
    }
    false
}

/// One term of one leader.
#[derive(Clone, Copy, Debug)]
struct Term {
    process: u32,
    begins_us: u64,
    /// `None` for a leader that was killed.
    ends_us: Option<u64>,
}

/// A step that the resource accepted.
#[derive(Clone, Copy, Debug)]
struct Step {
    term: u64,
    since_us: u64,
    until_us: u64,
}

#[derive(Debug, Default)]
struct Election {
    terms: BTreeMap<u64, Term>,
    steps: Vec<Step>,
}

#[derive(Debug)]
pub(crate) struct Verdict {
    elections: usize,
    pub(crate) changes: usize,
    kills_and_stops: usize,
    steps: usize,
    refused: usize,
    /// Terms whose leader still led when the next term began, and whose process was not paused.
    overlaps: Vec<String>,
    /// Steps that the resource accepted after a step of a later term.
    stale: Vec<String>,
    /// Times from the end of a term to the start of the next term, in microseconds. Only terms
    /// without a pause of any process count.
    vacancies_us: Vec<u64>,
}

impl Verdict {
    pub(crate) fn of(log: &str, paused: &[Paused]) -> Result<Self> {
        let mut elections: HashMap<u32, Election> = HashMap::new();
        let (mut steps, mut refused) = (0, 0);
        // A process that was killed in the middle of a line left only a part of the line, so such a
        // line is skipped.
        for line in log.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let [what, election, term, process, since_us, until_us] = words[..] else {
                continue;
            };
            let election = elections.entry(election.parse()?).or_default();
            let (term, process) = (term.parse()?, process.parse()?);
            let (since_us, until_us) = (since_us.parse()?, until_us.parse()?);
            match what {
                "begins" => {
                    let before = election.terms.insert(
                        term,
                        Term {
                            process,
                            begins_us: since_us,
                            ends_us: None,
                        },
                    );
                    ensure!(before.is_none(), "term {term} has two leaders");
                }
                "ends" => {
                    if let Some(term) = election.terms.get_mut(&term) {
                        term.ends_us = Some(since_us);
                    }
                }
                "steps" => {
                    steps += 1;
                    election.steps.push(Step {
                        term,
                        since_us,
                        until_us,
                    });
                }
                _ => refused += 1,
            }
        }
        let mut verdict = Self {
            elections: elections.len(),
            changes: elections.values().map(|it| it.terms.len()).sum(),
            kills_and_stops: {
                let candidates = paused.iter().filter(|it| it.process != SERVER);
                candidates.filter(|it| !it.goes_on).count()
            },
            steps,
            refused,
            overlaps: Vec::new(),
            stale: Vec::new(),
            vacancies_us: Vec::new(),
        };
        for (number, election) in &mut elections {
            verdict.judge_election(*number, election, paused);
        }
        verdict.vacancies_us.sort_unstable();
        Ok(verdict)
    }

    fn judge_election(&mut self, number: u32, election: &mut Election, paused: &[Paused]) {
        let terms: Vec<_> = election.terms.iter().collect();
        for pair in terms.windows(2) {
            let [(term, one), (_, next)] = [pair[0], pair[1]];
            let ends_us = one.ends_us.unwrap_or(u64::MAX);
            let was_paused = was_paused(paused, one, ends_us);
            if !was_paused && next.begins_us < ends_us {
                self.overlaps
                    .push(format!("election {number}, term {term}: {one:?}, {next:?}"));
            }
            let is_calm = !paused
                .iter()
                .any(|it| it.at_us >= one.begins_us && it.at_us <= next.begins_us);
            if is_calm && let Some(vacant_us) = next.begins_us.checked_sub(ends_us) {
                self.vacancies_us.push(vacant_us);
            }
        }
        // Compares the steps by time: no step may begin after a step of a later term had ended.
        election.steps.sort_unstable_by_key(|step| step.until_us);
        let mut by_begin = election.steps.clone();
        by_begin.sort_unstable_by_key(|step| step.since_us);
        let (mut ended, mut highest) = (election.steps.iter().peekable(), 0);
        for step in by_begin {
            while let Some(before) = ended.next_if(|it| it.until_us < step.since_us) {
                highest = highest.max(before.term);
            }
            if step.term < highest {
                self.stale
                    .push(format!("election {number}: {step:?} after term {highest}"));
            }
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            self.stale.is_empty(),
            "stale steps were accepted: {:?}",
            self.stale
        );
        ensure!(self.overlaps.is_empty(), "two led: {:?}", self.overlaps);
        Ok(())
    }

    fn vacancy_ms(&self, share: f64) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a place in a list"
        )]
        let at = ((self.vacancies_us.len() as f64 * share) as usize)
            .min(self.vacancies_us.len().saturating_sub(1));
        let us = self.vacancies_us.get(at).copied().unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let ms = us as f64 / 1000.0;
        ms
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} changes in {} elections, {} kills and stops, {} steps, {} refused, {} stale, {} \
             overlaps; resign to next p50 {:.1} ms, p99 {:.1} ms",
            self.changes,
            self.elections,
            self.kills_and_stops,
            self.steps,
            self.refused,
            self.stale.len(),
            self.overlaps.len(),
            self.vacancy_ms(0.5),
            self.vacancy_ms(0.99),
        )
    }
}
