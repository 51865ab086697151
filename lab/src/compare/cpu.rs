//! Measures the CPU time that other processes use while a round runs.
//!
//! The time of this process and of all processes that it started, the servers among them, is
//! subtracted from the busy time of the machine. A process that has ended is counted by its parent,
//! which has waited for it. A server that was given with `--backend` and runs on this machine
//! counts as another process: this run cannot tell it from the rest.

use std::collections::BTreeMap;

use distlock_report::compare::RoundLoad;
use procfs::{
    CurrentSI as _,
    process::{Stat, all_processes},
};
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
        // The ticks of guests are left out, because they are part of `user` already.
        let cpu = procfs::KernelStats::current().ok()?.total;
        let waiting = cpu.iowait.unwrap_or(0);
        let more = [cpu.irq, cpu.softirq, cpu.steal].into_iter().flatten();
        let spent = cpu.user + cpu.nice + cpu.system + more.sum::<u64>();
        // A process that has just ended is counted by its parent.
        let stats = all_processes().ok()?.flatten().flat_map(|it| it.stat());
        Some(Self {
            all: spent + cpu.idle + waiting,
            spent,
            ours: ticks_of_family(std::process::id(), &stats.collect::<Vec<_>>()),
        })
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

/// The ticks of a process and of all its descendants, and of their ended children.
fn ticks_of_family(root: u32, all: &[Stat]) -> u64 {
    let mut members = vec![i32::try_from(root).unwrap_or(0)];
    let mut spent = 0;
    while let Some(member) = members.pop() {
        for it in all {
            if it.pid == member {
                let ended = (it.cutime + it.cstime).unsigned_abs();
                spent += it.utime + it.stime + ended;
            } else if it.ppid == member {
                members.push(it.pid);
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
    use procfs::FromRead as _;

    use super::*;

    #[test]
    fn the_ticks_of_a_process_include_its_descendants_only() {
        let stat = |id: u32, parent: u32, spent: u64| {
            let zeros = ["0"; 30].join(" ");
            let line = format!("{id} (a) b ) S {parent} 1 1 0 -1 0 1 2 3 4 {spent} 1 1 1 {zeros}");
            Stat::from_read(line.as_bytes()).unwrap()
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
