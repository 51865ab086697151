//! Tests that a password, or the certificates, of a store change under load without one lost lock:
//! in the library with a provider, and in `distlock elect` with its configuration file. At each
//! change all connections are cut, so that each of them has to be made again.
#![expect(
    clippy::disallowed_methods,
    reason = "servers live in real time: there is no clock to inject into them"
)]

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use distlock::backend::sync::Mutex;
use distlock::{Guard, Locker, Released, Target, config::Credentials};
use distlock_harness::{
    FaultProxy, Pki, Process, Signal, eventually, eventually_async, free_port,
    servers::{
        mysql::{MySqlServer, Product},
        postgres::PostgresServer,
        redis::RedisServer,
        zookeeper::{Setup, ZooKeeper},
    },
};
use tokio::task::JoinSet;

/// The lease of every lock.
const TTL: Duration = Duration::from_secs(12);
/// The lease of every lock while a server restarts, which takes a busy machine ten seconds.
const TTL_OVER_A_RESTART: Duration = Duration::from_secs(30);
/// How long the server refuses the credentials of the client: long enough for each guard to find
/// its connection cut and to be refused, and less than the time that a lease has left then.
const WINDOW: Duration = Duration::from_secs(3);
/// The deadline of each step that has no reason to take long, on a machine that is busy with other
/// tests.
const SOON: Duration = Duration::from_secs(30);

/// Guards that are held for the whole test, and tasks that take and free locks all the time.
struct Load {
    locker: Locker,
    ttl: Duration,
    held: Vec<Guard>,
    cycles: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    tasks: JoinSet<Result<()>>,
}

impl Load {
    async fn start(target: Target, ttl: Duration) -> Result<Self> {
        let locker = distlock::connect(target).await?;
        locker.ready().await?;
        let mut load = Self {
            held: Vec::new(),
            cycles: Arc::default(),
            over: Arc::default(),
            tasks: JoinSet::new(),
            ttl,
            locker,
        };
        for number in 0..3 {
            let name = format!("held {number}");
            let guard = load.locker.lock(&name).ttl(ttl).acquire().await?;
            load.held.push(guard);
        }
        for number in 0..4 {
            let (locker, cycles) = (load.locker.clone(), Arc::clone(&load.cycles));
            let over = Arc::clone(&load.over);
            load.tasks.spawn(async move {
                while !over.load(SeqCst) {
                    let lock = locker.lock(format!("contended {}", number % 2)).ttl(ttl);
                    let guard = lock.wait(SOON).acquire().await?;
                    cycles.fetch_add(1, SeqCst);
                    // An unconfirmed release goes on in the background. A lost lock is an error.
                    if let Released::AlreadyLost(reason) = guard.release().await {
                        anyhow::bail!("lost: {reason}");
                    }
                }
                Ok(())
            });
        }
        Ok(load)
    }

    /// Waits until the tasks have taken locks, and no guard was lost.
    async fn goes_on(&mut self) -> Result<()> {
        let before = self.cycles.load(SeqCst);
        eventually_async("locks are taken", SOON, async || {
            (self.cycles.load(SeqCst) > before + 20).then_some(())
        })
        .await?;
        // The windows of this test follow each other at once. A renewal that was refused is tried
        // again within a second, and needs that time.
        eventually_async("the held locks are renewed", SOON, async || {
            let mut held = self.held.iter();
            held.all(|guard| guard.remaining() > self.ttl / 2 || !guard.is_valid())
                .then_some(())
        })
        .await?;
        for guard in &self.held {
            ensure!(guard.is_valid(), "{} was lost", guard.name());
        }
        if let Some(ended) = self.tasks.try_join_next() {
            ended??;
        }
        Ok(())
    }

    async fn end(mut self) -> Result<()> {
        self.goes_on().await?;
        self.over.store(true, SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        for guard in self.held {
            let released = guard.release().await;
            ensure!(released.is_clean(), "{released:?}");
        }
        self.locker.close().await;
        Ok(())
    }
}

/// Changes the password of a user several times, with `change` at the server, and before or after
/// it at the client.
async fn rotate_passwords(
    server: SocketAddr,
    url: impl Fn(SocketAddr) -> String,
    change: impl Fn(&str) -> Result<()>,
) -> Result<()> {
    let proxy = FaultProxy::start(server).await?;
    let current = Arc::new(Mutex::new("hunter-0".to_owned()));
    change("hunter-0")?;
    let (file, asked) = (Arc::clone(&current), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&asked);
    let target = Target::new(url(proxy.address())).credentials(move || {
        counted.fetch_add(1, SeqCst);
        let password = file.lock().clone();
        async move { Ok(Credentials::new(password)) }
    });
    let mut load = Load::start(target, TTL).await?;
    load.goes_on().await?;
    for round in 1..=2 {
        // The server has the new password, and the client's file has it later.
        let next = format!("hunter-{round}-late");
        change(&next)?;
        proxy.reset();
        let before = asked.load(SeqCst);
        tokio::time::sleep(WINDOW).await;
        ensure!(asked.load(SeqCst) > before, "no connection was made");
        *current.lock() = next;
        load.goes_on().await?;

        // The client's file has it first.
        let next = format!("hunter-{round}-early");
        current.lock().clone_from(&next);
        proxy.reset();
        tokio::time::sleep(WINDOW).await;
        change(&next)?;
        load.goes_on().await?;
    }
    load.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_lost_while_passwords_change_on_redis() -> Result<()> {
    let server = RedisServer::start()?;
    let url = |address| format!("redis://app@{address}");
    rotate_passwords(server.address(), url, |password| {
        let password = format!(">{password}");
        let words = [
            "ACL", "SETUSER", "app", "reset", "on", &password, "~*", "&*", "+@all",
        ];
        let answer = server.command(&words)?;
        ensure!(answer == "OK", "{answer}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_lost_while_passwords_change_on_postgres() -> Result<()> {
    let server = PostgresServer::start()?;
    server.sql("CREATE ROLE app SUPERUSER LOGIN")?;
    let database = server
        .url()
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    let url = |address| format!("postgres://app@{address}/{database}");
    rotate_passwords(server.address(), url, |password| {
        server
            .sql(&format!("ALTER ROLE app PASSWORD '{password}'"))
            .map(drop)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_lost_while_passwords_change_on_mariadb() -> Result<()> {
    rotate_passwords_of(Product::MariaDb).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_lost_while_passwords_change_on_mysql() -> Result<()> {
    rotate_passwords_of(Product::MySql).await
}

async fn rotate_passwords_of(product: Product) -> Result<()> {
    let server = MySqlServer::start(product)?;
    server.sql("CREATE USER app@'%' IDENTIFIED BY 'hunter-0'; GRANT ALL ON *.* TO app@'%'")?;
    // MySQL takes a password over TLS only, and has made certificates for itself.
    let mode = match product {
        Product::MySql => "REQUIRED",
        Product::MariaDb => "DISABLED",
    };
    let url = server.url();
    let database = url.rsplit(['/', '?']).nth(1).unwrap_or_default().to_owned();
    let url = |address| format!("mysql://app@{address}/{database}?ssl-mode={mode}");
    rotate_passwords(server.address(), url, |password| {
        server
            .sql(&format!("ALTER USER app@'%' IDENTIFIED BY '{password}'"))
            .map(drop)
    })
    .await
}

/// Replaces the certificates of client and server, from the first of these authorities to the last.
/// `change` replaces those of the server. Before that, the client has a new certificate with its
/// old key for a while, as while somebody copies the files.
async fn rotate_certificates(
    server: SocketAddr,
    pkis: &[Pki],
    ttl: Duration,
    url: impl Fn(SocketAddr, &Path) -> String,
    mut change: impl FnMut(&Pki) -> Result<()>,
) -> Result<()> {
    let proxy = FaultProxy::start(server).await?;
    let files = tempfile::tempdir()?;
    let copy = |pki: &Pki, name: &str| fs::copy(pki.path(name), files.path().join(name)).map(drop);
    for name in ["ca.crt", "client.crt", "client.key"] {
        copy(&pkis[0], name)?;
    }
    let mut load = Load::start(Target::new(url(proxy.address(), files.path())), ttl).await?;
    load.goes_on().await?;
    for next in &pkis[1..] {
        copy(next, "client.crt")?;
        proxy.reset();
        load.goes_on().await?;
        change(next)?;
        proxy.reset();
        tokio::time::sleep(WINDOW).await;
        copy(next, "client.key")?;
        copy(next, "ca.crt")?;
        load.goes_on().await?;
    }
    load.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_lost_while_certificates_change_on_redis() -> Result<()> {
    let pkis = three_authorities()?;
    let server = RedisServer::with_tls_port(pkis[0].folder())?;
    let url = |address: SocketAddr, files: &Path| {
        let (password, files) = (server.password(), files.display());
        format!(
            "rediss://:{password}@{address}?tls_ca={files}/ca.crt&tls_cert={files}/client.crt\
             &tls_key={files}/client.key"
        )
    };
    let change = |next: &Pki| server.replace_certificates(next.folder());
    rotate_certificates(server.tls_address(), &pkis, TTL, url, change).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_lost_while_certificates_change_on_postgres() -> Result<()> {
    let pkis = three_authorities()?;
    let server = PostgresServer::with_tls(&pkis[0])?;
    let url = |address: SocketAddr, files: &Path| {
        let files = files.display();
        format!(
            "postgres://secured:hunter2@{address}/distlock?sslmode=verify-full\
             &sslrootcert={files}/ca.crt&sslcert={files}/client.crt&sslkey={files}/client.key"
        )
    };
    rotate_certificates(server.address(), &pkis, TTL, url, |next| {
        server.replace_certificates(next)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_lost_while_certificates_change_on_mariadb() -> Result<()> {
    rotate_certificates_of(Product::MariaDb).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_lost_while_certificates_change_on_mysql() -> Result<()> {
    rotate_certificates_of(Product::MySql).await
}

async fn rotate_certificates_of(product: Product) -> Result<()> {
    let pkis = three_authorities()?;
    let server = MySqlServer::with_tls(product, &pkis[0])?;
    server.sql(
        "CREATE USER secured@'%' IDENTIFIED BY 'hunter2' REQUIRE X509; \
         GRANT ALL ON *.* TO secured@'%'",
    )?;
    let url = |address: SocketAddr, files: &Path| {
        let files = files.display();
        format!(
            "mysql://secured:hunter2@{address}/distlock?ssl-mode=VERIFY_IDENTITY\
             &ssl-ca={files}/ca.crt&ssl-cert={files}/client.crt&ssl-key={files}/client.key"
        )
    };
    rotate_certificates(server.address(), &pkis, TTL, url, |next| {
        server.replace_certificates(next)
    })
    .await
}

/// ZooKeeper reads its files at its start only, so the server restarts at each change.
#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_lost_while_certificates_change_on_zookeeper() -> Result<()> {
    const FILES: [[&str; 2]; 3] = [
        ["identity-0.pem", "trusted-0.pem"],
        ["identity-1.pem", "trusted-1.pem"],
        ["identity-2.pem", "trusted-2.pem"],
    ];
    let pkis = three_authorities()?;
    let port = free_port()?;
    let stores = |[identity, trusted]: [&str; 2]| {
        [
            format!("ssl.keyStore.location={identity}"),
            format!("ssl.trustStore.location={trusted}"),
        ]
    };
    let mut setup = Setup {
        servers: 1,
        // Only a client with a certificate reaches the nodes.
        open: true,
        // A session of 20 ticks, the longest, outlives the lease.
        tick: Duration::from_secs(2),
        settings: vec![
            format!("secureClientPort={port}"),
            "secureClientPortAddress=127.0.0.1".into(),
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".into(),
            "ssl.clientAuth=need".into(),
        ],
        ..Setup::default()
    };
    setup.settings.extend(stores(FILES[0]));
    for (pki, [identity, trusted]) in pkis.iter().zip(FILES) {
        let read = |name: &str| fs::read_to_string(pki.path(name));
        let key_and_certificate = read("server.key")? + &read("server.crt")?;
        setup.files.push((identity, key_and_certificate));
        setup.files.push((trusted, read("ca.crt")?));
    }
    let mut server = ZooKeeper::start_with(&setup)?;
    let url = |address: SocketAddr, files: &Path| {
        let files = files.display();
        format!(
            "zookeeper://{address}/distlock?session_timeout=40s&tls_ca={files}/ca.crt\
             &tls_cert={files}/client.crt&tls_key={files}/client.key"
        )
    };
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut next = FILES[1..].iter();
    rotate_certificates(address, &pkis, TTL_OVER_A_RESTART, url, |_| {
        let files = next.next().context("another round")?;
        let lines = stores(*files);
        server.restart_with(0, &[&lines[0], &lines[1]])
    })
    .await
}

fn three_authorities() -> Result<Vec<Pki>> {
    (0..3).map(|_| Pki::new()).collect()
}

/// A leader whose password is changed, first at the server and later in its file, goes on to lead.
/// So does a candidate that stands by.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_keeps_its_seat_while_the_password_in_its_file_changes() -> Result<()> {
    let server = RedisServer::start()?;
    let proxy = FaultProxy::start(server.address()).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("distlock.toml");
    let write = |password: &str| {
        let table = format!(
            "[backend]\nurl = \"redis://:{password}@{}\"\n",
            proxy.address()
        );
        fs::write(&file, table)
    };
    write(server.password())?;
    let candidate = |script: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_distlock"));
        for name in ["DISTLOCK_BACKEND", "DISTLOCK_CONFIG"] {
            command.env_remove(name);
        }
        command
            .args(["elect", "seat", "--ttl", "20s", "--config"])
            .arg(&file);
        command.args(["--", "sh", "-c", script]);
        Process::spawn(&mut command)
    };
    let mut leader = candidate("echo leads; while :; do sleep 0.1; done")?;
    leader.wait_for_line(SOON, |line| line == "leads")?;
    let mut other = candidate("echo took over; while :; do sleep 0.1; done")?;
    // A candidate that still opens its store would end with an error.
    eventually("the other stands by", SOON, || {
        let queues = server.command(&["KEYS", "*}:queue:*"]);
        queues.is_ok_and(|keys| !keys.is_empty())
    })?;

    let began = Instant::now();
    let changed = server.command(&["CONFIG", "SET", "requirepass", "hunter2"])?;
    ensure!(changed == "OK", "{changed}");
    proxy.reset();
    tokio::time::sleep(WINDOW).await;
    write("hunter2")?;
    // Longer than a lease that nobody renews.
    while began.elapsed() < Duration::from_secs(22) {
        ensure!(
            !leader.output().contains("leads no more"),
            "{}",
            leader.output()
        );
        ensure!(leader.is_running()?, "{}", leader.output());
        ensure!(other.is_running()?, "{}", other.output());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for output in [leader.output(), other.output()] {
        ensure!(!output.contains("hunter2"), "{output}");
    }
    // The candidate that stood by is connected again, so it takes the seat at once.
    leader.signal(Signal::TERM)?;
    leader.wait(SOON)?;
    other.wait_for_line(SOON, |line| line == "took over")?;
    other.signal(Signal::TERM)?;
    other.wait(SOON).map(drop)
}
