//! One run: nodes over a store, devices that end each other's sessions, a nemesis, and the checker.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use distlock::{Clock as _, RecordKey, Records, SystemClock};
use distlock_checker::{Fact, History, Report, Rules, check};
use distlock_harness::eventually_async;
use distlock_kickout::{Device, Uid, UserRecord};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    task::{JoinSet, block_in_place},
};

use super::{
    client::{Client, ClientState, DelayMeter, Observations},
    device::{DeviceContext, LONG_STAYS, SHORT_STAYS, TestDevice},
    nemesis::NodeNemesis,
    node::{NodeSettings, look_up},
    node_group::NodeGroup,
    planted_bugs::{NodeBug, NodeFaultKind},
};
use crate::chaos::{
    history::now,
    stores::{RunningStore, StoreKind},
};

/// Number of accounts.
const ACCOUNTS: u32 = 6;
/// Number of devices of each account.
const DEVICES: u32 = 3;
/// Time-out for a healed store to answer, and for directory and clients to agree.
const AGREEMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out for the last output of the nodes.
const LAST_EVENTS_TIMEOUT: Duration = Duration::from_secs(3);
/// The same time-out in a run with a planted bug, in which directory and clients may never agree.
const AGREEMENT_TIMEOUT_WITH_BUG: Duration = Duration::from_secs(8);

/// The plan of one run: the store, the number of nodes, the faults and the duration.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct GatewayPlan {
    pub(super) store: StoreKind,
    pub(super) nodes: u32,
    pub(super) faults: Vec<NodeFaultKind>,
    pub(super) seconds: u64,
    pub(super) seed: u64,
    pub(super) bug: Option<NodeBug>,
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct GatewayResult {
    pub(super) report: Report,
    pub(super) history: History,
    pub(super) faults: BTreeMap<String, u64>,
    /// Problems that no invariant covers: crashed nodes, and accounts that cannot log in.
    pub(super) problems: Vec<String>,
}

impl GatewayResult {
    /// Tells whether the run had no violation and no other problem.
    pub(super) fn is_clean(&self) -> bool {
        self.report.is_clean() && self.problems.is_empty()
    }
}

impl GatewayPlan {
    /// Returns the command that repeats the faults.
    pub(super) fn command(&self) -> String {
        let faults: Vec<_> = self.faults.iter().map(|it| it.key()).collect();
        format!(
            "distlock-lab chaos --gateways --spawn {} --nodes {} --seconds {} --seed {} \
             --node-faults {}",
            self.store.key(),
            self.nodes,
            self.seconds,
            self.seed,
            faults.join(",")
        )
    }
}

/// Returns the times of all nodes. The times are short, so that many leases expire in a run.
/// `slack` is the extra delay of a busy machine.
fn node_times(slack: Duration) -> Rules {
    let mut rules = Rules::default();
    rules.lock_ttl = Duration::from_secs(2);
    rules.lock_wait = Duration::from_secs(2);
    rules.kick_budget = Duration::from_secs(1);
    rules.node_lease = Duration::from_secs(4);
    rules.grace = Duration::from_secs(1);
    rules.sweep = Duration::from_millis(500);
    rules.slack += slack;
    rules
}

/// Returns the settings that all nodes share.
fn node_settings(rules: &Rules, bug: Option<NodeBug>) -> NodeSettings {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or_default();
    NodeSettings {
        node: String::new(),
        number: 0,
        url: String::new(),
        records_url: None,
        peer_listen: String::new(),
        peer_advertise: String::new(),
        lock_ttl: ms(rules.lock_ttl),
        lock_wait: ms(rules.lock_wait),
        kick_budget: ms(rules.kick_budget),
        node_lease: ms(rules.node_lease),
        grace: ms(rules.grace),
        sweep: ms(rules.sweep),
        bug,
    }
}

/// Runs a plan to its end.
///
/// # Errors
/// Returns an error if the store or a node cannot be started. A broken invariant is no error: the
/// result contains every broken invariant.
pub(super) async fn run_plan(plan: &GatewayPlan) -> Result<GatewayResult> {
    let folder = tempfile::tempdir().context("a folder for the run")?;
    let (kind, path) = (plan.store, folder.path().to_owned());
    let mut running_store =
        tokio::task::spawn_blocking(move || RunningStore::start(kind, &path, false)).await??;
    let meter = DelayMeter::start();
    let rules = node_times(Duration::ZERO);
    let mut group =
        NodeGroup::start(plan.nodes, &node_settings(&rules, plan.bug), &running_store).await?;
    let observations = Arc::new(Observations::default());
    let accounts: Vec<_> = (0..ACCOUNTS)
        .map(|at| Uid::new(format!("account{at}")))
        .collect::<Result<_, _>>()?;
    let context = DeviceContext::new(Arc::clone(&observations), group.addresses.clone(), accounts);
    let mut rng = Rng::with_seed(plan.seed);
    let lease = rules.node_lease;
    let mut nemesis = NodeNemesis::new(
        rng.fork(),
        plan.faults.clone(),
        lease,
        Arc::clone(&observations),
    );
    let (stop, stopped) = watch::channel(false);
    let mut devices = start_devices(&context, &mut rng, &stopped)?;
    let until = SystemClock.now() + Duration::from_secs(plan.seconds);
    while SystemClock.now() < until {
        nemesis.step(&mut group, &mut running_store).await?;
        group.update_processes()?;
    }
    nemesis.heal_all(&mut group, &mut running_store).await?;
    let mut problems = Vec::new();
    group.wait_until_up().await?;
    stop.send_replace(true);
    while let Some(ended) = devices.join_next().await {
        ended?;
    }
    let agreement_timeout = if plan.bug.is_some() {
        AGREEMENT_TIMEOUT_WITH_BUG
    } else {
        AGREEMENT_TIMEOUT
    };
    let (records, logged_in) = log_in_and_compare(
        &context,
        &running_store,
        &mut rng,
        agreement_timeout,
        &mut problems,
    )
    .await?;
    // Some output of the nodes may still be in a pipe, so the checker runs again until it finds no
    // problem.
    let calm = eventually_async("a clean report", LAST_EVENTS_TIMEOUT, async || {
        let (report, _) =
            run_checker(&group, &observations, &records, meter.longest_delay()).ok()?;
        report.is_clean().then_some(())
    });
    drop(calm.await);
    let (report, history) = run_checker(&group, &observations, &records, meter.longest_delay())?;
    // Clients stay logged in until the report is made, so that no logout looks like a disagreement.
    drop(logged_in);
    problems.extend(group.crashes.iter().cloned());
    // The nodes must end before their store, and the store before its folder is removed.
    let faults = std::mem::take(&mut nemesis.faults);
    block_in_place(|| {
        drop(group);
        drop(running_store);
    });
    Ok(GatewayResult {
        report,
        history,
        faults,
        problems,
    })
}

/// Starts all devices of all accounts. Every second account has devices with long stays.
fn start_devices(
    context: &DeviceContext,
    rng: &mut Rng,
    stopped: &watch::Receiver<bool>,
) -> Result<JoinSet<()>> {
    let mut devices = JoinSet::new();
    for (at, uid) in context.accounts.iter().enumerate() {
        let stay_times = if at % 2 == 0 { SHORT_STAYS } else { LONG_STAYS };
        for number in 0..DEVICES {
            let mut test_device = test_device(context, uid, &format!("device{number}"), rng)?;
            test_device.stay_times = stay_times;
            devices.spawn(test_device.log_in_repeatedly(stopped.clone()));
        }
    }
    Ok(devices)
}

/// Returns a device with its own generator, forked from `rng`.
fn test_device(
    context: &DeviceContext,
    uid: &Uid,
    device: &str,
    rng: &mut Rng,
) -> Result<TestDevice> {
    Ok(TestDevice {
        stay_times: SHORT_STAYS,
        context: context.clone(),
        uid: uid.clone(),
        device: Device::new(device)?,
        rng: rng.fork(),
    })
}

/// Logs in each account once more, and waits until the directory names exactly these clients.
async fn log_in_and_compare(
    context: &DeviceContext,
    running_store: &RunningStore,
    rng: &mut Rng,
    agreement_timeout: Duration,
    problems: &mut Vec<String>,
) -> Result<(BTreeMap<Uid, UserRecord>, Vec<Client>)> {
    let store = distlock::open(running_store.target()).await?;
    let locker = store.locker();
    eventually_async("the healed store answers", AGREEMENT_TIMEOUT, async || {
        locker.health().await.ok()
    })
    .await?;
    let mut logged_in = Vec::new();
    let mut found = BTreeMap::new();
    for uid in context.accounts.iter() {
        match test_device(context, uid, "last", rng)?
            .log_in(agreement_timeout)
            .await
        {
            Ok(client) => logged_in.push((uid, client)),
            Err(error) => problems.push(error.to_string()),
        }
    }
    for (uid, client) in &logged_in {
        let records = store.records();
        let agreed_record = eventually_async(
            "directory and clients agree",
            agreement_timeout,
            async || agreed_record(&*records, uid, client).await.ok()?,
        );
        match agreed_record.await {
            Ok(record) => {
                found.insert((*uid).clone(), record);
                context.observations.record_fact(Fact::Quiet {
                    uid: (*uid).clone(),
                    at_us: now(),
                });
            }
            Err(error) => problems.push(format!("{uid}: {error:#}")),
        }
    }
    for (uid, _) in &logged_in {
        for address in context.addresses.all() {
            match look_up(address.admin, uid).await {
                Ok(fact) => context.observations.record_fact(fact),
                Err(error) => problems.push(format!("{} on {uid}: {error:#}", address.name)),
            }
        }
    }
    store.close().await;
    let logged_in = logged_in.into_iter().map(|(_, client)| client).collect();
    Ok((found, logged_in))
}

/// Returns the record of an account, if nothing is pending and the record names the client's
/// session.
async fn agreed_record(
    records: &dyn Records,
    uid: &Uid,
    client: &Client,
) -> Result<Option<UserRecord>> {
    let key = RecordKey::new(format!("sess/{uid}"))?;
    let Some(entry) = records.get(&key).await? else {
        return Ok(None);
    };
    let record = UserRecord::parse(uid, &entry.value)?;
    let ClientState::LoggedIn(session, _) = client.state() else {
        return Ok(None);
    };
    let named: Vec<_> = record.sessions().map(|(_, session)| session).collect();
    let is_quiet = record.revocations.is_empty() && named == [session];
    Ok(is_quiet.then_some(record))
}

/// Runs the checker over everything that was recorded until now.
fn run_checker(
    group: &NodeGroup,
    observations: &Observations,
    records: &BTreeMap<Uid, UserRecord>,
    late: Duration,
) -> Result<(Report, History)> {
    let mut history = History {
        clients: observations.seen(),
        facts: observations.facts(),
        records: records.clone(),
        ..History::default()
    };
    for said in group.output() {
        // The last line of a killed process may be incomplete.
        let whole = |line: &&str| serde_json::from_str::<serde_json::Value>(line).is_ok();
        history.read_node(said.lines().filter(whole))?;
    }
    history.clients.sort_by_key(|seen| seen.at_us);
    let report = check(&history, &node_times(late));
    Ok((report, history))
}
