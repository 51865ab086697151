//! Takes several independent servers away at once, each in a way of its own, and brings them back.

use std::time::Duration;

use anyhow::Result;
use distlock_harness::FaultProxy;
use tokio::task::block_in_place;

use super::{
    actions::{Injection, Remedy, as_micros},
    inject::Nemesis,
    kinds::FaultKind,
};
use crate::chaos::{
    history::InjectedFault,
    stores::{PausedServer, RunningStore},
    worker_group::WorkerGroup,
};

/// A way in which a server is away.
#[derive(Clone, Copy, Debug)]
pub(super) enum Away {
    Killed,
    Stopped,
    /// Nothing that the workers and the server send each other arrives.
    BlackHoled,
    /// Everything that the workers and the server send each other arrives late.
    Slow,
}

const WAYS: [Away; 4] = [Away::Killed, Away::Stopped, Away::BlackHoled, Away::Slow];

impl Nemesis {
    /// Takes a minority of the servers away or, for a short time, a majority.
    pub(super) fn lose_servers(
        &mut self,
        kind: FaultKind,
        mut fault: InjectedFault,
        worker_group: &WorkerGroup,
        running_store: &mut RunningStore,
    ) -> Result<Injection> {
        let servers = running_store.addresses().len();
        let minority = servers.saturating_sub(1) / 2;
        let lasts = fault.to - fault.from;
        let mut order: Vec<usize> = (0..servers).collect();
        self.rng.shuffle(&mut order);
        let lost = if kind == FaultKind::LoseMajority {
            // No lock is granted meanwhile, and a run needs grants.
            fault.to = fault.from + lasts.min(as_micros(self.longest_ttl));
            minority + 1
        } else {
            // Those that do not vote anyway come first: with them, others would be a majority.
            order.sort_by_key(|at| !running_store.is_silent(*at));
            minority
        };
        let mut away = Vec::new();
        for at in order.into_iter().take(lost) {
            let how = WAYS[self.rng.usize(..WAYS.len())];
            match how {
                Away::Killed => drop(running_store.kill(at)),
                Away::Stopped => drop(running_store.pause(at)?),
                Away::BlackHoled => each_proxy(worker_group, at, FaultProxy::black_hole),
                Away::Slow => {
                    let delay = Duration::from_micros(lasts / 4);
                    each_proxy(worker_group, at, |it| it.delay(delay));
                }
            }
            away.push((at, how));
        }
        let targets = away.iter().map(|(at, how)| format!("{at} {how:?}"));
        let targets: Vec<_> = targets.collect();
        fault.target = format!("servers {}", targets.join(", "));
        Ok((fault, Some(Remedy::BringBack(away))))
    }
}

/// Brings servers back.
pub(super) fn bring_back(
    away: &[(usize, Away)],
    worker_group: &WorkerGroup,
    running_store: &mut RunningStore,
) -> Result<()> {
    for (at, how) in away {
        match how {
            Away::Killed => block_in_place(|| running_store.restart_server(*at))?,
            Away::Stopped => running_store.resume(PausedServer::Numbered(*at))?,
            Away::BlackHoled | Away::Slow => {
                each_proxy(worker_group, *at, FaultProxy::pass);
            }
        }
    }
    Ok(())
}

/// Does something to the connections of all workers to one server.
fn each_proxy(worker_group: &WorkerGroup, at: usize, act: impl Fn(&FaultProxy)) {
    let proxies = worker_group.members.iter();
    proxies.filter_map(|it| it.proxies.get(at)).for_each(act);
}
