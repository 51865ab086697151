//! Locks that are taken out of one table and put into another one.

use std::time::Duration;

use distlock_core::{
    AcquireRequest, Attempt, FencingToken, HolderLabel, Lease, LockName, LossReason, Meta, Moment,
    OwnerId, Renewal, TicketStep, Ttl,
};
use distlock_memory::{Now, Table};
use uuid::Uuid;

fn at(secs: u64) -> Now {
    Now {
        boot: Moment::from_boot(Duration::from_secs(secs)),
        wall_micros: secs * 1_000_000,
    }
}

fn request(name: &str) -> AcquireRequest {
    let ttl = Ttl::new(Duration::from_secs(10)).unwrap();
    let holder = HolderLabel::new("h").unwrap();
    let name = LockName::new(name).unwrap();
    AcquireRequest::new(name, OwnerId::new(), ttl, holder)
}

fn acquire(table: &Table, now: Now, request: &AcquireRequest) -> Option<FencingToken> {
    let attempt = table.try_acquire(now, request, None).unwrap();
    Attempt::acquired(attempt)
}

#[test]
fn a_restored_table_has_the_same_locks_tickets_and_tokens() {
    let table = Table::new();
    let mut with_ticket = request("ticket");
    with_ticket.meta = Some(Meta::new("text").unwrap());
    let (expired, floored) = (request("expired"), request("floored"));
    acquire(&table, at(1), &expired).unwrap();
    let token = acquire(&table, at(8), &with_ticket).unwrap();
    let mut lease = Lease::new(with_ticket.name.clone(), with_ticket.owner, Some(token));
    let nonce = Uuid::new_v4();
    let mut issue = Renewal::plain(with_ticket.ttl);
    issue.ticket = TicketStep::Issue(nonce);
    table.renew(at(9).boot, &lease, &issue).unwrap();
    acquire(&table, at(9), &floored).unwrap();
    let floor = FencingToken::new(77_000_000).unwrap();
    let of_floored = Lease::new(floored.name.clone(), floored.owner, None);
    let raise = Renewal::raising(floored.ttl, floor);
    table.renew(at(9).boot, &of_floored, &raise).unwrap();

    let (held, last_token) = table.export(at(12).boot);
    assert_eq!((held.len(), last_token), (2, floor.get()));
    let later = Table::new();
    later.raise_tokens(last_token);
    for held in &held {
        later.restore(at(12).boot, held).unwrap();
    }
    let (mut again, _) = later.export(at(12).boot);
    let mut held = held;
    held.sort_by(|a, b| a.name.cmp(&b.name));
    again.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(again, held);
    // The lease ends at the moment at which it would have ended.
    assert!(acquire(&later, at(18), &request("ticket")).is_none());
    lease.nonce = Some(nonce);
    let mut redeem = Renewal::plain(with_ticket.ttl);
    redeem.ticket = TicketStep::Redeem;
    assert_eq!(later.renew(at(18).boot, &lease, &redeem), Ok(token));
    let next = acquire(&later, at(40), &request("expired")).unwrap();
    assert!(next > floor, "{next}");
}

#[test]
fn the_highest_token_of_a_name_wins_whatever_the_order() {
    let table = Table::new();
    let (former, present) = (request("a"), request("a"));
    acquire(&table, at(1), &former).unwrap();
    let (of_former, _) = table.export(at(1).boot);
    acquire(&table, at(20), &present).unwrap();
    let (of_present, _) = table.export(at(20).boot);
    let (of_former, of_present) = (&of_former[0], &of_present[0]);
    let mut long_former = of_former.clone();
    long_former.expires = at(60).boot;
    for former_first in [true, false] {
        let later = Table::new();
        if former_first {
            later.restore(at(21).boot, &long_former).unwrap();
            later.restore(at(21).boot, of_present).unwrap();
        } else {
            later.restore(at(21).boot, of_present).unwrap();
            let refused = later.restore(at(21).boot, &long_former);
            assert_eq!(refused, Err(LossReason::TakenOver));
        }
        assert_eq!(
            later.restore(at(21).boot, of_present),
            Ok(()),
            "it is there"
        );
        let (held, _) = later.export(at(21).boot);
        assert_eq!(held, std::slice::from_ref(of_present).to_vec());
    }
}
