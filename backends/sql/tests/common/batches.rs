//! A batch of different outcomes, in which each operation must get its own answer.

use distlock_core::{
    AcquireRequest, Attempt, DistLock, FencingToken, Grant, HolderLabel, Lease, LockName,
    LossReason, OwnerId, ReleaseOutcome, Renewal, Renewed, Ttl,
};
use futures_util::future::join_all;

use crate::servers::LONG;

/// Changes of rows without the store: `sql` sends a statement, and the other fields are lists of
/// assignments.
pub(crate) struct ByHand<'a> {
    pub(crate) sql: &'a dyn Fn(&str),
    /// Frees the row: the row then has no owner.
    pub(crate) free: &'a str,
    /// Gives the row to another owner with the label `thief`.
    pub(crate) given_away: &'a str,
    /// Sets the hint of another process.
    pub(crate) wanted: &'a str,
}

/// Sends batches in which some operations are granted, renewed or released, and some are not.
pub(crate) async fn each_operation_of_a_mixed_batch_has_its_own_answer(
    lock: &dyn DistLock,
    by_hand: &ByHand<'_>,
) {
    let ttl = Ttl::new(LONG).unwrap();
    let change = |set: &str, names: &str| {
        (by_hand.sql)(&format!(
            "UPDATE distributed_lock SET {set} WHERE lock_name {names}"
        ));
    };
    let names: Vec<_> = (10..50)
        .map(|number| LockName::new(format!("n-{number}")).unwrap())
        .collect();
    let request = |name: &LockName| {
        let holder = HolderLabel::new("tester").unwrap();
        AcquireRequest::new(name.clone(), OwnerId::new(), ttl, holder)
    };
    let acquired = async |requests: &[AcquireRequest]| {
        let asked = requests.iter().map(|it| lock.try_acquire(it));
        let answers = join_all(asked).await.into_iter();
        let token = |answer: Attempt<Grant>| match answer {
            Attempt::Acquired(grant) => Ok(grant.token),
            Attempt::Busy(holder) => Err(holder.unwrap().holder),
        };
        let tokens = answers.map(|answer| token(answer.unwrap()));
        tokens.collect::<Vec<_>>()
    };
    let lease = |(request, token): (&AcquireRequest, &Result<FencingToken, _>)| {
        let token = Some(*token.as_ref().ok()?);
        Some(Lease::new(request.name.clone(), request.owner, token))
    };
    let requests: Vec<_> = names.iter().map(request).collect();
    let first = acquired(&requests).await;
    let leases: Vec<_> = requests.iter().zip(&first).filter_map(lease).collect();
    assert_eq!(leases.len(), 40, "{first:?}");
    let renewal = Renewal::plain(ttl);
    // The renewals are sent in the reverse order of the acquires, so that leases with different
    // tokens share a batch.
    let renewed = join_all(leases.iter().rev().map(|it| lock.renew(it, &renewal))).await;
    for (renewed, lease) in renewed.into_iter().zip(leases.iter().rev()) {
        match renewed.unwrap() {
            Renewed::Extended { token, .. } => assert_eq!(Some(token), lease.token),
            other => panic!("{other:?}"),
        }
    }

    // By hand, ten rows are freed, and ten rows are given to another owner.
    change(by_hand.free, "< 'n-20'");
    change(by_hand.given_away, ">= 'n-40'");
    let others: Vec<_> = names.iter().map(request).collect();
    let second = acquired(&others).await;
    for (at, (before, now)) in first.iter().zip(&second).enumerate() {
        match (at, now) {
            (..10, Ok(token)) => assert!(token > before.as_ref().unwrap()),
            (10..30, Err(holder)) => assert_eq!(holder, "tester"),
            (30.., Err(holder)) => assert_eq!(holder, "thief"),
            other => panic!("{other:?}"),
        }
    }
    let renewed = join_all(leases.iter().map(|it| lock.renew(it, &renewal))).await;
    for (at, (renewed, lease)) in renewed.into_iter().zip(&leases).enumerate() {
        match (at, renewed.unwrap()) {
            (10..30, Renewed::Extended { token, .. }) => assert_eq!(Some(token), lease.token),
            (..10 | 30.., Renewed::NotHeld(LossReason::TakenOver)) => {}
            other => panic!("{other:?}"),
        }
    }
    let released = join_all(leases.iter().map(|it| lock.release(it))).await;
    for (at, released) in released.into_iter().enumerate() {
        let ours = matches!(released.unwrap(), ReleaseOutcome::Released { .. });
        assert_eq!(ours, (10..30).contains(&at), "{at}");
    }
    // Another process waits for one of these locks.
    change(by_hand.wanted, "= 'n-15'");
    let leases: Vec<_> = others.iter().zip(&second).filter_map(lease).collect();
    let released = join_all(leases.iter().map(|it| lock.release(it))).await;
    for (lease, released) in leases.iter().zip(released) {
        let ReleaseOutcome::Released { others_waiting } = released.unwrap() else {
            panic!("{lease:?} was held");
        };
        let wanted = lease.name.as_str() == "n-15";
        assert!(!wanted || others_waiting != Some(false), "{lease:?}");
    }
    // One lease expires. Later one row gets another token, although its owner stays the same.
    let requests: Vec<_> = names.iter().map(request).collect();
    (by_hand.sql)("DELETE FROM distributed_lock");
    let third = acquired(&requests).await;
    let leases: Vec<_> = requests.iter().zip(&third).filter_map(lease).collect();
    assert_eq!(leases.len(), 40, "{third:?}");
    change("expires_at = acquired_at", "= 'n-20'");
    let renewed = join_all(leases.iter().map(|it| lock.renew(it, &renewal))).await;
    for (renewed, lease) in renewed.into_iter().zip(&leases) {
        match (lease.name.as_str(), renewed.unwrap()) {
            ("n-20", Renewed::NotHeld(LossReason::Expired)) => {}
            (name, Renewed::Extended { .. }) if name != "n-20" => {}
            other => panic!("{other:?}"),
        }
    }
    change("token = token + 1", "= 'n-30'");
    let released = join_all(leases.iter().map(|it| lock.release(it))).await;
    for (released, lease) in released.into_iter().zip(&leases) {
        let ours = matches!(released.unwrap(), ReleaseOutcome::Released { .. });
        assert_eq!(ours, lease.name.as_str() != "n-30", "{lease:?}");
    }
}
