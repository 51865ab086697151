//! The durability under which a store was measured: the settings that the server reported in the
//! same run, or the setting of the tool that started the server. Nothing is assumed from the
//! product.

use crate::compare::{Finding, StoreFacts};

/// The checks of `doctor` that show whether a granted lock survives a crash of the server.
const CHECKS: [&str; 6] = [
    "persistence",
    "synchronous_commit",
    "fsync",
    "innodb_flush_log_at_trx_commit",
    "sync_binlog",
    "synchronous",
];

/// The durability in words, such as `synchronous_commit=on, fsync=on`. `None` when this run did not
/// record it.
#[must_use]
pub fn durability(store: &StoreFacts) -> Option<String> {
    let mut said: Vec<String> = Vec::new();
    for finding in CHECKS.iter().flat_map(|check| findings_of(store, check)) {
        let setting = describe_setting(finding);
        // Each server of a group reports its own setting. Equal settings are shown once.
        if !said.contains(&setting) {
            said.push(setting);
        }
    }
    if !said.is_empty() {
        return Some(said.join(", "));
    }
    if store.is_in_process() {
        return Some("in the memory of one process".into());
    }
    store.durability.clone()
}

/// The findings of one check.
fn findings_of<'a>(store: &'a StoreFacts, check: &'a str) -> impl Iterator<Item = &'a Finding> {
    store.findings.iter().filter(move |it| it.check == check)
}

/// Describes a setting as `check=value`. The text after the colon of a finding explains the value,
/// and is cut off. In a group of servers, each finding begins with the address of its server, which
/// is cut off too.
fn describe_setting(finding: &Finding) -> String {
    let said = match finding.detail.split_once(": ") {
        Some((address, said)) if address.contains(':') && !address.contains(' ') => said,
        _ => &finding.detail,
    };
    let value = said.split_once(": ").map_or(said, |(value, _)| value);
    match finding.check.as_str() {
        "persistence" => value.to_owned(),
        check if value.contains(' ') => format!("{check}: {value}"),
        check => format!("{check}={value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(findings: &[(&str, &str, &str)]) -> StoreFacts {
        StoreFacts {
            findings: findings
                .iter()
                .map(|(check, verdict, detail)| Finding {
                    check: (*check).into(),
                    verdict: (*verdict).into(),
                    detail: (*detail).into(),
                })
                .collect(),
            ..StoreFacts::default()
        }
    }

    #[test]
    fn durability_is_the_servers_own_report() {
        let appends =
            "append-only file, appendfsync everysec: a power cut may take the last second";
        for (findings, said) in [
            (
                &[
                    ("persistence", "pass", appends),
                    ("role", "pass", "primary"),
                ][..],
                Some("append-only file, appendfsync everysec"),
            ),
            (
                &[
                    ("fsync", "pass", "on"),
                    ("synchronous_commit", "pass", "on"),
                ],
                Some("synchronous_commit=on, fsync=on"),
            ),
            (
                &[(
                    "synchronous_commit",
                    "fail",
                    "off: a crash may take back locks",
                )],
                Some("synchronous_commit=off"),
            ),
            (
                &[("synchronous", "pass", "FULL: a commit is on the disk")],
                Some("synchronous=FULL"),
            ),
            (
                &[(
                    "innodb_flush_log_at_trx_commit",
                    "pass",
                    "a commit is on the disk",
                )],
                Some("innodb_flush_log_at_trx_commit: a commit is on the disk"),
            ),
            (
                &[
                    (
                        "persistence",
                        "pass",
                        "127.0.0.1:7001: append-only file, synced at every write",
                    ),
                    (
                        "persistence",
                        "pass",
                        "[::1]:7002: append-only file, appendfsync everysec: a",
                    ),
                ],
                Some(
                    "append-only file, synced at every write, append-only file, appendfsync \
                     everysec",
                ),
            ),
            // Two groups of servers: one with equal settings, one with different ones.
            (
                &[
                    ("persistence", "pass", appends),
                    ("persistence", "pass", appends),
                ],
                Some("append-only file, appendfsync everysec"),
            ),
            (
                &[
                    ("persistence", "pass", appends),
                    (
                        "persistence",
                        "warn",
                        "no append-only file, snapshots only: a restart forgets",
                    ),
                ],
                Some("append-only file, appendfsync everysec, no append-only file, snapshots only"),
            ),
            (&[("server", "pass", "serves as leader")], None),
        ] {
            assert_eq!(durability(&store(findings)).as_deref(), said);
        }
    }

    #[test]
    fn the_setting_of_the_starting_tool_is_used_when_the_server_reports_none() {
        let mut set = store(&[("server", "pass", "serves as leader")]);
        set.durability = Some("forceSync=yes".into());
        assert_eq!(durability(&set).as_deref(), Some("forceSync=yes"));
        // The report of the server itself has precedence.
        set.findings = store(&[("fsync", "fail", "off: damage")]).findings;
        assert_eq!(durability(&set).as_deref(), Some("fsync=off"));
    }
}
