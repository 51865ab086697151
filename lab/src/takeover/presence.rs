//! Measures presence: what changes of presence cost a node with many sessions, without readers of
//! its events and with them, and how long a question about a thousand accounts takes.
//!
//! The node, the logins and the readers are tasks of this process, so its CPU time is that of all
//! of them. The sessions log in at the node's flow, without sockets of their own.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use distlock::{Clock as _, Moment, SystemClock};
use distlock_core::sync::Mutex;
use distlock_kickout::{Class, Device, KickOut, Login, LoginOutcome, Session, Uid};
use distlock_report::Latencies;
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    task::JoinSet,
};

use super::group::{Group, SharedStore};
use crate::processor_time::processor_seconds;
use distlock_cli::program::{self, Progress};

/// Takeovers per second. Each of them is two changes: one session goes offline, another one comes
/// online.
const TAKEOVERS_PER_SECOND: u32 = 50;
const READERS: usize = 16;
/// Accounts in one question.
const ASKED: usize = 1000;
const QUESTIONS: usize = 100;
/// The most logins at the same time while the sessions log in.
const MAX_LOGINS: usize = 64;
/// The time for the readers to read the last event.
const SETTLING_TIME: Duration = Duration::from_secs(1);
const ADMIN_TOKEN: &str = "the admin token of a measurement";

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PresenceReport {
    workload: &'static str,
    backend: &'static str,
    sessions: u32,
    changes_per_second: u32,
    readers: usize,
    resident_kib: u64,
    without: Phase,
    with: Phase,
    /// From the answer to a login until a reader had its event.
    event_p50_us: f64,
    event_p99_us: f64,
    events_missing: usize,
    /// From a question about many accounts until its answer.
    accounts_asked: usize,
    question_p50_us: f64,
    question_p99_us: f64,
}

/// The figures of a time without readers, or with them.
#[derive(Clone, Copy, Debug, Serialize)]
struct Phase {
    /// CPU time of the process, in percent of one core.
    cpu_percent: f64,
    login_p50_us: f64,
    login_p99_us: f64,
}

/// The times at which a reader got the events of sessions that came online.
type Seen = Arc<Mutex<HashMap<String, Moment>>>;

/// The sessions, and the times at which their logins were answered.
struct Crowd {
    kick: KickOut,
    uids: Vec<Uid>,
    sessions: Vec<Session>,
    turn: usize,
    answered: Vec<(String, Moment)>,
}

/// Measures one node with this number of sessions. Each of the two phases takes half of `time`.
pub(crate) async fn measure_presence(
    shared_store: &SharedStore,
    sessions: u32,
    time: Duration,
    progress: &Progress,
) -> Result<PresenceReport> {
    let settings = [("admin_token", ADMIN_TOKEN)];
    let group = Group::start(shared_store, "p", 1, false, &settings).await?;
    let (kick, admin) = group.flow().context("the node is not in this process")?;
    progress.set_expected(usize::try_from(sessions)?);
    progress.begin_part(&format!("logging {sessions} accounts in"));
    let mut crowd = Crowd::log_in(shared_store, kick, sessions, progress).await?;
    progress.begin_part("changes without readers");
    let without = crowd.change(time / 2).await?;
    crowd.answered.clear();
    let seen = Seen::default();
    let mut readers = JoinSet::new();
    for number in 0..READERS {
        let stream = open_events(admin).await?;
        let seen = (number == 0).then(|| Arc::clone(&seen));
        readers.spawn(read_events(stream, seen));
    }
    progress.begin_part(&format!("changes with {READERS} readers"));
    let with = crowd.change(time / 2).await?;
    SystemClock.sleep(SETTLING_TIME).await;
    let resident_kib = program::memory_kib(std::process::id(), "VmRSS:").unwrap_or_default();
    if let Some(ended) = readers.try_join_next() {
        ended??;
        bail!("a stream of events ended");
    }
    let (events, events_missing) = crowd.delays(&seen);
    progress.begin_part(&format!("questions about {ASKED} accounts"));
    let questions = ask_presence(admin, &crowd.uids).await?;
    readers.shutdown().await;
    drop(crowd);
    group.stop().await;
    shared_store.remove_records().await?;
    Ok(PresenceReport {
        workload: "takeover",
        backend: shared_store.backend(),
        sessions,
        changes_per_second: 2 * TAKEOVERS_PER_SECOND,
        readers: READERS,
        resident_kib,
        without,
        with,
        event_p50_us: micros(&events, 0.5),
        event_p99_us: micros(&events, 0.99),
        events_missing,
        accounts_asked: ASKED,
        question_p50_us: micros(&questions, 0.5),
        question_p99_us: micros(&questions, 0.99),
    })
}

impl Crowd {
    async fn log_in(
        shared_store: &SharedStore,
        kick: KickOut,
        sessions: u32,
        progress: &Progress,
    ) -> Result<Self> {
        let mut crowd = Self {
            kick,
            uids: Vec::new(),
            sessions: Vec::new(),
            turn: 0,
            answered: Vec::new(),
        };
        for number in 0..sessions {
            crowd
                .uids
                .push(shared_store.new_account(&format!("p{number}"))?.0);
        }
        for uids in crowd.uids.chunks(MAX_LOGINS) {
            let entering = uids.iter().map(|uid| log_in(&crowd.kick, uid, "phone"));
            crowd.sessions.extend(try_join_all(entering).await?);
            uids.iter().for_each(|_| progress.finish_step());
        }
        Ok(crowd)
    }

    /// Lets one account after the other change its device, at a constant rate.
    async fn change(&mut self, time: Duration) -> Result<Phase> {
        let mut logins = Latencies::new();
        let (start, spent) = (SystemClock.now(), processor_seconds(std::process::id())?);
        let step = Duration::from_secs(1) / TAKEOVERS_PER_SECOND;
        let mut due = start;
        while due.since(start) < time {
            SystemClock.sleep(due.since(SystemClock.now())).await;
            let at = self.turn % self.sessions.len();
            let device = if (self.turn / self.sessions.len()).is_multiple_of(2) {
                "pc"
            } else {
                "phone"
            };
            let session = log_in(&self.kick, &self.uids[at], device).await?;
            let answered = SystemClock.now();
            // Time counts from when the login was due, so a node that falls behind cannot hide it.
            logins.record(answered.since(due));
            self.answered
                .push((session.key().session.to_string(), answered));
            let old = std::mem::replace(&mut self.sessions[at], session);
            old.superseded().await;
            old.logout().await;
            self.turn += 1;
            due = due + step;
        }
        let seconds = SystemClock.now().since(start).as_secs_f64();
        let spent = processor_seconds(std::process::id())? - spent;
        Ok(Phase {
            cpu_percent: spent / seconds * 100.0,
            login_p50_us: micros(&logins, 0.5),
            login_p99_us: micros(&logins, 0.99),
        })
    }

    /// The times from the answers to the logins until their events were read, and the number of
    /// events that were not read.
    fn delays(&self, seen: &Seen) -> (Latencies, usize) {
        let (mut delays, mut missing) = (Latencies::new(), 0);
        let seen = seen.lock();
        for (session, answered) in &self.answered {
            match seen.get(session) {
                Some(read) => delays.record(read.since(*answered)),
                None => missing += 1,
            }
        }
        (delays, missing)
    }
}

async fn log_in(kick: &KickOut, uid: &Uid, device: &str) -> Result<Session> {
    let login = Login::new(uid.clone(), Device::new(device)?, Class::none());
    match kick.login(login).await? {
        LoginOutcome::Admitted(session) => Ok(session),
        other => bail!("a login was answered {other:?}"),
    }
}

/// Opens a stream of events, and waits for its first one.
async fn open_events(admin: SocketAddr) -> Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(admin).await?;
    let request = format!(
        "GET /v1/events HTTP/1.1\r\nhost: {admin}\r\nauthorization: Bearer {ADMIN_TOKEN}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("event: start") {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            bail!("the stream of events did not begin");
        }
    }
    Ok(stream)
}

/// Reads events until the stream ends. Notes when the event of each login came.
async fn read_events(mut stream: BufReader<TcpStream>, seen: Option<Seen>) -> Result<()> {
    let (mut line, mut online) = (String::new(), false);
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        if let Some(name) = line.strip_prefix("event: ") {
            online = name.trim_end() == "online";
        } else if let Some(data) = line.strip_prefix("data: ")
            && online
            && let Some(seen) = &seen
        {
            let data: serde_json::Value = serde_json::from_str(data)?;
            if let Some(session) = data["session"].as_str() {
                seen.lock().insert(session.to_owned(), SystemClock.now());
            }
        }
    }
}

/// Asks several times for the presence of many accounts. Returns the times of the answers.
async fn ask_presence(admin: SocketAddr, uids: &[Uid]) -> Result<Latencies> {
    let mut times = Latencies::new();
    for question in 0..QUESTIONS {
        let from = question * ASKED % uids.len();
        let asked: Vec<_> = uids.iter().cycle().skip(from).take(ASKED).collect();
        let body = json!({"uids": asked}).to_string();
        let request = format!(
            "POST /v1/presence HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\
             authorization: Bearer {ADMIN_TOKEN}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let start = SystemClock.now();
        let mut stream = TcpStream::connect(admin).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        times.record(SystemClock.now().since(start));
        if !answer.starts_with("HTTP/1.1 200") || !answer.contains(r#""online":true"#) {
            let head: String = answer.chars().take(200).collect();
            bail!("a question about {ASKED} accounts was answered {head}");
        }
    }
    Ok(times)
}

fn micros(times: &Latencies, share: f64) -> f64 {
    times.quantile(share).as_secs_f64() * 1e6
}

impl std::fmt::Display for PresenceReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} sessions on one node over {}, {} changes a second, {:.1} MiB resident",
            self.sessions,
            self.backend,
            self.changes_per_second,
            crate::counts::as_f64(self.resident_kib) / 1024.0,
        )?;
        for (name, phase) in [
            ("without readers".to_owned(), self.without),
            (format!("with {} readers", self.readers), self.with),
        ] {
            writeln!(
                f,
                "{name}: {:.1} % of a core, a login p50 {:.0} us, p99 {:.0} us",
                phase.cpu_percent, phase.login_p50_us, phase.login_p99_us
            )?;
        }
        writeln!(
            f,
            "an event was read after its login was answered: p50 {:.0} us, p99 {:.0} us, \
             {} missing",
            self.event_p50_us, self.event_p99_us, self.events_missing
        )?;
        writeln!(
            f,
            "presence of {} accounts: p50 {:.0} us, p99 {:.0} us",
            self.accounts_asked, self.question_p50_us, self.question_p99_us
        )
    }
}
