//! Examines all reachable primaries, and collects the findings.

use std::sync::Arc;

use distlock_core::{Health, Result, Verdict};
use redis::{ServerError, Value};

use crate::{
    config::{Endpoint, Topology},
    connection::{Connection, Connector},
    doctor::{
        server_report::{Arbiter, ServerReport},
        settings::{self, Finding},
    },
    error,
    format::keys::{Bucket, KeyLayout, SLOTS},
    routing::{Primaries, Router},
    scripts,
};

/// Examines every reachable primary.
///
/// # Errors
/// When no primary answers, or when one stops answering during the examination.
pub(crate) async fn examine(router: &Router) -> Result<Health> {
    let unserved = router.unserved().await?;
    let Primaries {
        connections,
        missing,
    } = router.primaries().await?;
    let several = connections.len() + missing.len() > 1;
    let addresses: Vec<_> = connections
        .iter()
        .map(|connection| Arc::clone(&connection.address))
        .collect();
    let mut health: Option<Health> = None;
    for connection in connections {
        let report = ServerReport::ask(&connection, Arbiter::of(router)).await?;
        let health = health.get_or_insert_with(|| {
            let mut health = Health::new(connection.server.version.clone());
            health.epoch = Some(router.epoch(&connection));
            health
        });
        let rights = rights(router, &connection).await?;
        for (check, verdict, detail) in report.findings().into_iter().chain([rights]) {
            let at = if several {
                format!("{}: ", connection.address)
            } else {
                String::new()
            };
            let detail = format!("{at}{detail}");
            match check {
                // Evicted keys leave the run id, and with it the epoch, as they are.
                "eviction" if verdict == Verdict::Fail => {
                    health.may_forget(check, verdict, detail);
                }
                "persistence" => health.loses(check, verdict, detail, report.loses()),
                _ => health.found(check, verdict, detail),
            }
        }
    }
    let mut health = health.unwrap_or_else(|| Health::new("Redis"));
    if let Some(sentinels) = router.sentinels() {
        let (all, naming) = sentinels.examine().await?;
        let (check, verdict, detail) = settings::sentinels(all, naming);
        health.found(check, verdict, detail);
    }
    password(&router.connector, &addresses, &mut health).await?;
    for (endpoint, error) in &missing {
        health.found(
            "slots",
            Verdict::Fail,
            format!(
                "{endpoint} cannot be reached: locks in its slots can be neither taken nor freed; \
                 start it, or have a replica take its place ({})",
                error.message()
            ),
        );
    }
    match unserved {
        None => {}
        Some(0) if !missing.is_empty() => {}
        Some(0) => health.found("slots", Verdict::Pass, "each has a server"),
        Some(unserved) => health.found(
            "slots",
            Verdict::Fail,
            format!(
                "nobody serves {unserved} of {SLOTS}: locks in them can be neither taken nor \
                 freed; repair the cluster with `redis-cli --cluster fix`"
            ),
        ),
    }
    Ok(health)
}

/// Adds the finding on whether passwords travel in clear to the primaries and the sentinels.
async fn password(
    connector: &Connector,
    primaries: &[Arc<str>],
    health: &mut Health,
) -> Result<()> {
    let config = connector.config();
    let mut hosts = Vec::new();
    if connector.credentials().current().await?.password.is_some() {
        let endpoints = primaries.iter().filter_map(|at| Endpoint::parse(at, 0));
        hosts.extend(endpoints.map(|endpoint| endpoint.host));
    }
    if let Topology::Sentinel { sentinels, .. } = &config.topology
        && let credentials = connector.sentinel_credentials().current().await?
        && credentials.password.is_some()
    {
        hosts.extend(sentinels.iter().map(|endpoint| endpoint.host.clone()));
    }
    let rule = config.password_rule(!hosts.is_empty());
    rule.examine(hosts.iter().map(String::as_str), health);
    Ok(())
}

/// Returns the finding on whether the user may run every command that locks and records need.
async fn rights(router: &Router, connection: &Connection) -> Result<Finding> {
    let check = "rights";
    let mut question = redis::cmd("EVAL");
    // The script gets no KEYS, so any server of a cluster can answer for all slots.
    question.arg(&scripts::RIGHTS.source).arg(0);
    let layout = KeyLayout::new(&router.connector.config().prefix);
    let mut key = Vec::new();
    layout.counter(Bucket::of(""), &mut key);
    question.arg(key).arg(u8::from(router.is_cluster()));
    Ok(match connection.send_one(&question).await? {
        Value::ServerError(refusal) if error::code_and_detail(&refusal).0 == "NOPERM" => (
            check,
            Verdict::Fail,
            "this user may not run EVAL: every operation is a script".into(),
        ),
        Value::ServerError(refusal) if is_unknown(&refusal) => renamed(check, "EVAL"),
        Value::Array(lists) => {
            let lists = redis::from_redis_value::<[Vec<String>; 2]>(Value::Array(lists));
            let [denied, unknown] = lists.unwrap_or_default();
            match (denied.is_empty(), unknown.is_empty()) {
                (_, false) => renamed(check, &unknown.join(", ")),
                (true, true) => (
                    check,
                    Verdict::Pass,
                    "this user may run every command that locks and records need".into(),
                ),
                (false, true) => (
                    check,
                    Verdict::Fail,
                    format!(
                        "this user may not run {} on keys that begin with {:?}: grant what the \
                         documentation of the Redis backend names",
                        denied.join(", "),
                        router.connector.config().prefix
                    ),
                ),
            }
        }
        Value::ServerError(refusal) => (
            check,
            Verdict::Unknown,
            format!(
                "the server does not tell what this user may do: {}",
                error::code_and_detail(&refusal).0
            ),
        ),
        _ => (
            check,
            Verdict::Unknown,
            "the server cannot tell what this user may do: Redis 7.0 and newer can".into(),
        ),
    })
}

/// Returns whether the refusal says that the command is unknown.
pub(super) fn is_unknown(refusal: &ServerError) -> bool {
    let (code, detail) = error::code_and_detail(refusal);
    code == "ERR" && detail.contains("unknown command")
}

fn renamed(check: &'static str, commands: &str) -> Finding {
    (
        check,
        Verdict::Fail,
        format!(
            "the server knows no {commands}: take the rename-command for it out of its \
             configuration, and keep it from others by ACL"
        ),
    )
}
