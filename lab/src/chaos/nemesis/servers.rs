//! Servers that lose their leader, and what is done to servers by hand.

use std::time::Duration;

use anyhow::Result;
use distlock::{Clock as _, Locker, SystemClock};
use tokio::task::block_in_place;

use super::{
    active::{REPLACED, What, Wound, as_micros, lost_by_failover},
    injector::{AGREE, Nemesis},
    kinds::Break,
};
use crate::chaos::{
    crew::Crew,
    history::{Event, Excuse, Fault, now},
    stores::{Kind, Stage, Unseat, Unseated},
};

impl Nemesis {
    /// The rest of [`Nemesis::strike`]: faults of servers that are well.
    pub(super) async fn strike_servers(
        &mut self,
        kind: Break,
        mut fault: Fault,
        crew: &Crew,
        stage: &mut Stage,
        hand: Option<&Locker>,
    ) -> Result<Option<(Fault, Option<What>)>> {
        let any = self.rng.usize(..64);
        let unseat = match kind {
            Break::FillMemory => {
                block_in_place(|| stage.limit_memory(true))?;
                return Ok(Some((fault, Some(What::Full))));
            }
            Break::StepClock => {
                let by = self.longest_ttl.mul_f32(self.rng.f32() * 2.0);
                fault.excuse = Some(block_in_place(|| stage.put_clock_forward(by))?);
                fault.to = now();
                return Ok(Some((fault, None)));
            }
            Break::DeleteByHand => {
                let Some(name) = held_name(self, crew, hand).await else {
                    return Ok(None);
                };
                // Another server may be away, whatever is known of it.
                let deleted = block_in_place(|| stage.delete_lock(&name));
                fault.target = format!("lock {name:?}");
                if let Err(error) = deleted {
                    fault.target = format!("lock {name:?}, perhaps: {error:#}");
                }
                fault.excuse = Some(Excuse::Removed { name });
                fault.to = now();
                return Ok(Some((fault, None)));
            }
            Break::ExpireSession => {
                let Some(name) = held_name(self, crew, hand).await else {
                    return Ok(None);
                };
                if !block_in_place(|| stage.end_session_of(&name)).unwrap_or(true) {
                    return Ok(None);
                }
                fault.target = format!("the holder of {name:?}");
                fault.excuse = Some(Excuse::EndedSession);
                fault.to = now();
                return Ok(Some((fault, None)));
            }
            Break::Failover => Unseat::FailOver,
            Break::KillLeader => Unseat::Kill,
            Break::DeposePrimary | Break::DeposeLeader => Unseat::CutOff,
            _ => return Ok(None),
        };
        fault.from = now();
        let Some(unseated) = block_in_place(|| stage.unseat(unseat, any))? else {
            return Ok(None);
        };
        fault.excuse = lost_by_failover(stage.kind != Kind::Zookeeper);
        let noted = false;
        Ok(Some((fault, Some(What::Unseated { unseated, noted }))))
    }

    /// Waits, and looks meanwhile whether a leader is replaced that has lost its place.
    ///
    /// The fault ends for the checker when another one leads: no exception is documented for what
    /// comes more than one lease later.
    pub(super) async fn watch(&mut self, crew: &Crew, stage: &Stage, time: Duration) {
        let until = SystemClock.now() + time;
        let lease = as_micros(self.longest_ttl);
        loop {
            let mut waits = false;
            for Wound { fault, what } in &mut self.wounds {
                let What::Unseated { unseated, noted } = what else {
                    continue;
                };
                if *noted {
                    continue;
                }
                if !block_in_place(|| stage.is_replaced(*unseated)) {
                    waits = true;
                    continue;
                }
                *noted = true;
                let lasts = fault.to.saturating_sub(fault.from);
                fault.to = now();
                crew.referee.note(0, Event::Fault(fault.clone()));
                // Where it still answers, it goes on doing so for some leases after that.
                fault.to += lasts / 2;
                if unseated.still_answers() {
                    fault.to += lease;
                }
            }
            let left = until.since(SystemClock.now());
            if left.is_zero() {
                return;
            }
            SystemClock
                .sleep(if waits { left.min(AGREE) } else { left })
                .await;
        }
    }

    /// Lets a former leader take part again, once another one leads and the fault is over.
    pub(super) fn seat(
        &mut self,
        unseated: Unseated,
        noted: bool,
        fault: Fault,
        stage: &mut Stage,
    ) -> Result<()> {
        if !noted && now() < fault.from + as_micros(REPLACED) {
            let what = What::Unseated { unseated, noted };
            self.wounds.push(Wound { fault, what });
            return Ok(());
        }
        block_in_place(|| stage.take_part_again(unseated))?;
        self.settles(fault, noted, None);
        Ok(())
    }

    /// Breaks no server until they agree again.
    pub(super) fn settles(&mut self, fault: Fault, noted: bool, led: Option<usize>) {
        let what = What::Settling { noted, led };
        self.wounds.push(Wound { fault, what });
    }
}

/// A lock that somebody holds now.
async fn held_name(nemesis: &mut Nemesis, crew: &Crew, hand: Option<&Locker>) -> Option<String> {
    let name = crew.any_name(&mut nemesis.rng)?;
    let held = hand?.inspect(&name).await.ok()?.held;
    held.map(|_| name)
}
