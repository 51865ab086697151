//! Locks and tickets that the version before stored work with this version.
//!
//! The version before wrote these values. Only the remaining time of each lease is new.

use distlock_harness::servers::redis::RedisServer;

use crate::support::{Finished, Home, finish};

/// The lock `order:42` on Redis: its key, its value, and the ticket of its holder.
const REDIS_KEY: &str = "distlock:{b137}:l:order~3a42";
const REDIS_VALUE: &str = "2711ca80dc494febba09197e087b22cf 1795716918039963 1795716918039963 \
    ba1efc869c1746cc9fa088b8234dcc5d ci@host:1\nbuild 7";
const REDIS_TICKET: &str = "dlt1.eyJuYW1lIjoib3JkZXI6NDIiLCJvd25lciI6IjI3MTFjYTgwLWRjNDktNGZlYi1i\
    YTA5LTE5N2UwODdiMjJjZiIsInRva2VuIjoxNzk1NzE2OTE4MDM5OTYzLCJ0dGxfbXMiOjM2MDAwMDAsIm5vbmNlIjoi\
    YmExZWZjODYtOWMxNy00NmNjLTlmYTAtODhiODIzNGRjYzVkIn0";
const REDIS_TOKEN: u64 = 1_795_716_918_039_963;
/// The counter of tokens beside the lock.
const REDIS_COUNTER: &str = "distlock:{b137}:c";

/// The same lock in a SQLite file, without the columns that depend on the host's clock.
const SQLITE_OWNER: &str = "X'0C75CA7FA6EF45188FC20346F06BE70B'";
const SQLITE_NONCE: &str = "X'E4EC8903AFC049329AF647CD9C532A6D'";
const SQLITE_TICKET: &str = "dlt1.eyJuYW1lIjoib3JkZXI6NDIiLCJvd25lciI6IjBjNzVjYTdmLWE2ZWYtNDUxOC04\
    ZmMyLTAzNDZmMDZiZTcwYiIsInRva2VuIjoxNzk1NzE2OTE4MDA5OTkxLCJ0dGxfbXMiOjM2MDAwMDAsIm5vbmNlIjoi\
    ZTRlYzg5MDMtYWZjMC00OTMyLTlhZjYtNDdjZDljNTMyYTZkIn0";
const SQLITE_TOKEN: u64 = 1_795_716_918_009_991;

#[test]
fn a_lock_that_the_version_before_took_on_redis_is_shown_renewed_and_released() {
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    let set = ["SET", REDIS_KEY, REDIS_VALUE, "PX", "600000"];
    assert_eq!(server.command(&set).unwrap().trim(), "OK");
    let token = REDIS_TOKEN.to_string();
    server.command(&["SET", REDIS_COUNTER, &token]).unwrap();
    check_lock(&home, &server.url(), REDIS_TICKET, REDIS_TOKEN);
}

#[test]
fn a_lock_that_the_version_before_took_in_a_file_is_shown_renewed_and_released() {
    let home = Home::new();
    let done = home.run(["acquire", "clock", "--ttl", "10m"]);
    assert_eq!(done.code, 0, "{done:?}");
    let inserted = home.sql(&format!(
        "insert into distributed_lock select 'order:42', {SQLITE_OWNER}, {SQLITE_TOKEN}, boot_id, \
         expires_at, acquired_at, 'ci@host:1', 'build 7', {SQLITE_NONCE}, 0, 0 from \
         distributed_lock where lock_name = 'clock'"
    ));
    assert_eq!(inserted, 1);
    let url = format!("sqlite:{}", home.store().display());
    check_lock(&home, &url, SQLITE_TICKET, SQLITE_TOKEN);
}

/// Shows, renews and releases the lock `order:42`, and takes it again with a higher token.
fn check_lock(home: &Home, url: &str, ticket: &str, token: u64) {
    let run = |words: &[&str], input: &str| -> Finished {
        finish(home.bare(words).env("DISTLOCK_BACKEND", url), input)
    };
    let shown = run(&["inspect", "order:42", "--json"], "").json();
    assert_eq!(shown["holder"], "ci@host:1", "{shown}");
    assert_eq!(shown["meta"], "build 7", "{shown}");
    assert_eq!(shown["token"], token, "{shown}");
    run(&["run", "order:42", "-n", "--", "true"], "").assert_failed(75, "ci@host:1");
    let renewed = run(&["renew"], ticket);
    assert_eq!(renewed.code, 0, "{renewed:?}");
    let left = run(&["inspect", "order:42", "--json"], "").json();
    // The ticket names a TTL of one hour, and the lease before had ten minutes left at most.
    assert!(
        left["expires_in_ms"].as_u64().unwrap() > 1_800_000,
        "{left}"
    );
    let released = run(&["release"], ticket);
    assert_eq!(released.code, 0, "{released:?}");
    let again = run(&["acquire", "order:42", "--ttl", "1m", "--json"], "").json();
    assert!(again["token"].as_u64().unwrap() > token, "{again}");
}
