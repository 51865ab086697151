//! `health`: each member's own findings, its marker, and what the loss of members does.

use std::sync::Arc;

use distlock_core::{Error, Health, LockName, Result, Verdict};
use futures_util::future::join_all;

use crate::{marker::Standing, shared::Shared};

pub(crate) async fn health(shared: &Arc<Shared>) -> Result<Health> {
    let members = shared.members.all().len();
    let mut health = Health::new(format!("quorum of {members} members"));
    health.epoch = Some(shared.epoch());
    let told = join_all((0..members).map(|at| member(shared, at))).await;
    let (mut voting, mut failed) = (0_usize, None);
    for (at, told) in told.into_iter().enumerate() {
        let name = shared.member(at).name();
        let (own, standing) = match told {
            Ok(told) => told,
            Err(error) => {
                health.found("member", Verdict::Warn, format!("{name}: {error}"));
                failed = Some(error);
                continue;
            }
        };
        for finding in own.findings {
            let detail = format!("{name} ({}): {}", own.server, finding.detail);
            health.found(finding.check, finding.verdict, detail);
        }
        let (verdict, detail) = match standing {
            Standing::Votes(_) => {
                voting += 1;
                (Verdict::Pass, "votes".to_owned())
            }
            Standing::Waits(left) => (Verdict::Warn, format!("votes in {} s", left.as_secs() + 1)),
            Standing::Blank => (
                Verdict::Warn,
                "has no marker, and is admitted again".to_owned(),
            ),
            Standing::Restarted => (
                Verdict::Warn,
                "lost its locks, and is admitted again".to_owned(),
            ),
            Standing::Foreign(difference) => (Verdict::Fail, difference.to_owned()),
        };
        health.found("vote", verdict, format!("{name}: {detail}"));
    }
    if voting == 0
        && let Some(error) = failed
    {
        return Err(error);
    }
    let spare = voting.saturating_sub(shared.majority());
    let verdict = match (voting >= shared.majority(), spare) {
        (false, _) => Verdict::Fail,
        (true, 0) => Verdict::Warn,
        (true, _) => Verdict::Pass,
    };
    let detail = if voting >= shared.majority() {
        format!("{voting} of {members} members vote; {spare} more may fail before locks stop")
    } else {
        format!(
            "{voting} of {members} members vote, and {} must",
            shared.majority()
        )
    };
    health.found("majority", verdict, detail);
    Ok(health)
}

async fn member(shared: &Arc<Shared>, at: usize) -> Result<(Health, Standing)> {
    let (handle, sent) = shared.member(at).begin()?;
    let own = handle.lock.health().await?;
    let epoch = handle.lock.inspect(&LockName::new("quorum")?).await?.epoch;
    sent.answered();
    let unknown = || Error::new(distlock_core::ErrorKind::Unsupported, "no epoch is told");
    let standing = shared.standing(at, &epoch.ok_or_else(unknown)?).await?;
    Ok((own, standing))
}
