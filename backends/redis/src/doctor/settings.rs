//! Judges single settings by their effect on locks.

use std::time::Duration;

use distlock_core::Verdict;

use crate::connection::InfoReply;

/// A check, its verdict, and the detail with its remedy.
pub(super) type Finding = (&'static str, Verdict, String);

/// The largest size in bytes of unsent answers that the server buffers for one client. Full batches
/// reach this size if they find every lock held, each with a holder and a meta of maximum length.
/// If the server's limit is lower, the server may disconnect the client.
const ANSWERS: u64 = 32 * 1024 * 1024;

/// The smallest number of tracked keys without a warning.
const REMEMBERED: u64 = 10_000;

/// Returns the finding for a setting that the server does not report. Some hosted servers omit
/// settings.
pub(super) fn not_told(check: &'static str, settings: &str) -> Finding {
    (
        check,
        Verdict::Unknown,
        format!("the server does not tell {settings}: ask the administrator"),
    )
}

/// Returns the finding on whether enough sentinels answer.
pub(super) fn sentinels(all: usize, naming: usize) -> Finding {
    let check = "sentinels";
    let needed = all / 2 + 1;
    let named = format!("{naming} of {all} name this primary, and locks need {needed}");
    if naming < all {
        let more = "with each one that does not answer, the majority is closer to its end; start \
                    it, or have the others forget it with SENTINEL RESET";
        return (check, Verdict::Warn, format!("{named}: {more}"));
    }
    if all < 3 {
        let more = "when one of them is gone, nothing is locked or renewed; run three or more, \
                    each on its own machine";
        return (check, Verdict::Warn, format!("{named}: {more}"));
    }
    (check, Verdict::Pass, named)
}

pub(super) fn eviction(memory: Option<&str>, policy: Option<&str>) -> Finding {
    let check = "eviction";
    match (memory, policy) {
        (_, Some("noeviction")) => (
            check,
            Verdict::Pass,
            "noeviction: a full server refuses instead of forgetting".into(),
        ),
        (Some("" | "0"), _) => (
            check,
            Verdict::Pass,
            format!(
                "{}, and without a limit of memory nothing is evicted",
                policy.unwrap_or("the policy is unknown")
            ),
        ),
        (Some(_), Some(policy)) => (
            check,
            Verdict::Fail,
            format!(
                "{policy}: held locks vanish when memory is short, and two may hold one lock then; \
                 set maxmemory-policy noeviction"
            ),
        ),
        _ => not_told(check, "maxmemory and maxmemory-policy"),
    }
}

/// Returns the finding on whether the server has free memory, by its own numbers.
pub(super) fn memory(info: &InfoReply) -> Finding {
    let check = "memory";
    let number = |field| info.get(field).and_then(|value| value.parse::<u64>().ok());
    let (Some(used), Some(most)) = (number("used_memory"), number("maxmemory")) else {
        return (check, Verdict::Unknown, "this user may not run INFO".into());
    };
    if most == 0 {
        let detail = "it has no limit of its own (maxmemory 0)";
        return (check, Verdict::Pass, detail.into());
    }
    // The buffers of replicas and of the append-only file do not count towards the limit.
    let used = used.saturating_sub(number("mem_not_counted_for_evict").unwrap_or(0));
    let policy = info.get("maxmemory_policy").unwrap_or("noeviction");
    let evicts = policy != "noeviction" && number("evicted_keys").is_some_and(|keys| keys > 0);
    let state = format!("{used} of {most} bytes (maxmemory) are used");
    // Before each command, a server that evicts does so until its memory is below the limit. So its
    // memory is never seen above the limit.
    let is_nearly_full = used > most / 10 * 9;
    if used > most {
        let more =
            "nothing is locked, though locks are renewed and freed; free memory or raise maxmemory";
        (check, Verdict::Fail, format!("{state}: {more}"))
    } else if is_nearly_full && evicts {
        let more = "keys are evicted, held locks among them; set maxmemory-policy noeviction and \
                    raise maxmemory";
        (check, Verdict::Fail, format!("{state}, {policy}: {more}"))
    } else if is_nearly_full {
        let more = "a full server locks nothing; free memory or raise maxmemory";
        (check, Verdict::Warn, format!("{state}: {more}"))
    } else {
        (check, Verdict::Pass, state)
    }
}

/// Returns how long before a crash a write may be lost with it.
pub(super) fn loses(appends: Option<&str>, sync: Option<&str>) -> Duration {
    match (appends, sync) {
        // `persistence` says that it is not told.
        (None, _) | (Some("yes"), Some("always") | None) => Duration::ZERO,
        // Redis syncs each second, and puts off a write for two at most while a sync is running
        // (`flushAppendOnlyFile` in src/aof.c).
        (Some("yes"), Some("everysec")) => Duration::from_secs(2),
        (Some(_), _) => Duration::MAX,
    }
}

pub(super) fn persistence(
    appends: Option<&str>,
    sync: Option<&str>,
    save: Option<&str>,
) -> Finding {
    let check = "persistence";
    match (appends, sync) {
        (None, _) => not_told(check, "appendonly"),
        (Some("yes"), Some("always")) => (
            check,
            Verdict::Pass,
            "append-only file, synced at every write".into(),
        ),
        (Some("yes"), sync) => (
            check,
            Verdict::Pass,
            format!(
                "append-only file, appendfsync {}: a power cut may take the last second with it; \
                 tokens rise all the same",
                sync.unwrap_or("unknown")
            ),
        ),
        (Some(_), _) => {
            // After the crash or the restart, which may be that of an upgrade, the next holder gets
            // the lock while the previous one still trusts its lease.
            let (what, forgets) = match save {
                Some("") => ("no snapshots either", "every restart forgets"),
                Some(_) => ("snapshots only", "a crash forgets"),
                None => ("snapshots at most", "a crash forgets"),
            };
            (
                check,
                Verdict::Fail,
                format!(
                    "no append-only file, {what}: {forgets} held locks, and two may hold one lock \
                     then; set appendonly yes"
                ),
            )
        }
    }
}

/// Returns the finding on whether a demoted primary stops granting. The clients of a demoted
/// primary stay connected to it.
pub(super) fn demotion(info: &InfoReply, read_only: Option<&str>) -> Finding {
    let check = "demotion";
    match read_only {
        None => not_told(check, "replica-read-only"),
        // In a cluster, a demoted primary redirects its clients.
        Some("no") if info.get("cluster_enabled") != Some("1") => (
            check,
            Verdict::Fail,
            "replica-read-only no: a primary that is made a replica goes on granting locks, of \
             which the new primary knows nothing; set replica-read-only yes"
                .into(),
        ),
        Some(_) => (
            check,
            Verdict::Pass,
            "a primary that is made a replica grants nothing".into(),
        ),
    }
}

/// Returns the finding on whether the server may disconnect a client because of unsent data.
pub(super) fn buffers(output: Option<&str>, clients: Option<&str>) -> Finding {
    let check = "buffers";
    let Some(output) = output else {
        return not_told(check, "client-output-buffer-limit");
    };
    // `normal HARD SOFT SECONDS replica ..`
    let mut words = output.split_whitespace();
    let normal = words.by_ref().skip_while(|word| *word != "normal").skip(1);
    let of_output = normal
        .take(2)
        .map(|limit| ("client-output-buffer-limit", limit));
    // A limit in percent is not parsed: the memory that it refers to is rarely small enough to
    // matter.
    let of_clients = clients.map(|limit| ("maxmemory-clients", limit));
    let least = of_output
        .chain(of_clients)
        .filter_map(|(setting, limit)| Some((limit.parse::<u64>().ok()?, setting)))
        .filter(|(limit, _)| (1..ANSWERS).contains(limit))
        .min();
    match least {
        Some((limit, setting)) => (
            check,
            Verdict::Warn,
            format!(
                "{setting} {limit}: the server disconnects a client for which it buffers more than \
                 that, and the outcome of up to a thousand operations stays unknown; set \
                 client-output-buffer-limit \"normal 0 0 0\" and maxmemory-clients 0, or no less \
                 than 32mb"
            ),
        ),
        None => (
            check,
            Verdict::Pass,
            "the limits leave room for full batches".into(),
        ),
    }
}

/// Returns the finding on whether the server can track the keys of all waiters.
pub(super) fn pushes(info: &InfoReply, most: Option<&str>) -> Finding {
    let check = "pushes";
    let Some(most) = most.and_then(|most| most.parse::<u64>().ok()) else {
        return not_told(check, "tracking-table-max-keys");
    };
    let now = info.get("tracking_total_keys");
    let now = now.and_then(|now| now.parse::<u64>().ok()).unwrap_or(0);
    if most != 0 && (most < REMEMBERED || now >= most) {
        return (
            check,
            Verdict::Warn,
            format!(
                "tracking-table-max-keys {most}, and {now} keys are tracked for all clients \
                 together: above the limit, waiters are woken for nothing and ask ten times a \
                 second; set tracking-table-max-keys 1000000 or more"
            ),
        );
    }
    (
        check,
        Verdict::Pass,
        "there is room to track the keys of all waiters".into(),
    )
}
