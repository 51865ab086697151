//! A table with a limit: what it refuses, and what it counts.

use std::time::Duration;

use distlock_core::{
    AcquireRequest, Attempt, ErrorKind, HolderLabel, Lease, LockName, Moment, OwnerId, Renewal,
    Result, Ttl,
};
use distlock_memory::{Now, Table};

const TTL: Duration = Duration::from_secs(10);

fn at(secs: u64) -> Now {
    Now {
        boot: Moment::from_boot(Duration::from_secs(secs)),
        wall_micros: secs * 1_000_000,
    }
}

/// Takes a lock at this second.
fn take(table: &Table, secs: u64, name: &str) -> Result<Lease> {
    let holder = HolderLabel::new("h").unwrap();
    let (name, ttl) = (LockName::new(name).unwrap(), Ttl::new(TTL).unwrap());
    let request = AcquireRequest::new(name.clone(), OwnerId::new(), ttl, holder);
    match table.try_acquire(at(secs), &request, None)? {
        Attempt::Acquired(token) => Ok(Lease::new(name, request.owner, Some(token))),
        Attempt::Busy(_) => panic!("{name} is held"),
    }
}

#[test]
fn a_full_table_refuses_new_names_and_renews_and_releases_the_others() {
    let table = Table::new();
    table.limit_rows(3);
    let names = ["a", "b", "c"];
    let held = names.map(|name| take(&table, 1, name).unwrap());
    let refused = take(&table, 1, "d").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert!(refused.is_retryable(), "{refused}");
    assert!(
        refused.to_string().contains("3 locks are held"),
        "{refused}"
    );
    let renewal = Renewal::plain(Ttl::new(TTL).unwrap());
    table.renew(at(2).boot, &held[0], &renewal).unwrap();
    // A release makes room, and so does the end of a lease.
    table.release(at(2).boot, &held[1]);
    take(&table, 2, "d").unwrap();
    assert!(take(&table, 2, "e").is_err());
    assert_eq!((table.rows(), table.expired()), (3, 0));
    take(&table, 60, "f").unwrap();
    assert_eq!((table.rows(), table.expired()), (1, 3));
}

#[test]
fn a_table_is_full_at_its_limit_however_many_rows_that_are() {
    for most in [1_usize, 64, 1_000, 20_000] {
        let table = Table::new();
        table.limit_rows(most);
        let taken = (0..most * 2).filter(|name| take(&table, 1, &name.to_string()).is_ok());
        let taken = taken.count();
        assert!(
            (most..=most + most / 20).contains(&taken),
            "{taken} of {most}"
        );
        assert_eq!(table.rows(), taken);
        // Leases that have ended make room.
        let again = (0..most).filter(|name| take(&table, 60, &format!("b{name}")).is_ok());
        assert_eq!(again.count(), most);
    }
}
