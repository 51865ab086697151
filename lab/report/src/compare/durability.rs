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
    if store
        .promises
        .as_ref()
        .is_some_and(|it| it.reach == "process")
    {
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

    /// A store with findings, each a check and the text of its finding.
    fn store(findings: &[[&str; 2]]) -> StoreFacts {
        let finding = |[check, detail]: &[&str; 2]| Finding {
            check: (*check).into(),
            verdict: "pass".into(),
            detail: (*detail).into(),
        };
        StoreFacts {
            findings: findings.iter().map(finding).collect(),
            ..StoreFacts::default()
        }
    }

    #[test]
    fn durability_is_the_servers_own_report() {
        let appends = "append-only file, appendfsync everysec: a power cut may take the last one";
        let snapshots = "no append-only file, snapshots only: a restart forgets";
        let (first, second) = (
            "127.0.0.1:7001: append-only file, synced at every write",
            "[::1]:7002: append-only file, appendfsync everysec: a",
        );
        let flush = "innodb_flush_log_at_trx_commit";
        for (findings, said) in [
            (
                &[["persistence", appends], ["role", "primary"]][..],
                "append-only file, appendfsync everysec",
            ),
            (
                &[["fsync", "on"], ["synchronous_commit", "on"]],
                "synchronous_commit=on, fsync=on",
            ),
            (
                &[["synchronous_commit", "off: a crash may take back locks"]],
                "synchronous_commit=off",
            ),
            (
                &[["synchronous", "FULL: a commit is on the disk"]],
                "synchronous=FULL",
            ),
            (
                &[[flush, "a commit is on the disk"]],
                "innodb_flush_log_at_trx_commit: a commit is on the disk",
            ),
            (
                &[["persistence", first], ["persistence", second]],
                "append-only file, synced at every write, append-only file, appendfsync everysec",
            ),
            // Two groups of servers: one with equal settings, one with different ones.
            (
                &[["persistence", appends], ["persistence", appends]],
                "append-only file, appendfsync everysec",
            ),
            (
                &[["persistence", appends], ["persistence", snapshots]],
                "append-only file, appendfsync everysec, no append-only file, snapshots only",
            ),
        ] {
            assert_eq!(durability(&store(findings)).as_deref(), Some(said));
        }
    }

    #[test]
    fn the_setting_of_the_starting_tool_is_used_when_the_server_reports_none() {
        let mut set = store(&[["server", "serves as leader"]]);
        assert_eq!(durability(&set), None);
        set.durability = Some("forceSync=yes".into());
        assert_eq!(durability(&set).as_deref(), Some("forceSync=yes"));
        // The report of the server itself has precedence.
        set.findings = store(&[["fsync", "off: damage"]]).findings;
        assert_eq!(durability(&set).as_deref(), Some("fsync=off"));
    }
}
