//! `health`: what is wrong at each member, its marker and its clock, and what the loss of members
//! does.

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::add_health_of;
use distlock_core::{Error, ErrorKind, Health, LockName, Result, Verdict, at_most};
use futures_util::future::join_all;

use crate::{
    marker::{Standing, clock_limit},
    shared::Shared,
};

/// The longest time that an examination waits for one member.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a member says about itself.
struct Told {
    own: Health,
    standing: Standing,
    /// How far its clock is ahead of the time since boot of this machine, if it votes. The
    /// difference between the values of two members is that of their clocks.
    ahead: Option<Duration>,
}

pub(crate) async fn health(shared: &Arc<Shared>) -> Result<Health> {
    let members = shared.members.all().len();
    let mut health = Health::new(format!("quorum of {members} members"));
    health.epoch = Some(shared.epoch());
    let told = join_all((0..members).map(|at| member(shared, at))).await;
    let (mut voting, mut failed, mut clocks) = (0_usize, None, Vec::new());
    for (at, told) in told.into_iter().enumerate() {
        let name = shared.member(at).name();
        let (own, standing) = match told {
            Ok(told) => {
                clocks.extend(told.ahead.map(|ahead| (ahead, name)));
                (told.own, told.standing)
            }
            Err(error) => {
                health.found("member", Verdict::Warn, error.to_string());
                failed = Some(error);
                continue;
            }
        };
        add_health_of(&mut health, name, own);
        let (verdict, detail) = match standing {
            Standing::Votes(_) => {
                voting += 1;
                (Verdict::Pass, "votes".to_owned())
            }
            Standing::Waits(left) => (
                Verdict::Warn,
                format!(
                    "votes in {} s: it may have forgotten locks that are still held",
                    left.as_secs() + 1
                ),
            ),
            Standing::Blank => (
                Verdict::Warn,
                "has no marker, and the next client admits it again".to_owned(),
            ),
            Standing::Restarted => (
                Verdict::Warn,
                "was restarted or lost its locks, and the next client admits it again".to_owned(),
            ),
            Standing::Foreign(difference) => (
                Verdict::Fail,
                format!("does not vote, because its marker does not fit: {difference}"),
            ),
        };
        health.found("vote", verdict, format!("{name}: {detail}"));
    }
    if voting == 0
        && let Some(error) = failed
    {
        return Err(error);
    }
    if let (Some(first), Some(last)) = (clocks.iter().min(), clocks.iter().max()) {
        let (apart, limit) = (last.0 - first.0, clock_limit(shared.agreement.max_lease));
        let verdict = match () {
            () if apart > limit => Verdict::Fail,
            () if apart > limit / 4 => Verdict::Warn,
            () => Verdict::Pass,
        };
        let detail = format!(
            "the clock of {} is {} ms ahead of that of {}; members that vote together may be {} \
             ms apart (a quarter of max_lease)",
            last.1,
            apart.as_millis(),
            first.1,
            limit.as_millis()
        );
        health.found("clocks", verdict, detail);
    }
    let majority = shared.majority();
    let (verdict, detail) = match voting.checked_sub(majority) {
        None => (
            Verdict::Fail,
            format!("{voting} of {members} members vote, and {majority} must: no lock is granted"),
        ),
        Some(0) => (
            Verdict::Warn,
            format!("{voting} of {members} members vote: the loss of one more stops all locks"),
        ),
        Some(spare) => (
            Verdict::Pass,
            format!(
                "{voting} of {members} members vote: the loss of {spare} costs nothing, the loss \
                 of {} stops all locks",
                spare + 1
            ),
        ),
    };
    health.found("majority", verdict, detail);
    Ok(health)
}

async fn member(shared: &Arc<Shared>, at: usize) -> Result<Told> {
    let member = shared.member(at);
    let telling = async {
        let (handle, sent) = member.begin()?;
        let own = handle.lock.health().await?;
        let epoch = handle.lock.inspect(&LockName::new("quorum")?).await?.epoch;
        sent.answered();
        let unknown = || Error::new(ErrorKind::Unsupported, "its locks do not tell their epoch");
        let standing = shared.standing(at, &epoch.ok_or_else(unknown)?).await?;
        let ahead = match standing {
            Standing::Votes(clock) => clock.checked_sub(shared.clock.now().since_boot()),
            _ => None,
        };
        Ok(Told {
            own,
            standing,
            ahead,
        })
    };
    let late = || {
        let problem = format!("it did not answer within {PATIENCE:?}");
        Err(member.of_this(Error::new(ErrorKind::Unavailable, problem)))
    };
    at_most(&*shared.clock, PATIENCE, telling)
        .await
        .unwrap_or_else(late)
}
