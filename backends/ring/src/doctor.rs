//! `health`: the view, the ring store, and what is wrong at each member.

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::add_health_of;
use distlock_core::{Error, ErrorKind, Health, Result, Verdict, at_most};
use futures_util::future::join_all;

use crate::shared::Shared;

/// The longest time that an examination waits for one member.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn health(shared: &Arc<Shared>) -> Result<Health> {
    let now = shared.clock.now();
    let seen = shared.views.usable(now)?;
    let mut health = Health::new(format!("ring of {} members", seen.view.members.len()));
    health.epoch = Some(seen.view.epoch());
    let left = seen.view.pending.iter().map(|it| seen.left(it, now)).max();
    let (verdict, detail) = match left.filter(|left| !left.is_zero()) {
        None => (Verdict::Pass, "no name moves".to_owned()),
        Some(left) => (
            Verdict::Warn,
            format!(
                "names that move are free in {} s; until then they cannot be locked",
                left.as_secs() + 1
            ),
        ),
    };
    let detail = format!("view {}: {detail}", seen.view.number);
    health.found("view", verdict, detail);
    let ring_store = shared.ring_store.lock.health().await?;
    add_health_of(&mut health, "ring store", ring_store);
    let told = seen
        .view
        .members
        .iter()
        .map(|name| async move { (name, member(shared, name).await) });
    for (name, told) in join_all(told).await {
        match told {
            Ok(own) => add_health_of(&mut health, name, own),
            Err(error) => health.found(
                "member",
                Verdict::Fail,
                format!("{error}; its names cannot be locked"),
            ),
        }
    }
    Ok(health)
}

async fn member(shared: &Shared, name: &str) -> Result<Health> {
    let at = shared.place_of(name)?;
    let telling = shared.ask(at, async |to| to.lock.health().await);
    let late = || {
        let problem = format!("it did not answer within {PATIENCE:?}");
        let error = Error::new(ErrorKind::Unavailable, problem);
        Err(shared.member(at).of_this(error))
    };
    at_most(&*shared.clock, PATIENCE, telling)
        .await
        .unwrap_or_else(late)
}
