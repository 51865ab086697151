//! A client: a process that carries out orders with the library of its language.
//!
//! An order is a JSON object on one line, with an `id`. Its answer has the same `id`, and `error`
//! with a kind if it failed. Orders do not wait for each other. `{"event": "lost", ..}` tells a
//! loss. Each line that a client writes has `at_us`, the boot-time clock in microseconds.

use std::{
    collections::HashMap,
    env,
    ffi::OsString,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use distlock::backend::sync::Mutex;
use distlock_harness::{Signal, Watchdog, signal};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{Notify, oneshot},
    time::timeout,
};

use crate::rust;

/// The deadline of every step that has no reason to take long, on a machine that is busy with other
/// tests.
pub(crate) const SOON: Duration = Duration::from_secs(40);

/// How a client is started.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The language, and the form of waiting.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// Whether a wait can be cancelled. A thread that blocks cannot be told to stop.
    pub(crate) cancels: bool,
}

impl Program {
    /// The client of this library, which is this program once more.
    pub(crate) fn rust() -> Result<Self> {
        Ok(Self {
            name: "Rust".to_owned(),
            program: env::current_exe()?,
            arguments: Vec::new(),
            variables: vec![(rust::DRIVER.into(), "yes".into())],
            cancels: true,
        })
    }

    /// The same client with further environment variables.
    pub(crate) fn with_variables(
        &self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        let mut program = self.clone();
        program.variables.extend(variables);
        program
    }

    /// Starts a client that uses this server.
    pub(crate) async fn open(&self, url: &str) -> Result<Client> {
        let client = self.start()?;
        client.ask(json!({"do": "open", "url": url})).await?;
        Ok(client)
    }

    /// Starts a client without a server.
    pub(crate) fn start(&self) -> Result<Client> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start the client in {}", self.name))?;
        let process = child.id().context("it has just been started")?;
        let watchdog = Watchdog::over_group(process)?;
        let orders = child.stdin.take().context("its input is a pipe")?;
        let output = child.stdout.take().context("its output is a pipe")?;
        let heard = Arc::new(Heard::default());
        tokio::spawn(hear(output, Arc::clone(&heard)));
        Ok(Client {
            process,
            _child: child,
            _watchdog: watchdog,
            orders: tokio::sync::Mutex::new(orders),
            heard,
            next: AtomicU64::new(1),
        })
    }
}

/// A running client.
pub(crate) struct Client {
    process: u32,
    _child: Child,
    _watchdog: Watchdog,
    orders: tokio::sync::Mutex<ChildStdin>,
    heard: Arc<Heard>,
    next: AtomicU64,
}

/// What a client has written.
#[derive(Default)]
struct Heard {
    answers: Mutex<HashMap<u64, oneshot::Sender<Value>>>,
    losses: Mutex<HashMap<u64, Loss>>,
    changed: Notify,
}

/// The loss of a lease, as its client told it.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) reason: String,
    pub(crate) at_us: u64,
}

/// An order without an answer.
pub(crate) struct Pending {
    pub(crate) id: u64,
    answer: oneshot::Receiver<Value>,
}

/// A lease of a client.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    number: u64,
    pub(crate) token: u64,
    /// The time to its deadline when it was granted.
    pub(crate) remaining: Duration,
    pub(crate) at_us: u64,
}

/// What a client knows of its lease.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) is_valid: bool,
    pub(crate) loss: Option<String>,
}

/// The result of an attempt.
#[derive(Clone, Debug)]
pub(crate) enum Tried {
    Taken(Lease),
    Busy,
    Failed(String),
}

async fn hear(output: ChildStdout, heard: Arc<Heard>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(line) = serde_json::from_str::<Value>(&line) else {
            tracing::warn!(line, "a client says something else");
            continue;
        };
        if let Some(id) = line["id"].as_u64() {
            let waiting = heard.answers.lock().remove(&id);
            if let Some(waiting) = waiting {
                let _ = waiting.send(line);
            }
        } else if let Some(number) = line["lease"].as_u64() {
            let loss = Loss {
                reason: line["reason"].as_str().unwrap_or_default().to_owned(),
                at_us: line["at_us"].as_u64().unwrap_or_default(),
            };
            heard.losses.lock().insert(number, loss);
            heard.changed.notify_waiters();
        }
    }
    // Nobody will answer any more.
    heard.answers.lock().clear();
}

impl Client {
    /// Gives an order, and does not wait for its answer.
    pub(crate) async fn begin(&self, mut order: Value) -> Result<Pending> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        order["id"] = id.into();
        let (waiting, answer) = oneshot::channel();
        self.heard.answers.lock().insert(id, waiting);
        let line = format!("{order}\n");
        self.orders.lock().await.write_all(line.as_bytes()).await?;
        Ok(Pending { id, answer })
    }

    /// Gives an order, and returns its answer, which is no error.
    pub(crate) async fn ask(&self, order: Value) -> Result<Value> {
        let answer = self.begin(order.clone()).await?.answer().await?;
        match answer["error"].as_str() {
            None => Ok(answer),
            Some(_) => bail!("{order}: {answer}"),
        }
    }

    /// The kind of the error with which an order ends.
    pub(crate) async fn refused(&self, order: Value) -> Result<String> {
        let answer = self.begin(order.clone()).await?.answer().await?;
        let kind = answer["error"].as_str();
        Ok(kind
            .with_context(|| format!("{order}: {answer}"))?
            .to_owned())
    }

    /// Takes a lock, and waits for it if need be.
    pub(crate) async fn acquire(&self, name: &str, ttl: Duration) -> Result<Lease> {
        self.begin(acquire(name, ttl, SOON)).await?.granted().await
    }

    /// Tries to take a lock.
    pub(crate) async fn try_acquire(&self, name: &str, ttl: Duration) -> Result<Tried> {
        let order = json!({"do": "try", "name": name, "ttl_ms": ms(ttl)});
        let answer = self.begin(order).await?.answer().await?;
        if answer["busy"].as_bool() == Some(true) {
            return Ok(Tried::Busy);
        }
        match answer["error"].as_str() {
            Some(kind) => Ok(Tried::Failed(kind.to_owned())),
            None => Ok(Tried::Taken(Lease::read(&answer)?)),
        }
    }

    /// Takes a lock that is free.
    pub(crate) async fn take(&self, name: &str, ttl: Duration) -> Result<Lease> {
        match self.try_acquire(name, ttl).await? {
            Tried::Taken(lease) => Ok(lease),
            other => bail!("{name} is free, and not taken: {other:?}"),
        }
    }

    /// Fails if the lock is free.
    pub(crate) async fn expect_busy(&self, name: &str) -> Result<()> {
        let tried = self.try_acquire(name, Duration::from_secs(2)).await?;
        ensure!(matches!(tried, Tried::Busy), "{name} is held: {tried:?}");
        Ok(())
    }

    /// Releases a lock, and returns how it ended.
    pub(crate) async fn release(&self, lease: &Lease) -> Result<String> {
        let order = json!({"do": "release", "lease": lease.number});
        let released = self.ask(order).await?;
        Ok(released["released"].as_str().unwrap_or_default().to_owned())
    }

    /// Releases a lock that is held to the end.
    pub(crate) async fn release_held(&self, lease: &Lease) -> Result<()> {
        let released = self.release(lease).await?;
        ensure!(released == "clean", "{lease:?}: {released}");
        Ok(())
    }

    pub(crate) async fn state(&self, lease: &Lease) -> Result<State> {
        let state = self
            .ask(json!({"do": "state", "lease": lease.number}))
            .await?;
        Ok(State {
            is_valid: state["valid"].as_bool().context("valid")?,
            loss: state["loss"].as_str().map(str::to_owned),
        })
    }

    /// Fails if the lock is not certainly held.
    pub(crate) async fn expect_valid(&self, lease: &Lease) -> Result<()> {
        let state = self.state(lease).await?;
        ensure!(state.is_valid, "{lease:?}: {state:?}");
        Ok(())
    }

    /// The token of the present holder; `None`: the lock is free.
    pub(crate) async fn token_of(&self, name: &str) -> Result<Option<u64>> {
        let seen = self.ask(json!({"do": "inspect", "name": name})).await?;
        Ok(seen["token"].as_u64())
    }

    pub(crate) async fn force_release(&self, name: &str, lease: &Lease) -> Result<()> {
        let order = json!({"do": "force", "name": name, "token": lease.token});
        let forced = self.ask(order).await?;
        ensure!(forced["forced"] == true, "{name}: {forced}");
        Ok(())
    }

    /// Waits for the report of a loss.
    pub(crate) async fn loss(&self, lease: &Lease) -> Result<Loss> {
        let told = async {
            loop {
                let changed = self.heard.changed.notified();
                let loss = self.heard.losses.lock().get(&lease.number).cloned();
                match loss {
                    Some(loss) => return loss,
                    None => changed.await,
                }
            }
        };
        let loss = timeout(SOON, told).await;
        loss.map_err(|_| anyhow!("the loss of {lease:?} was not told"))
    }

    pub(crate) fn signal(&self, which: Signal) -> Result<()> {
        signal(self.process, which)
    }
}

/// The order to take a lock.
pub(crate) fn acquire(name: &str, ttl: Duration, wait: Duration) -> Value {
    json!({"do": "acquire", "name": name, "ttl_ms": ms(ttl), "wait_ms": ms(wait)})
}

/// The milliseconds of a time.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Pending {
    /// The answer, which may be an error.
    pub(crate) async fn answer(self) -> Result<Value> {
        // A wait for a lock takes up to `SOON`, and its answer comes after it.
        let answer = timeout(SOON * 2, self.answer).await;
        answer
            .context("a client does not answer")?
            .context("a client has ended")
    }

    /// The lease, if the order was to take a lock.
    pub(crate) async fn granted(self) -> Result<Lease> {
        Lease::read(&self.answer().await?)
    }

    /// Fails if there is an answer.
    pub(crate) fn expect_none(&mut self) -> Result<()> {
        match self.answer.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => Ok(()),
            answer => bail!("an answer that should not have come: {answer:?}"),
        }
    }
}

impl Lease {
    /// The number by which the client knows it.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    fn read(answer: &Value) -> Result<Self> {
        let remaining = answer["remaining_ms"].as_f64().unwrap_or_default();
        let number = |field: &str| {
            let number = answer[field].as_u64();
            number.with_context(|| format!("no {field}: {answer}"))
        };
        Ok(Self {
            number: number("lease")?,
            token: number("token")?,
            remaining: Duration::from_secs_f64(remaining / 1000.0),
            at_us: number("at_us")?,
        })
    }
}
