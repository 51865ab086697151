//! One login per account and node competes for the account's lock at a time. A newer one replaces an older one that still
//! waits, where only one of the two could survive and the newer one certainly may; otherwise they take turns.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{oneshot, watch};

use crate::model::{
    ident::{Device, Uid},
    record::Slot,
    resume::ResumeToken,
};

/// Logins of one account that may wait on one node.
const MAX_WAITING: usize = 64;

/// The gates of a node, by account. An account without a login under way has no entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gates(Arc<Mutex<HashMap<Uid, Gate>>>);

/// What a login is after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) slot: Slot,
    pub(crate) device: Device,
    /// Whether only the newest login for the slot can survive.
    pub(crate) last_wins: bool,
    /// The session that it goes on with. Whether it still may, only the directory knows.
    pub(crate) resumes: Option<ResumeToken>,
}

/// Why a login may not compete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A newer login of this device took its place.
    Overtaken(Device),
    /// Too many wait.
    Crowded,
}

#[derive(Debug)]
struct Gate {
    claim: Claim,
    /// Tells the login inside that a newer one came; `None` once it may no longer be replaced.
    inside: Option<watch::Sender<Option<Device>>>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    claim: Claim,
    enter: oneshot::Sender<Result<Pass, Refused>>,
}

/// The right to compete. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Pass {
    gates: Gates,
    uid: Uid,
    replaced: watch::Receiver<Option<Device>>,
}

impl Claim {
    /// Whether this newer claim makes an older one void.
    fn overtakes(&self, older: &Self) -> bool {
        if self.resumes.is_some() {
            // It may be refused, and then nobody would be left. Only the same question once more gets the same answer.
            return self == older;
        }
        self.device == older.device || (self.last_wins && self.slot == older.slot)
    }
}

impl Gates {
    /// Waits until this login may compete. Logins that a newer one cannot make void take their turn.
    ///
    /// Cancel safety: safe; the place is given up.
    pub(crate) async fn enter(&self, uid: &Uid, claim: &Claim) -> Result<Pass, Refused> {
        let waiting = {
            let mut gates = self.lock();
            let Some(gate) = gates.get_mut(uid) else {
                let (pass, inside) = self.pass(uid);
                gates.insert(
                    uid.clone(),
                    Gate {
                        claim: claim.clone(),
                        inside: Some(inside),
                        waiting: VecDeque::new(),
                    },
                );
                return Ok(pass);
            };
            if let Some(inside) = &gate.inside
                && claim.overtakes(&gate.claim)
            {
                inside.send_replace(Some(claim.device.clone()));
            }
            let mut overtaken = Vec::new();
            for waiting in std::mem::take(&mut gate.waiting) {
                if waiting.enter.is_closed() {
                    // It was cancelled.
                } else if claim.overtakes(&waiting.claim) {
                    overtaken.push(waiting);
                } else {
                    gate.waiting.push_back(waiting);
                }
            }
            for older in overtaken {
                let _ = older
                    .enter
                    .send(Err(Refused::Overtaken(claim.device.clone())));
            }
            if gate.waiting.len() >= MAX_WAITING {
                return Err(Refused::Crowded);
            }
            let (enter, waiting) = oneshot::channel();
            gate.waiting.push_back(Waiting {
                claim: claim.clone(),
                enter,
            });
            waiting
        };
        // The sender is dropped only after it was used.
        waiting.await.unwrap_or(Err(Refused::Crowded))
    }

    /// Accounts that have a login under way, so many at most.
    pub(crate) fn some(&self, most: usize) -> Vec<Uid> {
        self.lock().keys().take(most).cloned().collect()
    }

    /// How many accounts have a login under way.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn pass(&self, uid: &Uid) -> (Pass, watch::Sender<Option<Device>>) {
        let (inside, replaced) = watch::channel(None);
        let pass = Pass {
            gates: self.clone(),
            uid: uid.clone(),
            replaced,
        };
        (pass, inside)
    }

    /// Lets the waiting login in, or forgets the account.
    fn leave(&self, uid: &Uid) {
        loop {
            let refused = {
                let mut gates = self.lock();
                let Some(gate) = gates.get_mut(uid) else {
                    return;
                };
                let Some(next) = gate.waiting.pop_front() else {
                    gates.remove(uid);
                    return;
                };
                let (pass, inside) = self.pass(uid);
                gate.claim = next.claim;
                gate.inside = Some(inside);
                next.enter.send(Ok(pass)).err()
            };
            match refused {
                None => return,
                // That login was cancelled. Its pass must not call back into this function: the next round does its work.
                Some(Ok(pass)) => pass.forget(),
                Some(Err(_)) => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uid, Gate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    /// Waits until a newer login takes this one's place, and says of which device.
    ///
    /// Cancel safety: safe.
    pub(crate) async fn replaced(&mut self) -> Device {
        let device = self.replaced.wait_for(Option::is_some).await;
        let device = device.ok().and_then(|device| device.clone());
        match device {
            Some(device) => device,
            None => std::future::pending().await,
        }
    }

    /// From here on nobody replaces this login, unless somebody already has.
    pub(crate) fn commit(&self) -> Result<(), Device> {
        let mut gates = self.gates.lock();
        if let Some(device) = self.replaced.borrow().clone() {
            return Err(device);
        }
        if let Some(gate) = gates.get_mut(&self.uid) {
            gate.inside = None;
        }
        Ok(())
    }

    fn forget(self) {
        // Dropping would let the next one in; an empty name has no gate.
        let mut this = self;
        this.gates = Gates::default();
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gates.leave(&self.uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ident::{Generation, SessionId};

    fn claim(device: &str, slot: &str, last_wins: bool) -> Claim {
        Claim {
            slot: Slot::new(slot),
            device: Device::new(device).unwrap(),
            last_wins,
            resumes: None,
        }
    }

    fn resuming(claim: &Claim, session: SessionId) -> Claim {
        let uid = Uid::new("u").unwrap();
        let token = ResumeToken::new(uid, Slot::main(), session, Generation::new(7));
        Claim {
            resumes: Some(token),
            ..claim.clone()
        }
    }

    fn names() -> (Uid, Claim, Claim, Claim) {
        let claim = |name| claim(name, "main", true);
        (Uid::new("u").unwrap(), claim("a"), claim("b"), claim("c"))
    }

    #[tokio::test]
    async fn the_newest_waiting_login_enters_and_the_others_are_told() {
        let (uid, a, b, c) = names();
        let gates = Gates::default();
        let mut first = gates.enter(&uid, &a).await.unwrap();
        let second = tokio::spawn({
            let (gates, uid, b) = (gates.clone(), uid.clone(), b.clone());
            async move { gates.enter(&uid, &b).await }
        });
        assert_eq!(first.replaced().await, b.device);
        let third = tokio::spawn({
            let (gates, uid, c) = (gates.clone(), uid.clone(), c.clone());
            async move { gates.enter(&uid, &c).await }
        });
        assert_eq!(
            second.await.unwrap().unwrap_err(),
            Refused::Overtaken(c.device)
        );
        assert!(first.commit().is_err());
        drop(first);
        drop(third.await.unwrap().unwrap());
        assert_eq!(gates.len(), 0);
    }

    #[tokio::test]
    async fn a_committed_login_is_not_replaced() {
        let (uid, a, b, _) = names();
        let gates = Gates::default();
        let mut first = gates.enter(&uid, &a).await.unwrap();
        first.commit().unwrap();
        let mut second = Box::pin(gates.enter(&uid, &b));
        assert!(futures_poll(&mut second).is_none());
        let mut replaced = Box::pin(first.replaced());
        assert!(futures_poll(&mut replaced).is_none());
        drop(replaced);
        drop(first);
        drop(second.await.unwrap());
        assert_eq!(gates.len(), 0);
    }

    #[tokio::test]
    async fn a_cancelled_waiter_leaves_nothing_behind() {
        let (uid, a, b, _) = names();
        let gates = Gates::default();
        let first = gates.enter(&uid, &a).await.unwrap();
        let mut second = Box::pin(gates.enter(&uid, &b));
        assert!(futures_poll(&mut second).is_none());
        drop(second);
        drop(first);
        assert_eq!(gates.len(), 0);
        // And the gate still works.
        drop(gates.enter(&uid, &a).await.unwrap());
    }

    #[tokio::test]
    async fn logins_that_can_all_survive_take_turns_and_are_bounded() {
        let gates = Gates::default();
        let uid = Uid::new("u").unwrap();
        let first = gates
            .enter(&uid, &claim("first", "main", false))
            .await
            .unwrap();
        let claims: Vec<_> = (0..MAX_WAITING)
            .map(|number| claim(&number.to_string(), "main", false))
            .collect();
        let mut waiting: Vec<_> = claims
            .iter()
            .map(|claim| Box::pin(gates.enter(&uid, claim)))
            .collect();
        for waiting in &mut waiting {
            assert!(futures_poll(waiting).is_none());
        }
        let crowded = gates.enter(&uid, &claim("late", "main", false)).await;
        assert_eq!(crowded.unwrap_err(), Refused::Crowded);
        // One that went away makes room; the same device again replaces its older login.
        drop(waiting.pop());
        let same = claim("3", "main", false);
        let mut again = Box::pin(gates.enter(&uid, &same));
        assert!(futures_poll(&mut again).is_none());
        assert!(matches!(
            futures_poll(&mut waiting[3]),
            Some(Err(Refused::Overtaken(_)))
        ));
        drop(first);
        for (number, waiting) in waiting.into_iter().enumerate() {
            if number != 3 {
                drop(waiting.await.unwrap());
            }
        }
        drop(again.await.unwrap());
        assert_eq!(gates.len(), 0);
    }

    #[tokio::test]
    async fn the_newest_login_of_another_slot_replaces_nobody() {
        let gates = Gates::default();
        let uid = Uid::new("u").unwrap();
        let first = gates
            .enter(&uid, &claim("phone", "phone", true))
            .await
            .unwrap();
        let pc = claim("pc", "pc", true);
        let mut second = Box::pin(gates.enter(&uid, &pc));
        assert!(futures_poll(&mut second).is_none());
        first.commit().unwrap();
        drop(first);
        drop(second.await.unwrap());
    }

    #[tokio::test]
    async fn a_resume_replaces_nobody_but_its_own_older_attempt() {
        let (uid, a, b, _) = names();
        let gates = Gates::default();
        let first = gates.enter(&uid, &a).await.unwrap();
        let patient = claim("b", "main", false);
        let mut login = Box::pin(gates.enter(&uid, &patient));
        assert!(futures_poll(&mut login).is_none());
        // Of the device inside, of the one that waits, and of one more.
        let resumes = [&a, &b, &a].map(|of| resuming(of, SessionId::random()));
        let mut waiting: Vec<_> = resumes
            .iter()
            .map(|claim| Box::pin(gates.enter(&uid, claim)))
            .collect();
        for waiting in &mut waiting {
            assert!(futures_poll(waiting).is_none());
        }
        assert!(futures_poll(&mut login).is_none());
        first.commit().unwrap();
        drop(first);
        drop(login.await.unwrap());
        for waiting in waiting {
            drop(waiting.await.unwrap());
        }
        // Its client came again: the older attempt would take the session away from the one that is there.
        let resume = resuming(&a, SessionId::random());
        let mut inside = gates.enter(&uid, &resume).await.unwrap();
        let mut second = Box::pin(gates.enter(&uid, &resume));
        assert!(futures_poll(&mut second).is_none());
        assert_eq!(inside.replaced().await, a.device);
        let mut third = Box::pin(gates.enter(&uid, &resume));
        assert!(futures_poll(&mut third).is_none());
        assert!(matches!(
            futures_poll(&mut second),
            Some(Err(Refused::Overtaken(_)))
        ));
        drop(inside);
        drop(third.await.unwrap());
        assert_eq!(gates.len(), 0);
    }

    fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(future).poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }
}
