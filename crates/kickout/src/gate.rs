//! One login per account and node competes for the account's lock; a newer one replaces an older one that still waits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{oneshot, watch};

use crate::ident::{Device, Uid};

/// The gates of a node, by account. An account without a login under way has no entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gates(Arc<Mutex<HashMap<Uid, Gate>>>);

#[derive(Debug)]
struct Gate {
    /// Tells the login inside that a newer one came; `None` once it may no longer be replaced.
    inside: Option<watch::Sender<Option<Device>>>,
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    enter: oneshot::Sender<Result<Pass, Device>>,
}

/// The right to compete. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Pass {
    gates: Gates,
    uid: Uid,
    replaced: watch::Receiver<Option<Device>>,
}

impl Gates {
    /// Waits until this login may compete. `Err` = a newer login of this device took its place.
    ///
    /// Cancel safety: safe; the place is given up.
    pub(crate) async fn enter(&self, uid: &Uid, device: &Device) -> Result<Pass, Device> {
        let waiting = {
            let mut gates = self.lock();
            let Some(gate) = gates.get_mut(uid) else {
                let (pass, inside) = self.pass(uid);
                gates.insert(
                    uid.clone(),
                    Gate {
                        inside: Some(inside),
                        waiting: None,
                    },
                );
                return Ok(pass);
            };
            if let Some(inside) = &gate.inside {
                inside.send_replace(Some(device.clone()));
            }
            let (enter, waiting) = oneshot::channel();
            if let Some(older) = gate.waiting.replace(Waiting { enter }) {
                let _ = older.enter.send(Err(device.clone()));
            }
            waiting
        };
        // The sender is dropped only after it was used.
        waiting.await.unwrap_or_else(|_| Err(device.clone()))
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
                let Some(next) = gate.waiting.take() else {
                    gates.remove(uid);
                    return;
                };
                let (pass, inside) = self.pass(uid);
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

    fn names() -> (Uid, Device, Device, Device) {
        let device = |name| Device::new(name).unwrap();
        (
            Uid::new("u").unwrap(),
            device("a"),
            device("b"),
            device("c"),
        )
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
        assert_eq!(first.replaced().await, b);
        let third = tokio::spawn({
            let (gates, uid, c) = (gates.clone(), uid.clone(), c.clone());
            async move { gates.enter(&uid, &c).await }
        });
        assert_eq!(second.await.unwrap().unwrap_err(), c);
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

    fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(future).poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }
}
