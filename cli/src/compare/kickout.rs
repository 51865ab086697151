//! The kick-out flow: what a takeover takes, and how many logins there are in a second.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use distlock::{Clock as _, Store, SystemClock};
use distlock_kickout::{
    Class, DeliverRequest, DeliverResult, Device, KickOut, KickRequest, KickResult, Login,
    LoginOutcome, NodeAddress, NodeId, PeerError, Peers, Session, Timers, Uid,
};
use distlock_report::{Latencies, compare::Measure};
use tokio::task::JoinSet;

use super::{
    Run,
    rounds::{Turn, count},
    stores::Opener,
};
use crate::exit::Outcome;

/// Logins at a time.
const CALLERS: u32 = 32;

impl Run {
    /// Takeovers one after the other, then logins of many accounts, in rounds.
    pub(super) async fn kick_out(&mut self) -> Outcome<()> {
        self.progress.part("measuring the kick-out flow");
        let (rounds, takeovers, time) = (self.plan.rounds, self.plan.takeovers, self.plan.time);
        self.interleave(
            "kickout",
            rounds,
            time + Duration::from_secs(20),
            |store, _| {
                let opener = store.opener();
                Some(async move {
                    turn(&opener, takeovers, time)
                        .await
                        .unwrap_or_else(|error| Turn::failed(error.to_string()))
                })
            },
        )
        .await
    }
}

/// Nodes of one process that reach each other by a function call: what is measured is the store.
#[derive(Debug, Default)]
struct Wire(Mutex<HashMap<NodeId, KickOut>>);

impl Wire {
    fn reach(&self, to: &NodeAddress) -> Result<KickOut, PeerError> {
        let nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes
            .get(&to.node)
            .cloned()
            .ok_or_else(|| PeerError::NotSent("no such node".into()))
    }
}

#[async_trait]
impl Peers for Wire {
    async fn kick(&self, to: &NodeAddress, request: KickRequest) -> Result<KickResult, PeerError> {
        self.reach(to)?.handle_kick(&request)
    }

    async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
    ) -> Result<DeliverResult, PeerError> {
        Ok(self.reach(to)?.handle_deliver(request).await)
    }
}

async fn turn(opener: &Opener, takeovers: u32, time: Duration) -> distlock::Result<Turn> {
    let run = format!("compare{:08x}", fastrand::u32(..));
    let wire = Arc::new(Wire::default());
    let (here, there) = (opener.client().await?, opener.client().await?);
    let one = node(&here, &format!("{run}-1"), &wire).await?;
    let two = node(&there, &format!("{run}-2"), &wire).await?;
    let mut latencies = Latencies::new();
    for number in 0..takeovers {
        let uid = Uid::new(format!("{run}-t{number}"))?;
        let Some(old) = login(&one, &uid, "phone").await? else {
            return Ok(Turn::failed("a first login was not admitted"));
        };
        let start = SystemClock.now();
        let (new, _told) = tokio::join!(login(&two, &uid, "pc"), old.superseded());
        latencies.record(SystemClock.now().since(start));
        let Some(new) = new? else {
            return Ok(Turn::failed("a takeover was not admitted"));
        };
        new.logout().await;
    }
    let start = SystemClock.now();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (node, run) = (one.clone(), run.clone());
        callers.spawn(async move {
            let mut done = 0_u64;
            while SystemClock.now().since(start) < time {
                let uid = Uid::new(format!("{run}-l{caller}-{done}"))?;
                if let Some(session) = login(&node, &uid, "phone").await? {
                    session.logout().await;
                }
                done += 1;
            }
            Ok::<_, distlock::Error>(done)
        });
    }
    let mut logins = 0;
    while let Some(done) = callers.join_next().await {
        if let Ok(done) = done {
            logins += done?;
        }
    }
    let seconds = SystemClock.now().since(start).as_secs_f64();
    wire.0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    tokio::join!(one.shutdown(), two.shutdown());
    tidy(&here, &run).await?;
    here.close().await;
    there.close().await;
    let us = |share| latencies.quantile(share).as_secs_f64() * 1e6;
    Ok(Turn {
        values: vec![
            (Measure::P50, us(0.5)),
            (Measure::P99, us(0.99)),
            (Measure::Rate, count(logins) / seconds),
        ],
        ..Turn::default()
    })
}

async fn node(store: &Store, name: &str, wire: &Arc<Wire>) -> distlock::Result<KickOut> {
    let id = NodeId::new(name)?;
    // No client is there that would need time to leave.
    let mut timers = Timers::default();
    timers.grace = Duration::from_millis(50);
    let node = KickOut::builder(store.clone(), id.clone())
        .timers(timers)
        .peers(Arc::<Wire>::clone(wire))
        .start()
        .await?;
    let mut nodes = wire.0.lock().unwrap_or_else(PoisonError::into_inner);
    nodes.insert(id, node.clone());
    Ok(node)
}

async fn login(node: &KickOut, uid: &Uid, device: &str) -> distlock::Result<Option<Session>> {
    let login = Login::new(uid.clone(), Device::new(device)?, Class::none());
    Ok(match node.login(login).await? {
        LoginOutcome::Admitted(session) => Some(session),
        _ => None,
    })
}

/// Removes the accounts' records, which would otherwise stay for ever.
async fn tidy(store: &Store, run: &str) -> distlock::Result<()> {
    let records = store.records();
    for prefix in [format!("sess/{run}"), format!("rev/{run}")] {
        loop {
            let found = records.scan(&prefix, None, 500).await?;
            if found.is_empty() {
                break;
            }
            let deleting = found.into_iter().map(|(key, entry)| {
                let records = Arc::clone(&records);
                async move { records.delete(&key, entry.version).await }
            });
            futures_util::future::try_join_all(deleting).await?;
        }
    }
    Ok(())
}
