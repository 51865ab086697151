//! The login queue: the logins of one account that wait for their turn on one node.
//!
//! At most one login per account and node competes for the account's lock. A newer login replaces
//! an older login that has not committed to its write, if only one of the two can survive and the
//! newer one certainly may. Otherwise the logins take turns. A login whose write was sent is never
//! replaced.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use distlock_core::sync::Mutex;
use tokio::sync::{oneshot, watch};

use crate::model::{
    ident::{Device, Uid},
    login::ResumeToken,
    record::Slot,
};

/// Most logins of one account that may wait on one node.
const MAX_WAITING: usize = 64;

/// The login queues of a node, by account. An account without a login in progress has no entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoginQueues(Arc<Mutex<HashMap<Uid, AccountQueue>>>);

/// The slot and the device that a login claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoginClaim {
    pub(crate) slot: Slot,
    pub(crate) device: Device,
    /// Whether only the newest login for the slot can survive.
    pub(crate) last_wins: bool,
    /// The session that this login resumes. Only the directory shows whether that session may
    /// resume.
    pub(crate) resumes: Option<ResumeToken>,
    /// The number of this attempt to resume.
    pub(crate) attempt: u64,
}

/// The reason why a login gets no turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueRefusal {
    /// A newer login, from this device, replaced the refused login.
    Overtaken(Device),
    /// Too many logins of the account wait.
    Crowded,
}

#[derive(Debug)]
struct AccountQueue {
    /// The claim of the current login, which has the turn.
    claim: LoginClaim,
    /// Informs the current login that a newer login replaces it; `None` once the current login can
    /// no longer be replaced.
    replace_current: Option<watch::Sender<Option<Device>>>,
    waiting: VecDeque<QueuedLogin>,
}

#[derive(Debug)]
struct QueuedLogin {
    claim: LoginClaim,
    admit: oneshot::Sender<Result<LoginTurn, QueueRefusal>>,
}

/// The right to compete for the account's lock. The drop of the turn admits the next login.
#[derive(Debug)]
pub(crate) struct LoginTurn {
    queues: LoginQueues,
    uid: Uid,
    replaced: watch::Receiver<Option<Device>>,
}

impl LoginClaim {
    /// Whether this newer claim replaces the older claim.
    fn overtakes(&self, older: &Self) -> bool {
        if self.resumes.is_some() {
            // The directory may refuse a resume. If the resume had already replaced another login,
            // no login would be left. A resume may replace only an earlier attempt of the same
            // resume: if the directory refuses this one, it refuses the earlier one, too.
            let same = Self {
                attempt: older.attempt,
                ..self.clone()
            };
            return same == *older && self.attempt >= older.attempt;
        }
        self.device == older.device || (self.last_wins && self.slot == older.slot)
    }
}

impl LoginQueues {
    /// Waits for this login's turn. Waiting logins that this claim overtakes are refused at once.
    /// The current login is informed, if it can still be replaced.
    ///
    /// Cancel safety: safe; the login leaves the queue.
    pub(crate) async fn enqueue(
        &self,
        uid: &Uid,
        claim: &LoginClaim,
    ) -> Result<LoginTurn, QueueRefusal> {
        let waiting = {
            let mut queues = self.0.lock();
            let Some(queue) = queues.get_mut(uid) else {
                let (new_turn, replace_current) = self.new_turn(uid);
                queues.insert(
                    uid.clone(),
                    AccountQueue {
                        claim: claim.clone(),
                        replace_current: Some(replace_current),
                        waiting: VecDeque::new(),
                    },
                );
                return Ok(new_turn);
            };
            if let Some(replace_current) = &queue.replace_current
                && claim.overtakes(&queue.claim)
            {
                replace_current.send_replace(Some(claim.device.clone()));
            }
            let mut overtaken = Vec::new();
            for waiting in std::mem::take(&mut queue.waiting) {
                if waiting.admit.is_closed() {
                    // A cancelled login leaves the queue.
                } else if claim.overtakes(&waiting.claim) {
                    overtaken.push(waiting);
                } else {
                    queue.waiting.push_back(waiting);
                }
            }
            for older in overtaken {
                let _ = older
                    .admit
                    .send(Err(QueueRefusal::Overtaken(claim.device.clone())));
            }
            if queue.waiting.len() >= MAX_WAITING {
                return Err(QueueRefusal::Crowded);
            }
            let (admit, waiting) = oneshot::channel();
            queue.waiting.push_back(QueuedLogin {
                claim: claim.clone(),
                admit,
            });
            waiting
        };
        // The sender is always used before it is dropped, so an error cannot happen here.
        waiting.await.unwrap_or(Err(QueueRefusal::Crowded))
    }

    /// At most `most` accounts with a login in progress.
    pub(crate) fn busy_accounts(&self, most: usize) -> Vec<Uid> {
        self.0.lock().keys().take(most).cloned().collect()
    }

    /// Number of accounts with a login in progress.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Makes a turn, and the sender that informs its login of a newer login.
    fn new_turn(&self, uid: &Uid) -> (LoginTurn, watch::Sender<Option<Device>>) {
        let (replace_current, replaced) = watch::channel(None);
        let new_turn = LoginTurn {
            queues: self.clone(),
            uid: uid.clone(),
            replaced,
        };
        (new_turn, replace_current)
    }

    /// Admits the next waiting login, or removes the account's empty queue.
    fn admit_next(&self, uid: &Uid) {
        loop {
            let refused = {
                let mut queues = self.0.lock();
                let Some(queue) = queues.get_mut(uid) else {
                    return;
                };
                let Some(next) = queue.waiting.pop_front() else {
                    queues.remove(uid);
                    return;
                };
                let (new_turn, replace_current) = self.new_turn(uid);
                queue.claim = next.claim;
                queue.replace_current = Some(replace_current);
                next.admit.send(Ok(new_turn)).err()
            };
            match refused {
                None => return,
                // The receiving login was cancelled. The drop of its turn would admit a login, and
                // the next round of this loop would admit a second login.
                Some(Ok(new_turn)) => new_turn.disarm(),
                Some(Err(_)) => {}
            }
        }
    }
}

impl LoginTurn {
    /// Waits until a newer login wants to replace this one. Returns the newer login's device.
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

    /// Makes this login irreplaceable, before its write. `Err` holds the device of a newer login
    /// that has replaced this login.
    pub(crate) fn commit(&self) -> Result<(), Device> {
        let mut queues = self.queues.0.lock();
        if let Some(device) = self.replaced.borrow().clone() {
            return Err(device);
        }
        if let Some(queue) = queues.get_mut(&self.uid) {
            queue.replace_current = None;
        }
        Ok(())
    }

    /// Drops the turn without admitting the next login.
    fn disarm(self) {
        // A dropped turn admits the next login of its queues. The empty set of queues has no next
        // login.
        let mut this = self;
        this.queues = LoginQueues::default();
    }
}

impl Drop for LoginTurn {
    fn drop(&mut self) {
        self.queues.admit_next(&self.uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ident::{Generation, SessionId};

    fn claim(device: &str, slot: &str, last_wins: bool) -> LoginClaim {
        LoginClaim {
            slot: Slot::new(slot),
            device: Device::new(device).unwrap(),
            last_wins,
            resumes: None,
            attempt: 0,
        }
    }

    /// The same claim, for a login that resumes this session.
    fn resuming(claim: &LoginClaim, session: SessionId) -> LoginClaim {
        let uid = Uid::new("u").unwrap();
        let token = ResumeToken::new(uid, Slot::main(), session, Generation::new(7));
        LoginClaim {
            resumes: Some(token),
            ..claim.clone()
        }
    }

    fn account_and_claims() -> (Uid, LoginClaim, LoginClaim, LoginClaim) {
        let claim = |name| claim(name, "main", true);
        (Uid::new("u").unwrap(), claim("a"), claim("b"), claim("c"))
    }

    #[tokio::test]
    async fn the_newest_waiting_login_gets_the_turn_and_the_others_are_refused() {
        let (uid, a, b, c) = account_and_claims();
        let queues = LoginQueues::default();
        let mut first = queues.enqueue(&uid, &a).await.unwrap();
        let second = tokio::spawn({
            let (queues, uid, b) = (queues.clone(), uid.clone(), b.clone());
            async move { queues.enqueue(&uid, &b).await }
        });
        assert_eq!(first.replaced().await, b.device);
        let third = tokio::spawn({
            let (queues, uid, c) = (queues.clone(), uid.clone(), c.clone());
            async move { queues.enqueue(&uid, &c).await }
        });
        assert_eq!(
            second.await.unwrap().unwrap_err(),
            QueueRefusal::Overtaken(c.device)
        );
        assert!(first.commit().is_err());
        drop(first);
        drop(third.await.unwrap().unwrap());
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test]
    async fn a_committed_login_is_not_replaced() {
        let (uid, a, b, _) = account_and_claims();
        let queues = LoginQueues::default();
        let mut first = queues.enqueue(&uid, &a).await.unwrap();
        first.commit().unwrap();
        let mut second = Box::pin(queues.enqueue(&uid, &b));
        assert!(poll_once(&mut second).is_none());
        let mut replaced = Box::pin(first.replaced());
        assert!(poll_once(&mut replaced).is_none());
        drop(replaced);
        drop(first);
        drop(second.await.unwrap());
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test]
    async fn a_cancelled_login_leaves_the_queue() {
        let (uid, a, b, _) = account_and_claims();
        let queues = LoginQueues::default();
        let first = queues.enqueue(&uid, &a).await.unwrap();
        let mut second = Box::pin(queues.enqueue(&uid, &b));
        assert!(poll_once(&mut second).is_none());
        drop(second);
        drop(first);
        assert_eq!(queues.len(), 0);
        // The queue still works after the cancelled login.
        drop(queues.enqueue(&uid, &a).await.unwrap());
    }

    #[tokio::test]
    async fn logins_that_can_all_survive_take_turns_and_are_bounded() {
        let queues = LoginQueues::default();
        let uid = Uid::new("u").unwrap();
        let first = queues
            .enqueue(&uid, &claim("first", "main", false))
            .await
            .unwrap();
        let claims: Vec<_> = (0..MAX_WAITING)
            .map(|number| claim(&number.to_string(), "main", false))
            .collect();
        let mut waiting: Vec<_> = claims
            .iter()
            .map(|claim| Box::pin(queues.enqueue(&uid, claim)))
            .collect();
        for waiting in &mut waiting {
            assert!(poll_once(waiting).is_none());
        }
        let crowded = queues.enqueue(&uid, &claim("late", "main", false)).await;
        assert_eq!(crowded.unwrap_err(), QueueRefusal::Crowded);
        // The cancelled login leaves a free place, and a second login of a device replaces the
        // first login of that device.
        drop(waiting.pop());
        let same = claim("3", "main", false);
        let mut again = Box::pin(queues.enqueue(&uid, &same));
        assert!(poll_once(&mut again).is_none());
        assert!(matches!(
            poll_once(&mut waiting[3]),
            Some(Err(QueueRefusal::Overtaken(_)))
        ));
        drop(first);
        for (number, waiting) in waiting.into_iter().enumerate() {
            if number != 3 {
                drop(waiting.await.unwrap());
            }
        }
        drop(again.await.unwrap());
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test]
    async fn a_login_for_another_slot_replaces_no_login() {
        let queues = LoginQueues::default();
        let uid = Uid::new("u").unwrap();
        let first = queues
            .enqueue(&uid, &claim("phone", "phone", true))
            .await
            .unwrap();
        let pc = claim("pc", "pc", true);
        let mut second = Box::pin(queues.enqueue(&uid, &pc));
        assert!(poll_once(&mut second).is_none());
        first.commit().unwrap();
        drop(first);
        drop(second.await.unwrap());
    }

    #[tokio::test]
    async fn a_resume_replaces_only_its_own_older_attempt() {
        let (uid, a, b, _) = account_and_claims();
        let queues = LoginQueues::default();
        let first = queues.enqueue(&uid, &a).await.unwrap();
        let patient = claim("b", "main", false);
        let mut login = Box::pin(queues.enqueue(&uid, &patient));
        assert!(poll_once(&mut login).is_none());
        // Three resumes of three sessions: two by the current device, and one by the waiting
        // device.
        let resumes = [&a, &b, &a].map(|of| resuming(of, SessionId::random()));
        let mut waiting: Vec<_> = resumes
            .iter()
            .map(|claim| Box::pin(queues.enqueue(&uid, claim)))
            .collect();
        for waiting in &mut waiting {
            assert!(poll_once(waiting).is_none());
        }
        assert!(poll_once(&mut login).is_none());
        first.commit().unwrap();
        drop(first);
        drop(login.await.unwrap());
        for waiting in waiting {
            drop(waiting.await.unwrap());
        }
        // The client tries the resume again. If both attempts ran, the older attempt could end the
        // session of the newer attempt.
        let resume = resuming(&a, SessionId::random());
        let mut current = queues.enqueue(&uid, &resume).await.unwrap();
        let mut second = Box::pin(queues.enqueue(&uid, &resume));
        assert!(poll_once(&mut second).is_none());
        assert_eq!(current.replaced().await, a.device);
        let mut third = Box::pin(queues.enqueue(&uid, &resume));
        assert!(poll_once(&mut third).is_none());
        assert!(matches!(
            poll_once(&mut second),
            Some(Err(QueueRefusal::Overtaken(_)))
        ));
        drop(current);
        drop(third.await.unwrap());
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test]
    async fn an_older_attempt_does_not_replace_a_newer_one() {
        let (uid, a, ..) = account_and_claims();
        let queues = LoginQueues::default();
        let token = resuming(&a, SessionId::random());
        let [first, second, third] = [1, 2, 3].map(|attempt| LoginClaim {
            attempt,
            ..token.clone()
        });
        // The first attempt is late: the second one has the turn, and the third one waits.
        let mut current = queues.enqueue(&uid, &second).await.unwrap();
        let mut late = Box::pin(queues.enqueue(&uid, &first));
        assert!(poll_once(&mut late).is_none());
        assert!(poll_once(&mut Box::pin(current.replaced())).is_none());
        let mut newest = Box::pin(queues.enqueue(&uid, &third));
        assert!(poll_once(&mut newest).is_none());
        assert_eq!(current.replaced().await, a.device);
        assert!(matches!(
            poll_once(&mut late),
            Some(Err(QueueRefusal::Overtaken(_)))
        ));
        let mut late = Box::pin(queues.enqueue(&uid, &first));
        assert!(poll_once(&mut late).is_none());
        assert!(poll_once(&mut newest).is_none());
        drop(current);
        drop(newest.await.unwrap());
        drop(late.await.unwrap());
        assert_eq!(queues.len(), 0);
    }

    /// Polls a future once. Returns its output if it is ready.
    fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(future).poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }
}
