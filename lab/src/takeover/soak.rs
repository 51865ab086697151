//! Runs a given number of contended logins: a few accounts log in from many devices at once, on all
//! nodes. The results are checked while the logins run.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use distlock::{Clock as _, RecordKey, Records, SystemClock};
use distlock_checker::{Invariant, Judge, Rules, Seen, What};
use distlock_core::sync::Mutex;
use distlock_gateway::Uid;
use distlock_kickout::{Code, Device, NodeId, UserRecord};
use serde::Serialize;
use tokio::{sync::watch, task::JoinSet};

use super::{
    client::{Client, Frame, STEP_LIMIT, within_limit},
    group::{Group, SharedStore},
};
use distlock_cli::program::Progress;

/// The number of devices of one account that log in at once, if the run has that many.
const CROWD: u32 = 8;

/// The time in which nodes that can reach each other end a contest: the kick budget, and slack.
/// Contests that take longer are counted.
const PROMPT_LIMIT: Duration = Duration::from_millis(1250);
/// The time in which nodes that cannot reach each other end a contest: a node lease, and slack. A
/// contest that takes longer is a violation.
const LEASE: Duration = Duration::from_secs(9);
const SLACK: Duration = Duration::from_millis(250);

const TICK: Duration = Duration::from_millis(20);
/// The number of progress messages where there is no terminal.
const PARTS: u64 = 10;

/// The options of one run.
#[derive(Clone, Debug)]
pub(crate) struct Soak {
    pub(crate) logins: u64,
    /// The number of devices that log in at the same time, over all accounts.
    pub(crate) devices: u32,
    pub(crate) nodes: u32,
    pub(crate) processes: bool,
}

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SoakReport {
    workload: &'static str,
    backend: &'static str,
    nodes: u32,
    processes: bool,
    accounts: u32,
    devices_at_once: u32,
    pub(crate) logins: u64,
    admitted: u64,
    overtaken: u64,
    busy: u64,
    pub(crate) failed: u64,
    first_failure: Option<String>,
    contests: u64,
    seconds: f64,
    logins_per_second: f64,
    /// Contests that took longer than nodes that can reach each other need.
    late: u64,
    longest_settling_ms: u64,
    /// Contests with more than one winner.
    duplicates: usize,
    /// Contests without a winner.
    zero_winners: usize,
    /// The texts of these violations, and of all other violations.
    pub(crate) violations: Vec<String>,
}

/// The state of one run, which all accounts share.
#[derive(Debug)]
struct SoakRun {
    nodes: Vec<SocketAddr>,
    records: Arc<dyn Records>,
    judge: Mutex<Judge>,
    tally: Mutex<Tally>,
    progress: Progress,
    /// The number of logins that have not begun.
    left: AtomicU64,
    clients: AtomicU64,
    running_us: AtomicU64,
    crowd: u32,
}

#[derive(Debug, Default)]
struct Tally {
    logins: u64,
    admitted: u64,
    overtaken: u64,
    busy: u64,
    failed: u64,
    first_failure: Option<String>,
    contests: u64,
    late: u64,
    longest_us: u64,
}

/// Logs in until the number is reached or a violation is found. Dropping the future ends the nodes.
pub(crate) async fn run_soak(shared_store: &SharedStore, soak: &Soak) -> Result<SoakReport> {
    let group = Group::start(shared_store, "s", soak.nodes, soak.processes, &[]).await?;
    let store = shared_store.open_client().await?;
    let crowd = CROWD.min(soak.devices);
    let accounts = (soak.devices / crowd).max(1);
    let mut rules = Rules::default();
    rules.node_lease = LEASE;
    // These rules do not forbid contests that take longer than the kick budget: such contests are
    // counted here.
    rules.reachable = false;
    rules.slack = SLACK;
    let run = Arc::new(SoakRun {
        nodes: group.addresses(),
        records: store.records(),
        judge: Mutex::new(Judge::new(rules)),
        tally: Mutex::default(),
        progress: Progress::start(),
        left: AtomicU64::new(soak.logins),
        clients: AtomicU64::new(0),
        running_us: AtomicU64::new(0),
        crowd,
    });
    run.progress
        .set_expected(usize::try_from(soak.logins).unwrap_or(usize::MAX));
    run.progress
        .begin_part(&format!("0 of {} contended logins", soak.logins));
    let mut background = JoinSet::new();
    background.spawn(count_running_time(Arc::clone(&run)));
    background.spawn(print_progress(Arc::clone(&run), soak.logins));
    let start = SystemClock.now();
    let mut contests = JoinSet::new();
    for number in 0..accounts {
        let (uid, token) = shared_store.new_account(&format!("s{number}"))?;
        contests.spawn(Arc::clone(&run).play_account(uid, token));
    }
    while let Some(done) = contests.join_next().await {
        done.context("an account's task")??;
    }
    let seconds = SystemClock.now().since(start).as_secs_f64();
    background.abort_all();
    run.progress.finish();
    group.stop().await;
    store.close().await;
    shared_store.remove_records().await?;
    Ok(run.report(shared_store, soak, accounts, seconds))
}

impl SoakRun {
    /// Runs contests of one account, one after the other. The devices of each contest take over
    /// from the winner of the one before.
    async fn play_account(self: Arc<Self>, uid: Uid, token: String) -> Result<()> {
        let mut devices = JoinSet::new();
        let mut round = 0_usize;
        while self.judge.lock().report().is_clean() {
            let crowd = self.take_logins();
            if crowd == 0 {
                break;
            }
            round += 1;
            let answered = watch::Sender::new(0_u64);
            let mut connecting = JoinSet::new();
            for device in 0..crowd {
                let device = usize::try_from(device).unwrap_or_default();
                let node = self.nodes[(round + device) % self.nodes.len()];
                connecting.spawn(async move { (node, Client::connect(node).await) });
            }
            for (device, (node, client)) in connecting.join_all().await.into_iter().enumerate() {
                let client = match client {
                    Ok(client) => client,
                    Err(error) => {
                        self.record_failure(&error);
                        answered.send_modify(|answered| *answered += 1);
                        continue;
                    }
                };
                let stamp = Seen {
                    at_us: 0,
                    client: self.clients.fetch_add(1, Ordering::Relaxed) + 1,
                    uid: uid.clone(),
                    device: Device::new(format!("device{device}"))?,
                    node: NodeId::new(node.port().to_string())?,
                    what: What::LoginSent,
                };
                let (run, token, answered) = (Arc::clone(&self), token.clone(), answered.clone());
                devices
                    .spawn(async move { run.play_device(client, &token, &stamp, &answered).await });
            }
            self.wait_and_judge(&uid, crowd, &answered).await?;
            // Tasks of devices that have ended are removed.
            while devices.try_join_next().is_some() {}
        }
        Ok(())
    }

    /// Takes the logins of the next contest from the remaining logins, and returns their number.
    fn take_logins(&self) -> u64 {
        let crowd = u64::from(self.crowd);
        let take = |left: u64| Some(left.saturating_sub(crowd));
        let before = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .unwrap_or_default();
        before.min(crowd)
    }

    /// Plays one device: it logs in, and leaves when its notice comes.
    async fn play_device(
        &self,
        mut client: Client,
        token: &str,
        stamp: &Seen,
        answered: &watch::Sender<u64>,
    ) {
        self.observe(stamp, What::LoginSent);
        let answer = async {
            client.send_login(token, stamp.device.as_str()).await?;
            client.wait_for_answer().await
        };
        let answer = answer.await;
        self.tally.lock().logins += 1;
        let inside = match answer {
            Ok(frame) => self.record_answer(stamp, &frame),
            Err(error) => {
                self.record_failure(&error);
                false
            }
        };
        answered.send_modify(|answered| *answered += 1);
        self.progress.finish_step();
        if !inside {
            return;
        }
        loop {
            match client.next_frame().await {
                Ok(Some(frame)) if frame.kind == "offline" => {
                    let code = frame.code.and_then(|it| serde_json::from_value(it).ok());
                    let code = code.unwrap_or(Code::Superseded);
                    self.observe(stamp, What::Told { code });
                    answered.send_modify(|_| {});
                    let _ = client.leave().await;
                    return;
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => {
                    self.observe(stamp, What::Closed);
                    answered.send_modify(|_| {});
                    return;
                }
            }
        }
    }

    /// Records the answer to a login, and returns whether the client is logged in.
    fn record_answer(&self, stamp: &Seen, frame: &Frame) -> bool {
        match (frame.kind.as_str(), frame.session, frame.r#gen) {
            ("login_ok", Some(session), Some(r#gen)) => {
                self.tally.lock().admitted += 1;
                self.observe(stamp, What::LoginOk { session, r#gen });
                true
            }
            ("superseded", ..) => {
                self.tally.lock().overtaken += 1;
                self.observe(stamp, What::Overtaken);
                false
            }
            ("busy", ..) => {
                self.tally.lock().busy += 1;
                self.observe(stamp, What::Busy);
                false
            }
            _ => {
                self.record_failure(&format!("a login was answered {frame}"));
                false
            }
        }
    }

    /// Waits until every device has its answer and only one is logged in, or until the deadline.
    /// Then checks the account.
    async fn wait_and_judge(
        &self,
        uid: &Uid,
        crowd: u64,
        answered: &watch::Sender<u64>,
    ) -> Result<()> {
        let mut news = answered.subscribe();
        let all = news.wait_for(|answered| *answered >= crowd);
        if within_limit("answer every login of a contest", all)
            .await
            .is_err()
        {
            bail!("some logins of {uid} were not answered within {STEP_LIMIT:?}: it is stuck");
        }
        let from = self.now_us();
        let limit = as_micros(LEASE + SLACK);
        while self.judge.lock().logged_in(uid) > 1 && self.now_us() - from < limit {
            tokio::select! {
                _ = news.changed() => {}
                () = SystemClock.sleep(TICK) => {}
            }
        }
        let took = self.now_us() - from;
        let key = RecordKey::new(format!("sess/{uid}"))?;
        let record = match self.records.get(&key).await? {
            Some(entry) => Some(UserRecord::parse(uid, &entry.value)?),
            None => None,
        };
        let at = self.now_us();
        self.judge.lock().mark_quiet(uid, at, record.as_ref());
        let mut tally = self.tally.lock();
        tally.contests += 1;
        tally.late += u64::from(took > as_micros(PROMPT_LIMIT));
        tally.longest_us = tally.longest_us.max(took);
        Ok(())
    }

    /// Gives an event of a device to the judge.
    fn observe(&self, stamp: &Seen, what: What) {
        let seen = Seen {
            at_us: self.now_us(),
            what,
            ..stamp.clone()
        };
        self.judge.lock().observe(&seen);
    }

    /// Counts a failed login, and keeps the first error.
    fn record_failure(&self, error: &impl ToString) {
        let mut tally = self.tally.lock();
        tally.failed += 1;
        tally.first_failure.get_or_insert_with(|| error.to_string());
    }

    /// The running time so far, in microseconds.
    fn now_us(&self) -> u64 {
        self.running_us.load(Ordering::Relaxed)
    }

    /// The report of the run.
    fn report(
        &self,
        shared_store: &SharedStore,
        soak: &Soak,
        accounts: u32,
        seconds: f64,
    ) -> SoakReport {
        let tally = self.tally.lock();
        let judge = self.judge.lock();
        let violations = &judge.report().violations;
        let of = |which| violations.iter().filter(|it| it.invariant == which).count();
        SoakReport {
            workload: "takeover",
            backend: shared_store.backend(),
            nodes: soak.nodes,
            processes: soak.processes,
            accounts,
            devices_at_once: self.crowd,
            logins: tally.logins,
            admitted: tally.admitted,
            overtaken: tally.overtaken,
            busy: tally.busy,
            failed: tally.failed,
            first_failure: tally.first_failure.clone(),
            contests: tally.contests,
            seconds,
            logins_per_second: crate::counts::as_f64(tally.logins) / seconds,
            late: tally.late,
            longest_settling_ms: tally.longest_us / 1000,
            duplicates: of(Invariant::I1),
            zero_winners: of(Invariant::I2),
            violations: violations.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Counts the running time of this process. With elapsed time, a pause of the whole machine would
/// look like a slow node.
async fn count_running_time(run: Arc<SoakRun>) {
    let mut last = SystemClock.now();
    loop {
        SystemClock.sleep(TICK).await;
        let now = SystemClock.now();
        let passed = now.since(last).min(TICK * 10);
        run.running_us
            .fetch_add(as_micros(passed), Ordering::Relaxed);
        last = now;
    }
}

/// Prints progress from time to time.
async fn print_progress(run: Arc<SoakRun>, all: u64) {
    let mut told = 0;
    loop {
        let logins = run.tally.lock().logins;
        let part = logins * PARTS / all.max(1);
        if part > told {
            told = part;
            run.progress.begin_part(&format!(
                "{logins} of {all} contended logins, nothing wrong"
            ));
        }
        SystemClock.sleep(TICK * 10).await;
    }
}

/// A duration in whole microseconds.
fn as_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl std::fmt::Display for SoakReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} contended logins on {} in {:.1} s ({:.0}/s): {} accounts, {} devices of each at \
            once, {} nodes",
            self.logins,
            self.backend,
            self.seconds,
            self.logins_per_second,
            self.accounts,
            self.devices_at_once,
            self.nodes
        )?;
        writeln!(
            f,
            "{} admitted, {} overtaken, {} busy, {} failed; {} contests, {} settled late, the \
            slowest in {} ms",
            self.admitted,
            self.overtaken,
            self.busy,
            self.failed,
            self.contests,
            self.late,
            self.longest_settling_ms
        )?;
        writeln!(
            f,
            "duplicates: {}   without a winner: {}",
            self.duplicates, self.zero_winners
        )?;
        if let Some(failure) = &self.first_failure {
            writeln!(f, "the first failure: {failure}")?;
        }
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        Ok(())
    }
}
