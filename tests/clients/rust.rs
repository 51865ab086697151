//! The client of this library, as a process that carries out orders.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, Write as _},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use distlock::{
    Attempt, Clock as _, Error, ErrorKind, FencingToken, Forced, Guard, LockWatch, Locker,
    LossReason, Released, SystemClock, backend::sync::Mutex,
};
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};

/// The variable that makes this program the client.
pub(crate) const DRIVER: &str = "DISTLOCK_CLIENT_DRIVER";

/// Carries out the orders of the standard input until its end.
pub(crate) fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let driver = Arc::new(Driver::default());
    for line in std::io::stdin().lock().lines() {
        let order: Value = serde_json::from_str(&line?)?;
        let id = order["id"].as_u64().context("the order has no id")?;
        let carrying_out = Arc::clone(&driver).answer(id, order);
        let task = runtime.spawn(carrying_out).abort_handle();
        driver.tasks.lock().insert(id, task);
    }
    Ok(())
}

#[derive(Default)]
struct Driver {
    url: Mutex<String>,
    locker: tokio::sync::Mutex<Option<Locker>>,
    guards: Mutex<HashMap<u64, Guard>>,
    /// What is known of a lease after its end.
    watches: Mutex<HashMap<u64, LockWatch>>,
    tasks: Mutex<HashMap<u64, AbortHandle>>,
}

fn tell(mut line: Value) {
    let at = SystemClock.now().since_boot();
    line["at_us"] = u64::try_from(at.as_micros()).unwrap_or(u64::MAX).into();
    let mut output = std::io::stdout().lock();
    let told = writeln!(output, "{line}").and_then(|()| output.flush());
    if let Err(error) = told {
        tracing::error!(%error, "the script does not read");
    }
}

/// The name that the protocol gives to a kind.
fn name_of(kind: ErrorKind) -> String {
    let mut name = String::new();
    for letter in format!("{kind:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

fn failure(error: &Error) -> Value {
    json!({
        "error": name_of(error.kind()),
        "text": error.to_string(),
        "holder": error.holder().map(|it| &it.holder),
    })
}

fn text(order: &Value, field: &str) -> String {
    order[field].as_str().unwrap_or_default().to_owned()
}

fn number(order: &Value, field: &str) -> u64 {
    order[field].as_u64().unwrap_or_default()
}

fn time(order: &Value, field: &str) -> Duration {
    Duration::from_millis(number(order, field))
}

fn reason(reason: LossReason) -> Value {
    serde_json::to_value(reason).unwrap_or_default()
}

/// Tells that an order was cancelled, unless it has an answer.
struct Cancelled(Option<u64>);

impl Drop for Cancelled {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            tell(json!({"id": id, "error": "cancelled"}));
        }
    }
}

impl Driver {
    async fn answer(self: Arc<Self>, id: u64, order: Value) {
        let mut cancelled = Cancelled(Some(id));
        let done = self.carry_out(id, &order).await;
        let mut answer = done.unwrap_or_else(|error| failure(&error));
        answer["id"] = id.into();
        cancelled.0 = None;
        tell(answer);
    }

    async fn carry_out(self: &Arc<Self>, id: u64, order: &Value) -> Result<Value, Error> {
        let name = text(order, "name");
        match text(order, "do").as_str() {
            "open" => {
                *self.url.lock() = text(order, "url");
                self.locker().await?;
                Ok(json!({}))
            }
            "acquire" => {
                let guard = self.lock(order).await?.acquire().await?;
                Ok(self.keep(id, guard))
            }
            "try" => {
                let lock = self.locker().await?.lock(&name).ttl(time(order, "ttl_ms"));
                match lock.try_acquire().await? {
                    Attempt::Acquired(guard) => Ok(self.keep(id, guard)),
                    Attempt::Busy(_) => Ok(json!({"busy": true})),
                }
            }
            "state" => {
                let watch = self.watches.lock()[&number(order, "lease")].clone();
                Ok(json!({"valid": watch.is_valid(), "loss": watch.loss().map(reason)}))
            }
            "release" => {
                let guard = self.guards.lock().remove(&number(order, "lease"));
                let released = match guard {
                    Some(guard) => guard.release().await,
                    None => Released::Clean,
                };
                Ok(json!({"released": match released {
                    Released::Clean => "clean",
                    Released::AlreadyLost(_) => "already_lost",
                    _ => "unconfirmed",
                }}))
            }
            "cancel" => {
                let task = self.tasks.lock().remove(&number(order, "task"));
                if let Some(task) = task {
                    task.abort();
                }
                Ok(json!({}))
            }
            "force" => {
                let token = FencingToken::new(number(order, "token"))?;
                let forced = self.locker().await?.force_release(&name, token).await?;
                Ok(json!({"forced": matches!(forced, Forced::Released)}))
            }
            "inspect" => {
                let held = self.locker().await?.inspect(&name).await?.held;
                Ok(json!({
                    "holder": held.as_ref().map(|it| &it.holder),
                    "token": held.as_ref().and_then(|it| it.token).map(FencingToken::get),
                }))
            }
            "block" => {
                let hold = time(order, "hold_ms");
                let lock = self.lock(order).await?;
                lock.run(async |_| SystemClock.sleep(hold).await).await?;
                Ok(json!({"block": "ended"}))
            }
            "count" => {
                let mut tasks = JoinSet::new();
                for _ in 0..number(order, "tasks") {
                    let (driver, order) = (Arc::clone(self), order.clone());
                    tasks.spawn(async move { driver.count(&order).await });
                }
                for counted in tasks.join_all().await {
                    counted?;
                }
                Ok(json!({}))
            }
            "close" => {
                self.guards.lock().clear();
                if let Some(locker) = self.locker.lock().await.take() {
                    locker.close().await;
                }
                Ok(json!({}))
            }
            other => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{other} is no order"),
            )),
        }
    }

    /// The locker, which is opened by the first order that reaches the server.
    async fn locker(&self) -> Result<Locker, Error> {
        let mut locker = self.locker.lock().await;
        if let Some(locker) = &*locker {
            return Ok(locker.clone());
        }
        let url = self.url.lock().clone();
        let opened = distlock::connect(url).await?;
        Ok(locker.insert(opened).clone())
    }

    async fn lock(&self, order: &Value) -> Result<distlock::LockBuilder, Error> {
        let lock = self.locker().await?.lock(text(order, "name"));
        Ok(lock.ttl(time(order, "ttl_ms")).wait(time(order, "wait_ms")))
    }

    /// Keeps a guard for later orders, and tells its loss.
    fn keep(&self, number: u64, guard: Guard) -> Value {
        let watch = guard.watch();
        self.watches.lock().insert(number, watch.clone());
        tokio::spawn(async move {
            if let distlock::Ended::Lost(why) = watch.ended().await {
                tell(json!({"event": "lost", "lease": number, "reason": reason(why)}));
            }
        });
        let remaining = guard.remaining().as_secs_f64() * 1000.0;
        let token = guard.token().get();
        self.guards.lock().insert(number, guard);
        json!({"lease": number, "token": token, "remaining_ms": remaining})
    }

    async fn count(&self, order: &Value) -> Result<(), Error> {
        let file = PathBuf::from(text(order, "file"));
        for _ in 0..number(order, "times") {
            let guard = self.lock(order).await?.acquire().await?;
            let file = file.clone();
            let counted = tokio::task::spawn_blocking(move || count_once(&file)).await;
            guard.check()?;
            let _ = guard.release().await;
            if !matches!(counted, Ok(Ok(()))) {
                let what = format!("the counter: {counted:?}");
                return Err(Error::new(ErrorKind::Internal, what));
            }
        }
        Ok(())
    }
}

/// One step of a counter that two at a time would break: it is read, and written later.
fn count_once(file: &std::path::Path) -> Result<()> {
    let number: u64 = fs::read_to_string(file)?.parse()?;
    std::thread::park_timeout(Duration::from_millis(1));
    Ok(fs::write(file, (number + 1).to_string())?)
}
