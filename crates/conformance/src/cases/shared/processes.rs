//! Processes that hold shared locks are killed, or stopped for longer than their leases.

use std::{collections::BTreeSet, time::Duration};

use distlock_core::{FencingToken, Store, sync::Mutex};
use distlock_recipes::shared::{self, HolderState, SharedMode};
use futures_util::future::try_join_all;

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, fail},
    history::{History, Hold},
    spec::{Spec, case},
    support::{Context, SOON, eventually, now},
    worker::{Ask, Command, ReleaseReport, Reply, SharedWish, Worker},
};

pub(super) const CASES: &[Spec] = &[case!(
    shared::killed_and_stopped_processes_keep_nobody_out,
    "of eight processes, readers, writers and holders of permits are killed or stopped: nobody \
     holds against the rules, and all others get in",
    Processes
)];

/// The number of permits.
const CAPACITY: u32 = 3;

const ONE_PERMIT: SharedWish = SharedWish::Permits {
    count: 1,
    of: CAPACITY,
};
const TWO_PERMITS: SharedWish = SharedWish::Permits {
    count: 2,
    of: CAPACITY,
};
const ALL_PERMITS: SharedWish = SharedWish::Permits {
    count: CAPACITY,
    of: CAPACITY,
};

/// The locks, and the wishes of the process that is killed, and of the process that is stopped.
const VICTIMS: [(&str, SharedWish, Fate); 6] = [
    ("readers", SharedWish::Read, Fate::Killed),
    ("readers", SharedWish::Read, Fate::Stopped),
    ("killed", SharedWish::Write, Fate::Killed),
    ("stopped", SharedWish::Write, Fate::Stopped),
    ("permits", ONE_PERMIT, Fate::Killed),
    ("permits", ONE_PERMIT, Fate::Stopped),
];

/// What everybody else wants then. No wish can be met before the leases of both victims have ended.
const AFTER_VICTIMS: [(&str, SharedWish); 4] = [
    ("readers", SharedWish::Write),
    ("killed", SharedWish::Read),
    ("stopped", SharedWish::Write),
    ("permits", ALL_PERMITS),
];

/// What all that live want in the end.
const IN_THE_END: [(&str, SharedWish); 5] = [
    ("readers", SharedWish::Read),
    ("readers", SharedWish::Write),
    ("permits", TWO_PERMITS),
    ("stopped", SharedWish::Read),
    ("permits", ALL_PERMITS),
];

/// What becomes of a process that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    Stopped,
}

async fn killed_and_stopped_processes_keep_nobody_out(cx: Context) -> Outcome {
    let store = cx.store().await?;
    let mut processes = try_join_all((0..8).map(|_| cx.worker())).await?;
    let mut others = processes.split_off(VICTIMS.len());
    for ((name, wish, _), process) in VICTIMS.iter().zip(&mut processes) {
        // Longer than the case: only the death or the stop ends these holds.
        let for_long = Duration::from_secs(120);
        process.send(&cycles(&cx, name, *wish, for_long, 1)).await?;
    }
    let seen = until_held(&cx, &store).await?;
    let mut holds = Vec::new();
    let mut stopped = Vec::new();
    for ((_, wish, fate), process) in VICTIMS.iter().zip(processes) {
        match fate {
            Fate::Stopped => {
                process.stop()?;
                stopped.push((*wish, process));
            }
            Fate::Killed => {
                let who = format!("process {}", process.id().unwrap_or_default());
                let until = now().since_boot();
                let own = seen.iter().filter(|hold| hold.who == who).cloned();
                holds.extend(own.map(|hold| Hold { until, ..hold }));
                process.kill().await?;
            }
        }
    }
    ensure_eq!(holds.len(), 3, "holds of those that were killed");

    let moment = Duration::from_millis(5);
    let wanted_in_turn = |turn: usize| {
        let mut wanted = AFTER_VICTIMS;
        wanted.rotate_left(2 * turn);
        wanted
    };
    for (turn, process) in others.iter_mut().enumerate() {
        for (name, wish) in wanted_in_turn(turn) {
            process.send(&cycles(&cx, name, wish, moment, 2)).await?;
        }
    }
    for (turn, process) in others.iter_mut().enumerate() {
        for (_, wish) in wanted_in_turn(turn) {
            holds.extend(clean_holds(process, wish, 2).await?);
        }
    }
    for (wish, process) in &mut stopped {
        process.go_on()?;
        let (own, releases) = ended_cycles(process, *wish).await?;
        let is_lost = |report: &ReleaseReport| matches!(report, ReleaseReport::AlreadyLost(_));
        ensure!(releases.iter().all(is_lost), "a stopped one: {releases:?}");
        holds.extend(own);
    }
    others.extend(stopped.into_iter().map(|(_, process)| process));
    for process in &mut others {
        for (name, wish) in IN_THE_END {
            process.send(&cycles(&cx, name, wish, moment, 2)).await?;
        }
    }
    for process in &mut others {
        for (_, wish) in IN_THE_END {
            holds.extend(clean_holds(process, wish, 2).await?);
        }
    }
    check(holds)
}

/// The command to take and leave a lock this many times.
fn cycles(cx: &Context, name: &str, wish: SharedWish, hold: Duration, count: u32) -> Command {
    let ttl = cx.kept_ttl();
    Command::SharedCycles {
        ask: Ask {
            name: cx.name(name),
            ttl,
            wait: cx.freed_within(ttl) + SOON * 2,
            renew: true,
            fair: false,
            not_before: Duration::ZERO,
        },
        wish,
        hold,
        count,
    }
}

/// Waits until the list of holders shows all victims. Returns their holds, which begin now.
async fn until_held(cx: &Context, store: &Store) -> Outcome<Vec<Hold>> {
    let seen = Mutex::new(Vec::new());
    eventually("all hold", SOON * 2, || async {
        let mut found = Vec::new();
        for name in ["readers", "killed", "stopped", "permits"] {
            let name = cx.name(name);
            for info in shared::inspect(store, &name).await? {
                let now = now().since_boot();
                for holder in &info.holders {
                    let HolderState::Held(held) = &holder.state else {
                        continue;
                    };
                    let who = held.holder.clone();
                    let lock = match (holder.mode, &*holder.indices) {
                        (SharedMode::Read, _) => beside(&name, &who),
                        (SharedMode::Permits, [index, ..]) => format!("{name}#{index}"),
                        _ => name.clone(),
                    };
                    found.push(Hold {
                        lock,
                        who,
                        token: info.token.map_or(0, FencingToken::get),
                        from: now,
                        until: now,
                    });
                }
            }
        }
        let is_complete = found.len() == VICTIMS.len();
        *seen.lock() = found;
        Ok(is_complete)
    })
    .await?;
    Ok(seen.into_inner())
}

/// Waits for the cycles of a process. Returns its holds, and how they ended.
async fn ended_cycles(
    process: &mut Worker,
    wish: SharedWish,
) -> Outcome<(Vec<Hold>, Vec<ReleaseReport>)> {
    let Reply::Cycles {
        mut holds,
        releases,
        refused,
    } = process.reply().await?
    else {
        fail!("a process did not answer with its cycles");
    };
    ensure!(refused.is_empty(), "everybody gets in: {refused:?}");
    if matches!(wish, SharedWish::Read) {
        for hold in &mut holds {
            hold.lock = beside(&hold.lock, &hold.who);
        }
    }
    Ok((holds, releases))
}

/// Waits for the cycles of a process that was not disturbed. Returns its holds.
async fn clean_holds(process: &mut Worker, wish: SharedWish, count: usize) -> Outcome<Vec<Hold>> {
    let (holds, releases) = ended_cycles(process, wish).await?;
    ensure_eq!(releases, vec![ReleaseReport::Clean; count], "releases");
    Ok(holds)
}

/// The lock that a reader shares with the writers alone.
fn beside(name: &str, reader: &str) -> String {
    format!("{name} beside {reader}")
}

/// Checks that no writer held beside anybody, and that nobody had a permit of another holder.
fn check(holds: Vec<Hold>) -> Outcome {
    let locks: BTreeSet<String> = holds.iter().map(|hold| hold.lock.clone()).collect();
    let permits = locks.iter().filter(|lock| lock.contains('#')).count();
    ensure_eq!(
        permits,
        CAPACITY as usize,
        "permits that were used: {locks:?}"
    );
    let history = History::new();
    for hold in holds {
        // A writer excludes each reader.
        let of_readers = beside(&hold.lock, "");
        let shared = locks.iter().filter(|lock| lock.starts_with(&of_readers));
        history.extend(shared.map(|lock| Hold {
            lock: lock.clone(),
            ..hold.clone()
        }));
        history.record(hold);
    }
    history.check()?;
    Ok(())
}
