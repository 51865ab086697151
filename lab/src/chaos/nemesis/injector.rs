//! The nemesis: breaks things at random, drawn from a seed, and heals them again.

use std::time::Duration;

use anyhow::{Context as _, Result};
use distlock::{Forced, Locker};
use distlock_harness::{Direction, Signal};
use fastrand::Rng;
use tokio::task::block_in_place;

use super::{
    active::{What, Wound, lost_by_failover, still_settling},
    kinds::Break,
};
use crate::chaos::{
    crew::Crew,
    file,
    history::{Event, Excuse, Fault, Micros, now},
    stores::Stage,
};

/// See the module.
pub(crate) struct Nemesis {
    pub(super) rng: Rng,
    kinds: Vec<Break>,
    pub(super) longest_ttl: Duration,
    pub(super) wounds: Vec<Wound>,
}

/// Wounds that are open at a time.
const AT_ONCE: usize = 2;
/// A request that trickles takes about this many pauses.
const TRICKLE: u32 = 40;
/// How often servers are asked whether they agree.
pub(super) const AGREE: Duration = Duration::from_millis(50);

impl Nemesis {
    pub(crate) fn new(rng: Rng, kinds: Vec<Break>, longest_ttl: Duration) -> Self {
        Self {
            rng,
            kinds,
            longest_ttl,
            wounds: Vec::new(),
        }
    }

    /// Breaks something, or waits a little.
    pub(crate) async fn step(
        &mut self,
        crew: &mut Crew,
        stage: &mut Stage,
        hand: Option<&Locker>,
    ) -> Result<()> {
        self.heal(crew, stage, now()).await?;
        if self.wounds.len() < AT_ONCE
            && !self.kinds.is_empty()
            && let kind = self.kinds[self.rng.usize(..self.kinds.len())]
            && let Some((fault, what)) = self.strike(kind, crew, stage, hand).await?
        {
            match what {
                Some(what) => self.wounds.push(Wound { fault, what }),
                None => crew.referee.note(0, Event::Fault(fault)),
            }
        }
        let gap = self.longest_ttl.mul_f32(self.rng.f32() / 2.0);
        self.watch(crew, stage, gap + Duration::from_millis(20))
            .await;
        Ok(())
    }

    /// Heals all that should be healed by `by`.
    pub(crate) async fn heal(
        &mut self,
        crew: &mut Crew,
        stage: &mut Stage,
        by: Micros,
    ) -> Result<()> {
        let (due, open) = std::mem::take(&mut self.wounds)
            .into_iter()
            .partition::<Vec<_>, _>(|wound| wound.fault.to <= by);
        self.wounds = open;
        for Wound { mut fault, what } in due {
            match what {
                What::Stopped { player, worker } => {
                    if let Some(player) = crew.player(player, worker) {
                        player.signal(Signal::CONT)?;
                    }
                    // It may be killed before it can say so itself.
                    let (from, to) = (fault.from, now());
                    crew.referee.note(worker, Event::Stalled { from, to });
                }
                What::Lines { player, worker } => {
                    if let Some(player) = crew.player(player, worker) {
                        for line in &player.lines {
                            line.pass();
                        }
                    }
                }
                What::Still(still) => {
                    let led = still.place();
                    stage.resume(still)?;
                    if fault.excuse.is_some() {
                        self.settles(fault, false, led);
                        continue;
                    }
                }
                What::Dead(at) => {
                    block_in_place(|| stage.revive(at))?;
                    if fault.excuse.is_some() {
                        self.settles(fault, false, Some(at));
                        continue;
                    }
                }
                What::Full => block_in_place(|| stage.limit_memory(false))?,
                What::Unseated { unseated, noted } => {
                    self.seat(unseated, noted, fault, stage)?;
                    continue;
                }
                What::Settling { noted, led } => {
                    if !block_in_place(|| stage.is_settled()) {
                        still_settling(&fault)?;
                        self.settles(fault, noted, led);
                        continue;
                    }
                    // Nobody has taken its place, so nothing is lost.
                    if led.is_some_and(|at| block_in_place(|| stage.may_lose_by(at))) {
                        fault.excuse = None;
                    }
                    if noted {
                        continue;
                    }
                }
                What::File(holding) => {
                    holding.abort();
                    let _ = holding.await;
                }
            }
            fault.to = now();
            crew.referee.note(0, Event::Fault(fault));
        }
        Ok(())
    }

    /// Heals everything.
    pub(crate) async fn heal_all(&mut self, crew: &mut Crew, stage: &mut Stage) -> Result<()> {
        self.heal(crew, stage, Micros::MAX).await?;
        while !self.wounds.is_empty() {
            self.watch(crew, stage, AGREE).await;
            self.heal(crew, stage, Micros::MAX).await?;
        }
        Ok(())
    }

    /// Whether a fault that may excuse a violation is still open, and so not in the history.
    pub(crate) fn owes_an_excuse(&self) -> bool {
        self.wounds.iter().any(|Wound { fault, what }| {
            let noted = matches!(
                what,
                What::Unseated { noted: true, .. } | What::Settling { noted: true, .. }
            );
            fault.excuse.is_some() && !noted
        })
    }

    fn duration(&mut self) -> Micros {
        let longest = self
            .longest_ttl
            .mul_f32(if self.rng.u32(..4) == 0 { 3.0 } else { 1.0 });
        u64::try_from(longest.mul_f32(self.rng.f32()).as_micros()).unwrap_or_default()
    }

    /// Breaks one thing. A fault that is over at once has no wound. `None` = it cannot be done now.
    async fn strike(
        &mut self,
        kind: Break,
        crew: &mut Crew,
        stage: &mut Stage,
        hand: Option<&Locker>,
    ) -> Result<Option<(Fault, Option<What>)>> {
        let (from, lasts) = (now(), self.duration());
        let mut fault = Fault {
            kind: kind.key(),
            target: stage.kind.key(),
            from,
            to: from + lasts,
            excuse: None,
        };
        let player = self.rng.usize(..crew.players.len());
        let wounded = self.wounds.iter().any(|wound| match wound.what {
            What::Stopped { player: it, .. } | What::Lines { player: it, .. } => it == player,
            _ => false,
        });
        let server_is_well = !self
            .wounds
            .iter()
            .any(|wound| !matches!(wound.what, What::Stopped { .. } | What::Lines { .. }));
        let any = self.rng.usize(..64);
        let worker = crew.players[player].worker;
        let of_worker = |fault: &mut Fault| fault.target = format!("worker {worker}");
        let what = match kind {
            Break::StopWorker | Break::StopAtGrant | Break::KillWorker if wounded => {
                return Ok(None);
            }
            Break::StopWorker => {
                of_worker(&mut fault);
                crew.players[player].signal(Signal::STOP)?;
                Some(What::Stopped { player, worker })
            }
            Break::StopAtGrant => {
                of_worker(&mut fault);
                if !crew.stop_at_grant(worker, self.longest_ttl).await {
                    return Ok(None);
                }
                fault.from = now();
                fault.to = fault.from + lasts;
                Some(What::Stopped { player, worker })
            }
            Break::KillWorker => {
                of_worker(&mut fault);
                crew.replace(player, stage).await?;
                // The store was a part of the process.
                fault.excuse = stage.is_inside().then_some(Excuse::LostHistory);
                fault.to = now();
                None
            }
            Break::ForceRelease if server_is_well => {
                let Some(name) = crew.any_name(&mut self.rng) else {
                    return Ok(None);
                };
                if !force_release(hand, &name).await {
                    return Ok(None);
                }
                fault.target = format!("lock {name:?}");
                fault.excuse = Some(Excuse::Removed { name });
                fault.to = now();
                None
            }
            Break::LockFile if server_is_well => {
                let path = stage.file().context("a file")?.to_owned();
                Some(What::File(tokio::spawn(file::keep_locked(path))))
            }
            Break::CutLines
            | Break::ForsakeWorker
            | Break::SlowLines
            | Break::StopRequests
            | Break::StopReplies
            | Break::BlackHole
            | Break::LoseAnswer
            | Break::Trickle
            | Break::HalfClose
            | Break::DuplicateConnect => {
                if wounded {
                    return Ok(None);
                }
                of_worker(&mut fault);
                let delay = Duration::from_micros(lasts / 4);
                for line in &crew.players[player].lines {
                    match kind {
                        Break::CutLines => line.refuse(),
                        Break::ForsakeWorker => line.forsake_clients(),
                        Break::SlowLines => line.delay(delay),
                        Break::StopRequests => line.stop(Direction::ToServer),
                        Break::StopReplies => line.stop(Direction::ToClient),
                        Break::BlackHole => line.black_hole(),
                        Break::Trickle => line.trickle(delay / TRICKLE),
                        Break::HalfClose if any.is_multiple_of(2) => {
                            line.half_close(Direction::ToServer);
                        }
                        Break::HalfClose => line.half_close(Direction::ToClient),
                        Break::DuplicateConnect => {
                            line.connect_twice();
                            line.reset();
                        }
                        _ => line.swallow_one_reply(),
                    }
                }
                Some(What::Lines { player, worker })
            }
            Break::StopServer if server_is_well => {
                fault.excuse = lost_by_failover(block_in_place(|| stage.may_lose_by(any)));
                Some(What::Still(stage.pause(any)?))
            }
            Break::KillServer if server_is_well => {
                fault.excuse = lost_by_failover(block_in_place(|| stage.may_lose_by(any)));
                Some(What::Dead(stage.kill(any)))
            }
            Break::WipeServer if server_is_well => {
                fault.excuse = Some(block_in_place(|| stage.wipe())?);
                fault.to = now();
                None
            }
            Break::EndConnections if server_is_well => {
                block_in_place(|| stage.end_connections())?;
                fault.to = now();
                None
            }
            Break::ForgetScripts if server_is_well => {
                block_in_place(|| stage.forget_scripts())?;
                fault.to = now();
                None
            }
            Break::ForgetAll if server_is_well => {
                fault.excuse = Some(block_in_place(|| stage.forget_all())?);
                fault.to = now();
                None
            }
            _ if server_is_well => {
                return self.strike_servers(kind, fault, crew, stage, hand).await;
            }
            _ => return Ok(None),
        };
        Ok(Some((fault, what)))
    }
}

/// Frees a lock by hand. `false` = nobody holds it, or nobody could be asked.
async fn force_release(hand: Option<&Locker>, name: &str) -> bool {
    let Some(locker) = hand else { return false };
    let freeing = async {
        let held = locker.inspect(name).await.ok()?.held?;
        Some(locker.force_release(name, held.token?).await)
    };
    // A request that failed may have happened.
    matches!(freeing.await, Some(Ok(Forced::Released) | Err(_)))
}
