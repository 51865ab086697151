//! Measures the CPU time that other processes use while a round runs.
//!
//! The time of this process and of all processes that it started, the servers among them, is
//! subtracted from the busy time of the machine. A process that has ended is counted by its parent,
//! which has waited for it. A server that was given with `--backend` and runs on this machine
//! counts as another process: this run cannot tell it from the rest.

use std::{collections::BTreeMap, fs};

use distlock_report::compare::RoundLoad;
use serde::{Deserialize, Serialize};

/// Processor time between two readings, in ticks of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CpuTicks {
    /// Ticks of all processors, idle ones included.
    all: u64,
    /// Ticks that other programs used, or other virtual machines on the same host.
    others: u64,
}

/// The counters of the kernel at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    all: u64,
    spent: u64,
    ours: u64,
}

impl Reading {
    /// Reads the counters now; `None` where the system does not have them.
    pub(super) fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let (all, spent) = parse_machine_ticks(&stat)?;
        let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| {
            let entry = entry.ok()?;
            let id = entry.file_name().to_str()?.parse().ok()?;
            // A process that has just ended is counted by its parent.
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            parse_process(id, &stat)
        });
        let ours = ticks_of_family(std::process::id(), &processes.collect::<Vec<_>>());
        Some(Self { all, spent, ours })
    }

    /// The ticks between this reading and a later one.
    pub(super) fn ticks_until(self, later: Self) -> CpuTicks {
        let all = later.all.saturating_sub(self.all);
        let spent = later.spent.saturating_sub(self.spent);
        let ours = later.ours.saturating_sub(self.ours);
        CpuTicks {
            all,
            others: spent.saturating_sub(ours).min(all),
        }
    }
}

/// Parses the ticks of all processors, and those of them that were not idle. The ticks of guests
/// are left out, because they are part of `user` already.
fn parse_machine_ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .filter_map(|it| it.parse().ok())
        .collect();
    let [user, nice, system, idle, waiting, hard, soft, stolen] = ticks.try_into().ok()?;
    let spent = user + nice + system + hard + soft + stolen;
    Some((spent + idle + waiting, spent))
}

#[derive(Clone, Copy, Debug)]
struct Process {
    id: u32,
    parent: u32,
    /// Ticks of the process and of its ended children.
    spent: u64,
}

/// Parses the `stat` line of a process. The name in brackets may contain any text.
fn parse_process(id: u32, stat: &str) -> Option<Process> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Process {
        id,
        parent: fields.get(1)?.parse().ok()?,
        spent: number(11)? + number(12)? + number(13)? + number(14)?,
    })
}

/// The ticks of a process and of all its descendants.
fn ticks_of_family(root: u32, all: &[Process]) -> u64 {
    let mut members = vec![root];
    let mut spent = 0;
    while let Some(member) = members.pop() {
        for process in all {
            if process.id == member {
                spent += process.spent;
            } else if process.parent == member {
                members.push(process.id);
            }
        }
    }
    spent
}

/// The processor time of each round, summed over all stores.
#[derive(Debug, Default)]
pub(super) struct Loads(BTreeMap<(String, u32), CpuTicks>);

impl Loads {
    /// Adds the time of one store in one round.
    pub(super) fn add(&mut self, experiment: &str, round: u32, cpu: CpuTicks) {
        let sum = self.0.entry((experiment.to_owned(), round)).or_default();
        sum.all += cpu.all;
        sum.others += cpu.others;
    }

    /// The share of other processes in each round. A round that is too short for the ticks of the
    /// kernel is left out.
    pub(super) fn into_rounds(self) -> Vec<RoundLoad> {
        self.0
            .into_iter()
            .filter(|(_, cpu)| cpu.all >= MIN_TICKS)
            .map(|((experiment, round), cpu)| RoundLoad {
                experiment,
                round,
                // Rounded to a tenth of a per cent.
                others_percent: (crate::counts::as_f64(cpu.others)
                    / crate::counts::as_f64(cpu.all)
                    * 1000.0)
                    .round()
                    / 10.0,
            })
            .collect()
    }
}

/// A round needs at least so many ticks: one tick is then 5 % of it at most.
const MIN_TICKS: u64 = 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_harness::eventually;

    use super::*;

    #[test]
    fn the_ticks_of_the_machine_are_parsed() {
        let stat = "cpu  100 5 50 1000 20 3 2 40 70 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(parse_machine_ticks(stat), Some((1220, 200)));
        assert_eq!(parse_machine_ticks("cpu  100 5\n"), None);
    }

    #[test]
    fn the_ticks_of_a_process_include_its_descendants_only() {
        let stat = |id: u32, parent: u32, spent: u64| {
            let line = format!("{id} (a) b ) S {parent} 1 1 0 -1 0 1 2 3 4 {spent} 1 1 1 20 0 1");
            parse_process(id, &line).unwrap()
        };
        let all = [
            stat(1, 0, 500),
            stat(7, 1, 10),
            stat(8, 7, 20),
            stat(9, 8, 30),
            stat(10, 1, 900),
        ];
        assert_eq!(ticks_of_family(7, &all), 10 + 20 + 30 + 9);
    }

    #[test]
    fn the_share_of_other_processes_is_computed_per_round() {
        let at = |all, spent, ours| Reading { all, spent, ours };
        // Of 100 ticks 60 are not idle, and 35 of those are ours.
        let cpu = at(1000, 300, 200).ticks_until(at(1100, 360, 235));
        assert_eq!(
            cpu,
            CpuTicks {
                all: 100,
                others: 25
            }
        );
        let mut loads = Loads::default();
        loads.add("wakeup", 0, cpu);
        // Another store ran in the same round.
        loads.add(
            "wakeup",
            0,
            CpuTicks {
                all: 100,
                others: 0,
            },
        );
        loads.add("wakeup", 1, CpuTicks { all: 5, others: 5 });
        let rounds = loads.into_rounds();
        assert_eq!(rounds.len(), 1, "{rounds:?}");
        assert!((rounds[0].others_percent - 12.5).abs() < 1e-9, "{rounds:?}");
    }

    /// The kernel counts the time of the machine in ticks and the time of a process exactly, so the
    /// two rise at different moments.
    #[test]
    fn the_time_of_this_very_process_is_counted() {
        let before = Reading::now().unwrap();
        let busy = || {
            let now = Reading::now().unwrap();
            let ours = now.ours >= before.ours + 5;
            ours && now.spent > before.spent && before.ticks_until(now).all > 0
        };
        eventually("the counters rise", Duration::from_secs(30), busy).unwrap();
    }
}
