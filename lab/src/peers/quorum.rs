//! A quorum of Redis servers beside one Redis server: with all members, with one that is dead, and
//! with one that does not answer.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use distlock::Verdict;
use distlock_core::Store;
use distlock_harness::eventually_async;
use distlock_report::{Arm, LockerSubject, Options, Report, Workload, measure};

use crate::{
    peers::{redis, target::Link},
    quorum::{Lost, QuorumServers},
};

/// The time in which all members of a new quorum vote.
const SOON: Duration = Duration::from_secs(10);

/// Measures one server, and a quorum of this many members for each loss. The servers are private
/// ones without persistence. `delay` is added to each direction.
pub(crate) async fn run(
    workload: Workload,
    options: Options,
    members: usize,
    delay: Option<Duration>,
) -> anyhow::Result<Report> {
    options.checked_callers(workload)?;
    let single = redis::start_private(delay)?;
    let store = redis::open(single.url()).await?;
    let mut arms = vec![Arm::new("distlock-redis", LockerSubject::new(store.lock()))];
    let mut quorums = Vec::new();
    for lost in Lost::ALL {
        let mut servers = QuorumServers::start(members, &["appendonly no"])?;
        let links = delay.map(|delay| {
            servers
                .addresses()
                .map(|to| Link::start(to, delay))
                .collect()
        });
        let links: Vec<Link> = links.transpose()?.unwrap_or_default();
        let url = match &*links {
            [] => servers.url(),
            links => servers.url_at(links.iter().map(Link::address)),
        };
        QuorumServers::init(&url).await?;
        let store = distlock::open(&*url).await?;
        wait_for_votes(&store, members).await?;
        let subject = LockerSubject::new(store.backend());
        subject.locker().ready().await?;
        // The client has connections to the member, as at a loss in the middle of its work.
        servers.lose(lost)?;
        arms.push(Arm::new(format!("quorum{}", lost.suffix()), subject));
        quorums.push((servers, links, store));
    }
    let report = measure(&arms, workload, &options).await?;
    ensure!(!report.has_errors(), "cycles failed: {report}");
    Ok(report)
}

/// Waits until the client has connections to all members.
async fn wait_for_votes(store: &Store, members: usize) -> anyhow::Result<()> {
    let all_vote = || async {
        let health = store.backend().health().await.ok()?;
        let votes = health
            .findings
            .iter()
            .filter(|it| it.check == "vote" && it.verdict == Verdict::Pass);
        (votes.count() == members).then_some(())
    };
    let waited = eventually_async("all members vote", SOON, all_vote).await;
    waited.context("open a quorum")
}
