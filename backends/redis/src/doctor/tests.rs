use std::time::Duration;

use distlock_core::Verdict;
use redis::Value;

use crate::{
    connection::InfoReply,
    doctor::{
        server_report::{Arbiter, ServerReport},
        settings,
    },
};

fn report(info: &str, settings: Option<&[(&str, &str)]>) -> Vec<(&'static str, Verdict)> {
    let report = ServerReport {
        arbiter: Arbiter::Sentinels,
        info: InfoReply::read(Some(Value::BulkString(info.as_bytes().to_vec()))),
        settings: settings.ok_or("not told").map(|pairs| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        }),
    };
    let findings = report.findings();
    findings
        .into_iter()
        .map(|(check, verdict, _)| (check, verdict))
        .collect()
}

#[test]
fn a_safe_server_passes() {
    let info = "redis_version:7.0.15\nrole:master\nconnected_slaves:1\nrdb_last_bgsave_status:ok\n\
         used_memory:10\nmaxmemory:100\nmaxmemory_policy:noeviction\n";
    let settings = [
        ("maxmemory", "100"),
        ("maxmemory-policy", "noeviction"),
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("min-replicas-to-write", "1"),
        ("replica-read-only", "yes"),
        ("client-output-buffer-limit", "normal 0 0 0 slave 1 1 1"),
        ("maxmemory-clients", "0"),
        ("tracking-table-max-keys", "1000000"),
    ];
    let findings = report(info, Some(&settings));
    assert_eq!(findings.len(), 10);
    assert!(
        findings
            .iter()
            .all(|(_, verdict)| *verdict == Verdict::Pass),
        "{findings:?}"
    );
}

#[test]
fn each_unsafe_setting_is_reported() {
    let info = "redis_version:6.0.1\nrole:slave\nconnected_slaves:2\naof_last_write_status:err\n\
         used_memory:95\nmaxmemory:100\nmaxmemory_policy:volatile-ttl\nevicted_keys:0\n";
    let settings = [
        ("maxmemory", "100"),
        ("maxmemory-policy", "volatile-ttl"),
        ("appendonly", "no"),
        ("min-replicas-to-write", "0"),
        ("replica-read-only", "no"),
        ("client-output-buffer-limit", "normal 0 1048576 60"),
        ("tracking-table-max-keys", "10"),
    ];
    assert_eq!(
        report(info, Some(&settings)),
        [
            ("version", Verdict::Fail),
            ("role", Verdict::Fail),
            ("eviction", Verdict::Fail),
            ("persistence", Verdict::Fail),
            ("replicas", Verdict::Fail),
            ("demotion", Verdict::Fail),
            ("buffers", Verdict::Warn),
            ("pushes", Verdict::Warn),
            ("disk", Verdict::Fail),
            ("memory", Verdict::Warn),
        ]
    );
}

#[test]
fn a_server_without_memory_fails_whether_it_refuses_or_evicts() {
    for (used, most, policy, evicted, expected) in [
        (1 << 40, 0, "noeviction", 0, Verdict::Pass),
        (90, 100, "noeviction", 0, Verdict::Pass),
        (95, 100, "noeviction", 0, Verdict::Warn),
        // If nothing is left to evict, the server refuses writes, like a server without eviction.
        (101, 100, "noeviction", 0, Verdict::Fail),
        (101, 100, "volatile-lru", 0, Verdict::Fail),
        (95, 100, "allkeys-lru", 0, Verdict::Warn),
        (95, 100, "allkeys-lru", 1, Verdict::Fail),
        // One earlier eviction must not fail the check for ever.
        (50, 100, "allkeys-lru", 1, Verdict::Pass),
    ] {
        let info = |beside: u64| {
            let info = format!(
                "used_memory:{}\nmaxmemory:{most}\nmaxmemory_policy:{policy}\n\
                 evicted_keys:{evicted}\nmem_not_counted_for_evict:{beside}\n",
                used + beside
            );
            InfoReply::read(Some(Value::BulkString(info.into_bytes())))
        };
        for beside in [0, 7] {
            let (_, verdict, detail) = settings::memory(&info(beside));
            assert_eq!(verdict, expected, "{detail}");
        }
    }
}

#[test]
fn an_unreadable_setting_is_reported_as_unknown() {
    // Some hosted servers let every user read the settings, and omit some of them.
    for settings in [None, Some(&[][..])] {
        let findings = report("", settings);
        assert_eq!(findings.len(), 10);
        assert!(
            findings
                .iter()
                .all(|(_, verdict)| *verdict == Verdict::Unknown),
            "{findings:?}"
        );
    }
}

#[test]
fn missing_settings_are_unknown_where_they_matter() {
    let info = |replicas| {
        format!(
            "redis_version:7.0.15\nrole:master\nconnected_slaves:{replicas}\n\
             aof_last_write_status:ok\n"
        )
    };
    let verdict = |replicas, settings: &[_], check| {
        let findings = report(&info(replicas), Some(settings));
        let found = findings.into_iter().find(|(found, _)| *found == check);
        found.map(|(_, verdict)| verdict).unwrap()
    };
    for (replicas, settings, check, expected) in [
        (0, &[][..], "replicas", Verdict::Pass),
        (1, &[], "replicas", Verdict::Unknown),
        (
            1,
            &[("min-replicas-to-write", "0")],
            "replicas",
            Verdict::Fail,
        ),
        (0, &[("maxmemory", "0")], "eviction", Verdict::Pass),
        (0, &[("maxmemory", "1")], "eviction", Verdict::Unknown),
        (
            0,
            &[("maxmemory-policy", "noeviction")],
            "eviction",
            Verdict::Pass,
        ),
        (
            0,
            &[("maxmemory-policy", "allkeys-lru")],
            "eviction",
            Verdict::Unknown,
        ),
        (
            0,
            &[("maxmemory-policy", "allkeys-lru"), ("maxmemory", "1")],
            "eviction",
            Verdict::Fail,
        ),
        (0, &[("save", "3600 1")], "persistence", Verdict::Unknown),
        (0, &[("appendonly", "no")], "persistence", Verdict::Fail),
        (
            0,
            &[("appendonly", "no"), ("save", "3600 1")],
            "persistence",
            Verdict::Fail,
        ),
        (
            0,
            &[("appendonly", "no"), ("save", "")],
            "persistence",
            Verdict::Fail,
        ),
        (0, &[("appendonly", "yes")], "persistence", Verdict::Pass),
        (
            0,
            &[
                ("client-output-buffer-limit", "normal 0 0 0"),
                ("maxmemory-clients", "1048576"),
            ],
            "buffers",
            Verdict::Warn,
        ),
        (
            0,
            &[("client-output-buffer-limit", "normal 67108864 0 0")],
            "buffers",
            Verdict::Pass,
        ),
        (
            0,
            &[("tracking-table-max-keys", "0")],
            "pushes",
            Verdict::Pass,
        ),
    ] {
        assert_eq!(
            verdict(replicas, settings, check),
            expected,
            "{check}: {settings:?}"
        );
    }
}

#[test]
fn what_a_crash_takes_depends_on_the_append_only_file_and_its_syncs() {
    let lost = settings::loses;
    assert_eq!(lost(Some("yes"), Some("always")), Duration::ZERO);
    assert_eq!(lost(Some("yes"), Some("everysec")), Duration::from_secs(2));
    assert_eq!(lost(Some("yes"), Some("no")), Duration::MAX);
    assert_eq!(lost(Some("no"), Some("always")), Duration::MAX);
    // The server does not tell.
    assert_eq!(lost(None, None), Duration::ZERO);
}
