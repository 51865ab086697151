//! Examines all reachable primaries, and collects the findings.

use std::sync::Arc;

use distlock_core::{Health, Result, Verdict};

use crate::{
    config::{Endpoint, Topology},
    connection::Connector,
    doctor::{
        rights,
        server_report::{Arbiter, ServerReport},
        settings,
    },
    format::keys::SLOTS,
    routing::{Primaries, Router},
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
        let rights = rights::rights(router, &connection).await?;
        for (check, verdict, detail) in report.findings().into_iter().chain([rights]) {
            let at = if several {
                format!("{}: ", connection.address)
            } else {
                String::new()
            };
            health.found(check, verdict, format!("{at}{detail}"));
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
