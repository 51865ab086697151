//! The checks that all dialects share.
//!
//! The module owns the findings on rights, servers, tables, password, store queue and rows. Each
//! dialect queries its own server and passes the results to this module. The checks only read, with
//! one exception: the check of the store queue takes a queue entry and gives the entry up again.

use std::time::Duration;

use distlock_core::{Health, HolderLabel, LockName, Result, Verdict};

#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::config::{Login, ServerConfig, ServerHost};
use crate::{
    dialect::Dialect,
    rows::QueueEntry,
    tables::{SchemaDifference, describe},
};

/// The lock name that the check of the store queue uses. No caller acquires this lock.
const TEST_LOCK: &str = "distlock:doctor";

/// Reports the rights that the user lacks. An example of an element of `denied` is
/// `INSERT ON distributed_lock`.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn report_rights(health: &mut Health, denied: &[String]) {
    let (verdict, detail) = if denied.is_empty() {
        (
            Verdict::Pass,
            "this user has all rights that locks and records need".to_owned(),
        )
    } else {
        let denied = denied.join(", ");
        (
            Verdict::Fail,
            format!("this user lacks {denied}: it cannot work with locks and records; grant it"),
        )
    };
    health.found("rights", verdict, detail);
}

/// Reports how the password travels to the server. A provider's password counts too.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) async fn report_password(health: &mut Health, config: &ServerConfig, login: &Login) {
    match login.current(config).await {
        Ok(config) => config.password_rule().examine(config.peers(), health),
        // No new connection can be made now.
        Err(error) => health.found("password", Verdict::Fail, error.message()),
    }
}

/// Reports which of several servers take writes. Each server of `found` has an error, or the answer
/// whether it takes no writes.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn report_servers(health: &mut Health, found: &[(ServerHost, Result<bool>)]) {
    let labels = |is: fn(&Result<bool>) -> bool| {
        let found = found.iter().filter(|(_, answer)| is(answer));
        found
            .map(|(host, _)| host.to_string())
            .collect::<Vec<_>>()
            .join(" and ")
    };
    let primaries = found
        .iter()
        .filter(|(_, answer)| matches!(answer, Ok(false)));
    let failed = found
        .iter()
        .find_map(|(host, answer)| Some((host, answer.as_ref().err()?)));
    let primary = labels(|answer| matches!(answer, Ok(false)));
    let (verdict, detail) = match (primaries.count(), failed) {
        (2.., _) => (
            Verdict::Fail,
            format!(
                "{primary} take writes: clients of one grant locks that are held at the other; \
                 make all but the primary read-only"
            ),
        ),
        (_, Some((host, error))) => (Verdict::Warn, format!("{host} cannot take over: {error}")),
        (0, None) => (
            Verdict::Fail,
            "no server of the URL takes writes, so no lock can be taken: promote one".into(),
        ),
        (_, None) => {
            let others = labels(|answer| matches!(answer, Ok(true)));
            (
                Verdict::Pass,
                format!("{primary} takes writes, and {others} can take over"),
            )
        }
    };
    health.found("servers", verdict, detail);
}

/// Whether a commit is on a second server before the client is answered.
#[cfg(any(feature = "mysql", feature = "postgres"))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Replication {
    Synchronous,
    /// The primary answers without a replica once the replicas were silent for a time.
    #[cfg(feature = "mysql")]
    UntilTimeout,
    /// With the remedy.
    Asynchronous(&'static str),
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl Replication {
    /// Reports what a failover costs.
    pub(crate) fn report(self, health: &mut Health) {
        let cost = "after a failover locks may be free that their holders still count on, for one \
            TTL at the most if the old primary takes no more writes, and without a limit if it \
            does; only the fencing token tells two holders apart";
        let (verdict, detail) = match self {
            Self::Synchronous => {
                let detail = "synchronous: a failover keeps every granted lock";
                return health.found("replication", Verdict::Pass, detail);
            }
            #[cfg(feature = "mysql")]
            Self::UntilTimeout => (
                Verdict::Warn,
                format!(
                    "semi-synchronous: the primary goes on alone when its replicas are silent, \
                     and {cost}"
                ),
            ),
            Self::Asynchronous(remedy) => (
                Verdict::Fail,
                format!("asynchronous: {cost}; {remedy}, and fence what the locks protect"),
            ),
        };
        // The replica that takes over tells the epoch of its primary.
        health.may_forget("replication", verdict, detail);
    }
}

/// Reports the differences between the existing tables and the required tables.
pub(crate) fn report_tables(health: &mut Health, differences: &[SchemaDifference]) {
    if differences.is_empty() {
        health.found("tables", Verdict::Pass, "as they were created");
    } else {
        let detail = format!(
            "{}: the tables were changed by hand, and are refused when the store is opened again",
            describe(differences)
        );
        health.found("tables", Verdict::Fail, detail);
    }
}

/// Checks whether contenders can join the store queue: takes a test entry and gives the entry up.
pub(crate) async fn check_store_queue<D: Dialect>(health: &mut Health, dialect: &D) {
    let tried: Result<()> = async {
        let entry = QueueEntry {
            name: LockName::new(TEST_LOCK)?,
            id: fastrand::i64(1..),
            holder: HolderLabel::new("distlock doctor")?,
        };
        let entries = [entry];
        dialect
            .renew_queue_entries(&entries, Duration::from_secs(1))
            .await?;
        dialect.leave_queues(&entries).await
    }
    .await;
    match tried {
        Ok(()) => health.found(
            "store queue",
            Verdict::Pass,
            "a release wakes the first process of the queue",
        ),
        Err(error) => health.found(
            "store queue",
            Verdict::Warn,
            format!(
                "this user cannot keep the queue, so each release wakes all waiters: {}; grant \
                 SELECT, INSERT, UPDATE and DELETE on distributed_queue",
                error.message()
            ),
        ),
    }
}

/// The numbers of rows in the tables.
pub(crate) struct RowCounts {
    pub(crate) held: i64,
    pub(crate) free: i64,
    /// Rows whose lease has expired without a release.
    pub(crate) stale: i64,
    /// The time since the oldest stale row became stale, in microseconds.
    pub(crate) oldest_stale: Option<i64>,
    pub(crate) records: i64,
    pub(crate) tombstones: i64,
}

impl RowCounts {
    pub(crate) fn report(&self, health: &mut Health, reap_after: Duration) {
        let oldest = self
            .oldest_stale
            .map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)));
        let detail = format!(
            "{} held, {} free, {} stale{}; {} records, {} tombstones",
            self.held,
            self.free,
            self.stale,
            oldest.map_or_else(String::new, |age| format!(" (the oldest for {age:.0?})")),
            self.records,
            self.tombstones
        );
        // The limit is twice `reap_after`: the reaper runs four times in each `reap_after`, and a
        // suspended machine delays the reaper.
        let overdue = oldest.is_some_and(|age| age > reap_after * 2);
        let verdict = if overdue {
            Verdict::Warn
        } else {
            Verdict::Pass
        };
        health.found("rows", verdict, detail);
    }
}

#[cfg(all(test, feature = "postgres", feature = "tls"))]
mod tests {
    use std::sync::Arc;

    use distlock_backend_kit::{Credentials, SharedProvider};
    use distlock_core::SystemClock;

    use super::*;

    #[tokio::test]
    async fn a_password_of_a_provider_is_judged_too() {
        for (option, verdict, says) in [
            ("", Verdict::Pass, "through TLS"),
            ("?tls=disable", Verdict::Warn, "in clear"),
        ] {
            let url = format!("postgres://app@db.example/app{option}");
            let mut config = ServerConfig::from_url(&url).unwrap();
            let given = || async { Ok(Credentials::new("hunter2")) };
            config.provider = Some(SharedProvider::new(given));
            let login = Login::new(&config, Arc::new(SystemClock)).unwrap();
            let mut health = Health::new("PostgreSQL");
            report_password(&mut health, &config, &login).await;
            let found = &health.findings[0];
            assert_eq!(found.verdict, verdict, "{}", found.detail);
            assert!(found.detail.contains(says), "{}", found.detail);
        }
    }
}
