//! Tests of the alert rules of `deploy/prometheus-alerts.yaml`. Prometheus' own tool runs each rule
//! over a made-up trouble, with a scrape every 15 s and with a scrape every minute.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Output},
};

const RULES: &str = include_str!("../deploy/prometheus-alerts.yaml");
/// The page that explains the alerts.
const PAGE: &str = include_str!("../docs/operations.md");
/// The pages that list the metrics.
const METRICS: [&str; 2] = [
    include_str!("../docs/metrics.md"),
    include_str!("../docs/gateway.md"),
];

/// Seconds between two scrapes, and between two evaluations of the rules.
const INTERVALS: [u32; 2] = [15, 60];
const MINUTE: u32 = 60;
/// The trouble begins just after a scrape.
const BEGIN: u32 = 30 * MINUTE + 1;
/// The longest range of a rule, two scrapes that the range may start late, and the trouble's own
/// end.
const CLEARS: u32 = 18 * MINUTE;

#[derive(Clone, Copy)]
enum Kind {
    /// A counter that is 0 before its first event.
    Counter,
    /// A counter that does not exist before its first event.
    NewCounter,
    /// A gauge that is 0 unless there is trouble.
    Gauge,
}

/// A trouble, as a program reports it.
struct Trial {
    alert: &'static str,
    kind: Kind,
    metric: &'static str,
    /// The labels of the metric beside `job`.
    labels: &'static str,
    /// The labels of the alert beside `job`, if the rule does not keep those of the metric.
    alert_labels: Option<&'static str>,
    /// The value at the end of the trouble: events for a counter.
    value: u32,
    lasts: u32,
    /// The time from the begin of the trouble until the alert must fire, `None` for a trouble that
    /// is too small for the alert.
    fires: Option<u32>,
}

const fn trial(alert: &'static str, kind: Kind, metric: &'static str) -> Trial {
    Trial {
        alert,
        kind,
        metric,
        labels: "",
        alert_labels: None,
        value: 1,
        lasts: 1,
        fires: Some(2 * MINUTE),
    }
}

/// Every alert with the smallest trouble that it must tell, and with one that is too small.
const TRIALS: &[Trial] = &[
    trial("DistlockLockLost", Kind::Counter, "distlock_lost_total"),
    trial("DistlockLockLost", Kind::NewCounter, "distlock_lost_total"),
    // The store is away for as long as a lease: afterwards there is nothing left to renew.
    Trial {
        labels: r#"backend="redis",result="failed""#,
        value: 5,
        lasts: 20,
        ..trial(
            "DistlockRenewalsFail",
            Kind::Counter,
            "distlock_renew_total",
        )
    },
    Trial {
        labels: r#"backend="redis",result="renewed""#,
        value: 5,
        lasts: 20,
        fires: None,
        ..trial(
            "DistlockRenewalsFail",
            Kind::Counter,
            "distlock_renew_total",
        )
    },
    Trial {
        labels: r#"backend="redis",result="late""#,
        ..trial(
            "DistlockRenewalsLate",
            Kind::Counter,
            "distlock_renew_total",
        )
    },
    Trial {
        labels: r#"backend="redis",result="renewed""#,
        value: 5,
        lasts: 20,
        fires: None,
        ..trial(
            "DistlockRenewalsLate",
            Kind::Counter,
            "distlock_renew_total",
        )
    },
    Trial {
        labels: r#"backend="redis",result="unconfirmed""#,
        value: 20,
        lasts: 20 * MINUTE,
        fires: Some(17 * MINUTE),
        ..trial(
            "DistlockReleasesUnconfirmed",
            Kind::Counter,
            "distlock_release_total",
        )
    },
    Trial {
        labels: r#"backend="redis",result="unconfirmed""#,
        value: 5,
        lasts: 5 * MINUTE,
        fires: None,
        ..trial(
            "DistlockReleasesUnconfirmed",
            Kind::Counter,
            "distlock_release_total",
        )
    },
    Trial {
        labels: r#"backend="redis",result="error""#,
        alert_labels: Some(r#"backend="redis""#),
        value: 240,
        lasts: 20 * MINUTE,
        fires: Some(10 * MINUTE),
        ..trial(
            "DistlockAcquireErrors",
            Kind::Counter,
            "distlock_acquire_total",
        )
    },
    Trial {
        labels: r#"backend="redis",result="error""#,
        value: 100,
        lasts: 20 * MINUTE,
        fires: None,
        ..trial(
            "DistlockAcquireErrors",
            Kind::Counter,
            "distlock_acquire_total",
        )
    },
    Trial {
        labels: r#"backend="redis",result="timeout""#,
        alert_labels: Some(r#"backend="redis""#),
        value: 480,
        lasts: 40 * MINUTE,
        fires: Some(26 * MINUTE),
        ..trial(
            "DistlockContention",
            Kind::Counter,
            "distlock_acquire_total",
        )
    },
    Trial {
        labels: r#"backend="redis",result="timeout""#,
        value: 200,
        lasts: 40 * MINUTE,
        fires: None,
        ..trial(
            "DistlockContention",
            Kind::Counter,
            "distlock_acquire_total",
        )
    },
    trial(
        "DistlockNodeFenced",
        Kind::Counter,
        "distlock_node_fenced_total",
    ),
    trial(
        "DistlockDuplicateSessions",
        Kind::Counter,
        "distlock_duplicates_detected_total",
    ),
    Trial {
        lasts: 40 * MINUTE,
        fires: Some(32 * MINUTE),
        ..trial(
            "DistlockRevocationsPending",
            Kind::Gauge,
            "distlock_revocations_pending",
        )
    },
    Trial {
        lasts: 28 * MINUTE,
        fires: None,
        ..trial(
            "DistlockRevocationsPending",
            Kind::Gauge,
            "distlock_revocations_pending",
        )
    },
    Trial {
        labels: r#"result="unknown""#,
        value: 10,
        lasts: 10 * MINUTE,
        fires: Some(7 * MINUTE),
        ..trial("DistlockLoginsFail", Kind::Counter, "distlock_login_total")
    },
    Trial {
        labels: r#"result="denied""#,
        value: 10,
        lasts: 10 * MINUTE,
        fires: None,
        ..trial("DistlockLoginsFail", Kind::Counter, "distlock_login_total")
    },
    // A call in each sweep of 3 s fails.
    Trial {
        value: 200,
        lasts: 10 * MINUTE,
        fires: Some(8 * MINUTE),
        ..trial(
            "DistlockPeersUnreachable",
            Kind::Counter,
            "distlock_peer_calls_failed_total",
        )
    },
    // A node was killed. The others call it until its lease has ended.
    Trial {
        value: 600,
        lasts: 10,
        fires: None,
        ..trial(
            "DistlockPeersUnreachable",
            Kind::Counter,
            "distlock_peer_calls_failed_total",
        )
    },
    trial(
        "DistlockPeerCallsRefused",
        Kind::Counter,
        "distlock_peer_calls_refused_total",
    ),
    Trial {
        labels: r#"hook="push",reason="expired""#,
        ..trial(
            "DistlockHookEventsDropped",
            Kind::Counter,
            "distlock_hook_dropped_total",
        )
    },
];

impl Trial {
    /// The value that a scrape sees, `_` for a metric that does not exist yet.
    fn value_at(&self, second: u32) -> String {
        let Some(passed) = second.checked_sub(BEGIN) else {
            return match self.kind {
                Kind::NewCounter => "_",
                Kind::Counter | Kind::Gauge => "0",
            }
            .into();
        };
        let seen = match self.kind {
            Kind::Gauge if passed > self.lasts => 0,
            Kind::Gauge => self.value,
            Kind::Counter | Kind::NewCounter => (self.value * (passed + 1))
                .div_ceil(self.lasts)
                .min(self.value),
        };
        seen.to_string()
    }

    /// The last second of the trial.
    const fn end(&self) -> u32 {
        BEGIN + self.lasts + CLEARS
    }

    /// Writes the trial in the form of promtool.
    fn write(&self, interval: u32, file: &mut String) {
        let with_job = |labels| {
            [r#"job="app""#, labels]
                .join(",")
                .trim_end_matches(',')
                .to_owned()
        };
        let labels = with_job(self.labels);
        let scrapes = (0..=self.end()).step_by(interval as usize);
        let values: Vec<_> = scrapes.map(|second| self.value_at(second)).collect();
        let metric = self.metric;
        writeln!(file, "  - interval: {interval}s").unwrap();
        writeln!(file, "    input_series:").unwrap();
        writeln!(file, "      - series: '{metric}{{{labels}}}'").unwrap();
        writeln!(file, "        values: '{}'", values.join(" ")).unwrap();
        writeln!(file, "    alert_rule_test:").unwrap();
        let expected = match self.fires {
            Some(fires) => vec![
                (BEGIN - 1, false),
                (BEGIN + fires, true),
                (self.end(), false),
            ],
            None => (0..=self.end()).step_by(30).map(|at| (at, false)).collect(),
        };
        for (second, fires) in expected {
            writeln!(file, "      - eval_time: {second}s").unwrap();
            writeln!(file, "        alertname: {}", self.alert).unwrap();
            if fires {
                let labels = with_job(self.alert_labels.unwrap_or(self.labels));
                let labels = labels.replace('=', ": ").replace(',', ", ");
                writeln!(file, "        exp_alerts: [{{exp_labels: {{{labels}}}}}]").unwrap();
            }
        }
    }
}

/// The names of the alerts, in the order of the rules.
fn alerts() -> Vec<&'static str> {
    let names = RULES.split("alert: ").skip(1);
    let names = names.map(|rest| {
        rest.split(|c: char| !c.is_ascii_alphanumeric())
            .next()
            .unwrap()
    });
    names.collect()
}

/// Runs promtool in a folder with the rules.
fn promtool(folder: &Path, args: &[&str]) -> Output {
    fs::write(folder.join("rules.yml"), RULES).unwrap();
    let run = Command::new("promtool")
        .args(args)
        .current_dir(folder)
        .output();
    run.unwrap_or_else(|error| panic!("promtool (Debian: apt-get install prometheus): {error}"))
}

#[test]
fn the_rules_are_valid_and_the_table_explains_each_alert() {
    let folder = tempfile::tempdir().unwrap();
    let checked = promtool(folder.path(), &["check", "rules", "rules.yml"]);
    assert!(checked.status.success(), "{checked:?}");
    let explained: Vec<_> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `Distlock")?.split_once('`'))
        .map(|(name, _)| format!("Distlock{name}"))
        .collect();
    assert_eq!(explained, alerts());
}

#[test]
fn the_rules_name_metrics_that_the_pages_list() {
    let words = RULES.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let mut seen = 0;
    for metric in words.filter(|word| word.starts_with("distlock_")) {
        seen += 1;
        let [bare, labelled] = [format!("`{metric}`"), format!("`{metric}{{")];
        let listed = METRICS
            .iter()
            .any(|page| page.contains(&bare) || page.contains(&labelled));
        assert!(listed, "{metric}");
    }
    assert!(seen >= alerts().len(), "{seen} metrics");
}

#[test]
fn every_alert_fires_at_its_trouble_and_only_then_at_both_scrape_intervals() {
    for alert in alerts() {
        let tested = TRIALS
            .iter()
            .any(|it| it.alert == alert && it.fires.is_some());
        assert!(tested, "{alert} has no trial");
    }
    for trial in TRIALS {
        assert!(
            alerts().contains(&trial.alert),
            "{} is no alert",
            trial.alert
        );
    }
    let mut wrong = Vec::new();
    for interval in INTERVALS {
        let folder = tempfile::tempdir().unwrap();
        let mut file =
            format!("rule_files: [rules.yml]\nevaluation_interval: {interval}s\ntests:\n");
        for trial in TRIALS {
            trial.write(interval, &mut file);
        }
        fs::write(folder.path().join("tests.yml"), file).unwrap();
        let run = promtool(folder.path(), &["test", "rules", "tests.yml"]);
        if !run.status.success() {
            let text = [run.stdout, run.stderr].concat();
            wrong.push(format!("{interval} s: {}", String::from_utf8_lossy(&text)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
